"""Write the kept results into the tables of docs/compatibility.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from packaging.version import Version

from tests.matrix.cells import CELLS, EXTRAS, FRAMEWORKS, NEWEST, Cell, direct
from tests.matrix.results import Result

FILE = Path("docs/compatibility.md")
"""Below the root of the sources."""
BEGIN, END = "<!-- versions: begin -->", "<!-- versions: end -->"


class NoMarkers(Exception):
    """The page has no place for the tables."""


def tables(results: Mapping[str, Result], table: Mapping[str, object]) -> str:
    """Return both tables in Markdown: the cells, and the versions of each package.

    Args:
        results: By the name of the cell. A cell without a result is shown as not run.
        table: ``project`` of pyproject.toml.
    """
    return f"{cell_table(results)}\n\n{package_table(results.values(), table)}"


def cell_table(results: Mapping[str, Result]) -> str:
    """Return a row for each cell."""
    rows = [
        "| Python | torch | SQLite | Other packages | Passed | Skipped | Failed | Minutes |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for cell in CELLS:
        packages = f"{cell.bounds}, with the frameworks" if cell.frameworks else cell.bounds
        result = results.get(cell.name)
        if result is None:
            rows.append(f"| {cell.python} | {_torch(cell)} | – | {packages} | not run | – | – | – |")
            continue
        own = result.versions
        rows.append(
            f"| {own['python']} | {_public(own['torch'])} | {own['sqlite']} | {packages} | {result.passed:,} |"
            f" {result.skipped:,} | {result.failed:,} | {result.seconds / 60:.1f} |"
        )
    return "\n".join(rows)


def package_table(results: Iterable[Result], table: Mapping[str, object]) -> str:
    """Return the lowest and the newest version of each package in the cells without a failed test."""
    green = [result for result in results if result.failed == 0]
    rows = ["| Package | Extra | Lowest tested | Newest tested |", "| --- | --- | --- | --- |"]
    for name, extra in _extras(table).items():
        found = sorted({Version(result.versions[name]) for result in green if name in result.versions})
        first, last = (_public(str(found[0])), _public(str(found[-1]))) if found else ("–", "–")
        rows.append(f"| {name} | {extra} | {first} | {last} |")
    return "\n".join(rows)


def _extras(table: Mapping[str, object]) -> dict[str, str]:
    """Return the names of all packages, each with the extras that have it."""
    found: dict[str, list[str]] = {name: [] for name in direct(table, ())}
    for extra in (*EXTRAS, FRAMEWORKS):
        for name in direct({**table, "dependencies": []}, (extra,)):
            found.setdefault(name, []).append(f"`{extra}`")
    return {name: ", ".join(extras) for name, extras in found.items()}


def _torch(cell: Cell) -> str:
    return "the newest" if cell.torch == NEWEST else cell.torch


def _public(version: str) -> str:
    """Return a version without its local part, such as ``+cpu``."""
    return Version(version).public


def rewritten(text: str, results: Mapping[str, Result], table: Mapping[str, object]) -> str:
    """Return the text of the page with new tables.

    Raises:
        NoMarkers: The page does not have both markers once, in this order.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise NoMarkers(f"{FILE} must have {BEGIN} and then {END}, each once")
    head, rest = text.split(BEGIN)
    return f"{head}{BEGIN}\n\n{tables(results, table)}\n\n{END}{rest.split(END)[1]}"
