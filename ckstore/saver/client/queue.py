"""Keep the pending saves in their order, with their limits and results."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import TypeVar

from ckstore.errors import BadInput, CkstoreError, InUse
from ckstore.interpreter import end_overdue_pauses, log, log_notes
from ckstore.model.document import shown
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.saver.messages import Order
from ckstore.model.training_identity import Parent, after_save
from ckstore.model.wait_limit import wait_limit_s
from ckstore.saver.client.pending import PendingSave
from ckstore.saver.client.running_save import Save
from ckstore.saver.client.snapshot import Snapshot, SnapshotPool
from ckstore.saver.client.unchanged_storages import UnchangedBases

T = TypeVar("T")


class Parents:
    """Keeps track of the entries of `ProcessCache.last_parents` that a saver has received with its orders.

    Each order carries the entries that changed since the previous order. A replacement saver has not received the
    earlier orders, so its first order also carries the results of the saves that have ended.

    A saved checkpoint becomes the parent of the next save of its run, unless the trainer has loaded a checkpoint since
    the call to save. A second load of the same checkpoint also counts as a change, which `Parent.load` shows.
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
        """Record the entries of an order. The result of the save is later entered in `last_parents`."""
        self._known = last_parents
        self._told.update(order.last_parents)
        self._changed_by.update(dict.fromkeys(order.last_parents, order.number))

    def ended(self, order: Order, saved: CheckpointInfo | None) -> None:
        """Record the end of a save. A failed save passes None as `saved`."""
        # The entries are also recorded for a failed save, because the saver has received them.
        self._settled.update(order.last_parents)
        if saved is None:
            return
        after = self._settled[saved.run] = after_save(self._settled.get(saved.run), saved)
        if self._changed_by.get(saved.run, 0) > order.number:  # a load was made between this save and a later one
            return
        before = self._told.get(saved.run)
        self._told[saved.run] = after
        if self._known.get(saved.run) == before:  # otherwise, a load was made after this save
            self._known[saved.run] = after

    def for_new_saver(self, news: Mapping[str, Parent]) -> dict[str, Parent]:
        """Return the entries for the first order to a new saver. `news` are the entries of the order itself."""
        return {**self._settled, **news}


@dataclass(frozen=True, slots=True)
class SaverLimits:
    """The maximum number of background saves at a time, and the limits for waiting."""

    max_in_flight: int = 1  # the maximum number of unfinished saves, each with a snapshot
    when_busy: str = "wait"  # the behavior of a save if the maximum is reached: ``wait``, ``skip`` or ``error``
    timeout_s: float = 600.0  # the maximum time to wait for another save with ``wait``
    stall_timeout_s: float = 120.0  # a saver that does nothing for this time is killed
    nice: int = 0  # added to the niceness of a new saver
    # An event of a device, after which the state is copied. If None, the copy follows all queued work of the devices.
    after: object = None

    def check(self) -> None:
        """Raise an error if a limit is not valid."""
        if type(self.max_in_flight) is not int or self.max_in_flight < 1:
            raise BadInput(f"max_in_flight must be a whole number of at least 1, got {shown(self.max_in_flight)}")
        if self.when_busy not in ("wait", "skip", "error"):
            raise BadInput(f"when_busy must be 'wait', 'skip' or 'error', got {shown(self.when_busy)}")
        if not (_is_number(self.timeout_s) and self.timeout_s >= 0):
            raise BadInput(f"timeout_s must be a number of seconds, 0 or more, got {shown(self.timeout_s)}")
        if not (_is_number(self.stall_timeout_s) and self.stall_timeout_s > 0):
            raise BadInput(f"stall_timeout_s must be a number of seconds above 0, got {shown(self.stall_timeout_s)}")
        if type(self.nice) is not int or not 0 <= self.nice <= 19:
            raise BadInput(f"nice must be a whole number from 0 to 19, got {shown(self.nice)}")
        if self.after is not None and not hasattr(self.after, "synchronize"):
            raise BadInput(f"after must be an event of a device, such as torch.cuda.Event, got {self.after!r:.100}")


