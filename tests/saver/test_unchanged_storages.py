"""What is named as unchanged is taken from the checkpoint before, and a sample of it is compared."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import RetentionPolicy, Store
from ckstore.errors import BadInput, InUse, NotUnchanged, SaveFailed
from ckstore.model.manifest.manifest import Description
from ckstore.model.saver.messages import Order, ReusedStorage
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.saver.client import unchanged_storages as module
from ckstore.saver.client.snapshot import Snapshot, places_of
from ckstore.saver.client.unchanged_storages import SnapshotPlan, UnchangedBases
from ckstore.saver.server.main import carry_out
from ckstore.tensors.state_capture import capture
from tests.saver.conftest import DEADLINE_S, wait_for
from tests.support.checkpoint_dirs import checkpoint_dir
from tests.support.stores import check_store

FROZEN = 3 * 2**18 + 5
"""Elements of four bytes: three chunks of 1 MiB, and some bytes."""


def state_of(number: int, frozen: int = 7) -> dict[str, Any]:
    return {
        "frozen": {"w": np.full(FROZEN, frozen, np.float32), "small": np.full(9, frozen)},
        "w": np.full(300_000, number, np.float32),
        "n": number,
    }


def saved(store: Store, number: int, frozen: int = 7, **how: Any) -> Any:
    return store.save_async(state_of(number, frozen), step=number, unchanged="frozen", **how)


def is_state(store: Store, number: int) -> bool:
    loaded = store.load(number)
    wanted = state_of(number)
    return loaded["n"] == number and all(
        bool((a == b).all())
        for a, b in (
            (loaded["w"], wanted["w"]),
            (loaded["frozen"]["w"], wanted["frozen"]["w"]),
            (loaded["frozen"]["small"], wanted["frozen"]["small"]),
        )
    )


def test_what_is_unchanged_is_not_copied_and_the_checkpoint_is_whole(store: Store) -> None:
    for number in range(6):
        info = saved(store, number).result(DEADLINE_S)
        assert info.counters is not None
        assert info.counters.kept_bytes == (4 * FROZEN if number else 0)
        assert is_state(store, number)
        assert info.content == Store(store.path).info(number).content
    check_store(store.path)
    same = store.save(state_of(5), step=5)
    assert same.id == store.info(5).id, "plain save makes the same checkpoint"


def test_a_hint_that_is_not_so_is_found_at_last_and_the_next_save_copies_everything(store: Store) -> None:
    saved(store, 0).result(DEADLINE_S)
    errors: list[Any] = []
    state = state_of(0)
    for number in range(1, 6):
        state = state_of(number)
        state["frozen"]["w"][-1] = 8
        error = store.save_async(state, step=number, unchanged=["frozen"]).exception(DEADLINE_S)
        if error is None:
            assert store.load(number)["frozen"]["w"][-1] == 7, "old bytes, as is said"
            continue
        errors.append(error)
        break
    assert isinstance(errors[0], NotUnchanged)
    assert "frozen.w was named in unchanged=" in errors[0].message
    store.save_async(state, step=9, unchanged="frozen").result(DEADLINE_S)
    assert store.load(9)["frozen"]["w"][-1] == 8
    check_store(store.path)


def test_it_is_copied_where_the_save_before_cannot_be_meant(store: Store) -> None:
    saved(store, 0).result(DEADLINE_S)
    store.save(state_of(1, 8), step=1)
    saved(store, 2, 8).result(DEADLINE_S)  # the plain save came between
    assert store.load(2)["frozen"]["w"][0] == 8
    saved(store, 2, 9, if_exists="keep").result(DEADLINE_S)
    saved(store, 3, 9).result(DEADLINE_S)  # what was kept is of other bytes
    assert store.load(3)["frozen"]["w"][0] == 9
    saved(store, 3, 5, if_exists="replace").result(DEADLINE_S)
    assert store.load(3)["frozen"]["w"][0] == 5
    store.save_async(state_of(4, 6), step=4, unchanged=lambda name: name == "frozen.small").result(DEADLINE_S)
    assert store.load(4)["frozen"]["w"][0] == 6
    check_store(store.path)


def test_a_checkpoint_before_that_is_gone_is_told_and_the_next_save_copies_everything(store: Store) -> None:
    saved(store, 0).result(DEADLINE_S)
    store.delete(0)
    store.gc()
    with pytest.raises(SaveFailed, match=r"main@0 cannot be reused: it was deleted"):
        saved(store, 1).result(DEADLINE_S)
    saved(store, 2).result(DEADLINE_S)
    assert is_state(store, 2)


def test_bytes_that_only_a_remote_has_are_not_taken_and_the_next_save_stores_its_own(
    store: Store, tmp_path: Path
) -> None:
    store.remotes.add("cold", (tmp_path / "cold").as_uri())
    saved(store, 0).result(DEADLINE_S)
    store.push(0)
    store.evict(0)
    with pytest.raises(SaveFailed, match=r"frozen.w cannot be reused from main@0: this store no longer has the blob"):
        saved(store, 1).result(DEADLINE_S)
    saved(store, 2).result(DEADLINE_S)
    shutil.rmtree(tmp_path / "cold")
    assert is_state(store, 2)


def test_another_saver_goes_on_with_what_is_unchanged(store: Store, strike: Callable[..., Path]) -> None:
    saved(store, 0).result(DEADLINE_S)
    store.close()
    wait_for(lambda: store.background._client().pid() is None, "the saver has ended")
    strike("writing", "kill", 1)
    saved(store, 1).result(DEADLINE_S)
    assert is_state(store, 1)


def test_a_name_that_nothing_has_is_refused(store: Store) -> None:
    with pytest.raises(BadInput, match="selects none"):
        store.save_async(state_of(0), step=0, unchanged="frozzen")
    with pytest.raises(BadInput, match="unchanged must be"):
        store.save_async(state_of(0), step=0, unchanged=5)  # type: ignore[arg-type]


def test_every_chunk_is_compared_in_its_turn(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IN_SAVES", 4)
    for number in range(6):
        saved(store, number).result(DEADLINE_S)
    compared = store.background._client()._queue.bases._compared["main"]
    assert {start for _, start in compared} == {0, 2**20, 2 * 2**20, 3 * 2**20}


@pytest.mark.parametrize("when_busy", ["skip", "error"])
def test_a_call_that_saves_nothing_counts_as_a_save_before_that_names_nothing(
    store: Store, strike: Callable[..., Path], when_busy: Any
) -> None:
    folder = strike("staging", "wait", 1)
    first = store.save_async(state_of(0), step=0)
    wait_for((folder / "struck-0").exists, "it is staging")
    with contextlib.suppress(InUse):  # from here on 8 is unchanged, and not 7
        assert store.save_async(state_of(1, 8), step=1, when_busy=when_busy).skipped
    (folder / "go-0").touch()
    first.result(DEADLINE_S)

    saved(store, 2, 8, when_busy=when_busy).result(DEADLINE_S)

    assert store.load(2)["frozen"]["w"][0] == 8
    check_store(store.path)


@pytest.mark.parametrize("how", [{"nice": 99}, {"metrics": {"loss": "low"}}, {"step": -1}, {"unchanged": 5}])
def test_a_call_whose_arguments_are_refused_counts_as_a_save_before_that_names_nothing(
    store: Store, how: dict[str, Any]
) -> None:
    saved(store, 0).result(DEADLINE_S)
    with pytest.raises(BadInput):  # from here on 8 is unchanged, and not 7
        store.save_async(state_of(1, 8), **{"step": 1, "unchanged": None, **how})

    saved(store, 2, 8).result(DEADLINE_S)

    assert store.load(2)["frozen"]["w"][0] == 8


def test_what_has_another_form_is_copied(store: Store) -> None:
    saved(store, 0).result(DEADLINE_S)
    state = state_of(1)
    state["frozen"]["w"] = state["frozen"]["w"].view(np.int32)
    store.save_async(state, step=1, unchanged="frozen").result(DEADLINE_S)
    assert store.load(1)["frozen"]["w"].dtype == np.int32


def test_retention_and_gc_between_two_saves_leave_what_the_next_takes(store: Store) -> None:
    store.config.retention = RetentionPolicy(keep_last=1)
    for number in range(4):
        saved(store, number).result(DEADLINE_S)
        store.gc()
        assert [info.step for info in store.checkpoints()] == [number]
        assert is_state(store, number)
    check_store(store.path)


@pytest.mark.parametrize("changed", ["another id", "another storage", "another size", "another chunk"])
def test_what_the_checkpoint_before_has_in_another_form_is_not_taken(
    store: Store, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    place = UnchangedBases.place

    def placed(bases: UnchangedBases, *how: Any) -> SnapshotPlan:
        there = place(bases, *how)
        kept = there.kept
        if kept is None:
            return there
        index, (storage, step) = next(iter(kept.storages.items()))
        sample = kept.samples[0]
        if changed == "another id":
            kept = kept._replace(id="xxh3_128-" + "0" * 32)
        elif changed == "another storage":
            kept = kept._replace(storages={index: (storage + 1, step)})
        elif changed == "another size":
            places = [of._replace(nbytes=of.nbytes + (of.offset < 0)) for of in there.places]
            there = replace(there, places=tuple(places))
        else:
            kept = kept._replace(samples=(sample._replace(start=sample.start + 4),))
        return replace(there, kept=kept)

    state = {"a": np.full(FROZEN, 1, np.float32), "b": np.full(FROZEN, 2, np.float32)}
    store.save_async(state, step=0).result(DEADLINE_S)
    monkeypatch.setattr(UnchangedBases, "place", placed)
    with pytest.raises(SaveFailed, match=r"it was deleted|main@0 stores .* in another form"):
        store.save_async(state, step=1, unchanged="a").result(DEADLINE_S)
    monkeypatch.undo()
    store.save_async(state, step=2, unchanged="a").result(DEADLINE_S)
    assert (store.load(2)["a"] == 1).all()


def test_a_checkpoint_whose_directory_is_exchanged_before_it_is_locked_is_not_taken(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, other = (store.save(state_of(number, frozen=number), step=number) for number in (0, 1))
    path, others_path = (checkpoint_dir(store.path, "main", info.step) for info in (wanted, other))
    aside = store.path.parent / "aside"
    captured = capture(state_of(2, frozen=0))
    places, nbytes = places_of(captured.sources)
    kept = ReusedStorage(0, wanted.id, {index: (index, 0) for index in range(len(places))}, ())
    order = Order(1, "main", 2, Description(), (), "error", captured=captured, places=places, kept=kept)
    snapshot = Snapshot(nbytes)
    snapshot.fill(captured.sources, places)
    open_at = CheckpointDirectory.at

    def exchanged(place: Any, hash_prefix: str) -> CheckpointDirectory:
        if others_path.exists():
            path.rename(aside)
            others_path.rename(path)
        return open_at(place, hash_prefix)

    monkeypatch.setattr(CheckpointDirectory, "at", exchanged)
    with pytest.raises(SaveFailed, match="it was deleted"):
        carry_out(store._context, order, snapshot.fd)

    monkeypatch.undo()
    snapshot.close()
    path.rename(others_path)
    aside.rename(path)
    check_store(store.path)


def test_a_blob_that_lost_its_name_fails_the_save_and_the_next_copies_everything(store: Store) -> None:
    saved(store, 0).result(DEADLINE_S)
    for blob in (store.path / "blobs").glob("*/*"):
        if blob.stat().st_size == 2**20:
            blob.unlink()
    with pytest.raises(SaveFailed, match=r"frozen.w cannot be reused from main@0: this store no longer has the blob"):
        saved(store, 1).result(DEADLINE_S)
    saved(store, 2).result(DEADLINE_S)
    assert is_state(store, 2)
    check_store(store.path)
