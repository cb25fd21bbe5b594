"""Make snapshots in the trainer, and send them to the saver.

Neither the calls of the trainer nor the thread that watches the saver access the filesystem of the store.
`saver/client/queue` holds the pending saves, and `saver/client/keeper` manages the saver process.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ckstore.errors import SaveFailed, StateChanged
from ckstore.interpreter import python_gc_paused
from ckstore.model.saver.messages import Open, encode
from ckstore.saver.client.ahead import HeadStarts
from ckstore.saver.client.keeper import SaverKeeper
from ckstore.saver.client.pending import PendingSave
from ckstore.saver.client.queue import SaveQueue
from ckstore.saver.client.running_save import Save
from ckstore.saver.client.snapshot import Snapshot, places_of
from ckstore.tensors.state_capture import capture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, MutableMapping

    from ckstore.errors import CkstoreError
    from ckstore.model.manifest.captured import Captured
    from ckstore.model.manifest.info import CheckpointInfo
    from ckstore.model.reports.not_saved import NotSaved
    from ckstore.model.saver.messages import Order
    from ckstore.model.training_identity import Parent
    from ckstore.saver.client.ahead import HeadStart
    from ckstore.saver.client.process import SaverProcess
    from ckstore.saver.client.queue import SaverLimits
    from ckstore.saver.client.unchanged_storages import UnchangedNames

    Tolerate = Callable[[CkstoreError, str, int | None], NotSaved | None]
    """Returns the value that replaces the error of a save, or None if the error must be raised."""

_COMPILE_S = 60.0
"""The maximum time to compile the kernel for fingerprints, in seconds.

