"""A warm process that forks children for each case: milliseconds, not the start of Python.

It runs with the fault library preloaded, reads one JSON request a line from its standard input, and
answers with one line. Its children are what is killed; it has no store open itself.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ckstore.errors import CkstoreError
from ckstore.fs import holders
from tests.faults import signals
from tests.faults.acts import ACTS, FOREIGN
from tests.faults.alike import clock_users, hold_still, picture
from tests.faults.checker import check_contents, check_store
from tests.faults.journal import Journal, read_journal
from tests.faults.neighbour import Neighbour
from tests.faults.restore import can_be_copied, copy_prepared
from tests.faults.scenarios import SCENARIOS, Scenario, Unkept
from tests.faults.shim import Family, Fault, Preloaded
from tests.faults.states import NAMES, expected
from tests.support.descriptors import open_below
from tests.support.own_processes import own_processes

_SCENARIOS = SCENARIOS | signals.SIGNALLED
_CHILD_TIMEOUT_S = 240.0
_LOG_LINES = 12
CALLS_OF_A_RACE = Family.MUTATING | Family.OPEN | Family.LOCK


@dataclass(frozen=True)
class Files:
    """What belongs to one case."""

    folder: Path

    @property
    def store(self) -> Path:
        """The store: the only thing that faults hit."""
        return self.folder / "store"

    @property
    def journal(self) -> Path:
        """What was promised."""
        return self.folder / "journal"

    @property
    def log(self) -> Path:
        """The calls that were counted."""
        return self.folder / "calls"

    @property
    def result(self) -> Path:
        """What the latest child had to say."""
        return self.folder / "result"


class Server:
    """Runs cases in `folder`, one after another."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._serial = 0
        self._modules: set[str] | None = None
        self._seen: set[tuple[str, bool, bool, str, str]] = set()
        self._shim = Preloaded()
        self._shim.skip_syncs()

    def warm_up(self) -> None:
        """Import what children import, and compute what they compare with."""
        for name in NAMES:
            expected(name)
        for name in _SCENARIOS:
            loaded: set[str] = set()
            self._modules = loaded
            self.case({"scenario": name, "mode": "count", "at": 0})
            self._modules = None
            for module in sorted(loaded - sys.modules.keys()):  # or each later child would import it again
                importlib.import_module(module)
        clock_users()
        gc.freeze()

    def case(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run one case: prepare, act with a fault, look at what is left unless an earlier case left the same."""
        scenario = _SCENARIOS[request["scenario"]]
        fault = Fault(
            request["mode"],
            request["at"],
            request.get("error", 0),
            request.get("sticky", False),
            Family(request.get("families", int(Family.MUTATING))),
        )
        files = self._files()
        if wrong := self._begin(files, scenario):
            return {"violations": [wrong], "kept": str(files.folder)}
        handler = request.get("handler")
        acted = self._child(files, lambda: self._act(files, scenario, fault, handler), still="act")
        done = acted["ended"] == "well" and not acted.get("error")
        left = (scenario.name, done, self._unreadable(fault), str(read_journal(files.journal)), picture(files.folder))
        if left in self._seen:
            checked: dict[str, Any] = {"ended": "well"}
        else:
            checked = self._child(files, lambda: self._check(files, scenario, fault, done=done))
        violations = list(acted.pop("violations", []))
        killing = fault.mode in ("kill-before", "kill-after")
        if acted["ended"] != "well" and not (killing and acted["ended"] == "signal 9"):
            violations.append(f"the process ended by {acted['ended']}")
        violations += checked.get("violations", [])
        if checked["ended"] != "well":
            violations.append(f"looking at the store ended by {checked['ended']}")
        answer = {**acted, "violations": violations, "alike": left in self._seen}
        if violations:
            answer["kept"] = str(files.folder)
            answer["calls"] = _around_the_hit(files.log)
            return answer
        self._seen.add(left)
        if fault.mode == "count":
            answer["calls"] = files.log.read_text().splitlines()
        shutil.rmtree(files.folder)
        return answer

    def paths(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run one act without a fault; return every call below the store, with what the kernel was given."""
        files, act = self._files(), {**ACTS, **FOREIGN}[request["paths"]]
        scenario = act if act.name in FOREIGN else replace(act, hit=lambda store: store)
        if wrong := self._begin(files, scenario):
            return {"violations": [wrong]}
        every = Family.MUTATING | Family.OPEN | Family.LOOK
        self._shim.log_raw(wanted=True)
        acted = self._child(files, lambda: self._act(files, scenario, Fault("count", 0, families=every)), still="act")
        self._shim.log_raw(wanted=False)
        answer = {**acted, "store": str(scenario.hit(files.store)), "calls": files.log.read_text().splitlines()}
        shutil.rmtree(files.folder)
        return answer

    def race(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run an act beside a neighbour that swaps a directory at a call; say what it made the act touch."""
        files, scenario = self._files(), ACTS[request["race"]]
        if wrong := self._begin(files, scenario):
            return {"violations": [wrong]}

        def beside_a_neighbour() -> dict[str, Any]:
            neighbour = Neighbour(files.store, request["kind"], request["back"])
            self._shim.hook(neighbour.before_a_call)
            fault = Fault("hook", request["at"], sticky=True, families=CALLS_OF_A_RACE)
            self._shim.arm(fault, files.store, files.log)
            act = Act(files, scenario, Journal(files.journal), self._shim)
            error = act.attempt()
            self._shim.disarm()
            wrong = neighbour.wrong()
            # a symlink is no checkpoint, and may be one again before the scenario looks: neither is the act's doing
            is_unjudged = isinstance(error, Unkept) and neighbour.hid_a_checkpoint()
            if error is not None and not is_unjudged and not isinstance(error, CkstoreError):
                wrong.append("not a CkstoreError: " + "".join(traceback.format_exception(error)))
            told = "" if error is None else f"{type(error).__name__}: {error}"
            return {"violations": wrong, "swapped": neighbour.swapped, "error": told, "count": self._shim.count}

        acted = self._child(files, beside_a_neighbour, still="act")
        violations = acted.get("violations", [])
        if acted["ended"] != "well":
            violations.append(f"the process ended by {acted['ended']}")
        answer = {**acted, "violations": violations}
        if not request["at"]:
            answer["calls"] = files.log.read_text().splitlines()
        if violations:
            answer |= {"kept": str(files.folder), "calls": _around_the_hit(files.log)}
        else:
            shutil.rmtree(files.folder)
        return answer

    def _files(self) -> Files:
        """Make the folder of a case; it has a cache of its own, for a store whose settings cannot be read at first."""
        self._serial += 1
        files = Files(self._folder / f"case-{self._serial}")
        files.folder.mkdir()
        cache = self._folder / "cache"
        shutil.rmtree(cache, ignore_errors=True)
        os.environ["XDG_CACHE_HOME"] = str(cache)
        return files

    def _begin(self, files: Files, scenario: Scenario) -> str:
        """Have the scenario prepared, or copy what was prepared for the first case; return what went wrong."""
        original = self._folder / f"prepared-{scenario.name}"
        if original.exists():
            copy_prepared(original, files.folder)
            return ""
        prepared = self._child(files, lambda: self._prepare(files, scenario), still="prepare")
        if prepared["ended"] != "well":
            return f"the preparation failed: {prepared}"
        if can_be_copied(files.folder):
            original.mkdir()
            copy_prepared(files.folder, original)
            if picture(original) != picture(files.folder):
                return f"the copy in {original} can be told from what was prepared"
        return ""

    def _prepare(self, files: Files, scenario: Scenario) -> dict[str, Any]:
        scenario.prepare(files.store, Journal(files.journal))
        return {}

    def _check(self, files: Files, scenario: Scenario, fault: Fault, *, done: bool) -> dict[str, Any]:
        promised = read_journal(files.journal)
        wrong = scenario.settle(files.store, done)
        wrong += check_store(files.store, promised, catalog_was_unreadable=self._unreadable(fault))
        return {"violations": wrong + scenario.inspect(files.store, done)}

    def _unreadable(self, fault: Fault) -> bool:
        return fault.mode != "count" and bool(fault.families & (Family.READ | Family.OPEN))

    def _act(
        self, files: Files, scenario: Scenario, fault: Fault, handler: signals.Handler | None = None
    ) -> dict[str, Any]:
        journal = Journal(files.journal)
        act = Act(files, scenario, journal, self._shim)
        return act.run(fault) if handler is None else signals.run(act, fault, handler)

    def _child(self, files: Files, work: Callable[[], dict[str, Any]], *, still: str = "") -> dict[str, Any]:
        """Do `work` in a fork, if need be with a clock that stands still; return what it returns, and how it ended."""
        files.result.unlink(missing_ok=True)
        pid = os.fork()
        if pid == 0:
            status = 70
            try:
                if still:
                    hold_still(still)
                answer = work()
                if self._modules is not None:
                    answer["modules"] = [*sys.modules]
                files.result.write_text(json.dumps(answer))
                status = 0
            except BaseException:
                files.result.write_text(json.dumps({"violations": [traceback.format_exc()]}))
            finally:
                os._exit(status)
        ended = _wait(pid)
        said = files.result.read_text() if files.result.exists() else ""
        told: dict[str, Any] = json.loads(said) if said else {}
        if self._modules is not None:
            self._modules.update(told.pop("modules", ()))
        return {**told, "ended": ended}


class Act:
    """One scenario with a fault, in a process of its own.

    Attributes:
        files, journal, shim: Those of the case.
        store: The open store, or None.
    """

    def __init__(self, files: Files, scenario: Scenario, journal: Journal, shim: Preloaded) -> None:
        self.files = files
        self._scenario = scenario
        self.journal = journal
        self.shim = shim
        self.store: Any = None

    def run(self, fault: Fault) -> dict[str, Any]:
        """Act; after an error say whether it was a good one, and act again without faults."""
        self.shim.arm(fault, self._scenario.hit(self.files.store), self.files.log)
        error = self.attempt()
        self.shim.disarm()
        answer = {"hits": self.shim.hits, "count": self.shim.count, "error": "", "violations": []}
        wrong: list[str] = []
        if self.shim.second_syncs:
            wrong.append("a file whose fsync had failed was fsynced again")
        if error is not None:
            answer["error"] = f"{type(error).__name__}: {error}"
            wrong += self._after(error)
        if self.store is not None:
            self.store.close()
        left = {**open_below(self.files.store), **open_below(self.files.folder / "place")}
        wrong += [f"the process left open: {name}" for name in left.values()]
        return {**answer, "violations": wrong}

    def attempt(self) -> BaseException | None:
        """Open the store, unless that was done, and act; return the error."""
        try:
            if self.store is None:
                self.store = self._scenario.open(self.files.store, self.journal)
            self._scenario.act(self.store, self.journal)
        except BaseException as error:
            return error
        return None

    def _after(self, error: BaseException) -> list[str]:
        wrong = []
        if not isinstance(error, CkstoreError):
            wrong.append("not a CkstoreError: " + "".join(traceback.format_exception(error)))
        said = str(error)
        self.journal.failed(unknown=self._scenario.uncertain or "may or may not" in said)
        error.__traceback__ = None
        if self.store is not None and not self._scenario.begins_damaged:
            wrong += check_contents(self.store, read_journal(self.files.journal))
        again = self.attempt()
        if again is not None and "open the store again" in said + str(again):
            self.store.close()
            self.store = None
            again = self.attempt()
        if again is not None:
            wrong.append("the same process cannot try again: " + "".join(traceback.format_exception(again)))
        return wrong


def _wait(pid: int) -> str:
    """Wait for a child; say how it ended: ``well``, ``signal N``, ``status N`` or ``hanging``."""
    handle = os.pidfd_open(pid)
    try:
        ready, _, _ = select.select([handle], [], [], _CHILD_TIMEOUT_S)
        if not ready:
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    finally:
        os.close(handle)
    if not ready:
        return "hanging"
    if os.WIFSIGNALED(status):
        return f"signal {os.WTERMSIG(status)}"
    code = os.waitstatus_to_exitcode(status)
    return "well" if code == 0 else f"status {code}"


def _around_the_hit(log: Path) -> list[str]:
    lines = log.read_text().splitlines() if log.exists() else []
    hit = next((i for i, line in enumerate(lines) if line.endswith(" *")), len(lines) - 1)
    return lines[max(0, hit - _LOG_LINES) : hit + _LOG_LINES]


def main() -> None:
    """Serve until the standard input ends."""
    holders._pids = partial(own_processes, os.getpid())
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # so that nothing a child prints is taken for an answer
    server = Server(Path(sys.argv[1]))
    server.warm_up()
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        answer = server.race if "race" in request else server.paths if "paths" in request else server.case
        print(json.dumps(answer(request)), file=answers, flush=True)


if __name__ == "__main__":
    main()
