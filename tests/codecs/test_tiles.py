"""Laws of the codecs: decoding gives the bytes back, nothing grows, and damaged input is refused."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckstore.codecs import planes, tiles, zstd
from ckstore.codecs.tiles import TILE_BYTES, WIDTHS, Codec, StoredTile, decode, encode, needs_base
from ckstore.errors import DamagedBlob
from tests.format import reader

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
    count = draw(st.sampled_from([1, 2, 3, 255, 256, 257, 600, 4000, 17_000]))
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


def dense(count: int, seed: int = 3) -> Any:
    """Return the weights of a layer, as float32."""
    return np.random.default_rng(seed).normal(0, 0.02, count).astype("<f4")


def bfloat16(values: Any) -> Any:
    """Return the upper halves of float32 numbers."""
    return (values.view("<u4") >> 16).astype("<u2")


@pytest.mark.parametrize("width, most", [(2, 0.665), (4, 0.832)])
def test_weights_shrink_by_their_exponents(width: int, most: float) -> None:
    weights = dense(TILE_BYTES // width)
    tile = (weights if width == 4 else bfloat16(weights)).tobytes()

    stored = encode(tile, None, width)

    assert stored.codec is Codec.FLOATS
    assert len(stored.data) < most * len(tile)
    assert decoded(stored, None, width, len(tile)) == tile


def test_numbers_of_one_sign_are_stored_as_planes() -> None:
    tile = np.abs(dense(2**16)).tobytes()

    assert encode(tile, None, 4).codec is Codec.PLANES


def test_every_bfloat16_comes_back_from_the_form_of_floats() -> None:
    every = np.arange(2**16, dtype="<u2")
    for part in (every, every[:0x80], every[::0x80], every[0x8000:0x8080], np.zeros(5, "<u2")):
        stored = StoredTile(Codec.FLOATS, planes.pack(planes.with_exponent_first(part)))

        assert decoded(stored, None, 2, part.nbytes) == part.tobytes()


@given(bits=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50))
def test_every_float32_comes_back_from_the_form_of_floats(bits: list[int]) -> None:
    numbers = np.array(bits, "<u4")

    stored = StoredTile(Codec.FLOATS, planes.pack(planes.with_exponent_first(numbers)))

    assert decoded(stored, None, 4, numbers.nbytes) == numbers.tobytes()


@pytest.mark.parametrize("width", [1, 8])
def test_floats_of_another_width_are_refused(width: int) -> None:
    stored = StoredTile(Codec.FLOATS, planes.pack(np.arange(16, dtype=f"<u{width}")))

    with pytest.raises(DamagedBlob, match=f"elements of {width} bytes, wanted 2 or 4"):
        decoded(stored, None, width, 16 * width)


@given(pair=pairs())
def test_the_independent_reader_decodes_the_same(pair: tuple[int, bytes, bytes | None]) -> None:
    width, tile, base = pair
    x = np.frombuffer(tile, f"<u{width}")
    stored = [encode(tile, base, width)]
    if width in {2, 4}:
        stored.append(StoredTile(Codec.FLOATS, planes.pack(planes.with_exponent_first(x))))

    for one in stored:
        assert reader.tile(one.codec, bytes(one.data), base or b"", len(tile), width) == tile


def test_encoding_the_same_tile_again_gives_the_same_bytes() -> None:
    weights = dense(TILE_BYTES // 4)
    base = (weights + dense(len(weights), 4) / 1000).tobytes()
    first = [encode(weights.tobytes(), one, 4) for one in (None, base)]
    with ThreadPoolExecutor() as pool:
        again = [pool.submit(encode, weights.tobytes(), one, 4).result() for one in (None, base)]

    assert first == again


def test_rows_that_repeat_far_apart_are_stored_once() -> None:
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((64, 512)).astype("<f4")
    tile = rows[rng.integers(0, 64, 512)].tobytes()

    assert len(encode(tile, None, 4).data) < 0.15 * len(tile)


def test_a_table_of_positions_is_stored_as_repetitions() -> None:
    angles = np.outer(np.arange(2048), 10000 ** -(np.arange(64) / 64))
    tile = bfloat16(np.cos(np.concatenate([angles, angles], axis=1)).astype("<f4")).tobytes()

    assert len(encode(tile, None, 2).data) < 0.2 * len(tile)


def test_few_changes_anywhere_in_a_tile_are_stored_as_gaps() -> None:
    base = bfloat16(dense(TILE_BYTES // 2))
    tile = base.copy()
    tile[[5, 300_000, 300_001]] += 1

    stored = encode(tile.tobytes(), base.tobytes(), 2)

    assert stored.codec is Codec.GAPS
    assert len(stored.data) < 100


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


def test_every_codec_but_raw_planes_and_floats_needs_a_base() -> None:
    assert set(filter(needs_base, Codec)) == {Codec.DIFFERENCE, Codec.GAPS, Codec.SAME}


def test_small_differences_of_either_sign_have_no_upper_digits() -> None:
    d = tiles._difference(np.array([5, 4], "<u4"), np.array([4, 5], "<u4"))

    assert list(map(hex, d)) == ["0x1", "0xff"]
