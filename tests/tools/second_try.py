"""Run pytest; run again, alone, the tests that a loaded machine ended, and say loudly which passed only then.

Usage: python -m tests.tools.second_try [--report FILE] [ARGUMENTS OF PYTEST ...]

Tests share a machine with other work: a worker is killed for its memory, a test is ended at its deadline. If nothing
else is wrong with a run, up to ten such tests are run again, one after another in one process, and the run passes if
each passes now. An assertion or any other exception is never tried again, nor is anything where files could not be
collected or the run was stopped (``-x``, Ctrl-C).

FILE (build/second-try.txt) keeps what each said at first, with the time and the commit; runs add to it, and each
names it at its end until it is deleted, which is to be done when its tests were looked into.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.support.coverage import commit

MOST = 10
REPORT = Path("build/second-try.txt")
_TESTS_FAILED = 1  # the exit status of pytest


@dataclass(frozen=True)
class Run:
    """One run of pytest: its exit status and what became of each test."""

    status: int
    failed: dict[str, list[str]]
    in_earnest: frozenset[str]
    passed: frozenset[str]
    complete: bool

    @property
    def may_be_tried_again(self) -> bool:
        """Whether tests that the machine ended are all that is wrong with the run, and few."""
        few = 1 <= len(self.failed) <= MOST
        return self.status == _TESTS_FAILED and self.complete and few and not self.in_earnest


def run(arguments: list[str]) -> Run:
    """Run pytest with `arguments`."""
    with tempfile.TemporaryDirectory(prefix="ckstore-outcomes-") as folder:
        file = Path(folder, "outcomes.json")
        command = [sys.executable, "-m", "pytest", "-p", "tests.tools.outcomes", f"--outcomes={file}", *arguments]
        status = subprocess.run(command, check=False).returncode
        if not file.exists():  # pytest refused its arguments, or died
            return Run(status, {}, frozenset(), frozenset(), complete=False)
        outcomes = json.loads(file.read_text(encoding="utf-8"))
    complete = not outcomes["stopped"] and not outcomes["uncollected"]
    in_earnest, passed = frozenset(outcomes["in_earnest"]), frozenset(outcomes["passed"])
    return Run(status, outcomes["failed"], in_earnest, passed, complete)


def banner(*lines: str) -> None:
    """Print lines that stand out at the end of a long log."""
    print("\n".join(["", "!" * 100, *(f"!! {line}" for line in lines), "!" * 100, ""]), flush=True)


def keep(report: Path, failed: dict[str, list[str]]) -> None:
    """Add to the report what each test said at first."""
    report.parent.mkdir(parents=True, exist_ok=True)
    head = f"{'=' * 80}\n{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, commit {commit() or 'unknown'}, "
    with report.open("a", encoding="utf-8") as file:
        file.writelines(f"{head}{test}\n{''.join(said)}\n" for test, said in failed.items())


def main(arguments: list[str]) -> int:
    """Run, perhaps try again; return the exit status."""
    report = REPORT
    if arguments[:1] == ["--report"]:
        report, arguments = Path(arguments[1]), arguments[2:]
    status = _twice(report, arguments)
    if report.exists():
        banner(f"{report} keeps the first reports of tests that were tried twice: look into them, then delete it")
    return status


def _twice(report: Path, arguments: list[str]) -> int:
    first = run(arguments)
    if not first.may_be_tried_again:
        if len(first.failed) > MOST:
            print(f"{len(first.failed)} tests failed: more than the {MOST} that are tried a second time", flush=True)
        return first.status

    keep(report, first.failed)
    banner(f"The machine ended {len(first.failed)}; each is tried a second time, alone:", *first.failed)
    second = run(["-p", "no:xdist", *first.failed])
    again = sorted(first.failed.keys() - second.passed)
    if again or second.status != 0:
        banner("Failed twice:", *again)
        return second.status or _TESTS_FAILED
    banner("Passed, but these only the second time:", *first.failed)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
