"""Sources of checkpoints: a remote, or another store in a directory. Nothing that a source returns is trusted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from ckstore.errors import CkstoreError, DamagedBlob, RemoteError
from ckstore.model.checkpoint.pins import PIN_MAX_BYTES
from ckstore.model.manifest.manifest import MANIFEST_MAX_BYTES, BlobRecord, Manifest
from ckstore.model.manifest.parse import parse_manifest
from ckstore.model.manifest.stored import PLAIN_FORM, OldPiece, StoredForm
from ckstore.model.words import PUSH_AGAIN, mending_there
from ckstore.objects.documents.annotations import ANNOTATIONS_MAX_BYTES
from ckstore.remote import keys
from ckstore.remote.deltas.decode import Decoding, Near, nothing_near
from ckstore.remote.documents.claims import claims_at
from ckstore.remote.keys import Place
from ckstore.remote.objects import Objects
from ckstore.remote.small_objects import read_tags

_MOST_PLACES = 1_000_000


class RemovedCheckpoint(Exception):
    """A checkpoint was deleted from a source while it was read."""


class Source(Protocol):
    """The calls with which pulls and reads of evicted blobs access a source. Threads may share a source."""

    @property
    def name(self) -> str:
        """The name of the source for users."""

    def places(self, under: str = "") -> list[Place]:
        """Return the checkpoints whose run, step and id, joined by slashes, begin with `under`."""

    def manifest(self, place: Place) -> bytes | None:
        """Return the bytes of a manifest, or None if the checkpoint does not exist."""

    def plain(self, place: Place) -> bytes:
        """Return the plain manifest of an encoded checkpoint, or raise `RemovedCheckpoint` if it was deleted."""

    def annotations(self, place: Place) -> bytes | None:
        """Return the bytes of the annotations of a checkpoint, or None if it has none."""

    def tags(self) -> dict[str, Place]:
        """Return the checkpoint that each tag names."""

    def pins(self) -> dict[str, bytes]:
        """Return the bytes of each pin, by name."""

    def read_into(self, place: Place, digest: str, offset: int, into: memoryview) -> int | None:
        """Fill memory with unverified bytes of a blob.

        Returns:
            The number of bytes received, or None if the blob is missing.
        """

    def read_any(self, digest: str, into: memoryview) -> bool:
        """Fill memory with the unverified bytes of a plain blob. Return False if the blob is missing.

        No checkpoint need reference the blob, so it may be freed at any time.
        """

    def advance(self, place: Place, digest: str, offset: int, into: memoryview, old: OldPiece) -> int | None:
        """Update memory that holds an old piece to a piece of a blob, in place.

        Returns:
            The number of bytes received, or None if the source has no difference between the two pieces.
        """

    def mending(self, place: Place, digest: str = "") -> str:
        """Return how to repair a damaged blob on the source, or the damaged manifest if no digest is given."""

    def restoring(self, place: Place) -> str:
        """Return how to restore missing blobs of a checkpoint on the source."""

    def close(self) -> None:
        """End the waits of all threads, and refuse further calls. A source without long waits does nothing."""


class Listing(NamedTuple):
    """The checkpoints in a listing of a remote."""

    places: list[Place]  # existing checkpoints
    half_removed: list[Place]  # deleted checkpoints that still have documents
    keys: dict[Place, list[str]]  # keys of the documents of each listed checkpoint


class ObjectSource:
    """A remote on object storage, as a source."""

    def __init__(self, objects: Objects, name: str, near: Near = nothing_near) -> None:
        self.name = name
        self._objects = objects
        self._names: dict[str, str] = {}
        self._decoding = Decoding(objects, self._read_file, near, name)
        self._unannotated: set[Place] = set()  # checkpoints without annotations in the last listing

    def use(self, digest: str, name: str) -> None:
        """Set the name under which a blob is read."""
        self._names[digest] = name

    def close(self) -> None:
        """See `Source`."""
        self._objects.close()

    def mending(self, place: Place, digest: str = "") -> str:
        """See `Source`."""
        return mending_there(keys.blob(self._names.get(digest, digest)) if digest else place.manifest)

    def restoring(self, place: Place) -> str:
        """See `Source`."""
        del place
        return PUSH_AGAIN

    def places(self, under: str = "") -> list[Place]:
        """See `Source`."""
        return self.listed(under).places

    def listed(self, under: str = "") -> Listing:
        """Return the listed checkpoints whose run, step and id begin with `under`.

        A checkpoint with a deletion mark and a claim still exists, since a store relies on it.
        """
        found: dict[Place, list[str]] = {}
        for listed in self._objects.list(f"{keys.CHECKPOINTS}{under}"):
            if (place := keys.place_in(listed.key, keys.OF_PLACE)) is not None:
                found.setdefault(place, []).append(listed.key)
            if len(found) > _MOST_PLACES:  # a long listing costs a malicious remote nothing, but fills memory here
                raise RemoteError(f"{self.name} lists more than {_MOST_PLACES:,} checkpoints")
        dropped = {place for place, there in found.items() if place.dropped in there}
        if any(place.manifest in found[place] for place in dropped):
            # Claims are listed after the marks, because a deletion also lists the claims after it writes its mark.
            dropped -= {claim.place for claim in claims_at(self._objects)}
        places = [place for place, there in found.items() if place.manifest in there and place not in dropped]
        self._unannotated = {place for place, there in found.items() if place.annotations not in there}
        return Listing(sorted(places), [place for place in dropped if len(found[place]) > 1], found)

    def manifest(self, place: Place) -> bytes | None:
        """See `Source`."""
        data = self._objects.get(place.manifest, MANIFEST_MAX_BYTES)
        self._decoding.note(place, data)
        return data

    def plain(self, place: Place) -> bytes:
        """See `Source`."""
        data = self._objects.get(place.plain, MANIFEST_MAX_BYTES)
        if data is None:
            if self._objects.head(place.manifest) is None:
                raise RemovedCheckpoint
            raise RemoteError(f"{place.plain} is missing at {self.name}", hint=self.mending(place))
        return data

    def form(self, place: Place) -> StoredForm:
        """Return the form in which the remote stores a checkpoint's blobs. It is plain for a missing checkpoint."""
        return self._decoding.form(place)

    def annotations(self, place: Place) -> bytes | None:
        """See `Source`."""
        # The last listing shows which checkpoints have no annotations, so most requests are avoided.
        return None if place in self._unannotated else self._objects.get(place.annotations, ANNOTATIONS_MAX_BYTES)

    def tags(self) -> dict[str, Place]:
        """See `Source`."""
        return read_tags(self._objects)

    def pins(self) -> dict[str, bytes]:
        """See `Source`."""
        found = {name: listed.key for listed in self._objects.list(keys.PINS) if (name := keys.pin_in(listed.key))}
        read = {name: self._objects.get(key, PIN_MAX_BYTES) for name, key in found.items()}
        return {name: data for name, data in read.items() if data is not None}

    def read_into(self, place: Place, digest: str, offset: int, into: memoryview) -> int | None:
        """See `Source`."""
        return self._decoding.read_into(place, digest, offset, into)

    def read_any(self, digest: str, into: memoryview) -> bool:
        """See `Source`."""
        return self._read_file(digest, 0, into)

    def advance(self, place: Place, digest: str, offset: int, into: memoryview, old: OldPiece) -> int | None:
        """See `Source`."""
        return self._decoding.advance(place, digest, offset, into, old)

    def _read_file(self, digest: str, offset: int, into: memoryview) -> bool:
        """Fill memory with bytes of the file that has this digest. Return False if the file is missing."""
        name = self._names.get(digest, digest)
        if self._objects.read_into(keys.blob(name), offset, into):
            return True
        # The bare name may be retired. The name of the blob then has a number, and the greatest number is current.
        names = (keys.blob_in(listed.key) for listed in self._objects.list(f"{keys.blob(digest)}."))
        numbers = (name.number for name in names if name is not None and name.digest == digest)
        for number in sorted(numbers, reverse=True):
            other = str(keys.BlobName(digest, number))
            if self._objects.read_into(keys.blob(other), offset, into):
                self._names[digest] = other
                return True
        return False


