"""Gc carries out its plan: on a quiet store all comes out as planned, else it says where not and why."""

from __future__ import annotations

import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckstore import RetentionPolicy, Store
from ckstore.fs import locks
from ckstore.objects import trash
from ckstore.objects.last_links import OpenFileCheck
from ckstore.objects.staging import Staging
from ckstore.ops.free import gc, gc_plan, reclaim
from ckstore.provisional import GcPlan
from tests.support.examples import examples
from tests.support.holding import holding
from tests.support.stores import check_store

MIB = 2**20


def state(*seeds: int) -> dict[str, Any]:
    """A blob for each seed."""
    return {str(seed): np.full(MIB, seed, np.uint8) for seed in seeds}


@pytest.fixture
def dropped(store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store with step 2, and step 1 in trash: the blob of seed 1 is without a use."""
    store.save(state(1, 3), step=1)
    store.save(state(2, 3), step=2)
    with monkeypatch.context() as patch:
        patch.setattr(reclaim, "free_unused", lambda *_: None)
        store.delete(1)
    return store


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Lets another process do something when the plan is made and nothing of it is done."""
    carry_out = gc.carry_out

    def between(act: Callable[[], object]) -> None:
        def after_it(*given: Any) -> Any:
            thread = threading.Thread(target=act)  # a store refuses two acts of one thread
            thread.start()
            thread.join(60)
            return carry_out(*given)

        monkeypatch.setattr(gc, "carry_out", after_it)

    return between


def blob_of(store: Store, seed: int) -> Path:
    (path,) = [one for one in (store.path / "blobs").rglob("xxh3-*") if one.read_bytes()[0] == seed]
    return path


def inodes(root: Path) -> Counter[str]:
    """The blobs of a store by digest: one for each file, however many names it has."""
    return Counter({path.stat().st_ino: path.name.partition(".")[0] for path in root.rglob("xxh3-*")}.values())


@settings(max_examples=examples(6), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    saved=st.lists(st.sets(st.integers(0, 4), min_size=1, max_size=3), min_size=1, max_size=4),
    gone=st.sets(st.integers(0, 3)),
    opened=st.sets(st.integers(0, 4), max_size=2),
    linked=st.sets(st.integers(0, 4), max_size=2),
    condemned=st.sets(st.integers(0, 4), max_size=2),
    stagings=st.integers(0, 2),
    read=st.booleans(),
)
def test_on_a_quiet_store_all_comes_out_as_planned(  # noqa: PLR0917 - what is drawn
    tmp_path: Path,
    saved: list[set[int]],
    gone: set[int],
    opened: set[int],
    linked: set[int],
    condemned: set[int],
    stagings: int,
    read: bool,
) -> None:
    folder = tmp_path / f"at-{len(list(tmp_path.iterdir()))}"
    folder.mkdir()
    store = Store.init(folder / "store", chunk_bytes=MIB)
    for step, seeds in enumerate(saved):
        store.save(state(*seeds), step=step)
    blobs = {path.read_bytes()[0]: path for path in (store.path / "blobs").rglob("xxh3-*")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reclaim, "free_unused", lambda *_: None)
        for step in gone & set(range(len(saved))):
            store.delete(step)
    for number in range(stagings):  # as a save that was killed when it had linked to what it needs
        staging = Staging.create(store._context.layout, "main", 50 + number)
        os.link(blobs[min(blobs)], Path(str(staging.path)) / "blobs" / blobs[min(blobs)].name)
        staging.lock.release()
    for seed in linked & blobs.keys():
        os.link(blobs[seed], folder / f"alias-{seed}")
    for seed in condemned & blobs.keys():  # as gc leaves it when it is killed
        os.link(blobs[seed], store.path / "trash" / f"{blobs[seed].name}.{seed:012}")
    files = [blobs[seed].open("rb") for seed in opened & blobs.keys()]
    in_trash = [path for path in (store.path / "trash").iterdir() if path.is_dir()]
    reader = locks.lock_shared(in_trash[0]) if read and in_trash else None
    there = inodes(store.path)

    plan, report = store.gc(dry_run=True).plan, store.gc()

    assert report.differences == ()
    assert (plan.blobs, plan.dead_stagings, plan.trash) == (
        report.plan.blobs,
        report.plan.dead_stagings,
        report.plan.trash,
    )
    assert Counter(blob.digest for blob in plan.blobs) == there - inodes(store.path)
    assert (plan.freed_count, plan.freed_bytes) == (report.freed_count, report.freed_bytes)
    assert [one.digest for one in plan.held] == [one.digest for one in report.held]
    assert (plan.linked_outside, plan.next_to_free) == (report.linked_outside, report.next_to_free)
    assert len(plan.dead_stagings) == report.swept_stagings == stagings
    for file in files:
        file.close()
    if reader is not None:
        reader.release()
    shutil.rmtree(folder)


def test_a_dry_run_is_the_plan_that_the_run_carries_out(dropped: Store) -> None:
    dropped.save(state(4), step=3)
    policy = RetentionPolicy(keep_last=1)

    would = dropped.prune(policy, dry_run=True)
    report = dropped.prune(policy)

    assert isinstance(would.plan, GcPlan)
    assert (would.plan.blobs, would.plan.unused) == (report.plan.blobs, report.plan.unused)
    assert (would.differences, report.differences) == ((), ())
    assert report.freed_count == 3


def test_a_blob_that_is_opened_after_the_plan_stays_and_its_reader_is_named(
    dropped: Store, meanwhile: Callable[[Callable[[], object]], None]
) -> None:
    blob = blob_of(dropped, 1)
    opened = []
    with ExitStack() as held:
        meanwhile(lambda: opened.append(held.enter_context(holding("read", blob)).pid))
        report = dropped.gc()

    (said,) = report.differences
    assert said.startswith(f"{blob.name} was not freed: open in PID {opened[0]} (")
    assert (report.freed_count, blob.exists()) == (0, True)


def test_a_blob_that_is_saved_again_after_the_plan_stays(
    dropped: Store, meanwhile: Callable[[Callable[[], object]], None]
) -> None:
    blob = blob_of(dropped, 1)
    meanwhile(lambda: Store.open(dropped.path).save(state(1), step=3))

    report = dropped.gc()

    assert report.differences == (f"{blob.name} was not freed: a checkpoint uses it again",)
    assert "not as planned: " in str(report)
    assert np.array_equal(dropped.load(3)["1"], state(1)["1"])
    check_store(dropped.path)


def test_a_blob_that_gets_another_name_after_the_plan_stays(
    dropped: Store, tmp_path: Path, meanwhile: Callable[[Callable[[], object]], None]
) -> None:
    blob = blob_of(dropped, 1)
    meanwhile(lambda: os.link(blob, tmp_path / "alias"))

    report = dropped.gc()

    assert report.differences == (f"{blob.name} was not freed: it now has another link",)
    assert [one.digest for one in report.linked_outside] == [blob.name]
    (tmp_path / "alias").unlink()


def test_a_blob_that_is_gone_before_its_turn_is_said(
    dropped: Store, meanwhile: Callable[[Callable[[], object]], None]
) -> None:
    blob = blob_of(dropped, 1)

    def take_it() -> None:
        blob.unlink()
        for name in (dropped.path / "trash").glob(f"*/blobs/{blob.name}"):
            name.unlink()

    meanwhile(take_it)

    assert dropped.gc().differences == (f"{blob.name} was not freed: it has already been removed",)


def test_a_blob_that_is_closed_after_the_plan_is_freed_and_that_is_said(
    dropped: Store, meanwhile: Callable[[Callable[[], object]], None]
) -> None:
    blob = blob_of(dropped, 1)
    file = blob.open("rb")
    meanwhile(file.close)

    report = dropped.gc()

    (said,) = report.differences
    assert said.startswith(f"{blob.name} was freed, although the plan kept it: open in PID {os.getpid()} (")
    assert report.freed_count == 1


def test_what_is_dropped_after_the_plan_waits_for_the_next_gc(
    dropped: Store, meanwhile: Callable[[Callable[[], object]], None]
) -> None:
    dropped.save(state(4), step=3)
    meanwhile(lambda: Store.open(dropped.path).delete(2))

    report = dropped.gc()

    assert (report.freed_count, report.differences, len(report.trash_left)) == (1, (), 1)


def test_a_reader_in_trash_and_a_save_at_work_are_said(
    dropped: Store, meanwhile: Callable[[Callable[[], object]], None]
) -> None:
    staging = Staging.create(dropped._context.layout, "main", 9)
    staging.lock.release()
    (in_trash,) = (dropped.path / "trash").iterdir()
    held: list[locks.DirectoryLock] = []
    meanwhile(lambda: held.extend(locks.lock_shared(path) for path in (in_trash, Path(str(staging.path)))))

    report = dropped.gc()

    assert (
        f"staging/{Path(str(staging.path)).name} is kept: its save is still running, or another process removed it"
        in report.differences
    )
    assert (
        f"trash/{in_trash.name} is kept: another process uses it, or it belongs to another user" in report.differences
    )
    assert (report.freed_count, report.swept_stagings) == (0, 0)
    for lock in held:
        lock.release()


def test_a_dead_save_that_an_opener_sweeps_while_the_plan_is_made_stops_no_gc(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = Staging.create(store._context.layout, "main", 9)
    (Path(str(staging.path)) / "blobs" / f"xxh3-{'0' * 32}").write_bytes(b"1")
    staging.lock.release()
    is_held = OpenFileCheck.is_held

    def swept_before(judge: OpenFileCheck, last: Any, seen: Any) -> bool:
        trash.sweep_staging(store._context.layout, {})
        return is_held(judge, last, seen)

    monkeypatch.setattr(OpenFileCheck, "is_held", swept_before)
    report = store.gc()

    assert report.differences == (
        f"staging/{Path(str(staging.path)).name} is kept: its save is still running, or another process removed it",
    )
    assert store.gc().freed_count == 1


def test_a_gc_after_a_save_asks_of_no_blob_twice(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.config.retention = RetentionPolicy(keep_last=1)
    store.save(state(1), step=1)
    monkeypatch.setattr(gc_plan, "_foreseen", lambda *_: pytest.fail("a forecast after a save"))

    store.save(state(2), step=2)

    assert len(inodes(store.path)) == 1
