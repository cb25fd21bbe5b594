"""Run pytest; run tests that failed once more, alone, and say loudly which passed only then.

Usage: python -m tests.tools.second_try [--report FILE] [ARGUMENTS OF PYTEST ...]

Tests share a machine with other work: a deadline of a minute passes, a worker is killed for its memory. So up to ten
tests that failed, or that took their worker with them, are run again, one after another in one process. The run passes
if each of them passes now. FILE (build/second-try.txt) keeps what each said at first: a test that is listed there is
to be looked into. Nothing is tried again where more tests failed, where files could not be collected, or where the run
was stopped (``-x``, Ctrl-C): such a run fails as it would without this.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

MOST = 10
REPORT = Path("build/second-try.txt")
_TESTS_FAILED = 1  # the exit status of pytest


@dataclass(frozen=True)
class Run:
    """One run of pytest: its exit status and what became of each test."""

    status: int
    failed: dict[str, list[str]]
    passed: frozenset[str]
    complete: bool

    @property
    def may_be_tried_again(self) -> bool:
        """Whether the failed tests are all that is wrong with the run, and few."""
        return self.status == _TESTS_FAILED and self.complete and 1 <= len(self.failed) <= MOST


def run(arguments: list[str]) -> Run:
    """Run pytest with `arguments`."""
    with tempfile.TemporaryDirectory(prefix="ckstore-outcomes-") as folder:
        file = Path(folder, "outcomes.json")
        command = [sys.executable, "-m", "pytest", "-p", "tests.tools.outcomes", f"--outcomes={file}", *arguments]
        status = subprocess.run(command, check=False).returncode
        if not file.exists():  # pytest refused its arguments, or died
            return Run(status, {}, frozenset(), complete=False)
        outcomes = json.loads(file.read_text(encoding="utf-8"))
    complete = not outcomes["stopped"] and not outcomes["uncollected"]
    return Run(status, outcomes["failed"], frozenset(outcomes["passed"]), complete)


def banner(*lines: str) -> None:
    """Print lines that stand out at the end of a long log."""
    print("\n".join(["", "!" * 100, *(f"!! {line}" for line in lines), "!" * 100, ""]), flush=True)


def main(arguments: list[str]) -> int:
    """Run, perhaps try again; return the exit status."""
    report = REPORT
    if arguments[:1] == ["--report"]:
        report, arguments = Path(arguments[1]), arguments[2:]
    report.unlink(missing_ok=True)
    first = run(arguments)
    if not first.may_be_tried_again:
        if len(first.failed) > MOST:
            print(f"{len(first.failed)} tests failed: more than the {MOST} that are tried a second time", flush=True)
        return first.status

    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text("".join(f"{'=' * 80}\n{test}\n{''.join(said)}\n" for test, said in first.failed.items()))
    banner(f"{len(first.failed)} failed; each is tried a second time, alone:", *first.failed)
    second = run(["-p", "no:xdist", *first.failed])
    again = sorted(first.failed.keys() - second.passed)
    if again or second.status != 0:
        banner("Failed twice:", *again, f"What the first try said is in {report}")
        return second.status or _TESTS_FAILED
    banner(
        "Passed, but these only the second time:", *first.failed, f"Look into them: the first reports are in {report}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
