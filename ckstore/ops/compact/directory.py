"""The new directory of a compacted checkpoint: links to what it keeps, its encoded files, two documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckstore.errors import BadInput, DamagedBlob
from ckstore.fs import files, links
from ckstore.model.manifest.encoding import render
from ckstore.model.manifest.parse import parse_manifest
from ckstore.objects.layout import MANIFEST, PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckstore.model.digest import Algorithm
    from ckstore.model.manifest.stored import Encoding
    from ckstore.objects.checkpoints import CheckpointDirectory
    from ckstore.objects.staging import Staging


def gather(staging: Staging, wanted: Encoding, holders: Iterable[CheckpointDirectory]) -> None:
    """Link every file of the new directory that is not staged yet."""
    sizes = dict(wanted.files)
    for digest in staging.keep_exactly(sizes):
        if staging.claim(digest, sizes[digest]):
            continue
        staging.unclaim(digest)
        # The canonical name may be gone after a power cut; each of these has one of its own.
        for holder in holders:
            if any(file.digest == digest for file in holder.manifest.stored):
                staging.take(digest, holder.blobs.inside / digest)
                break
    if lacking := staging.keep_exactly(sizes):
        raise DamagedBlob(f"blob {lacking[0]} is missing or was changed", blob=lacking[0])


def seal(staging: Staging, wanted: Encoding, directory: CheckpointDirectory, algorithm: Algorithm) -> None:
    """Write the two documents, and make all durable; what a reader would refuse is refused here."""
    inside = directory.lock.inside
    plain = staging.lock.inside / PLAIN
    source = inside / (MANIFEST if directory.manifest.encoding is None else PLAIN)
    # The very file that the manifest is, so that no byte of it is written again.
    if not links.try_link(source, plain):
        files.create_file(plain, files.read_file(source, most_bytes=2**29), mode=0o444)
    text = render(wanted, algorithm)
    # As a reader will: loops, lengths and sizes are refused before anything is published.
    try:
        data = files.read_file(plain, most_bytes=2**29)
        parse_manifest(text, where=f"the encoding of {directory.manifest.name}", plain=lambda: data)
    except BadInput as error:
        raise DamagedBlob(error.message) from error
    staging.seal(text)


def same(wanted: Encoding, present: Encoding | None) -> bool:
    """Whether a directory is as it should be."""
    if present is None or set(wanted.files) != set(present.files) or wanted.encoded.keys() != present.encoded.keys():
        return False
    return all(
        wanted.file_of(digest) == present.file_of(digest) and form.bases == present.encoded[digest].bases
        for digest, form in wanted.encoded.items()
    )
