"""Check whether a checkpoint is valid.

A checkpoint is valid if it is complete, the sizes and times of its blobs are right, and it is not marked as damaged.
The check reads the manifest and no data. A read or a verification that finds damage writes a mark into the directory of
the checkpoint, and changes the modification time of the damaged blob.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ckstore.errors import BadInput, DamagedBlob, OtherHash
from ckstore.fs import dirfd_stat, locks
from ckstore.fs.dirfd_stat import OpenDir, StorePath
from ckstore.model.checkpoint.mark import Mark, MarkEntry
from ckstore.model.digest import is_digest
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.manifest.manifest import BlobRecord, Manifest
from ckstore.model.names import CheckpointKey, key_of
from ckstore.model.times import text_of_time
from ckstore.model.words import counted
from ckstore.objects import blobs
from ckstore.objects.checkpoints import CheckpointDirectory, judge_blobs, manifest_in
from ckstore.objects.documents import marks
from ckstore.objects.heal import put_aside
from ckstore.objects.layout import BLOBS, MANIFEST, MARK
from ckstore.ops.context import Context
from ckstore.ops.events import note
from ckstore.ops.manifest_cache import ManifestCache, file_stamp

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckstore.model.reports.verify_report import Damage
    from ckstore.objects.layout import Layout


@dataclass(frozen=True, slots=True)
class Glance:
    """The result of a cheap check of the directory of a checkpoint."""

    manifest: Manifest | None = None  # None if it cannot be read
    manifest_id: str = ""  # empty if the manifest cannot be read
    problem: str = ""  # why the checkpoint is not complete, or the text of the mark; empty if there is no problem
    # Blobs of the right size with a changed modification time: a program wrote to them, or copied them without their
    # time. Only reading these blobs shows whether their bytes are right.
    touched: tuple[BlobRecord, ...] = ()


def why_not_valid(context: Context, info: CheckpointInfo) -> str:
    """Return why a checkpoint is not valid, in one sentence, or an empty string if it is valid.

    A checkpoint that was removed or replaced is not valid. This function takes no lock, so the caller may hold any
    lock.
    """
    try:
        glanced = glance(context.layout.checkpoint(info.key), info.key, context.known.manifests)
    except (FileNotFoundError, NotADirectoryError):
        return "it no longer exists"
    if glanced.problem:
        return glanced.problem
    if glanced.manifest_id != info.id:
        return f"its directory contains the checkpoint with the id {glanced.manifest_id}"
    if glanced.touched:
        first, *others = glanced.touched
        more = f" and {counted(len(others), 'more blob')}" if others else ""
        return f"a program wrote to {first.digest}{more}"
    return ""


def glance(path: StorePath, key: CheckpointKey | None, cache: ManifestCache | None = None) -> Glance:
    """Check the directory of a checkpoint that is or was published at `key`, without a lock and without reading data.

    With `cache`, an unchanged manifest is not read again, and is returned without its leaves.
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
            problem = f"{path}: its manifest is that of {manifest.name}"
        mark = marks.read_mark(fd)
        if mark is not None and not problem:
            problem = mark.entries[0].what if mark.entries else f"{path}/{MARK} marks it as damaged"
        return Glance(manifest, manifest_id, problem, touched)


def _manifest_in(fd: int, path: StorePath, cache: ManifestCache | None) -> tuple[Manifest, str]:
    # Take the stamp before the read: if the file changes in between, the stamp must not fit the new content.
    stamp = file_stamp(fd)
    known = None if cache is None else cache.recall(stamp)
    if known is not None:
        return known
    manifest, manifest_id = manifest_in(fd, path)
    if cache is not None:
        cache.remember(stamp, manifest, manifest_id)
    return manifest, manifest_id


def open_checked(context: Context, path: StorePath, *, timeout_s: float = 10.0) -> CheckpointDirectory:
    """Open the checkpoint in the directory `path` of the store. Reads that find damage will mark the checkpoint."""
    # The reader keeps the lock, so that a mark is written into the directory that was read, even if it was moved.
    lock = locks.lock_shared(path, timeout_s=timeout_s)
    try:
        directory = CheckpointDirectory.locked(path, lock, context.layout.hash_prefix)
    except BaseException as error:
        # A checkpoint with another hash algorithm belongs to another store, and is not damaged.
        if isinstance(error, DamagedBlob) and not isinstance(error, OtherHash):
            remember(context, lock, [MarkEntry("", (), error.message)])
        lock.release()
        raise

    def on_damage(of: CheckpointDirectory, error: DamagedBlob) -> None:
        remember(context, of.lock, [MarkEntry(error.blob, error.names, error.message)])

    directory.on_damage = on_damage
    directory.fetch = context.fetch
    if context.rescuer is not None:
        directory.rescue = context.rescuer.blob
        directory.on_close = context.rescuer.tell
    directory.threads = context.threads
    return directory


def remember(
    context: Context, lock: locks.DirectoryLock, entries: Iterable[MarkEntry], *, distrust: bool = True
) -> bool:
    """Write a mark of damage into the locked directory of a checkpoint, and return whether this was possible.

    With `distrust`, the times of the blobs are also changed. Then no save reuses these blobs, and a save of the same
    bytes heals them. No `OSError` is raised, since it would hide the damage.
    """
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
        context.known.marks_duty.wake()  # the next save must look for marks, since it may be able to heal the blobs
    except OSError:
        return False
    return True


def _withdraw(layout: Layout, digest: str, lock: locks.DirectoryLock) -> None:
    """Remove the canonical name of a damaged blob if its file belongs to another user.

    Only the owner of a file can change its time. If the time is unchanged, saves would still reuse the blob through
    this name.
    """
    canonical = layout.blob(digest)
    damaged, offered = dirfd_stat.find(lock.inside / BLOBS / digest), dirfd_stat.find(canonical)
    # If the file belongs to this user, its time was already changed, so no save reuses it.
    if damaged is None or offered is None or damaged.st_uid == os.geteuid():
        return
    same = (damaged.st_dev, damaged.st_ino) == (offered.st_dev, offered.st_ino)
    if same and blobs.looks_untouched(offered, offered.st_size):
        put_aside(layout, digest, [canonical])


def remember_damage(context: Context, lock: locks.DirectoryLock, damage: Iterable[Damage]) -> bool:
    """Call `remember` for damage that a verification found, if the damage affects the checkpoint.

    The verification has already changed the times of the blobs.
    """
    entries = [MarkEntry(found.blob, (*found.names, *found.files), found.what) for found in damage if found.affects]
    return remember(context, lock, entries, distrust=False)
