"""An act in the middle of which a signal comes, whose handler saves to the same store, raises, or exits.

The fault library raises SIGUSR1 at a call, and Python runs the handler where it runs every handler: between two steps
of Python code of the main thread, right after the call. What must hold is looked at in the process itself, which lives
on: nothing waits for ever, no descriptor, lock or thread is left, and acts go on as before; and then in the store.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from ckstore import Store
from ckstore.errors import CkstoreError, InUse, NoSuchRef
from tests.faults.journal import Journal
from tests.faults.scenarios import RUN, SCENARIOS, Scenario
from tests.faults.shim import Fault
from tests.faults.states import state

Handler = Literal["save", "raise", "exit"]
HANDLERS: tuple[Handler, ...] = ("save", "raise", "exit")

_DEADLOCK_S = 45
_LOOKS = 2_000
_LOOK_PAUSE_S = 0.005
_STATUS = 3


class HandlerError(Exception):
    """What the handler raises."""


def _loading(store: Store, journal: Journal) -> None:
    store.load(f"{RUN}@1")
    store.load(f"{RUN}@latest-valid", mmap=True)  # the handler saves to a run of its own
    with store.open_checkpoint(f"{RUN}@1") as checkpoint:
        checkpoint.slice("model.weight")[1000:300_000]


def _with_tags(path: Path, journal: Journal) -> None:
    SCENARIOS["replace"].prepare(path, journal)
    with Store.open(path) as store:
        for name in ("best", "old"):
            _tag(store, journal, name, 1)


def _tag(store: Store, journal: Journal, name: str, step: int) -> None:
    journal.begin(("tag", name), f"{RUN}@{step}")
    store.tag(name, f"{RUN}@{step}")
    journal.done(("tag", name), f"{RUN}@{step}")


def _tagging(store: Store, journal: Journal) -> None:
    """Make a tag, move one and remove one; may be called again."""
    for name in ("new", "best"):
        _tag(store, journal, name, 2)
    journal.begin(("tag", "old"), None)
    with suppress(NoSuchRef):  # an attempt may have failed after that
        store.untag("old")
    journal.done(("tag", "old"), None)


_ACTS = ("first_save", "deduplicated_save", "small_tensor_save", "replace", "commit", "gc")
SIGNALLED = {name: SCENARIOS[name] for name in _ACTS} | {
    "load": Scenario("load", SCENARIOS["replace"].prepare, SCENARIOS["replace"].open, _loading),
    "tag": Scenario("tag", _with_tags, SCENARIOS["replace"].open, _tagging),
}
"""The acts in which signals come."""


class Interrupted:
    """The handler, and what came of it."""

    def __init__(self, what: Handler, path: Path, store: Callable[[], Store | None], journal: Journal) -> None:
        self.wrong: list[str] = []
        self.calls = 0
        self._what = what
        self._path = path
        self._store = store
        self._journal = journal

    def __call__(self, *_: object) -> None:
        self.calls += 1
        if self._what == "raise":
            raise HandlerError
        if self._what == "exit":
            sys.exit(_STATUS)
        try:
            self._save()
        except InUse as error:
            if "is running in this same thread" not in error.message:
                self.wrong.append(f"the handler waited for a lock: {error}")
        except BaseException:
            self.wrong.append(f"the handler's save: {traceback.format_exc()}")

    def _save(self) -> None:
        """Save by the handle of the act, or by another one."""
        store = self._store()
        if store is None:
            store = Store.open(self._path)
        store.save(state("other"), run="handler", step=1)
        self._journal.begin(("handler", 1), "other")
        self._journal.done(("handler", 1), "other")


def run(act: Any, fault: Fault, what: Handler) -> dict[str, Any]:
    """Run the `tests.faults.server.Act` with a signal; say what is wrong in this process afterwards.

    A deadlock ends the process by SIGALRM.
    """
    handler = Interrupted(what, act.files.store, lambda: act.store if fault.at % 2 else None, act.journal)
    signal.signal(signal.SIGUSR1, handler)
    act.shim.arm(fault, act.files.store, act.files.log)
    before = _open()
    signal.alarm(_DEADLOCK_S)
    error = act.attempt()
    signal.alarm(0)
    act.shim.disarm()
    answer = {"hits": act.shim.hits, "count": act.shim.count, "error": "" if error is None else repr(error)}
    wrong = handler.wrong
    if act.shim.hits and not handler.calls:
        wrong.append("the handler did not run")
    if error is not None:
        if not isinstance(error, (HandlerError, SystemExit)) or what == "save":
            wrong.append("the act failed: " + "".join(traceback.format_exception(error)))
        error.__traceback__ = None
        act.journal.failed(unknown=True)
    del error
    wrong += [f"left open: {name}" for name in _left_open(before)]
    if not gc.isenabled():
        wrong.append("the cyclic garbage collector is off")
    wrong += _going_on(act)
    return {**answer, "violations": wrong}


def _open() -> dict[str, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the one that listed
            continue
    return found


def _left_open(before: dict[str, str]) -> list[str]:
    """Return what is open now, and threads that do not end; those that have ended a moment ago may still be counted."""
    gc.collect()
    left: list[str] = []
    for _ in range(_LOOKS):
        left = [name for fd, name in _open().items() if before.get(fd) != name]
        left += [f"thread {task}" for task in os.listdir("/proc/self/task") if int(task) != os.getpid()]
        if not left:
            break
        time.sleep(_LOOK_PAUSE_S)
    return left


def _going_on(act: Any) -> list[str]:
    """Do the act again, save something else, and collect; return what is wrong with that."""
    signal.alarm(2 * _DEADLOCK_S)
    wrong = []
    again = act.attempt()
    if again is not None:
        wrong.append("the act cannot be done again: " + "".join(traceback.format_exception(again)))
        return wrong
    try:
        act.journal.begin(("after", 1), "second")
        act.store.save(state("second"), run="after", step=1)
        act.journal.done(("after", 1), "second")
        act.store.gc()
    except CkstoreError:
        wrong.append(f"acts do not go on: {traceback.format_exc()}")
    for folder in ("staging", "trash"):
        wrong += [f"gc left {path}" for path in sorted((act.files.store / folder).iterdir())]
    signal.alarm(0)
    return wrong
