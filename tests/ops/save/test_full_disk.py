"""A full disk: refused early with numbers, or failed cleanly; space is given back and the next save works."""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ckstore import Store
from ckstore.errors import InsufficientSpace, SaveFailed
from ckstore.ops.save import save as save_module
from tests.support.stores import check_store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MIB = 2**20


def drawn(nbytes: int, seed: int) -> Any:
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


def free_bytes(path: Path) -> int:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


@pytest.mark.root
def test_a_save_that_cannot_fit_is_refused_before_anything_is_written(
    make_filesystem: Callable[[str, int], Path],
) -> None:
    store = Store.init(make_filesystem("ext4", 64) / "store", chunk_bytes=MIB)
    store.save({"w": drawn(20 * MIB, 0)})
    free = free_bytes(store.path)

    with pytest.raises(InsufficientSpace, match=r"the save needs [0-9.]+ .?i?B, [0-9.]+ .?i?B are free"):
        store.save({"w": drawn(80 * MIB, 1)})

    assert free - free_bytes(store.path) < 64 * 1024
    assert store.save({"w": drawn(20 * MIB, 0)}).new_bytes == 0
    check_store(store.path)


@pytest.mark.root
def test_a_state_larger_than_what_is_free_is_saved_when_the_store_has_its_bytes(
    make_filesystem: Callable[[str, int], Path],
) -> None:
    store = Store.init(make_filesystem("ext4", 64) / "store", chunk_bytes=MIB)
    state = {"w": drawn(35 * MIB, 0)}
    store.save(state)
    assert free_bytes(store.path) < 35 * MIB

    assert store.save(state).new_bytes == 0


@pytest.mark.root
def test_a_disk_that_fills_during_the_save_is_left_as_it_was(
    make_filesystem: Callable[[str, int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.init(make_filesystem("ext4", 64) / "store", chunk_bytes=MIB)
    state = {"w": drawn(10 * MIB, 0)}
    store.save(state)
    free = free_bytes(store.path)
    monkeypatch.setattr(save_module, "check_space", lambda *_: ())  # as if others filled it after the check

    for seed in range(3):
        with pytest.raises(InsufficientSpace, match="No space left on device"):
            store.save({"w": drawn(70 * MIB, 10 + seed), "small": [drawn(100, i) for i in range(50)]})

    assert free - free_bytes(store.path) < MIB
    assert np.array_equal(store.load()["w"], state["w"])
    store.save({"w": drawn(10 * MIB, 5)})
    check_store(store.path)


@pytest.mark.root
def test_a_commit_that_cannot_fit_is_refused_with_numbers_and_leaves_nothing(
    make_filesystem: Callable[[str, int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.init(make_filesystem("ext4", 64) / "store", chunk_bytes=MIB)
    small, large = tmp_path / "small", tmp_path / "large"
    small.write_bytes(drawn(10 * MIB, 1))
    large.write_bytes(drawn(80 * MIB, 2))
    store.commit(small)
    free = free_bytes(store.path)

    with pytest.raises(InsufficientSpace, match=r"the save needs [0-9.]+ .?i?B, [0-9.]+ .?i?B are free"):
        store.commit(large)
    monkeypatch.setattr(save_module, "check_space", lambda *_: ())  # as if others filled it after the check
    with pytest.raises(InsufficientSpace, match="No space left on device"):
        store.commit(large)

    assert free - free_bytes(store.path) < MIB
    assert os.listdir(store.path / "staging") == []
    store.commit(small, 7)
    check_store(store.path)


@pytest.mark.root
def test_a_filesystem_without_inodes_refuses_early(make_filesystem: Callable[[str, int], Path]) -> None:
    place = make_filesystem("ext4", 64)
    store = Store.init(place / "store", chunk_bytes=MIB)
    (place / "litter").mkdir()
    i = 0
    while os.statvfs(place).f_favail > 12:
        (place / "litter" / str(i)).touch()
        i += 1

    with pytest.raises(InsufficientSpace, match=r"the save needs \d+ inodes, \d+ are free"):
        store.save({"w": drawn(10 * MIB, 0)})

    assert store.save({"w": drawn(2 * MIB, 0)}).step == 0


def test_a_save_beyond_the_file_size_limit_of_the_process_names_the_limit(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Store.init(tmp_path / "store") as store:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, before[1]))
        try:
            with pytest.raises(SaveFailed, match=r"File too large.*ulimit -f"):
                store.save({"w": np.random.default_rng(1).random(2**20)}, step=1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

        store.save({"w": np.random.default_rng(1).random(2**20)}, step=1)
        check_store(store.path)
