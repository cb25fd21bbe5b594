"""A step with superseded checkpoints, and a checkpoint with two generations: what each act does with them."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import BadInput, Budget, CheckpointInfo, CkstoreWarning, InUse, NoSuchRef, RetentionPolicy, Store
from ckstore.model.digest import short_id
from ckstore.model.names import key_of
from ckstore.objects import layout as layouts
from ckstore.objects import store_locks, trash
from ckstore.ops.free import make_room, superseded_checkpoints
from ckstore.ops.free.drop import drop_torn
from ckstore.ops.save import save
from ckstore.store import context_of
from tests.support.checkpoint_dirs import checkpoint_dir, checkpoint_dirs, dir_of_id
from tests.support.crashing import run_and_kill, run_and_kill_instead
from tests.support.meanwhile import elsewhere
from tests.support.plans import plan_of
from tests.support.stores import check_store, disk_bytes

NBYTES = 300_000
DAY_S = 86400.0


def state(seed: int) -> dict[str, Any]:
    return {"w": np.random.default_rng(seed).integers(0, 256, NBYTES, dtype=np.uint8)}


def holds(store: Store, ref: Any, seed: int) -> bool:
    return bool(np.array_equal(store.load(ref)["w"], state(seed)["w"]))


def two_of_step(store: Store, step: int = 1) -> tuple[CheckpointInfo, CheckpointInfo]:
    """Save a step twice, while a tag keeps the older checkpoint; return both. Nothing protects any of them then."""
    older = store.save(state(1), step=step, tags=["kept"])
    newer = store.save(state(2), step=step, if_exists="replace")
    assert "the older checkpoint of" in newer.warnings[0]
    store.untag("kept")
    assert store.info(older.id).superseded
    return store.info(older.id), store.info(newer.id)


def listed(store: Store) -> list[str]:
    """Return the ids of all checkpoints, the superseded ones, too."""
    return [info.id for info in store.checkpoints(superseded=True)]


def pass_time(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    later = time.time() + seconds
    monkeypatch.setattr("ckstore.objects.trash.time.time", lambda: later)


@pytest.fixture
def kept(store: Store) -> Store:
    """A store that keeps what a person drops for a day."""
    store.config.undo_by_hand_s = DAY_S
    return store


# ------------------------------------------------------------------------------------------------------ gc


def test_gc_drops_a_superseded_one_after_the_undo_window_as_its_dry_run_says(
    kept: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, newer = two_of_step(kept)

    assert kept.gc(dry_run=True).freed_bytes == kept.gc().freed_bytes == 0
    assert listed(kept) == [older.id, newer.id]

    pass_time(monkeypatch, DAY_S + 1)
    would, plan = kept.gc(dry_run=True), kept.gc(dry_run=True).plan
    report = kept.gc()

    assert would.freed_bytes == plan.freed_bytes == report.freed_bytes >= NBYTES
    assert would.plan is not None
    assert report.plan is not None
    assert would.plan.blobs == plan.blobs == report.plan.blobs
    assert report.differences == ()
    assert listed(kept) == [newer.id]
    assert holds(kept, 1, 2)


def test_gc_now_drops_it_at_once(kept: Store) -> None:
    older, newer = two_of_step(kept)

    would, report = kept.gc(now=True, dry_run=True), kept.gc(now=True)

    assert would.freed_bytes == report.freed_bytes >= NBYTES
    assert listed(kept) == [newer.id]
    assert kept.undoable() == ()
    (event,) = (one for one in kept.events() if one.event == "dropped")
    assert (event.id, event.why) == (older.id, "superseded")


@pytest.mark.parametrize("by", ["tag", "pin", "reader", "doubtful tag"])
def test_what_protects_a_superseded_one_keeps_it_from_gc_whatever_its_age(
    kept: Store, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, newer = two_of_step(kept)
    reader = None
    if by == "tag":
        kept.tag("best", older.id)
    elif by == "pin":
        kept.pin(older.id, "a figure")
    elif by == "doubtful tag":
        os.symlink("../checkpoints/main/nothing", kept.path / "refs/rotten")
    else:
        reader = kept.open_checkpoint(older.id)
    pass_time(monkeypatch, 9 * DAY_S)

    for options in ({}, {"now": True}):
        would, report = kept.gc(dry_run=True, **options), kept.gc(**options)
        assert would.freed_bytes == report.freed_bytes == 0
    assert listed(kept) == [older.id, newer.id]
    assert holds(kept, older.id, 1)

    with suppress(Exception):
        kept.untag("best")
    for pin in kept.pins():
        kept.unpin(pin.name)
    if reader is not None:
        reader.close()
    (kept.path / "refs/rotten").unlink(missing_ok=True)
    assert kept.gc(now=True).freed_bytes >= NBYTES
    assert listed(kept) == [newer.id]


@pytest.mark.parametrize("how", ["lost", "marked"])
def test_none_goes_for_the_sake_of_a_damaged_one(store: Store, how: str) -> None:
    older, newer = two_of_step(store)
    blob = next((dir_of_id(store.path, "main", 1, newer.id) / "blobs").iterdir())
    if how == "lost":
        blob.unlink()
    else:
        data = bytearray(blob.read_bytes())
        data[9] ^= 1
        blob.chmod(0o644)
        blob.write_bytes(data)
        assert not store.verify().ok

    store.gc(now=True)

    assert holds(store, older.id, 1)
    if how == "lost":  # what the store lacks is nothing that the end of the test looks for
        shutil.rmtree(dir_of_id(store.path, "main", 1, newer.id))
    else:
        store.delete(newer.id)
    store.gc(now=True)
    assert holds(store, 1, 1)


@pytest.mark.parametrize("evicted", [False, True])
def test_gc_names_what_it_drops_of_them_as_its_dry_run_does(store: Store, tmp_path: Path, evicted: bool) -> None:
    older, _ = two_of_step(store)
    if evicted:
        store.remotes.add("other", tmp_path / "remote")
        store.push([older], "other")
        store.evict([older], "other")
    names = (f"main@1 ({short_id(older.id)})",)

    would, report = store.gc(dry_run=True), store.gc()

    assert would.superseded == would.plan.superseded == report.superseded == report.plan.superseded == names
    assert f"would drop 1 superseded checkpoint: {names[0]}" in would.explanation
    assert str(would).startswith(f"would drop 1 superseded checkpoint: {names[0]}")
    assert str(report).startswith(f"dropped 1 superseded checkpoint: {names[0]}")
    assert store.gc().superseded == ()


def test_an_incomplete_one_that_is_superseded_goes_too(store: Store) -> None:
    older, newer = two_of_step(store)
    next((dir_of_id(store.path, "main", 1, older.id) / "blobs").iterdir()).unlink()

    store.gc(now=True)

    assert [path.name for path in checkpoint_dirs(store.path, "main", 1)] == [newer.directory]
    assert store.verify().ok


def test_what_gc_drops_of_them_waits_for_the_undo_of_rules(kept: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.config.undo_by_rule_s = DAY_S
    older, newer = two_of_step(kept)
    with monkeypatch.context() as patch:
        patch.setattr(superseded_checkpoints, "_is_over", lambda *_, **__: True)
        would, report = kept.gc(dry_run=True), kept.gc()

    assert would.freed_bytes == report.freed_bytes == 0
    assert listed(kept) == [newer.id]
    assert [one.id for one in kept.undoable()] == [older.id]

    with pytest.warns(CkstoreWarning, match="names a newer checkpoint"):
        kept.undo(older.id)
    kept.gc()
    assert listed(kept) == [older.id, newer.id]


def test_a_prune_that_drops_the_newer_one_frees_what_its_dry_run_says(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, _ = two_of_step(store)
    last = store.save(state(3), step=2)
    store.config.undo_by_hand_s = 0
    pass_time(monkeypatch, DAY_S)

    policy = RetentionPolicy(keep_last=1)
    would, report = store.prune(policy, dry_run=True), store.prune(policy)

    assert [info.step for info in report.dropped] == [1]
    assert would.freed_bytes == report.freed_bytes >= NBYTES
    assert listed(store) == [older.id, last.id], "the older one is the checkpoint of its step now"
    assert holds(store, 1, 1)
    assert [info.id for info in store.prune(policy).dropped] == [older.id]


def test_the_next_to_free_is_never_a_superseded_one(kept: Store) -> None:
    two_of_step(kept)
    kept.save(state(3), step=2)
    kept.save(state(4), step=3)
    kept.pin(1, "the newer one")

    found = kept.gc().next_to_free

    assert found is not None
    assert found.name == "main@2"


# --------------------------------------------------------------------------------------- budgets and room


def test_what_a_tag_keeps_superseded_counts_for_a_budget(store: Store) -> None:
    store.save(state(1), step=1, tags=["kept"])
    store.save(state(2), step=1, if_exists="replace")
    store.save(state(3), step=2)
    store.save(state(4), step=3)

    for plan in (
        plan_of(store, RetentionPolicy(max_bytes=3 * NBYTES + 10_000)),
        _with_budget(store, Budget(3 * NBYTES + 10_000)),
    ):
        assert [entry.info.step for entry in plan.dropped] == [1]
    assert [entry.info.step for entry in plan_of(store, RetentionPolicy(max_bytes="2MB")).dropped] == []


def _with_budget(store: Store, budget: Budget) -> Any:
    store.config.budget = budget
    return plan_of(store)


def test_a_budget_takes_what_is_superseded_first(store: Store) -> None:
    older, newer = two_of_step(store)
    store.config.budget = Budget(3 * NBYTES + 10_000)

    store.save(state(3), step=2)
    assert older.id in listed(store)
    store.save(state(4), step=3)

    assert older.id not in listed(store)
    assert [info.step for info in store.checkpoints()] == [1, 2, 3]
    assert store.info(1) == newer


def test_a_save_without_room_takes_what_is_superseded(kept: Store) -> None:
    older, newer = two_of_step(kept)

    assert make_room.purge(kept._context)
    assert not make_room.purge(kept._context)

    assert listed(kept) == [newer.id]
    assert older.id not in str(kept.undoable())
    assert disk_bytes(kept.path / "blobs") < 2 * NBYTES


def test_what_gc_now_would_free_is_told_with_them(kept: Store) -> None:
    two_of_step(kept)

    assert "ckstore gc --now would free 293.0 KiB" in make_room.how_to_free(kept._context)


def test_retention_sees_one_checkpoint_a_step(store: Store) -> None:
    older, newer = two_of_step(store)
    store.tag("kept", older.id)
    last = store.save(state(3), step=2)

    plan = plan_of(store, RetentionPolicy(keep_last=2))

    assert [(entry.info.id, entry.keep) for entry in plan.entries] == [(newer.id, True), (last.id, True)]


# ------------------------------------------------------------------------------------------- undo and reads


def test_a_superseded_one_is_deleted_and_comes_back_by_its_id(kept: Store) -> None:
    older, newer = two_of_step(kept)
    kept.delete(older.id)
    assert listed(kept) == [newer.id]
    assert [one.id for one in kept.undoable()] == [older.id]

    with pytest.warns(CkstoreWarning, match="names a newer checkpoint"):
        again = kept.undo(older)

    assert (again.id, again.superseded) == (older.id, True)
    assert (kept.info(1), holds(kept, older.id, 1)) == (newer, True)


def test_it_is_checked_out_and_exported_by_its_id(store: Store, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("first")
    older = store.commit(tmp_path / "a.txt", step=1, tags=["first"])
    (tmp_path / "a.txt").write_text("second")
    store.commit(tmp_path / "a.txt", step=1, if_exists="replace")
    found, other = two_of_step(store, 2)

    store.checkout(older.id, tmp_path / "out")
    store.checkout("first", tmp_path / "by-tag")
    store.checkout(1, tmp_path / "new")
    store.export_safetensors(found.id, tmp_path / "exported")

    assert (tmp_path / "out/a.txt").read_text() == (tmp_path / "by-tag/a.txt").read_text() == "first"
    assert (tmp_path / "new/a.txt").read_text() == "second"
    assert (tmp_path / "exported/model.safetensors").read_bytes().endswith(state(1)["w"].tobytes())
    assert store.diff(found.id, other.id).changed


def test_du_why_and_reports_tell_it_from_the_checkpoint_of_its_step(store: Store, tmp_path: Path) -> None:
    older, newer = two_of_step(store)

    usage = store.du()
    assert [(one.id, one.superseded) for one in usage.checkpoints] == [(older.id, True), (newer.id, False)]
    assert all(NBYTES <= one.alone_bytes < NBYTES + 100_000 for one in usage.checkpoints)
    assert usage.checkpoints[0].shown == f"main@1 ({short_id(older.id)}, superseded)"
    for info in (older, newer):
        blob = max(
            (dir_of_id(store.path, "main", 1, info.id) / "blobs").iterdir(), key=lambda path: path.stat().st_size
        )
        (use,) = store.why(blob.name)
        assert (use.id, use.superseded) == (info.id, info is older)
        assert (short_id(older.id) in str(use)) is (info is older)
    assert [(run.name, run.checkpoint_count, run.newest.id) for run in store.runs()] == [("main", 1, newer.id)]
    assert [found.what for found in store.doctor().findings if found.level == "error"] in ([], ["durability"])
    store.report(tmp_path / "report.html")
    assert (tmp_path / "report.html").exists()


# ---------------------------------------------------------------------------------------------- kills


@pytest.mark.crash
@pytest.mark.parametrize("tagged", [False, True])
def test_a_replacement_that_is_killed_at_any_change_loses_nothing(tmp_path: Path, tagged: bool) -> None:
    seen = set()
    for at in range(1, 200):
        root = tmp_path / f"store-{at}"
        store = Store.init(root)
        older = store.save(state(1), step=1, tags=["kept"] if tagged else [])

        died = run_and_kill(partial(store.save, state(2), step=1, if_exists="replace"), at=at, before=True)

        again = Store.open(root)
        check_store(root)
        before = listed(again)
        assert again.checkpoints()[0].step == 1
        assert holds(again, 1, 1) if before == [older.id] else holds(again, 1, 2)
        if older.id in before:
            assert holds(again, older.id, 1)
        again.gc(now=True)
        left = listed(again)
        assert len(left) == (2 if tagged and len(before) == 2 else 1), f"killed at {at}"
        assert (older.id in left) is (tagged or before == [older.id])
        assert holds(again, 1, 1 if before == [older.id] else 2)
        assert disk_bytes(root / "blobs") < (len(left) + 0.5) * NBYTES
        check_store(root)
        seen.add(len(before))
        shutil.rmtree(root)
        if not died:
            assert tagged or {1, 2} == seen
            return
    pytest.fail("the save did more than 200 changes")


@pytest.mark.crash
def test_a_gc_that_is_killed_at_any_change_leaves_it_whole_or_gone(tmp_path: Path) -> None:
    for at in range(1, 200):
        root = tmp_path / f"store-{at}"
        store = Store.init(root)
        older, newer = two_of_step(store)

        died = run_and_kill(partial(store.gc, now=True), at=at, before=True)

        again = Store.open(root)
        assert holds(again, 1, 2)
        if older.id in listed(again):
            assert holds(again, older.id, 1)
        again.gc(now=True)
        assert listed(again) == [newer.id]
        assert disk_bytes(root / "blobs") < 1.5 * NBYTES
        check_store(root)
        shutil.rmtree(root)
        if not died:
            assert at > 5
            return
    pytest.fail("gc did more than 200 changes")


# ------------------------------------------------------------------------------------------ two generations


def drifting(steps: int = 6) -> list[dict[str, Any]]:
    """Return states of float32 of which little changes from one to the next."""
    rng = np.random.default_rng(5)
    values = rng.standard_normal(60_000).astype(np.float32)
    found = []
    for _ in range(steps):
        found.append({"w": values.copy()})
        moved = rng.random(values.size) < 0.01
        values = np.where(moved, values + np.float32(1e-3), values)
    return found


@pytest.fixture
def halfway(store: Store) -> Iterator[tuple[Store, list[dict[str, Any]]]]:
    """A store whose compaction was killed when it had published a new generation, before it dropped the former one."""
    pytest.importorskip("zstandard")
    states = drifting()
    for step, values in enumerate(states):
        store.save(values, step=step)
    assert run_and_kill_instead(lambda: store.compact(keep_newest=1), trash, "move_to_trash")
    yield store, states
    again = Store.open(store.path)
    for info in again.checkpoints():
        assert np.array_equal(again.load(info)["w"], states[info.step]["w"])
    assert again.verify().ok


def both_forms(store: Store) -> list[int]:
    """Return the steps that have two directories."""
    return [step for step in range(6) if len(checkpoint_dirs(store.path, "main", step)) > 1]


def test_after_a_compaction_that_was_killed_each_is_listed_once_and_the_next_gc_drops_the_former_form(
    halfway: tuple[Store, list[dict[str, Any]]],
) -> None:
    store, _ = halfway
    step = both_forms(store)[0]
    again = Store.open(store.path)
    ids = [info.id for info in again.checkpoints()]
    assert len(ids) == 6
    assert listed(again) == ids
    assert again.info(step).compacted
    (row,) = (one for one in again.du().checkpoints if one.step == step)
    assert row.id == again.info(step).id
    blob = max(checkpoint_dirs(store.path, "main", step)[0].glob("blobs/*"), key=lambda path: path.stat().st_size)
    assert [use.step for use in again.why(blob.name)].count(step) == 1

    would, report = again.gc(dry_run=True), again.gc()

    assert would.freed_bytes == report.freed_bytes > 0
    assert report.differences == ()
    assert both_forms(again) == []
    assert [info.id for info in again.checkpoints()] == ids
    assert again.info(step).compacted
    assert again.undoable() == ()


@pytest.mark.parametrize("by", ["tag", "pin"])
def test_what_protects_the_checkpoint_does_not_keep_its_former_form(
    halfway: tuple[Store, list[dict[str, Any]]], by: str
) -> None:
    store, _ = halfway
    step = both_forms(store)[0]
    if by == "tag":
        store.tag("best", step)
    else:
        store.pin(step, "a figure")

    store.gc()

    assert both_forms(store) == []
    assert store.info(step).tags == (("best",) if by == "tag" else ())
    with pytest.raises(InUse):
        store.delete(step)


def test_the_next_compaction_finishes_it(halfway: tuple[Store, list[dict[str, Any]]]) -> None:
    store, _ = halfway

    report = store.compact(keep_newest=1)

    assert not report.skipped
    assert both_forms(store) == []
    assert [info.compacted for info in store.checkpoints()] == [True] * 5 + [False]
    assert store.gc().freed_bytes == 0
    assert store.du().saved_bytes > 0


def test_a_damaged_later_form_keeps_the_former_one(halfway: tuple[Store, list[dict[str, Any]]]) -> None:
    store, states = halfway
    step = both_forms(store)[0]
    former, later = checkpoint_dirs(store.path, "main", step)
    (later / "plain.json").unlink()
    assert not store.verify().ok

    store.gc(now=True)

    assert former.is_dir()
    assert np.array_equal(Store.open(store.path).load(step)["w"], states[step]["w"])
    shutil.rmtree(later)


def test_all_forms_go_with_a_deletion_and_one_comes_back(halfway: tuple[Store, list[dict[str, Any]]]) -> None:
    store, states = halfway
    store.config.undo_by_hand_s = DAY_S
    step = both_forms(store)[0]
    info = store.info(step)

    store.delete(step)

    assert checkpoint_dirs(store.path, "main", step) == []
    assert step not in [one.step for one in store.checkpoints(superseded=True)]
    assert [one.id for one in store.undoable()] == [info.id]
    again = store.undo(step)
    assert (again.id, again.compacted, again.superseded) == (info.id, True, False)
    assert np.array_equal(store.load(step)["w"], states[step]["w"])


def test_a_reader_of_a_former_form_keeps_the_checkpoint(halfway: tuple[Store, list[dict[str, Any]]]) -> None:
    store, states = halfway
    step = both_forms(store)[0]
    with store.open_checkpoint(0) as other:  # of any other it says nothing
        former = checkpoint_dirs(store.path, "main", step)[0]
        lock = elsewhere(lambda: _locked(former))
        with pytest.raises(InUse, match="open for reading"):
            store.delete(step)
        store.gc()
        assert former.is_dir()
        lock()
        assert np.array_equal(other.load()["w"], states[0]["w"])

    store.delete(step)

    assert checkpoint_dirs(store.path, "main", step) == []


def _locked(path: Path) -> Callable[[], None]:
    from ckstore.fs import locks

    return locks.lock_shared(str(path)).release


def test_a_prune_drops_all_forms_and_frees_what_its_dry_run_says(halfway: tuple[Store, list[dict[str, Any]]]) -> None:
    store, _ = halfway
    store.config.undo_by_hand_s = 0
    policy = RetentionPolicy(keep_last=1)

    would, report = store.prune(policy, dry_run=True), store.prune(policy)

    assert would.freed_bytes == report.freed_bytes > 0
    assert [path.name for path in (store.path / "checkpoints/main").iterdir()] == [
        checkpoint_dir(store.path, "main", 5).name
    ]


def test_a_run_with_two_forms_is_renamed(halfway: tuple[Store, list[dict[str, Any]]]) -> None:
    store, states = halfway

    store.rename_run("main", "other")

    assert [info.name for info in store.checkpoints(superseded=True)] == [f"other@{step}" for step in range(6)]
    for step in range(6):
        assert np.array_equal(store.load(f"other@{step}")["w"], states[step]["w"])


def test_a_deleted_compacted_one_comes_back_as_it_was(kept: Store) -> None:
    pytest.importorskip("zstandard")
    states = drifting()
    for step, values in enumerate(states):
        kept.save(values, step=step)
    kept.compact(keep_newest=1)
    info = kept.info(2)
    kept.delete(2)
    kept.gc()

    again = kept.undo(2)

    assert (again.id, again.compacted) == (info.id, True)
    assert all(np.array_equal(kept.load(step)["w"], states[step]["w"]) for step in range(6))


def test_a_superseded_one_is_not_compacted(store: Store) -> None:
    pytest.importorskip("zstandard")
    for step, values in enumerate(drifting()):
        store.save(values, step=step, tags=[f"t{step}"] if step == 1 else [])
    older = store.info(1)
    store.save({"w": drifting()[1]["w"] + 1}, step=1, if_exists="replace")

    with pytest.raises(BadInput, match="is superseded\\. Only the newest checkpoint of main@1"):
        store.compact([older.id])
    store.compact(keep_newest=1)

    assert not store.info(older.id).compacted
    assert np.array_equal(store.load("t1")["w"], drifting()[1]["w"])


# ---------------------------------------------------------------------------------------------- readers


@pytest.mark.parametrize("what", ["replaced", "compacted"])
def test_a_list_that_is_made_meanwhile_has_no_hole(store: Store, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if what == "compacted":
        pytest.importorskip("zstandard")
    for step, values in enumerate(drifting()):
        store.save(values, step=step)
    wanted = [info.id for info in store.checkpoints()]
    original = layouts.Layout.checkpoints_of
    first = iter([True])

    def meanwhile() -> None:
        other = Store.open(store.path)
        if what == "compacted":
            other.compact(keep_newest=1)
        else:
            wanted[2] = other.save(state(9), step=2, if_exists="replace").id

    def listing(layout: Any, run: str) -> Any:
        found = original(layout, run)
        if next(first, False):
            elsewhere(meanwhile)
        return found

    monkeypatch.setattr(layouts.Layout, "checkpoints_of", listing)
    found = [info.id for info in store.checkpoints()]

    assert sorted(found) == sorted(wanted)


def test_a_checkpoint_that_is_compacted_while_it_is_looked_up_is_found(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("zstandard")
    for step, values in enumerate(drifting()):
        store.save(values, step=step)
    info = store.info(1)
    store.compact([1], keep_newest=1)  # so that it is no longer where `info` says
    original = layouts.Layout.of_step
    first = iter([True])

    def of_step(layout: Any, run: str, step: int) -> Any:
        found = original(layout, run, step)
        if next(first, False):
            former = checkpoint_dir(store.path, "main", 1)
            former.rename(former.parent / f"{former.name.rpartition('.')[0]}.7")
        return found

    monkeypatch.setattr(layouts.Layout, "of_step", of_step)

    assert np.array_equal(store.load(info)["w"], drifting()[1]["w"])


def test_a_note_that_meets_a_compaction_is_written_to_the_later_form(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = store.save(state(1), step=1)
    original = store_locks.lock_run
    first = iter([True])

    def lock_run(*args: Any, **options: Any) -> Any:
        if next(first, False):
            former = checkpoint_dir(store.path, "main", 1)
            former.rename(former.parent / f"{former.name}.1")
        return original(*args, **options)

    monkeypatch.setattr(store_locks, "lock_run", lock_run)
    store.annotate(saved, note="seen")

    assert [note.text for note in store.info(1).notes] == ["seen"]


def test_a_killed_save_that_replaces_leaves_what_the_next_save_of_the_step_drops(store: Store) -> None:
    older = store.save(state(1), step=1)
    assert run_and_kill_instead(lambda: store.save(state(2), step=1, if_exists="replace"), save, "drop_older")
    assert len(listed(Store.open(store.path))) == 2

    again = Store.open(store.path)
    newest = again.save(state(3), step=1, if_exists="replace")

    assert (listed(again), newest.warnings) == ([newest.id], ())
    assert older.id not in listed(again)


def test_what_was_put_in_the_place_of_a_torn_directory_meanwhile_stays(tmp_path: Path) -> None:
    store = Store.init(tmp_path / "store")
    for step in (1, 2):
        store.save({"x": step}, step=step)
    torn, other = (checkpoint_dir(store.path, "main", step) for step in (1, 2))
    # After a save found it torn, a user moves a whole checkpoint of another step there.
    shutil.rmtree(torn)
    shutil.copytree(other, torn)
    key = key_of("main", torn.name)
    assert key is not None

    with pytest.raises(NoSuchRef, match="replaced in the meantime"):
        drop_torn(context_of(store), key, by_hand=False)
    assert torn.exists()
    drop_torn(context_of(store), key)
    assert not torn.exists()
    store.gc(now=True)
    check_store(store.path)
