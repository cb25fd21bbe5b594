"""Renew the times of a store's files, so that a filesystem that purges by age keeps them: docs/how-to/scratch.md.

Saves renew the blobs that they claim (`objects.blobs.is_sound`), and the store's own small files once a day.
`touch` renews everything on request.
"""

from __future__ import annotations

import os
import stat
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress

from ckstore.errors import BadInput, InUse
from ckstore.fs import blob_time, dirfd_stat, locks
from ckstore.fs.dirfd_stat import StorePath
from ckstore.model.digest import is_digest
from ckstore.model.names import CheckpointKey
from ckstore.model.reports.touch_report import TouchReport
from ckstore.model.words import counted
from ckstore.objects import trash
from ckstore.objects.layout import BLOBS, MARK
from ckstore.ops.api_calls import why_of
from ckstore.ops.context import Context
from ckstore.ops.notices import warn
from ckstore.ops.refs.find import AnyRef, find
from ckstore.ops.refs.listing import no_such_run

# Only files directly in these directories are renewed. `remotes/.cache/` is excluded, since the times of its files show
# their last use. `locks/` is excluded, since the times of its files show how long a process has been working.
_SMALL = ("refs", "pins", "remotes")


def touch(context: Context, ref: AnyRef | Iterable[AnyRef] | None = None, run: str | None = None) -> TouchReport:
    """Renew the times of some checkpoints, of a whole run, or of the whole store; see `ckstore.Store.touch`."""
    context.check_writable()
    layout = context.layout
    if ref is not None and run is not None:
        raise BadInput("both refs and a run were given", hint="leave one of them out")
    if ref is None:
        keys = [key for key, _ in layout.published(context.run if run is None else run)]
        if not keys and run is not None:
            raise no_such_run(layout, run)
    else:
        refs = [ref] if isinstance(ref, str) or not isinstance(ref, Iterable) else [*ref]
        keys = [*dict.fromkeys(find(context, one).key for one in refs)]
    renewal = _Renewal()
    count = sum(renewal.checkpoint(layout.checkpoint(key)) for key in sorted(keys))
    if ref is None:  # include checkpoints that `undo` can restore
        waiting = [name for name in trash.names_in(layout.trash) if trash.former_place(name) is not None]
        count += sum(renewal.checkpoint(layout.trash / name) for name in waiting)
    renewal.own_files(layout.root)
    report = TouchReport(count, len(renewal.blobs), sum(renewal.blobs.values()), renewal.refused())
    if report.refused:
        warn(str(report))
    return report


def renew_used(context: Context, existing: CheckpointKey | None) -> None:
    """Renew the times of the store's own files after a save, and those of an existing checkpoint with equal content."""
    # The blobs of a new checkpoint already have current times, since the save wrote or claimed them.
    layout, known = context.layout, context.known
    renewal = _Renewal(only_due=True)
    if existing is not None:
        renewal.checkpoint(layout.checkpoint(existing))
    now_s = time.time()
    if now_s - known.own_files_renewed_s > blob_time.RENEW_AFTER_S:
        renewal.own_files(layout.root)
        known.own_files_renewed_s = now_s  # set this last, so that the next save tries again after an error


class _Renewal:
    """Gives files current times, and counts the files of other users, whose times only these users can change."""

    def __init__(self, *, only_due: bool = False) -> None:
        self.blobs: dict[tuple[int, int], int] = {}  # (device, inode) -> size
        self._only_due = only_due  # skip files with times of the last day
        self._owners: Counter[int] = Counter()
        self._closed: list[str] = []

    def checkpoint(self, path: StorePath) -> bool:
        """Renew the files of a checkpoint; return False if it was removed, or may not be touched."""
        try:
            # Lock the checkpoint as a reader does, so that no process deletes it.
            with locks.lock_shared(path) as lock:
                for name, status in dirfd_stat.statuses(lock.inside):
                    # Do not renew a mark of damage, since a repair identifies it by its times.
                    if stat.S_ISREG(status.st_mode) and name != MARK:
                        self._renew(lock.inside / name, status)
                for name, status in dirfd_stat.statuses(lock.inside / BLOBS):
                    if stat.S_ISREG(status.st_mode) and (status.st_dev, status.st_ino) not in self.blobs:
                        self._renew(lock.inside / BLOBS / name, status)
        except (FileNotFoundError, NotADirectoryError):  # another process has dropped it
            return False
        except (InUse, PermissionError) as error:
            self._closed.append(f"{path.inner}: {why_of(error)}")
            return False
        return True

    def own_files(self, root: StorePath) -> None:
        """Renew the small files that every use of the store needs: settings, tags, pins, records of remotes."""
        for folder in (root, *(root / name for name in _SMALL)):
            for name, status in dirfd_stat.statuses(folder):
                if not stat.S_ISDIR(status.st_mode):
                    self._renew(folder / name, status)

    def _renew(self, place: StorePath, status: os.stat_result) -> None:
        is_blob = is_digest(place.name)
        with suppress(FileNotFoundError), dirfd_stat.at(place) as (parent, name):
            try:
                if self._only_due and not blob_time.is_due(status.st_mtime_ns):
                    pass
                elif not is_blob:
                    os.utime(name, dir_fd=parent, follow_symlinks=False)
                # Check the time again, since a program may have written to the file after the directory was listed.
                elif blob_time.is_stamp(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mtime_ns):
                    blob_time.stamp(name, dir_fd=parent)
                else:  # the blob remains suspect, but gets a time that protects it from a purge by age
                    blob_time.mark_suspect(name, dir_fd=parent)
            except PermissionError:
                self._owners[status.st_uid] += 1
                return
            if is_blob:
                self.blobs[status.st_dev, status.st_ino] = status.st_size

    def refused(self) -> tuple[str, ...]:
        """Return which files kept their times, and why."""
        owned = (
            f"{counted(count, 'file')} of uid {uid}, who alone may renew them" for uid, count in self._owners.items()
        )
        return (*owned, *self._closed)
