"""During and after an eviction or a pull, gc frees all unused blobs and reports the others correctly."""

from __future__ import annotations

import errno
import itertools
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import CkstoreWarning, RetentionPolicy, Store
from ckstore.errors import BytesElsewhere, CkstoreError, UnknownOutcome
from ckstore.fs import files
from ckstore.objects import generations, trash
from ckstore.ops.context import Context
from ckstore.ops.free.drop import make_kept_durable
from ckstore.ops.index import reconcile
from ckstore.remote.pruning import keep_remote
from ckstore.remote.remote_only import evict as evicting
from ckstore.remote.remote_only import remote_presence
from tests.remote.test_keep import mirrored
from tests.remote.test_pull import same
from tests.remote.test_push import MIB, state
from tests.remote.test_rescue import drifting
from tests.support.checkpoint_dirs import blobs_dir, checkpoint_dir
from tests.support.coverage import lane_seed
from tests.support.crashing import run_and_kill, run_and_kill_instead
from tests.support.meanwhile import elsewhere
from tests.support.requirements import CRASH_FULL
from tests.support.stores import check_links, check_store

pytestmark = pytest.mark.usefixtures("no_mirror_process")
_REMOTE = "cold"
_PLACES: dict[str, object] = {"move_to_trash": trash, "sync_directory": files, "reconcile_one": reconcile}


def _evict(store: Store) -> None:
    store.evict(1, _REMOTE)


def _pull(store: Store) -> None:
    store.pull(1, _REMOTE)


@pytest.mark.parametrize("act", [_evict, _pull])
def test_a_gc_after_any_kill_frees_all_unused_blobs(tmp_path: Path, act: Callable[[Store], None]) -> None:
    made = Store.init(tmp_path / "made", chunk_bytes=MIB)
    made.remotes.add(_REMOTE, tmp_path / "remote")
    for step in (1, 2):
        made.save(state(step), step=step)
    made.push(all=True, remote=_REMOTE)
    if act is _pull:
        _evict(made)
        made.gc()
    made.close()
    for store, at in after_each_kill(tmp_path, act):
        report = store.gc(now=True)
        assert (report.linked_outside, report.held) == ((), ()), f"{at}: {report}"
        # An evicted checkpoint needs no local bytes, and a pulled one has all of them.
        here = {blob.name for blob in store.path.glob("checkpoints/*/*/blobs/*")}
        assert {blob.name for blob in store.path.glob("blobs/*/*")} == here, at
        assert same(store.load(1), state(1))
        store.pull(1, _REMOTE)


@pytest.mark.parametrize("act", [_evict, _pull])
def test_after_any_kill_elsewhere_means_lacking_blobs_and_the_rule_completes_the_eviction(
    tmp_path: Path, act: Callable[[Store], None]
) -> None:
    made = Store.init(tmp_path / "made", chunk_bytes=MIB)
    made.remotes.add(_REMOTE, tmp_path / "remote")
    made.config.mirror = _REMOTE
    for step in (1, 2):
        made.save(state(step), step=step)
    mirrored(made)
    made.config.keep_local = RetentionPolicy(keep_last=1)
    if act is _pull:
        _evict(made)
    blob_count = len(blobs_of(made, 2))
    made.close()
    for store, at in after_each_kill(tmp_path, act):
        is_lacking = len(blobs_of(store, 1)) < blob_count
        assert [store.info(1).elsewhere, store.checkpoints()[0].elsewhere] == [is_lacking] * 2, at
        report = store.verify()
        assert (report.ok, [one.step for one in report.elsewhere]) == (True, [1] * is_lacking), at
        if act is _evict:
            store.evict(rule=True)
        else:  # a killed pull may leave some blobs, which only an eviction by hand frees
            _evict(store)
        assert (blobs_of(store, 1), store.info(1).elsewhere) == ([], True), at
        assert len(store.remotes.claims(_REMOTE)) == 1, at
        store.pull(1, _REMOTE)
        assert store.info(1).elsewhere is False
        assert store.remotes.claims(_REMOTE) == (), at
        assert same(store.load(1), state(1))


