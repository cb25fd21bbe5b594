"""Repair the manifest of a checkpoint, and the document that describes how a compacted checkpoint is stored."""

from __future__ import annotations

from ckstore.errors import BadInput, CatalogUnavailable, CkstoreError, DamagedBlob, InUse
from ckstore.fs import files, locks
from ckstore.fs.dirfd_stat import StorePath
from ckstore.model.manifest.manifest import MANIFEST_MAX_BYTES, Manifest
from ckstore.model.manifest.parse import parse_manifest
from ckstore.model.names import CheckpointKey
from ckstore.model.reports.verify_report import Repair
from ckstore.objects.checkpoints import CheckpointDirectory, id_at
from ckstore.objects.documents import marks
from ckstore.objects.heal import put_document
from ckstore.objects.layout import PLAIN
from ckstore.ops.api_calls import why_of
from ckstore.ops.compact.lost_documents import documents
from ckstore.ops.context import Context
from ckstore.ops.verify.blob_copies import Copies


def repair_manifest(context: Context, copies: Copies, key: CheckpointKey) -> tuple[Repair | None, str]:
    """Restore the manifest of a checkpoint from a copy with the same id. Return the repair, or None and the reason."""
    # For a compacted checkpoint, the plain manifest and the document about the encoding are both restored. With only
    # the plain manifest, blobs that exist in encoded form would be reported as missing.
    run, step, _ = key
    path = context.layout.checkpoint(key)
    try:
        with CheckpointDirectory.at(path):
            return None, ""  # the manifest is intact, so another part of the directory is damaged
    except (DamagedBlob, InUse, FileNotFoundError, NotADirectoryError):
        pass
    # Search by the id of the checkpoint, since another manifest of the same run and step may belong to another
    # training. The name of the directory contains the first digits of the id, except in stores of a draft format.
    ids = [id for id in _ids_of(context, run, step, path) if key.fits(run, step, id)]
    reason = "no intact manifest exists"
    asked = copies.asked_manifest(key)
    if asked is not None and asked[0] not in ids:
        ids.append(asked[0])
    if not ids:
        reason = "its id is not known locally; ckstore pull restores it from a remote, or save its step again"
    for manifest_id in ids:
        try:
            beside = _plain_at(path)
            if beside is not None and beside[1] == manifest_id:
                found: tuple[bytes, str] | None = beside[2], f"{run}@{step}"
            else:
                found = copies.manifest(run, step, manifest_id)
            if found is None and asked is not None and asked[0] == manifest_id:
                found = asked[1:]
            if found is None:
                continue
            data, source = found
            wanted = documents(path, data, context.algorithm)
            with locks.lock_shared(path) as lock, marks.kept_unless_durable(lock):
                for name, text in wanted:
                    put_document(lock, name, text)
            return Repair(manifest_id, len(data), source, 1), ""
        except (OSError, InUse) as error:
            reason = why_of(error)
        except (BadInput, DamagedBlob) as error:
            reason = error.message
    return None, f"{run}@{step}: {reason}"


def _ids_of(context: Context, run: str, step: int, path: StorePath) -> list[str]:
    """Return the possible ids of a checkpoint with a damaged manifest, from the catalog and the remaining files."""
    ids: list[str] = []
    try:
        ids += [info.id for info in context.catalog.infos(run) if info.step == step]
    except CatalogUnavailable:  # the remaining files may have the id
        ids = []
    try:
        head = id_at(path)
    except (OSError, CkstoreError):
        head = None
    # Only a compaction writes the plain manifest, so it belongs to this checkpoint.
    beside = _plain_at(path)
    if beside is not None and (beside[0].run, beside[0].step) == (run, step):
        ids.append(beside[1])
    return list(dict.fromkeys([*ids, *([head] if head else [])]))


def _plain_at(path: StorePath) -> tuple[Manifest, str, bytes] | None:
    """Return the plain manifest of a compacted checkpoint with its id and bytes, or None."""
    try:
        data = files.read_file(path / PLAIN, most_bytes=MANIFEST_MAX_BYTES)
        return *parse_manifest(data, where=str(path / PLAIN)), data
    except (FileNotFoundError, NotADirectoryError, BadInput, DamagedBlob):
        return None
