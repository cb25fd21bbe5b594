"""What the machine ended is tried once more, alone; what passes then passes the run, loudly; nothing else does."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.requirements import representatives

ROOT = Path(__file__).resolve().parents[2]

ONCE = """
from pathlib import Path
import os, pytest, time

def first(name):
    mark = Path(__file__).with_name(name)
    here = mark.exists()
    mark.touch()
    return not here
"""
PASSES = "def test_passes(): pass\n"
LATE_ONCE = """
@pytest.mark.timeout(1)
@pytest.mark.parametrize('x', ['a::b[c]'])
def test_late(x):
    if first('late'): print('the first try'); time.sleep(60)
"""
TEARDOWN_ONCE = """
@pytest.fixture
def slow():
    yield
    if first('teardown'): time.sleep(60)
@pytest.mark.timeout(1)
def test_teardown(slow): pass
"""
CRASHES_ONCE = "def test_crashes():\n    if first('crash'): os._exit(9)\n"
LATE = "@pytest.mark.timeout(1)\ndef test_always_late(): time.sleep(60)\n"
LATE_THEN_SKIPS = """
@pytest.mark.timeout(1)
def test_skips():
    if not first('skip'): pytest.skip('no more')
    time.sleep(60)
"""
LATE_THEN_ASSERTS = """
@pytest.fixture
def broken():
    yield
    assert not first('broken')
@pytest.mark.timeout(1)
def test_late_and_wrong(broken):
    if first('wrong'): time.sleep(60)
"""
MANY_LATE_ONCE = """
@pytest.mark.timeout(0.1)
@pytest.mark.parametrize('x', range(11))
def test_many(x):
    if first(f'many-{x}'): time.sleep(60)
"""
ASSERTS_ONCE = "def test_asserts(): assert not first('assertion')\n"
RAISES_ONCE = "def test_raises():\n    if first('exception'): raise TimeoutError('Timeout (>1 s)')\n"


def tried(
    folder: Path, *tests: str, arguments: tuple[str, ...] = ("-p", "no:xdist"), earlier: str = ""
) -> tuple[int, str, str]:
    """Run the tool on these tests, with the report of an earlier run; return its status, its output and the report."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_it.py").write_text("".join([ONCE, *tests]))
    report = folder / "second-try.txt"
    if earlier:
        report.write_text(earlier)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.tools.second_try",
            "--report",
            report,
            "-c",
            "pytest.ini",
            *arguments,
            "test_it.py",
        ],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    return done.returncode, done.stdout + done.stderr, report.read_text() if report.exists() else ""


def test_what_the_machine_ended_once_passes_the_run_and_is_named_with_its_first_report(tmp_path: Path) -> None:
    tests = (PASSES, LATE_ONCE, TEARDOWN_ONCE, CRASHES_ONCE)
    status, output, report = tried(tmp_path, *tests, arguments=("-n", "1"), earlier="of an earlier run\n")

    assert status == 0, output
    said = output.partition("Passed, but these only the second time:")[2]
    assert [test in said for test in ("test_late[a::b[c]]", "test_teardown", "test_crashes", "test_passes")] == [
        True,
        True,
        True,
        False,
    ]
    assert report.startswith("of an earlier run\n")
    assert "the first try" in report
    assert "crashed while running" in report
    assert "UTC, commit " in report


@pytest.mark.parametrize("test", representatives([LATE, LATE_THEN_SKIPS], LATE))
def test_what_does_not_pass_the_second_time_fails_the_run(tmp_path: Path, test: str) -> None:
    status, output, report = tried(tmp_path, PASSES, LATE_ONCE, test)

    assert status == 1
    assert "test_late[" not in output.partition("Failed twice:")[2]
    assert "Timeout" in report


def test_a_run_that_passes_writes_no_report_and_names_the_one_that_is_there(tmp_path: Path) -> None:
    status, output, report = tried(tmp_path, PASSES)

    assert (status, report) == (0, "")
    assert "second" not in output

    status, output, report = tried(tmp_path, PASSES, earlier="of an earlier run")

    assert (status, report) == (0, "of an earlier run")
    assert "second-try.txt keeps the first reports" in output


@pytest.mark.parametrize(
    "tests, arguments, wanted",
    [
        pytest.param([ASSERTS_ONCE], (), 1, id="an assertion", marks=pytest.mark.whole),
        pytest.param([RAISES_ONCE], (), 1, id="another exception", marks=pytest.mark.whole),
        pytest.param([LATE_THEN_ASSERTS], (), 1, id="a deadline and then an assertion", marks=pytest.mark.whole),
        pytest.param([LATE_ONCE, ASSERTS_ONCE], (), 1, id="a deadline beside an assertion"),
        pytest.param(["raise ValueError('no tests here')\n"], (), 2, id="uncollected", marks=pytest.mark.whole),
        pytest.param([CRASHES_ONCE, PASSES], ("-n", "1", "-x"), 1, id="stopped early", marks=pytest.mark.whole),
        pytest.param([MANY_LATE_ONCE], (), 1, id="more than ten"),
        pytest.param([PASSES], ("--no-such-option",), 4, id="refused arguments", marks=pytest.mark.whole),
    ],
)
def test_other_failures_are_not_tried_again(
    tmp_path: Path, tests: list[str], arguments: tuple[str, ...], wanted: int
) -> None:
    status, output, report = tried(tmp_path, PASSES, *tests, arguments=arguments or ("-p", "no:xdist"))

    assert (status, report) == (wanted, ""), output
