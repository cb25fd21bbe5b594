"""Bytes of plain blobs out of the files of a compacted checkpoint: all of them lie in its own directory.

Source: docs/format/encoded-1.md. What is decoded is compared by the caller with the digest that was asked for.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple, Self

from ckstore.codecs import container
from ckstore.codecs.casts import base_bytes
from ckstore.codecs.tiles import TILE_BYTES
from ckstore.errors import DamagedBlob
from ckstore.fs import files
from ckstore.model.manifest.manifest import BLOB_MAX_BYTES, BlobRecord

if TYPE_CHECKING:
    from ckstore.codecs.container import Tile, Tiles
    from ckstore.model.digest import Buffer
    from ckstore.model.manifest.stored import EncodedBlob, Encoding
    from ckstore.objects.checkpoints import CheckpointDirectory

# A path has at most nine files; small runs of several bases lie in one blob.
_OPEN_MOST = 16


class _File(NamedTuple):
    """An open file: a plain blob, or an encoded one with its head."""

    fd: int
    header: container.Header | None
    tiles: Tiles | None


class Decoder:
    """Reads plain bytes of the blobs of an open checkpoint, encoded or not; a context manager. Not for several threads.

    Args:
        directory: The checkpoint, which was compacted.
        encoding: How its blobs are stored.
    """

    def __init__(self, directory: CheckpointDirectory, encoding: Encoding) -> None:
        self._directory = directory
        self._encoding = encoding
        self._open: OrderedDict[str, _File] = OrderedDict()
        self._sizes = dict(encoding.files)
        self._kept: dict[str, tuple[int, bytearray]] = {}

    def read(self, digest: str, start: int, out: memoryview, what: str) -> None:
        """Fill `out` with the bytes of a plain blob from `start` on; `what` needs them.

        Raises:
            DamagedBlob: A file on its path is damaged or missing, as far as that shows.
        """
        form = self._encoding.encoded.get(digest)
        if start + len(out) > (self._sizes[digest] if form is None else form.nbytes):
            raise DamagedBlob(f"{what}: bytes beyond the end of blob {digest} are wanted of a base")
        file = self._file(digest, form, what)
        name = self._encoding.file_of(digest)
        try:
            if file.tiles is None:
                files.read_into(file.fd, start, out, f"{self._directory.path}: blob {name} of {what}")
                return
            self._decode(digest, file, start, out, what)
        except DamagedBlob as error:
            if error.blob:  # it is said already, of a base
                raise
            msg = f"{self._directory.path}: the encoded blob {name} of {what} is damaged: {error.message}"
            raise DamagedBlob(msg, hint=error.hint, blob=name, names=(what,)) from error

    def _decode(self, digest: str, file: _File, start: int, out: memoryview, what: str) -> None:
        if file.tiles is None:
            return
        stop = start + len(out)
        for tile in file.tiles.between(start, stop):
            low, high = max(start, tile.start), min(stop, tile.start + tile.nbytes)
            part = out[low - start : high - start]
            if high - low == tile.nbytes:
                self._tile(file, tile, part, what)
                continue
            # Kept: the tiles of a base may be cut elsewhere, and then each is wanted twice.
            kept = self._kept.get(digest)
            if kept is None or kept[0] != tile.start:
                data = bytearray(tile.nbytes)
                self._kept.pop(digest, None)
                self._tile(file, tile, memoryview(data), what)
                kept = self._kept[digest] = (tile.start, data)
            part[:] = memoryview(kept[1])[low - tile.start : high - tile.start]

    def _tile(self, file: _File, tile: Tile, out: memoryview, what: str) -> None:
        data = bytearray(tile.stored_bytes)
        files.read_into(file.fd, tile.stored_start, memoryview(data), what)
        base: Buffer | None = None
        if file.header is not None and container.needs_base(tile) and tile.run.base >= 0:
            wanted = memoryview(bytearray(base_bytes(tile.run.prediction, tile.nbytes)))
            self.read(file.header.bases[tile.run.base], tile.base_start, wanted, what)
            base = wanted
        container.decode_tile(tile, data, base, out)

    def _file(self, digest: str, form: EncodedBlob | None, what: str) -> _File:
        if digest in self._open:
            self._open.move_to_end(digest)
            return self._open[digest]
        while len(self._open) >= _OPEN_MOST:
            os.close(self._open.popitem(last=False)[1].fd)
        if form is None:
            file = _File(self._directory.open_blob(BlobRecord(digest, self._sizes[digest]), what), None, None)
        else:
            file = self._opened(digest, form, what)
        self._open[digest] = file
        return file

    def _opened(self, digest: str, form: EncodedBlob, what: str) -> _File:
        record = self._encoding.files[form.file]
        fd = self._directory.open_blob(record, what, whole=True)
        try:
            return _File(fd, *read_head(fd, record, digest, form))
        except DamagedBlob as error:
            os.close(fd)
            error.blob, error.names = record.digest, (what,)
            raise
        except BaseException:
            os.close(fd)
            raise

    def close(self) -> None:
        """Close the files that are open."""
        while self._open:
            os.close(self._open.popitem()[1].fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_encoded(directory: CheckpointDirectory, digest: str) -> bool:
    """Whether no file of a checkpoint has the bytes of a blob as they are."""
    encoding = directory.manifest.encoding
    return encoding is not None and digest in encoding.encoded


def decoded(directory: CheckpointDirectory, digest: str, start: int, out: memoryview, what: str) -> bool:
    """Fill `out` with bytes of a blob that is encoded; False if it is not, so that its file has them."""
    encoding = directory.manifest.encoding
    if encoding is None or not is_encoded(directory, digest):
        return False
    with Decoder(directory, encoding) as decoder:
        # By parts: a tile of a base is as large as that of what is decoded with it.
        for at in range(0, len(out), TILE_BYTES):
            decoder.read(digest, start + at, out[at : at + TILE_BYTES], what)
    return True


def read_head(fd: int, record: BlobRecord, digest: str, form: EncodedBlob) -> tuple[container.Header, Tiles]:
    """Return header and tiles of an open encoded file, which is `record` and should be of the blob `digest`.

    Raises:
        DamagedBlob: It is not.
    """
    where = f"the encoded blob {record.digest}"
    head = _read(fd, 0, container.HEAD_BYTES, record, where)
    first = container.HEAD_BYTES + container.header_bytes(head)
    data = _read(fd, container.HEAD_BYTES, first - container.HEAD_BYTES, record, where)
    header = container.parse_header(data, where=where, most_bytes=BLOB_MAX_BYTES)
    if (header.plain, header.nbytes, header.bases) != (digest, form.nbytes, form.bases):
        raise DamagedBlob(f"{where} is of {header.plain}, or has other bases than its checkpoint says")
    body = first + header.table_bytes
    table = _read(fd, first, header.table_bytes, record, where)
    return header, container.Tiles(header, table, record.nbytes, first=body, where=where)


def _read(fd: int, start: int, nbytes: int, record: BlobRecord, where: str) -> bytearray:
    # Compared with what is there before it is allocated: the number is one of the file.
    if start + nbytes > record.nbytes:
        raise DamagedBlob(f"{where} has {record.nbytes} bytes, and its head takes {start + nbytes}")
    data = bytearray(nbytes)
    files.read_into(fd, start, memoryview(data), where)
    return data
