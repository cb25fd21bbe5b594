"""The temporary directory of a remote that is opened by its URL; those of processes that were killed are removed."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ckstore.errors import InUse
from ckstore.fs import locks

# Another process may remove a new directory before it is locked, since it looks like that of a killed one.
_TRIES = 20


def make_temporary() -> tuple[Path, Callable[[], None]]:
    """Make a directory that lives as long as this process at most; return it, and what removes it.

    A process holds a shared `flock` on its directory, so that others can tell it from one that a kill left behind.
    """
    _sweep()
    for _ in range(_TRIES):
        folder = Path(tempfile.mkdtemp(prefix=_prefix()))
        with suppress(FileNotFoundError, InUse):
            lock = locks.lock_shared(folder)
            break
    else:
        msg = f"{_TRIES} temporary directories in {tempfile.gettempdir()} were removed as soon as they were made"
        raise InUse(msg, hint="does another program clean that directory?")
    made_by = os.getpid()

    def remove() -> None:
        if os.getpid() == made_by:  # a child that was forked runs this as well, and the parent reads on
            shutil.rmtree(folder, ignore_errors=True)
            lock.release()

    return folder, remove


def _prefix() -> str:
    # With the host: a temporary directory on a shared filesystem does not show the locks of other hosts.
    return f"ckstore-remote-{os.uname().nodename}-"


def _sweep() -> None:
    """Remove the directories of processes of this user and host that are gone."""
    try:
        with os.scandir(tempfile.gettempdir()) as entries:
            mine = [entry.path for entry in entries if entry.name.startswith(_prefix()) and _is_own(entry)]
    except PermissionError:  # a directory that only takes new names: nothing in it can be found
        return
    for path in mine:
        lock = locks.try_exclusive(Path(path))
        if lock is not None:
            with lock:
                shutil.rmtree(path, ignore_errors=True)


def _is_own(entry: os.DirEntry[str]) -> bool:
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    return entry.is_dir(follow_symlinks=False) and status.st_uid == os.geteuid()
