"""Loads of ranks on top of the previous one: each rank reads the pieces that it needs and that differ, and no others.

`CKSTORE_CRASH=full` follows more runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ckstore import BadInput, NoSuchRef, RankFailed, Store
from tests.support.checkpoint_dirs import blobs_dir
from tests.support.coverage import lane_seed
from tests.support.damage import flip
from tests.support.gloo import Group
from tests.support.requirements import CRASH_FULL
from tests.support.stores import check_store

CASES = Path(__file__).with_name("since_cases.py")
MIB = 2**20
_RANKS = 4
_RUNS = 40 if CRASH_FULL else 4


@pytest.fixture(scope="module")
def four(warm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """Four processes."""
    with Group(_RANKS, tmp_path_factory.mktemp("four"), CASES, python=warm / "python") as group:
        yield group


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store with small chunks."""
    made = Store.init(tmp_path / "store", chunk_bytes=MIB)
    yield made
    made.gc(now=True)  # the parts of ranks that are joined are in the trash
    check_store(made.path)


def test_law_a_load_on_top_of_the_last_one_gives_what_a_full_load_gives(four: Group, store: Store) -> None:
    seed = lane_seed()
    for number in range(_RUNS):
        run = f"run{number}"
        for counted in four.run("follow", store=str(store.path), run=run, seed=seed + number, rounds=6):
            assert counted[0] > 0


@pytest.mark.parametrize("dim, piece_bytes", [(0, MIB), (1, MIB // _RANKS)])
def test_each_rank_reads_its_changed_pieces_only(dim: int, piece_bytes: int, four: Group, store: Store) -> None:
    """A rank whose shard did not change reads manifests only. Of columns, a chunk of rows has a piece of each rank."""
    counted = four.run("change_one_shard", store=str(store.path), dim=dim, rank=2)

    for rank, of_rank in enumerate(counted):
        changed = piece_bytes if rank == 2 else 0
        assert [read for read, _ in of_rank] == [2 * MIB, changed, 0], rank
        assert all(0 <= by_process - read < MIB // 4 for read, by_process in of_rank), rank
    # One process without ranks also skips the tensor that did not change. It reads columns as a whole.
    target: dict[str, Any] = {name: torch.zeros(2048, 512) for name in "ab"} | {"step": 0}
    first = store.load_into(target, 1)
    report = store.load_into(target, 2, since=first)
    assert (first.read_bytes, report.read_bytes) == (8 * MIB, MIB if dim == 0 else 4 * MIB)
    loaded = store.load(2)
    assert all(torch.equal(target[name], loaded[name]) for name in "ab")


def test_after_damage_nothing_counts_as_held(four: Group, tmp_path: Path) -> None:
    """Ranks that have read pieces of the damaged checkpoint read the ones of the earlier checkpoint."""
    store = Store.init(tmp_path / "damaged", chunk_bytes=MIB)
    for step, added in ((1, 0.0), (2, 0.0), (3, 2.0)):
        four.run("save_values", store=str(store.path), step=step, added=added)
    flip(max(blobs_dir(store.path, "main", 3).iterdir()), keep_time=True)  # noticed by the rank that reads it

    assert four.run("load_after_damage", store=str(store.path)) == [(2, True)] * _RANKS


def test_a_dropped_checkpoint_is_known_by_the_report_of_its_load(four: Group, store: Store) -> None:
    for error in four.call("load_dropped", store=str(store.path)):
        assert isinstance(error, NoSuchRef | RankFailed), error
        assert "main@1" in str(error)


def test_the_report_of_another_load_is_refused(four: Group, store: Store) -> None:
    four.run("save_values", store=str(store.path), step=1, added=0.0)
    for error in four.call("load_since_another_part", store=str(store.path)):
        assert isinstance(error, BadInput | RankFailed), error
        assert "another select or rename" in str(error)


def test_values_that_did_not_fit_before_are_read(four: Group, store: Store) -> None:
    four.run("save_values", store=str(store.path), step=1, added=0.0)
    assert four.run("load_a_part_then_all", store=str(store.path)) == [True] * _RANKS


def test_since_is_for_one_load_of_a_reader(four: Group, store: Store) -> None:
    four.run("save_values", store=str(store.path), step=1, added=0.0)
    assert four.run("load_twice_by_one_reader", store=str(store.path)) == [True] * _RANKS


def test_equal_pieces_at_other_places_are_read(four: Group, store: Store) -> None:
    """The columns of the second tensor have the bytes of the rows of the first one."""
    assert four.run("same_pieces_at_other_places", store=str(store.path)) == [2**18] * _RANKS


def test_a_converted_block_is_read_as_a_whole(four: Group, store: Store) -> None:
    """Some of its pieces changed; another one, which did not, is not read."""
    four.run("save_values", store=str(store.path), step=1, added=0.0)
    assert four.run("convert", store=str(store.path)) == [4 * MIB] * _RANKS
