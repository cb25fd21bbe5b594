"""What a save takes at most, before anything is hashed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ckstore import Store
from ckstore.model.manifest.captured import BytesSource, Captured, RangeSource
from ckstore.ops.save.admission import _at_most
from ckstore.ops.save.packing import Packer, PackPiece, _small_pack_bytes, aligned, pack_need
from ckstore.ops.save.recorded_chunks import RecordedChunk, RecordedSource

MIB = 2**20


def test_chunks_of_an_earlier_checkpoint_take_room_in_the_manifest_and_in_the_directory_only(tmp_path: Path) -> None:
    count = 100_000
    digest = "xxh3_128-" + "0" * 32
    chunks = tuple(RecordedChunk(at * MIB, (at + 1) * MIB, digest, digest, MIB, 0) for at in range(count))
    source = RecordedSource("w", chunks, {}, "main@1", "main@1")

    with Store.init(tmp_path / "store") as store:
        nothing = _at_most(store._context, Captured(None, (), ()))
        amount = _at_most(store._context, Captured(None, (), (source,)))

    assert count * 2 * len(digest) < amount.nbytes - nothing.nbytes < count * MIB // 1000
    assert amount.inodes == nothing.inodes


@given(st.lists(st.integers(1, 3 * MIB) | st.sampled_from([MIB - 1, MIB, 9 * MIB, 16 * MIB - 1]), max_size=80))
def test_new_packs_take_no_more_than_was_asked_for(sizes: list[int]) -> None:
    packs: list[int] = []

    def write(pieces: Sequence[PackPiece], last: bool) -> Callable[[], str]:
        packs.append(pieces[-1].start + pieces[-1].source.nbytes)
        return lambda: ""

    packer = Packer(write, _small_pack_bytes(sum(aligned(nbytes) for nbytes in sizes if nbytes < MIB)))
    for number, nbytes in enumerate(sizes):
        packer.add(f"{number}", RangeSource(BytesSource("w", b""), 0, nbytes))
    packer.finish()

    need = pack_need(sizes)
    assert len(packs) <= need.pack_count
    assert sum(packs) <= need.nbytes
