"""Plain blobs out of the encoded files of a remote, with what is here already. Source: docs/format/remote-v1.md.

Every plain blob is compared with its digest before it is used, also as a base; a piece that is changed in its place is
compared by who asked for it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from ckstore.codecs import container
from ckstore.codecs.container import Header, Tiles
from ckstore.codecs.tiles import StoredTile, decode, needs_base
from ckstore.errors import DamagedBlob, RemoteError
from ckstore.model.digest import Buffer, algorithm_of
from ckstore.model.manifest.manifest import BLOB_MAX_BYTES
from ckstore.model.manifest.stored import EncodedBlob, Encoding, OldPiece
from ckstore.model.words import mending_there
from ckstore.remote import keys

ReadFile = Callable[[str, int, memoryview], bool]
"""Fills memory with bytes of a file of the remote: its digest, the first byte; False if it is missing."""
Near = Callable[[str], "Buffer | None"]
"""Returns a plain blob that is here. It is compared, so it may be damaged."""

# A pack has many pieces, and is a base of many: four blobs of the default size.
_KEPT_BYTES = 128 * 2**20
# Blobs decoded for one: a hostile remote could let each of 8 levels ask for 256 others, again and again.
_DECODED_MOST = 4096


class MissingFile(Exception):
    """A file is missing at the remote."""


def nothing_near(_: str) -> Buffer | None:
    """Have nothing here."""
    return None


class Decoding:
    """Gives plain bytes of checkpoints of one remote. May be used by several threads."""

    def __init__(self, read: ReadFile, near: Near, where: str) -> None:
        self._read, self._near, self._where = read, near, where
        self._kept: OrderedDict[str, Buffer] = OrderedDict()
        self._mutex = threading.Lock()

    def read_into(self, encoding: Encoding, digest: str, offset: int, into: memoryview) -> int | None:
        """Fill memory with bytes of a plain blob; return how many bytes came from the remote. None: one is missing."""
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
            raise RemoteError(f"blob {digest} at {self._where} has {len(plain)} bytes, and more are wanted")
        into[:] = plain[offset : offset + len(into)]
        return work.received_bytes

    def advance(self, encoding: Encoding, digest: str, offset: int, into: memoryview, old: OldPiece) -> int | None:
        """Turn an old piece that is in memory into one of this blob, in its place; return the bytes that came.

        None: there is no difference between the two, or the memory is not what it was said to be; it is as it was. An
        error may leave it changed.
        """
        forms = (encoding.links.get(digest), encoding.encoded.get(digest))
        form = next((form for form in forms if form is not None and old.blob in form.bases), None)
        # Compared before anything is built on it: whose memory it is may have changed it since.
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
                # What is there is what it is the difference to.
                decode(StoredTile(tile.codec, stored), tile.run.width, part)
        except MissingFile:
            return None
        except DamagedBlob as error:
            raise RemoteError(f"blob {digest} at {self._where}: {error.message}", hint=error.hint) from error
        return work.received_bytes

    def file(self, digest: str, nbytes: int) -> tuple[Buffer, int]:
        """Return a file of the remote that has its digest, and how many bytes came; `MissingFile`: it is not there."""
        if (kept := self.kept(digest)) is not None:
            return kept, 0
        data = bytearray(nbytes)
        if not self._read(digest, 0, memoryview(data)):
            raise MissingFile
        if algorithm_of(digest).digest(data) != digest:
            raise DamagedBlob(f"file {digest} came with other bytes", hint=mending_there(keys.blob(digest)))
        self.keep(digest, data)
        return data, nbytes

    def here(self, digest: str) -> Buffer | None:
        """Return a plain blob that is here, if it is what its digest says."""
        if (kept := self.kept(digest)) is not None:
            return kept
        data = self._near(digest)
        if data is None or algorithm_of(digest).digest(data) != digest:
            return None
        self.keep(digest, data)
        return data

    def kept(self, digest: str) -> Buffer | None:
        """Return what was read or decoded a moment ago."""
        with self._mutex:
            if digest in self._kept:
                self._kept.move_to_end(digest)
            return self._kept.get(digest)

    def keep(self, digest: str, data: Buffer) -> None:
        """Keep bytes that have this digest, and forget what was used longest ago."""
        with self._mutex:
            self._kept[digest] = data
            while len(self._kept) > 1 and sum(map(len, self._kept.values())) > _KEPT_BYTES:
                self._kept.popitem(last=False)


class _Work:
    """One read: the blobs of one checkpoint, whose encoding was checked for loops and long paths."""

    def __init__(self, decoding: Decoding, encoding: Encoding) -> None:
        self.received_bytes = 0
        self._decoding, self._encoding = decoding, encoding
        self._sizes = dict(encoding.files)
        self._decoded_count = 0

    def is_near(self, form: EncodedBlob | None) -> bool:
        """Whether all that a blob is decoded with is here."""
        return form is not None and all(self._decoding.here(base) is not None for base in form.bases)

    def plain(self, digest: str) -> Buffer:
        """Return a plain blob, which has its digest."""
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
            raise DamagedBlob(f"more than {_DECODED_MOST} blobs would have to be decoded for it")

        def read_base(base: str, start: int, length: int) -> Buffer:
            found = memoryview(self.plain(base))[start : start + length]
            if len(found) != length:
                raise DamagedBlob(f"bytes beyond the end of its base {base} are wanted")
            return found

        plain = container.decode_file(*self.opened(digest, form), read_base)
        found = algorithm_of(digest).digest(plain)
        if found != digest:
            raise DamagedBlob(f"what it decodes to has the digest {found}")
        self._decoding.keep(digest, plain)
        return plain

    def opened(self, digest: str, form: EncodedBlob) -> tuple[Header, Tiles, memoryview]:
        """Return an encoded file, taken apart."""
        data, nbytes = self._decoding.file(*self._encoding.files[form.file])
        self.received_bytes += nbytes
        file = memoryview(data)
        header, tiles = container.parse_file(file, where=digest, most_bytes=BLOB_MAX_BYTES)
        if (header.plain, header.nbytes, header.bases) != (digest, form.nbytes, form.bases):
            raise DamagedBlob("its encoded file is of another blob, or has other bases than the checkpoint says")
        return header, tiles, file
