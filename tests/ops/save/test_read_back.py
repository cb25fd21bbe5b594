"""A disk that takes bytes and keeps other ones: with `read_back` the save finds it, without it the load does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import Store
from ckstore.errors import DamagedBlob, SaveFailed
from tests.support.failing_disk import FailingDisk, failing_disk, make_image
from tests.support.stores import check_store

MIB = 2**20
pytestmark = pytest.mark.root


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FailingDisk]:
    make_image("ext4", tmp_path / "image", 64)
    with failing_disk("ext4", tmp_path / "image", tmp_path) as made:
        yield made


def state(seed: int) -> dict[str, Any]:
    return {"w": np.random.default_rng(seed).integers(0, 256, 2 * MIB, dtype=np.uint8)}


def test_without_reading_back_a_lying_disk_is_found_when_it_is_loaded(disk: FailingDisk) -> None:
    with disk.mounted() as mount:
        store = Store.init(mount / "store", chunk_bytes=MIB)
        disk.arm("corrupt", 1)
        store.save(state(0), step=0)
        assert disk.heal()[1] == 1

    with disk.mounted() as mount, pytest.raises(DamagedBlob):
        Store.open(mount / "store").load(0)


@pytest.mark.parametrize("at", [1, 2])
def test_reading_back_finds_a_lying_disk_before_anything_is_published(disk: FailingDisk, at: int) -> None:
    with disk.mounted() as mount:
        store = Store.init(mount / "store", chunk_bytes=MIB)
        store.config.read_back = True
        store.save(state(0), step=0)
        disk.arm("corrupt", at)

        with pytest.raises(SaveFailed, match=r"the disk returns other bytes from byte \d+ on") as excinfo:
            store.save(state(1), step=1)

        assert disk.heal()[1] == 1
        assert "do not trust this disk" in excinfo.value.hint
        assert [info.step for info in store.checkpoints()] == [0]
        assert store.save(state(1), step=1).new_bytes >= MIB  # what was right may have been offered
        check_store(store.path)

    with disk.mounted() as mount:
        again = Store.open(mount / "store")
        assert np.array_equal(again.load(1)["w"], state(1)["w"])
        assert again.verify().ok
