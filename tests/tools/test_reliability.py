"""The table of docs/reliability.md says what a run covered, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.coverage import REPORT, covered

TOOL = Path(__file__).with_name("reliability")
PAGE = "# Reliability\n\nBefore.\n\n<!-- table: begin -->\nold\n<!-- table: end -->\n\nAfter.\n"


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "reliability.md"
    path.write_text(PAGE)
    return path


def run(report: Path, page: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(TOOL), str(report), str(page)], capture_output=True, text=True, timeout=60, check=False
    )


def rows(page: Path) -> list[list[str]]:
    lines = [line for line in page.read_text().splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_table_has_the_sums_of_what_the_lanes_told(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "crash.jsonl"
    monkeypatch.setenv(REPORT, str(report))
    covered("power cuts", "save on ext4", seed=7, cuts=900, not_reached=1)
    covered("power cuts", "save on xfs", seed=8, cuts=600)
    covered("kill points", "gc", points=12)

    done = run(report, page)

    test = "tests/tools/test_reliability.py"
    assert (done.returncode, done.stderr) == (0, "")
    assert rows(page) == [
        ["kill points", "12 points, 1 part", "0", "–", f"`make crash PYTEST_ARGS={test}`"],
        ["power cuts", "1,500 cuts, 1 not reached, 2 parts", "0", "7, 8", f"`make crash PYTEST_ARGS={test}`"],
    ]
    assert page.read_text().startswith("# Reliability\n\nBefore.\n\n<!-- table: begin -->\n\n| Lane ")
    assert page.read_text().endswith("\n\n<!-- table: end -->\n\nAfter.\n")
    assert "old" not in page.read_text()


def test_of_many_seeds_the_number_is_in_the_table(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REPORT, str(tmp_path / "crash.jsonl"))
    for seed in range(3):
        covered("histories", f"part {seed}", seed=seed, histories=50)

    run(tmp_path / "crash.jsonl", page)

    assert rows(page)[0][:4] == ["histories", "150 histories, 3 parts", "0", "3 seeds"]


def test_a_second_run_changes_nothing(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REPORT, str(tmp_path / "crash.jsonl"))
    covered("power cuts", "save on ext4", seed=7, cuts=900)
    run(tmp_path / "crash.jsonl", page)
    first = page.read_text()

    run(tmp_path / "crash.jsonl", page)

    assert page.read_text() == first


def test_a_broken_promise_is_in_the_table_and_in_the_exit_status(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(REPORT, str(tmp_path / "crash.jsonl"))
    covered("power cuts", "save on ext4", violations=2, cuts=900)

    assert run(tmp_path / "crash.jsonl", page).returncode == 1
    assert rows(page)[0][2] == "2"


def test_without_a_report_the_page_stays_as_it_is(page: Path, tmp_path: Path) -> None:
    half = tmp_path / "half.jsonl"
    half.write_text('{"lane": "power cuts", "wha')
    (tmp_path / "empty.jsonl").touch()

    for name, said in (("none", "`make crash` makes it"), ("empty", "is empty"), ("half", "line 1 is not one of")):
        done = run(tmp_path / f"{name}.jsonl", page)
        assert done.returncode == 2
        assert said in done.stderr
    assert page.read_text() == PAGE


@pytest.mark.parametrize("text", ["", "<!-- table: end --><!-- table: begin -->", PAGE + PAGE])
def test_a_page_without_a_place_for_the_table_is_refused(text: str, page: Path, tmp_path: Path) -> None:
    report = tmp_path / "crash.jsonl"
    report.write_text(json.dumps({"lane": "a", "what": "b", "counts": {}, "violations": 0, "seed": None, "test": ""}))
    page.write_text(text)

    done = run(report, page)

    assert done.returncode == 2
    assert "each once" in done.stderr
    assert page.read_text() == text


def test_the_page_of_this_project_has_a_place_for_the_table() -> None:
    text = (TOOL.parents[2] / "docs" / "reliability.md").read_text(encoding="utf-8")

    assert text.count("<!-- table: begin -->") == text.count("<!-- table: end -->") == 1
    assert os.access(TOOL, os.X_OK)
