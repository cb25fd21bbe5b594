"""Tiles of at most 1 MiB, each stored with the codec that makes it smallest; see docs/format/encoded-1.md, "Tiles"."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from ckstore.codecs import planes, zstd
from ckstore.errors import DamagedBlob

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckstore.codecs.planes import Unsigned
    from ckstore.model.digest import Buffer

TILE_BYTES = 2**20
"""The size of a tile, in bytes. A tile fits into a processor's cache, and the overhead of NumPy calls is negligible."""
WIDTHS = (1, 2, 4, 8)

_HEAD_BYTES = 12
_SKIP = 255
# Up to the first share of differing elements, gaps are the smallest form. Above the second share, they never are.
_SPARSE, _DENSE = 1 / 16, 1 / 2
_FLOAT_WIDTHS = (2, 4)
# Encoding a tile in every form takes several times as long as in one form, so the form is chosen by a sample.
_SAMPLE_PARTS, _SAMPLE_PART = 8, 2**10


class Codec(IntEnum):
    """The encoding of a tile."""

    RAW = 0
    PLANES = 1
    DIFFERENCE = 2
    GAPS = 3
    SAME = 4
    FLOATS = 5


class StoredTile(NamedTuple):
    """A tile in its stored form."""

    codec: Codec
    data: Buffer


def encode(tile: Buffer, base: Buffer | None, width: int) -> StoredTile:
    """Return the smallest form of a tile, never larger than the tile.

    `base` is the prediction of the tile, and has the same size.
    """
    import numpy as np

    x = _elements(tile, width)
    d = None if base is None else _difference(x, _elements(base, width))
    codecs = [Codec.PLANES]
    # If all signs are equal, the plane below the exponents has only seven random bits. As FLOATS, such a tile would
    # take 1 % less space, but 20 % more time to decode.
    if width in _FLOAT_WIDTHS and (signed := x.view(f"<i{width}")).min() < 0 <= signed.max():
        codecs.append(Codec.FLOATS)
    if d is not None:
        share = int(np.count_nonzero(d)) / len(d)
        if not share:
            return StoredTile(Codec.SAME, b"")
        codecs += [Codec.DIFFERENCE, *([Codec.GAPS] if share <= _DENSE else [])]
        codecs = [Codec.GAPS] if share <= _SPARSE else codecs
    if len(codecs) > 1 and len(x) > 2 * _SAMPLE_PARTS * _SAMPLE_PART:
        codecs = [_smallest(codecs, _sample(x), None if d is None else _sample(d)).codec]
    smallest = _smallest(codecs, x, d)
    return smallest if len(smallest.data) < len(tile) else StoredTile(Codec.RAW, bytes(tile))


def _sample(elements: Unsigned) -> Unsigned:
    """Return elements from several places of a tile."""
    import numpy as np

    starts = np.linspace(0, len(elements) - _SAMPLE_PART, _SAMPLE_PARTS).astype(int)
    found: Unsigned = np.concatenate([elements[start : start + _SAMPLE_PART] for start in starts.tolist()])
    return found


def _smallest(codecs: list[Codec], x: Unsigned, d: Unsigned | None) -> StoredTile:
    """Return elements in the smallest of several forms. `d` has their differences from the base."""
    found = [StoredTile(codec, _packed(codec, x, d)) for codec in codecs]
    return min(found, key=lambda stored: len(stored.data))


def _packed(codec: Codec, x: Unsigned, d: Unsigned | None) -> bytes:
    if codec is Codec.GAPS and d is not None:
        (changed,) = d.nonzero()
        return _pack_gaps(changed, d[changed])
    if codec is Codec.DIFFERENCE and d is not None:
        return planes.pack(d)
    return planes.pack(planes.with_exponent_first(x) if codec is Codec.FLOATS else x)


