"""Names: hardlinks, renames, symlinks, removal. The seam where tests lower the limit of links or make a rename fail."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from ckstore.errors import UnsafePlace

if TYPE_CHECKING:
    from pathlib import Path

_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
_RENAME_EXCHANGE = 2
_OWNER = 0o700

CANNOT_LINK = (errno.EMLINK, errno.EPERM, errno.EXDEV, errno.EOPNOTSUPP)
"""Errors of `link` that mean: keep an own copy (limit of links, protected or foreign file, another filesystem)."""
ALREADY_THERE = (errno.EEXIST, errno.ENOTEMPTY)


def link(source: str | Path, target: str | Path) -> None:
    """Give the file `source` the further name `target`.

    Raises:
        FileExistsError: `target` exists.
        FileNotFoundError: `source` or the parent of `target` does not.
        OSError: With an errno of `CANNOT_LINK`: this pair can have no link.
    """
    os.link(source, target, follow_symlinks=False)


def rename(source: str | Path, target: str | Path, *, dir_fd: int | None = None) -> None:
    """Rename; durable after `files.sync_directory` of both parents, the target's first."""
    os.rename(source, target, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)


def rename_new(source: Path, target: Path) -> None:
    """Rename, but never over something else (``renameat2`` with ``RENAME_NOREPLACE``); durable as after `rename`.

    Raises:
        FileExistsError: `target` exists; nothing was changed.
        UnsafePlace: The C library or the filesystem cannot.
        OSError: As `rename`.
    """
    _renameat2(source, target, _RENAME_NOREPLACE, "rename without overwriting", "making a store")


def exchange(one: Path, other: Path) -> None:
    """Swap two names in one step (``renameat2`` with ``RENAME_EXCHANGE``).

    Raises:
        UnsafePlace: The C library or the filesystem cannot.
        OSError: As `rename`.
    """
    _renameat2(one, other, _RENAME_EXCHANGE, "exchange two names", "replacing a checkpoint")


def _renameat2(one: Path, other: Path, flag: int, what: str, who: str) -> None:
    import ctypes  # readers do without it, and it takes as long to import as all else here

    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError as error:
        msg = f"the C library has no renameat2, which {who} needs"
        raise UnsafePlace(msg, hint="glibc 2.28 or later has it") from error
    if renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), flag) == 0:
        return
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS):
        msg = f"the filesystem of {other} cannot {what}, which {who} needs"
        raise UnsafePlace(msg, hint="ext4, XFS and btrfs can")
    raise OSError(code, os.strerror(code), str(one), None, str(other))


def symlink(pointing_to: str, path: Path) -> None:
    """Create the symlink `path` with this content."""
    os.symlink(pointing_to, path)


def make_directory(path: Path, *, mode: int | None = None) -> bool:
    """Create one directory; return False if there is one.

    Args:
        path: Its parent exists.
        mode: Its permissions, whatever the umask is; None: those of its parent, so that a store is as private or as
            shared as its root.
    """
    if mode is None:
        mode = stat.S_IMODE(os.stat(path.parent).st_mode) | _OWNER
    try:
        os.mkdir(path, mode & _OWNER)  # nobody else gets in before the mode is as it should be
    except FileExistsError:
        return False
    try:
        if stat.S_IMODE(os.stat(path, follow_symlinks=False).st_mode) != mode:
            os.chmod(path, mode)
    except FileNotFoundError:  # swept away meanwhile; whoever uses it next is told
        return True
    return True


def unlink(path: str | Path, *, dir_fd: int | None = None) -> None:
    """Remove one name of a file."""
    os.unlink(path, dir_fd=dir_fd)


def remove_directory(path: str | Path) -> None:
    """Remove an empty directory."""
    os.rmdir(path)
