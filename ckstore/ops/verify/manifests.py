"""Repair the manifest of a checkpoint, and the document that describes how a compacted one is stored."""

from __future__ import annotations

import os

from ckstore.codecs import container
from ckstore.errors import BadInput, CatalogUnavailable, CkstoreError, DamagedBlob, InUse
from ckstore.fs import files, links, locks
from ckstore.fs.store_path import StorePath
from ckstore.model.digest import is_digest
from ckstore.model.manifest.encoding import render
from ckstore.model.manifest.manifest import BLOB_MAX_BYTES, MANIFEST_MAX_BYTES, BlobRecord, Manifest
from ckstore.model.manifest.parse import parse_manifest
from ckstore.model.manifest.stored import EncodedBlob, Encoding
from ckstore.model.names import CheckpointKey
from ckstore.model.reports.verify_report import Repair
from ckstore.objects.checkpoints import CheckpointDirectory, encoding_at, id_at
from ckstore.objects.documents import marks
from ckstore.objects.layout import BLOBS, MANIFEST, PLAIN
from ckstore.objects.trash import names_in
from ckstore.ops.api_calls import why_of
from ckstore.ops.context import Context
from ckstore.ops.verify.blob_copies import Copies

_FRESH = ".manifest-new"


def repair_manifest(context: Context, copies: Copies, key: CheckpointKey) -> tuple[Repair | None, str]:
    """Restore the manifest of a checkpoint from one with its id; return the repair, or None and the reason."""
    # A compacted checkpoint gets both documents: a plain manifest in place of the encoding would report blobs as
    # missing that exist in encoded form.
    run, step, _ = key
    path = context.layout.checkpoint(key)
    try:
        with CheckpointDirectory.at(path):
            return None, ""  # the manifest is right, so another part of the directory is damaged
    except (DamagedBlob, InUse, FileNotFoundError, NotADirectoryError):
        pass
    # By the id of the checkpoint: a manifest with only the same run and step may belong to another training.
    # The name of the directory has the first digits of the id, except in stores of drafts.
    ids = [id for id in _ids_of(context, run, step, path) if key.fits(run, step, id)]
    reason = "no intact manifest exists"
    remote = copies.remote_manifest(key)
    if remote is not None and remote[0] not in ids:
        ids.append(remote[0])
    if not ids:
        reason = "its id is not known locally; ckstore pull restores it from a remote, or save its step again"
    for manifest_id in ids:
        try:
            beside = _plain_at(path)
            if beside is not None and beside[1] == manifest_id:
                found: tuple[bytes, str] | None = beside[2], f"{run}@{step}"
            else:
                found = copies.manifest(run, step, manifest_id)
            if found is None and remote is not None and remote[0] == manifest_id:
                found = remote[1:]
            if found is None:
                continue
            data, source = found
            wanted = _documents(context, path, data)
            with locks.lock_shared(path) as lock, marks.kept_unless_durable(lock):
                for name, text in wanted:
                    write_document(lock, name, text)
            return Repair(manifest_id, len(data), source, 1), ""
        except (OSError, InUse) as error:
            reason = why_of(error)
        except (BadInput, DamagedBlob) as error:
            reason = error.message
    return None, f"{run}@{step}: {reason}"


def _ids_of(context: Context, run: str, step: int, path: StorePath) -> list[str]:
    """Return the possible ids of a checkpoint with a damaged manifest, by the catalog and by its remaining files."""
    ids: list[str] = []
    try:
        ids += [info.id for info in context.catalog.infos(run) if info.step == step]
    except CatalogUnavailable:  # then the file itself may have it
        ids = []
    try:
        head = id_at(path)
    except (OSError, CkstoreError):
        head = None
    # The plain manifest next to a lost encoding: only a compaction of that checkpoint put it there.
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


def _documents(context: Context, path: StorePath, data: bytes) -> list[tuple[str, bytes]]:
    """Return the documents to write to a directory whose manifest is `data`, by name and in this order."""
    manifest, manifest_id = parse_manifest(data, where=f"the manifest of {path}")
    form = encoding_at(path)
    if form is None or form.checkpoint != manifest_id:
        form = _found_encoding(path, manifest, manifest_id)
    if not form.encoded:
        return [(MANIFEST, data)]
    text = render(form, context.algorithm)
    # Parse it like a reader: a wrong document is not written, and the existing one is kept.
    parse_manifest(text, where=f"the encoding of {path}", plain=lambda: data)
    return [(PLAIN, data), (MANIFEST, text)]


def _found_encoding(path: StorePath, manifest: Manifest, manifest_id: str) -> Encoding:
    """Determine how the blobs in a directory are stored from the files: an encoded one names its plain blob."""
    plain = {blob.digest for blob in manifest.blobs}
    listed: list[BlobRecord] = []
    encoded: list[tuple[container.Header, str]] = []
    for name in sorted(filter(is_digest, names_in(path / BLOBS))):
        with files.opened_regular(path / BLOBS / name) as fd:
            nbytes = os.fstat(fd).st_size
            # The manifest decides first: data of a user may look like an encoded file.
            header = None if name in plain else _header(fd, nbytes)
        listed.append(BlobRecord(name, nbytes))
        if header is not None:
            encoded.append((header, name))
    names = {blob.digest for blob in listed}
    numbers = {blob.digest: number for number, blob in enumerate(listed)}
    forms = {
        header.plain: EncodedBlob(header.nbytes, numbers[name], header.bases)
        for header, name in encoded
        if header.plain not in names
    }
    return Encoding(manifest_id, tuple(listed), forms, 0)


def _header(fd: int, nbytes: int) -> container.Header | None:
    try:
        head = os.pread(fd, container.HEAD_BYTES, 0)
        length = container.header_bytes(head)
        data = os.pread(fd, min(length, nbytes), container.HEAD_BYTES)
        return container.parse_header(data, where="an encoded blob", most_bytes=BLOB_MAX_BYTES)
    except DamagedBlob:
        return None


def write_document(lock: locks.DirectoryLock, name: str, data: bytes) -> None:
    """Write a document into the directory of a checkpoint durably and atomically."""
    if _FRESH in os.listdir(lock.fd):  # left by a repair that was killed
        links.unlink(_FRESH, dir_fd=lock.fd)
    files.create_file(_FRESH, data, mode=0o444, dir_fd=lock.fd)
    links.rename(_FRESH, name, dir_fd=lock.fd)
    files.sync_open_directory(lock.fd)
