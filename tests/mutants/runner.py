"""Remove a guard in a copy of the sources, and run the test that must fail.

``python -m tests.mutants.runner [NAME …]`` runs all mutants, or these, and prints which test caught each.
``--write`` writes the list into docs/reliability-mutants.md if all were caught.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.faults.tracing import Request, trace
from tests.mutants.claims import CLAIMS
from tests.mutants.compacting import COMPACTING
from tests.mutants.deciding import DECIDING
from tests.mutants.devices import DEVICES
from tests.mutants.durability import DURABILITY
from tests.mutants.evaluating import EVALUATING
from tests.mutants.going_on import GOING_ON
from tests.mutants.health import HEALTH
from tests.mutants.index import INDEX
from tests.mutants.lineage import LINEAGE
from tests.mutants.loading import LOADING
from tests.mutants.machines import MACHINES
from tests.mutants.members import MEMBERS
from tests.mutants.mutant import Mutant
from tests.mutants.parties import PARTIES
from tests.mutants.patience import PATIENCE
from tests.mutants.places import PLACES
from tests.mutants.publishing import PUBLISHING
from tests.mutants.purge import PURGE
from tests.mutants.ranks import RANKS
from tests.mutants.remotes import REMOTES
from tests.mutants.sharing import SHARING
from tests.mutants.strict import STRICT
from tests.mutants.training import TRAINING
from tests.mutants.unchanged import UNCHANGED
from tests.mutants.values import VALUES
from tests.mutants.weights import WEIGHTS
from tests.support.coverage import covered

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reliability-mutants.md"
LISTS = (
    DURABILITY,
    SHARING,
    PURGE,
    PUBLISHING,
    PLACES,
    DECIDING,
    INDEX,
    LOADING,
    UNCHANGED,
    MACHINES,
    VALUES,
    WEIGHTS,
    RANKS,
    DEVICES,
    REMOTES,
    CLAIMS,
    GOING_ON,
    HEALTH,
    PARTIES,
    MEMBERS,
    COMPACTING,
    TRAINING,
    STRICT,
    EVALUATING,
    PATIENCE,
    LINEAGE,
)
MUTANTS = {mutant.name: mutant for mutants in LISTS for mutant in mutants}

_TIMEOUT_S = 900.0
_SAMPLED_LANES = "tests/faults/"
_COPIED = ("ckstore", "cli", "migrations", "tests", "docs")
_FAILED = 1
_SHOWN_LINES = 40

_HEAD = """\
# Mutants of the protocol

A *guard* is a statement that keeps a rule of the [protocols](protocol.md). A *mutant* is the code without one guard.
`make mutants` removes one guard after another, and runs the test that must fail. It writes this page if every test
failed for the expected reason. The mutants are defined in `tests/mutants/`.

*Trace law* means that `tests/faults/test_trace_law.py` fails. The broken law and the act that breaks it follow.

