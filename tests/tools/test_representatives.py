"""Of a matrix `make test` runs representatives, `make crash` all; one that is named runs everywhere."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.representing import representatives_of
from tests.support.requirements import representatives

ROOT = Path(__file__).resolve().parents[2]
MATRIX = "tests/faults/test_signal_points.py"
ONE = "test_a_signal_at_any_call_hangs_and_leaves_nothing[replace-exit]"


class Item:
    """A test as pytest collects it: its name, marks, and the name of its value of each parameter."""

    def __init__(self, name: str, *marks: str, ids: tuple[str, ...] = ()) -> None:
        self.nodeid = f"{name}[{'-'.join(ids)}]"
        self.callspec = SimpleNamespace(_idlist=ids)
        self._marks = marks

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self._marks else None


def test_of_a_crossed_test_a_diagonal_is_kept_in_which_each_value_occurs() -> None:
    matrix = [Item("a", "crossed", ids=ids) for ids in itertools.product("pqrs", "xy", "1")]
    others = [Item("b"), Item("c", ids=("p",)), Item("d", "whole"), Item("e", "crossed", ids=("p", "x"))]

    kept: set[Any] = set(representatives_of(cast("Any", [*matrix, *others])))

    assert [one.nodeid for one in matrix if one in kept] == ["a[p-x-1]", "a[q-y-1]", "a[r-x-1]", "a[s-y-1]"]
    assert [one in kept for one in others] == [True, True, False, True]


def test_representatives_are_those_that_are_named() -> None:
    every = representatives(["a", ("b", 2), "c"], "c", ("b", 2))

    assert [one.values for one in every] == [("a",), ("b", 2), ("c",)]
    assert [one.values for one in every if not one.marks] == [("b", 2), ("c",)]
    with pytest.raises(AssertionError, match="are not all among"):
        representatives(["a"], "b")


@pytest.mark.parametrize(
    "arguments, full, there",
    [([MATRIX], "", False), ([MATRIX], "full", True), ([f"{MATRIX}::{ONE}"], "", True)],
    ids=["make test", "make crash", "named"],
)
def test_the_others_run_in_make_crash_and_by_their_names(arguments: list[str], full: str, there: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT,
        env={**os.environ, "CKSTORE_CRASH": full},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )

    assert (f"{MATRIX}::{ONE}\n" in done.stdout) == there, done.stdout + done.stderr
    assert f"{MATRIX}::" in done.stdout