Compiling takes one second on an idle machine, or ten on a busy one. Without the kernel, torch computes fingerprints.
"""


class Client:
    """The background saves of one open store."""

    def __init__(
        self,
        store: Open,
        on_ended: Callable[[CheckpointInfo | CkstoreError], None],
        on_left_out: Callable[[Iterable[str]], None],
    ) -> None:
        self.store = store
        self.on_ended = on_ended  # called with the checkpoint or the error, in the thread that watches the saver
        self.on_left_out = on_left_out  # called before the copy, with sentences about values that are not stored
        self._of_parent: list[PendingSave] = []  # in a forked child, the unfinished saves of the parent
        self._begin()
        _clients.add(self)

    def _begin(self) -> None:
        """Initialize the client without a saver, at the start and in a forked child."""
        # This lock is not the lock of the queue. Otherwise, a copy of gigabytes would keep the thread that watches the
        # saver from answering the saver.
        self._submitting = threading.RLock()
        self._queue = SaveQueue(self.on_ended)
        self._keeper = SaverKeeper(self.store, self._queue)
        self._number = 0
        self._ahead = HeadStarts()

    def submit(  # noqa: PLR0917
        self,
        state: object,
        order: Order,
        limits: SaverLimits,
        last_parents: MutableMapping[str, Parent],
        unchanged: UnchangedNames | None = None,
        tolerate: Tolerate | None = None,
    ) -> PendingSave:
        """Copy the state, except unchanged data of an existing checkpoint, and queue the save."""
        with self._submitting:
            begun_at = time.monotonic()
            # This is the first step, so that the caller learns of a failed save before a new state is copied.
            self.raise_unread()
            # Nothing is copied early in two cases. If the caller names unchanged data, these names are more precise
            # than fingerprints. If the caller passes an event, the devices may not have computed the state yet.
            has_head_start = limits.after is None and (unchanged is None or unchanged.selects is None)
            run = order.run if has_head_start else ""
            ahead = self._ahead.begin(run, self._queue.pool, limits.max_in_flight)
            try:
                return self._submit_behind(ahead, begun_at, state, order, limits, last_parents, unchanged, tolerate)
            finally:
                ahead.give_up()

    def call_failed(self, run: object) -> None:
        """Record that a call to save to a run has raised an error.

        The next call names data that is unchanged since the failed call, but not necessarily since the last save.
        """
        if isinstance(run, str):
            with self._queue.changed:
                self._queue.bases.not_saved(run, set())

    def _submit_behind(  # noqa: PLR0917
        self,
        ahead: HeadStart,
        begun_at: float,
        state: object,
        order: Order,
        limits: SaverLimits,
        last_parents: MutableMapping[str, Parent],
        unchanged: UnchangedNames | None,
        tolerate: Tolerate | None,
    ) -> PendingSave:
        # The state is captured before the wait for other saves, which may take minutes, so that an error about the
        # state is raised immediately.
        captured = self._capture(state, limits, ahead)
        names = set() if unchanged is None else unchanged.names_in(captured)
        # The wait precedes the allocation of memory, because at most `max_in_flight` snapshots may exist.
        if not self._queue.make_way(limits):
            with self._queue.changed:
                self._queue.bases.not_saved(order.run, names)
            return PendingSave(order.run, order.step, 0, skipped=True)
        # With an event, the devices may not have computed the state yet, and this call must not wait for them.
        fingerprints = _fingerprints(captured) if limits.after is None else {}
        first = ahead.indexes(captured.sources, fingerprints)
        with self._queue.changed:
            bases = self._queue.bases
            placed = bases.place(captured, order, unchanged, names, last_parents, fingerprints, first)
        snapshot = ahead.take(placed.nbytes) if first else None
        if placed.kept is not None and names:
            # If frozen weights are not copied any more, earlier snapshots are many times too large. Their memory is
            # returned to the host.
            self._queue.pool.drop_above(2 * Snapshot.size_for(placed.nbytes))
        if snapshot is None:
            # There are no early copies, or they are invalid. Their snapshot is returned to the pool first, because it
            # may be the only one that `take` can return without allocating memory.
            first = ()
            ahead.give_up()
            snapshot = self._queue.pool.take(placed.nbytes)
        try:
            sources, places = (*captured.sources, *placed.parts), (*placed.places, *placed.part_places)
            if first:
                rest = sorted(set(range(len(sources))) - {*first})
                sources, places = tuple(sources[i] for i in rest), tuple(places[i] for i in rest)
            copying = snapshot.fill(sources, places, behind_current=limits.after is not None, more=bool(first))
            order = replace(
                order,
                number=self._number + 1,
                captured=replace(captured, sources=(), own_blobs=bool(names) or captured.space is not None),
                places=placed.places,
                kept=placed.kept,
                last_parents=self._queue.parents.news(last_parents),
            )
            pending = PendingSave(order.run, order.step, sum(place.nbytes for place in placed.places))
            pending.refuse = partial(self._keeper.refuse, order.number)
            pending.tolerate = tolerate
            order_bytes = b"" if copying is None else encode(order)
            # This wait is as late as possible, so that the steps above run at the same time as the copy.
            if copying is not None and limits.after is None:
                copying.wait()
                copying = None
            # The check follows the copy: a tensor that was changed during the copy would be half old and half new in
            # the snapshot.
            _check_unchanged(captured)
            save = Save(order, snapshot, pending, copying=copying, order_bytes=order_bytes, fingerprints=fingerprints)
            if copying is None:
                pending.note("copied")
            with self._queue.changed:
                self._queue.limits = limits
                # The saver is started before the save is queued: if it cannot be started, the queue must not contain a
                # save that never ends.
                self._keeper.start_if_needed()
                self._number = order.number
                save.copied_s = time.monotonic() - begun_at
                self._queue.add(save, last_parents)
            kept = () if placed.kept is None else placed.kept.storages
            self._ahead.remember(order.run, captured.sources, fingerprints, kept)
        except BaseException:
            # This also handles Ctrl-C. Otherwise, gigabytes of unused shared memory would remain allocated until the
            # process ends.
            self._queue.give_back(snapshot, limits)
            raise
        with self._queue.changed:
            # This is outside `try`, because the save now belongs to the queue, which handles a failure of the saver.
            self._keeper.send_waiting()
        if copying is not None:
            threading.Thread(target=self._send_when_copied, args=(save,), name="ckstore-copied", daemon=True).start()
        return pending

    def _capture(self, state: object, limits: SaverLimits, ahead: HeadStart) -> Captured:
        with python_gc_paused():
            captured = capture(state, after=limits.after, waited=ahead.waited)
        # The warnings are issued before the save begins. If warnings are errors, the call raises one, and the save must
        # not continue in the background.
        self.on_left_out(captured.left_out)
        return captured

    def _send_when_copied(self, save: Save) -> None:
        """Wait for the devices, then send the save to the saver, or end the save with the error of the devices."""
        copying, error = save.copying, None
        if copying is None:
            return
        try:
            copying.wait()
        # torch raises a `RuntimeError` for any error on the device, even an earlier one. After another exception as
        # well, no other thread would end the save.
        except Exception as found:  # noqa: BLE001 - raised by the result of the save
            error = SaveFailed(f"copying the state from the device failed: {found!r}", hint="nothing was saved")
        with self._queue.changed:
            # Another thread has already handled the end of the copy (`close` also waits for it), or the save has ended
            # because its saver was given up.
            if save.copying is None or save not in self._queue.saves:
                return
            save.copying = None
            if error is not None:
                self._queue.end(save, error)
                return
            save.pending.note("copied")
            self._keeper.send_waiting()

    def staging_bytes(self, state: object) -> int:
        """Return the size of the snapshot that a save of this state needs."""
        with python_gc_paused():
            return Snapshot.size_for(places_of(capture(state).sources)[1])

    def prewarm(self, state: object | None, limits: SaverLimits) -> None:
        """Start the saver, and allocate memory for a snapshot of this state."""
        with self._submitting:
            pool = self._queue.pool
            if state is not None:
                with python_gc_paused():
                    captured = capture(state)
                snapshot = pool.take(places_of(captured.sources)[1])
                try:
                    if captured.space is not None:
                        snapshot.pin(captured.space)
                        captured.space.prepare(_COMPILE_S)
                        _fingerprints(captured)  # the first call of each operation takes longer
                finally:  # even after Ctrl-C or a device error; otherwise, the memory remains until the process ends
                    pool.give(snapshot, self._queue.limits.max_in_flight)
            with self._queue.changed:
                self._queue.limits = limits
                self._keeper.start_if_needed()

    def wait(self, timeout_s: float | None, run: str | None = None) -> bool:
        """Wait for the pending saves of one run or of all runs. Return False if they did not end in time."""
        return self._queue.wait(timeout_s, run)

    def under_way(self) -> list[PendingSave]:
        """Return the saves that have not ended."""
        with self._queue.changed:
            return [save.pending for save in self._queue.saves]

    def check_process(self) -> None:
        """Raise an error once in a forked child if saves of the parent were unfinished at the fork."""
        of_parent, self._of_parent = self._of_parent, []
        for pending in of_parent:
            pending.check_process()

    def raise_unread(self) -> None:
        """Raise the first error that was not read."""
        self._queue.raise_unread()

    def cancel_all(self) -> None:
        """Cancel all saves that can still be cancelled."""
        with self._queue.changed:
            for save in self._queue.saves:
                save.pending.cancel()

    def close(self) -> None:
        """Close the socket, so that the saver finishes its orders and exits, and free the memory of snapshots."""
        for save in [*self._queue.saves]:
            self._send_when_copied(save)  # the saver does not read orders that follow `Close`
        with self._queue.changed:
            self._keeper.close()
        self._queue.pool.close()

    def pid(self) -> int | None:
        """Return the process id of the saver, or None if there is no saver."""
        process = self._keeper.process
        return None if process is None else process.pid

    def given_up(self) -> list[SaverProcess]:
        """Return the savers that were killed and may not have ended."""
        return self._keeper.given_up

    def let_go_in_child(self) -> None:
        """In a forked child, leave the saver and the memory of snapshots to the parent."""
        self._of_parent += [save.pending for save in self._queue.saves]
        self._keeper.let_go_in_child()
        self._queue.let_go_in_child()
        self._begin()


def _fingerprints(captured: Captured) -> dict[int, bytes]:
    space = captured.space
    if space is None:
        return {}
    sources = {index: source for index, source in enumerate(captured.sources) if source.space is not None}
    found = space.fingerprints_of([*sources.values()])
    return dict(zip(sources, found, strict=True)) if found else {}


def _check_unchanged(captured: Captured) -> None:
    changed = captured.first_changed()
    if changed is not None:
        msg = f"{changed} was changed while it was being copied; nothing is saved"
        raise StateChanged(msg, hint="change the state when save_async() has returned")


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _forget_in_child() -> None:
    # A forked child shares the socket. The saver would take an answer or a `Close` from the child as a message from the
    # parent.
    for client in tuple(_clients):
        client.let_go_in_child()


os.register_at_fork(after_in_child=_forget_in_child)
