"""Exchange messages with the trainer, and show the state of the saver to other processes on a status page.

The page is an anonymous file in memory that the saver has open. ``ckstore savers`` finds the page through /proc, even
if the disk of the store does not respond. A killed saver leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Self

from ckstore.errors import SaveAbandoned
from ckstore.fs.memory_file import open_memory
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.saver.messages import Answer, Committed, Message, Order, Publishing, SaverState, Status
from ckstore.model.saver.status import STATUS_BYTES, STATUS_NAME
from ckstore.ops.context import SaveWatch
from ckstore.ops.pace import pause
from ckstore.saver import wire


class Inbox:
    """Receives messages from the trainer. Orders that arrive during the wait for an answer are kept for later."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock  # to the trainer
        self._kept: deque[tuple[Message, list[int]]] = deque()
        self._refused: set[int] = set()  # orders that the trainer has cancelled
        # The process of the trainer is also watched, because a child that the trainer forked may keep the other end of
        # the socket open for days after the trainer has ended.
        self._trainer: int | None = None
        with contextlib.suppress(AttributeError, OSError):  # this Python or kernel has no process descriptors
            self._trainer = os.pidfd_open(os.getppid())  # becomes readable when the trainer ends
        self._poller = select.poll()
        self._poller.register(sock, select.POLLIN)
        if self._trainer is not None:
            self._poller.register(self._trainer, select.POLLIN)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._trainer is not None:
            os.close(self._trainer)

    def next(self) -> tuple[Message, list[int]] | None:
        """Return the next message other than an answer, or None if the trainer has ended and all messages were read."""
        while True:
            got = self._kept.popleft() if self._kept else self._receive()
            if got is None or not isinstance(got[0], Answer):
                return got
            # The answer is about an order that has ended, or about an order that this process has not begun yet.
            self._note(got[0])

    def allows(self, number: int) -> bool:
        """Whether this order may be published: the trainer allows it, or has ended without cancelling it."""
        while number not in self._refused:
            got = self._receive()
            # The trainer has ended and cannot answer any more. It had ordered the save, and did not cancel it.
            if got is None:
                return True
            message, descriptors = got
            if not isinstance(message, Answer):
                # The next order may arrive before the answer. It is kept for later.
                self._kept.append((message, descriptors))
            elif message.number == number and message.allowed:
                return True
            else:
                self._note(message)
        return False

    def is_refused(self, number: int) -> bool:
        """Whether the trainer has cancelled an order. Reads all messages that have arrived."""
        while self._poller.poll(0):
            got = self._receive()
            if got is None:  # the trainer has ended without cancelling the order
                break
            message, descriptors = got
            if isinstance(message, Answer):
                self._note(message)
            else:
                self._kept.append((message, descriptors))
        return number in self._refused

    def _note(self, answer: Answer) -> None:
        if not answer.allowed:
            self._refused.add(answer.number)

    def _receive(self) -> tuple[Message, list[int]] | None:
        ready = {fd for fd, _ in self._poller.poll()}
        if self.sock.fileno() not in ready:
            # The trainer may have sent an order after the first poll, and then ended. This order is still carried out.
            ready |= {fd for fd, _ in self._poller.poll(0)}
        if self.sock.fileno() not in ready:
            return None
        got = wire.receive(self.sock)
        if got is None or got[0] is None:
            return None
        return got[0], got[1]


# The minimum time between two reports of progress. Without this limit, each chunk would cause a message, and for each
# message a thread of the trainer would take the GIL.
_EVERY_S = 0.1


