"""Heal an encoded form that is nowhere by the plain blob.

An encoder of another version makes other bytes of the same blob, so an encoded form whose file is nowhere is not made
again: each checkpoint that has it gets the plain blob, and a document that says so.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from ckstore.errors import CkstoreError, InUse
from ckstore.fs import files, links, locks, peek
from ckstore.model.manifest.encoding import render
from ckstore.model.manifest.manifest import MANIFEST_MAX_BYTES, BlobRecord, Manifest
from ckstore.model.manifest.parse import parse_manifest
from ckstore.model.manifest.stored import Encoding
from ckstore.objects.checkpoints import CheckpointDirectory, encoding_at, manifest_in
from ckstore.objects.documents import marks
from ckstore.objects.heal import put_name
from ckstore.objects.layout import BLOBS, MANIFEST, PLAIN
from ckstore.ops.index.reconcile import reconcile_one
from ckstore.ops.verify.manifests import write_document

if TYPE_CHECKING:
    from ckstore.fs.inside import Inside
    from ckstore.ops.context import Context

_WAIT_S = 2.0
_CATALOG_TIMEOUT_S = 5.0


def plain_of(context: Context, file: str) -> tuple[BlobRecord, Manifest] | None:
    """Return which plain blob an encoded file is a form of, and a manifest that has it; None: of no blob."""
    for run, step, _ in context.layout.published():
        path = context.layout.checkpoint(run, step)
        encoding = encoding_at(path)
        found = None if encoding is None else _decoded_from(encoding, file)
        if found is not None:
            with suppress(CkstoreError, OSError), CheckpointDirectory.at(path) as directory:
                return found, directory.manifest
    return None


def _decoded_from(encoding: Encoding, file: str) -> BlobRecord | None:
    return next(
        (BlobRecord(one, form.nbytes) for one, form in encoding.encoded.items() if encoding.file_of(one) == file), None
    )


def put_plain(context: Context, file: str, plain: BlobRecord, good: Inside, temporary: Inside) -> int:
    """Give every checkpoint that has the encoded file the plain blob in its place; return how many.

    Raises:
        OSError: One could not be changed; those before it were.
    """
    count = 0
    for run, step, _ in context.layout.published():
        path = context.layout.checkpoint(run, step)
        encoding = encoding_at(path)
        if encoding is None or _decoded_from(encoding, file) is None:
            continue
        try:
            with locks.lock_shared(path, timeout_s=_WAIT_S) as lock, marks.kept_unless_durable(lock):
                _put_plain(context, lock, file, plain, good, temporary)
        except (FileNotFoundError, InUse):  # it goes, and needs nothing any more
            continue
        count += 1
        with suppress(CkstoreError):  # what is not done in time the next opener does
            reconcile_one(context, (run, step), timeout_s=_CATALOG_TIMEOUT_S)
    return count


def _put_plain(  # noqa: PLR0917 - a step of `put_plain`
    context: Context, lock: locks.DirectoryLock, file: str, plain: BlobRecord, good: Inside, temporary: Inside
) -> None:
    path = lock.inside
    manifest, _ = manifest_in(lock.fd, path)
    encoding = manifest.encoding
    if encoding is None or _decoded_from(encoding, file) != plain:
        return
    put_name(path / BLOBS / plain.digest, good, temporary)
    # Before the document that names it.
    files.sync_directory(path / BLOBS)
    wanted = without(encoding, manifest, plain)
    text = data = files.read_file(PLAIN, most_bytes=MANIFEST_MAX_BYTES, dir_fd=lock.fd)
    if wanted.encoded:
        text = render(wanted, context.algorithm)
        # As a reader will: what does not fit is not written, and what is there stays as it is.
        parse_manifest(text, where=f"the encoding of {path}", plain=lambda: data)
    write_document(lock, MANIFEST, text)
    # Only now does no document name these any more.
    kept = {one.digest for one in wanted.files}
    for name in set(peek.names(path / BLOBS)) - kept:
        links.unlink(path / BLOBS / name)
    if not wanted.encoded:
        links.unlink(PLAIN, dir_fd=lock.fd)
    files.sync_directory(path / BLOBS)
    files.sync_open_directory(lock.fd)
    marks.forget_blob(lock, file)


def without(encoding: Encoding, manifest: Manifest, plain: BlobRecord) -> Encoding:
    """Return how a directory is stored that has one more blob plain, and no file that nothing is decoded with."""
    left = {digest: form for digest, form in encoding.encoded.items() if digest != plain.digest}
    draft = Encoding(encoding.checkpoint, (), left, encoding.place)
    needed = {digest for blob in manifest.blobs for digest in draft.path(blob.digest)}
    sizes = {**dict(encoding.files), plain.digest: plain.nbytes}
    names = {digest: digest if digest == plain.digest else encoding.file_of(digest) for digest in needed}
    listed = tuple(BlobRecord(name, sizes[name]) for name in sorted(set(names.values())))
    numbers = {blob.digest: number for number, blob in enumerate(listed)}
    encoded = {digest: form._replace(file=numbers[names[digest]]) for digest, form in left.items() if digest in needed}
    return Encoding(encoding.checkpoint, listed, encoded, encoding.place)
