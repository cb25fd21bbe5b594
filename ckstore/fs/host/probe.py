"""Test whether a filesystem supports the operations of a store. `fs/host/mounts` determines its type."""

from __future__ import annotations

import errno
import os
import stat
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from ckstore.errors import UnsafePlace
from ckstore.fs import dirfd_stat, links, locks, statx
from ckstore.fs.dirfd_stat import StorePath, open_at
from ckstore.fs.host.mounts import mount_id

TRY_PREFIX = ".try-"
"""Prefix of the temporary names that `try_links` creates outside its own directory."""

_OWN_PREFIX = "try-"
# A try fails only if another process that opens the store at the same time removes the directory as a leftover.
_TRIES = 20
_UNABLE = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS, errno.EINVAL, errno.ENOTTY)
"""Errors which show that a filesystem does not support an operation. Other errors concern only this attempt."""

# The stores that this process has tested, as device, inode and id of the mount. A bind mount of the same directory is
# tested separately, because links across it can fail.
_able: set[tuple[int, int, int]] = set()


def misplaced(root: StorePath, directories: Sequence[StorePath]) -> tuple[str, ...]:
    """Return a phrase for each directory of a store that is another kind of file, or not on the root's filesystem."""
    st_dev = os.stat(root.path).st_dev
    there = dirfd_stat.found_in(root, [directory.name for directory in directories])
    found = []
    for directory in directories:
        status = there.get(directory.name)
        if status is None:
            continue
        if stat.S_ISLNK(status.st_mode):
            found.append(f"{directory} is a symlink")
        elif not stat.S_ISDIR(status.st_mode):
            found.append(f"{directory} is not a directory")
        elif status.st_dev != st_dev:
            found.append(f"{directory} is on another filesystem than {root}")
    return tuple(found)


def check_able(
    root: StorePath, directories: Sequence[StorePath], staging: StorePath, linked: Sequence[StorePath]
) -> None:
    """Raise unless a store works in this place. Links are tested once for each store and mount in a process.

    Args:
        root: The root of the store.
        directories: All directories of the store, see `misplaced`.
        staging: The directory in which links are tested.
        linked: The directories into which files of `staging` are linked or moved.
    """
    if found := misplaced(root, directories):
        msg = f"the store cannot be written: {'; '.join(found)}"
        raise UnsafePlace(
            msg, hint="keep the whole store on one filesystem, without symlinks; readonly=True still reads it"
        )
    status = os.stat(root.path)
    key = (status.st_dev, status.st_ino, mount_id(root.path) or 0)
    # The test takes a dozen system calls, and the filesystem of a mount does not change. So one test is enough.
    if key not in _able:
        try_links(staging, linked)
        _able.add(key)


def try_links(staging: StorePath, others: Sequence[StorePath]) -> None:
    """Test the hardlinks and renames that a store needs, and whether the filesystem distinguishes case in names.

    Without this distinction, the names of two runs or two tags could refer to the same file.
    """
    # The test uses a new directory in `staging`, and locks it as a save does, so that no process sweeps it during the
    # test. `remove_leftovers` relies on this: a name without such a directory is a leftover of a killed process.
    name, lock = _own_directory(staging)
    own = lock.inside
    made: list[StorePath] = []
    try:
        first, second = own / "one", own / "two"
        for path in (first, second):
            os.close(open_at(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600))
            made.append(path)
        _try_case(first)
        _try_between(staging, name, own, others, made)
    finally:
        try:
            for path in made:
                with suppress(FileNotFoundError):  # gc removes files from trash
                    links.unlink(path)
            with suppress(OSError):  # the next process that opens the store removes the rest
                links.remove_directory(staging / name)
        finally:
            lock.release()


def _own_directory(staging: StorePath) -> tuple[str, locks.DirectoryLock]:
    for _ in range(_TRIES):
        name = f"{_OWN_PREFIX}{uuid.uuid4().hex[:12]}"
        links.make_directory(staging / name)
        with suppress(FileNotFoundError):  # another process removed it as a leftover
            return name, locks.lock_shared(staging / name)
    msg = f"{_TRIES} directories in {staging} were removed by other processes as soon as they were made"
    raise OSError(errno.EAGAIN, msg)


def _try_between(
    staging: StorePath, name: str, own: StorePath, others: Sequence[StorePath], made: list[StorePath]
) -> None:
    first = own / "one"
    for directory in others:
        path = directory / f".{name}"
        _try(f"link from {staging.name}/ into", directory, partial(links.link, first, path))
        made.append(path)
        _try_case(path)
        statx.refresh(first)  # the cache of a network filesystem may have the old link count
        # gc relies on the link count. On a filesystem without link counts, gc would free blobs that checkpoints use.
        if dirfd_stat.status(first).st_nlink < 2:
            raise UnsafePlace(f"{staging.top}: this filesystem does not count hardlinks", hint="use ext4, XFS or btrfs")
        # gc and deletions rename files out of a directory. A quota or an ACL can forbid this and still allow links into
        # the directory.
        back = own / directory.name
        try:
            _try(f"rename from {directory.name}/ into", staging, partial(links.rename, path, back))
        except FileNotFoundError:  # gc removed it from trash
            continue
        made.append(back)


def _try_case(path: StorePath) -> None:
    """Raise if an existing name is also found in upper case."""
    if dirfd_stat.exists(path.parent / path.name.upper()):
        msg = (
            f"{path.top}: in {path.parent.name}/ names that differ only in case are the same, so "
            "runs or tags could be mixed up"
        )
        where = "on ext4 one without the attribute F (chattr -F while it is empty), on XFS without version=ci"
        hint = f"use a directory that distinguishes case: {where}; "
        raise UnsafePlace(msg, hint=f"{hint}readonly=True still reads it")


def _try(act: str, where: StorePath, do: Callable[[], None]) -> None:
    try:
        do()
    except UnsafePlace:
        raise
    except OSError as error:
        if error.errno not in _UNABLE:
            raise
        msg = f"{where.top}: cannot {act} {where.name}/: {error.strerror}"
        raise UnsafePlace(
            msg, hint="keep the whole store on one filesystem with hardlinks: ext4, XFS or btrfs"
        ) from error


def remove_leftovers(staging: StorePath, others: Sequence[StorePath]) -> None:
    """Remove the temporary names of tests whose process was killed. Names of running tests remain."""
    for directory in others:
        for name in dirfd_stat.names(directory):
            # While a test runs, its directory in `staging` exists. A test removes this directory last.
            if name.startswith(TRY_PREFIX) and not dirfd_stat.exists(staging / name[1:]):
                with suppress(FileNotFoundError, PermissionError):  # in a sticky directory, only the owner may remove
                    links.unlink(directory / name)
