"""Hundreds of tensors of a few MiB share files, and are deduplicated, read and mapped as if each had its own."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ckstore import Store
from ckstore.model.sizes import MEDIUM_BELOW_BYTES
from tests.bench.packs import count
from tests.saver.conftest import DEADLINE_S
from tests.support.damage import flip
from tests.support.requirements import require
from tests.support.stores import check_store, disk_bytes

MIB = 2**20
NBYTES = MIB + 4096
MANY = 16
"""So many medium tensors share packs; fewer have blobs of their own."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.init(tmp_path / "store") as made:  # with chunks of the default size
        yield made


def drawn(seed: int, nbytes: int = NBYTES) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8))


def state_of(seeds: range | list[int]) -> dict[str, torch.Tensor]:
    return {f"layer.{i:02}": drawn(seed) for i, seed in enumerate(seeds)}


def assert_holds(store: Store, ref: Any, state: dict[str, torch.Tensor]) -> None:
    loaded = store.load(ref)
    assert loaded.keys() == state.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())


def blob_sizes(store: Store) -> list[int]:
    return sorted(path.stat().st_size for path in (store.path / "blobs").rglob("*-*"))


@pytest.mark.parametrize(
    "sizes",
    [
        [NBYTES] * 48,
        [16 * MIB - 1] * MANY,
        [9 * MIB, 11 * MIB] * 9,
        [4096] * 600 + [3 * MIB] * 20,
        [*range(MIB - 8, MIB + 8), *range(MIB, 2 * MIB, MIB // 16)],
    ],
    ids=["of one MiB", "almost large", "that do not fill a pack", "beside small ones", "at the limit"],
)
def test_any_mix_of_sizes_takes_few_files_per_byte(store: Store, sizes: list[int]) -> None:
    state = {f"t{i}": drawn(i, nbytes) for i, nbytes in enumerate(sizes)}

    info = store.save(state)

    # 64 files for a GiB, that is 16 MiB a file, and the last ones of each kind.
    assert len(blob_sizes(store)) <= sum(sizes) / (16 * MIB) + 3
    assert info.new_bytes <= sum(sizes) + 4096 * len(sizes)
    assert_holds(store, "latest", state)
    check_store(store.path)


def test_a_few_medium_tensors_have_blobs_of_their_own(store: Store) -> None:
    state = state_of(range(MANY - 1))

    store.save(state)

    assert blob_sizes(store) == [NBYTES] * (MANY - 1)
    assert_holds(store, "latest", state)


def test_a_blob_that_a_medium_tensor_has_is_used_when_there_are_more_of_them(store: Store) -> None:
    store.save(state_of(range(MANY - 1)))
    state = state_of(range(2 * MANY))

    info = store.save(state)

    assert info.new_bytes <= (MANY + 1) * (NBYTES + 4096)
    assert_holds(store, "latest", state)
    check_store(store.path)


def test_a_second_save_writes_nothing_and_another_process_does_not_read_the_packs(store: Store) -> None:
    state = state_of(range(40))
    store.save(state)
    store.config.recheck_share = 0

    other = Store.open(store.path)
    before = _read_bytes()
    info = other.save(state)

    assert (info.new_bytes, info.reused_bytes) == (0, info.logical_bytes)
    assert _read_bytes() - before < 8 * MIB
    assert_holds(store, "latest", state)


def _read_bytes() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def test_a_catalog_that_names_another_place_is_not_believed(store: Store, tmp_path: Path) -> None:
    state = state_of(range(40))
    store.save(state)
    store.save(state_of(range(100, 140)), run="other")
    (catalog,) = (store.path).glob("catalog.db")
    with closing(sqlite3.connect(catalog)) as connection, connection:
        places = connection.execute("SELECT digest, blob_id, offset, nbytes FROM pieces ORDER BY digest").fetchall()
        moved = [(b, o, n, d) for (d, *_), (_, b, o, n) in zip(places, [*places[1:], places[0]], strict=True)]
        connection.executemany("UPDATE pieces SET blob_id = ?, offset = ?, nbytes = ? WHERE digest = ?", moved)

    for run in ("main", "third"):
        Store.open(store.path).save(state, run=run)
        assert_holds(store, f"{run}@latest", state)
    check_store(store.path)


@pytest.mark.parametrize("frozen_share", [0.25, 0.45, 0.75])
def test_what_is_frozen_between_tensors_that_change_is_written_at_most_twice(store: Store, frozen_share: float) -> None:
    draw = random.Random(58)
    frozen = [draw.random() < frozen_share for _ in range(96)]

    saved = []
    for lap in range(5):
        state = state_of([i if is_frozen else 1000 * (lap + 1) + i for i, is_frozen in enumerate(frozen)])
        saved.append(store.save(state))
        assert_holds(store, "latest", state)

    changed_bytes = frozen.count(False) * NBYTES
    assert saved[-1].new_bytes <= changed_bytes + 96 * 4096
    for checkpoint in store.checkpoints()[:-1]:
        store.delete(checkpoint.step)
    store.gc(now=True)
    assert disk_bytes(store.path) <= 2 * saved[-1].logical_bytes + 96 * 4096
    check_store(store.path)


def test_a_medium_tensor_is_mapped_from_its_pack(store: Store) -> None:
    state = state_of(range(MANY))
    store.save(state)

    loaded = store.load(mmap=True)

    lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(store.path) in line]
    spans = [[int(address, 16) for address in line.split()[0].split("-")] for line in lines]
    assert sum(stop - start for start, stop in spans) >= MANY * NBYTES
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())


