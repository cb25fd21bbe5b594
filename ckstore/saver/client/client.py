"""The trainer's side of background saves: takes snapshots, hands them to a saver, and watches it.

One saver process, started at the first save, and one thread, which reads what it says. Neither this thread nor its
callers touch the filesystem of the store. A saver that has died is replaced once for each save, whose snapshot is still
there; one that is stuck is killed and the save that it had begun is given up. It has to ask before it publishes, so
that cannot appear later: see docs/explanation/async.md.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING

from ckstore.errors import CkstoreError, InUse, SaveFailed, StateChanged
from ckstore.model.saver.messages import (
    Answer,
    Close,
    Committed,
    Done,
    Failed,
    Message,
    Open,
    Order,
    Publishing,
    Status,
    Taken,
)
from ckstore.python_gc import python_gc_paused
from ckstore.saver.client.pending import PendingSave
from ckstore.saver.client.process import SaverProcess
from ckstore.saver.client.save import Save, failed, given_up, with_warning
from ckstore.saver.client.snapshot import Snapshot, SnapshotPool, places_of
from ckstore.saver.client.terms import Terms
from ckstore.saver.client.watch import StallWatch
from ckstore.tensors.capture import capture

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ckstore.model.manifest.captured import Captured
    from ckstore.model.manifest.info import CheckpointInfo

_LOG = logging.getLogger("ckstore.saver")
_LOOK_S = 0.5
_TRIES = 2
_MOST_GIVEN_UP = 4
"""A process that a frozen disk holds keeps a snapshot until it ends, so there are only so many."""


class Client:
    """The background saves of one open store.

    Attributes:
        path: Directory of the store.
        on_saved: Called with what was saved, in the thread of the client.
    """

    def __init__(self, path: str, catalog_path: str | None, on_saved: Callable[[CheckpointInfo], None]) -> None:
        self.path = path
        self.catalog_path = catalog_path
        self.on_saved = on_saved
        self._forget()
        _clients.add(self)

    def _forget(self) -> None:
        """Begin again, without a thread and a saver."""
        self._submitting = threading.RLock()
        self._changed = threading.Condition()
        self._process: SaverProcess | None = None
        self._closing = False
        self._saves: list[Save] = []
        self._ended: list[PendingSave] = []
        self._pool = SnapshotPool()
        self._number = 0
        self._told_parents: dict[str, str] = {}
        self._terms = Terms()
        self._given_up: list[SaverProcess] = []

    # ---- asked for by the trainer

    def submit(self, state: object, order: Order, terms: Terms, last_parents: Mapping[str, str]) -> PendingSave:
        """Copy the state, and have it saved.

        Raises:
            CkstoreError: An earlier save failed, and its error was not read; the state cannot be stored; there is no
                memory for its snapshot; ``when_busy`` says so; or no saver can be started.
        """
        with self._submitting:
            self.raise_unread()
            with python_gc_paused():
                captured = capture(state)
            if not self._make_way(terms):
                return PendingSave(order.run, order.step, 0, skipped=True)
            places, nbytes = places_of(captured.sources)
            snapshot = self._pool.take(nbytes)
            try:
                snapshot.fill(captured.sources, places)
                _check_unchanged(captured)
                order = replace(
                    order,
                    number=self._number + 1,
                    captured=replace(captured, sources=()),
                    places=places,
                    last_parents=self._news(last_parents),
                )
                pending = PendingSave(order.run, order.step, sum(place.nbytes for place in places))
                pending.note("copied")
                with self._changed:
                    self._terms = terms
                    self._start_if_needed()
                    self._number = order.number
                    self._told_parents.update(order.last_parents)
                    self._saves.append(Save(order, snapshot, pending))
                    self._send_waiting()
            except BaseException:
                self._pool.give(snapshot, terms.max_in_flight)
                raise
            return pending

    def staging_bytes(self, state: object) -> int:
        """Return the size of the snapshot that a save of this state needs."""
        with python_gc_paused():
            return Snapshot.size_for(places_of(capture(state).sources)[1])

    def prewarm(self, state: object | None, terms: Terms) -> None:
        """Start the saver, and make the memory for a snapshot of this state."""
        with self._submitting:
            if state is not None:
                self._pool.give(self._pool.take(self.staging_bytes(state)), self._terms.max_in_flight)
            with self._changed:
                self._terms = terms
                self._start_if_needed()

    def wait(self, timeout_s: float | None, run: str | None = None) -> bool:
        """Wait for the saves under way, of one run or of all; False: they have not ended in time."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not any(run in (None, save.order.run) for save in self._saves), timeout_s
            )

    def raise_unread(self) -> None:
        """Raise the first error that was not read."""
        with self._changed:
            ended, self._ended = self._ended, []
            for at, pending in enumerate(ended):
                error = pending.take_unread()
                if error is not None:
                    self._ended = ended[at + 1 :]
                    raise error

    def cancel_all(self) -> None:
        """Give up what can still be given up."""
        with self._changed:
            for save in self._saves:
                save.pending.cancel()

    def close(self) -> None:
        """Let the saver end when it has done what it has; the memory of snapshots is given back."""
        with self._changed:
            process = self._process
            if process is not None and not self._closing:
                self._closing = process.send(Close())
        self._pool.close()

    def pid(self) -> int | None:
        """Return the process of the saver, if there is one."""
        process = self._process
        return None if process is None else process.pid

    def let_go_in_child(self) -> None:
        """In a forked child: leave the saver and the memory of snapshots to the parent."""
        if self._process is not None:
            self._process.let_go()
        self._pool.let_go()
        for save in self._saves:
            save.snapshot.let_go()
        self._forget()

    # ---- memory

    def _make_way(self, terms: Terms) -> bool:
        """Wait until there may be one more snapshot; False: this save is to be skipped."""

        def is_free() -> bool:
            return len(self._saves) < terms.max_in_flight

        with self._changed:
            if is_free():
                return True
            if terms.when_busy == "skip":
                return False
            busy = self._saves[0].pending
            if terms.when_busy == "wait":
                self._terms = terms
                if self._changed.wait_for(is_free, terms.timeout_s):
                    return True
            waited = f" after {terms.timeout_s} s" if terms.when_busy == "wait" else ""
            msg = f"{len(self._saves)} saves are still under way{waited}: {busy.name} is {busy.state}"
            raise InUse(msg, hint="save less often, or give a longer timeout_s or a larger max_in_flight")

    def _news(self, last_parents: Mapping[str, str]) -> dict[str, str]:
        return {run: parent for run, parent in last_parents.items() if self._told_parents.get(run) != parent}

    # ---- the saver; all with the lock

    def _start_if_needed(self) -> None:
        while self._closing and self._process is not None:
            if not self._changed.wait(self._terms.timeout_s):
                msg = "the saver that was closed has not ended yet"
                raise InUse(msg, hint="wait for its saves: store.wait()")
        if self._process is None:
            self._start()

    def _start(self) -> None:
        self._given_up = [process for process in self._given_up if not process.ended(0.0)]
        if len(self._given_up) >= _MOST_GIVEN_UP:
            msg = f"{len(self._given_up)} savers of {self.path} that were killed have not ended: the disk holds them"
            raise SaveFailed(msg, hint="nothing was saved; save again when the storage of the store answers")
        self._process = process = SaverProcess()
        self._closing = False
        process.send(Open(self.path, self.catalog_path, self._terms.nice))
        _LOG.info("started the saver %d of %s", process.pid, self.path)
        threading.Thread(target=self._watch, args=(process,), name="ckstore-saver", daemon=True).start()

    def _send_waiting(self) -> None:
        """Send orders in their order, as far as the socket takes them."""
        for save in self._saves:
            if not save.sent:
                if self._process is None or not self._process.send(save.order, [save.snapshot.fd]):
                    return
                save.sent = True

    def _watch(self, process: SaverProcess) -> None:
        """Read what the saver says until it is gone: the thread of the client."""
        try:
            if not self._follow(process):
                return
            why = process.why()  # waits a moment for its end
        except Exception as error:  # noqa: BLE001 - a mistake here must not leave a caller waiting
            _LOG.exception("the thread that watches the saver %d failed", process.pid)
            why = f"watching the saver process {process.pid} failed: {error!r}"
        process.kill()
        process.let_go()
        with self._changed:
            if process is self._process:
                self._replace(why)

    def _follow(self, process: SaverProcess) -> bool:
        """Read what the saver says; True when it is gone, False if it was given up."""
        stall = StallWatch(process.pid)
        while True:
            got = process.receive(_LOOK_S)
            with self._changed:
                if process is not self._process:
                    return False
                if got is not None:
                    message = got[0]
                    if message is None:
                        return True
                    self._heard(process, message)
                self._send_waiting()
                at = self._saves[0].pending if self._saves else None
                said = (len(self._saves), at and (at.state, at.progress))
                idle_s = stall.idle_s(said, is_busy=at is not None or self._closing)
                if idle_s > self._terms.stall_timeout_s:
                    self._give_up(process, idle_s)
                    return False

    def _heard(self, process: SaverProcess, message: Message) -> None:
        if isinstance(message, Failed) and message.number == 0:
            for save in [*self._saves]:
                self._end(save, message.error)
        number = getattr(message, "number", 0)
        for save in self._saves:
            if save.order.number == number:
                self._heard_of(process, save, message)
                return

    def _heard_of(self, process: SaverProcess, save: Save, message: Message) -> None:
        if isinstance(message, Taken):
            save.pending.note("staged")
        elif isinstance(message, Status):
            if message.state != "committing" or save.granted:
                save.pending.note(message.state, message.done_bytes)
        elif isinstance(message, Publishing):
            save.granted = save.pending.grant(message.step)
            if save.granted:
                save.order = replace(save.order, tried_step=message.step)
            if not process.send(Answer(save.order.number, save.granted)):
                process.kill()  # its socket is full, so it does not listen
        elif isinstance(message, Committed):
            save.committed = message.info
            save.pending.note("durable")
        elif isinstance(message, Done):
            self._end(save, message.info)
        elif isinstance(message, Failed):
            found = save.committed
            self._end(save, message.error if found is None else with_warning(found, message.error.message))

    def _end(self, save: Save, outcome: CheckpointInfo | CkstoreError, *, keep: bool = True) -> None:
        self._saves.remove(save)
        if keep:
            self._pool.give(save.snapshot, self._terms.max_in_flight)
        else:
            save.snapshot.close()
        if isinstance(outcome, CkstoreError):
            _LOG.error("the save of %s failed: %s", save.pending.name, outcome)
            self._ended.append(save.pending)
        else:
            self._told_parents[outcome.run] = outcome.id
            self.on_saved(outcome)
            _LOG.info("saved %s", outcome.name)
        save.pending.finish(outcome)
        self._changed.notify_all()

    def _replace(self, why: str) -> None:
        """The saver has ended: give what it had not done to another one, once."""
        self._process, was_closing = None, self._closing
        self._closing = False
        self._changed.notify_all()
        if not self._saves:
            if not was_closing:
                _LOG.warning("%s, while it had nothing to do; the next save starts another", why)
            return
        begun = self._saves[0]
        begun.tries += 1
        if begun.tries == _TRIES:
            self._end(begun, failed(begun, why))
        if not self._saves:
            return
        _LOG.warning("%s; going on with another saver", why)
        self._go_on()
        if was_closing:
            self.close()

    def _go_on(self) -> None:
        """Have another saver make the saves that are left, in their order."""
        for save in self._saves:
            save.sent = save.granted = False
        try:
            self._start()
        except CkstoreError as error:
            for save in [*self._saves]:
                self._end(save, error)
            return
        self._send_waiting()

    def _give_up(self, process: SaverProcess, idle_s: float) -> None:
        """The saver is stuck: kill it, and give up what it had begun; the saves behind that go to another.

        What was killed runs no instruction of its own any more, so it can neither ask nor begin another order.
        """
        process.kill()
        process.let_go()
        self._given_up.append(process)
        self._process, was_closing = None, self._closing
        self._closing = False
        why = f"the saver process {process.pid} did nothing for {idle_s:.0f} s"
        _LOG.error("%s; it is killed", why)
        if self._saves:
            begun = self._saves[0]
            self._end(begun, given_up(begun, why), keep=False)
        if self._saves:
            self._go_on()
            if was_closing:
                self.close()
        self._changed.notify_all()


def _check_unchanged(captured: Captured) -> None:
    changed = captured.first_changed()
    if changed is not None:
        msg = f"{changed} was changed while it was being copied; nothing is saved"
        raise StateChanged(msg, hint="change the state when save_async() has returned")


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _forget_in_child() -> None:
    for client in tuple(_clients):
        client.let_go_in_child()


os.register_at_fork(after_in_child=_forget_in_child)
