"""Temporary directories for clones of remotes that are opened by URL. Those of killed processes are removed."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ckstore.errors import InUse
from ckstore.fs import locks

# The maximum number of attempts to create a directory. Another process may remove a new directory before it is locked,
# because an unlocked directory looks like that of a killed process.
_TRIES = 20


def make_temporary() -> tuple[Path, Callable[[], None]]:
    """Create a directory that exists at most as long as this process. Return it, and a function that removes it.

    A process holds a shared `flock` on its directory, so that other processes do not mistake the directory for a
    leftover.
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
        if os.getpid() == made_by:  # a forked child may also call this, while its parent still uses the directory
            shutil.rmtree(folder, ignore_errors=True)
            lock.release()

    return folder, remove


def _prefix() -> str:
    # The prefix contains the host name, because locks of other hosts may be invisible on a shared filesystem.
    return f"ckstore-remote-{os.uname().nodename}-"


def _sweep() -> None:
    """Remove the directories that ended processes of this user left on this host."""
    mine = []
    try:
        with os.scandir(tempfile.gettempdir()) as entries:
            for entry in entries:
                if not entry.name.startswith(_prefix()):
                    continue
                with suppress(FileNotFoundError):
                    owner = entry.stat(follow_symlinks=False).st_uid
                    if entry.is_dir(follow_symlinks=False) and owner == os.geteuid():
                        mine.append(entry.path)
    except PermissionError:  # the parent directory cannot be listed
        return
    for path in mine:
        lock = locks.try_exclusive(Path(path))
        if lock is not None:
            with lock:
                shutil.rmtree(path, ignore_errors=True)