class SourceManifest(NamedTuple):
    """A manifest on a source."""

    manifest: Manifest  # the parsed manifest, in plain form
    id: str  # the id of the checkpoint
    data: bytes  # the bytes of the plain manifest
    form: StoredForm = PLAIN_FORM  # how the source stores the blobs

    @property
    def files(self) -> Sequence[BlobRecord]:
        """The digests and sizes of the objects in ``blobs/`` that hold the blobs."""
        return self.form.stored(self.manifest.blobs)


def read_manifest(source: Source, place: Place, hash_prefix: str) -> SourceManifest | None:
    """Return the manifest of a checkpoint on a source, or None if it no longer exists.

    The usual limits of manifests apply, and the manifest must belong to the checkpoint at `place`.

    Raises:
        RemoteError: The manifest is damaged, or belongs to another checkpoint.
    """
    data = source.manifest(place)
    if data is None:
        return None
    where = f"the manifest of {place.name} at {source.name}"
    plain: list[bytes] = []

    def beside() -> bytes:
        plain.append(source.plain(place))
        return plain[0]

    try:
        manifest, manifest_id = parse_manifest(data, where=where, hash_prefix=hash_prefix, plain=beside)
    except RemovedCheckpoint:
        return None
    except DamagedBlob as error:
        raise RemoteError(error.message, hint=error.hint or source.mending(place)) from error
    except CkstoreError as error:
        raise RemoteError(error.message, hint=error.hint) from error
    if (manifest.run, manifest.step, manifest_id) != tuple(place):
        msg = f"{where} describes {manifest.name} with id {manifest_id}, expected id {place.id}"
        raise RemoteError(msg)
    plain_manifest = replace(manifest, form=PLAIN_FORM)
    return SourceManifest(plain_manifest, manifest_id, plain[0] if plain else data, manifest.form)
