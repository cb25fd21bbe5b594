"""Start the process that compacts old checkpoints, if the settings request it and no such process runs on this host."""

from __future__ import annotations

import time

from ckstore.fs import links, locks
from ckstore.fs.locks import DirectoryLock
from ckstore.ops.context import Context
from ckstore.saver.helper_start import start_beside

ENTRY = "ckstore.saver.server.compactor"
# The minimum time between two checks. A start of the process takes half a second of a processor, which is too much for
# each save of a training that saves every minute.
_AGAIN_S = 600.0
# Path of a store -> when this process last checked it.
_looked: dict[str, float] = {}


def wake(context: Context) -> None:
    """Start the process that compacts, if a checkpoint may be old enough."""
    path, now = str(context.layout.path), time.monotonic()
    if path in _looked and now < _looked[path] + _AGAIN_S:
        return
    _looked[path] = now
    from ckstore.ops.compact.compaction_rule import is_any_due, rule_of

    rule = rule_of(context.layout)
    if rule is None or not is_any_due(context, rule):
        return
    lock = lock_compaction(context)
    if lock is None:  # such a process is running
        return
    lock.release()
    start_beside(ENTRY, context)


def lock_compaction(context: Context) -> DirectoryLock | None:
    """Return the lock for automatic compaction of a store from this host, or None if another process has it."""
    folder = context.layout.root / "locks"
    links.make_directory(folder)
    return locks.try_exclusive(folder)
