"""Remember what a read or a verification found damaged: in the checkpoint's directory, and by the time of the blob."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from ckstore.errors import DamagedBlob, OtherHash
from ckstore.fs import locks, peek
from ckstore.model.checkpoint.mark import Mark, MarkEntry
from ckstore.model.digest import is_digest
from ckstore.model.times import text_of_time
from ckstore.objects import blobs
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.objects.documents import marks
from ckstore.objects.heal import put_aside
from ckstore.objects.layout import BLOBS
from ckstore.objects.trash import former_place
from ckstore.ops.events import note

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckstore.fs.inside import Inside
    from ckstore.model.reports.verify_report import Damage
    from ckstore.objects.layout import Layout
    from ckstore.ops.context import Context


def open_checked(context: Context, path: Inside, *, timeout_s: float = 10.0) -> CheckpointDirectory:
    """Open the checkpoint in the directory `path` of the store; damage that reads of it find is remembered."""
    # Held by the reader until the end: a mark must go into the directory that was read, wherever it is by then.
    lock = locks.lock_shared(path, timeout_s=timeout_s)
    try:
        directory = CheckpointDirectory.locked(path, lock, context.layout.hash_prefix)
    except BaseException as error:
        # Nothing is wrong with one of another hash where it comes from.
        if isinstance(error, DamagedBlob) and not isinstance(error, OtherHash):
            remember(context, lock, [MarkEntry("", (), error.message)])
        lock.release()
        raise

    def on_damage(of: CheckpointDirectory, error: DamagedBlob) -> None:
        remember(context, of.lock, [MarkEntry(error.blob, error.names, error.message)])

    directory.on_damage = on_damage
    if context.fetch is not None:
        directory.fetch = partial(context.fetch, directory)
    directory.threads = context.threads
    return directory


def remember(
    context: Context, lock: locks.DirectoryLock, entries: Iterable[MarkEntry], *, distrust: bool = True
) -> bool:
    """Mark the checkpoint whose directory is locked, as far as this process may; False if it was not possible."""
    # With `distrust` the blobs are no longer trusted by their time either, so that saving the same bytes again heals
    # them. An error here must not hide the damage, so none is raised.
    if context.readonly or context.writes_disabled_because:
        return False
    entries = tuple(entries)
    found = text_of_time(datetime.now(UTC))
    try:
        for entry in entries:
            if entry.blob and distrust:
                blobs.distrust(lock.inside / BLOBS / entry.blob)
        place = former_place("@".join(lock.path.rsplit("/", 2)[-2:]))
        if entries and place is not None and not marks.is_marked(lock.inside):
            note(context, "damaged", place, why=entries[0].what)
        marks.write_mark(lock, Mark(found, entries))
        for entry in entries:
            if is_digest(entry.blob):
                _withdraw(context.layout, entry.blob, lock)
        context.known.marks_duty.wake()  # the next save heals what it can
    except OSError:
        return False
    return True


def _withdraw(layout: Layout, digest: str, lock: locks.DirectoryLock) -> None:
    """Put the canonical name of a damaged blob aside if it is the file of another user, who alone can set its time."""
    # Else a save of that user would rely on it.
    canonical = layout.blob(digest)
    damaged, offered = peek.find(lock.inside / BLOBS / digest), peek.find(canonical)
    # This user's own file lost its time above, and no save relies on it.
    if damaged is None or offered is None or damaged.st_uid == os.geteuid():
        return
    same = (damaged.st_dev, damaged.st_ino) == (offered.st_dev, offered.st_ino)
    if same and blobs.looks_untouched(offered, offered.st_size):
        put_aside(layout, digest, [canonical])


def remember_damage(context: Context, lock: locks.DirectoryLock, damage: Iterable[Damage]) -> bool:
    """As `remember`, for what a verification found, as far as it affects the checkpoint; it has set the times."""
    entries = [MarkEntry(found.blob, (*found.names, *found.files), found.what) for found in damage if found.affects]
    return remember(context, lock, entries, distrust=False)
