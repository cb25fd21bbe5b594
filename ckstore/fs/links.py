"""Create, rename and remove names: hardlinks, symlinks, directories. Tests replace functions of this module."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from contextlib import suppress

from ckstore.fs import dirfd_stat
from ckstore.fs.dirfd_stat import AnyPath, StorePath, at, give_name_to_owner_of, give_to_owner_of, open_directory

# The permissions that the owner of a new directory always gets, even if the parent directory lacks them.
_OWNER = 0o700
# A second try looks up the path again after a rename made a handle stale. A third one is needed if another rename
# happens meanwhile.
_STALE_TRIES = 3

CANNOT_LINK = (errno.EMLINK, errno.EPERM, errno.EACCES, errno.EXDEV, errno.EOPNOTSUPP)
"""Errors of `link` after which the file must be copied: the file has too many links, the file or the directory belongs
to another user, both are on different filesystems, or the filesystem has no hardlinks."""
# Errors of rename if the target is a directory that is not empty. POSIX allows both.
ALREADY_THERE = (errno.EEXIST, errno.ENOTEMPTY)


def link(source: AnyPath, target: AnyPath) -> None:
    """Add the name `target` to the file `source`. If a handle is stale, both places are looked up again."""
    # On a shared filesystem, the cache of this host can be out of date after another host replaced a name.
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
            # Without follow_symlinks=False, the C library may follow a symlink that replaced the source.
            os.link(old, new, src_dir_fd=from_fd, dst_dir_fd=to_fd, follow_symlinks=False)
        except OSError as error:
            error.filename, error.filename2 = str(source), str(target)
            raise


def try_link(source: AnyPath, target: AnyPath) -> bool:
    """Link like `link`. Return False if the file must be copied instead (`CANNOT_LINK`)."""
    try:
        link(source, target)
    except OSError as error:
        if error.errno in CANNOT_LINK:
            return False
        raise
    return True


def replace_name(source: AnyPath, name: AnyPath, temporary: AnyPath) -> bool:
    """Replace the file at `name` by the inode of `source`, atomically. Return False if `source` cannot be linked.

    `source` keeps its name. `temporary` must be an unused name. `name` is durable after `files.sync_directory` of its
    parent.
    """
    # The new link is renamed over the name, so that a file exists at the name at every moment.
    if not try_link(source, temporary):
        return False
    give_name(temporary, name)
    return True


def give_name(source: AnyPath, name: AnyPath) -> None:
    """Rename `source` over `name`. `source` no longer exists afterwards, even if both were names of one inode."""
    rename(source, name)
    # According to POSIX, a rename between two names of one inode does nothing.
    if dirfd_stat.exists(source):
        unlink(source)


def rename(source: AnyPath, target: AnyPath, *, dir_fd: int | None = None) -> None:
    """Rename a file. The rename is durable after `files.sync_directory` of the new and then of the old parent."""
    with at(source, dir_fd) as (from_fd, old), at(target, dir_fd) as (to_fd, new):
        try:
            os.rename(old, new, src_dir_fd=from_fd, dst_dir_fd=to_fd)
        except OSError as error:
            error.filename, error.filename2 = str(source), str(target)
            raise


def symlink(pointing_to: str, path: AnyPath) -> None:
    """Create the symlink `path` with this target."""
    with at(path) as (fd, name):
        # A symlink cannot be opened, so its owner is changed by its name.
        os.symlink(pointing_to, name, dir_fd=fd)
        if fd is not None:
            give_name_to_owner_of(fd, str(name))


def make_directory(path: AnyPath, *, mode: int | None = None) -> bool:
    """Create one directory. Return False if it exists.

    The directory gets the permissions `mode`, regardless of the umask. Without `mode`, the directory gets the
    permissions of its parent, so that a store is as private or as shared as its root.
    """
    with at(path) as (fd, name):
        if mode is None:
            above = os.stat(os.path.dirname(name) or ".") if fd is None else os.fstat(fd)
            mode = stat.S_IMODE(above.st_mode) | _OWNER
        try:
            os.mkdir(name, mode & _OWNER, dir_fd=fd)  # only the owner has access until the mode is set
        except FileExistsError:
            return False
        with suppress(FileNotFoundError):  # another process removed the directory; its next use raises an error
            _give_owner_and_mode(path, mode, fd)
    return True


def make_missing(paths: Sequence[StorePath]) -> None:
    """Create several directories in the same parent, unless they exist."""
    there = dirfd_stat.found_in(paths[0].parent, [path.name for path in paths])
    for path in paths:
        if path.name not in there:
            make_directory(path)


def _give_owner_and_mode(path: AnyPath, mode: int, parent_fd: int | None) -> None:
    """Set owner and mode of a new directory through a descriptor, because another user may replace it by a symlink."""
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
