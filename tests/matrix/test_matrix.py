"""The matrix covers what pyproject.toml allows, and the page shows the results that were kept."""

import re
from pathlib import Path

import pytest
from packaging.version import Version

from tests.matrix import page
from tests.matrix.__main__ import main
from tests.matrix.cells import (
    CELLS,
    EXTRAS,
    FRAMEWORKS,
    LOWEST,
    NEWEST,
    ROOT,
    Cell,
    lower_bounds,
    project,
    requirements,
)
from tests.matrix.environment import TOOLS, pins
from tests.matrix.results import FILE, FRAMEWORK_TESTS, LEFT_OUT, TESTS, Result, keep, load

REPORT = """<testsuites><testsuite>
<testcase classname="tests.tensors.test_a" name="passes"/>
<testcase classname="tests.tensors.test_a" name="fails"><failure message="x"/></testcase>
<testcase classname="tests.tensors.test_a" name="fails"><error message="also its teardown"/></testcase>
<testcase classname="tests.tensors.test_b" name="skips"><skipped message="no GPU"/></testcase>
</testsuite></testsuites>"""


def result(cell: Cell, *, failed: int = 0, **versions: str) -> Result:
    found = {"python": f"{cell.python}.1", "sqlite": "3.40.1", "torch": "2.6.0+cpu", **versions}
    return Result(cell.name, found, 1234, failed, 5, 90.0, ["tests.test_a::fails"] * failed)


def test_the_cells_have_each_python_and_torch_and_both_ends_of_the_other_packages() -> None:
    classifiers = project()["classifiers"]
    supported = {line.split(" :: ")[-1] for line in classifiers if re.search(r"Python :: 3\.\d+$", line)}
    torch = Version(lower_bounds(project())["torch"])

    assert {cell.python for cell in CELLS} == supported
    assert f"{torch.major}.{torch.minor}" in {cell.torch for cell in CELLS}
    assert {(cell.bounds, cell.frameworks) for cell in CELLS} >= {(LOWEST, True), (NEWEST, True)}
    assert {(cell.torch == NEWEST, cell.bounds) for cell in CELLS} >= {(True, LOWEST), (True, NEWEST)}
    assert len({cell.name for cell in CELLS}) == len(CELLS)


def test_the_cells_have_each_extra_that_users_install() -> None:
    assert {*EXTRAS, FRAMEWORKS} == project()["optional-dependencies"].keys() - {"dev", "docs"}


def test_cells_of_one_torch_follow_one_another() -> None:
    torches = [cell.torch for cell in CELLS]

    assert sorted(torches, key=torches.index) == torches


def test_a_cell_requires_its_torch_and_the_ranges_of_the_project() -> None:
    found = requirements(Cell("3.12", "2.9", LOWEST), project())
    newest = requirements(Cell("3.12", NEWEST, NEWEST, frameworks=True), project())

    assert "torch==2.9.*" in found
    assert set(project()["dependencies"]) < set(found)
    assert [line for line in newest if line.startswith("torch>")] != []
    assert [line for line in found if "transformers" in line] == []
    assert [line for line in newest if "transformers" in line] != []


def test_one_package_with_two_ranges_is_refused() -> None:
    table = {"dependencies": ["numpy>=1"], "optional-dependencies": {name: ["numpy>=2"] for name in EXTRAS}}

    with pytest.raises(ValueError, match="must give numpy one range, got numpy>=1 and numpy>=2"):
        requirements(Cell("3.12", NEWEST, NEWEST), table)


def test_each_test_of_a_cell_exists() -> None:
    assert [path for path in (*TESTS, *FRAMEWORK_TESTS, *LEFT_OUT) if not (ROOT / path).exists()] == []
    assert len(pins(TOOLS)) == len(TOOLS)


def test_each_cell_has_passed() -> None:
    results = load(ROOT / FILE)

    assert list(results) == [cell.name for cell in CELLS], "run make matrix"
    assert {name: one.failures for name, one in results.items() if one.failed} == {}


def test_each_lower_bound_of_the_project_was_tested() -> None:
    results = load(ROOT / FILE).values()
    bounds = {name: Version(bound) for name, bound in lower_bounds(project()).items()}
    tested = {name: {Version(one.versions[name]) for one in results if name in one.versions} for name in bounds}

    # A version such as 2.13.0+cpu counts as 2.13.0.
    lowest = {name: min(versions, default=None) for name, versions in tested.items()}
    assert {name: found and Version(found.public) for name, found in lowest.items()} == bounds


def test_the_page_has_the_tables_of_the_kept_results() -> None:
    text = (ROOT / page.FILE).read_text(encoding="utf-8")

    assert text == page.rewritten(text, load(ROOT / FILE), project()), "run python -m tests.matrix --page"


def test_a_row_has_the_versions_and_counts_of_its_cell() -> None:
    first, second = CELLS[:2]

    rows = page.cell_table({first.name: result(first), second.name: result(second, failed=2)}).splitlines()

    assert rows[2] == f"| {first.python}.1 | 2.6.0 | 3.40.1 | {first.bounds} | 1,234 | 5 | 0 | 1.5 |"
    assert rows[3].endswith("| 1,234 | 5 | 2 | 1.5 |")
    assert [row for row in rows[4:] if "| not run |" not in row] == []
    assert len(rows) == 2 + len(CELLS)


def test_a_package_shows_the_versions_of_cells_without_failures() -> None:
    extras: dict[str, list[str]] = {name: [] for name in (*EXTRAS, FRAMEWORKS)}
    table = {"dependencies": ["click>=8"], "optional-dependencies": {**extras, "watch": ["rich>=13"]}}
    found = [
        result(CELLS[0], click="8.10", rich="13.0"),
        result(CELLS[1], click="8.9"),
        result(CELLS[2], click="8.1", failed=1),
    ]

    assert page.package_table(found, table).splitlines()[2:] == [
        "| click |  | 8.9 | 8.10 |",
        "| rich | `watch` | 13.0 | 13.0 |",
    ]


def test_a_page_without_its_markers_is_refused() -> None:
    with pytest.raises(page.NoMarkers, match="must have"):
        page.rewritten(f"{page.END} {page.BEGIN}", {}, project())


def test_results_are_kept_as_they_are_loaded(tmp_path: Path) -> None:
    results = {cell.name: result(cell, click="8.1") for cell in CELLS}

    keep(tmp_path / "results.json", results)

    assert load(tmp_path / "results.json") == results
    assert load(tmp_path / "none.json") == {}


def test_an_unknown_cell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["py2.7"]) == 2

    assert "no cell is named py2.7" in capsys.readouterr().err