class StatusPage:
    """The status that ``ckstore savers`` shows for a process that works on a store in the background."""

    def __init__(self, store: str) -> None:
        self._fd = open_memory(STATUS_NAME)
        os.ftruncate(self._fd, STATUS_BYTES)
        self._about: dict[str, object] = {"store": store, "trainer": os.getppid(), "run": "", "step": None}
        self.at("starting", 0, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def begin(self, what: Order | CheckpointInfo, state: SaverState) -> None:
        """Start the status of another save or checkpoint."""
        self._about |= {"run": what.run, "step": what.step}
        self.at(state, 0, 0)

    def at(self, state: SaverState, done_bytes: int | None = None, total_bytes: int = 0) -> None:
        """Write the state, and the number of processed bytes if it is given."""
        if done_bytes is not None:
            self._about |= {"done_bytes": done_bytes, "total_bytes": total_bytes}
        more = {"state": state, "since": time.time()}
        # The page is written in place and always at its full length, so that other processes can read it through /proc
        # without a lock, even if the saver is frozen.
        os.pwrite(self._fd, json.dumps({**self._about, **more}).encode().ljust(STATUS_BYTES)[:STATUS_BYTES], 0)


class Reporter(SaveWatch):
    """Reports the progress of the saver to the trainer and on the status page. Several threads may call its methods."""

    def __init__(self, inbox: Inbox, store: str) -> None:
        self._inbox = inbox
        self._sock = inbox.sock
        # The lock is re-entrant, because methods that hold it call `at`.
        self._mutex = threading.RLock()
        self._page = StatusPage(store)
        self._number = self._done = self._total = 0
        self._state: SaverState = "starting"
        self._told_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exit_of: object) -> None:
        self._page.__exit__(*exit_of)

    def begin(self, order: Order) -> None:
        """Start the reports of another order."""
        with self._mutex:
            self._page.begin(order, self._state)
            self._number, self._done = order.number, 0
            self._total = sum(place.nbytes for place in order.places)

    def at(self, number: int, state: SaverState) -> None:
        """Report another state."""
        with self._mutex:
            self._number, self._state = number, state
            self._tell(by_socket=number > 0)

    def say(self, message: Message) -> None:
        """Send a message to the trainer, if it has not ended."""
        # If the trainer has ended, the save still continues and becomes durable.
        with contextlib.suppress(OSError), self._mutex:
            wire.send(self._sock, message)

    def staged(self) -> None:
        """Report as `SaveWatch` describes."""
        self.at(self._number, "hashing")

    def hashed(self, nbytes: int) -> None:
        """Report as `SaveWatch` describes."""
        with self._mutex:
            self._done += nbytes
            if time.monotonic() - self._told_at >= _EVERY_S:
                self._tell()

    def writing(self) -> None:
        """Report as `SaveWatch` describes."""
        with self._mutex:
            if self._state == "hashing":
                self.at(self._number, "writing")

    def written(self) -> None:
        """Report as `SaveWatch` describes."""
        self.hashed(0)

    def syncing(self) -> None:
        """Report as `SaveWatch` describes."""
        with self._mutex:
            # `hashed` is not called for small pieces that the store already has. Without this line, the progress would
            # not reach the total.
            self._done = self._total
            self.at(self._number, "syncing")

    def publishing(self, step: int) -> None:
        """Ask for permission, as `SaveWatch` describes."""
        self.at(self._number, "committing")
        self.say(Publishing(self._number, step))
        if not self._inbox.allows(self._number):
            raise SaveAbandoned("the trainer abandoned the save before it was published")

    def committed(self, info: CheckpointInfo) -> None:
        """Report as `SaveWatch` describes."""
        self.say(Committed(self._number, info))
        self.at(self._number, "just committed")

    def pause(self, seconds: float, is_over: Callable[[], bool]) -> None:
        """Pause as `SaveWatch` describes. The pause ends immediately if the trainer cancels the save."""
        number = self._number
        with self._mutex:
            self._done = 0  # the next try starts at the first byte
            self.at(number, "waiting")

        def is_over_or_refused() -> bool:
            if time.monotonic() - self._told_at >= _EVERY_S:
                with self._mutex:
                    self._tell()  # a sign of life, so that the pausing process is not considered stuck
            return self._inbox.is_refused(number) or is_over()

        pause(seconds, is_over_or_refused)
        if self._inbox.is_refused(number):
            raise SaveAbandoned("the trainer abandoned the save before it was retried; nothing was published")

    def _tell(self, *, by_socket: bool = True) -> None:
        self._told_at = time.monotonic()
        self._page.at(self._state, self._done, self._total)
        if by_socket:
            with contextlib.suppress(OSError):
                # This call does not wait: a delayed status would be outdated when the socket accepts it.
                wire.send(self._sock, Status(self._number, self._state, self._done, self._total), wait=False)