def test_after_any_kill_of_an_eviction_a_compacted_checkpoint_loads_and_the_next_one_completes_it(
    tmp_path: Path,
) -> None:
    pytest.importorskip("zstandard")
    made = Store.init(tmp_path / "made", chunk_bytes=MIB)
    made.remotes.add(_REMOTE, tmp_path / "remote")
    values = drifting(3)
    for step, value in enumerate(values, 1):
        made.save({"w": value}, step=step)
    made.push(all=True, remote=_REMOTE)
    assert [done.info.step for done in made.compact(keep_newest=1).compacted] == [2, 1]
    made.close()
    for store, at in after_each_kill(tmp_path, _evict):
        info = store.info(1)
        assert (info.elsewhere, info.compacted) in {(False, True), (True, False)}, at
        assert (bool(blobs_of(store, 1)), store.verify().ok) == (info.compacted, True), at
        assert np.array_equal(store.load(1)["w"], values[0]), at
        _evict(store)
        report = store.gc(now=True)
        assert (report.linked_outside, report.held) == ((), ()), at
        assert [len([*store.path.glob(f"checkpoints/main/{step}.*")]) for step in (1, 2, 3)] == [1, 1, 1], at
        assert (blobs_of(store, 1), store.info(1).elsewhere, len(store.remotes.claims(_REMOTE))) == ([], True, 1), at
        assert [np.array_equal(store.load(step)["w"], value) for step, value in enumerate(values, 1)] == [True] * 3
        store.pull(1, _REMOTE)
        assert store.remotes.claims(_REMOTE) == (), at


def after_each_kill(tmp_path: Path, act: Callable[[Store], None]) -> Iterator[tuple[Store, str]]:
    """Yield copies of the store ``made``, each after another kill of `act`, and the last one after none.

    Without CKSTORE_CRASH=full, one kill in four is tried, beginning with one that the commit draws.
    """
    shutil.copytree(tmp_path / "remote", tmp_path / "remote before")
    for at in itertools.count(*((1, 1) if CRASH_FULL else (1 + lane_seed() % 4, 4))):
        path = tmp_path / f"store-{at}"
        shutil.copytree(tmp_path / "made", path, symlinks=True)
        shutil.rmtree(tmp_path / "remote")
        shutil.copytree(tmp_path / "remote before", tmp_path / "remote")
        with Store.open(path) as store:
            store.reindex(relink=True)

        was_killed = run_and_kill(lambda path=path: act(Store.open(path)), at=at, before=True)  # type: ignore[misc]

        with Store.open(path) as store:
            yield store, f"at {at}"
        check_links(path)
        shutil.rmtree(path)
        if not was_killed:
            return


def blobs_of(store: Store, step: int) -> list[str]:
    """Return the blobs in the directory of a checkpoint; none if the directory has no ``blobs/``."""
    folder = blobs_dir(store.path, "main", step)
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_checkpoint_of_a_killed_eviction_is_local_and_a_pull_ends_its_claim(
    tmp_path: Path, is_compacted: bool
) -> None:
    with Store.init(tmp_path / "store", chunk_bytes=MIB) as store:
        store.remotes.add(_REMOTE, tmp_path / "remote")
        for step, value in enumerate(drifting(2), 1):
            store.save({"w": value}, step=step)
        store.push(all=True, remote=_REMOTE)
        if is_compacted:
            store.compact(keep_newest=1)
        before = blobs_of(store, 1)
        assert run_and_kill_instead(lambda: _evict(Store.open(store.path)), evicting, "_evict_one")
        assert len(store.remotes.claims(_REMOTE)) == 1
        assert (store.info(1).elsewhere, store.info(1).compacted) == (False, is_compacted)
        with pytest.raises(BytesElsewhere, match="an eviction of main@1 has begun and has not ended"):
            store.rename_run("main", "other")

        store.pull(1, _REMOTE)

        assert store.remotes.claims(_REMOTE) == ()
        assert not (checkpoint_dir(store.path, "main", 1) / "elsewhere.json").exists()
        assert blobs_of(store, 1) == before
    check_store(tmp_path / "store")


