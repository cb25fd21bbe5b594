"""Push and pull between two stores in directories, each with its own protocol."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from ckstore import BadInput, CkstoreError, NoSuchRemote, RemoteError, Store
from tests.remote.test_pull import same
from tests.remote.test_push import MIB, state
from tests.support.checkpoint_dirs import blobs_dir
from tests.support.stores import check_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store.init(tmp_path / "store", chunk_bytes=MIB)
    made.save(state(1), step=1, metrics={"loss": 2.0})
    return made


@pytest.fixture
def other(tmp_path: Path) -> Store:
    return Store.init(tmp_path / "other", chunk_bytes=MIB)


def test_a_pull_from_a_store_gives_a_complete_local_checkpoint(store: Store, other: Store) -> None:
    store.tag("best", 1)
    store.pin(1, "paper")
    store.annotate(1, metrics={"bleu": 1.0})
    plan = other.pull(1, store.path, dry_run=True)
    report = other.pull(1, store.path)
    assert (plan.direction, report.direction) == ("pull", "pull")
    assert plan.moved_bytes == report.moved_bytes > 3 * MIB
    assert other.info("best").metrics == {"loss": 2.0, "bleu": 1.0}
    assert other.info(1).id == store.info(1).id
    assert same(other.load(1), state(1))
    assert other.verify().ok
    check_store(other.path)
    assert other.pull(1, str(store.path)).moved_bytes == 0


def test_a_pull_moves_no_local_tag(store: Store, other: Store) -> None:
    store.save(state(2), step=2)
    store.tag("best", 1)
    other.pull(None, store.path, all=True)
    other.tag("best", 2)
    report = other.pull(1, store.path)
    assert other.info("best").step == 2
    assert re.search(r"the tag best names main@2\.\w{10} locally and main@1\.\w{10} at ", report.warnings[0])


def test_a_store_is_not_pushed_to(store: Store, other: Store) -> None:
    store.remotes.add("other", other.path)
    for name in ("other", other.path):
        for act in (partial(store.push, dry_run=True), store.push, store.evict):
            with pytest.raises(BadInput, match="other stores may read it, but never write to it"):
                act(1, name)
    with pytest.raises(BadInput, match="other stores may read it, but never write to it"):
        Store.open_or_init(store.path, mirror=other.path)
    assert other.checkpoints() == []


def test_a_pull_from_a_directory_takes_only_what_is_missing(store: Store, other: Store) -> None:
    changed = state(1)
    changed["step"] = 2
    store.save(changed, step=2)
    other.pull(1, store.path)
    report = other.pull("latest", store.path)
    assert report.checkpoints[0].step == 2
    assert report.moved_bytes < MIB
    check_store(other.path)


def test_a_damaged_blob_of_the_other_store_is_refused(store: Store, other: Store) -> None:
    blob = next(blobs_dir(store.path, "main", 1).iterdir())
    os.chmod(blob, 0o644)
    with open(blob, "r+b") as file:
        file.write(b"\x00\x01\x02")
    with pytest.raises(RemoteError, match="is damaged"):
        other.pull(1, store.path)
    assert other.checkpoints() == []


def test_a_store_that_evicted_a_checkpoint_is_named_with_what_restores_it(store: Store, tmp_path: Path) -> None:
    store.remotes.add("cold", tmp_path / "cold")
    info = store.checkpoints()[0]
    store.push(info, "cold")
    store.evict(info, "cold")
    with Store.clone(store.path, tmp_path / "clone") as clone:
        acts: list[Callable[[], object]] = [lambda: clone.load(info.id), lambda: clone.pull(info.id, "origin")]
        for act in acts:
            with pytest.raises(CkstoreError) as raised:
                act()
            assert f"ckstore pull {info.name} in the store {store.path}" in str(raised.value.hint)
        store.pull(info.id, "cold")

        assert same(clone.load(info.id), store.load(info.id))


def test_places_without_a_remote_are_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(NoSuchRemote, match="has no remote at"):
        store.push(1, tmp_path / "nothing")
    with pytest.raises(BadInput, match="this store itself"):
        store.pull(1, store.path)
