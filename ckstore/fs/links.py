"""Names: hardlinks, renames, symlinks, removal. Tests lower the link limit or make a rename fail here."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from contextlib import suppress

from ckstore.fs import dirfd_stat
from ckstore.fs.dirfd_stat import AnyPath, StorePath, at, give_name_to_owner_of, give_to_owner_of, open_directory

# The owner may always use its own store, whatever the directory above it withholds.
_OWNER = 0o700
# One new look-up cures a handle that went stale by a rename; a second covers a rename in between.
_STALE_TRIES = 3

CANNOT_LINK = (errno.EMLINK, errno.EPERM, errno.EACCES, errno.EXDEV, errno.EOPNOTSUPP)
"""Errors of `link` that require a copy: link limit, file or directory of another user, another filesystem."""
# POSIX lets rename say either of them for a directory that is not empty.
ALREADY_THERE = (errno.EEXIST, errno.ENOTEMPTY)


def link(source: AnyPath, target: AnyPath) -> None:
    """Add the name `target` to the file `source`. A stale handle is retried from the root of the store."""
    # On a shared filesystem this host's cache of a name may be out of date, since another host replaced it.
    for _ in range(_STALE_TRIES - 1):
        try:
            _link(source, target)
        except OSError as error:
            if error.errno == errno.ESTALE:
                continue
            raise
        return
    _link(source, target)


def _link(source: AnyPath, target: AnyPath) -> None:
    with at(source) as (from_fd, old), at(target) as (to_fd, new):
        try:
            # follow_symlinks=False: link(2) of the C library may follow a symlink in the place of the source.
            os.link(old, new, src_dir_fd=from_fd, dst_dir_fd=to_fd, follow_symlinks=False)
        except OSError as error:
            error.filename, error.filename2 = str(source), str(target)
            raise


def try_link(source: AnyPath, target: AnyPath) -> bool:
    """Link like `link`. Return False if that is not possible, as beyond the link limit or between two users' files."""
    try:
        link(source, target)
    except OSError as error:
        if error.errno in CANNOT_LINK:
            return False
        raise
    return True


def replace_name(source: AnyPath, name: AnyPath, temporary: AnyPath) -> bool:
    """Replace whatever has `name` by the inode of `source`, in one step. Return False if it cannot be linked."""
    # `source` stays; `name` is durable after `files.sync_directory` of its parent; `temporary` is an unused name.
    # Link and rename, not unlink and link: at no moment is there no file at the name, so a reader never misses it.
    if not try_link(source, temporary):
        return False
    give_name(temporary, name)
    return True


def give_name(source: AnyPath, name: AnyPath) -> None:
    """Rename `source` over `name`. `source` no longer exists afterwards, also if both were names of one inode."""
    rename(source, name)
    # POSIX: a rename between two names of one inode does nothing, and both stay.
    if dirfd_stat.exists(source):
        unlink(source)


def rename(source: AnyPath, target: AnyPath, *, dir_fd: int | None = None) -> None:
    """Rename a file. It is durable after `files.sync_directory` of both parents, the target's first."""
    with at(source, dir_fd) as (from_fd, old), at(target, dir_fd) as (to_fd, new):
        try:
            os.rename(old, new, src_dir_fd=from_fd, dst_dir_fd=to_fd)
        except OSError as error:
            error.filename, error.filename2 = str(source), str(target)
            raise


def symlink(pointing_to: str, path: AnyPath) -> None:
    """Create the symlink `path` with this target."""
    with at(path) as (fd, name):
        # A symlink cannot be opened to be given away: it is done by its name, and the name is in our hands.
        os.symlink(pointing_to, name, dir_fd=fd)
        if fd is not None:
            give_name_to_owner_of(fd, str(name))


def make_directory(path: AnyPath, *, mode: int | None = None) -> bool:
    """Create one directory. Return False if it exists."""
    # `mode`: its permissions, whatever the umask leaves others; None: those of its parent, so that a store is as
    # private or as shared as its root.
    with at(path) as (fd, name):
        if mode is None:
            above = os.stat(os.path.dirname(name) or ".") if fd is None else os.fstat(fd)
            mode = stat.S_IMODE(above.st_mode) | _OWNER
        try:
            os.mkdir(name, mode & _OWNER, dir_fd=fd)  # no other user gets in before the mode is right
        except FileExistsError:
            return False
        with suppress(FileNotFoundError):  # swept away meanwhile; its next use says so
            _give_owner_and_mode(path, mode, fd)
    return True


def make_missing(paths: Sequence[StorePath]) -> None:
    """Create the missing ones of several directories in the same parent."""
    there = dirfd_stat.found_in(paths[0].parent, [path.name for path in paths])
    for path in paths:
        if path.name not in there:
            make_directory(path)


def _give_owner_and_mode(path: AnyPath, mode: int, parent_fd: int | None) -> None:
    """Set owner and mode of a new directory by its descriptor, so that a symlink in its place is not followed."""
    # By a descriptor: between mkdir and chmod by name another user of the group could put a symlink there.
    made = open_directory(path, flags=os.O_NOFOLLOW)
    try:
        if parent_fd is not None:
            give_to_owner_of(parent_fd, made)
        if stat.S_IMODE(os.fstat(made).st_mode) != mode:
            os.fchmod(made, mode)
    finally:
        os.close(made)


def unlink(path: AnyPath, *, dir_fd: int | None = None) -> None:
    """Remove one name of a file."""
    with at(path, dir_fd) as (fd, name):
        os.unlink(name, dir_fd=fd)


def remove_directory(path: AnyPath) -> None:
    """Remove an empty directory."""
    with at(path) as (fd, name):
        os.rmdir(name, dir_fd=fd)
