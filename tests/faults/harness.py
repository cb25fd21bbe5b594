"""Go through the points of a scenario, on the side of the tests."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Self

from tests.faults.shim import EVERY_CALL, Family, Mode, built

_ROOT = Path(__file__).parents[2]
_STOP_TIMEOUT_S = 60.0
_UNHARMED_ENOUGH = 3
"""Threads make their calls in another order each time: one run without a hit is not yet the end."""


class Faults:
    """The fork server, seen from outside. A context manager."""

    def __init__(self, folder: Path) -> None:
        paths = [str(_ROOT), str(_ROOT / "cli"), str(_ROOT / "migrations"), *filter(None, sys.path)]
        one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        environment = {"LD_PRELOAD": str(built()), "PYTHONPATH": os.pathsep.join(paths)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.server", str(folder)],
            env={**os.environ, **one_thread, **environment},
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._counted: dict[str, list[str]] = {}
        self._answer("ready")

    def case(
        self,
        scenario: str,
        mode: Mode,
        at: int,
        *,
        error: int = 0,
        sticky: bool = False,
        families: Family = Family.MUTATING,
        handler: str | None = None,
    ) -> dict[str, Any]:
        """Run one case; see `tests.faults.server.Server.case`."""
        asked = {"scenario": scenario, "mode": mode, "at": at, "error": error, "sticky": sticky, "handler": handler}
        return self._asked({**asked, "families": int(families)})

    def race(self, act: str, kind: str, at: int, *, back: bool) -> dict[str, Any]:
        """Run one act beside a neighbour; see `tests.faults.server.Server.race`."""
        return self._asked({"race": act, "kind": kind, "at": at, "back": back})

    def paths(self, act: str) -> dict[str, Any]:
        """Return what an act gives the kernel; see `tests.faults.server.Server.paths`."""
        return self._asked({"paths": act})

    def _asked(self, request: dict[str, Any]) -> dict[str, Any]:
        stdin = self._process.stdin
        if stdin is None:
            raise RuntimeError("the fork server has no standard input")
        stdin.write(json.dumps(request) + "\n")
        stdin.flush()
        answer: dict[str, Any] = json.loads(self._answer(f"an answer to {request}"))
        return answer

    def calls(self, scenario: str, families: Family = Family.MUTATING) -> list[str]:
        """Return what the scenario calls when nothing fails, one line each, in the order of the first time."""
        if scenario not in self._counted:
            answer = self.case(scenario, "count", 0, families=EVERY_CALL)
            if answer["violations"]:
                raise RuntimeError(f"{scenario} fails without any fault: {answer['violations']}")
            self._counted[scenario] = answer["calls"]
        told = (line.split(" ", 2)[1:] for line in self._counted[scenario])
        wanted = [f"{family} {call}" for family, call in told if int(family) & families]
        return [f"{number} {line}" for number, line in enumerate(wanted, 1)]

    def _answer(self, wanted: str) -> str:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            status = self._process.wait(_STOP_TIMEOUT_S)
            raise RuntimeError(f"the fork server ended with {status} instead of saying {wanted}")
        return line

    def close(self) -> None:
        """End the server."""
        self._process.communicate(timeout=_STOP_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass
class Tally:
    """What came of all the points of one scenario in one mode.

    Attributes:
        killed: Cases in which the process died as it was meant to.
        refused: Cases in which it reported an error.
        survived: Cases in which the fault was hit and the act still succeeded.
        unharmed: Cases in which nothing was hit: the run had fewer calls than that.
        alike: Cases that left what an earlier one had left, which was looked at once.
        violations: Each with all that is needed to see it again.
    """

    what: str
    killed: int = 0
    refused: int = 0
    survived: int = 0
    unharmed: int = 0
    alike: int = 0
    violations: list[str] = field(default_factory=list)

    @property
    def points(self) -> int:
        """Cases in which something was hit."""
        return self.killed + self.refused + self.survived

    def add(self, at: int, answer: dict[str, Any]) -> bool:
        """Count one case; return whether anything was hit."""
        self.alike += bool(answer.get("alike"))
        if answer.get("ended") == "signal 9":
            self.killed += 1
        elif not answer.get("hits"):
            self.unharmed += 1
        elif answer["error"]:
            self.refused += 1
        else:
            self.survived += 1
        if answer["violations"]:
            calls = "\n    ".join(answer.get("calls", []))
            said = "\n  ".join(dict.fromkeys(answer["violations"]))
            error = answer.get("error", "")
            self.violations.append(
                f"{self.what}, call {at}, kept in {answer.get('kept')}: {error}\n  {said}\n    {calls}"
            )
        return answer.get("ended") == "signal 9" or bool(answer.get("hits"))

    def __str__(self) -> str:
        return (
            f"{self.what}: {self.points} points hit ({self.killed} killed, {self.refused} refused, "
            f"{self.survived} survived), {self.unharmed} unharmed, {self.alike} left the same as another, "
            f"{len(self.violations)} violations"
        )


Whole = Callable[[Tally, int | None], None]
"""Prints the counts of a tally and the seed that chose its points (None: it has all), and fails if any was violated."""

Run = Callable[[int], dict[str, Any]]
"""Runs the case that hits the call of that number."""


def every_point(tally: Tally, run: Run) -> Tally:
    """Run the cases 1, 2, … until some in a row were not hit any more."""
    unharmed = 0
    for at in count(1):
        unharmed = 0 if tally.add(at, run(at)) else unharmed + 1
        if unharmed == _UNHARMED_ENOUGH:
            break
    return tally


def split(calls: list[str]) -> tuple[list[int], list[int]]:
    """Return the numbers of ckstore's own calls, and those of SQLite's."""
    numbers: tuple[list[int], list[int]] = [], []
    for call in calls:
        numbers[" catalog.db" in call].append(int(call.split()[0]))
    return numbers


def sample(calls: list[str], wanted: int, seed: int) -> list[int]:
    """Choose from what a run without a fault counted: `wanted` calls, a quarter of them SQLite's.

    Half of the calls of a save are those of SQLite, and most of these write one page after another.
    """
    others, catalog = split(calls)
    few = max(int(wanted / 4 + random.Random(f"quarter {seed}").random()), wanted - len(others))
    return sorted({*spread(catalog, few, seed), *spread(others, wanted - few, seed)})


def spread(numbers: list[int], wanted: int, seed: int) -> list[int]:
    """Choose at most `wanted` of them, at equal distances; some seed chooses any of them."""
    if len(numbers) <= wanted:
        return numbers
    phase = random.Random(seed).random()
    return [numbers[int((i + phase) * len(numbers) / wanted)] for i in range(wanted)]


def evenly(numbers: Sequence[int], wanted: int) -> list[int]:
    """Choose at most `wanted` of them, evenly, with both ends."""
    if len(numbers) <= wanted:
        return [*numbers]
    return [numbers[round(i * (len(numbers) - 1) / max(wanted - 1, 1))] for i in range(wanted)]
