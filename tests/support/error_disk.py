"""A disk that fails: a file in a FUSE filesystem of our own, which serves as the backing file of a loop device.

The server is a process of its own, so that a test never waits for itself, and speaks the kernel's protocol directly
(linux/fuse.h), with one file. What is written stays in memory, above an image that never changes, so that setting the
disk back is forgetting. A write that fails is not there; what a flush that fails should have kept is lost when the
disk has died for good, as in a drive that loses its cache.

Each mount opens the file by a new name, ``disk-1``, ``disk-2``, and so on, and the older names give errors: where
another process has copied the table of mounts, as containers do, a filesystem that was unmounted lives on and must
not write any more.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import select
import socket
import stat
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAME = "disk-"
_BLOCK = 4096
_LARGE_BYTES = 128 * 1024
_MAX_WRITE = 2**20
_ROOT = 1
_DIRECT_IO = 1
_BIG_WRITES, _MAX_PAGES = 1 << 5, 1 << 22
_IN = struct.Struct("<IIQQIIIHH")
_OUT = struct.Struct("<IiQ")
_LOOKUP, _FORGET, _GETATTR, _SETATTR, _OPEN, _READ, _WRITE, _STATFS, _RELEASE = 1, 2, 3, 4, 14, 15, 16, 17, 18
_FSYNC, _FLUSH, _INIT, _OPENDIR, _RELEASEDIR, _INTERRUPT, _DESTROY, _BATCH_FORGET = 20, 25, 26, 27, 29, 36, 38, 42
_SILENT = {_FORGET, _BATCH_FORGET, _INTERRUPT}


@dataclass
class Fault:
    """What fails: the `at`-th write or flush from now, and with `sticky` everything after it."""

    kind: str = ""
    at: int = 0
    sticky: bool = False


@dataclass
class Disk:
    """The content of the disk, and its faults.

    Attributes:
        stable: Blocks that a flush has kept, by number.
        volatile: Blocks that were written since.
        counts: Writes and flushes since the fault was armed.
        hits: How many of them failed, or were stored wrong.
        mounts: The number in the name of the file that counts.
    """

    image: int
    nbytes: int
    stable: dict[int, bytes] = field(default_factory=dict)
    volatile: dict[int, bytes] = field(default_factory=dict)
    fault: Fault = field(default_factory=Fault)
    counts: dict[str, int] = field(default_factory=lambda: {"write": 0, "flush": 0})
    hits: int = 0
    mounts: int = 0

    def arm(self, kind: str = "", at: int = 0, *, sticky: bool = False) -> None:
        """Count again from 0, and fail as asked."""
        self.fault = Fault(kind, at, sticky)
        self.counts = {"write": 0, "flush": 0}
        self.hits = 0

    def heal(self) -> None:
        """Fail no more. What a disk that had died did not keep is gone."""
        if self.fault.sticky and self.hits:
            self.volatile.clear()
        self.fault = Fault()

    def reset(self) -> None:
        """Be the image again."""
        self.stable.clear()
        self.volatile.clear()
        self.arm()

    def read(self, offset: int, length: int) -> bytes:
        """Return what was written last."""
        length = max(0, min(length, self.nbytes - offset))
        first, last = offset // _BLOCK, -(-(offset + length) // _BLOCK)
        data = bytearray(os.pread(self.image, (last - first) * _BLOCK, first * _BLOCK))
        data.extend(bytes((last - first) * _BLOCK - len(data)))
        for number in range(first, last):
            block = self.volatile.get(number) or self.stable.get(number)
            if block is not None:
                data[(number - first) * _BLOCK : (number - first + 1) * _BLOCK] = block
        start = offset - first * _BLOCK
        return bytes(data[start : start + length])

    def write(self, offset: int, data: bytes) -> bool:
        """Keep bytes; False if this write fails."""
        if self.fault.kind == "corrupt":
            data = self._corrupted(data)
        elif self._is_hit("write"):
            return False
        first, last = offset // _BLOCK, -(-(offset + len(data)) // _BLOCK)
        whole = bytearray(self.read(first * _BLOCK, (last - first) * _BLOCK))
        start = offset - first * _BLOCK
        whole[start : start + len(data)] = data
        for number in range(first, last):
            self.volatile[number] = bytes(whole[(number - first) * _BLOCK : (number - first + 1) * _BLOCK])
        return True

    def flush(self) -> bool:
        """Keep what was written for good; False if this flush fails."""
        if self._is_hit("flush"):
            return False
        self.stable.update(self.volatile)
        self.volatile.clear()
        return True

    def _is_hit(self, kind: str) -> bool:
        self.counts[kind] += 1
        fault = self.fault
        hit: bool = (fault.sticky and self.hits > 0) or (kind == fault.kind and self.counts[kind] == fault.at)
        self.hits += hit
        return hit

    def _corrupted(self, data: bytes) -> bytes:
        """Return other bytes for the `at`-th large write: the bytes of a blob, not what the filesystem notes of it."""
        if len(data) < _LARGE_BYTES:
            return data
        self.counts["write"] += 1
        if self.counts["write"] != self.fault.at:
            return data
        self.hits += 1
        return data[:-1] + bytes([data[-1] ^ 1])


class Server:
    """Answers the kernel until the filesystem is unmounted."""

    def __init__(self, disk: Disk, fuse: int) -> None:
        self.disk = disk
        self.fuse = fuse

    def answer_one(self) -> bool:
        """Take and answer one request; False when the filesystem is gone."""
        try:
            request = os.read(self.fuse, _MAX_WRITE + 4096)
        except OSError as error:
            if error.errno == errno.ENODEV:
                return False
            if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                return True
            raise
        _, opcode, unique, node, *_ = _IN.unpack_from(request)
        if opcode in _SILENT:
            return True
        answer = self._answer(opcode, node, request[_IN.size :])
        code, data = (answer, b"") if isinstance(answer, int) else (0, answer)
        with suppress(FileNotFoundError):  # the caller was interrupted
            os.write(self.fuse, _OUT.pack(_OUT.size + len(data), -code, unique) + data)
        ended: bool = opcode == _DESTROY
        return not ended

    def _answer(self, opcode: int, node: int, body: bytes) -> int | bytes:
        """Return the number of an error, or what is answered."""
        if opcode == _INIT:
            _, minor, readahead, _ = struct.unpack_from("<IIII", body)
            flags = _BIG_WRITES | _MAX_PAGES
            return struct.pack(
                "<IIIIHHIIHHI28x", 7, min(minor, 31), readahead, flags, 16, 12, _MAX_WRITE, 1, _MAX_WRITE // 4096, 0, 0
            )
        if opcode == _LOOKUP:
            number = body.rstrip(b"\0").decode().removeprefix(NAME)
            if not number.isdigit() or int(number) != self.disk.mounts:
                return errno.ENOENT
            node = _ROOT + int(number)
            return struct.pack("<QQQQII", node, 0, 3600, 3600, 0, 0) + self._attributes(node)
        if opcode in (_READ, _WRITE, _FSYNC) and node != _ROOT + self.disk.mounts:
            return errno.EIO
        if opcode in (_GETATTR, _SETATTR):
            return struct.pack("<QII", 3600, 0, 0) + self._attributes(node)
        if opcode in (_OPEN, _OPENDIR):
            return struct.pack("<QII", 0, _DIRECT_IO if node != _ROOT else 0, 0)
        if opcode == _READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            return self.disk.read(offset, size)
        if opcode == _WRITE:
            _, offset, size = struct.unpack_from("<QQI", body)
            done = self.disk.write(offset, body[40 : 40 + size])
            return struct.pack("<II", size, 0) if done else errno.EIO
        if opcode == _FSYNC:
            return b"" if self.disk.flush() else errno.EIO
        if opcode == _STATFS:
            return struct.pack("<QQQQQIII28x", 2**20, 2**20, 2**20, 10, 10, 4096, 255, 4096)
        return b"" if opcode in (_FLUSH, _RELEASE, _RELEASEDIR, _DESTROY) else errno.ENOSYS

    def _attributes(self, node: int) -> bytes:
        mode = stat.S_IFDIR | 0o700 if node == _ROOT else stat.S_IFREG | 0o600
        size = 0 if node == _ROOT else self.disk.nbytes
        return struct.pack("<QQQQQQIIIIIIIIII", node, size, size // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def _mount(where: Path) -> int:
    fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(b"ckstore-test", os.fsencode(where), b"fuse", 0, options) != 0:
        raise OSError(ctypes.get_errno(), f"mount of FUSE at {where}: {os.strerror(ctypes.get_errno())}")
    return fuse


def _obey(disk: Disk, command: dict[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {"counts": disk.counts, "hits": disk.hits}
    if command["do"] == "arm":
        disk.arm(command["kind"], command["at"], sticky=command["sticky"])
    elif command["do"] == "heal":
        disk.heal()
    elif command["do"] == "reset":
        disk.reset()
    elif command["do"] == "open":
        disk.mounts += 1
        told["mounts"] = disk.mounts
    return told


def serve(image: Path, where: Path, control: socket.socket) -> None:
    """Serve the image at `where` until it is unmounted."""
    fd = os.open(image, os.O_RDONLY | os.O_CLOEXEC)
    server = Server(Disk(fd, os.fstat(fd).st_size), _mount(where))
    control.sendall(b"{}\n")
    while True:
        ready, _, _ = select.select([server.fuse, control.fileno()], [], [])
        if server.fuse in ready and not server.answer_one():
            return
        if control.fileno() in ready:
            line = control.recv(4096)
            if not line:
                return
            control.sendall(json.dumps(_obey(server.disk, json.loads(line))).encode() + b"\n")


if __name__ == "__main__":
    serve(Path(sys.argv[1]), Path(sys.argv[2]), socket.socket(fileno=int(sys.argv[3])))