| Guard | Mutant | Caught by |
| --- | --- | --- |
"""


@dataclass(frozen=True)
class Outcome:
    """The result of running a mutant.

    Attributes:
        caught: The test failed, for the reason that the mutant gives.
        output: The end of what the test printed.
        status: The exit status of the test.
    """

    mutant: Mutant
    caught: bool
    output: str
    status: int = 0


def judge(mutants: Sequence[Mutant], folder: Path) -> list[Outcome]:
    """Run the acts of mutants that the trace law catches, all under one strace, in the empty directory `folder`."""
    cases = [Request(m.act, m.failing_sync, m.changed()) for m in mutants]
    outcomes = []
    for mutant, traced in zip(mutants, trace(folder, cases), strict=True):
        caught = any(line.startswith(mutant.says) for line in traced.broken)
        outcomes.append(Outcome(mutant, caught, "\n".join(traced.broken)))
    return outcomes


@contextmanager
def copied(mutants: Sequence[Mutant]) -> Iterator[tuple[Path, dict[str, str]]]:
    """Give a copy of the sources with mutants, of which no two change one file, and an environment that uses it."""
    # A process that a failed test left behind may still write bytecode there.
    with tempfile.TemporaryDirectory(prefix="ckstore-mutant-", ignore_cleanup_errors=True) as folder:
        copy = Path(folder)
        copy.chmod(0o755)  # tests of several users use it as each of them
        for name in _COPIED:
            left_out = ["__pycache__"] if name == "docs" else ["__pycache__", "*.md"]
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns(*left_out))
        shutil.copy2(ROOT / "pyproject.toml", copy)
        changed = dict(mutant.changed() for mutant in mutants)
        if len(changed) != len(mutants):
            raise ValueError(f"two of {[mutant.name for mutant in mutants]} change one file")
        for file, sources in changed.items():
            (copy / "ckstore" / file).write_text(sources, encoding="utf-8")
        unset = ("CKSTORE_CRASH", "CKSTORE_CRASH_REPORT", "PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER")
        environment = {name: value for name, value in os.environ.items() if name not in unset}
        environment["PYTHONPATH"] = os.pathsep.join([str(copy), str(copy / "cli"), str(copy / "migrations")])
        yield copy, environment


def run(mutant: Mutant) -> Outcome:
    """Make the mutant in a copy of the sources, and run the test that catches it."""
    with copied([mutant]) as (copy, environment):
        environment["HYPOTHESIS_PROFILE"] = "mutants"  # so that it is no chance whether a law meets it
        if mutant.caught_by.startswith(_SAMPLED_LANES):
            environment["CKSTORE_CRASH"] = "full"  # whether a sample meets the call would be chance
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", mutant.caught_by],
            cwd=copy,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    test = mutant.caught_by.partition("[")[0]
    failed = done.returncode == _FAILED and re.search(rf"^FAILED {re.escape(test)}", done.stdout, re.MULTILINE)
    lines = done.stdout.splitlines()
    caught = bool(failed) and mutant.says in done.stdout
    return Outcome(mutant, caught, "\n".join(lines[-_SHOWN_LINES:]), done.returncode)


def page() -> str:
    """Return the text of docs/reliability-mutants.md if every mutant is caught."""
    rows = [f"| {mutant.guard} | {mutant.name} | {mutant.catcher} |\n" for mutant in MUTANTS.values()]
    return _HEAD + "".join(rows)


def _all(names: Sequence[str]) -> Iterator[Outcome]:
    mutants = [MUTANTS[name] for name in names]
    with tempfile.TemporaryDirectory(prefix="ckstore-mutants-") as folder:
        yield from judge([mutant for mutant in mutants if mutant.act], Path(folder))
    yield from (run(mutant) for mutant in mutants if not mutant.act)


def main() -> int:
    """Run mutants; return 0 if each was caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.runner", description="Run mutants; all by default.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="a mutant, as docs/reliability-mutants.md names it")
    parser.add_argument("--write", action="store_true", help="write that page, if all are run and each is caught")
    asked = parser.parse_args()
    names: list[str] = asked.names
    if unknown := [name for name in names if name not in MUTANTS]:
        parser.error(f"no such mutant: {', '.join(unknown)}")
    missed = []
    for outcome in _all(names or list(MUTANTS)):
        mutant = outcome.mutant
        why = "passes" if outcome.status == 0 else f"ends with exit status {outcome.status} and not as expected"
        said = mutant.catcher if outcome.caught else f"NONE ({mutant.catcher} {why})"
        print(f"{mutant.guard} | {mutant.name} | {said}", flush=True)
        if not outcome.caught:
            missed.append(mutant.name)
            print(outcome.output, file=sys.stderr, flush=True)
    count = len(names or MUTANTS)
    print(covered("mutants", "all" if not names else "some", violations=len(missed), mutants=count))
    if asked.write and not missed and not names:
        PAGE.write_text(page(), encoding="utf-8")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
