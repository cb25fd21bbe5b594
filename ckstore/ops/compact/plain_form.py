"""Heal a lost encoded file by storing the plain blob.

A lost encoded file cannot be created again, because another version of the encoder may create different bytes for the
same blob. Instead, each checkpoint that had the file gets the plain blob, and a document that lists the plain blob.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckstore.errors import CkstoreError, InUse
from ckstore.fs import dirfd_stat, files, locks
from ckstore.fs.dirfd_stat import StorePath
from ckstore.model.digest import is_digest
from ckstore.model.manifest.encoding import Encoding, encoding_of, render
from ckstore.model.manifest.manifest import MANIFEST_MAX_BYTES, BlobRecord, Manifest
from ckstore.model.manifest.parse import parse_manifest
from ckstore.model.names import CheckpointKey
from ckstore.objects.checkpoints import CheckpointDirectory, manifest_in
from ckstore.objects.documents import marks
from ckstore.objects.encoded import encoding_at
from ckstore.objects.heal import WAIT_S, Given, change_everywhere, put_document, put_name
from ckstore.objects.layout import BLOBS, MANIFEST, PLAIN
from ckstore.objects.staging import Staging
from ckstore.ops.context import Context
from ckstore.ops.index.reconcile import update_row


def plain_of(context: Context, file: str, held: dict[CheckpointKey, InUse]) -> tuple[BlobRecord, Manifest] | None:
    """Return the plain blob of an encoded file, and the manifest of a checkpoint with the file.

    Return None if no readable checkpoint has the file. Checkpoints that another process has locked for too long are
    added to `held`.
    """
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
        except (CkstoreError, OSError):  # another checkpoint may have the file
            continue
    return None


def _decoded_from(encoding: Encoding, file: str) -> BlobRecord | None:
    return next(
        (BlobRecord(one, form.nbytes) for one, form in encoding.encoded.items() if encoding.file_of(one) == file), None
    )


def put_plain(context: Context, file: str, plain: BlobRecord, good: StorePath, temporary: StorePath) -> Given:
    """Replace an encoded file with the plain blob in every checkpoint that has the file, including those in trash.

    Files that no document names any more remain in their directories until `put_leftovers_away` moves them.

    Returns:
        The number of changed checkpoints, and the checkpoints that another process had locked for too long.
    """

    def put(path: StorePath, key: CheckpointKey | None) -> bool:
        encoding = encoding_at(path)
        if encoding is None or _decoded_from(encoding, file) is None:
            return False
        try:
            with locks.lock_shared(path, timeout_s=WAIT_S) as lock, marks.kept_unless_durable(lock):
                _put_plain(context, lock, file, plain, good, temporary)
        except FileNotFoundError:  # the checkpoint was deleted
            return False
        if key is not None:
            update_row(context, key)
        return True

    return change_everywhere(context.layout, put)


def _put_plain(  # noqa: PLR0917 - a step of `put_plain`
    context: Context, lock: locks.DirectoryLock, file: str, plain: BlobRecord, good: StorePath, temporary: StorePath
) -> None:
    path = lock.inside
    manifest, _ = manifest_in(lock.fd, path)
    encoding = encoding_of(manifest)
    if encoding is None or _decoded_from(encoding, file) != plain:
        return
    put_name(path / BLOBS / plain.digest, good, temporary)
    # Sync the blob before the document that names it is written.
    files.sync_directory(path / BLOBS)
    wanted = without(encoding, manifest, plain)
    text = data = files.read_file(PLAIN, most_bytes=MANIFEST_MAX_BYTES, dir_fd=lock.fd)
    if wanted.encoded:
        text = render(wanted, context.algorithm)
        # Parse the document as a reader does, so that a wrong one is not written over the existing one.
        parse_manifest(text, where=f"the encoding of {path}", plain=lambda: data)
    put_document(lock, MANIFEST, text)
    marks.forget_blob(lock, file)


def leftovers(context: Context) -> Iterator[StorePath]:
    """Yield the directories with files of a compacted form that no document names any more."""
    for key, _ in context.layout.published():
        path = context.layout.checkpoint(key)
        # A repair removes the plain manifest last. If the repair was killed, this file still exists.
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
    except (CkstoreError, FileNotFoundError, NotADirectoryError, PermissionError):
        # The names in the document are unknown, so no file counts as a leftover.
        return []
    return [*found, *([path / PLAIN] if manifest.form.is_plain else [])]


def put_leftovers_away(context: Context, staging: Staging) -> None:
    """Move files that no document of a checkpoint names any more to the staging directory of a repair.

    The staging directory is moved to trash later.
    """
    # Skip a checkpoint that is open in another process, which may still use the previous document and these files.
    for path in leftovers(context):
        lock = locks.try_exclusive(path)
        if lock is None:  # the next repair moves them
            continue
        with lock:
            # The process that wrote the document may have died or failed before its fsync. Without an fsync here, a
            # power cut could then restore the previous document, which names these files.
            files.sync_open_directory(lock.fd)
            for name in _leftovers_in(path):
                # The plain manifest marks the directory for the next repair, so remove the other files durably first.
                if name.name == PLAIN:
                    files.sync_directory(path / BLOBS)
                staging.put_away(name)
            files.sync_directory(path / BLOBS)
            files.sync_open_directory(lock.fd)


def without(encoding: Encoding, manifest: Manifest, plain: BlobRecord) -> Encoding:
    """Return `encoding` with one more plain blob, and without the files that are then no longer needed."""
    left = {digest: form for digest, form in encoding.encoded.items() if digest != plain.digest}
    draft = Encoding(encoding.checkpoint, (), left, encoding.place)
    needed = {digest for blob in manifest.blobs for digest in draft.path(blob.digest)}
    sizes = {**dict(encoding.files), plain.digest: plain.nbytes}
    names = {digest: digest if digest == plain.digest else encoding.file_of(digest) for digest in needed}
    listed = tuple(BlobRecord(name, sizes[name]) for name in sorted(set(names.values())))
    numbers = {blob.digest: number for number, blob in enumerate(listed)}
    encoded = {digest: form._replace(file=numbers[names[digest]]) for digest, form in left.items() if digest in needed}
    return Encoding(encoding.checkpoint, listed, encoded, encoding.place)
