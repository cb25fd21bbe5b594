"""What checkpoints are read from: a remote, or another store in a directory. Nothing that comes of it is believed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ckstore.errors import CkstoreError, DamagedBlob, RemoteError
from ckstore.model.checkpoint.pins import PIN_MAX_BYTES
from ckstore.model.manifest.manifest import MANIFEST_MAX_BYTES
from ckstore.model.manifest.parse import parse_manifest
from ckstore.objects.documents.annotations import ANNOTATIONS_MAX_BYTES
from ckstore.remote import keys
from ckstore.remote.keys import Place
from ckstore.remote.small_objects import read_tags

if TYPE_CHECKING:
    from ckstore.model.manifest.manifest import Manifest
    from ckstore.remote.objects import Objects


_MOST_PLACES = 1_000_000


class Source(Protocol):
    """What a pull and a read of evicted blobs ask for. Every method may be called by several threads."""

    @property
    def name(self) -> str:
        """What users call it."""

    def places(self, under: str = "") -> list[Place]:
        """Return the checkpoints whose run, step and id, joined by slashes, begin with `under`."""

    def manifest(self, place: Place) -> bytes | None:
        """Return the bytes of a manifest; None if the checkpoint is not there."""

    def annotations(self, place: Place) -> bytes | None:
        """Return the bytes of what was added to a checkpoint; None: nothing."""

    def tags(self) -> dict[str, Place]:
        """Return what each tag names."""

    def pins(self) -> dict[str, bytes]:
        """Return the bytes of each pin, by its name."""

    def read_into(self, place: Place, digest: str, offset: int, into: memoryview) -> bool:
        """Fill memory with the bytes of a blob of a checkpoint; False if it is missing. Nothing is verified."""

    def close(self) -> None:
        """End the waits of all threads, and refuse further calls, where there are any to wait for."""


class ObjectSource:
    """A remote on object storage as a source."""

    def __init__(self, objects: Objects, name: str) -> None:
        self.name = name
        self._objects = objects
        self._names: dict[str, str] = {}

    def use(self, digest: str, name: str) -> None:
        """Read a blob by this name of it."""
        self._names[digest] = name

    def close(self) -> None:
        """See `Source`."""
        self._objects.close()

    def places(self, under: str = "") -> list[Place]:
        """See `Source`."""
        found: set[Place] = set()
        dropped: set[Place] = set()
        for listed in self._objects.list(f"{keys.CHECKPOINTS}{under}"):
            if (place := keys.place_in(listed.key)) is not None:
                found.add(place)
            elif (gone := keys.dropped_in(listed.key)) is not None:
                dropped.add(gone)
            if len(found) + len(dropped) > _MOST_PLACES:  # what is listed is kept, and costs a liar nothing
                raise RemoteError(f"{self.name} lists more than {_MOST_PLACES:,} checkpoints")
        return sorted(found - dropped)

    def manifest(self, place: Place) -> bytes | None:
        """See `Source`."""
        return self._objects.get(place.manifest, MANIFEST_MAX_BYTES)

    def annotations(self, place: Place) -> bytes | None:
        """See `Source`."""
        return self._objects.get(place.annotations, ANNOTATIONS_MAX_BYTES)

    def tags(self) -> dict[str, Place]:
        """See `Source`."""
        return {name: Place(tag.run, tag.step, tag.id) for name, tag in read_tags(self._objects).items()}

    def pins(self) -> dict[str, bytes]:
        """See `Source`."""
        found = {name: listed.key for listed in self._objects.list(keys.PINS) if (name := keys.pin_in(listed.key))}
        read = {name: self._objects.get(key, PIN_MAX_BYTES) for name, key in found.items()}
        return {name: data for name, data in read.items() if data is not None}

    def read_into(self, place: Place, digest: str, offset: int, into: memoryview) -> bool:
        """See `Source`."""
        del place
        name = self._names.get(digest, digest)
        if self._objects.read_into(keys.blob(name), offset, into):
            return True
        # The bare name may have been burnt: then it goes on under a number, and the greatest counts.
        for other in self._others(digest):
            if self._objects.read_into(keys.blob(other), offset, into):
                self._names[digest] = other
                return True
        return False

    def _others(self, digest: str) -> list[str]:
        names = (keys.blob_in(listed.key) for listed in self._objects.list(f"{keys.blob(digest)}."))
        numbers = sorted((name.number for name in names if name is not None and name.digest == digest), reverse=True)
        return [str(keys.BlobName(digest, number)) for number in numbers]


def read_manifest(source: Source, place: Place, hash_prefix: str) -> tuple[Manifest, str, bytes] | None:
    """Return the manifest of a checkpoint at a source, its id, and its bytes; None if it is not there any more.

    It is read by the reader of every manifest, with its bounds, and must be the checkpoint that its place says.

    Raises:
        RemoteError: It is damaged, or another one.
    """
    data = source.manifest(place)
    if data is None:
        return None
    where = f"the manifest of {place.name} at {source.name}"
    try:
        manifest, manifest_id = parse_manifest(data, where=where, hash_prefix=hash_prefix)
    except DamagedBlob as error:
        raise RemoteError(
            error.message, hint=error.hint or "push that checkpoint again from where it is whole"
        ) from error
    except CkstoreError as error:
        raise RemoteError(error.message, hint=error.hint) from error
    if (manifest.run, manifest.step, manifest_id) != tuple(place):
        msg = f"{where} says {manifest.name} with id {manifest_id}, wanted id {place.id}"
        raise RemoteError(msg)
    return manifest, manifest_id, data
