"""`make test` draws some of the long tests by the commit; each runs in `make crash`, and if it is asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tools import drawing
from tests.tools.drawing import COSTS, LEAST_S, RAREST, SHARE_S, drawn, function_of, main, one_in, read_costs

ROOT = Path(__file__).resolve().parents[2]
SEEDS = range(0, 200 * 8, 8)
"""Of equal remainders: what a test draws by the remainder of the seed must not decide which of its cases run."""
SUITE = """
import pytest

def test_cheap(): ...
def test_long(): ...
@pytest.mark.parametrize("case", range(16))
def test_matrix(case): ...
"""


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(1, 20)), max_size=6))
def test_each_case_runs_on_some_commits_and_a_case_of_each_matrix_on_every_commit(
    tests: list[tuple[float, int]],
) -> None:
    names = [f"test_{test}[{case}]" for test, (_, cases) in enumerate(tests) for case in range(cases)]
    costs = {f"test_{test}": seconds for test, (seconds, _) in enumerate(tests)}

    commits = [drawn(names, costs, seed) for seed in SEEDS]

    assert all(any(runs) for runs in zip(*commits, strict=True))
    for runs in commits:
        ran = {function_of(name) for name, its in zip(names, runs, strict=True) if its}
        assert {f"test_{test}" for test, (seconds, cases) in enumerate(tests) if cases > 1 or seconds < LEAST_S} <= ran


@given(st.floats(0, 100), st.integers(1, 100))
def test_a_test_is_drawn_for_its_share_of_time_if_that_is_not_too_rare(seconds: float, cases: int) -> None:
    rarely = one_in(seconds, cases)

    assert 1 <= rarely <= RAREST
    assert (
        rarely == 1 if seconds * cases < LEAST_S else rarely in (RAREST, cases) or seconds * cases / rarely <= SHARE_S
    )


def test_a_test_that_any_change_may_break_and_one_that_is_not_in_the_table_run_on_every_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drawing, "ALWAYS", ("tests/test_a.py::test_kept[1]",))
    names = ["tests/test_a.py::test_kept[0]", "tests/test_a.py::test_kept[1]", "tests/test_a.py::test_new"]

    commits = [drawn(names, {"tests/test_a.py::test_kept": 9.0}, seed) for seed in SEEDS]

    assert {runs[1:] == [True, True] for runs in commits} == {True}
    assert {runs[0] for runs in commits} == {True, False}


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A directory with tests and a table, which `drawing` is asked to draw from."""
    for folder in ("tests/tools", "other"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = tests\n")
    (tmp_path / "tests" / "test_a.py").write_text(SUITE)
    (tmp_path / COSTS).write_text("9.0 tests/test_a.py::test_long\n0.5 tests/test_a.py::test_matrix\n")
    return tmp_path


def collected(suite: Path, *arguments: str, seed: str = "0", full: str = "", profile: str = "ci") -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "tests.tools.drawing", *arguments],
        cwd=suite,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "CKSTORE_CRASH": full,
            "CKSTORE_CRASH_SEED": seed,
            "HYPOTHESIS_PROFILE": profile,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.partition("::")[2] for line in done.stdout.splitlines() if "::test_" in line]


def test_a_run_of_all_tests_draws(suite: Path) -> None:
    names = [
        f"tests/test_a.py::{name}" for name in ("test_cheap", "test_long", *(f"test_matrix[{n}]" for n in range(16)))
    ]
    runs = drawn(names, read_costs(suite / COSTS), 5)

    there = collected(suite, seed="5")

    assert there == [name.partition("::")[2] for name, its in zip(names, runs, strict=True) if its]
    assert len([name for name in there if name.startswith("test_matrix")]) == 2


@pytest.mark.parametrize(
    "arguments, full, profile, count",
    [
        (["-m", "drawn"], "full", "default", 17),
        (["tests/test_a.py"], "", "ci", 18),
        (["-k", "long"], "", "ci", 1),
        (["tests/test_a.py::test_long"], "", "ci", 1),
        ([], "", "nightly", 18),
    ],
    ids=["make crash", "a file", "-k", "named", "nightly"],
)
def test_every_test_runs_in_make_crash_and_if_it_is_asked_for(
    suite: Path, arguments: list[str], full: str, profile: str, count: int
) -> None:
    assert len(collected(suite, *arguments, full=full, profile=profile)) == count


def test_make_crash_runs_what_make_test_draws() -> None:
    rules = (ROOT / "Makefile").read_text(encoding="utf-8").split("\n\n")
    of = {name: next(rule for rule in rules if rule.startswith(f"{name}:")) for name in ("pytest", "crash")}

    assert all("-p tests.tools.drawing" in rule for rule in of.values())
    assert " or drawn" in of["crash"]


def test_the_table_keeps_what_a_run_did_not_draw_and_drops_what_is_gone(tmp_path: Path) -> None:
    report, file = tmp_path / "tests.xml", tmp_path / "costs.txt"
    here = "tests/tools/test_drawing.py::test_a_run_of_all_tests_draws"
    file.write_text(f"3.0 {here}\n2.0 tests/tools/test_drawing.py::test_gone\n1.0 tests/a/test_b.py::test_c\n")
    cases = [
        ("tests.a.test_b", "test_c[0]", 0.021),
        ("tests.a.test_b", "test_c[1]", 0.029),
        ("tests.a.test_b.TestD", "test_e", 12.3),
        ("tests.a.test_b", "test_cheap", 0.19),
        ("tests.tools.test_names", "test_of_names", 9.0),
    ]
    report.write_text(
        "<testsuite>"
        + "".join(
            f'<testcase classname="{classname}" name="{name}"><properties>'
            f'<property name="processor_s" value="{seconds}"/></properties></testcase>'
            for classname, name, seconds in cases
        )
        + "</testsuite>"
    )

    main(report, file)

    assert file.read_text() == f"12 tests/a/test_b.py::TestD::test_e\n0.025 tests/a/test_b.py::test_c\n3.0 {here}\n"
