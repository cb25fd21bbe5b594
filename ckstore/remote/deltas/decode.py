"""Decode the encoded files of a remote to plain blobs, with the help of local blobs. Source: docs/format/remote-v1.md.

Every plain blob is compared with its digest before it is used, including its use as a base. If a piece is updated in
place, the caller compares the result with its digest.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from ckstore.codecs import container
from ckstore.codecs.container import Header, Tiles
from ckstore.codecs.tiles import StoredTile, decode, needs_base
from ckstore.errors import CkstoreError, DamagedBlob, RemoteError
from ckstore.model.digest import Buffer, algorithm_of
from ckstore.model.manifest.encoding import HEAD_BYTES, EncodedBlob, Encoding, begins_one
from ckstore.model.manifest.manifest import BLOB_MAX_BYTES, MANIFEST_MAX_BYTES
from ckstore.model.manifest.parse import parse_encoding
from ckstore.model.manifest.stored import PLAIN_FORM, OldPiece, StoredForm
from ckstore.model.words import mending_there
from ckstore.remote import keys
from ckstore.remote.keys import Place
from ckstore.remote.objects import Objects

ReadFile = Callable[[str, int, memoryview], bool]
"""A function that fills memory with bytes of a file on the remote, given the digest of the file and an offset. It
returns False if the file is missing."""
Near = Callable[[str], "Buffer | None"]
"""A function that returns the plain bytes of a local blob, or None. The caller checks the bytes for damage."""

# The size of the cache: four blobs of the default size. A pack is needed repeatedly, because it has many pieces and is
# the base of many blobs.
_KEPT_BYTES = 128 * 2**20
# The maximum number of blobs that are decoded for one blob. Otherwise, a hostile remote could cause the decoding of 256
# other blobs at each of 8 levels.
_DECODED_MOST = 4096


_KEPT_FILES = 200_000
"""The maximum number of files in all encodings that are kept in memory, about 40 MB. An encoding can be read again."""


class MissingFile(Exception):
    """A file is missing on the remote."""


def nothing_near(_: str) -> Buffer | None:
    """Return None for every digest, for callers without local blobs."""
    return None


def _file_count(encoding: Encoding) -> int:
    return len(encoding.encoded) + len(encoding.links)


class Decoding:
    """Reads plain blobs of the checkpoints of one remote. Threads may share an instance."""

    def __init__(self, objects: Objects, read: ReadFile, near: Near, where: str) -> None:
        self._objects = objects
        self._plain: set[Place] = set()  # checkpoints without an encoding
        self._encodings: OrderedDict[Place, Encoding] = OrderedDict()
        self._file_count = 0  # the number of files in `_encodings`
        self._read, self._near, self._where = read, near, where
        self._kept: OrderedDict[str, Buffer] = OrderedDict()
        self._mutex = threading.Lock()

    def form(self, place: Place) -> StoredForm:
        """Return the form in which the blobs of a checkpoint are stored. It is plain for a missing checkpoint."""
        return self._encoding(place) or PLAIN_FORM

    def note(self, place: Place, manifest: bytes | None) -> Encoding | None:
        """Keep and return the encoding of a checkpoint from its ``manifest.json``, so that the file is not read again.

        A missing or plain manifest means that the checkpoint has no encoding.
        """
        found = None
        if manifest is not None and begins_one(manifest[:HEAD_BYTES]):
            try:
                found = parse_encoding(manifest, where=f"{place.manifest} at {self._where}")
            except CkstoreError as error:
                raise RemoteError(error.message, hint=error.hint) from error
            if found.checkpoint != place.id:
                raise RemoteError(f"{place.manifest} at {self._where} is of another checkpoint: {found.checkpoint}")
        with self._mutex:
            # Another store may have encoded the checkpoint since it was noted, so the earlier note is replaced.
            self._plain.discard(place)
            if (before := self._encodings.pop(place, None)) is not None:
                self._file_count -= _file_count(before)
            if found is None:
                self._plain.add(place)
            else:
                self._encodings[place] = found
                self._file_count += _file_count(found)
            while self._file_count > _KEPT_FILES and len(self._encodings) > 1:
                _, oldest = self._encodings.popitem(last=False)
                self._file_count -= _file_count(oldest)
        return found

    def _encoding(self, place: Place) -> Encoding | None:
        if place in self._plain:
            return None
        if (found := self._encodings.get(place)) is not None:
            return found
        head = memoryview(bytearray(HEAD_BYTES))
        # Only the head is read at first, because most checkpoints are plain, and their manifests are long.
        is_one = self._objects.read_into(place.manifest, 0, head) and begins_one(bytes(head))
        return self.note(place, self._objects.get(place.manifest, MANIFEST_MAX_BYTES) if is_one else None)

    def read_into(self, place: Place, digest: str, offset: int, into: memoryview) -> int | None:
        """Fill memory with bytes of a plain blob. Return the number of bytes received, or None if a file is missing."""
        encoding = self._encoding(place)
        if encoding is None:
            return len(into) if self._read(digest, offset, into) else None
        work = _Work(self, encoding)
        try:
            if digest not in encoding.encoded and not work.is_near(encoding.links.get(digest)):
                return len(into) if self._read(digest, offset, into) else None
            plain = memoryview(work.plain(digest))
        except MissingFile:
            return None
        except DamagedBlob as error:
            raise RemoteError(f"blob {digest} at {self._where}: {error.message}", hint=error.hint) from error
        if offset + len(into) > len(plain):
            raise RemoteError(f"blob {digest} at {self._where} has {len(plain)} bytes, fewer than requested")
        into[:] = plain[offset : offset + len(into)]
        return work.received_bytes

    def advance(self, place: Place, digest: str, offset: int, into: memoryview, old: OldPiece) -> int | None:
        """Update memory that holds an old piece to a piece of this blob, in place. Return the number of bytes received.

        Return None and leave the memory unchanged if the remote has no difference between the two pieces, or if the
        memory does not contain the old piece. After an error, the memory may have changed.
        """
        encoding = self._encoding(place)
        if encoding is None:
            return None
        forms = (encoding.links.get(digest), encoding.encoded.get(digest))
        form = next((form for form in forms if form is not None and old.blob in form.bases), None)
        # The old piece is compared before it is used, because the owner of the memory may have changed it.
        if form is None or algorithm_of(old.piece).digest(into) != old.piece:
            return None
        work = _Work(self, encoding)
        try:
            header, tiles, file = work.opened(digest, form)
            found = list(tiles.between(offset, offset + len(into)))
            for tile in found:
                is_inside = offset <= tile.start and tile.start + tile.nbytes <= offset + len(into)
                if needs_base(tile.codec) and (
                    tile.run.prediction != "same"
                    or header.base_of(tile) != old.blob
                    or tile.base_start - old.offset != tile.start - offset
                ):
                    return None
                if not is_inside:
                    return None
            for tile in found:
                part = into[tile.start - offset :][: tile.nbytes]
                stored = file[tile.stored_start : tile.stored_start + tile.stored_bytes]
                # The memory already contains the base of this tile, so the tile is decoded in place.
                decode(StoredTile(tile.codec, stored), tile.run.width, part)
        except MissingFile:
            return None
        except DamagedBlob as error:
            raise RemoteError(f"blob {digest} at {self._where}: {error.message}", hint=error.hint) from error
        return work.received_bytes

    def file(self, digest: str, nbytes: int) -> tuple[Buffer, int]:
        """Return a file of the remote, compared with its digest, and the number of bytes received.

        Raises:
            MissingFile: The remote does not have the file.
            DamagedBlob: The bytes do not have the digest.
        """
        if (kept := self.kept(digest)) is not None:
            return kept, 0
        data = bytearray(nbytes)
        if not self._read(digest, 0, memoryview(data)):
            raise MissingFile
        if algorithm_of(digest).digest(data) != digest:
            raise DamagedBlob(f"file {digest} was received with other bytes", hint=mending_there(keys.blob(digest)))
        self.keep(digest, data)
        return data, nbytes

    def here(self, digest: str) -> Buffer | None:
        """Return a plain blob from the cache or the local store, or None if it is missing or damaged."""
        if (kept := self.kept(digest)) is not None:
            return kept
        data = self._near(digest)
        if data is None or algorithm_of(digest).digest(data) != digest:
            return None
        self.keep(digest, data)
        return data

    def kept(self, digest: str) -> Buffer | None:
        """Return a blob or file from the cache, or None."""
        with self._mutex:
            if digest in self._kept:
                self._kept.move_to_end(digest)
            return self._kept.get(digest)

    def keep(self, digest: str, data: Buffer) -> None:
        """Add bytes with this digest to the cache, and remove the least recently used entries."""
        with self._mutex:
            self._kept[digest] = data
            while len(self._kept) > 1 and sum(map(len, self._kept.values())) > _KEPT_BYTES:
                self._kept.popitem(last=False)


class _Work:
    """One read from a checkpoint, whose encoding was already checked for cycles and long paths."""

    def __init__(self, decoding: Decoding, encoding: Encoding) -> None:
        self.received_bytes = 0
        self._decoding, self._encoding = decoding, encoding
        self._sizes = dict(encoding.files)
        self._decoded_count = 0

    def is_near(self, form: EncodedBlob | None) -> bool:
        """Whether all bases of an encoded blob are available locally."""
        return form is not None and all(self._decoding.here(base) is not None for base in form.bases)

    def plain(self, digest: str) -> Buffer:
        """Return a plain blob, compared with its digest."""
        if (here := self._decoding.here(digest)) is not None:
            return here
        link, form = self._encoding.links.get(digest), self._encoding.encoded.get(digest)
        if link is not None and self.is_near(link):
            return self._decode(digest, link)
        if form is not None:
            return self._decode(digest, form)
        data, nbytes = self._decoding.file(digest, self._sizes[digest])
        self.received_bytes += nbytes
        return data

    def _decode(self, digest: str, form: EncodedBlob) -> Buffer:
        self._decoded_count += 1
        if self._decoded_count > _DECODED_MOST:
            raise DamagedBlob(f"it requires decoding more than {_DECODED_MOST} blobs")

        def read_base(base: str, start: int, length: int) -> Buffer:
            found = memoryview(self.plain(base))[start : start + length]
            if len(found) != length:
                raise DamagedBlob(f"it refers to bytes beyond the end of its base {base}")
            return found

        plain = container.decode_file(*self.opened(digest, form), read_base)
        found = algorithm_of(digest).digest(plain)
        if found != digest:
            raise DamagedBlob(f"its decoded bytes have the digest {found}")
        self._decoding.keep(digest, plain)
        return plain

    def opened(self, digest: str, form: EncodedBlob) -> tuple[Header, Tiles, memoryview]:
        """Return the header, the tiles and the bytes of an encoded file."""
        data, nbytes = self._decoding.file(*self._encoding.files[form.file])
        self.received_bytes += nbytes
        file = memoryview(data)
        header, tiles = container.parse_file(file, where=digest, most_bytes=BLOB_MAX_BYTES)
        if (header.plain, header.nbytes, header.bases) != (digest, form.nbytes, form.bases):
            raise DamagedBlob(
                "its encoded file belongs to another blob, or its size or bases differ from those in the manifest"
            )
        return header, tiles, file
