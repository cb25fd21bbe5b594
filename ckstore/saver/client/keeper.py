"""Start savers, send them orders, and watch them: one process at a time, and one thread that reads its messages.

A dead saver is replaced once for each save. A stuck saver is killed, and its save is abandoned. See
docs/explanation/async.md.
"""

from __future__ import annotations

import logging
import threading
import traceback
from contextlib import ExitStack
from dataclasses import replace

from ckstore.errors import CkstoreError, InUse, SaveFailed
from ckstore.interpreter import end_overdue_pauses
from ckstore.model.saver.messages import Answer, Close, Failed, Message, Open, Order
from ckstore.model.wait_limit import wait_limit_s
from ckstore.saver.client.process import SaverProcess, StallWatch
from ckstore.saver.client.queue import SaveQueue
from ckstore.saver.client.running_save import failed, given_up, heard_of, refused

# The time between two checks for a stall. It is far below `stall_timeout_s`, and long enough not to load the trainer.
_LOOK_S = 0.5
# The maximum number of savers that may die with one save. If the kernel killed a saver for lack of memory, it would
# kill each new one as well.
_TRIES = 2
_MOST_GIVEN_UP = 4
"""The maximum number of killed savers that have not ended. A saver that waits for a frozen disk keeps its snapshot."""


