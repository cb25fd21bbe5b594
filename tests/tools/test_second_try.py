"""What failed is tried once more, alone; what passes then passes the run, loudly; nothing else does."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

ONCE = """
from pathlib import Path
import os, pytest

def first(name):
    mark = Path(__file__).with_name(name)
    here = mark.exists()
    mark.touch()
    return not here
"""
PASSES = "def test_passes(): pass\n"
ONLY_ALONE = (
    "@pytest.mark.parametrize('x', ['a::b[c]'])\ndef test_once(x): assert not first('once'), 'the first reason'\n"
)
TEARDOWN_ONCE = """
@pytest.fixture
def leaky():
    yield
    assert not first('teardown')
def test_teardown(leaky): pass
"""
CRASHES_ONCE = "def test_crashes():\n    if first('crash'): os._exit(9)\n"
FAILS = "def test_fails(): assert False\n"
SKIPS_THEN = "def test_skips():\n    if not first('skip'): pytest.skip('no more')\n    assert False\n"


def tried(folder: Path, *tests: str, arguments: tuple[str, ...] = ("-n", "1")) -> tuple[int, str, str]:
    """Run the tool on these tests; return its status, its output and the report."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_it.py").write_text("".join([ONCE, *tests]))
    report = folder / "second-try.txt"
    report.write_text("of an earlier run")
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


def test_what_failed_once_passes_the_run_and_is_named_with_its_first_report(tmp_path: Path) -> None:
    status, output, report = tried(tmp_path, PASSES, ONLY_ALONE, TEARDOWN_ONCE, CRASHES_ONCE)

    assert status == 0, output
    said = output.partition("Passed, but these only the second time:")[2]
    assert [test in said for test in ("test_once[a::b[c]]", "test_teardown", "test_crashes", "test_passes")] == [
        True,
        True,
        True,
        False,
    ]
    assert "the first reason" in report
    assert "crashed while running" in report


@pytest.mark.parametrize("test", [FAILS, SKIPS_THEN])
def test_what_does_not_pass_the_second_time_fails_the_run(tmp_path: Path, test: str) -> None:
    status, output, report = tried(tmp_path, PASSES, ONLY_ALONE, test, arguments=("-p", "no:xdist"))

    assert status == 1
    assert "once" not in output.partition("Failed twice:")[2].partition("What the first")[0]
    assert "assert False" in report


def test_a_run_that_passes_leaves_no_report(tmp_path: Path) -> None:
    status, output, report = tried(tmp_path, PASSES, arguments=("-p", "no:xdist"))

    assert (status, report) == (0, "")
    assert "second" not in output


@pytest.mark.parametrize(
    "tests, arguments, wanted",
    [
        pytest.param(["raise ValueError('no tests here')\n"], (), 2, id="a file that cannot be collected"),
        pytest.param([ONLY_ALONE, PASSES], ("-x",), 1, id="stopped at the first failure"),
        pytest.param(
            ["@pytest.mark.parametrize('x', range(11))\ndef test_many(x): assert not first(f'many-{x}')\n"],
            (),
            1,
            id="more than ten",
        ),
        pytest.param([PASSES], ("--no-such-option",), 4, id="arguments that pytest refuses"),
    ],
)
def test_other_failures_are_not_tried_again(
    tmp_path: Path, tests: list[str], arguments: tuple[str, ...], wanted: int
) -> None:
    status, output, report = tried(tmp_path, *tests, arguments=("-p", "no:xdist", *arguments))

    assert (status, report) == (wanted, ""), output
