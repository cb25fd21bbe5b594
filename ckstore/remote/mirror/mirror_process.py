"""Starts the mirror process, if the store has a mirror and no mirror process of this host is running."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import suppress
from typing import Literal, NamedTuple

from ckstore.errors import CkstoreError
from ckstore.fs import links, locks
from ckstore.fs.locks import DirectoryLock
from ckstore.ops.config_file import setting_of
from ckstore.ops.context import Context
from ckstore.ops.mirror_record import behind, note_problem
from ckstore.ops.mirror_settings import MIRROR
from ckstore.ops.refs.listing import current_or_named
from ckstore.saver.client.savers import savers_seen, started_at, status_at
from ckstore.saver.helper_start import start_beside

ENTRY = "ckstore.remote.mirror.mirror_server"
Why = Literal["opened", "saved", "said"]
# The first and the longest pause after a failed start. Each pause is twice as long as the previous one, because a start
# takes half a second of processor time.
_START_S, _LONGEST_S = 5.0, 300.0


class _Start(NamedTuple):
    """The last start of a mirror process for a store by this process, and its result."""

    at_s: float
    child: subprocess.Popen[bytes] | None  # the process, unless it could not be started
    pause_s: float  # the pause before the next start, if this one fails

    @property
    def has_failed(self) -> bool:
        """Whether the process could not be started, or has failed."""
        return self.child is None or bool(self.child.poll())

    def is_over(self, why: Why) -> bool:
        """Whether another process may be started."""
        age_s = time.monotonic() - self.at_s
        if self.child is None or self.has_failed:
            return age_s > self.pause_s
        # Without this pause, each of a thousand tags in a row would start a process until the first process has the
        # lock.
        return age_s > _START_S or (why != "said" and self.child.returncode is not None)


_starts: dict[tuple[str, str], _Start] = {}
"""Path and uuid of a store -> the last start for it. A new store may have the path of a lost one."""


def _key(context: Context) -> tuple[str, str]:
    return str(context.layout.path), context.settings.uuid


def wake(context: Context, remote: str, why: Why) -> None:
    """Start the mirror process for `remote` if it is needed. Raise no errors, because the save is durable."""
    # If the store was only opened, the process is needed only if the mirror lacks checkpoints.
    try:
        if why == "opened" and not behind(context.layout, remote, current_or_named(context)):
            return
        last = _starts.get(_key(context))
        if last is None or last.is_over(why):
            _start_one(context, last)
    except (CkstoreError, OSError, MemoryError) as error:
        with suppress(CkstoreError, OSError):  # even without this record, `doctor` shows that the mirror is behind
            note_problem(context.layout, remote, f"the mirror process could not be started: {error!r}")


def _start_one(context: Context, last: _Start | None) -> None:
    lock = lock_mirror(context)
    # If another process has the lock, it checks once more for work after releasing the lock. So the new checkpoint is
    # not forgotten.
    if lock is None:
        return
    lock.release()
    # A mirror process that failed waits without the lock. If this process started it, a new mirror process would have
    # the same credentials, so none is started.
    if last is not None and last.child is not None and (said := status_at(last.child.pid)) and said.state == "waiting":
        return
    begun = _Start(time.monotonic(), None, _START_S)
    if last is not None and last.has_failed:
        begun = begun._replace(pause_s=min(2 * last.pause_s, _LONGEST_S))
        if last.child is not None:
            died = f"the mirror process ended with status {last.child.returncode}"
            note_problem(context.layout, setting_of(context.layout, MIRROR) or "", died)
    _starts[_key(context)] = begun
    _starts[_key(context)] = begun._replace(child=start_beside(ENTRY, context))


def has_successor(context: Context) -> bool:
    """Whether another process of this host mirrors the store and was started later than this one."""
    # The later start decides, not the last failure, because the newer environment has the current credentials.
    own = started_at(os.getpid()), os.getpid()
    seen = [one.pid for one in savers_seen(str(context.layout.path)) if one.state in ("mirroring", "waiting")]
    return any((started_at(pid), pid) > own for pid in seen)


def lock_mirror(context: Context) -> DirectoryLock | None:
    """Return the lock for mirroring a store from this host, or None if another process has it."""
    folder = context.layout.remotes
    links.make_directory(folder)
    return locks.try_exclusive(folder)