class SaverKeeper:
    """The saver of one client.

    Methods are called with the lock of the queue, except `refuse`, `let_go_in_child` and the methods of its thread.
    """

    def __init__(self, store: Open, queue: SaveQueue) -> None:
        self.process: SaverProcess | None = None  # the current saver, if there is one
        self.given_up: list[SaverProcess] = []  # savers that were killed and may not have ended
        self._store = store
        self._queue = queue
        self._closing = False
        self._is_new = False

    def start_if_needed(self) -> None:
        """Start a saver if none accepts orders."""
        while self._closing and self.process is not None:
            # The wait has a deadline, because a saver that waits for a frozen disk never ends.
            end_overdue_pauses(self._queue.limits.timeout_s)
            if not self._queue.changed.wait(wait_limit_s(self._queue.limits.timeout_s)):
                msg = "the saver that was closed has not ended yet"
                raise InUse(msg, hint="wait for its saves: store.background.wait()")
        if self.process is None:
            self._start()

    def send_waiting(self) -> None:
        """Send orders in sequence, as far as the socket accepts them."""
        for save in self._queue.saves:
            if save.copying is not None:  # a thread sends this save and later saves when the copy has ended
                return
            # The orders are sent in the sequence of the calls. The saver carries them out one after another, so the
            # checkpoints have the same sequence.
            if not save.sent:
                order = save.order
                message: Order | bytes = save.order_bytes or order
                if self._is_new:
                    # A new saver has not received the earlier orders, so its first order carries all entries.
                    message = replace(order, last_parents=self._queue.parents.for_new_saver(order.last_parents))
                # If the socket is full, the watching thread sends the remaining orders when the saver has read some
                # messages.
                if self.process is None or not self.process.send(message, [save.snapshot.fd]):
                    return
                self._is_new = False
                save.sent = True
                if save.pending.is_cancelled:  # the cancellation may have been sent only to an earlier saver
                    self.refuse(order.number)

    def refuse(self, number: int) -> None:
        """Report a cancelled order to the saver. This takes no lock, because a signal handler may call it."""
        # If the socket is full, the saver learns of the cancellation when it asks for permission to publish.
        process = self.process
        if process is not None:
            process.send(Answer(number, allowed=False))

    def close(self) -> None:
        """Close the socket, so that the saver finishes its orders and exits."""
        if self.process is not None and not self._closing:
            self._closing = self.process.send(Close())

    def let_go_in_child(self) -> None:
        """In a forked child, leave the saver to the parent."""
        if self.process is not None:
            self.process.let_go()

    def _start(self) -> None:
        # Each killed saver keeps its snapshot mapped until the disk responds, so further ones would fill the memory of
        # the host.
        self.given_up = [process for process in self.given_up if not process.ended(0.0)]
        if len(self.given_up) >= _MOST_GIVEN_UP:
            savers = f"{len(self.given_up)} savers of {self._store.path}"
            msg = f"{savers} that were killed have not ended: they wait for the disk"
            raise SaveFailed(msg, hint="nothing was saved; save again when the storage of the store answers")
        # The thread that reads the messages of the saver is started before `Open` is sent. Otherwise, a failure of the
        # saver would be noticed only as a stall.
        self.process = process = self._watched()
        self._closing = False
        self._is_new = True
        process.send(replace(self._store, nice=self._queue.limits.nice))
        self._queue.say(logging.INFO, f"started the saver {process.pid} of {self._store.path}")

    def _watched(self) -> SaverProcess:
        """Return a new saver, with a thread that reads its messages as soon as the lock is free."""
        process: SaverProcess | None = None
        try:
            process = SaverProcess()
            threading.Thread(target=self._watch, args=(process,), name="ckstore-saver", daemon=True).start()
        except (OSError, RuntimeError) as error:  # Python's error for threads is a RuntimeError
            if process is not None:
                # Without a thread, the process would wait for orders forever.
                process.kill()
                process.let_go()
            msg = f"the saver process could not be started: {error}"
            raise SaveFailed(msg, hint="nothing was saved; save() needs no other process") from error
        return process

    # ---- the thread of a saver

    def _watch(self, process: SaverProcess) -> None:
        try:
            self._follow_to_its_end(process)
        # Handling the end of the saver has failed. No thread watches the remaining saves, so they end now.
        except Exception as error:  # noqa: BLE001 - logged, and raised by the results of the saves
            msg = f"watching the saver process {process.pid} failed: {error!r}"
            self._queue.say(logging.ERROR, f"{msg}\n{traceback.format_exc()}")
            with self._queue.changed:
                if self.process is not None:
                    self.process.kill()
                    self.process.let_go()
                    self._lose()
                self._end_all(SaveFailed(msg, hint="the log has the traceback; save() needs no other process"))
        finally:
            self._queue.log_said()

    def _follow_to_its_end(self, process: SaverProcess) -> None:
        """Read the messages of the saver until it has ended."""
        try:
            if not self._follow(process):
                return
            reason = process.why()  # waits a moment for its end
        # Without this handler, the thread would end silently, and `result()` would wait for a save that no thread
        # watches.
        except Exception as error:  # noqa: BLE001 - a mistake here must not leave a caller waiting
            reason = f"watching the saver process {process.pid} failed: {error!r}"
            self._queue.say(logging.ERROR, f"{reason}\n{traceback.format_exc()}")
        # The process is killed even if it only closed its socket: two savers must not carry out the same order.
        process.kill()
        process.let_go()
        with self._queue.changed:
            # If the saver has a successor, another thread watches the saves. There is none if `_give_up` failed.
            if self.process is process or self.process is None:
                self._replace(reason)

    def _follow(self, process: SaverProcess) -> bool:
        """Read the messages of the saver. Return True when it has ended, or False if it was given up."""
        stall = StallWatch(process.pid)
        queue, heard_count = self._queue, 0
        while True:
            queue.log_said()
            got = process.receive(_LOOK_S)
            with queue.changed:
                # The saver was given up. Its messages are about saves that its successor now carries out.
                if process is not self.process:
                    return False
                if got is not None:
                    message = got[0]
                    if message is None:
                        return True
                    # Messages are handled before the check for a stall, so that a message that was already in the
                    # socket counts as a sign of life.
                    self._heard(process, message)
                    heard_count += 1
                self.send_waiting()
                at = queue.saves[0].pending if queue.saves else None
                # The number of messages is compared instead of their content: in a pause between two tries, the saver
                # repeats the same message.
                said = (len(queue.saves), heard_count)
                is_busy = at is not None and queue.saves[0].copying is None  # otherwise, the saver waits for a device
                idle_s = stall.idle_s(said, is_busy=is_busy or self._closing)
                # The saver has neither sent a message nor used processor time. A working saver does at least one of
                # these, even with slow storage.
                if idle_s > queue.limits.stall_timeout_s:
                    self._give_up(process, idle_s)
                    return False

    def _heard(self, process: SaverProcess, message: Message) -> None:
        # Number 0 means that the store cannot be opened. Another saver would also fail, so all saves end now.
        if isinstance(message, Failed) and message.number == 0:
            self._end_all(message.error)
        number = getattr(message, "number", 0)
        for save in self._queue.saves:
            if save.order.number == number:
                outcome = heard_of(process, save, message)
                if outcome is not None:
                    self._queue.end(save, outcome)
                return

    # ---- a saver that is lost

    def _replace(self, reason: str) -> None:
        """Handle the end of the saver: send its unfinished orders to another saver, once for each save."""
        was_closing = self._lose()
        self._queue.changed.notify_all()
        saves = self._queue.saves
        if not saves:
            if not was_closing:
                self._queue.say(logging.WARNING, f"{reason}, while it had nothing to do; the next save starts another")
            return
        # Only the first save can have begun, so only this save can have killed the saver.
        begun = saves[0]
        begun.tries += 1
        if begun.tries == _TRIES:
            self._queue.end(begun, failed(begun, reason))
        if saves:
            self._queue.say(logging.WARNING, f"{reason}; continuing with another saver")
            self._go_on(was_closing=was_closing)

    def _give_up(self, process: SaverProcess, idle_s: float) -> None:
        """Kill a stuck saver, and abandon the save that it had begun. Later saves get another saver."""
        # The process is killed first. Afterwards it runs no more code of the saver, so it can neither ask for
        # permission nor begin another order, and the save cannot appear later.
        process.kill()
        process.let_go()
        # The kernel may keep the process in a system call on the disk for hours. It ends only when this call returns.
        self.given_up.append(process)
        was_closing = self._lose()
        reason = f"the saver process {process.pid} did nothing for {idle_s:.0f} s"
        self._queue.say(logging.ERROR, f"{reason}; it is killed")
        saves = self._queue.saves
        if saves:
            begun = saves[0]
            # The snapshot is not kept for the next save, because the stuck process still has the memory mapped and may
            # write it to the disk.
            self._queue.end(begun, given_up(begun, reason), keep=False)
        if saves:
            self._go_on(was_closing=was_closing)
        self._queue.changed.notify_all()

    def _lose(self) -> bool:
        """Remove the saver. Return whether it was closing."""
        self.process, was_closing, self._closing = None, self._closing, False
        return was_closing

    def _go_on(self, *, was_closing: bool) -> None:
        """Start another saver for the remaining saves, in their order."""
        for save in self._queue.saves:
            # If the lost saver has received the permission to publish, it may have published.
            save.again()
        try:
            self._start()
        except CkstoreError as error:
            self._end_all(error)
            return
        self.send_waiting()
        if was_closing:
            self.close()

    def _end_all(self, error: CkstoreError) -> None:
        """End all saves with an error. An exception in one end is raised after the others."""
        with ExitStack() as ends:
            for save in reversed(self._queue.saves):
                ends.callback(self._queue.end, save, refused(save, error))
