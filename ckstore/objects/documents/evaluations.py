"""Keep the records of evaluations as files in ``locks/``. Source: docs/format/v1.md, "Evaluations".

The records of one checkpoint and one metric are numbered. The process that creates the record with the next number
evaluates the checkpoint, and holds a lock on the record until the process ends. A process that ends an evaluation
without the metric renames the record. If a record was not renamed and its lock is free, its process was killed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from ckstore.errors import CkstoreError, DamagedBlob
from ckstore.fs import dirfd_stat, files, links, lock_files, locks, statx
from ckstore.model.checkpoint.evaluation import (
    EVALUATION_MAX_BYTES,
    Evaluation,
    RecordName,
    metric_key,
    parse_evaluation,
    parse_record_name,
)
from ckstore.model.host import reach_of_locks
from ckstore.model.seal import read, to_write
from ckstore.model.times import text_of_time
from ckstore.objects import store_locks
from ckstore.objects.layout import Layout


@dataclass(frozen=True, slots=True)
class Running:
    """An evaluation that has not ended, as far as this host sees it."""

    name: RecordName
    says: Evaluation | None  # the content of the record; None if it cannot be read
    since: float  # the time at which the evaluation began, in seconds since 1970
    # Whether the lock of the record is held. If not, the evaluator is on another host, whose locks may not be visible
    # on this host.
    is_locked: bool


def records(layout: Layout) -> list[RecordName]:
    """Return the names of all records, sorted."""
    if not layout.view.sees_changes:
        # Refresh the cache of this host, which may lack a record that another host has created.
        statx.refresh(layout.locks)
    try:
        with dirfd_stat.entries(layout.locks) as entries:
            names = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
    except FileNotFoundError:  # most stores on a local disk do not have this directory
        return []
    return sorted(name for text in names if (name := parse_record_name(text)) is not None)


def running(layout: Layout, name: RecordName) -> Running | None:
    """Return the evaluation of a record, or None if it has ended."""
    if name.is_over:
        return None
    path = layout.locks / name.text
    found = dirfd_stat.find(path)
    if found is None:
        return None
    try:
        is_locked = lock_files.is_locked(path)
    except (FileNotFoundError, DamagedBlob):  # the evaluation has just ended, or another user has replaced the file
        return None
    except PermissionError:  # the record belongs to another user, and this user may no longer access the directory
        return Running(name, None, found.st_ctime, is_locked=True)
    says: Evaluation | None = None
    with suppress(CkstoreError, OSError):  # the content is mostly for people; the lock shows whether it is running
        says = read(files.read_file(path, most_bytes=EVALUATION_MAX_BYTES), parse_evaluation, str(path))
    if not is_locked and _would_see_lock(layout, says):
        return None
    # The creation of the record has set ctime, which no user can set back.
    return Running(name, says, found.st_ctime, is_locked)


def _would_see_lock(layout: Layout, says: Evaluation | None) -> bool:
    """Whether this process would see the lock of the process that created a record."""
    # Processes of one machine see each other's locks, even in containers. They have the same boot id.
    if layout.view.sees_locks or (says is not None and says.boot == _boot()):
        return True
    # Otherwise, the mounts on both hosts must pass locks on to the server.
    return says is not None and says.locks_reach_hosts and _locks_reach_hosts(layout)


def _locks_reach_hosts(layout: Layout) -> bool:
    from ckstore.fs.host.mounts import examine

    place = examine(layout.path)
    return reach_of_locks(place.kind, place.options).hosts is True


def _boot() -> str:
    from ckstore.fs.host import machine  # rarely needed, since most stores have no record

    return machine.boot_id()


def begin(layout: Layout, id: str, metric: str, number: int) -> locks.DirectoryLock | None:
    """Create the record of a new evaluation and return its lock, or None if another process was faster.

    The lock is released at the end of the evaluation, or when this process ends.
    """
    name = RecordName(id, metric_key(metric), number)
    reach = not layout.view.sees_locks and _locks_reach_hosts(layout)
    says = Evaluation(metric, text_of_time(datetime.now(UTC)), os.uname().nodename, _boot(), os.getpid(), reach)
    path = layout.locks / name.text
    data = to_write(says, parse_evaluation, most_bytes=EVALUATION_MAX_BYTES, where=str(path))
    try:
        lock = store_locks.make_locked(layout, name.text, data)
    except FileExistsError:
        return None
    # If this process listed the records long ago, the evaluation with this number may have ended meanwhile, and its
    # record may have been removed.
    if any(other.number >= number and other != name for other in of_metric(records(layout), id, metric)):
        give_back(layout, name, lock)
        return None
    return lock


def of_metric(names: Iterable[RecordName], id: str, metric: str) -> list[RecordName]:
    """Return the records of one checkpoint and one metric, from the first evaluation to the last."""
    key = metric_key(metric)
    return sorted((name for name in names if (name.id, name.metric) == (id, key)), key=lambda name: name.number)


def give_back(layout: Layout, name: RecordName, lock: locks.DirectoryLock) -> None:
    """End an evaluation that was not started, by removing its record. Its number is then free again."""
    with lock:
        if _is_owner(lock):
            remove(layout, [name])


def end(layout: Layout, name: RecordName, lock: locks.DirectoryLock) -> None:
    """End an evaluation. If its record still exists, rename it to show other hosts that it ended without the metric."""
    with lock:
        if _is_owner(lock):
            with suppress(FileNotFoundError):  # the record was removed, since the checkpoint has the metric
                links.rename(layout.locks / name.text, layout.locks / name._replace(is_over=True).text)


def _is_owner(lock: locks.DirectoryLock) -> bool:
    """Whether this process took the lock. In a forked child, the lock is closed, and the parent owns the record."""
    return lock.fd >= 0


def remove_of(layout: Layout, id: str, metrics: Iterable[str]) -> None:
    """Remove the records of these metrics of a checkpoint, because the checkpoint now has the metrics."""
    keys = {metric_key(metric) for metric in metrics}
    remove(layout, [name for name in records(layout) if name.id == id and name.metric in keys])


def sweep(layout: Layout, is_there: Callable[[str], bool]) -> None:
    """Remove the records of checkpoints whose id no longer exists, except those of running evaluations."""
    gone = [name for name in records(layout) if not is_there(name.id)]
    remove(layout, [name for name in gone if running(layout, name) is None])


def remove(layout: Layout, names: Iterable[RecordName]) -> None:
    """Remove records."""
    for name in names:
        # In a directory with the sticky bit, records of other users are kept until these users, or the owner of the
        # store, run gc.
        with suppress(FileNotFoundError, PermissionError):
            links.unlink(layout.locks / name.text)
