"""The same bytes are stored once, and small tensors share files without filling them with dead bytes."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from ckstore import Store
from ckstore.errors import SaveFailed
from tests.support.requirements import CRASH_FULL
from tests.support.stores import check_store, disk_bytes, names_by_inode

if TYPE_CHECKING:
    from pathlib import Path

MIB = 2**20


def drawn(nbytes: int, seed: int) -> Any:
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


def test_an_unchanged_state_costs_no_new_bytes(store: Store) -> None:
    state = {"big": drawn(5 * MIB + 3, 0), "small": [drawn(1000, seed) for seed in range(50)]}
    first = store.save(state)

    second = store.save(state)

    assert first.new_bytes >= first.logical_bytes
    assert (second.new_bytes, second.reused_bytes) == (0, second.logical_bytes)
    assert second.content == first.content
    assert second.id != first.id


def test_the_same_bytes_are_stored_once_across_runs_names_kinds_and_dtypes(store: Store) -> None:
    data = drawn(4 * MIB, 1)
    first = store.save({"a": data})

    others = [
        store.save({"b": {"c": torch.from_numpy(data.copy())}}, run="other"),
        store.save([torch.from_numpy(data.copy()).view(torch.float32)], run="third"),
        store.save({"raw": data.tobytes(), "twice": data.view("<i8")}, run="third"),
    ]

    assert [info.new_bytes for info in others] == [0, 0, 0]
    assert disk_bytes(store.path) == first.new_bytes


def test_only_the_changed_chunk_is_written(store: Store) -> None:
    data = drawn(8 * MIB, 2)
    store.save({"w": data})
    data[3 * MIB + 17] ^= 1

    info = store.save({"w": data})

    assert info.new_bytes == MIB


def test_a_small_tensor_that_others_pack_differently_is_found_by_its_content(store: Store) -> None:
    pieces = [drawn(3000, seed) for seed in range(20)]
    store.save({"p": pieces}, run="a")

    info = store.save({str(i): piece for i, piece in enumerate(reversed(pieces))}, run="b")

    assert info.new_bytes == 0


def test_one_element_tensors_do_not_make_their_pack_look_dead(store: Store) -> None:
    steps = {str(i): torch.tensor(float(i)) for i in range(200)}
    store.save(steps)

    assert store.save(steps).new_bytes == 0


@pytest.mark.endurance
@pytest.mark.slow
@pytest.mark.whole
def test_fifty_thousand_small_tensors_take_few_files_and_a_change_costs_what_changed(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    store = Store.init(tmp_path / "store")
    sizes = rng.integers(1024, 65537, 50_000) if CRASH_FULL else rng.integers(1024, 4097, 50_000)
    state = {str(i): drawn(int(size), i) for i, size in enumerate(sizes)}
    store.save(state)
    assert len(names_by_inode(store.path)) <= 200
    assert sum(len(names) for names in names_by_inode(store.path).values()) <= 200
    changed = rng.choice(len(sizes), len(sizes) // 100, replace=False)
    for i in changed:
        state[str(i)] = drawn(int(sizes[i]), 100_000 + int(i))

    info = store.save(state)

    assert info.new_bytes <= 2 * int(sizes[changed].sum())
    print(f"\n50,000 tensors, {sizes.sum()} bytes: 1 % changed cost {info.new_bytes / sizes[changed].sum():.3f} of it")


@pytest.mark.endurance
@pytest.mark.slow
@pytest.mark.whole
def test_packs_do_not_fill_with_dead_bytes(tmp_path: Path) -> None:
    count, saves = (20_000, 300) if CRASH_FULL else (400, 120)
    rng = np.random.default_rng(7)
    store = Store.init(tmp_path / "store")
    pieces = [drawn(8 * 1024 + 20 * (i % 400), i) for i in range(count)]
    kept: list[list[Any]] = []
    worst = 0.0
    for save in range(saves):
        for i in rng.choice(count, count // 100, replace=False):
            pieces[i] = drawn(pieces[i].nbytes, count + save * count + int(i))
        store.save({"p": pieces})
        kept = [*kept, list(pieces)][-3:]
        for info in store.checkpoints()[:-3]:
            store.delete(info)
        live = sum({piece.tobytes(): piece.nbytes for state in kept for piece in state}.values())
        worst = max(worst, disk_bytes(store.path) / live)

    assert worst <= 2.2
    print(f"\n{saves} saves of {count} small tensors, 1 % changed each: at most {worst:.2f} of the live bytes on disk")


def test_the_files_of_a_checkpoint_are_the_store_s_own_inodes(store: Store) -> None:
    store.save({"w": drawn(2 * MIB, 3)})
    store.save({"w": drawn(2 * MIB, 3)})

    shared = [names for names in names_by_inode(store.path).values() if names[0].name.startswith("xxh3-")]

    assert {len(names) for names in shared} == {3}
    assert all(os.stat(names[0]).st_mode & 0o777 == 0o444 for names in shared)


@pytest.mark.parametrize("stale", [2, 3])
def test_a_claim_that_meets_a_stale_handle_asks_again(
    stale: int, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on NFS, where another host replaced what this one was told of."""
    data = {"w": drawn(MIB, 3)}
    store.save(data)
    link, left = os.link, [stale]

    def linking(*names: Any, **given: Any) -> None:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        link(*names, **given)

    monkeypatch.setattr(os, "link", linking)
    if stale == 3:
        with pytest.raises(SaveFailed, match="Stale file handle"):
            store.save(data, retries=0)
    # Without retries of the save, which would hide that the link was not retried.
    assert store.save(data, retries=0).new_bytes == 0
    check_store(store.path)