def test_what_is_named_unchanged_is_not_copied_however_many_tensors_it_has(store: Store) -> None:
    frozen = state_of(range(2 * MANY))
    for number in range(3):
        state = {"frozen": frozen, "w": drawn(100 + number)}
        info = store.save_async(state, step=number, unchanged="frozen").result(DEADLINE_S)
        assert info.counters is not None
        assert info.counters.kept_bytes == (2 * MANY * NBYTES if number else 0)
        assert torch.equal(store.load(number)["frozen"]["layer.07"], frozen["layer.07"])
    check_store(store.path)


def test_a_save_in_the_background_packs_what_another_process_finds(store: Store) -> None:
    state = state_of(range(40))

    info = store.save_async(state, step=1).result(DEADLINE_S)
    again = store.save(state, step=2)

    assert len(blob_sizes(store)) <= 40 * NBYTES / (16 * MIB) + 2
    assert (info.content, again.new_bytes) == (again.content, 0)


def test_progress_is_said_while_packs_are_written(store: Store) -> None:
    said: list[tuple[int, int]] = []
    sizes = [MIB + 1 + i for i in range(64)]  # with gaps between them in the packs
    state = {f"t{i}": drawn(i, nbytes) for i, nbytes in enumerate(sizes)}

    store.save(state, progress=lambda done, whole: said.append((done, whole)))

    assert said[-1] == (sum(sizes), sum(sizes))
    assert all(done <= whole == sum(sizes) for done, whole in said)
    assert [done for done, _ in said] == sorted(done for done, _ in said)


@pytest.mark.timeout(300)
def test_a_save_of_many_medium_tensors_makes_few_system_calls(tmp_path: Path) -> None:
    require(shutil.which("strace") is not None, "needs strace")

    made = count(tmp_path, 128 * MIB, MEDIUM_BELOW_BYTES)

    # 64 blobs for a GiB, and 64 fsyncs, are 8 for 128 MiB; the rest is what any save makes.
    assert made["blobs"] <= 8
    assert made["fsync"] + made["fdatasync"] <= 8 + 8
    assert made["linkat"] <= 4 * made["blobs"]
    assert made.total() <= 2000


def test_a_medium_tensor_that_has_diverged_is_found_in_its_pack(store: Store) -> None:
    state = {f"t{i}": torch.ones(MIB // 4 + i) for i in range(2 * MANY)}
    state["t7"].fill_(float("nan"))

    info = store.save(state)

    assert info.unhealthy
    assert any("t7 has" in text for text in info.warnings), info.warnings


def test_packs_of_medium_tensors_are_compacted_evicted_cloned_and_repaired(store: Store, tmp_path: Path) -> None:
    drawing = torch.Generator().manual_seed(58)
    state = {f"t{i}": torch.randn(MIB // 2, generator=drawing).to(torch.bfloat16) for i in range(2 * MANY)}
    states = []
    for step in range(1, 6):
        for name in [*state][step % 2 :: 2]:  # half of the tensors change
            state[name] = state[name] * (1 + 2.0**-7)
        states.append(dict(state))
        store.save(state, step)
    store.remotes.add("cold", (tmp_path / "cold").as_uri())
    store.push(store.checkpoints())

    store.compact(keep_newest=2)
    store.evict([2])
    store.delete(1)
    store.gc(now=True)
    blob = max((store.path / "blobs").rglob("*-*"), key=lambda path: path.stat().st_size)
    flip(blob, at=MIB)
    assert not store.verify().ok
    store.verify(repair=True)
    assert store.verify().ok

    with Store.clone((tmp_path / "cold").as_uri(), tmp_path / "clone") as clone:
        for step in range(2, 6):
            assert_holds(store, step, states[step - 1])
            assert_holds(clone, step, states[step - 1])
    store.pull([2])
    check_store(store.path)
