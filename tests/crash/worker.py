"""A warm process that cuts the power and looks at what is left: a case costs no start of Python.

It is started with the fault library preloaded, has mounts of its own, reads one JSON request a line from its standard
input and answers with one line. See `Worker.answer` for what it does.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sqlite3
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ckstore.fs import files
from tests.crash.forked import Child
from tests.crash.recorder import Entry, read_log
from tests.crash.recording import record
from tests.crash.scenarios import attempt, scenario
from tests.faults.alike import hold_still, picture
from tests.faults.checker import check_store
from tests.faults.journal import Journal, Promised, promised_by
from tests.faults.scenarios import Scenario
from tests.faults.shim import Family, Fault, Mode, Preloaded
from tests.faults.states import NAMES, expected
from tests.support.mounts import bind, cut_power, own_mounts
from tests.support.volume import Kind, Snapshot, Volume, snapshot, write_image

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_BEFORE = uuid.UUID(int=1)
"""The start of the machine on which everything is prepared and happens, so that it always makes the same calls."""
_MOST_KEPT = 5


@dataclass(frozen=True)
class Prepared:
    """A filesystem with the store as a scenario finds it, cleanly unmounted, and what was promised so far."""

    content: Snapshot
    journal: str


class Worker:
    """Does one thing after another; its files are in `folder`, its disks in `memory`."""

    def __init__(self, folder: Path, memory: Path) -> None:
        self._folder = folder
        self._memory = memory
        self._volumes: dict[Kind, Volume] = {}
        self._prepared: dict[tuple[Kind, str], Prepared] = {}
        self._log: tuple[str, list[Entry]] = ("", [])
        self._kept = 0
        self._seen: set[tuple[Kind, str, bool, str, str]] = set()
        self._shim = Preloaded()
        self._boot_id = folder / "boot_id"
        self._start_of_machine(_BEFORE)
        bind(self._boot_id, _BOOT_ID)

    def warm_up(self) -> None:
        """Import what children import, and compute what they compare with."""
        for name in NAMES:
            expected(name)
        self._volume("ext4").restore(self._prepare("ext4", "commit").content)

        def look() -> dict[str, Any]:
            check_store(self._store("ext4"), Promised())
            return {"modules": [*sys.modules]}

        with self._volume("ext4").mounted():
            loaded = set(self._child(look).end()["modules"])
        for module in sorted(loaded - sys.modules.keys()):
            with suppress(ImportError):
                importlib.import_module(module)
        gc.freeze()

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Do what is asked: `calls`, `cut`, `record` or `image`, as they are told there; `failed` says what did."""
        do = {"calls": self._calls, "cut": self._cut, "record": self._record, "image": self._image}[asked["do"]]
        try:
            return do(asked)
        except RuntimeError as error:  # the next question is another matter
            return {"failed": str(error)}

    def close(self) -> None:
        """Take the volumes down."""
        for volume in self._volumes.values():
            volume.close()

    # ------------------------------------------------------------------ power cuts

    def _calls(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Let the scenario happen; return its calls, and how long it took."""
        done = self._cut({**asked, "at": 0, "flush_log": False})
        if done["wrong"] or done["error"]:
            raise RuntimeError(f"{asked['scenario']} fails although the power stays on: {done}")
        calls = (self._folder / "calls").read_text().splitlines()
        return {"calls": calls, "took_s": done["took_s"]}

    def _cut(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Let the scenario happen and cut the power after its `at`-th call, or after `after_s`; mount and look."""
        kind, one = asked["kind"], scenario(asked["scenario"])
        prepared = self._prepare(kind, asked["scenario"])
        volume, journal, calls = self._volume(kind), self._folder / "journal", self._folder / "calls"
        volume.restore(prepared.content)
        journal.write_text(prepared.journal)
        calls.unlink(missing_ok=True)
        after_s = asked.get("after_s")
        mode: Mode = "count" if after_s is not None or asked["at"] == 0 else "kill-after"

        def act(fd: int) -> dict[str, Any]:
            hold_still("act")
            self._shim.cut_power_instead(fd, flush_log=asked["flush_log"])
            self._shim.arm(Fault(mode, asked["at"], families=Family.MUTATING), self._store(kind), calls)
            begun_s = time.monotonic()
            error = attempt(one, self._store(kind), Journal(journal))
            took_s = time.monotonic() - begun_s
            self._shim.disarm()
            return {**error, "hits": self._shim.hits, "took_s": took_s}

        with volume.mounted() as mountpoint:
            # Opened here: where the power goes at once the child could not open it any more.
            with files.opened(mountpoint, os.O_RDONLY) as fd:
                child = self._child(partial(act, fd))
                if after_s is not None:
                    child.wait(after_s)
                    cut_power(fd, flush_log=asked["flush_log"])
            acted = child.end()
        if "signal" in acted:
            # Where the disk is gone the kernel cannot give SQLite the page of its shared memory (XFS).
            wrong = [] if acted["signal"] == signal.SIGBUS else [f"the process died by signal {acted['signal']}"]
            acted = {"error": "", "hits": 1, "wrong": wrong, "died": True}
        promised = promised_by(journal.read_text().splitlines())
        done = not acted["error"] and "died" not in acted
        seen = self._look(kind, one, promised, done=done)
        hit = [line for line in calls.read_text().splitlines() if line.endswith(" *")] if calls.exists() else []
        return {**acted, "call": " ".join(hit), **seen, "wrong": acted["wrong"] + seen["wrong"]}

    # ------------------------------------------------------------------ crash images

    def _record(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Let the scenario happen on the logged disk; return where the log, the disk and the journal before it are."""
        kind, one = asked["kind"], scenario(asked["scenario"])
        prepared = self._prepare(kind, asked["scenario"])
        log = self._folder / f"{asked['scenario']}-{kind}.log"

        def act(store: Path, journal: Path) -> None:
            def work() -> dict[str, Any]:
                return attempt(one, store, Journal(journal))

            done = self._child(work).end()
            if done["error"] or done["wrong"]:
                raise RuntimeError(f"{asked['scenario']} fails on the logged disk: {done}")

        record(self._volume(kind), prepared.content, log, act)
        base = log.with_suffix(".base")
        write_image(base, self._volume(kind).size_bytes, prepared.content.extents)
        return {"log": str(log), "base": str(base), "journal": prepared.journal}

    def _image(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Make the disk with some of the logged writes over it, each as (entry, bytes of it); mount and look."""
        kind = asked["kind"]
        if self._log[0] != asked["log"]:
            self._log = asked["log"], read_log(Path(asked["log"]))
        entries = self._log[1]

        def writes() -> Iterator[tuple[int, bytes]]:
            for number, nbytes in asked["writes"]:
                yield entries[number].offset, entries[number].data[:nbytes]

        self._volume(kind).restore(self._prepare(kind, asked["scenario"]).content, writes())
        places = {(run, step): set(options) for run, step, options in asked["options"]}
        facts = {(what, which): set(options) for what, which, options in asked["facts"]}
        return self._look(kind, scenario(asked["scenario"]), Promised(places, facts, asked["store"]))

    # ------------------------------------------------------------------ both

    def _look(self, kind: Kind, one: Scenario, promised: Promised, *, done: bool = False) -> dict[str, Any]:
        """Mount, as after a start of the machine, and return what is wrong; a disk with something wrong is kept.

        Where an earlier disk had the same files with the same promises, that was looked at already.
        `done`: the act reported success.
        """
        self._start_of_machine(uuid.uuid4())
        volume = self._volume(kind)
        found = snapshot(volume.image)

        def look() -> dict[str, Any]:
            wrong = one.settle(self._store(kind), done)
            return {"wrong": wrong + check_store(self._store(kind), promised), "signal": None}

        left, alike = None, False
        try:
            with volume.mounted() as mountpoint:
                left = (kind, one.name, done, str(promised), _picture(mountpoint))
                alike = left in self._seen
                seen = {"wrong": []} if alike else self._child(look).end()
            wrong = seen.get("wrong", [f"looking at it ended by signal {seen.get('signal')}"])
        except (OSError, RuntimeError) as error:
            wrong = [f"it cannot be looked at: {error}"]
        self._start_of_machine(_BEFORE)
        if not wrong:
            if left is not None and left[-1]:
                self._seen.add(left)
            return {"wrong": wrong, "alike": alike}
        if self._kept == _MOST_KEPT:
            return {"wrong": wrong}
        self._kept += 1
        kept = self._folder / f"wrong-{self._kept}.{kind}"
        write_image(kept, volume.size_bytes, found.extents)
        return {"wrong": wrong, "kept": str(kept)}

    def _start_of_machine(self, boot_id: uuid.UUID) -> None:
        """Say which start of the machine this is: at the first opening after another one more is looked for."""
        self._boot_id.write_text(f"{boot_id}\n")

    def _prepare(self, kind: Kind, name: str) -> Prepared:
        found = self._prepared.get((kind, name))
        if found is None:
            found = self._prepared[kind, name] = self._prepare_now(kind, name)
        return found

    def _prepare_now(self, kind: Kind, name: str) -> Prepared:
        volume, journal, one = self._volume(kind), self._folder / "journal", scenario(name)
        volume.restore(volume.empty)
        journal.unlink(missing_ok=True)

        def work() -> dict[str, Any]:
            one.prepare(self._store(kind), Journal(journal))
            return {"modules": [*sys.modules]}

        with volume.mounted():
            self._child(work).end()
        return Prepared(snapshot(volume.image), journal.read_text() if journal.exists() else "")

    def _volume(self, kind: Kind) -> Volume:
        if kind not in self._volumes:
            self._volumes[kind] = Volume(kind, self._memory / kind)
        return self._volumes[kind]

    def _store(self, kind: Kind) -> Path:
        return self._volume(kind).mountpoint / "store"

    def _child(self, work: Callable[[], dict[str, Any]]) -> Child:
        return Child(work, self._folder / "answer")


def _picture(folder: Path) -> str:
    """Return what tells a disk from others, or nothing where a file is too damaged to be compared."""
    try:
        return picture(folder)
    except (sqlite3.Error, UnicodeDecodeError):
        return ""


def main() -> None:
    """Serve until the standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # so that nothing a child prints is taken for an answer
    own_mounts()
    worker = Worker(Path(sys.argv[1]), Path(sys.argv[2]))
    worker.warm_up()
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(worker.answer(json.loads(line))), file=answers, flush=True)
    worker.close()


if __name__ == "__main__":
    main()
