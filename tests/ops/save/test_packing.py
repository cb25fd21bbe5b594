"""Packs hold their pieces where `places` says, and nothing else, whatever memory they were put together in."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckstore.errors import StateChanged
from ckstore.model.digest import ALGORITHMS
from ckstore.model.manifest.captured import BytesSource
from ckstore.model.sizes import SMALL_BELOW_BYTES
from ckstore.ops.save.packing import ALIGNMENT, PART_BYTES, Packer, PackPiece, aligned, fill_pack

XXH3 = ALGORITHMS["xxh3_128"]
GRAIN = 4096
MIB = 2**20


class Written:
    """Packs as they are filled when the packer waits for them, in memory that is full of other bytes."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.in_flight = self.most_in_flight = 0

    def start(self, pieces: Sequence[PackPiece], last: bool) -> Callable[[], str]:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)

        def wait() -> str:
            self.in_flight -= 1
            memory = memoryview(bytearray(b"\xff" * (pieces[-1].start + pieces[-1].source.nbytes + 1)))
            data, digest = fill_pack(pieces, memory, XXH3)
            assert digest == XXH3.digest(data)
            self.blobs[digest] = bytes(data)
            return digest

        return wait


def piece(number: int, nbytes: int) -> bytes:
    return (number.to_bytes(4, "little") * (nbytes // 4 + 1))[:nbytes]


@given(
    sizes=st.lists(st.integers(1, 30_000) | st.sampled_from([1, 63, 64, 65, GRAIN]), min_size=1, max_size=60),
    apart=st.sets(st.integers(0, 59)),
    grains=st.integers(8, 20),
)
def test_every_piece_is_where_it_is_said_to_be(sizes: list[int], apart: set[int], grains: int) -> None:
    written = Written()
    packer = Packer(written.start, grains * GRAIN)
    pieces = {XXH3.digest(data): data for data in (piece(i, size) for i, size in enumerate(sizes))}

    for number, (digest, data) in enumerate(pieces.items()):
        packer.add(digest, BytesSource("x", data), apart=number in apart)
    packer.finish()

    assert packer.places.keys() == pieces.keys()
    covered = {blob: bytearray(len(content)) for blob, content in written.blobs.items()}
    for digest, place in packer.places.items():
        blob = written.blobs[place.blob]
        assert place.blob_nbytes == len(blob)
        assert place.offset % ALIGNMENT == 0
        assert blob[place.offset : place.offset + place.length] == pieces[digest]
        covered[place.blob][place.offset : place.offset + place.length] = blob[place.offset :][: place.length]
    assert {blob: bytes(content) for blob, content in covered.items()} == written.blobs


def test_memory_is_bounded_and_a_pack_is_as_large_as_wanted() -> None:
    written = Written()
    packer = Packer(written.start, MIB)
    for number in range(50):
        data = piece(number, 300_000)
        packer.add(XXH3.digest(data), BytesSource("x", data))
    packer.finish()

    assert written.most_in_flight <= 3
    assert max(map(len, written.blobs.values())) <= MIB
    assert min(map(len, written.blobs.values())) >= 2 * 300_000


def test_the_largest_piece_has_room_apart_from_the_start() -> None:
    written = Written()
    packer = Packer(written.start, MIB)
    data = piece(1, SMALL_BELOW_BYTES - 1)

    packer.add(XXH3.digest(data), BytesSource("x", data), apart=True)
    packer.finish()

    (place,) = packer.places.values()
    assert (place.offset, place.blob_nbytes) == (ALIGNMENT, aligned(ALIGNMENT) + SMALL_BELOW_BYTES - 1)
    assert place.blob != XXH3.digest(data)


def test_bytes_that_are_not_those_that_were_hashed_fail_the_save() -> None:
    packer = Packer(Written().start, MIB)
    packer.add(XXH3.digest(b"before"), BytesSource("layer.weight", b"after"))

    with pytest.raises(StateChanged, match=r"layer\.weight was changed"):
        packer.finish()


@pytest.mark.parametrize("nbytes", [PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES + 5])
def test_a_large_piece_is_checked_part_by_part_and_lies_where_it_can_be_mapped(nbytes: int) -> None:
    written = Written()
    packer = Packer(written.start, MIB)
    small, first, large = piece(1, 100), piece(2, MIB + 1), piece(3, nbytes)
    for name, data in (("small", small), ("first", first), ("large", large)):
        packer.add(XXH3.digest(data), BytesSource(name, data))
    packer.finish()

    place = packer.places[XXH3.digest(large)]
    assert place.offset == MIB + GRAIN
    assert written.blobs[place.blob][MIB + GRAIN :] == large
    assert packer.places[XXH3.digest(small)].blob != place.blob

    packer.add(XXH3.digest(large), BytesSource("large", large[:-1] + b"?"))
    with pytest.raises(StateChanged, match="large was changed"):
        packer.finish()
