"""Whether a checkpoint is valid: complete, its blobs untouched by size and time, and not marked as damaged.

That is a cheap look: the manifest is read, no data is. Reads and verifications mark the damage that they find: in the
checkpoint's directory, and by the time of the blob.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from ckstore.errors import BadInput, DamagedBlob, OtherHash, RemoteError
from ckstore.fs import dirfd_stat, locks
from ckstore.fs.open_dir import OpenDir
from ckstore.fs.store_path import StorePath
from ckstore.model.checkpoint.mark import Mark, MarkEntry
from ckstore.model.digest import is_digest
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.manifest.manifest import BlobRecord, Manifest
from ckstore.model.names import CheckpointKey, key_of
from ckstore.model.times import text_of_time
from ckstore.objects import blobs
from ckstore.objects.checkpoints import CheckpointDirectory, judge_blobs, manifest_in
from ckstore.objects.documents import marks
from ckstore.objects.heal import put_aside
from ckstore.objects.layout import BLOBS, MANIFEST, MARK
from ckstore.ops.context import Context, Rescuer
from ckstore.ops.events import note
from ckstore.ops.manifest_cache import ManifestCache, file_stamp

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckstore.model.reports.verify_report import Damage
    from ckstore.objects.layout import Layout


@dataclass(frozen=True, slots=True)
class Glance:
    """What a cheap look at the directory of a checkpoint gives."""

    manifest: Manifest | None = None  # None, with an empty id, if it cannot be read
    manifest_id: str = ""
    problem: str = ""  # why it is not whole, or what the mark says; empty if it is
    # Blobs of the right size that a program wrote into, or that were copied without their time: only reading tells
    # whether they are right.
    touched: tuple[BlobRecord, ...] = ()


def why_not_valid(context: Context, info: CheckpointInfo) -> str:
    """Return why a checkpoint is not valid, one sentence; empty if it is.

    It is if it is complete, its blobs have their sizes and times, and no read found it damaged. No lock is taken, so
    the caller may hold any; a checkpoint that is gone, or was replaced, is not valid.
    """
    try:
        glanced = glance(context.layout.checkpoint(info.key), info.key, context.known.manifests)
    except (FileNotFoundError, NotADirectoryError):
        return "it is no longer there"
    if glanced.problem:
        return glanced.problem
    if glanced.manifest_id != info.id:
        return f"its directory holds one with the id {glanced.manifest_id}"
    if glanced.touched:
        return f"a program wrote into {_some([blob.digest for blob in glanced.touched])}"
    return ""


def glance(path: StorePath, key: CheckpointKey | None, cache: ManifestCache | None = None) -> Glance:
    """Look at the directory of a checkpoint, published or once published at `key`, without a lock; no data is read.

    With `cache`, a manifest that is the same file as before is not read again, and comes without its leaves.
    """
    try:
        return _glance(path, key, cache)
    except PermissionError:
        return Glance(problem=f"this user may not read {path}")


def _glance(path: StorePath, key: CheckpointKey | None, cache: ManifestCache | None) -> Glance:
    with OpenDir(path) as directory:
        fd = directory.fd
        try:
            manifest, manifest_id = _manifest_in(fd, path, cache)
        except FileNotFoundError:
            return Glance(problem=f"{path}/{MANIFEST} is missing")
        except (BadInput, DamagedBlob) as error:
            return Glance(problem=error.message)
        problem, touched, _ = judge_blobs(directory.inside, fd, manifest)
        if key is None or not key.fits(manifest.run, manifest.step, manifest_id):
            problem = f"{path}: its manifest says {manifest.name}"
        mark = marks.read_mark(fd)
        if mark is not None and not problem:
            problem = mark.entries[0].what if mark.entries else f"{path}/{MARK} says that it is damaged"
        return Glance(manifest, manifest_id, problem, touched)


def _manifest_in(fd: int, path: StorePath, cache: ManifestCache | None) -> tuple[Manifest, str]:
    # Taken before the read: of a file that changes meanwhile the stamp must not fit the new content.
    stamp = file_stamp(fd)
    known = None if cache is None else cache.recall(stamp)
    if known is not None:
        return known
    manifest, manifest_id = manifest_in(fd, path)
    if cache is not None:
        cache.remember(stamp, manifest, manifest_id)
    return manifest, manifest_id


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more blobs"


def open_checked(context: Context, path: StorePath, *, timeout_s: float = 10.0) -> CheckpointDirectory:
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
    if context.rescuer is not None:
        directory.rescue = partial(_rescue, context.rescuer, directory)
        directory.on_close = context.rescuer.tell
    directory.threads = context.threads
    return directory


def _rescue(
    rescuer: Rescuer,
    directory: CheckpointDirectory,
    error: DamagedBlob | RemoteError,
    blob: BlobRecord,
    first: bool,  # noqa: FBT001 - the form of `CheckpointDirectory.rescue`
) -> memoryview | None:
    return rescuer.blob(directory, error, blob, first=first)


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
        place = key_of(*lock.path.rsplit("/", 2)[-2:])
        if entries and place is not None and not marks.is_marked(lock.inside):
            note(context, "damaged", place.run_step, why=entries[0].what)
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
    damaged, offered = dirfd_stat.find(lock.inside / BLOBS / digest), dirfd_stat.find(canonical)
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
