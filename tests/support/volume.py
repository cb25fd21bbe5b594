"""A small filesystem in an image, taken down, set back and mounted again many times: milliseconds each."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.support.mounts import COMMAND_TIMEOUT_S, SYSTEM_PATH, loop_device, mount, unmount

Kind = Literal["ext4", "xfs"]

SIZE_MIB: dict[Kind, int] = {"ext4": 96, "xfs": 320}
"""mkfs.xfs refuses less than 300 MiB."""

_MKFS: dict[Kind, tuple[str, ...]] = {
    # Nothing is left for a kernel thread to write later, so that the same act makes about the same writes.
    "ext4": ("mkfs.ext4", "-q", "-F", "-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"),
    "xfs": ("mkfs.xfs", "-q", "-f", "-K"),
}
_BLOCK = 4096
_BLKFLSBUF = 0x1261


@dataclass(frozen=True)
class Snapshot:
    """The content of an image: its blocks that are not all zero, as (offset, bytes)."""

    extents: tuple[tuple[int, bytes], ...]


def snapshot(image: Path) -> Snapshot:
    """Return the content of an image."""
    extents: list[tuple[int, bytes]] = []
    fd = os.open(image, os.O_RDONLY | os.O_CLOEXEC)
    try:
        end, at = os.fstat(fd).st_size, 0
        while at < end:
            try:
                at = os.lseek(fd, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # only a hole is left
                    break
                raise
            stop = os.lseek(fd, at, os.SEEK_HOLE)
            extents += _nonzero(os.pread(fd, stop - at, at), at)
            at = stop
    finally:
        os.close(fd)
    return Snapshot(tuple(extents))


def _nonzero(data: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    zeros, start = bytes(_BLOCK), 0
    while start < len(data):
        if data[start : start + _BLOCK] == zeros[: len(data) - start]:
            start += _BLOCK
            continue
        stop = start
        while stop < len(data) and data[stop : stop + _BLOCK] != zeros[: len(data) - stop]:
            stop += _BLOCK
        yield at + start, data[start:stop]
        start = stop


def write_image(image: Path, size_bytes: int, extents: Iterable[tuple[int, bytes]]) -> None:
    """Make the file of exactly this content; where nothing is written there are zeros."""
    fd = os.open(image, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, 0)
        os.ftruncate(fd, size_bytes)
        for offset, data in extents:
            written = os.pwrite(fd, data, offset)
            if written != len(data):
                raise OSError(errno.ENOSPC, f"{image} took {written} of {len(data)} bytes")
    finally:
        os.close(fd)


class Volume:
    """An empty filesystem at first; its files are in `folder`, which is made."""

    def __init__(self, kind: Kind, folder: Path) -> None:
        self.kind: Kind = kind
        self.size_bytes = SIZE_MIB[kind] << 20
        self.folder = folder
        self.image = self.folder / f"{kind}.img"
        self.mountpoint = self.folder / "mnt"
        self.mountpoint.mkdir(parents=True)
        write_image(self.image, self.size_bytes, ())
        subprocess.run(
            [*_MKFS[kind], str(self.image)],
            check=True,
            capture_output=True,
            timeout=COMMAND_TIMEOUT_S,
            env={**os.environ, "PATH": SYSTEM_PATH},
        )
        self.empty = snapshot(self.image)
        self._loop = loop_device(self.image)
        self.device = self._loop.__enter__()

    def restore(self, content: Snapshot, writes: Iterable[tuple[int, bytes]] = ()) -> None:
        """Set the image, which is not mounted, to a content, with some writes over it.

        Raises:
            OSError: For long, a process with another table of mounts had the filesystem mounted.
        """

        def extents() -> Iterator[tuple[int, bytes]]:
            yield from content.extents
            yield from writes

        fd = self._open_unmounted()
        try:
            write_image(self.image, self.size_bytes, extents())
            # A program that looked at the device meanwhile left pages of the old content.
            fcntl.ioctl(fd, _BLKFLSBUF, 0)
        finally:
            os.close(fd)

    def _open_unmounted(self) -> int:
        """Open the device when no process has it mounted.

        A new table of mounts (``unshare --mount`` in another test) has a copy of each mount. As long as it exists, the
        filesystem lives on, and the next mount of the device shows its old content.
        """
        deadline_s = time.monotonic() + COMMAND_TIMEOUT_S
        while True:
            try:
                return os.open(self.device, os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC)
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() > deadline_s:
                    raise
            time.sleep(0.005)

    @contextmanager
    def mounted(self) -> Iterator[Path]:
        """Mount it for the time of a `with` block."""
        mount(self.device, self.mountpoint, self.kind)
        try:
            yield self.mountpoint
        finally:
            unmount(self.mountpoint)

    def close(self) -> None:
        """Detach the loop device."""
        self._loop.__exit__(None, None, None)
