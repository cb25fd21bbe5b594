"""What a save takes at most, before anything is hashed."""

from __future__ import annotations

from pathlib import Path

from ckstore import Store
from ckstore.model.manifest.captured import Captured
from ckstore.ops.save.admission import _at_most
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
