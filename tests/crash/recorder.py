"""A disk in userspace that logs what reaches it: a FUSE file, over which a loop device is set up.

``python -m tests.crash.recorder MOUNTPOINT IMAGE LOG`` shows two files: ``disk``, the image, and ``journal``. Every
write to the disk, every flush of it and every line written to the journal goes to the log, in the order in which the
one thread of this process got them. So the log says what had been acknowledged at each point of it.

The kernel answers a flush when this process does, hence after all writes that are logged before it.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tests.support.fuse import libfuse_3

What = Literal["write", "flush", "mark"]

_CODES: dict[What, bytes] = {"write": b"w", "flush": b"f", "mark": b"m"}
_NAMES = {code: what for what, code in _CODES.items()}
_HEAD = struct.Struct("<cQI")


@dataclass(frozen=True)
class Entry:
    """One line of the log.

    Attributes:
        offset: Of a write, in bytes.
        data: What was written; of a mark, what was added to the journal.
    """

    what: What
    offset: int = 0
    data: bytes = b""


def read_log(path: Path) -> list[Entry]:
    """Return the entries of a log.

    Raises:
        ValueError: It ends within an entry.
    """
    data = path.read_bytes()
    entries, at = [], 0
    while at < len(data):
        if len(data) - at < _HEAD.size:
            raise ValueError(f"{path} ends within an entry, at byte {at} of {len(data)}")
        code, offset, size = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        if len(data) - at < size:
            raise ValueError(f"{path} ends within an entry, at byte {at} of {len(data)}")
        entries.append(Entry(_NAMES[code], offset, data[at : at + size]))
        at += size
    return entries


class Disk:
    """What libfuse calls; one thread."""

    use_ns = True

    def __init__(self, image: Path, log: Path) -> None:
        self._image = os.open(image, os.O_RDWR | os.O_CLOEXEC)
        self._log = log.open("wb")
        self._sizes = {"/disk": os.fstat(self._image).st_size, "/journal": 0}

    def _note(self, what: What, offset: int = 0, data: bytes = b"") -> None:
        self._log.write(_HEAD.pack(_CODES[what], offset, len(data)))
        self._log.write(data)

    def getattr(self, path: str, fh: Any = None) -> dict[str, int]:
        """Return what stat says."""
        if path == "/":
            return {"st_mode": stat.S_IFDIR | 0o700, "st_nlink": 2}
        if path not in self._sizes:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        return {"st_mode": stat.S_IFREG | 0o600, "st_nlink": 1, "st_size": self._sizes[path]}

    def readdir(self, path: str, fh: Any) -> Iterator[str]:
        """Return the names."""
        yield from (".", "..", *(name[1:] for name in self._sizes))

    def open(self, path: str, info: Any) -> int:
        """Open; the kernel keeps no copy, so that each write comes here when it is made."""
        info.direct_io = True
        return 0

    def read(self, path: str, size: int, offset: int, fh: Any) -> bytes:
        """Read from the disk."""
        return os.pread(self._image, size, offset) if path == "/disk" else b""

    def write(self, path: str, data: bytes, offset: int, fh: Any) -> int:
        """Write, and log it."""
        if path == "/disk":
            self._note("write", offset, data)
            return os.pwrite(self._image, data, offset)
        self._note("mark", 0, data)
        self._sizes[path] += len(data)
        return len(data)

    def fsync(self, path: str, datasync: int, fh: Any) -> int:
        """Log the flush of the disk."""
        if path == "/disk":
            self._note("flush")
        return 0

    def destroy(self, path: str) -> None:
        """Complete the log."""
        self._log.close()
        os.close(self._image)


def main() -> None:
    """Serve until it is unmounted."""
    mountpoint, image, log = sys.argv[1:]
    fuse = libfuse_3()
    fuse.FUSE(Disk(Path(image), Path(log)), mountpoint, raw_fi=True, foreground=True, nothreads=True)


if __name__ == "__main__":
    main()
