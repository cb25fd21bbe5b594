"""A proxy between a client and a service of object storage that fails in the ways that networks and services do."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

Fault = Literal[
    "",
    "500",
    "503",
    "409",
    "412",
    "403",
    "drop",
    "lose",
    "cut",
    "truncate",
    "stall",
    "delay",
    "repeat",
    "flip",
    "flip-answer",
]
"""``drop``: not passed on. ``lose``: done, and not answered. ``cut``: the connection ends within the request's body.
``truncate``: it ends within the answer. ``stall``: half the answer, then silence. ``repeat``: the service gets it
twice, the second time after a while. ``flip``, ``flip-answer``: one bit of the body is another."""

FAULTS: tuple[Fault, ...] = (
    "500", "503", "409", "412", "drop", "lose", "cut", "truncate", "delay", "repeat", "flip", "flip-answer",
)  # fmt: skip

_STALL_S = 3600.0
_DELAY_S = 0.2
_MOMENT_S = 0.5
"""Until who made a request waits for its answer."""


@dataclass
class Proxy:
    """What it does with the next requests.

    Attributes:
        fault: Given the request's line, says what goes wrong with it.
        seen: The lines of all requests.
        lengths: Of the bodies of all requests.
    """

    port: int
    upstream: int
    fault: Callable[[str], Fault] = lambda _line: ""
    seen: list[str] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)
    _clients: set[socket.socket] = field(default_factory=set)
    _down_until_s: float = 0.0

    def once(self, *faults: Fault, of: str = "") -> None:
        """Let the next requests whose line contains `of` go wrong in these ways, one after another."""
        left, mutex = list(faults), threading.Lock()

        def fault(line: str) -> Fault:
            with mutex:
                return left.pop(0) if left and of in line else ""

        self.fault = fault

    def always(self, fault: Fault, of: str = "") -> None:
        """Let each request whose line contains `of` go wrong in this way."""
        self.fault = lambda line: fault if of in line else ""

    def interrupt(self, fault: Fault, of: str = "") -> list[float]:
        """As `always`, and have Ctrl-C come a moment after the first such request; return where its time is noted."""
        asked: list[float] = []
        first = iter([True])

        def ask() -> None:
            asked.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        def found(line: str) -> Fault:
            if of not in line:
                return ""
            if next(first, False):
                threading.Timer(_MOMENT_S, ask).start()
            return fault

        self.fault = found
        return asked

    def die(self, seconds: float) -> None:
        """Break every connection off, and refuse new ones for so long, as a service that is killed and starts again."""
        self._down_until_s = time.monotonic() + seconds
        for client in [*self._clients]:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def serve(self, client: socket.socket) -> None:
        """Pass on the requests of one connection."""
        if time.monotonic() < self._down_until_s:
            client.close()
            return
        self._clients.add(client)
        try:
            self._serve(client)
        finally:
            self._clients.discard(client)

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError, ValueError, _Ended):
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            buffer = b""
            while not self.closing.is_set():
                head, buffer = _head(client, buffer)
                line = head.split(b"\r\n", 1)[0].decode("latin-1")
                self.seen.append(line)
                if not self._pass_on(client, head, line, buffer):
                    return
                buffer = b""

    def _pass_on(self, client: socket.socket, head: bytes, line: str, buffer: bytes) -> bool:
        """Answer one request; False: the connection has ended."""
        fault = self.fault(line)
        length = _length(head)
        if b"100-continue" in head.lower():
            client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        if fault == "cut":
            _read(client, min(length, 65536), buffer)
            return False
        body = _read(client, length, buffer)
        self.lengths.append(len(body))
        if fault.isdigit():
            text = b"<Error><Code>SlowDown</Code><Message>m</Message></Error>"
            client.sendall(b"HTTP/1.1 %s X\r\nContent-Length: %d\r\n\r\n%s" % (fault.encode(), len(text), text))
            return True
        if fault == "drop":
            return False
        if fault == "flip" and body:
            body = _flipped(body, len(body) // 2)
        if fault == "delay":
            time.sleep(_DELAY_S)
        answer = self._ask(head, body)
        if fault == "repeat":
            timer = threading.Timer(_DELAY_S, self._ask_late, (head, body))
            timer.daemon = True
            timer.start()
        if fault == "lose":
            return False
        if fault in ("truncate", "stall"):
            client.sendall(answer[: len(answer) // 2])
            if fault == "stall":
                self.closing.wait(_STALL_S)
            return False
        at = len(answer) - 10
        has_body = at > answer.index(b"\r\n\r\n") + 4
        client.sendall(_flipped(answer, at) if fault == "flip-answer" and has_body else answer)
        return False  # the service closed its side, as it was asked to

    def _ask_late(self, head: bytes, body: bytes) -> None:
        with suppress(OSError):  # the service may have ended
            self._ask(head, body)

    def _ask(self, head: bytes, body: bytes) -> bytes:
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith((b"connection:", b"expect:"))]
        lines.insert(1, b"Connection: close")
        with socket.create_connection(("127.0.0.1", self.upstream), timeout=60) as server:
            server.sendall(b"\r\n".join(lines) + body)
            parts = []
            while part := server.recv(1 << 16):
                parts.append(part)
        return b"".join(parts)


class _Ended(Exception):
    """The client closed the connection."""


def _head(client: socket.socket, buffer: bytes) -> tuple[bytes, bytes]:
    while b"\r\n\r\n" not in buffer:
        part = client.recv(1 << 16)
        if not part:
            raise _Ended
        buffer += part
    at = buffer.index(b"\r\n\r\n") + 4
    return buffer[:at], buffer[at:]


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return int(value)
    return 0


def _read(client: socket.socket, length: int, buffer: bytes) -> bytes:
    parts, left = [buffer], length - len(buffer)
    while left > 0:
        part = client.recv(min(left, 1 << 20))
        if not part:
            raise _Ended
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@contextmanager
def faulty_proxy(upstream: int) -> Iterator[Proxy]:
    """Run a proxy before a service on loopback while the block runs."""
    listener = socket.create_server(("127.0.0.1", 0))
    proxy = Proxy(listener.getsockname()[1], upstream)

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=proxy.serve, args=(client,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.closing.set()
        # Closing alone leaves a thread in accept().
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)
