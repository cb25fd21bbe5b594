"""The file of an encoded blob: a header, a table of the tiles, and the tiles.

docs/format/encoded-1.md defines this format in "The container".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

from ckstore.codecs.casts import PREDICTIONS, Prediction, base_bytes, predict, predicted
from ckstore.codecs.tiles import TILE_BYTES, WIDTHS, Codec, StoredTile, decode, encode, needs_base
from ckstore.errors import BadInput, DamagedBlob
from ckstore.model.canonical import canonical_text
from ckstore.model.digest import Buffer, is_digest
from ckstore.model.document import parse_object

MAGIC = b"ckenc-1\n"
HEAD_BYTES = len(MAGIC) + 4
HEADER_MOST_BYTES = 2**20
BASES_MOST = 256
_ENTRY_BYTES = 4
_LENGTH_BITS = 24

ReadBase = Callable[[str, int, int], Buffer]
"""Returns bytes of a base, given its plain digest, the first byte and the number of bytes."""


class Run(NamedTuple):
    """A range of a blob with one element width, and one prediction if it has a base."""

    nbytes: int  # size of the range, a multiple of the width
    width: int  # bytes of an element
    prediction: Prediction = "same"  # how the range is predicted from the base
    base: int = -1  # index into the bases; -1 if the range has no base
    offset: int = 0  # offset in the base of the first byte from which the range is predicted


class Tile(NamedTuple):
    """A tile of an encoded blob, with the locations of its plain and stored bytes and of its bytes in the base."""

    run: Run
    start: int
    nbytes: int
    base_start: int
    codec: Codec
    stored_start: int
    stored_bytes: int


@dataclass(frozen=True)
class Header:
    """The content of the header of an encoded blob."""

    plain: str  # digest of the plain blob
    nbytes: int  # size of the plain blob, in bytes
    bases: tuple[str, ...]  # plain digests of the blobs that are needed for decoding
    runs: tuple[Run, ...]  # all ranges of the blob, in order
    tile_count: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tile_count", sum(-(-run.nbytes // TILE_BYTES) for run in self.runs))

    @property
    def table_bytes(self) -> int:
        """Size of the table after the header."""
        return self.tile_count * _ENTRY_BYTES

    def base_of(self, tile: Tile) -> str:
        """Return the digest of the base of a tile."""
        if tile.run.base < 0:
            raise DamagedBlob(f"a tile is stored as {tile.codec.name.lower()}, and has no base")
        return self.bases[tile.run.base]


def fits(header: Header) -> bool:
    """Whether a reader accepts a header of this length and number of bases.

    The header of a pack with 100,000 tensors, for example, may be too long.
    """
    return _has_room(header, _text(header))


def _has_room(header: Header, head: bytes) -> bool:
    return len(header.bases) <= BASES_MOST and len(head) <= HEADER_MOST_BYTES


def _text(header: Header) -> bytes:
    runs: list[list[Any]] = [
        [run.nbytes, run.width] if run.base < 0 else [run.nbytes, run.width, run.prediction, run.base, run.offset]
        for run in header.runs
    ]
    text = {"bases": list(header.bases), "bytes": header.nbytes, "plain": header.plain, "runs": runs}
    return canonical_text(text).encode("ascii")


def render(header: Header, tiles: Sequence[StoredTile]) -> bytes:
    """Return the file of an encoded blob. Raise `BadInput` if the header is too large for a reader."""
    head = _text(header)
    if not _has_room(header, head):
        found = f"{len(head)} bytes and {len(header.bases)} bases"
        most = f"{HEADER_MOST_BYTES} and {BASES_MOST}"
        raise BadInput(f"the header of an encoded blob has {found}, at most {most} can be read")
    entries = (tile.codec << _LENGTH_BITS | len(tile.data) for tile in tiles)
    table = b"".join(entry.to_bytes(_ENTRY_BYTES, "little") for entry in entries)
    return b"".join([MAGIC, len(head).to_bytes(4, "little"), head, table, *(tile.data for tile in tiles)])


def _go_on() -> None:
    pass


def encode_blob(
    plain: Buffer, header: Header, read_base: ReadBase, *, before_each: Callable[[], None] = _go_on
) -> bytes:
    """Encode a blob with the runs of `header`, and return the file. `before_each` is called before each tile."""
    whole = memoryview(plain)
    tiles = []
    for run, start, nbytes, base_start in _spans(header):
        before_each()
        base = None
        if run.base >= 0:
            wanted = base_bytes(run.prediction, nbytes)
            base = predicted(run.prediction, read_base(header.bases[run.base], base_start, wanted))
        tiles.append(encode(whole[start : start + nbytes], base, run.width))
    return render(header, tiles)


def decode_blob(
    data: Buffer, read_base: ReadBase, *, where: str, most_bytes: int, before_each: Callable[[], None] = _go_on
) -> bytearray:
    """Return the plain bytes of an encoded blob in memory."""
    file = memoryview(data)
    return decode_file(*parse_file(file, where=where, most_bytes=most_bytes), file, read_base, before_each)


def decode_file(
    header: Header, tiles: Tiles, file: memoryview, read_base: ReadBase, before_each: Callable[[], None] = _go_on
) -> bytearray:
    """Return the plain bytes of an encoded blob in memory, whose header and tiles are already parsed."""
    plain = bytearray(header.nbytes)
    out = memoryview(plain)
    for tile in tiles.between(0, header.nbytes):
        before_each()
        part = out[tile.start : tile.start + tile.nbytes]
        if needs_base(tile.codec):
            wanted = base_bytes(tile.run.prediction, tile.nbytes)
            predict(tile.run.prediction, read_base(header.base_of(tile), tile.base_start, wanted), part)
        stored = file[tile.stored_start : tile.stored_start + tile.stored_bytes]
        decode(StoredTile(tile.codec, stored), tile.run.width, part)
    return plain


def parse_file(file: memoryview, *, where: str, most_bytes: int) -> tuple[Header, Tiles]:
    """Return the header and the tiles of an encoded blob in memory."""
    first = HEAD_BYTES + header_bytes(file[:HEAD_BYTES])
    header = parse_header(file[HEAD_BYTES:first], where=where, most_bytes=most_bytes)
    body = first + header.table_bytes
    return header, Tiles(header, file[first:body], len(file), first=body, where=where)


def header_bytes(head: Buffer) -> int:
    """Return the length of the header, from the first `HEAD_BYTES` of a file."""
    nbytes = int.from_bytes(head[len(MAGIC) : HEAD_BYTES], "little")
    if bytes(head[: len(MAGIC)]) != MAGIC or len(head) < HEAD_BYTES or nbytes > HEADER_MOST_BYTES:
        raise DamagedBlob(f"not the head of an encoded blob: {bytes(head[:HEAD_BYTES])!r}")
    return nbytes


def parse_header(data: Buffer, *, where: str, most_bytes: int) -> Header:
    """Return the header. Raise `DamagedBlob` if any of its values is invalid."""
    try:
        members = parse_object(bytes(data), where=where)
    except BadInput as error:
        raise DamagedBlob(error.message) from error
    bases, nbytes, plain, runs = (members.get(name) for name in ("bases", "bytes", "plain", "runs"))
    if not isinstance(bases, list) or len(bases) > BASES_MOST or not all(map(is_digest, bases)):
        raise DamagedBlob(f"{where}: bases: wanted at most {BASES_MOST} digests")
    if type(nbytes) is not int or not 1 <= nbytes <= most_bytes or not is_digest(plain):
        raise DamagedBlob(f"{where}: wanted a digest and a size from 1 to {most_bytes}")
    if not isinstance(runs, list):
        raise DamagedBlob(f"{where}: runs: wanted an array")
    found = tuple(_run(item, len(bases), most_bytes, where) for item in runs)
    if sum(run.nbytes for run in found) != nbytes:
        raise DamagedBlob(f"{where}: runs of {sum(run.nbytes for run in found)} bytes, wanted {nbytes}")
    return Header(str(plain), nbytes, tuple(bases), found)


def _run(item: Any, base_count: int, most_bytes: int, where: str) -> Run:
    if type(item) is list and len(item) in (2, 5):
        nbytes, width, prediction, base, offset = item if len(item) == 5 else (*item, "same", -1, 0)
        # The checks are written out for speed, because a pack has a run for each of its tensors.
        if (
            type(nbytes) is int
            and type(width) is int
            and type(base) is int
            and type(offset) is int
            and width in WIDTHS
            and 0 < nbytes <= most_bytes
            and nbytes % width == 0
            and prediction in PREDICTIONS
            and (prediction == "same" or width == 2)
            and (len(item) == 2 or 0 <= base < base_count)
            and 0 <= offset <= most_bytes
        ):
            return Run(nbytes, width, prediction, base, offset)
    raise DamagedBlob(f"{where}: a run: wanted [bytes, width] or [bytes, width, prediction, base, offset]")


class Tiles:
    """The locations of the tiles of an encoded blob, from the table after its header.

    The table is checked against the header and the size of the file.
    """

    def __init__(self, header: Header, table: Buffer, file_bytes: int, *, first: int, where: str) -> None:
        import numpy as np

        if len(table) != header.table_bytes:
            raise DamagedBlob(f"{where}: a table of {len(table)} bytes, wanted {header.table_bytes}")
        # Arrays are used, because objects for the 150,000 runs of a hostile header would take a hundred times the size
        # of the header.
        self.header = header
        self.header_bytes = first - header.table_bytes
        run_bytes = np.array([run.nbytes for run in header.runs], np.int64)
        counts = -(-run_bytes // TILE_BYTES)
        self._run = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        self._in_run = (np.arange(len(self._run)) - np.repeat(counts.cumsum() - counts, counts)) * TILE_BYTES
        self._start = (run_bytes.cumsum() - run_bytes)[self._run] + self._in_run
        self._nbytes = np.minimum(run_bytes[self._run] - self._in_run, TILE_BYTES)
        entries = np.frombuffer(table, "<u4")
        self._codec, self._stored = entries >> _LENGTH_BITS, (entries & (2**_LENGTH_BITS - 1)).astype(np.int64)
        # A tile never has more stored than plain bytes, so reading a tile takes no more memory than the decoded tile.
        (wrong,) = ((self._codec > max(Codec)) | (self._stored > self._nbytes)).nonzero()
        if len(wrong):
            i = int(wrong[0])
            raise DamagedBlob(
                f"{where}: tile {i} has {self._stored[i]} stored bytes and codec {self._codec[i]}, and one of them is "
                "too large"
            )
        self._place = first + self._stored.cumsum() - self._stored
        if first + int(self._stored.sum()) != file_bytes:
            ends = first + int(self._stored.sum())
            raise DamagedBlob(f"{where}: it has {file_bytes} bytes, and its tiles end at {ends}")

    def between(self, start: int, stop: int) -> Iterator[Tile]:
        """Yield the tiles that have bytes from `start` up to `stop`."""
        at = max(int(self._start.searchsorted(start, "right")) - 1, 0)
        while at < len(self._start) and self._start[at] < stop:
            run, in_run = self.header.runs[self._run[at]], int(self._in_run[at])
            nbytes, codec = int(self._nbytes[at]), Codec(int(self._codec[at]))
            base_start = run.offset + base_bytes(run.prediction, in_run)
            yield Tile(
                run, int(self._start[at]), nbytes, base_start, codec, int(self._place[at]), int(self._stored[at])
            )
            at += 1


def _spans(header: Header) -> Iterable[tuple[Run, int, int, int]]:
    """Yield the run of each tile, the start of the tile in the blob, its size, and its start in the base."""
    ends = accumulate(run.nbytes for run in header.runs)
    for run, end in zip(header.runs, ends, strict=True):
        start = end - run.nbytes
        for at in range(0, run.nbytes, TILE_BYTES):
            nbytes = min(TILE_BYTES, run.nbytes - at)
            yield run, start + at, nbytes, run.offset + base_bytes(run.prediction, at)
