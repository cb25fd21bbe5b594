"""Where is measured: an ext4 with a journal on a loop device, a directory that the caller gives, and memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.loopfs import unmount
from tests.support.mounts import SYSTEM_PATH, mount, own_mounts

_FILL_BYTES = 8 * 2**20
_SHM = Path("/dev/shm")
_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Place:
    """A directory to measure in.

    Attributes:
        words: What it is, for the report.
        tmpfs: A directory in memory; None: there is none, or no room.
        own: Whether no other program writes to its filesystem.
    """

    path: Path
    words: str
    tmpfs: Path | None
    own: bool = False


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
def loop_ext4(folder: Path, nbytes: int, need_tmpfs_bytes: int) -> Iterator[Place]:
    """Make an ext4 of `nbytes` on a loop device over a file in `folder`; root only.

    The file is written once before, and the device passes the page cache of the filesystem below by: so a direct write
    is one to the disk, and the first round allocates no more than the others. The mount is in a table of its own and
    goes with this process, however that ends; the loop device is detached with it.

    Raises:
        subprocess.CalledProcessError, OSError: The machine does not let us.
    """
    own_mounts()
    with tempfile.TemporaryDirectory(prefix="ckstore-bench-", dir=folder) as home, in_memory(need_tmpfs_bytes) as shm:
        image, mountpoint = Path(home, "image"), Path(home, "mnt")
        mountpoint.mkdir()
        _fill(image, nbytes)
        device = Path(_run("losetup", "--direct-io=on", "--find", "--show", str(image)).strip())
        try:
            options = "nodiscard,lazy_itable_init=0,lazy_journal_init=0"
            _run("mkfs.ext4", "-q", "-E", options, str(device))
            mount(device, mountpoint, "ext4")
        finally:
            _run("losetup", "--detach", str(device))  # done by the kernel when it is no longer in use
        try:
            words = f"ext4 with a journal on a loop device (direct I/O), over {_kind_of(folder)}"
            yield Place(mountpoint, words, shm, own=True)
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