def decode(stored: StoredTile, width: int, out: memoryview) -> None:
    """Fill `out` with a tile. If the codec needs a base, `out` must contain the prediction from the base."""
    codec, data = stored
    x = _elements(out, width)
    if codec is Codec.RAW:
        if len(data) != len(out):
            raise DamagedBlob(f"a raw tile has {len(data)} bytes, wanted {len(out)}")
        out[:] = data
    elif codec is Codec.PLANES:
        planes.unpack(memoryview(data), x)
    elif codec is Codec.FLOATS:
        if width not in _FLOAT_WIDTHS:
            raise DamagedBlob(f"a tile of floats has elements of {width} bytes, wanted 2 or 4")
        planes.unpack(memoryview(data), x, exponent_first=True)
    elif codec is Codec.DIFFERENCE:
        d = planes.scratch("difference", len(x), x.dtype)
        planes.unpack(memoryview(data), d)
        x += _numbers(d)
    elif codec is Codec.GAPS:
        at, d = _unpack_gaps(memoryview(data), len(x), x.dtype)
        x[at] += _numbers(d)
    elif data:
        raise DamagedBlob(f"a tile that is the same as its base has {len(data)} bytes, wanted none")


def needs_base(codec: Codec) -> bool:
    """Whether decoding a tile requires the prediction from a base."""
    return codec not in (Codec.RAW, Codec.PLANES, Codec.FLOATS)


def _elements(data: Buffer, width: int) -> Unsigned:
    import numpy as np

    if width not in WIDTHS or len(data) % width:
        raise DamagedBlob(f"{len(data)} bytes are not elements of {width} bytes")
    elements: Unsigned = np.frombuffer(data, f"<u{width}")
    return elements


# ------------------------------------------------------------------------------------------ differences


def _bias(dtype: np.dtype[Any]) -> np.unsignedinteger:
    """Return 0x80…80. With this bias, the upper bytes of small positive and negative differences are 0."""
    bias: np.unsignedinteger = dtype.type(int.from_bytes(b"\x80" * dtype.itemsize, "little"))
    return bias


def _difference(x: Unsigned, base: Unsigned) -> Unsigned:
    d = x - base
    bias = _bias(d.dtype)
    d += bias
    d ^= bias
    return d


def _numbers(d: Unsigned) -> Unsigned:
    """Convert the results of `_difference` in place to the numbers to add to the base."""
    bias = _bias(d.dtype)
    d ^= bias
    d -= bias
    return d


# ------------------------------------------------------------------------------------------------ gaps


def _pack_gaps(changed: NDArray[np.int64], d: Unsigned) -> bytes:
    """Return the gap before each differing element (the number of equal elements), and the differences as planes."""
    import numpy as np

    gaps = np.diff(changed, prepend=-1) - 1
    skips = gaps // _SKIP
    # A byte of 255 skips 255 elements. Each gap ends with a smaller byte, and a changed element follows the gap.
    ends = np.cumsum(skips + 1) - 1
    steps = np.full(int(skips.sum()) + len(skips), _SKIP, np.uint8)
    steps[ends] = gaps % _SKIP
    packed = zstd.compress(steps.data)
    packed = packed if len(packed) < len(steps) else steps.tobytes()
    head = b"".join(n.to_bytes(4, "little") for n in (len(changed), len(steps), len(packed)))
    return head + packed + planes.pack(d)


def _unpack_gaps(data: memoryview, count: int, dtype: np.dtype[Any]) -> tuple[NDArray[np.int64], Unsigned]:
    import numpy as np

    changed, step_count, packed = (int.from_bytes(data[i : i + 4], "little") for i in (0, 4, 8))
    # Each step covers at least one element, so more steps than elements are refused before anything is allocated.
    if len(data) < _HEAD_BYTES or not 0 < changed <= step_count <= count or packed > len(data) - _HEAD_BYTES:
        raise DamagedBlob(f"{changed} changes in {step_count} steps and {packed} bytes do not fit into a tile")
    raw = data[_HEAD_BYTES : _HEAD_BYTES + packed]
    steps = np.frombuffer(raw if packed == step_count else zstd.decompress(raw, step_count), np.uint8)
    named = steps != _SKIP
    # 32 bits are enough for 2^20 steps of at most 255 each.
    places = (np.cumsum(steps, dtype=np.int32) + np.cumsum(named, dtype=np.int32) - 1)[named]
    if len(places) != changed or places[-1] >= count:
        raise DamagedBlob(f"a list of changes names {len(places)} elements of {count}, wanted {changed}")
    d: Unsigned = np.empty(changed, dtype)
    planes.unpack(data[_HEAD_BYTES + packed :], d)
    return places, d
