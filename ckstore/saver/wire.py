"""Exchange messages between trainer and saver through a socket pair.

Each message is one packet, which arrives completely or not at all. A long message is sent as a file in memory. If the
other side has ended, the messages that are already in the socket can still be read before the end of file.
"""

from __future__ import annotations

import array
import contextlib
import os
import select
import socket
from collections.abc import Sequence

from ckstore.fs.memory_file import open_memory
from ckstore.model.saver.messages import Message, decode, encode

# The maximum size of a packet. It is well below the buffer of the socket (208 KiB by default), so that short messages
# fit into it.
_PACKET_BYTES = 32 * 1024
_INLINE = b"i"
_BESIDE = b"b"
_MOST_DESCRIPTORS = 4
# The kernel reports a reset once. The limit prevents an endless loop with a broken socket.
_MOST_RESETS = 3


def pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends. Other processes do not inherit them."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(sock: socket.socket, message: Message | bytes, descriptors: Sequence[int] = (), *, wait: bool = True) -> bool:
    """Send a message, encoded or not. Return False if `wait` is False and the socket is full."""
    data = message if isinstance(message, bytes) else encode(message)
    flags = 0 if wait else socket.MSG_DONTWAIT
    try:
        if len(data) < _PACKET_BYTES:
            _send(sock, _INLINE + data, descriptors, flags)
            return True
        # A message of megabytes (20,000 tensors) would fill the socket, and the trainer would wait for the saver to
        # read it.
        memory = open_memory("ckstore-message")
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(memory, left) :]
            _send(sock, _BESIDE, [memory, *descriptors], flags)
        finally:
            os.close(memory)
    except BlockingIOError:
        return False
    return True


def _send(sock: socket.socket, packet: bytes, descriptors: Sequence[int], flags: int) -> None:
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    sock.sendmsg([packet], ancillary, flags)


def receive(sock: socket.socket, timeout_s: float | None = None) -> tuple[Message | None, list[int]] | None:
    """Return the next message and the descriptors sent with it, which the caller closes.

    Return None if none arrives in time, and ``(None, [])`` if the other side has ended.
    """
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    # `select` does not support descriptors above 1023, and a trainer may have such descriptors.
    if not poller.poll(None if timeout_s is None else max(0, int(timeout_s * 1000))):
        return None
    packet = b""
    descriptors: list[int] = []
    try:
        for _ in range(_MOST_RESETS):
            # If the other side ended without reading everything, the kernel reports one reset before the last messages.
            with contextlib.suppress(ConnectionResetError):
                packet, descriptors, *_ = socket.recv_fds(sock, _PACKET_BYTES + 1, _MOST_DESCRIPTORS)
                break
    except ConnectionError:
        return None, []
    for descriptor in descriptors:
        # Otherwise, a program that the trainer starts would inherit the descriptor and keep the memory of the snapshot
        # allocated.
        os.set_inheritable(descriptor, False)
    if not packet:
        return None, []
    if packet[:1] == _BESIDE:
        memory, *descriptors = descriptors
        try:
            data = _read_all(memory)
        finally:
            os.close(memory)
    else:
        data = packet[1:]
    return decode(data), descriptors


def _read_all(memory: int) -> bytes:
    out = bytearray(os.fstat(memory).st_size)
    at = 0
    while at < len(out):
        got = os.preadv(memory, [memoryview(out)[at:]], at)
        # Without this check, a truncated message would cause an endless loop.
        if not got:
            raise OSError("a message in memory is shorter than it was")
        at += got
    return bytes(out)
