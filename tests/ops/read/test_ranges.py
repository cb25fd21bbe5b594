"""Ranges of a storage that are asked for by rising start: each piece is read once, whole, and what comes is right."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckstore import DamagedBlob, MissingBlob, Store, open_checkpoint
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.objects.pieces import PieceReader
from ckstore.ops.read.regions import RANGE_BYTES, RangeReader
from ckstore.ops.refs.find import open_directory
from tests.support.checkpoint_dirs import checkpoint_dir
from tests.support.damage import flip

ROOT = Path(__file__).parents[3]
MIB = 2**20
_BYTES = np.random.default_rng(5).integers(0, 255, 5 * MIB + 77, np.uint8)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store.init(tmp_path_factory.mktemp("ranges") / "store", chunk_bytes=MIB)
    store.save({"w": _BYTES}, step=1)
    return store


@pytest.mark.property
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, *settings().suppress_health_check])
@given(ranges=st.lists(st.tuples(st.integers(0, len(_BYTES)), st.integers(0, 2 * MIB)), max_size=12))
def test_ranges_by_rising_start_give_the_bytes_and_read_each_piece_once(
    saved: Store, ranges: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    real = PieceReader.read

    def counting(reader: PieceReader, part: Any) -> None:
        read.append(part.extent.blob)
        real(reader, part)

    with monkeypatch.context() as patch:
        patch.setattr(PieceReader, "read", counting)
        with open_directory(saved._context, 1) as directory, RangeReader(directory) as reader:
            reader.begin(0)
            for start, nbytes in sorted(ranges):
                stop = min(start + nbytes, len(_BYTES))

                assert bytes(reader.read(start, stop, "w")) == _BYTES[start:stop].tobytes()
            held_bytes = len(reader._buffer)

    assert len(read) == len(set(read))
    assert held_bytes <= RANGE_BYTES + MIB


@pytest.fixture
def checkpoint(saved: Store, tmp_path: Path) -> Path:
    """A copy of a checkpoint, to be damaged."""
    return Path(shutil.copytree(checkpoint_dir(Path(saved.path), "main", 1), tmp_path / "copy"))


def test_a_range_of_a_damaged_piece_is_refused_before_a_byte_of_it_is_handed_out(checkpoint: Path) -> None:
    for blob in (checkpoint / "blobs").iterdir():
        flip(blob, 5)

    with CheckpointDirectory.at(checkpoint) as directory, RangeReader(directory) as reader:
        reader.begin(0)
        with pytest.raises(DamagedBlob, match="w of main@1 is damaged"):
            reader.read(5000, 5001, "w")


def test_a_blob_that_is_not_there_is_missing_and_not_damaged(checkpoint: Path) -> None:
    next((checkpoint / "blobs").iterdir()).unlink()

    with open_checkpoint(checkpoint) as opened, pytest.raises(MissingBlob, match=r"is missing; w needs it"):
        opened.load()


def test_a_blob_of_another_size_is_damaged_and_not_missing(checkpoint: Path) -> None:
    for blob in (checkpoint / "blobs").iterdir():
        blob.chmod(0o600)
        os.truncate(blob, 5)

    with open_checkpoint(checkpoint) as opened, pytest.raises(DamagedBlob) as caught:
        opened.load()

    assert type(caught.value) is DamagedBlob


def test_no_other_module_reads_by_the_place_of_a_piece() -> None:
    """What opens a blob of a checkpoint must know whether it is encoded, or elsewhere: one does, and its decoder."""
    opens = {
        str(path.relative_to(ROOT))
        for room in ("objects", "ops", "integrations", "ranks", "saver", "training")
        for path in (ROOT / "ckstore" / room).rglob("*.py")
        if re.search(r"(?<!\bself)\.open_blob\(|\.open_local\(|\.try_share\(|\.map_side_by_side\(", path.read_text())
    }

    assert opens == {"ckstore/objects/pieces.py", "ckstore/objects/encoded.py"}
