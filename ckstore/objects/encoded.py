"""Read bytes of plain blobs from the files in the directory of a compacted checkpoint.

All needed files are in this directory. The caller must compare the decoded bytes with the requested digest. Source:
docs/format/encoded-1.md.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple, Self

from ckstore.codecs import container
from ckstore.codecs.casts import base_bytes, predict
from ckstore.codecs.container import Tile, Tiles
from ckstore.codecs.tiles import TILE_BYTES, StoredTile, decode, needs_base
from ckstore.errors import BadInput, DamagedBlob
from ckstore.fs import dirfd_stat, files
from ckstore.fs.dirfd_stat import StorePath
from ckstore.model.manifest.encoding import HEAD_BYTES, EncodedBlob, Encoding, begins_one, encoding_of
from ckstore.model.manifest.manifest import BLOB_MAX_BYTES, MANIFEST_MAX_BYTES, BlobRecord
from ckstore.model.manifest.parse import parse_encoding
from ckstore.model.names import CheckpointKey
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.objects.layout import MANIFEST, Layout

# The maximum number of open files. A blob and its chain of bases have at most nine files, and a blob may have small
# parts that are encoded against several bases.
_OPEN_MOST = 16
_HEADS_MOST_TILES = 2**18  # the maximum number of tiles in open files, whose heads take about 60 MiB
_KEPT_MOST = 16
# The maximum number of decoded bytes per requested byte. If the blobs of a chain of bases are cut into tiles at
# different offsets, the first MiB needs 44 tiles, or twice as many with a cast. In a hostile file, consecutive tiles
# can refer to distant parts of the base, so that each of them requires decoding a tile of every blob in the chain.
_WORK_TIMES = 128
# Parsing one byte of a head takes as long as decoding this many bytes.
_HEAD_TIMES = 64


class _File(NamedTuple):
    """An open file: a plain blob, or an encoded one with its tiles."""

    fd: int
    tiles: Tiles | None


class Decoder:
    """A context manager that reads plain bytes of blobs of an open checkpoint, encoded or not. For one thread only."""

    def __init__(self, directory: CheckpointDirectory) -> None:
        self._directory = directory
        encoding = encoding_of(directory.manifest) or Encoding("", directory.manifest.blobs, {})
        self._encoding = encoding
        self._open: OrderedDict[str, _File] = OrderedDict()
        self._sizes = dict(encoding.files)
        self._kept: OrderedDict[str, tuple[int, bytearray]] = OrderedDict()
        self._met: set[str] = set()
        self._left_bytes = 0

    def read(self, digest: str, start: int, out: memoryview, what: str) -> None:
        """Fill `out` with the bytes of a plain blob from `start`, without checking them. `what` is for messages."""
        self._left_bytes = _WORK_TIMES * (len(out) + TILE_BYTES)
        self._read(digest, start, out, what)

    def _read(self, digest: str, start: int, out: memoryview, what: str) -> None:
        form = self._encoding.encoded.get(digest)
        if start + len(out) > (self._sizes[digest] if form is None else form.nbytes):
            raise DamagedBlob(f"{what}: a base refers to bytes beyond the end of blob {digest}")
        name = self._encoding.file_of(digest)
        try:
            if form is None:
                fd = self._file(digest, what).fd
                files.read_into(fd, start, out, f"{self._directory.path}: blob {name} of {what}")
            else:
                self._decode(digest, start, out, what)
        except DamagedBlob as error:
            if error.blob:  # the error already names a damaged base
                raise
            msg = f"{self._directory.path}: the encoded blob {name} of {what} is damaged, because {error.message}"
            raise DamagedBlob(msg, hint=error.hint, blob=name, names=(what,)) from error

    def _decode(self, digest: str, start: int, out: memoryview, what: str) -> None:
        tiles = self._file(digest, what).tiles
        if tiles is None:
            raise DamagedBlob(f"blob {digest} of {what} is not encoded")
        for tile in tiles.between(start, start + len(out)):
            low, high = max(start, tile.start), min(start + len(out), tile.start + tile.nbytes)
            part = out[low - start : high - start]
            if len(part) == tile.nbytes:
                self._tile(digest, tiles, tile, part, what)
                continue
            # Keep the decoded tile: if the tiles of a base are cut at other offsets, each tile is needed twice.
            kept = self._kept.get(digest)
            if kept is None or kept[0] != tile.start:
                self._kept.pop(digest, None)
                data = bytearray(tile.nbytes)
                self._tile(digest, tiles, tile, memoryview(data), what)
                kept = self._kept[digest] = (tile.start, data)
                while len(self._kept) > _KEPT_MOST:
                    self._kept.popitem(last=False)
            part[:] = memoryview(kept[1])[low - tile.start : high - tile.start]

    def _tile(self, digest: str, tiles: Tiles, tile: Tile, out: memoryview, what: str) -> None:
        self._work(tile.nbytes)
        if needs_base(tile.codec):
            base, prediction = tiles.header.base_of(tile), tile.run.prediction
            # Read the base directly into `out`, where the tile is decoded, so that no copy is needed.
            if prediction == "same":
                self._read(base, tile.base_start, out, what)
            else:
                wide = memoryview(bytearray(base_bytes(prediction, tile.nbytes)))
                self._read(base, tile.base_start, wide, what)
                predict(prediction, wide, out)
        # Open the file again if reading the base has closed it.
        data = memoryview(bytearray(tile.stored_bytes))
        files.read_into(self._file(digest, what).fd, tile.stored_start, data, what)
        decode(StoredTile(tile.codec, data), tile.run.width, out)

    def _work(self, nbytes: int) -> None:
        self._left_bytes -= nbytes
        if self._left_bytes < 0:
            raise DamagedBlob(f"decoding it would process more than {_WORK_TIMES} times its size")

    def _file(self, digest: str, what: str) -> _File:
        if digest in self._open:
            self._open.move_to_end(digest)
            return self._open[digest]
        self._make_room(0)
        form = self._encoding.encoded.get(digest)
        if form is None:
            file = _File(self._directory.open_blob(BlobRecord(digest, self._sizes[digest]), what), None)
        else:
            file = self._opened(digest, form, what)
            self._make_room(file.tiles.header.tile_count if file.tiles is not None else 0)
        self._open[digest] = file
        return file

    def _make_room(self, tile_count: int) -> None:
        """Close the least recently used files until the tiles of another file are within the limit."""
        counts = {digest: f.tiles.header.tile_count for digest, f in self._open.items() if f.tiles is not None}
        total = sum(counts.values()) + tile_count
        while self._open and (len(self._open) >= _OPEN_MOST or total > _HEADS_MOST_TILES):
            digest, file = self._open.popitem(last=False)
            total -= counts.get(digest, 0)
            os.close(file.fd)

    def _opened(self, digest: str, form: EncodedBlob, what: str) -> _File:
        record = self._encoding.files[form.file]
        fd = self._directory.open_blob(record, what, whole=True)
        try:
            tiles = read_head(fd, record, digest, form)
            # The first parsing of a head is free. Further ones count as work, because a hostile file can cause many.
            if digest in self._met:
                self._work(_HEAD_TIMES * tiles.header_bytes)
            self._met.add(digest)
        except DamagedBlob as error:
            os.close(fd)
            error.blob, error.names = record.digest, (what,)
            raise
        except BaseException:
            os.close(fd)
            raise
        return _File(fd, tiles)

    def close(self) -> None:
        """Close the open files."""
        while self._open:
            os.close(self._open.popitem()[1].fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def encoding_at(path: StorePath) -> Encoding | None:
    """Return the encoding of the blobs in the directory of a compacted checkpoint, or None."""
    try:
        with files.opened_regular(path / MANIFEST) as fd:
            # Read only the beginning first, since most checkpoints are plain, and their manifests are long.
            if not begins_one(os.pread(fd, HEAD_BYTES, 0)):
                return None
        data = files.read_file(path / MANIFEST, most_bytes=MANIFEST_MAX_BYTES)
        return parse_encoding(data, where=str(path / MANIFEST))
    except (FileNotFoundError, NotADirectoryError, PermissionError, BadInput, DamagedBlob):
        return None


def compacted_bytes(layout: Layout, keys: Iterable[CheckpointKey]) -> tuple[int, int]:
    """Return the number of bytes that encoded blobs save, and the total size of the encoded files.

    `keys` are the compacted checkpoints. Each blob counts once.
    """
    # If a blob is also stored in plain form, its encoded form saves no space.
    plain, stored = {}, {}
    there: set[str] = set()
    for key in keys:
        encoding = encoding_at(layout.checkpoint(key))
        if encoding is None:
            continue
        there.update(file.digest for file in encoding.files)
        for digest, form in encoding.encoded.items():
            plain[digest] = form.nbytes
            stored[digest] = encoding.files[form.file].nbytes
    gone = (d for d in plain if d not in there and dirfd_stat.find(layout.blob(d)) is None)
    return sum(plain[digest] - stored[digest] for digest in gone), sum(stored.values())


def read_head(fd: int, record: BlobRecord, digest: str, form: EncodedBlob) -> Tiles:
    """Return the tiles of the open encoded file `record`, which must belong to the blob `digest`."""
    where = f"the encoded blob {record.digest}"
    head = _read(fd, 0, container.HEAD_BYTES, record, where)
    first = container.HEAD_BYTES + container.header_bytes(head)
    data = _read(fd, container.HEAD_BYTES, first - container.HEAD_BYTES, record, where)
    header = container.parse_header(data, where=where, most_bytes=BLOB_MAX_BYTES)
    if (header.plain, header.nbytes, header.bases) != (digest, form.nbytes, form.bases):
        raise DamagedBlob(
            f"{where} belongs to the blob {header.plain}, or its size or bases differ from those in the manifest"
        )
    body = first + header.table_bytes
    table = _read(fd, first, header.table_bytes, record, where)
    return container.Tiles(header, table, record.nbytes, first=body, where=where)


def _read(fd: int, start: int, nbytes: int, record: BlobRecord, where: str) -> bytearray:
    # `nbytes` is a number from the file, so compare it with the size of the file before allocating memory.
    if start + nbytes > record.nbytes:
        raise DamagedBlob(f"{where} has {record.nbytes} bytes, and its head takes {start + nbytes}")
    data = bytearray(nbytes)
    files.read_into(fd, start, memoryview(data), where)
    return data