def test_a_lost_encoded_file_is_damage_after_a_killed_eviction_and_the_plain_blob_heals_it(tmp_path: Path) -> None:
    pytest.importorskip("zstandard")
    values = drifting(3)
    with Store.init(tmp_path / "store", chunk_bytes=MIB) as store:
        store.remotes.add(_REMOTE, tmp_path / "remote")
        for step, value in enumerate(values, 1):
            store.save({"w": value}, step=step)
        store.push(all=True, remote=_REMOTE)
        store.compact(keep_newest=1)
        assert run_and_kill_instead(lambda: _evict(Store.open(store.path)), evicting, "_evict_one")
        folder = blobs_dir(store.path, "main", 1)
        shared = set(blobs_of(store, 2))
        (lost,) = (name for name in blobs_of(store, 1) if name not in shared)
        (folder / lost).unlink()
        (store.path / "blobs" / lost.partition("-")[2][:2] / lost).unlink()

        assert not store.verify().ok
        with pytest.warns(CkstoreWarning, match="repaired damaged or missing blobs: .* from the remote cold"):
            assert np.array_equal(store.load(1)["w"], values[0])

        assert store.verify(repair=True).ok
        _evict(store)
        assert store.info(1).elsewhere
        assert [np.array_equal(store.load(step)["w"], value) for step, value in enumerate(values, 1)] == [True] * 3


@pytest.mark.parametrize("step", ["make_kept_durable", "publish_generation"])
def test_a_compacted_checkpoint_that_another_process_evicts_meanwhile_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    with Store.init(tmp_path / "store", chunk_bytes=MIB) as store:
        store.remotes.add(_REMOTE, tmp_path / "remote")
        values = [*drifting(2)]
        for number, value in enumerate(values, 1):
            store.save({"w": value}, step=number)
        store.push(all=True, remote=_REMOTE)
        store.compact(keep_newest=1)
        original = getattr(evicting, step)

        def evict_first(*args: Any) -> Any:
            monkeypatch.setattr(evicting, step, original)
            elsewhere(lambda: _evict(Store.open(store.path)))
            return original(*args)

        monkeypatch.setattr(evicting, step, evict_first)

        report = store.evict(1, _REMOTE)

        assert (report.evicted, len(report.skipped)) == ((), 1)
        assert (store.info(1).elsewhere, len(store.remotes.claims(_REMOTE))) == (True, 1)
        assert np.array_equal(store.load(1)["w"], values[0])
    check_store(tmp_path / "store")


def test_a_pull_during_the_eviction_of_a_compacted_checkpoint_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.init(tmp_path / "store", chunk_bytes=MIB) as store:
        store.remotes.add(_REMOTE, tmp_path / "remote")
        for step, value in enumerate(drifting(2), 1):
            store.save({"w": value}, step=step)
        store.push(all=True, remote=_REMOTE)
        store.compact(keep_newest=1)
        publish = generations.publish_generation

        def pull_first(*args: Any) -> Any:
            elsewhere(lambda: Store.open(store.path).pull(1, _REMOTE))
            return publish(*args)

        monkeypatch.setattr(evicting, "publish_generation", pull_first)

        assert [one.reason for one in store.evict(1, _REMOTE).skipped] == ["another process is evicting it"]
        assert (store.info(1).elsewhere, store.info(1).compacted) == (False, True)
        assert store.remotes.claims(_REMOTE) == ()
    check_store(tmp_path / "store")


