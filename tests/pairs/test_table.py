"""The table of pairs has every capability, every act of ckstore, and one cell for each pair, which says something."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.pairs.table import document, page, problems, read

_NAMES = """
save async ranks commit retention budget undo gc compact push pull mirror evict clone follow remote-prune repair reindex
touch rename-run tags-pins replace checkout export group shared read-only make-room quota backup kill read
publish
"""
CAPABILITIES = set(_NAMES.split())
Said = dict[str, Any]


def cell(said: Said, value: object, row: str = "save", other: str = "budget") -> None:
    """Put something else into a cell."""
    said[row]["cells"][other] = value


WRONG: dict[str, tuple[Callable[[Said], object], str]] = {
    "a pair without a cell": (lambda said: said["save"]["cells"].pop("budget"), "budget and save have no cell"),
    "a pair with two cells": (lambda said: cell(said, ["law"], "kill", "save"), "kill and save have 2 cells"),
    "a capability without a row": (lambda said: said.pop("kill"), "kill and save is no pair of rows"),
    "an empty list": (lambda said: cell(said, []), "budget and save: the list of tests is empty"),
    "an empty sentence": (lambda said: cell(said, ""), "budget and save: '' is no sentence"),
    "a sentence twice": (
        lambda said: cell(said, said["quota"]["cells"]["group"]),
        "budget and save: another cell has the same sentence",
    ),
    "a test that is not there": (
        lambda said: cell(said, ["ops/x.py::test"]),
        "budget and save: no test ops/x.py::test",
    ),
    "a law that does not try it": (
        lambda said: cell(said, ["members"], "quota", "group"),
        "group and quota: members does not try it",
    ),
    "an act of the library without a row": (
        lambda said: said["rename-run"]["acts"].remove("rename_run"),
        "no row has the act rename_run",
    ),
    "a command without a row": (lambda said: said["gc"]["acts"].remove("$ gc"), "no row has the act $ gc"),
    "an act that is gone": (lambda said: said["gc"]["acts"].append("collect"), "there is no act collect"),
    "an act of two rows": (lambda said: said["gc"]["acts"].append("save"), "2 rows have the act save"),
    "an act of the law without a row": (lambda said: said["gc"]["law"].remove("purge"), "no row has purge of acts.py"),
}


def test_every_pair_has_a_cell_that_says_something() -> None:
    table = read()

    assert table.rows.keys() == CAPABILITIES
    assert problems(table) == []
    assert page(table).count("## ") == len(CAPABILITIES) + 2


@pytest.mark.parametrize("wrong", WRONG)
def test_each_fault_of_a_table_is_found(wrong: str) -> None:
    said = document()
    change, problem = WRONG[wrong]
    change(said)

    assert problem in problems(read(said))
