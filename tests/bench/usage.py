"""What an act costs besides time: CPU, memory, bytes, files; and the state of the page cache before it."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import stat
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

_libc = ctypes.CDLL(None, use_errno=True)
_LOOKED_AT_FROM_BYTES = 2**20
_BLOCK_BYTES = 512
_SAMPLE_S = 0.004
_fdatasync = os.fdatasync  # a scenario without fsync replaces it


@dataclass(frozen=True)
class Usage:
    """Counters of this process and of the programs that it started and waited for."""

    cpu_s: float
    written_bytes: int
    read_bytes: int

    def __sub__(self, earlier: Usage) -> Usage:
        return Usage(
            self.cpu_s - earlier.cpu_s,
            self.written_bytes - earlier.written_bytes,
            self.read_bytes - earlier.read_bytes,
        )


def usage() -> Usage:
    """Return the counters of this moment. Bytes are those that went to or came from a device, or will."""
    parts = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    io = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return Usage(
        cpu_s=sum(part.ru_utime + part.ru_stime for part in parts),
        written_bytes=int(io["write_bytes"]) + parts[1].ru_oublock * _BLOCK_BYTES,
        read_bytes=int(io["read_bytes"]) + parts[1].ru_inblock * _BLOCK_BYTES,
    )


class PeakMemory:
    """The highest resident memory of this process during a `with` block, above that at its beginning.

    The kernel keeps the mark, so nothing is sampled; pages of mapped files count as well.
    """

    extra_bytes = 0

    def __enter__(self) -> Self:
        Path("/proc/self/clear_refs").write_text("5")
        self._before_bytes = _status_bytes("VmRSS")
        return self

    def __exit__(self, *_: object) -> None:
        self.extra_bytes = max(0, _status_bytes("VmHWM") - self._before_bytes)


class PrivateMemory:
    """The same without pages of mapped files, sampled by a thread: not for a pass that is timed."""

    extra_bytes = 0

    def __enter__(self) -> Self:
        self._before_bytes = _private_bytes()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="bench-memory")
        self._thread.start()
        return self

    def _sample(self) -> None:
        while not self._stop.wait(_SAMPLE_S):
            self.extra_bytes = max(self.extra_bytes, _private_bytes() - self._before_bytes)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.extra_bytes = max(self.extra_bytes, _private_bytes() - self._before_bytes)


def _status_bytes(*fields: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.split(":")[0] in fields)


def _private_bytes() -> int:
    return _status_bytes("RssAnon", "RssShmem")


@dataclass(frozen=True)
class Footprint:
    """What lies below a directory, each inode once."""

    files: int
    allocated_bytes: int


def footprint(folder: Path) -> Footprint:
    """Count regular files and the blocks that they have."""
    seen: dict[int, int] = {}
    for path in regular_files(folder):
        status = os.stat(path, follow_symlinks=False)
        seen[status.st_ino] = status.st_blocks * _BLOCK_BYTES
    return Footprint(len(seen), sum(seen.values()))


def regular_files(folder: Path) -> Iterator[Path]:
    """Return the regular files below a directory."""
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            try:
                if stat.S_ISREG(os.stat(path, follow_symlinks=False).st_mode):
                    yield path
            except FileNotFoundError:  # a store may clean up behind itself
                continue


# ---------------------------------------------------------------------------------------- page cache


def sync_filesystem(folder: Path) -> None:
    """Have everything of this filesystem written, so that no act pays for what was before it."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _libc.syncfs(fd)
    finally:
        os.close(fd)


def make_cold(folder: Path, *, everything: bool) -> None:
    """Drop the pages of all files below a directory; as root `everything` drops inodes and names as well."""
    if everything:
        sync_filesystem(folder)
        Path("/proc/sys/vm/drop_caches").write_text("3")
        return
    for path in regular_files(folder):
        fd = os.open(path, os.O_RDONLY)
        try:
            _fdatasync(fd)  # a dirty page cannot be dropped
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def make_warm(folder: Path) -> None:
    """Read all files below a directory once."""
    buffer = bytearray(4 * 2**20)
    for path in regular_files(folder):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def use_memory(nbytes: int) -> None:
    """Have another process fill so much memory, and end: then the kernel has that much at hand.

    A virtual machine may return to its host what has been free for seconds, and then has to ask for it again.
    """
    subprocess.run([sys.executable, "-c", f"b'x' * {nbytes}"], check=True)


def cached_share(paths: Iterable[Path]) -> float | None:
    """Return the share of the pages of some files that is in the page cache; small files do not count.

    None: there are none that count.
    """
    there, pages = _cached_pages(paths)
    return there / pages if pages else None


def cached_bytes(paths: Iterable[Path]) -> int:
    """Return what the page cache holds of some files; small files do not count."""
    return _cached_pages(paths)[0] * mmap.PAGESIZE


def _cached_pages(paths: Iterable[Path]) -> tuple[int, int]:
    pages = there = 0
    for path in paths:
        nbytes = path.stat().st_size
        if nbytes < _LOOKED_AT_FROM_BYTES:
            continue
        vector = np.zeros(-(-nbytes // mmap.PAGESIZE), np.uint8)
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            view = np.frombuffer(mapped, np.uint8)
            failed = _libc.mincore(
                ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(nbytes), ctypes.c_void_p(vector.ctypes.data)
            )
            del view
        if failed:
            raise OSError(ctypes.get_errno(), f"mincore of {path}")
        pages += len(vector)
        there += int((vector & 1).sum())
    return there, pages
