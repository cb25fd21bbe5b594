"""Heal an encoded form that is nowhere by the plain blob.

An encoder of another version makes other bytes of the same blob, so an encoded form whose file is nowhere is not made
again: each checkpoint that has it gets the plain blob, and a document that says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from ckstore.errors import CkstoreError, InUse
from ckstore.fs import dirfd_stat, files, locks
from ckstore.fs.store_path import StorePath
from ckstore.model.digest import is_digest
from ckstore.model.manifest.encoding import render
from ckstore.model.manifest.manifest import MANIFEST_MAX_BYTES, BlobRecord, Manifest
from ckstore.model.manifest.parse import parse_manifest
from ckstore.model.manifest.stored import Encoding
from ckstore.model.names import CheckpointKey
from ckstore.objects.checkpoints import CheckpointDirectory, encoding_at, manifest_in
from ckstore.objects.documents import marks
from ckstore.objects.heal import WAIT_S, Given, put_name
from ckstore.objects.layout import BLOBS, MANIFEST, PLAIN
from ckstore.objects.staging import Staging
from ckstore.ops.context import Context
from ckstore.ops.index.reconcile import reconcile_one
from ckstore.ops.verify.manifests import write_document

_CATALOG_TIMEOUT_S = 5.0


def plain_of(context: Context, file: str, held: dict[CheckpointKey, InUse]) -> tuple[BlobRecord, Manifest] | None:
    """Return which plain blob an encoded file is a form of, and a manifest that has it; None: of no blob."""
    # Checkpoints that another process has locked for too long are added to `held`.
    for key, _ in context.layout.published():
        path = context.layout.checkpoint(key)
        encoding = encoding_at(path)
        found = None if encoding is None else _decoded_from(encoding, file)
        if found is None:
            continue
        try:
            with CheckpointDirectory.at(path) as directory:
                return found, directory.manifest
        except InUse as error:
            held[key] = error
        except (CkstoreError, OSError):  # another one may do
            continue
    return None


def _decoded_from(encoding: Encoding, file: str) -> BlobRecord | None:
    return next(
        (BlobRecord(one, form.nbytes) for one, form in encoding.encoded.items() if encoding.file_of(one) == file), None
    )


def put_plain(context: Context, file: str, plain: BlobRecord, good: StorePath, temporary: StorePath) -> Given:
    """Give every checkpoint that has the encoded file the plain blob in its place; return which."""
    # What no document names any more stays in their directories, for `put_leftovers_away`.
    count = 0
    held: dict[CheckpointKey, InUse] = {}
    for key, _ in context.layout.published():
        path = context.layout.checkpoint(key)
        encoding = encoding_at(path)
        if encoding is None or _decoded_from(encoding, file) is None:
            continue
        try:
            with locks.lock_shared(path, timeout_s=WAIT_S) as lock, marks.kept_unless_durable(lock):
                _put_plain(context, lock, file, plain, good, temporary)
        except FileNotFoundError:  # it is gone
            continue
        except InUse as error:  # usually it is being taken apart, and needs nothing any more
            held[key] = error
            continue
        count += 1
        with suppress(CkstoreError):  # what is not done in time the next opener does
            reconcile_one(context, key, timeout_s=_CATALOG_TIMEOUT_S)
    return Given(count, held)


def _put_plain(  # noqa: PLR0917 - a step of `put_plain`
    context: Context, lock: locks.DirectoryLock, file: str, plain: BlobRecord, good: StorePath, temporary: StorePath
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
    marks.forget_blob(lock, file)


def leftovers(context: Context) -> Iterator[StorePath]:
    """Give the directories that have something which was of a compacted form and which no document names now."""
    for key, _ in context.layout.published():
        path = context.layout.checkpoint(key)
        # It goes last, so a repair that was killed is found by it.
        if dirfd_stat.exists(path / PLAIN) and _leftovers_in(path):
            yield path


def _leftovers_in(path: StorePath) -> list[StorePath]:
    try:
        with files.opened_directory(path) as fd:
            manifest, _ = manifest_in(fd, path)
        named = {blob.digest for blob in manifest.stored}
        found = [
            path / BLOBS / name for name in dirfd_stat.names(path / BLOBS) if is_digest(name) and name not in named
        ]
    except (CkstoreError, FileNotFoundError, NotADirectoryError, PermissionError):  # it cannot be told
        return []
    return [*found, *([] if manifest.encoding else [path / PLAIN])]


def put_leftovers_away(context: Context, staging: Staging) -> None:
    """Move what no document of a checkpoint names any more into the staging of a repair, which goes to trash."""
    # Not while a process has the checkpoint open: it may yet decode with them, by the document before.
    for path in leftovers(context):
        lock = locks.try_exclusive(path)
        if lock is None:  # the next repair does it
            continue
        with lock:
            # Who wrote the document may have died, or failed, before its fsync: the one before names what goes here.
            files.sync_open_directory(lock.fd)
            for name in _leftovers_in(path):
                if name.name == PLAIN:  # by it the next repair finds the others, so they are gone for certain
                    files.sync_directory(path / BLOBS)
                staging.put_away(name)
            files.sync_directory(path / BLOBS)
            files.sync_open_directory(lock.fd)


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
