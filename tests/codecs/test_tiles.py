"""Laws of the codecs: decoding gives the bytes back, nothing grows, and damaged input is refused."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckstore.codecs import tiles, zstd
from ckstore.codecs.tiles import TILE_BYTES, WIDTHS, Codec, StoredTile, decode, encode, needs_base
from ckstore.errors import DamagedBlob

pytestmark = pytest.mark.property

_SPECIAL = [0, 1, 2**63, 2**64 - 1, 0x7FC07FC07FC07FC0, 0x8080808080808080, 0x7F800000FF800000]


def decoded(stored: StoredTile, base: bytes | None, width: int, nbytes: int) -> bytes:
    """Return a tile, as a reader has it: its memory holds the base before."""
    out = bytearray(nbytes if base is None else base)
    decode(stored, width, memoryview(out))
    return bytes(out)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[int, bytes, bytes | None]:
    """Draw a width, a tile, and a base: none, other bytes, or the tile with some elements changed."""
    width = draw(st.sampled_from(WIDTHS))
    count = draw(st.sampled_from([1, 2, 3, 255, 256, 257, 600, 4000]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    x = rng.integers(0, 2**64, count, dtype=np.uint64)
    x >>= np.uint64(draw(st.sampled_from([0, 8, 40, 63])))
    x[rng.random(count) < draw(st.sampled_from([0, 0.1, 1]))] = draw(st.sampled_from(_SPECIAL))
    tile = x.astype(f"<u{width}")
    kind = draw(st.sampled_from(["none", "other", "near"]))
    if kind == "none":
        return width, tile.tobytes(), None
    base = tile.copy()
    if kind == "other":
        base = rng.integers(0, 2**64, count, dtype=np.uint64).astype(f"<u{width}")
    else:
        at = rng.random(count) < draw(st.sampled_from([0, 0.001, 0.02, 0.3, 1]))
        base[at] += rng.integers(0, draw(st.sampled_from([2, 300, 2**62])), at.sum()).astype(f"<u{width}")
    return width, tile.tobytes(), base.tobytes()


@given(pair=pairs())
def test_a_tile_comes_back_from_its_smallest_form(pair: tuple[int, bytes, bytes | None]) -> None:
    width, tile, base = pair

    stored = encode(tile, base, width)

    assert len(stored.data) <= len(tile)
    assert decoded(stored, base, width, len(tile)) == tile


@given(
    pair=pairs(),
    codec=st.sampled_from(Codec),
    data=st.binary(max_size=200),
    at=st.integers(0),
    byte=st.integers(0, 255),
)
def test_damaged_tiles_give_one_error_or_other_bytes(
    pair: tuple[int, bytes, bytes | None], codec: Codec, data: bytes, at: int, byte: int
) -> None:
    width, tile, base = pair
    stored = encode(tile, base, width)
    changed = bytearray(stored.data)
    if changed:
        changed[at % len(changed)] ^= byte
    for hostile in (
        StoredTile(codec, data),
        StoredTile(codec, stored.data),
        StoredTile(stored.codec, bytes(changed)),
        StoredTile(stored.codec, stored.data[: at % (len(changed) + 1)]),
    ):
        try:
            decoded(hostile, base, width, len(tile))
        except DamagedBlob:
            continue


@pytest.mark.parametrize("codec, density", [(Codec.GAPS, 0.01), (Codec.DIFFERENCE, 0.9), (Codec.SAME, 0.0)], ids=str)
@pytest.mark.parametrize("width", [2, 4, 8])
def test_each_codec_is_chosen_where_it_is_smallest(width: int, codec: Codec, density: float) -> None:
    rng = np.random.default_rng(0)
    base = rng.integers(0, 2**64, 2**14, dtype=np.uint64).astype(f"<u{width}")
    tile = base + (rng.random(2**14) < density).astype(base.dtype)

    stored = encode(tile.tobytes(), base.tobytes(), width)

    assert stored.codec is codec
    assert len(stored.data) < len(tile) * width * max(density, 0.5) / 4 + 1


def test_noise_is_stored_raw() -> None:
    noise = np.random.default_rng(1).bytes(4096)

    assert encode(noise, np.random.default_rng(2).bytes(4096), 4) == StoredTile(Codec.RAW, noise)


def test_weights_shrink_by_their_planes() -> None:
    weights = np.random.default_rng(3).normal(0, 0.02, 2**16).astype("<f4")

    stored = encode(weights.tobytes(), None, 4)

    assert stored.codec is Codec.PLANES
    assert len(stored.data) < 0.9 * weights.nbytes


@pytest.mark.parametrize("claimed", [2**40, 2**62, 0])
def test_a_frame_that_claims_another_size_is_refused_before_anything_is_allocated(claimed: int) -> None:
    # Magic number, a descriptor for a single segment with 8 bytes of content size, then that size.
    bomb = bytes.fromhex("28b52ffd") + b"\xe0" + claimed.to_bytes(8, "little") + b"\x01\x00\x00"
    data = (len(bomb)).to_bytes(4, "little") + bytes(4) + bomb
    start = time.process_time()

    with pytest.raises(DamagedBlob, match="wanted 1024"):
        decode(StoredTile(Codec.PLANES, data), 2, memoryview(bytearray(2048)))

    assert time.process_time() - start < 5


def test_a_small_frame_of_many_bytes_is_refused() -> None:
    bomb = zstd.compress(bytes(2**24))
    data = len(bomb).to_bytes(4, "little") + bytes(4) + bomb

    with pytest.raises(DamagedBlob, match=f"{2**24} bytes, wanted {TILE_BYTES // 2}"):
        decode(StoredTile(Codec.PLANES, data), 2, memoryview(bytearray(TILE_BYTES)))


def test_more_gaps_than_elements_are_refused() -> None:
    head = b"".join(n.to_bytes(4, "little") for n in (2**31, 2**31, 0))

    with pytest.raises(DamagedBlob, match="do not fit into a tile"):
        decode(StoredTile(Codec.GAPS, head), 2, memoryview(bytearray(16)))


def test_every_codec_but_raw_and_planes_needs_a_base() -> None:
    assert set(filter(needs_base, Codec)) == {Codec.DIFFERENCE, Codec.GAPS, Codec.SAME}


def test_small_differences_of_either_sign_have_no_upper_digits() -> None:
    d = tiles._difference(np.array([5, 4], "<u4"), np.array([4, 5], "<u4"))

    assert list(map(hex, d)) == ["0x1", "0xff"]
