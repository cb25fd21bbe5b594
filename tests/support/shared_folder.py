"""A folder shown through FUSE as a shared filesystem shows it.

``python -m tests.support.shared_folder FOLDER MOUNTPOINT KIND LACKS CACHE_S LOCKS SWITCHES`` passes every call on to
FOLDER, with hardlinks, their counts, inode numbers and the exchange of two names (``RENAME_EXCHANGE``). What is as on a
shared filesystem:

- its kind in ``/proc/self/mountinfo`` is ``fuse.KIND``;
- a lease knows only this mount, and so does a `flock`, as on sshfs and for directories on NFS: the same folder shown at
  two places is what two hosts see, on one machine. With ``locks=True`` a `flock` on a regular file reaches the other
  mount, as on NFS, and ends when the process that shows it dies;
- a file that is removed while it is open gets a hidden name, and there are no files without names (``O_TMPFILE``).

Not as there: nothing is cached, so each host sees at once what the other did. It can be told to lack hardlinks
(``link``), the exchange of names (``exchange``), fractions of a second in times (``fractions``), or the difference
between ``A`` and ``a``: in all directories (``case``), or in those of one name (``case in refs``), as ext4 with the
attribute ``+F``.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support import nfs_folder
from tests.support.fuse import libfuse_3
from tests.support.mounts import unmount

_ROOT = Path(__file__).resolve().parents[2]
_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 30.0
_AT_FDCWD = -100
_UTIME_NOW = 2**30 - 1
_STAT = ("st_mode", "st_ino", "st_nlink", "st_uid", "st_gid", "st_size", "st_blocks", "st_blksize")
_TIMES = ("st_atime", "st_mtime", "st_ctime")
_ROOM = ("f_bavail", "f_bfree", "f_blocks", "f_bsize", "f_favail", "f_ffree", "f_files", "f_frsize", "f_namemax")
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def shared_folder(
    folder: Path,
    mountpoint: Path,
    kind: str = "sshfs",
    *,
    lacks: str = "",
    cache_s: float = 0.0,
    locks: bool = False,
    switches: Path | None = None,
) -> Iterator[Path]:
    """Show `folder` at `mountpoint`, which is made, as a filesystem of the type ``fuse.KIND``.

    Args:
        folder: Where everything is kept.
        mountpoint: Where it is shown.
        kind: As which it is shown.
        lacks: What it cannot do; see above.
        cache_s: How long the kernel believes the names and attributes that it was told.
        locks: Whether locks on files reach all who show the folder.
        switches: A folder in which files say what fails (`tests.support.faulty_folder`).

    Raises:
        RuntimeError: The process that shows it did not start.
    """
    if nfs_folder.OPTIONS:
        with nfs_folder.nfs_folder(folder, mountpoint, lacks=lacks, locks=locks) as shown:
            yield shown
        return
    mountpoint.mkdir()
    command = [
        sys.executable,
        "-m",
        "tests.support.shared_folder",
        str(folder),
        str(mountpoint),
        kind,
        lacks,
        str(cache_s),
        "locks" if locks else "",
        str(switches or ""),
    ]
    process = subprocess.Popen(command, cwd=_ROOT)
    try:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not mountpoint.is_mount():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{' '.join(command)} did not start: status {process.poll()}")
            time.sleep(0.01)
        try:
            yield mountpoint
        finally:
            unmount(mountpoint)
    finally:  # it may live on: a process that copied the table of mounts meanwhile still has this one
        process.kill()
        process.wait(_STOP_TIMEOUT_S)


class Folder:
    """What libfuse calls; one thread. Paths begin with a slash."""

    use_ns = True

    def __init__(self, root: Path, lacks: str) -> None:
        self._root = str(root)
        self._lacks = lacks

    def _at(self, path: str) -> str:
        found = self._root
        for name in filter(None, path.split("/")):
            folded = self._lacks in ("case", f"case in {os.path.basename(found)}")
            found += f"/{_as_stored(found, name) if folded else name}"
        return found

    def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
        """Return what stat says."""
        status = os.fstat(fh) if fh is not None else os.lstat(self._at(path))
        times_ns = {name: getattr(status, f"{name}_ns") for name in _TIMES}
        if self._lacks == "fractions":
            times_ns = {name: time_ns - time_ns % 10**9 for name, time_ns in times_ns.items()}
        return {**{name: getattr(status, name) for name in _STAT}, **times_ns}

    def readdir(self, path: str, fh: int) -> Iterator[tuple[str, dict[str, int], int]]:
        """Return the names, and the inode numbers that go with them."""
        for name in (".", ".."):
            yield name, {}, 0
        with os.scandir(self._at(path)) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                yield entry.name, {"st_ino": status.st_ino, "st_mode": status.st_mode}, 0

    def statfs(self, path: str) -> dict[str, int]:
        """Return the room."""
        room = os.statvfs(self._at(path))
        return {name: getattr(room, name) for name in _ROOM}

    def rename_with(self, old: str, new: str, flags: int) -> None:
        """Rename, without overwriting or as an exchange where the flags say so."""
        if flags and self._lacks == "exchange":
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        names = os.fsencode(self._at(old)), os.fsencode(self._at(new))
        if _libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], ctypes.c_uint(flags)) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def rename(self, old: str, new: str) -> None:
        """Rename."""
        self.rename_with(old, new, 0)

    def link(self, target: str, source: str) -> None:
        """Make the name `target` for `source`."""
        if self._lacks == "link":
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        os.link(self._at(source), self._at(target), follow_symlinks=False)

    def symlink(self, target: str, source: str) -> None:
        """Make a symlink `target` to `source`."""
        os.symlink(source, self._at(target))

    def readlink(self, path: str) -> str:
        """Return where a symlink points."""
        return os.readlink(self._at(path))

    def mkdir(self, path: str, mode: int) -> None:
        """Make a directory."""
        os.mkdir(self._at(path), mode)

    def rmdir(self, path: str) -> None:
        """Remove a directory."""
        os.rmdir(self._at(path))

    def unlink(self, path: str) -> None:
        """Remove a name."""
        os.unlink(self._at(path))

    def chmod(self, path: str, mode: int) -> None:
        """Set the permissions."""
        os.chmod(self._at(path), mode)

    def chown(self, path: str, uid: int, gid: int) -> None:
        """Set the owner."""
        os.chown(self._at(path), uid, gid, follow_symlinks=False)

    def utimens(self, path: str, times: tuple[int, int]) -> None:
        """Set the times, in nanoseconds."""
        # mfusepy 3.1.1 passes UTIME_NOW on as so many nanoseconds of 1970.
        now_ns = time.time_ns()
        atime_ns, mtime_ns = (now_ns if time_ns == _UTIME_NOW else time_ns for time_ns in times)
        os.utime(self._at(path), ns=(atime_ns, mtime_ns), follow_symlinks=False)

    def truncate(self, path: str, length: int, fh: int | None = None) -> None:
        """Set the size."""
        if fh is not None:
            os.ftruncate(fh, length)
        else:
            os.truncate(self._at(path), length)

    def open(self, path: str, flags: int) -> int:
        """Open."""
        return os.open(self._at(path), flags & ~os.O_DIRECT)

    def create(self, path: str, mode: int, flags: int) -> int:
        """Make a file and open it."""
        return os.open(self._at(path), (flags & ~os.O_DIRECT) | os.O_CREAT, mode)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        """Read."""
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        """Write."""
        return os.pwrite(fh, data, offset)

    def fsync(self, path: str, datasync: int, fh: int) -> None:
        """Make the bytes durable."""
        os.fsync(fh)

    def fsyncdir(self, path: str, datasync: int, fh: int) -> None:
        """Make the names in a directory durable."""
        fd = os.open(self._at(path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def release(self, path: str, fh: int) -> None:
        """Close."""
        os.close(fh)


class Locking:
    """One whose locks on files are those of the folder; a lock is asked for without waiting, as ckstore does."""

    def flock(self, path: str, fh: int, kind: int) -> None:
        """Lock or unlock."""
        fcntl.flock(fh, kind | fcntl.LOCK_NB)


def _as_stored(folder: str, name: str) -> str:
    """Return the name that is there and differs in case at most; `name` itself if there is none."""
    try:
        there = os.listdir(folder)
    except OSError:  # the user of the path gets the error
        return name
    return name if name in there else next((other for other in there if other.casefold() == name.casefold()), name)


def _shown(folder: Path, lacks: str, switches: str, *, locks: bool) -> Folder:
    from tests.support.faulty_folder import FaultyFolder  # which is a folder of this module

    kinds = (Locking, FaultyFolder if switches else Folder) if locks else (FaultyFolder if switches else Folder,)
    made: Folder = type("Shown", kinds, {})(folder, lacks, *([switches] if switches else []))
    return made


def main() -> None:
    """Serve until it is unmounted."""
    folder, mountpoint, kind, lacks, cache_s, locks, switches = sys.argv[1:]
    shown = _shown(Path(folder), lacks, switches, locks=bool(locks))
    fuse = libfuse_3()

    class Mount(fuse.FUSE):  # type: ignore[name-defined,misc]
        """mfusepy drops the flags of `renameat2`, the exchange among them."""

        def rename_fuse_3(self, old: bytes, new: bytes, flags: int) -> Any:
            return self.operations.rename_with(os.fsdecode(old), os.fsdecode(new), flags)

    os.umask(0)
    options = {"fsname": "elsewhere", "subtype": kind, "default_permissions": True, "allow_other": True}
    times = dict.fromkeys(("attr_timeout", "entry_timeout", "negative_timeout"), float(cache_s))
    fresh = {"use_ino": True, **times}
    Mount(shown, mountpoint, foreground=True, nothreads=True, **options, **fresh)


if __name__ == "__main__":
    main()
