"""Run the cells of the matrix one after another: ``python -m tests.matrix [CELL…]``.

Each cell gets an environment below build/matrix, which is deleted after its tests. tests/matrix/results.json keeps the
result of every cell, and the tables of docs/compatibility.md are written from it. If cells are named, the other
results stay. Exit status: 0; 1 if a cell failed or could not be run; 2 for an unknown cell.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.matrix import page
from tests.matrix.cells import CELLS, ROOT, Cell, project
from tests.matrix.environment import CannotInstall, Environment
from tests.matrix.results import FILE, CannotRun, Result, keep, load, run_tests

BUILD = ROOT / "build" / "matrix"


def main(arguments: Sequence[str]) -> int:
    """Run the cells; return the exit status."""
    parser = argparse.ArgumentParser(prog="make matrix", description="Run the cells of the matrix one after another.")
    parser.add_argument("cells", nargs="*", metavar="CELL", help="all, if none is named")
    parser.add_argument("--list", action="store_true", help="list the names of the cells")
    parser.add_argument("--page", action="store_true", help="only write the tables from the kept results")
    parser.add_argument("--keep", action="store_true", help="keep the environments and the downloads")
    parser.add_argument("--pythons", default="", help="folders with interpreters, separated by colons, before PATH")
    parser.add_argument("--workers", type=int, default=2, help="processes that run the tests of a cell")
    options = parser.parse_args(arguments)
    known = {cell.name: cell for cell in CELLS}
    if options.list:
        print("\n".join(known))
        return 0
    if unknown := [name for name in options.cells if name not in known]:
        print(f"error: no cell is named {', '.join(unknown)}", file=sys.stderr)
        print("hint: `python -m tests.matrix --list` lists them", file=sys.stderr)
        return 2
    chosen = [] if options.page else [known[name] for name in options.cells or known]
    failed = [cell for cell in chosen if not run(cell, options)]
    if not options.keep:
        shutil.rmtree(BUILD / "cache", ignore_errors=True)
    write_page()
    print(f"{len(chosen)} cells, {len(failed)} failed: {', '.join(cell.name for cell in failed) or 'none'}")
    return 1 if failed else 0


def run(cell: Cell, options: argparse.Namespace) -> bool:
    """Run a cell and keep its result; return whether all its tests passed."""
    environment = Environment(BUILD / cell.name, BUILD / "cache" / cell.torch, options.pythons)
    for old in (BUILD / "cache").glob("*"):  # each torch takes several gigabytes
        if old != environment.cache:
            shutil.rmtree(old)
    table = project()
    try:
        print(f"{cell.name}: installing", flush=True)
        environment.make(cell, table)
        print(f"{cell.name}: testing", flush=True)
        result = run_tests(cell, environment.python, BUILD / "reports", workers=options.workers)
    except (CannotInstall, CannotRun) as error:
        print(f"{cell.name}: {error}", flush=True)
        return False
    finally:
        if not options.keep:
            environment.remove()
    write_result(result)
    print(
        f"{cell.name}: {result.passed} passed, {result.failed} failed, {result.skipped} skipped in {result.seconds} s"
    )
    print("".join(f"  {name}\n" for name in result.failures), end="", flush=True)
    return result.failed == 0


def write_result(result: Result, file: Path = ROOT / FILE) -> None:
    """Keep a result in the place of the earlier one of its cell."""
    results = {**load(file), result.name: result}
    keep(file, {cell.name: results[cell.name] for cell in CELLS if cell.name in results})


def write_page(file: Path = ROOT / page.FILE) -> None:
    """Write the tables of the page from the kept results."""
    text = file.read_text(encoding="utf-8")
    file.write_text(page.rewritten(text, load(ROOT / FILE), project()), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
