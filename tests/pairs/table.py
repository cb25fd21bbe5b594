"""Read the table of pairs, say what is wrong with it, and print it as Markdown (`python -m tests.pairs`).

A row is a capability: what it is, and the acts of the library and the command line that use it. Each pair of rows has
one cell, in the row of either. A cell is a list of tests that use both together, or one sentence: why the two cannot
meet, or why nothing can go wrong where they do.
"""

from __future__ import annotations

import ast
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
FILE = Path(__file__).with_name("table.toml")
LAWS = {
    "law": "pairs/test_pairs.py::test_each_act_before_and_after_each_other_loses_nothing",
    "members": "pairs/test_members.py::test_each_act_of_a_member_after_those_of_another_loses_nothing",
}
"""Short names of the tests that most cells name."""
GROUP = "group"
_LEAST_WORDS = 6

Cell = list[str] | str
Pair = frozenset[str]


@dataclass(frozen=True)
class Row:
    """A capability.

    Attributes:
        does: What it is.
        acts: What of the library and of the command line it is used by, as `acts_of_ckstore` names them.
        law: Its acts in tests/pairs/acts.py.
        cells: Other capability -> cell.
    """

    does: str
    acts: list[str]
    law: list[str]
    cells: Mapping[str, Cell]


@dataclass(frozen=True)
class Table:
    """All of it.

    Attributes:
        rows: Capability -> row.
        refused: ``ACT after ACT`` -> the error with which the first is refused, and why.
        open: ``ACT and ACT`` -> what goes wrong today.
    """

    rows: Mapping[str, Row]
    refused: Mapping[str, str]
    open: Mapping[str, str]

    def cells(self) -> Iterator[tuple[Pair, str, Cell]]:
        """Give each cell: its pair, the row that it is in, and what it says."""
        for name, row in self.rows.items():
            for other, cell in row.cells.items():
                yield frozenset((name, other)), name, cell


def document() -> dict[str, Any]:
    """Return what the file says."""
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def read(said: Mapping[str, Any] | None = None) -> Table:
    """Return the table of the file, or of what else is said."""
    rows = {**(document() if said is None else said)}
    refused, known = rows.pop("refused", {}), rows.pop("open", {})
    return Table({name: Row(**row) for name, row in rows.items()}, refused, known)


def acts_of_ckstore() -> set[str]:
    """Return each act of the library and the command line: ``save``, ``remotes.prune``, ``config.budget``, ``$ gc``."""
    from ckstore.ops.config import StoreConfig
    from ckstore.remote.remotes import Remotes
    from ckstore.store import Store
    from ckstore_cli.app import COMMANDS

    found = {f"$ {command}" for command in COMMANDS}
    for prefix, cls in (("", Store), ("remotes.", Remotes), ("config.", StoreConfig)):
        found |= {prefix + name for name in vars(cls) if not name.startswith("_")}
    return found


def problems(table: Table) -> list[str]:
    """Return what is wrong with a table, one sentence each."""
    return [*_wrong_acts(table), *_wrong_pairs(table), *_wrong_cells(table)]


def _wrong_acts(table: Table) -> Iterator[str]:
    mapped = Counter(act for row in table.rows.values() for act in row.acts)
    known = acts_of_ckstore()
    yield from (f"no row has the act {act}" for act in sorted(known - mapped.keys()))
    yield from (f"there is no act {act}" for act in sorted(mapped.keys() - known))
    yield from (f"{count} rows have the act {act}" for act, count in mapped.items() if count > 1)
    tried = Counter(act for row in table.rows.values() for act in row.law)
    yield from (f"no row has {act} of acts.py" for act in sorted(acts_of_law() - tried.keys()))
    yield from (f"acts.py has no {act}" for act in sorted(tried.keys() - acts_of_law()))


def _wrong_pairs(table: Table) -> Iterator[str]:
    wanted = {frozenset(pair) for pair in combinations(table.rows, 2)}
    found = Counter(pair for pair, _, _ in table.cells())
    yield from (f"{_words(pair)} have no cell" for pair in sorted(wanted - found.keys(), key=sorted))
    yield from (f"{_words(pair)} is no pair of rows" for pair in sorted(found.keys() - wanted, key=sorted))
    yield from (f"{_words(pair)} have {count} cells" for pair, count in found.items() if count > 1)


def _wrong_cells(table: Table) -> Iterator[str]:
    sentences = Counter(cell for _, _, cell in table.cells() if isinstance(cell, str))
    for pair, _, cell in table.cells():
        if isinstance(cell, str):
            if len(cell.split()) < _LEAST_WORDS or not cell.endswith("."):
                yield f"{_words(pair)}: {cell!r} is no sentence"
            if sentences[cell] > 1:
                yield f"{_words(pair)}: another cell has the same sentence"
        elif not cell:
            yield f"{_words(pair)}: the list of tests is empty"
        else:
            yield from (f"{_words(pair)}: {problem}" for test in cell if (problem := _wrong_test(table, pair, test)))


def _wrong_test(table: Table, pair: Pair, test: str) -> str:
    if test in LAWS:
        tried = acts_of_law(test)
        rows = [table.rows.get(name) for name in pair - {GROUP}]
        fits = (GROUP in pair) == (test == "members") and all(row is not None and tried & {*row.law} for row in rows)
        return "" if fits else f"{test} does not try it"
    file, _, name = test.partition("::")
    return "" if name in tests_in(file) else f"no test {test}"


@cache
def tests_in(file: str) -> frozenset[str]:
    """Return the names of the tests of a file below tests/, without importing it."""
    path = TESTS / file
    if not path.is_file():
        return frozenset()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


@cache
def acts_of_law(law: str = "law") -> frozenset[str]:
    """Return the names of the acts that a law tries."""
    from tests.pairs.acts import ACTS, BY_MEMBERS

    return frozenset(ACTS if law == "law" else BY_MEMBERS)


def _words(pair: Pair) -> str:
    return " and ".join(sorted(pair))


def page(table: Table) -> str:
    """Return the table as Markdown."""
    lines = []
    for name, row in table.rows.items():
        lines += [f"## {name}", "", row.does, "", "| with | cell |", "| --- | --- |"]
        for pair, _, cell in table.cells():
            if name in pair:
                (other,) = pair - {name}
                text = cell if isinstance(cell, str) else "<br>".join(f"`{LAWS.get(test, test)}`" for test in cell)
                lines.append(f"| {other} | {text} |")
        lines.append("")
    for title, of in (("Refused", table.refused), ("Open", table.open)):
        lines += [f"## {title}", "", *(f"- {key}: {text}" for key, text in of.items()), ""]
    return "\n".join(lines)
