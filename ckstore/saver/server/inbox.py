"""What the trainer says, in order. Its end is seen by the socket, and by its process where a child of it has that."""

from __future__ import annotations

import os
import select
from collections import deque
from typing import TYPE_CHECKING, Self

from ckstore.model.saver.messages import Answer, Message
from ckstore.saver import wire

if TYPE_CHECKING:
    import socket


class Inbox:
    """Messages of the trainer; orders that come while an answer is awaited are kept for later."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock  # to the trainer
        self._kept: deque[tuple[Message, list[int]]] = deque()
        self._refused: set[int] = set()  # orders that the trainer gave up
        # Beside the socket: a child that the trainer forked may hold the other end open for days after its death.
        self._trainer = _process_of(os.getppid())
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
        """Wait for the next message but an answer; None: the trainer is gone, and all that it said was taken."""
        while True:
            got = self._kept.popleft() if self._kept else self._receive()
            if got is None or not isinstance(got[0], Answer):
                return got
            self._note(got[0])  # of an order that comes yet, or has ended

    def allows(self, number: int) -> bool:
        """Whether this order may be published: the trainer says so, or has ended without having given it up."""
        while number not in self._refused:
            got = self._receive()
            # Nothing can be asked for any more: the trainer had ordered the save, and did not give it up.
            if got is None:
                return True
            message, descriptors = got
            if not isinstance(message, Answer):
                # Not refused, not lost: the next order may come while the question about this one is open.
                self._kept.append((message, descriptors))
            elif message.number == number and message.allowed:
                return True
            else:
                self._note(message)
        return False

    def _note(self, answer: Answer) -> None:
        if not answer.allowed:
            self._refused.add(answer.number)

    def _receive(self) -> tuple[Message, list[int]] | None:
        ready = {fd for fd, _ in self._poller.poll()}
        if self.sock.fileno() not in ready:
            # It may have sent an order and died between two looks: that order is carried out.
            ready |= {fd for fd, _ in self._poller.poll(0)}  # what it said just before its end
        if self.sock.fileno() not in ready:
            return None
        got = wire.receive(self.sock)
        if got is None or got[0] is None:
            return None
        return got[0], got[1]


def _process_of(pid: int) -> int | None:
    """Return a descriptor that can be read once the process has ended; None where the kernel has none."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None
