"""Where is measured: an ext4 and an XFS on loop devices, one whose device is memory, a given directory, and memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from tests.support.loopfs import unmount
from tests.support.mounts import SYSTEM_PATH, mount, own_mounts

_FILL_BYTES = 8 * 2**20
_SHM = Path("/dev/shm")
_TIMEOUT_S = 300.0
_XFS_BYTES = 2**30
_HUGE_SLACK_BYTES = 64 * 2**20
_MKFS = {
    "ext4": ("mkfs.ext4", "-q", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"),
    "xfs": ("mkfs.xfs", "-q", "-K"),
}


@dataclass(frozen=True)
class Place:
    """A directory to measure in.

    Attributes:
        words: What it is, for the report.
        tmpfs: A directory in memory; None: there is none, or no room.
        own: Whether no other program writes to its filesystem.
        xfs: A directory on an XFS, which no other program writes to, either; None: there is none.
        fast: The same on an ext4 on the fastest block device that can be made here; None: there is none.
    """

    path: Path
    words: str
    tmpfs: Path | None
    own: bool = False
    xfs: Path | None = None
    fast: Path | None = None


@contextmanager
def given(folder: Path, need_tmpfs_bytes: int) -> Iterator[Place]:
    """Measure in a new directory below `folder`, which is removed again."""
    with tempfile.TemporaryDirectory(prefix="ckstore-bench-", dir=folder) as path, in_memory(need_tmpfs_bytes) as shm:
        yield Place(Path(path), f"{_kind_of(Path(path))}, given by BENCH_DIR", shm)


@contextmanager
def in_memory(need_bytes: int) -> Iterator[Path | None]:
    """Give a new directory on a tmpfs with room; None: there is none."""
    if not os.access(_SHM, os.W_OK) or shutil.disk_usage(_SHM).free < need_bytes:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="ckstore-bench-", dir=_SHM) as path:
        yield Path(path)


@contextmanager
def on_loops(
    folder: Path, nbytes: int, need_tmpfs_bytes: int, *, xfs: bool = False, fast_bytes: int = 0
) -> Iterator[Place]:
    """Make an ext4 of `nbytes`, and if wanted a small XFS, on loop devices over files in `folder`; root only.

    With `fast_bytes` there is another ext4 of so many, on a loop device over a file in memory.

    The files are written once before, and the devices pass the page cache of the filesystem below by: so a direct write
    is one to the disk, and the first round allocates no more than the others. The mounts are in a table of their own,
    and go with this process, however that ends; the loop devices are detached with them.

    Raises:
        subprocess.CalledProcessError, OSError: The machine does not let us.
    """
    own_mounts()
    with (
        tempfile.TemporaryDirectory(prefix="ckstore-bench-", dir=folder) as home,
        in_memory(need_tmpfs_bytes) as shm,
        _on_loop(Path(home), "ext4", nbytes) as ext4,
        _on_loop(Path(home), "xfs", _XFS_BYTES) if xfs else nullcontext() as other,
        _in_huge_pages(Path(home), fast_bytes) if fast_bytes else nullcontext() as memory,
        _on_loop(memory, "ext4", fast_bytes) if memory else nullcontext() as fast,
    ):
        words = f"ext4 with a journal on a loop device (direct I/O), over {_kind_of(folder)}"
        yield Place(ext4, words, shm, own=True, xfs=other, fast=fast)


@contextmanager
def _in_huge_pages(home: Path, nbytes: int) -> Iterator[Path]:
    """Give a directory of a tmpfs with room for a file of so many bytes; in pages of 2 MiB copies are faster."""
    mountpoint = home / "memory"
    mountpoint.mkdir()
    mount(Path("none"), mountpoint, "tmpfs", f"huge=always,size={nbytes + _HUGE_SLACK_BYTES}")
    try:
        yield mountpoint
    finally:
        unmount(_program("umount"), mountpoint)


@contextmanager
def _on_loop(home: Path, kind: str, nbytes: int) -> Iterator[Path]:
    image, mountpoint = home / f"{kind}.image", home / kind
    mountpoint.mkdir()
    _fill(image, nbytes)
    device = Path(_run("losetup", "--direct-io=on", "--find", "--show", str(image)).strip())
    try:
        _run(*_MKFS[kind], str(device))
        mount(device, mountpoint, kind)
    finally:
        _run("losetup", "--detach", str(device))  # done by the kernel when it is no longer in use
    try:
        yield mountpoint
    finally:
        unmount(_program("umount"), mountpoint)


def _fill(image: Path, nbytes: int) -> None:
    block = os.urandom(_FILL_BYTES)
    with image.open("wb", buffering=0) as file:
        for _ in range(-(-nbytes // len(block))):
            file.write(block)
        os.fsync(file.fileno())


def _run(program: str, *arguments: str) -> str:
    command = [str(_program(program)), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S).stdout


def _program(name: str) -> Path:
    found = shutil.which(name, path=SYSTEM_PATH)
    if found is None:
        raise FileNotFoundError(f"there is no program {name}")
    return Path(found)


def _kind_of(path: Path) -> str:
    """Return the kind of the filesystem that a path is on."""
    best, kind = "", "an unknown filesystem"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, right = line.split(" - ")
        mountpoint = left.split()[4]
        inside = mountpoint == "/" or f"{path.resolve()}/".startswith(f"{mountpoint}/")
        if inside and len(mountpoint) >= len(best):
            best, kind = mountpoint, right.split()[0]
    return kind
