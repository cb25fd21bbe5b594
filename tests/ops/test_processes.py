"""Several processes at one store, forks, and what opening sets right."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sqlite3
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ckstore import CkstoreWarning, Store
from ckstore.catalog import Catalog
from ckstore.errors import BadInput, InUse, NewerFormat, SaveFailed, StepExists, StoreNotFound
from ckstore.fs import locks
from tests.support.crashing import run_and_kill
from tests.support.meanwhile import elsewhere
from tests.support.requirements import CRASH_FULL
from tests.support.stores import check_store

if TYPE_CHECKING:
    from pathlib import Path

MIB = 2**20
FORK = multiprocessing.get_context("fork")


def state(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {"big": rng.integers(0, 256, MIB + 5, dtype=np.uint8), "small": rng.random(20)}


def same(one: Any, other: Any) -> bool:
    return np.array_equal(one["big"], other["big"]) and np.array_equal(one["small"], other["small"])


def run_all(work: Any, count: int, *args: Any) -> list[Any]:
    """Run `work(i, *args)` in `count` processes at once and return what they returned or raised."""
    with FORK.Pool(count) as pool:
        results = [pool.apply_async(guarded, (work, i, *args)) for i in range(count)]
        return [result.get(timeout=120) for result in results]


def guarded(work: Any, *args: Any) -> Any:
    try:
        return work(*args)
    except Exception as error:  # it is the result
        return error


def _save_same_step(i: int, path: Path, seeds: int) -> str:
    with Store.open(path) as store:
        return store.save(state(i % seeds), step=1).id


def test_one_step_saved_by_four_processes_is_one_checkpoint(store: Store) -> None:
    for _ in range(2):
        ids = run_all(_save_same_step, 4, store.path, 1)

        assert len(set(ids)) == 1, ids
        assert same(store.load(1), state(0))
        store.delete(1)


def test_different_states_at_one_step_leave_one_and_tell_the_others(store: Store) -> None:
    for _ in range(2):
        results = run_all(_save_same_step, 4, store.path, 4)

        won = [result for result in results if isinstance(result, str)]
        assert len(won) == 1
        assert all(isinstance(result, (str, StepExists)) for result in results), results
        assert store.info(1).id == won[0]
        store.delete(1)


def _save_many(i: int, path: Path) -> list[int]:
    store = Store.open(path)
    return [store.save(state(k)).step for k in range(6)]


def test_processes_that_let_the_store_choose_the_step_never_collide(store: Store) -> None:
    steps = run_all(_save_many, 3, store.path)

    assert sorted(step for taken in steps for step in taken) == list(range(18)), steps
    assert all(same(store.load(step), state(k)) for taken in steps for k, step in enumerate(taken))


def _open_or_init(i: int, path: Path) -> int:
    return Store.open_or_init(path, chunk_bytes=MIB).save(state(i), run=f"r{i}").step


def test_a_store_may_be_made_by_several_processes_at_once(tmp_path: Path) -> None:
    for attempt in range(2):
        path = tmp_path / str(attempt)

        assert run_all(_open_or_init, 4, path) == [0, 0, 0, 0]

        assert [info.run for info in Store.open(path).checkpoints()] != []
        check_store(path)


def test_a_save_between_making_a_new_catalog_and_reading_the_directories_is_no_rebuilding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store.init(tmp_path / "store").close()
    for path in (tmp_path / "store").glob("catalog.db*"):
        path.unlink()
    true_create = Catalog.create_or_migrate

    def create(catalog: Catalog, *, timeout_s: float) -> bool:
        made = true_create(catalog, timeout_s=timeout_s)
        monkeypatch.undo()
        elsewhere(lambda: Store.open(tmp_path / "store").save(state(0)))
        return made

    monkeypatch.setattr(Catalog, "create_or_migrate", create)

    assert not any("Rebuilt" in warning for warning in Store.open(tmp_path / "store").warnings)


@pytest.mark.crash
def test_what_a_killed_save_left_is_swept_and_what_it_published_is_adopted(store: Store) -> None:
    store.save(state(0), step=0)
    died = 0
    for at in range(1, 60, 1 if CRASH_FULL else 4):
        died += run_and_kill(lambda at=at: store.save(state(at), step=at), at=at, before=False)  # type: ignore[misc]
    assert died > (10 if CRASH_FULL else 3)

    reopened = Store.open(store.path)

    assert os.listdir(store.path / "staging") == []
    assert os.listdir(store.path / "trash") == []
    for info in reopened.checkpoints():
        assert same(reopened.load(info), state(info.step))
    check_store(store.path)


def test_a_living_save_is_not_swept_by_an_opener(store: Store) -> None:
    staging = store.path / "staging" / "main@7.abc"
    (staging / "blobs").mkdir(parents=True)
    with locks.lock_shared(staging):
        Store.open(store.path)
        assert staging.exists()

    Store.open(store.path)

    assert not staging.exists()


def test_a_forked_child_does_not_keep_the_lock_of_its_parent(store: Store) -> None:
    lock = locks.lock_shared(store.path / "trash")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    os.close(read)
    lock.release()

    taken = locks.try_exclusive(store.path / "trash")

    assert taken is not None
    taken.release()
    os.close(write)
    os.waitpid(child, 0)


def test_losing_the_catalog_loses_nothing(store: Store) -> None:
    for step in range(3):
        store.save(state(step), step=step, metrics={"loss": step}, tags=[f"tag-{step}"], message=f"m{step}")
    before = store.checkpoints()
    for path in store.path.glob("catalog.db*"):
        path.unlink()

    with pytest.warns(CkstoreWarning, match="catalog.db is missing. Reading the directories instead") as caught:
        assert [store.checkpoints(), store.checkpoints()] == [before, before]
    with pytest.warns(CkstoreWarning, match="ckstore reindex"):
        assert Store.open(store.path, readonly=True).checkpoints() == before
    with pytest.warns(CkstoreWarning, match="Rebuilt the catalog from .*, because it was missing"):
        assert Store.open(store.path).checkpoints() == before
    assert [warning.filename for warning in caught] == [__file__], "once, and for the caller"
    assert [info.step for info in before] == [0, 1, 2]


def test_a_damaged_catalog_is_set_aside_and_rebuilt(store: Store) -> None:
    store.save(state(1))
    before = store.checkpoints()
    for path in store.path.glob("catalog.db-*"):
        path.unlink()
    (store.path / "catalog.db").write_bytes(b"no database at all, but long enough to be looked at" * 100)

    with pytest.warns(CkstoreWarning, match="Reading the directories instead"):
        assert store.checkpoints() == before
    info = store.save(state(2))
    with pytest.warns(CkstoreWarning, match=r"Rebuilt the catalog from .*catalog.db.damaged-1"):
        reopened = Store.open(store.path)

    assert not info.catalogued
    assert any("Rebuilt the catalog" in warning for warning in reopened.warnings)
    assert [i.step for i in reopened.checkpoints()] == [0, 1]
    for path in store.path.glob("catalog.db.damaged*"):
        path.unlink()


def test_a_save_is_acknowledged_when_the_catalog_is_locked_for_long(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckstore.ops.save.save.CATALOG_TIMEOUT_S", 0.05)
    with locks.lock_exclusive(store.path, timeout_s=1):
        info = store.save(state(1))

    assert not info.catalogued
    assert store.latest() is not None
    assert same(store.load(), state(1))
    assert Store.open(store.path).info(0).catalogued


def test_a_newer_store_and_a_newer_catalog_are_refused(store: Store, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(store.path, copy)
    settings = copy / "store.json"
    settings.chmod(0o644)
    settings.write_bytes(settings.read_bytes().replace(b'"version":1', b'"version":2'))
    with pytest.raises(NewerFormat, match="version"):
        Store.open(copy)

    connection = sqlite3.connect(store.path / "catalog.db")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(NewerFormat):
        Store.open(store.path)
    assert Store.open(store.path, readonly=True).checkpoints() == []
    connection = sqlite3.connect(store.path / "catalog.db")
    connection.execute(f"PRAGMA user_version={version}")
    connection.close()


def test_a_store_opened_for_reading_writes_nothing(store: Store) -> None:
    store.save(state(1))
    (store.path / "staging" / "left").mkdir()
    reader = Store.open(store.path, readonly=True)

    assert same(reader.load(), state(1))
    assert (store.path / "staging" / "left").exists()
    with pytest.raises(SaveFailed, match="opened for reading only"):
        reader.save(state(2))


def test_a_reader_keeps_a_checkpoint_from_being_deleted(store: Store) -> None:
    store.save(state(1))
    with store.open_checkpoint() as checkpoint:
        with pytest.raises(InUse, match="open for reading"):
            store.delete(0)
        assert same(checkpoint.load(), state(1))

    store.delete(0)

    assert store.checkpoints() == []
    assert not any(path.is_file() for path in (store.path / "blobs").rglob("*"))


def test_a_mapped_state_outlives_its_checkpoint(store: Store) -> None:
    store.save(state(3))
    loaded = store.load(mmap=True)
    store.delete(0)

    assert same(loaded, state(3))
    loaded["big"][:] = 0
    del loaded
    store.save(state(3))
    assert same(store.load(), state(3))


def test_places_that_are_no_store_are_named(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFound, match="there is no store at"):
        Store.open(tmp_path / "nothing")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(BadInput, match=r"is neither empty nor a store: it contains thesis\.tex"):
        Store.init(tmp_path / "other")
    Store.init(tmp_path / "s")
    with pytest.raises(BadInput, match="there is already a store at"):
        Store.init(tmp_path / "s")
    with pytest.raises(BadInput, match="chunk_bytes"):
        Store.init(tmp_path / "t", chunk_bytes=1000)
    with pytest.raises(BadInput, match="hash must be one of"):
        Store.init(tmp_path / "t", hash="md5")
    (tmp_path / "a file").touch()
    with pytest.raises(BadInput, match="Not a directory"):
        Store.init(tmp_path / "a file" / "where")
