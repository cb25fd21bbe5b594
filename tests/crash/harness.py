"""The worker seen from the side of the tests, and what comes of its cases."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

from tests.crash.images import Case, Log
from tests.crash.recorder import read_log
from tests.faults.harness import evenly, split
from tests.faults.shim import built
from tests.support.mounts import memory_folder
from tests.support.volume import Kind

_ROOT = Path(__file__).parents[2]
_STOP_TIMEOUT_S = 60.0
KINDS: tuple[Kind, ...] = ("ext4", "xfs")


class Machine:
    """A machine whose power can be cut: the worker. A context manager."""

    def __init__(self, folder: Path) -> None:
        paths = [str(_ROOT), str(_ROOT / "cli"), str(_ROOT / "migrations"), *filter(None, sys.path)]
        one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        environment = {"LD_PRELOAD": str(built()), "PYTHONPATH": os.pathsep.join(paths)}
        self._memory = memory_folder()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.worker", str(folder), str(self._memory)],
            env={**os.environ, **one_thread, **environment},
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer("ready")

    def calls(self, kind: Kind, scenario: str) -> tuple[list[str], float]:
        """Return what the scenario calls when the power stays on, a line each, and how many seconds it takes."""
        answer = self._ask("calls", kind, scenario)
        return answer["calls"], answer["took_s"]

    def cut(self, kind: Kind, scenario: str, cut: Cut) -> dict[str, Any]:
        """Cut the power while the scenario happens; mount and look."""
        return self._ask("cut", kind, scenario, at=cut.at, after_s=cut.after_s, flush_log=cut.flush_log)

    def record(self, kind: Kind, scenario: str) -> tuple[Path, Log]:
        """Let the scenario happen on a disk that logs; return the log."""
        answer = self._ask("record", kind, scenario)
        log = Path(answer["log"])
        return log, Log(read_log(log), answer["journal"], partial(_read, Path(answer["base"])))

    def image(self, kind: Kind, scenario: str, log: Path, writes: list[tuple[int, int]], case: Case) -> dict[str, Any]:
        """Make an image of the disk, mount it and look."""
        promised = case.promised
        return self._ask(
            "image",
            kind,
            scenario,
            log=str(log),
            writes=writes,
            options=[[*place, [*options]] for place, options in promised.options.items()],
            facts=[[*fact, [*options]] for fact, options in promised.facts.items()],
            store=promised.store,
        )

    def _ask(self, do: str, kind: Kind, scenario: str, **more: object) -> dict[str, Any]:
        stdin = self._process.stdin
        if stdin is None:
            raise RuntimeError("the worker has no standard input")
        asked = {"do": do, "kind": kind, "scenario": scenario, **more}
        stdin.write(json.dumps(asked) + "\n")
        stdin.flush()
        answer: dict[str, Any] = json.loads(self._answer(f"an answer to {do} {scenario} on {kind}"))
        if "failed" in answer:
            raise RuntimeError(answer["failed"])
        return answer

    def _answer(self, wanted: str) -> str:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            status = self._process.wait(_STOP_TIMEOUT_S)
            raise RuntimeError(f"the worker ended with {status} instead of saying {wanted}")
        return line

    def close(self) -> None:
        """End it; whatever it mounted is gone then, and so are its disks."""
        try:
            self._process.communicate(timeout=_STOP_TIMEOUT_S)
        finally:
            shutil.rmtree(self._memory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _read(path: Path, offset: int, nbytes: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(nbytes)


@dataclass(frozen=True)
class Cut:
    """When the power goes, and how.

    Attributes:
        at: After so many calls that change something; 0: not by calls.
        after_s: After so many seconds instead.
        flush_log: Whether what the journal of the filesystem has in memory still reaches the disk.
    """

    flush_log: bool
    at: int = 0
    after_s: float | None = None

    def __str__(self) -> str:
        when = f"after call {self.at}" if self.after_s is None else f"after {self.after_s * 1000:.1f} ms"
        return f"{when}, log {'kept' if self.flush_log else 'lost'}"


def steps_of(calls: list[str], catalog_share: int) -> list[int]:
    """Return the numbers of all calls but SQLite's, and of these one in so many: they write one page after another."""
    others, catalog = split(calls)
    return sorted({*others, *evenly(catalog, max(1, len(catalog) // catalog_share))})


def moments(drawn: random.Random, took_s: float, count: int) -> Iterator[Cut]:
    """Draw so many moments, from before the act begins to a bit after it has ended."""
    for number in range(count):
        yield Cut(flush_log=number % 2 == 1, after_s=drawn.random() * 1.2 * took_s)


@dataclass
class Tally:
    """What came of the cases of one scenario on one filesystem.

    Attributes:
        counts: How many of what.
        violations: Each with all that is needed to see it again.
    """

    lane: str
    what: str
    counts: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)

    def add(self, case: object, answer: dict[str, Any], *counted: str) -> None:
        """Count one case under these names."""
        for name in (*counted, *(["alike"] if answer.get("alike") else [])):
            self.counts[name] = self.counts.get(name, 0) + 1
        if answer["wrong"]:
            said = "\n  ".join(dict.fromkeys(answer["wrong"]))
            self.violations.append(
                f"{self.what}, {case} {answer.get('call', '')}, disk kept in {answer.get('kept')}\n  {said}"
            )
