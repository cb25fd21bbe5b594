"""Whether a checkpoint is valid: complete, its blobs untouched by size and time, and not marked as damaged.

That is a cheap look: the manifest is read, no data is. Reads and verifications mark the damage that they find.
"""

from __future__ import annotations

from dataclasses import dataclass

from ckstore.errors import BadInput, DamagedBlob
from ckstore.fs.held import Held
from ckstore.fs.inside import Inside
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.manifest.manifest import BlobRecord, Manifest
from ckstore.objects.checkpoints import judge_blobs, manifest_in
from ckstore.objects.documents import marks
from ckstore.objects.layout import MANIFEST, MARK
from ckstore.ops.context import Context
from ckstore.ops.manifest_cache import ManifestCache, file_stamp


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
        glanced = glance(context.layout.checkpoint(info.run, info.step), info.run, info.step, context.known.manifests)
    except (FileNotFoundError, NotADirectoryError):
        return "it is no longer there"
    if glanced.problem:
        return glanced.problem
    if glanced.manifest_id != info.id:
        return f"it was replaced by one with the id {glanced.manifest_id}"
    if glanced.touched:
        return f"a program wrote into {_some([blob.digest for blob in glanced.touched])}"
    return ""


def glance(path: Inside, run: str, step: int, cache: ManifestCache | None = None) -> Glance:
    """Look at the directory of a checkpoint without locking it and without reading data.

    With `cache`, a manifest that is the same file as before is not read again, and comes without its leaves.
    """
    try:
        return _glance(path, run, step, cache)
    except PermissionError:
        return Glance(problem=f"this user may not read {path}")


def _glance(path: Inside, run: str, step: int, cache: ManifestCache | None) -> Glance:
    with Held(path) as directory:
        fd = directory.fd
        try:
            manifest, manifest_id = _manifest_in(fd, path, cache)
        except FileNotFoundError:
            return Glance(problem=f"{path}/{MANIFEST} is missing")
        except (BadInput, DamagedBlob) as error:
            return Glance(problem=error.message)
        problem, touched, _ = judge_blobs(directory.inside, fd, manifest)
        if (manifest.run, manifest.step) != (run, step):
            problem = f"{path}: its manifest says {manifest.name}"
        mark = marks.read_mark(fd)
        if mark is not None and not problem:
            problem = mark.entries[0].what if mark.entries else f"{path}/{MARK} says that it is damaged"
        return Glance(manifest, manifest_id, problem, touched)


def _manifest_in(fd: int, path: Inside, cache: ManifestCache | None) -> tuple[Manifest, str]:
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
