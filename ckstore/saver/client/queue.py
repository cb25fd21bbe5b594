"""The pending saves in their order, with their limits and results."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import TypeVar

from ckstore.errors import BadInput, CkstoreError, InUse
from ckstore.interpreter import log, log_notes
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.saver.messages import Order
from ckstore.model.training_identity import Parent, after_save
from ckstore.saver.client.pending import PendingSave
from ckstore.saver.client.running_save import Save
from ckstore.saver.client.snapshot import Snapshot, SnapshotPool
from ckstore.saver.client.unchanged_storages import UnchangedBases

T = TypeVar("T")


class Parents:
    """The entries of `ProcessCache.last_parents` that a saver knows after the orders that it received.

    Each order carries the entries that changed since the previous order. A replacement saver has not received those
    orders, so its first order also carries the results of the saves that have ended.

    A saved checkpoint becomes the parent of the next save of its run, unless the trainer has loaded a checkpoint since
    the call. A second load of the same checkpoint is also a change, which `Parent.load` shows.
    """

    def __init__(self) -> None:
        self._known: MutableMapping[str, Parent] = {}  # the entries of the trainer
        self._told: dict[str, Parent] = {}
        self._settled: dict[str, Parent] = {}
        self._changed_by: dict[str, int] = {}  # run -> the number of the last order that carried an entry for it

    def news(self, last_parents: Mapping[str, Parent]) -> dict[str, Parent]:
        """Return the entries for the next order."""
        return {run: parent for run, parent in tuple(last_parents.items()) if self._told.get(run) != parent}

    def ordered(self, order: Order, last_parents: MutableMapping[str, Parent]) -> None:
        """Record the entries of an order. `last_parents` gets the result of the save."""
        self._known = last_parents
        self._told.update(order.last_parents)
        self._changed_by.update(dict.fromkeys(order.last_parents, order.number))

    def ended(self, order: Order, saved: CheckpointInfo | None) -> None:
        """Record the end of a save. A failed save has no `saved`."""
        # Also of a failed save: the saver had heard of these parents, whatever became of the checkpoint.
        self._settled.update(order.last_parents)
        if saved is None:
            return
        after = self._settled[saved.run] = after_save(self._settled.get(saved.run), saved)
        if self._changed_by.get(saved.run, 0) > order.number:  # a load came between this save and a later one
            return
        before = self._told.get(saved.run)
        self._told[saved.run] = after
        if self._known.get(saved.run) == before:  # otherwise a load came after this save
            self._known[saved.run] = after

    def for_new_saver(self, news: Mapping[str, Parent]) -> dict[str, Parent]:
        """Return the entries for the first order to a new saver. The order itself has `news`."""
        return {**self._settled, **news}


@dataclass(frozen=True, slots=True)
class SaverLimits:
    """The maximum number of background saves at a time, and the limits for waiting."""

    max_in_flight: int = 1  # so many snapshots there are at a time
    when_busy: str = "wait"  # ``wait``, ``skip`` or ``error``: what to do when there are so many
    timeout_s: float = 600.0  # how long ``wait`` waits
    stall_timeout_s: float = 120.0  # a saver that does nothing for so long is given up
    nice: int = 0  # added to the niceness of a saver that is started now
    # An event of a device, behind which the state is copied; None: all that was queued is waited for.
    after: object = None

    def check(self) -> None:
        """Raise an error if a limit is not valid."""
        if self.max_in_flight < 1:
            raise BadInput(f"max_in_flight must be at least 1, got {self.max_in_flight}")
        if self.when_busy not in ("wait", "skip", "error"):
            raise BadInput(f"when_busy must be 'wait', 'skip' or 'error', got {self.when_busy!r}")
        if not (self.timeout_s >= 0 and self.stall_timeout_s > 0):
            msg = f"timeout_s and stall_timeout_s are seconds, got {self.timeout_s!r} and {self.stall_timeout_s!r}"
            raise BadInput(msg)
        if not 0 <= self.nice <= 19:
            raise BadInput(f"nice must be 0 to 19, got {self.nice}")
        if self.after is not None and not hasattr(self.after, "synchronize"):
            raise BadInput(f"after must be an event of a device, such as torch.cuda.Event, got {self.after!r:.100}")


class SaveQueue:
    """The saves of one client that have not ended."""

    def __init__(self, on_ended: Callable[[CheckpointInfo | CkstoreError], None]) -> None:
        self.changed = threading.Condition()  # the lock of all of this, and the condition that callers wait for
        self.saves: list[Save] = []  # in their order; only the first can have been begun
        self.pool = SnapshotPool()  # memory of the snapshots that are not in use
        self.parents = Parents()  # what savers have heard of the parents of the next checkpoints
        self.bases = UnchangedBases()  # what unchanged tensors can be taken from
        self.limits = SaverLimits()  # those of the last save
        self._on_ended = on_ended
        self._ended: list[PendingSave] = []
        self._said: deque[tuple[int, str]] = deque()
        self._saved: deque[CheckpointInfo] = deque()
        self._logged: set[str] = set()

    def make_way(self, limits: SaverLimits) -> bool:
        """Wait until one more snapshot is allowed.

        Return False to skip this save; `InUse` means that it took too long.
        """

        def is_free() -> bool:
            return len(self.saves) < limits.max_in_flight

        with self.changed:
            if is_free():
                return True
            if limits.when_busy == "skip":
                return False
            # Taken before the wait, so that the message names the save that was in the way.
            busy = self.saves[0].pending
            if limits.when_busy == "wait":
                # Now, not after: the stall of the save that is waited for is judged by what this caller allows.
                self.limits = limits
                if self.changed.wait_for(is_free, limits.timeout_s):
                    return True
            waited = f" after {limits.timeout_s} s" if limits.when_busy == "wait" else ""
            msg = f"{len(self.saves)} saves are still unfinished{waited}: {busy.name} is {busy.state}"
            raise InUse(msg, hint="save less often, or give a longer timeout_s or a larger max_in_flight")

    def wait(self, timeout_s: float | None, run: str | None) -> bool:
        """Wait for the saves of one run or of all. Return False if they did not end in time."""
        with self.changed:
            return self.changed.wait_for(
                lambda: not any(run in (None, save.order.run) for save in self.saves), timeout_s
            )

    def raise_unread(self) -> None:
        """Raise the first error that was not read."""
        with self.changed:
            ended, self._ended = self._ended, []
            for at, pending in enumerate(ended):
                error = pending.take_unread()
                if error is not None:
                    # One error each call, in the order of the saves; the others wait for the next.
                    self._ended = ended[at + 1 :]
                    error.add_note(f"this is the error of the save of {pending.name} in the background")
                    raise error

    def add(self, save: Save, last_parents: MutableMapping[str, Parent]) -> None:
        """Add a save behind the others. The caller has the lock. `last_parents` gets its result."""
        # Only once it is certain to be sent: else a save that was never ordered would hide a parent from the next.
        self.parents.ordered(save.order, last_parents)
        self.bases.ordered(save.order)
        self.saves.append(save)

    def give_back(self, snapshot: Snapshot, limits: SaverLimits) -> None:
        """Keep a snapshot for the next save, unless a save has it, as when Ctrl-C came right after `add`."""
        with self.changed:
            if all(save.snapshot is not snapshot for save in self.saves):
                self.pool.give(snapshot, limits.max_in_flight)

    def end(self, save: Save, outcome: CheckpointInfo | CkstoreError, *, keep: bool = True) -> None:
        """Record the end of a save. The caller has the lock.

        With `keep` its snapshot may be reused, since no saver can read it.
        """
        # First: threads that wait for room, or for its end, look at this list.
        self.saves.remove(save)
        if keep:
            self.pool.give(save.snapshot, self.limits.max_in_flight)
        else:
            # A stuck saver may still read it: its pages go when that process ends.
            save.snapshot.close()
        if isinstance(outcome, CkstoreError):
            self.say(logging.ERROR, f"the save of {save.pending.name} failed: {outcome}")
            self.parents.ended(save.order, None)
            self._ended.append(save.pending)
        else:
            self.parents.ended(save.order, outcome)
            self.bases.ended(save.order, outcome, save.fingerprints)
            self.say(logging.INFO, f"saved {outcome.name}")
            self._saved.append(outcome)
        try:
            self._on_ended(outcome)
        finally:
            # After the bases and parents: `result()` returns to a caller that saves again at once.
            save.pending.finish(outcome)
            self.changed.notify_all()

    def say(self, level: int, text: str) -> None:
        """Queue a log message. The thread of the saver logs it without the lock, since a handler may take long."""
        self._said.append((level, text))

    def log_said(self) -> None:
        """Log the queued messages and those of saves, without the lock, perhaps in two threads at once."""
        while (said := _next(self._said)) is not None:
            log(*said, name="ckstore.saver")
        while (info := _next(self._saved)) is not None:
            log_notes(info.name, info.warnings, self._logged)

    def let_go_in_child(self) -> None:
        """Release everything of the parent in a forked child, where a missing thread may hold the lock."""
        # That thread keeps this queue, so the memory of the snapshots would stay mapped with what is left in it.
        self.pool.let_go()
        for save in self.saves:
            save.snapshot.let_go()
        self.pool = SnapshotPool()
        self.saves = []


def _next(waiting: deque[T]) -> T | None:
    try:
        return waiting.popleft()
    except IndexError:
        return None
