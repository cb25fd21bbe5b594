"""Find and create folders of this user on this host, for files that can be rebuilt.

An example is the index of a shared store.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from ckstore.fs import links
from ckstore.fs.dirfd_stat import open_descriptor
from ckstore.fs.host.mounts import examine

_TEMPORARY = ("/var/tmp", "/tmp")  # noqa: S108 - a folder there is used only if it belongs to this user alone
_PRIVATE = 0o700


def cache_folder() -> Path | None:
    """Return the folder for ckstore's files on this host, in the user's cache, or None if no folder is suitable.

    The folder need not exist. It is in ``/var/tmp`` or ``/tmp`` if the home directory is missing, is on a filesystem
    that other hosts share, or belongs to another user, which can happen after ``sudo``.
    """
    for folder in _candidates():
        try:
            existing = next(path for path in (folder, *folder.parents) if path.is_dir())
        except PermissionError:  # this user may not access it
            continue
        if examine(existing).other_hosts:
            continue
        if str(folder.parent) in _TEMPORARY:
            is_suitable = _is_ours(folder)
        else:
            # After sudo, HOME can be the home directory of another user. That user could not change the files that root
            # creates in it.
            is_suitable = os.stat(existing).st_uid == os.geteuid() and os.access(existing, os.W_OK | os.X_OK)
        if is_suitable:
            return folder
    return None


def note_once(folder: str, name: str) -> bool:
    """Create an empty file `name` in a folder of the user's cache. Return False if it exists.

    If the file cannot be created, return True.
    """
    cache = cache_folder()
    if cache is None:
        return True
    try:
        make_private(cache / folder)
        # With O_EXCL, only one of two processes creates the file and shows the notice.
        os.close(open_descriptor(cache / folder / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600))
    except FileExistsError:
        return False
    except OSError:  # for example, the disk is full, or the home is not writable
        return True
    return True


def forget(folder: str) -> None:
    """Delete the folder of a deleted store from the user's cache, if it exists."""
    cache = cache_folder()
    if cache is not None and (cache / folder).is_dir():
        shutil.rmtree(cache / folder)


def _candidates() -> Iterator[Path]:
    named = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(named):  # the XDG Base Directory Specification requires that relative paths are ignored
        yield Path(named, "ckstore")
    elif os.path.isabs(home := os.path.expanduser("~")):
        yield Path(home, ".cache", "ckstore")
    for folder in _TEMPORARY:
        yield Path(folder, f"ckstore-{os.geteuid()}")


def _is_ours(folder: Path) -> bool:
    """Whether no other user can put files into a folder in a temporary directory. A missing folder counts as safe."""
    try:
        status = os.stat(folder, follow_symlinks=False)
    except FileNotFoundError:
        return True
    # Every user may create a folder in /tmp, so the folder is only used if no other user can write to it.
    open_to_others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not open_to_others


def make_private(folder: Path) -> None:
    """Create a directory and its missing parents for this user only. Existing directories remain unchanged."""
    missing = []
    # The levels are created one by one, because os.makedirs sets the mode only for the last level.
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        links.make_directory(path, mode=_PRIVATE)