@pytest.mark.parametrize("step", ["publish_generation", "move_to_trash", "sync_directory", "reconcile_one"])
def test_an_eviction_of_a_compacted_checkpoint_that_fails_at_any_step_keeps_its_claim_or_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    values = [*drifting(2)]
    with Store.init(tmp_path / "store", chunk_bytes=MIB) as store:
        store.remotes.add(_REMOTE, tmp_path / "remote")
        for number, value in enumerate(values, 1):
            store.save({"w": value}, step=number)
        store.push(all=True, remote=_REMOTE)
        store.compact(keep_newest=1)

        def fail(*_: Any, **__: Any) -> None:
            raise OSError(errno.EIO, "an error of the disk")

        def then_fail(*args: Any) -> Any:
            publish(*args)[1].release()
            raise UnknownOutcome("the directory was not synced")

        publish = generations.publish_generation
        with monkeypatch.context() as failing, suppress(CkstoreError):
            if step == "publish_generation":
                failing.setattr(evicting, step, then_fail)
            else:
                failing.setattr(_PLACES.get(step, evicting), step, fail)
            store.evict(1, _REMOTE)

    with Store.open(tmp_path / "store") as store:
        store.gc(now=True)
        assert len(store.remotes.claims(_REMOTE)) >= store.info(1).elsewhere
        assert np.array_equal(store.load(1)["w"], values[0])
        _evict(store)
        assert (store.info(1).elsewhere, len(store.remotes.claims(_REMOTE))) == (True, 1)
    check_store(tmp_path / "store")


def test_blobs_moved_to_trash_by_an_eviction_are_not_reported_as_linked_outside(tmp_path: Path) -> None:
    path = tmp_path / "store"
    Store.init(path, chunk_bytes=MIB).close()
    # With a catalog of its own: other hosts may use the store, and what is in trash waits for the grace.
    with Store.open(path, catalog_path=tmp_path / "own" / "catalog.db") as store:
        store.remotes.add(_REMOTE, tmp_path / "remote")
        for step in (1, 2):
            store.save(state(step), step=step)
        store.push(all=True, remote=_REMOTE)
        _evict(store)

        report = store.gc()

        assert report.trash_left != ()
        assert report.linked_outside == ()
        assert store.gc(exclusive=True).trash_left == ()
        assert same(store.load(1), state(1))
    check_links(path)


def test_keep_remote_drops_no_checkpoint_that_a_killed_eviction_left_complete(tmp_path: Path) -> None:
    with Store.init(tmp_path / "store", chunk_bytes=MIB) as store:
        store.remotes.add(_REMOTE, tmp_path / "remote")
        store.config.mirror = _REMOTE
        store.config.keep_remote = RetentionPolicy(keep_last=1)
        for step in (1, 2):
            store.save(state(step), step=step)
        store.push(all=True, remote=_REMOTE)
        assert run_and_kill_instead(lambda: _evict(Store.open(store.path)), remote_presence, "write_claim")

        report = store.remotes.prune(_REMOTE)

        assert report.retention is not None
        assert [info.step for info in report.retention.dropped] == [1]
        assert [info.step for info in store.checkpoints()] == [1, 2]
        assert same(store.load(1), state(1))
    check_links(tmp_path / "store")


def test_keep_remote_drops_no_checkpoint_whose_bytes_a_pull_is_restoring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.init(tmp_path / "store", chunk_bytes=MIB) as store:
        store.remotes.add(_REMOTE, tmp_path / "remote")
        store.config.mirror = _REMOTE
        store.config.keep_remote = RetentionPolicy(keep_last=1)
        for step in (1, 2):
            store.save(state(step), step=step)
        store.push(all=True, remote=_REMOTE)
        store.evict(1, remote=_REMOTE)

        def then_pulled(context: Context, run: str) -> None:
            make_kept_durable(context, run)
            elsewhere(lambda: Store.open(store.path).pull("main@1", _REMOTE))

        monkeypatch.setattr(keep_remote, "make_kept_durable", then_pulled)
        store.remotes.prune(_REMOTE)

        assert [info.step for info in store.checkpoints()] == [1, 2]
        assert same(store.load(1), state(1))
    check_store(tmp_path / "store")
