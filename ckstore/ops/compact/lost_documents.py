"""Reconstruct the documents in the directory of a checkpoint whose manifest was lost or damaged."""

from __future__ import annotations

import os

from ckstore.codecs import container
from ckstore.errors import DamagedBlob
from ckstore.fs import files
from ckstore.fs.dirfd_stat import StorePath
from ckstore.model.digest import Algorithm, is_digest
from ckstore.model.manifest.encoding import EncodedBlob, Encoding, render
from ckstore.model.manifest.manifest import BLOB_MAX_BYTES, BlobRecord, Manifest
from ckstore.model.manifest.parse import parse_manifest
from ckstore.objects.encoded import encoding_at
from ckstore.objects.layout import BLOBS, MANIFEST, PLAIN
from ckstore.objects.trash import names_in


def documents(path: StorePath, data: bytes, algorithm: Algorithm) -> list[tuple[str, bytes]]:
    """Return the documents for a directory with the manifest `data`: names and contents, in the order of writing."""
    manifest, manifest_id = parse_manifest(data, where=f"the manifest of {path}")
    form = encoding_at(path)
    if form is None or form.checkpoint != manifest_id:
        form = _found_encoding(path, manifest, manifest_id)
    if not form.encoded:
        return [(MANIFEST, data)]
    text = render(form, algorithm)
    # Parse the document as a reader does, so that a wrong one is not written over the existing one.
    parse_manifest(text, where=f"the encoding of {path}", plain=lambda: data)
    return [(PLAIN, data), (MANIFEST, text)]


def _found_encoding(path: StorePath, manifest: Manifest, manifest_id: str) -> Encoding:
    """Reconstruct the encoding of a directory from its files: the header of an encoded file names the plain blob."""
    plain = {blob.digest for blob in manifest.blobs}
    listed: list[BlobRecord] = []
    encoded: list[tuple[container.Header, str]] = []
    for name in sorted(filter(is_digest, names_in(path / BLOBS))):
        with files.opened_regular(path / BLOBS / name) as fd:
            nbytes = os.fstat(fd).st_size
            # A file that the manifest lists is a plain blob, even if its data looks like an encoded file.
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