class SaveQueue:
    """The saves of one client that have not ended."""

    def __init__(self, on_ended: Callable[[CheckpointInfo | CkstoreError], None]) -> None:
        self.changed = threading.Condition()  # the lock of all attributes, and the condition that callers wait for
        self.saves: list[Save] = []  # in the order of the calls; only the first save can have begun
        self.pool = SnapshotPool()  # the unused snapshots
        self.parents = Parents()  # the parents for the next saves, as far as the saver knows them
        self.bases = UnchangedBases()  # the checkpoints from which unchanged tensors can be reused
        self.limits = SaverLimits()  # the limits of the last save
        self._on_ended = on_ended
        self._ended: list[PendingSave] = []
        self._said: deque[tuple[int, str]] = deque()
        self._saved: deque[CheckpointInfo] = deque()
        self._logged: set[str] = set()

    def make_way(self, limits: SaverLimits) -> bool:
        """Wait until one more snapshot is allowed.

        Return False if this save is to be skipped.

        Raises:
            InUse: No snapshot became available in time, or the limits do not allow waiting.
        """

        def is_free() -> bool:
            return len(self.saves) < limits.max_in_flight

        with self.changed:
            if is_free():
                return True
            if limits.when_busy == "skip":
                return False
            # Read this before the wait, so that the message names the save that blocked this one.
            busy = self.saves[0].pending
            if limits.when_busy == "wait":
                # The limits are set before the wait, because the stall timeout of this caller applies during it.
                self.limits = limits
                end_overdue_pauses(limits.timeout_s)
                if self.changed.wait_for(is_free, wait_limit_s(limits.timeout_s)):
                    return True
            waited = f" after {limits.timeout_s} s" if limits.when_busy == "wait" else ""
            msg = f"{len(self.saves)} saves are still unfinished{waited}: {busy.name} is {busy.state}"
            raise InUse(msg, hint="save less often, or give a longer timeout_s or a larger max_in_flight")

    def wait(self, timeout_s: float | None, run: str | None) -> bool:
        """Wait for the saves of one run or of all runs. Return False if they did not end in time."""
        with self.changed:
            return self.changed.wait_for(
                lambda: not any(run in (None, save.order.run) for save in self.saves), wait_limit_s(timeout_s)
            )

    def raise_unread(self) -> None:
        """Raise the first error that was not read."""
        with self.changed:
            ended, self._ended = self._ended, []
            for at, pending in enumerate(ended):
                error = pending.take_unread()
                if error is not None:
                    # Each call raises one error, in the order of the saves. The next calls raise the others.
                    self._ended = ended[at + 1 :]
                    error.add_note(f"this is the error of the save of {pending.name} in the background")
                    raise error

    def add(self, save: Save, last_parents: MutableMapping[str, Parent]) -> None:
        """Add a save at the end. The caller has the lock. The result is later entered in `last_parents`."""
        # The order is recorded only when it is certain to be sent. Otherwise, the next order would omit a parent that
        # the saver has never received.
        self.parents.ordered(save.order, last_parents)
        self.bases.ordered(save.order)
        self.saves.append(save)

    def give_back(self, snapshot: Snapshot, limits: SaverLimits) -> None:
        """Keep a snapshot for the next save, unless a save uses it, for example if Ctrl-C came right after `add`."""
        with self.changed:
            if all(save.snapshot is not snapshot for save in self.saves):
                self.pool.give(snapshot, limits.max_in_flight)

    def end(self, save: Save, outcome: CheckpointInfo | CkstoreError, *, keep: bool = True) -> None:
        """Record the end of a save. The caller has the lock.

        With `keep`, the snapshot of the save may be reused, because no saver can read it any more.
        """
        # The save is removed first, because threads that wait for its end, or for a free snapshot, read this list.
        self.saves.remove(save)
        try:
            if keep:
                self.pool.give(save.snapshot, self.limits.max_in_flight)
            else:
                # A stuck saver may still read the snapshot. Its pages are freed when that process ends.
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
            self._on_ended(outcome)
        finally:
            # Callers of `result()` never wait for a save that was removed, even after an error in the steps above.
            # This follows the update of bases and parents, because the caller of `result()` may save again immediately.
            save.pending.finish(outcome)
            self.changed.notify_all()

    def say(self, level: int, text: str) -> None:
        """Queue a log message. The thread of the saver logs it without the lock, because a handler may take long."""
        self._said.append((level, text))

    def log_said(self) -> None:
        """Log the queued messages and the warnings of saves, without the lock. Two threads may call this at once."""
        while (said := _next(self._said)) is not None:
            log(*said, name="ckstore.saver")
        while (info := _next(self._saved)) is not None:
            log_notes(info.name, info.warnings, self._logged)

    def let_go_in_child(self) -> None:
        """In a forked child, release the saves of the parent without the lock, which a missing thread may hold."""
        # The missing thread keeps a reference to this queue, so snapshots that remain in the queue would stay mapped.
        self.pool.let_go()
        for save in self.saves:
            save.snapshot.let_go()
        self.pool = SnapshotPool()
        self.saves = []


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _next(waiting: deque[T]) -> T | None:
    try:
        return waiting.popleft()
    except IndexError:
        return None
