"""What was dropped comes back bit by bit until it is purged, and gives its space when a save needs it."""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import BadInput, Budget, CkstoreWarning, DamagedBlob, NoSuchRef, RetentionPolicy, Store
from ckstore.fs import files, locks
from ckstore.model.digest import short_id
from ckstore.model.times import time_of_text
from ckstore.objects import checkpoints
from ckstore.ops.check import validity
from tests.support.crashing import run_and_kill
from tests.support.damage import flip
from tests.support.look import directory_of
from tests.support.stores import disk_bytes, references_of_catalog, references_of_manifests

DAY_S = 86400.0


@pytest.fixture
def kept(store: Store) -> Iterator[Store]:
    """A store that keeps what is dropped; at the end nothing of it may be left."""
    store.config.undo_by_hand_s = DAY_S
    store.config.undo_by_rule_s = 3600
    yield store
    store.gc(now=True)


def save(store: Store, step: int, run: str = "main", seed: int | None = None, **options: Any) -> None:
    rng = np.random.default_rng(step if seed is None else seed)
    store.save({"w": rng.integers(0, 255, 300_000, dtype=np.uint8)}, step=step, run=run, **options)


def files_of(store: Store, ref: Any) -> dict[str, bytes]:
    folder = directory_of(store, store.info(ref))
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def pass_time(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    later = time.time() + seconds
    monkeypatch.setattr("ckstore.objects.trash.time.time", lambda: later)


def test_a_store_whose_settings_could_not_be_read_at_its_opening_keeps_what_is_deleted(kept: Store) -> None:
    save(kept, 1)
    save(kept, 2)
    config = kept.path / "config.json"
    settings = config.read_bytes()
    config.write_bytes(settings[:-9])
    with Store.open(kept.path) as blind:
        config.write_bytes(settings)
        with pytest.warns(CkstoreWarning, match="Other hosts may use"):
            blind.delete(1)
    with Store.open(kept.path) as store:
        store.gc()
        assert store.undo(1).step == 1
        store.verify()


def test_what_was_deleted_comes_back_as_it_was(kept: Store) -> None:
    for step in range(3):
        save(kept, step)
    kept.annotate(1, {"loss": 2.0})
    before, infos = files_of(kept, 1), kept.checkpoints()
    kept.delete(1)
    assert [info.step for info in kept.checkpoints()] == [0, 2]
    (one,) = kept.undoable()
    assert (one.ref, one.id, one.nbytes) == ("main@1", infos[1].id, 300_000)

    info = kept.undo("main@1")

    assert info == infos[1]
    assert files_of(kept, 1) == before
    assert kept.checkpoints() == infos
    assert Store.open(kept.path).checkpoints() == infos
    assert kept.undoable() == ()
    assert kept.verify().ok


def test_gc_and_saves_leave_it_until_its_time_is_over(kept: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    save(kept, 1)
    save(kept, 2)
    kept.delete(1)
    full = disk_bytes(kept.path)

    report = kept.gc()
    assert (report.freed_count, [one.ref for one in report.waiting], report.trash_left) == (0, ["main@1"], ())
    assert report.differences == ()
    assert report.linked_outside == ()
    assert "can be restored (ckstore undo)" in str(report)
    assert kept.gc(dry_run=True).freed_bytes == 0
    assert kept.du().waiting_bytes == 300_000
    Store.open(kept.path)
    assert disk_bytes(kept.path) == full

    pass_time(monkeypatch, DAY_S - 60)
    assert kept.gc().freed_count == 0
    pass_time(monkeypatch, DAY_S + 60)
    assert kept.gc().freed_bytes == 300_000
    with pytest.raises(NoSuchRef, match="no dropped checkpoint of that name can be restored"):
        kept.undo("main@1")


def test_gc_now_ends_it_and_says_so_before(kept: Store) -> None:
    save(kept, 1)
    save(kept, 2)
    kept.prune(RetentionPolicy(keep_last=1))
    assert kept.gc(dry_run=True, now=True).freed_bytes == 300_000

    assert kept.gc(now=True).freed_bytes == 300_000
    assert kept.undoable() == ()
    save(kept, 3)
    assert kept.prune(RetentionPolicy(keep_last=1), now=True).freed_bytes == 300_000


def test_a_delete_that_says_now_frees_at_once(kept: Store) -> None:
    save(kept, 1)
    save(kept, 2)
    full = disk_bytes(kept.path)

    kept.delete(1, now=True)

    assert kept.undoable() == ()
    assert full - disk_bytes(kept.path) >= 300_000


def test_doctor_says_what_can_be_brought_back_and_not_that_gc_frees_it(kept: Store) -> None:
    def told() -> dict[str, str]:
        return {one.what: str(one) for one in kept.doctor().findings if one.what in ("undo", "trash")}

    save(kept, 1)
    assert "deletions can be undone for" in told()["undo"]
    kept.delete(1)
    assert "1 checkpoint with 293.0 KiB can be restored" in told()["undo"]
    assert "empty" in told()["trash"]
    kept.gc(now=True)
    kept.config.undo_by_hand_s = None
    assert "config --unset undo-by-hand" in told()["undo"]


def test_a_prune_is_undone_and_the_newest_by_order_is_latest_again(kept: Store) -> None:
    for step in range(4):
        save(kept, step)
    kept.prune(RetentionPolicy(keep_last=1))
    assert [one.ref for one in kept.undoable()] == ["main@2", "main@1", "main@0"]

    assert kept.undo().step == 2
    with pytest.raises(NoSuchRef, match=r"^nothing can be restored"):
        Store.open(kept.path, run="other").undo()
    assert kept.undo(0).step == 0
    assert [info.step for info in kept.checkpoints()] == [0, 2, 3]
    assert kept.info("latest").step == 3


def test_a_replaced_checkpoint_comes_back_and_is_superseded(kept: Store) -> None:
    save(kept, 1, seed=1)
    first, before = kept.info(1), files_of(kept, 1)
    save(kept, 1, seed=2, if_exists="replace")
    second = kept.info(1)
    with pytest.warns(
        CkstoreWarning, match=f"main@1 names a newer checkpoint. {short_id(first.id)} names the restored one"
    ):
        again = kept.undo("main@1")

    assert (again.id, again.superseded, kept.undoable()) == (first.id, True, ())
    assert files_of(kept, first.id) == before
    assert kept.info(1) == second
    assert [info.id for info in kept.checkpoints()] == [second.id]

    kept.delete(1)

    assert (kept.info(1).id, kept.info(1).superseded) == (first.id, False)
    assert [one.id for one in kept.undoable()] == [second.id]
    assert kept.undo(1) == second


def test_rules_after_a_save_keep_for_their_own_time_and_budgets_not_at_all(kept: Store) -> None:
    kept.config.retention = RetentionPolicy(keep_last=1)
    save(kept, 1)
    save(kept, 2)
    assert [one.ref for one in kept.undoable()] == ["main@1"]

    kept.config.retention = RetentionPolicy(max_bytes=400_000)
    save(kept, 3)
    assert [info.step for info in kept.checkpoints()] == [3]
    assert [one.ref for one in kept.undoable()] == ["main@1"]


@pytest.mark.parametrize("stored", ["a policy", "a budget", ""])
def test_a_prune_by_a_size_can_be_undone_unless_it_says_now(kept: Store, stored: str) -> None:
    for step in (1, 2, 3):
        save(kept, step)
    policy = None if stored else RetentionPolicy(max_bytes=400_000)
    if stored == "a policy":
        kept.config.retention = RetentionPolicy(max_bytes=400_000)
    elif stored:
        kept.config.budget = Budget(400_000)

    report = kept.prune(policy)
    assert [info.step for info in report.dropped] == [1, 2]
    assert report.freed_bytes == 0
    assert [one.ref for one in kept.undoable()] == ["main@2", "main@1"]
    kept.config.retention = kept.config.budget = None
    assert [kept.undo(step).step for step in (1, 2)] == [1, 2]

    kept.prune(RetentionPolicy(max_bytes=400_000), now=True)
    assert kept.undoable() == ()


def test_what_a_rule_drops_beside_a_budget_keeps_its_own_time(kept: Store) -> None:
    for step in range(3):
        save(kept, step, "other", seed=step)
    kept.config.retention_by_run = {"other": RetentionPolicy(keep_last=1)}
    kept.config.budget = Budget("1MB", low_bytes="900KB")

    save(kept, 9, seed=9)

    assert sorted(one.ref for one in kept.undoable()) == ["other@0", "other@1"]
    assert [info.name for info in kept.checkpoints()] == ["other@2", "main@9"]


@pytest.mark.parametrize("now", [False, True])
def test_a_dry_run_of_prune_says_what_would_wait_and_frees_it_only_with_now(kept: Store, now: bool) -> None:
    for step in range(4):
        save(kept, step)
    kept.delete(0)
    policy = RetentionPolicy(keep_last=1)

    would, report = kept.prune(policy, dry_run=True, now=now), kept.prune(policy, now=now)

    assert (would.freed_bytes, would.freed_count) == (report.freed_bytes, report.freed_count)
    assert report.freed_count == (2 if now else 0)
    assert [(one.ref, one.nbytes) for one in would.waiting] == [(one.ref, one.nbytes) for one in report.waiting]
    assert ("2 dropped checkpoints with 585.9 KiB could be restored" in str(would)) is (not now)
    assert "1 dropped checkpoint with 293.0 KiB can be restored" in str(would)


def test_the_name_of_a_run_alone_is_refused_with_how_all_of_it_comes_back(kept: Store) -> None:
    save(kept, 1)
    kept.delete("main@1")

    with pytest.raises(BadInput, match="ckstore undo --run main restores all of it"):
        kept.undo("main")
    with pytest.raises(BadInput, match="ckstore undo lists them"):
        kept.undo("mian")


def test_a_deleted_run_comes_back(kept: Store) -> None:
    save(kept, 1, "gone")
    kept.delete("gone@1")
    (kept.path / "checkpoints" / "gone").rmdir()

    assert kept.undo("gone@1").name == "gone@1"


def test_what_is_missed_since_it_was_deleted_is_said_to_come_back(kept: Store) -> None:
    for step in (1, 2):
        save(kept, step, "gone")
    save(kept, 1)
    kept.delete("gone@1")

    with pytest.raises(NoSuchRef) as step_missed:
        kept.load("gone@1")
    kept.delete("gone@2")
    with pytest.raises(NoSuchRef) as run_missed:
        kept.prune(RetentionPolicy(keep_last=1), run="gone")
    kept.gc(now=True)
    with pytest.raises(NoSuchRef) as freed:
        kept.load("gone@1")
    with pytest.raises(NoSuchRef) as run_freed:
        kept.prune(RetentionPolicy(keep_last=1), run="gone")

    assert step_missed.value.command_hint == "gone@1 was deleted; ckstore undo gone@1 restores it"
    assert "ckstore undo --run gone restores them" in run_missed.value.command_hint
    assert "undo" not in freed.value.command_hint + run_freed.value.command_hint + freed.value.hint
    assert run_freed.value.hint == "its runs: main"


def lose_a_blob(store: Store, ref: str) -> str:
    """Take one blob from what was dropped; return its digest."""
    (entry,) = (path for path in (store.path / "trash").iterdir() if path.name.startswith(f"{ref}."))
    blob = min((entry / "blobs").iterdir())
    os.unlink(blob)
    return blob.name


def test_what_lacks_a_blob_is_listed_with_what_it_lacks_and_refused(kept: Store) -> None:
    rng = np.random.default_rng(1)
    kept.save({name: rng.integers(0, 255, 2_000_000, dtype=np.uint8) for name in "ab"}, step=1)
    save(kept, 2)
    save(kept, 3)
    kept.delete(1)
    kept.delete(2)
    digest = lose_a_blob(kept, "main@1")

    whole, broken = kept.undoable()
    assert (whole.ref, whole.problem) == ("main@2", "")
    assert broken.ref == "main@1"
    assert digest in broken.problem
    assert "missing" in broken.problem
    assert 0 < broken.nbytes < 4_000_000
    assert "cannot be restored" in str(broken)
    with pytest.raises(DamagedBlob, match=r"main@1 cannot be restored: .*missing") as refused:
        kept.undo("main@1")
    assert "store.gc(now=True)" in refused.value.hint
    assert kept.undo("latest").step == 2
    with pytest.raises(DamagedBlob, match="main@1 cannot be restored"):
        kept.undo()


def test_what_is_left_of_a_broken_one_is_counted_and_goes_by_a_purge(kept: Store) -> None:
    save(kept, 1)
    save(kept, 2)
    kept.annotate(1, {"loss": 2.0})
    kept.delete(1)
    manifest = next((kept.path / "trash").glob("main@1.*/manifest.json"))
    manifest.chmod(0o644)
    manifest.write_bytes(b"{}")

    (one,) = kept.undoable()
    assert (one.id, one.nbytes) == ("", 300_000)
    assert "1 dropped checkpoint with 293.0 KiB cannot be restored" in str(kept.gc())
    told = {finding.what: finding for finding in kept.doctor().findings}
    assert "1 checkpoint with 293.0 KiB cannot be restored" in told["undo"].found
    assert "empty" in told["trash"].found
    assert kept.du().waiting_bytes == 300_000
    os.unlink(next((kept.path / "blobs").glob(f"*/{next(manifest.parent.glob('blobs/*')).name}")))
    assert kept.du().waiting_bytes == 300_000
    assert kept.gc(now=True).freed_bytes == 300_000
    assert kept.undoable() == ()


def test_what_is_left_of_a_broken_one_goes_when_its_time_is_over(kept: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in range(3):
        save(kept, step, seed=step)
    kept.delete(1)
    digest = lose_a_blob(kept, "main@1")
    os.unlink(next((kept.path / "blobs").glob(f"*/{digest}")))
    assert kept.undoable()[0].problem

    pass_time(monkeypatch, DAY_S + 60)
    kept.gc()

    assert list((kept.path / "trash").iterdir()) == []


def test_what_is_being_taken_apart_is_refused(kept: Store) -> None:
    save(kept, 2)
    kept.delete(2)
    (entry,) = (kept.path / "trash").iterdir()

    lock = locks.try_exclusive(kept._context.layout.trash / entry.name)
    assert lock is not None
    with lock, pytest.raises(NoSuchRef, match="is being freed by gc"):
        kept.undo("main@2")
    assert kept.undo("main@2").step == 2
    for wrong in ("main@best:loss", "no/ref"):
        with pytest.raises(BadInput):
            kept.undo(wrong)


def test_a_clock_that_was_set_back_makes_no_window_longer(kept: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    save(kept, 1)
    save(kept, 2)
    kept.delete(1)
    (entry,) = (kept.path / "trash").iterdir()
    dated = entry.stat()
    with monkeypatch.context() as earlier:
        pass_time(earlier, -10 * DAY_S)
        (one,) = kept.undoable()
        assert time_of_text(one.until) <= datetime.now(UTC) + timedelta(days=1)  # and not eleven
        time.sleep(0.05)  # longer than a tick of the kernel's clock
        assert kept.gc().freed_count == 0
    renewed = entry.stat()
    assert renewed.st_ctime > dated.st_ctime
    assert renewed.st_mtime_ns == dated.st_mtime_ns
    assert kept.undo(1).step == 1
    kept.delete(1)

    pass_time(monkeypatch, DAY_S + 60)
    assert kept.gc().freed_bytes == 300_000


@pytest.mark.parametrize("healing", ["a save", "a repair"])
def test_what_heals_a_blob_heals_it_where_it_waits_to_be_brought_back(
    kept: Store, tmp_path: Path, healing: str
) -> None:
    for step in (1, 2):
        save(kept, step, seed=7)
    (blob,) = (directory_of(kept, 1) / "blobs").iterdir()
    (tmp_path / "right").mkdir()
    shutil.copy2(blob, tmp_path / "right")
    kept.delete(1)
    flip(directory_of(kept, 2) / "blobs" / blob.name)

    if healing == "a save":
        save(kept, 3, seed=7)
    else:
        assert kept.verify(repair_from=tmp_path / "right").repaired

    assert np.array_equal(kept.load(kept.undo(1))["w"], kept.load(2)["w"])
    assert kept.verify().ok


def test_what_waits_is_read_once_however_often_it_is_listed(kept: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in range(4):
        save(kept, step)
    kept.prune(RetentionPolicy(keep_last=1))
    reading: list[object] = []
    original = checkpoints.manifest_in

    def counted(*args: Any) -> Any:
        reading.append(args)
        return original(*args)

    monkeypatch.setattr(validity, "manifest_in", counted)
    with Store.open(kept.path) as other:
        assert [one.step for one in other.undoable()] == [2, 1, 0] == [one.step for one in other.gc().waiting]
    assert len(reading) == 3


def test_a_step_of_several_runs_is_not_guessed(kept: Store) -> None:
    for run in ("a", "b"):
        save(kept, 1, run)
        kept.delete(f"{run}@1")

    with pytest.raises(BadInput, match="was dropped in several runs"):
        kept.undo(1)
    assert Store.open(kept.path, run="a").undo(1).run == "a"


def test_what_comes_back_is_in_the_catalog_at_once(kept: Store) -> None:
    for step in range(3):
        save(kept, step)
    kept.delete(1)

    kept.undo(1)

    assert references_of_catalog(kept.path) == references_of_manifests(kept.path)


def test_a_step_is_never_the_beginning_of_an_id(kept: Store) -> None:
    save(kept, 300)
    save(kept, 301)
    while (digit := kept.info(300).id.partition("-")[2][0]) in "0abcdef":  # those that no step begins with
        save(kept, 300, seed=random.randrange(10**6), if_exists="replace")
    kept.delete(300)

    with pytest.raises(NoSuchRef, match="no dropped checkpoint of that name can be restored"):
        kept.undo(f"main@{digit}")
    assert kept.undo(kept.undoable()[0].id[:12]).step == 300


def test_a_purge_leaves_the_blobs_that_another_checkpoint_has(kept: Store) -> None:
    save(kept, 1, seed=7)
    save(kept, 2, seed=7)
    kept.delete(1)
    assert kept.undoable()[0].nbytes == 0

    kept.gc(now=True)

    assert kept.verify().ok
    assert kept.load(2)["w"].nbytes == 300_000


def test_the_same_bytes_saved_again_are_reused_and_survive_the_purge(kept: Store) -> None:
    save(kept, 1, seed=7)
    kept.delete(1)
    save(kept, 2, seed=7)
    assert kept.info(2).new_bytes == 0

    kept.gc(now=True)

    assert kept.verify().ok


def test_what_a_person_drops_waits_a_day_by_default_and_what_a_rule_drops_does_not() -> None:
    # In a process without the tests, which have another default.
    text = "from ckstore.ops.config_file import *; print(UNDO_BY_HAND_S.default, UNDO_BY_RULE_S.default)"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout == "86400.0 0.0\n"


def test_a_save_that_meets_a_quota_in_the_middle_takes_the_space(kept: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    save(kept, 1)
    save(kept, 2)
    kept.delete(1)
    original = files.create_blob

    def create(*args: Any, **options: Any) -> Any:
        if any(kept.path.joinpath("trash").iterdir()):
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        return original(*args, **options)

    monkeypatch.setattr(files, "create_blob", create)
    begun = len(kept.events())

    save(kept, 3)

    assert [(one.event, one.step) for one in kept.events()[begun:] if one.event != "freed"] == [
        ("retried", 3),
        ("saved", 3),
    ]
    (saves,) = (metric for metric in kept._context.totals.metrics() if metric.name == "ckstore_saves")
    assert saves.samples == {"saved": 3, "failed": 0, "skipped": 0}
    assert kept.undoable() == ()
    assert [info.step for info in kept.checkpoints()] == [2, 3]


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
def test_where_other_hosts_may_be_at_work_the_old_form_of_a_compacted_checkpoint_is_not_offered(tmp_path: Path) -> None:
    # With a catalog elsewhere all that goes to trash waits for a grace.
    store = Store.init(tmp_path / "store", catalog_path=tmp_path / "its.db")
    for step in range(3):
        store.save({"w": np.arange(100_000) + step}, step=step)
    store.compact(keep_newest=1)
    assert len(os.listdir(store.path / "trash")) == 2
    assert store.undoable() == store.gc().waiting == ()

    store.delete(0)
    assert [one.ref for one in store.undoable()] == ["main@0"]
    store.undo(0)
    assert store.info(0).compacted
    assert store.undoable() == ()
    assert store.load(0)["w"][0] == 0


def test_switched_off_nothing_waits(store: Store) -> None:
    store.config.undo_by_hand_s = 0
    save(store, 1)
    save(store, 2)
    store.delete(1)

    assert store.undoable() == ()
    assert list((store.path / "trash").iterdir()) == []


@pytest.mark.parametrize("before", [True, False])
def test_a_kill_at_any_change_leaves_it_in_trash_or_whole_in_its_place(kept: Store, before: bool) -> None:
    save(kept, 1)
    save(kept, 2)
    died = True
    at = 0
    while died:
        at += 1
        kept.delete(1)
        died = run_and_kill(lambda: kept.undo("main@1"), at=at, before=before)
        opened = Store.open(kept.path)
        is_there = [info.step for info in opened.checkpoints()] == [1, 2]
        assert is_there != bool(opened.undoable())
        if not is_there:
            opened.undo("main@1")
        assert opened.verify(quick=True).ok
    assert at > 3


@pytest.mark.parametrize("before", [True, False])
def test_a_kill_while_it_is_freed_leaves_it_whole_or_for_the_next_gc(kept: Store, before: bool) -> None:
    save(kept, 2)
    died = True
    at = 0
    while died:
        at += 1
        save(kept, 1)
        kept.annotate(1, {"loss": 2.0})
        kept.delete(1)
        died = run_and_kill(lambda: kept.gc(now=True), at=at, before=before)
        with Store.open(kept.path) as opened:
            for one in opened.undoable():
                if one.problem:  # it was begun with
                    continue
                assert opened.undo(one.id).metrics == {"loss": 2.0}
                opened.delete(1, now=True)
            opened.gc()
            assert list((kept.path / "trash").iterdir()) == []
    assert at > 3


@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_is_done_what_comes_back_is_bit_equal_until_it_was_purged_and_never_after(
    kept: Store, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    there: dict[str, dict[str, bytes]] = {}
    waiting: dict[str, dict[str, bytes]] = {}
    for step in range(60):
        act = draw.choice(["save", "save", "delete", "delete", "undo", "undo", "purge", "wait"])
        if act == "save":
            save(kept, step, run=draw.choice("ab"), seed=draw.randrange(4))
            newest = max(kept.checkpoints(), key=lambda info: info.sequence)
            there[newest.name] = files_of(kept, newest.name)
        elif act == "delete" and there:
            name = draw.choice(sorted(there))
            kept.delete(name)
            waiting[name] = there.pop(name)
        elif act == "undo" and waiting:
            name = draw.choice(sorted(waiting))
            kept.undo(name)
            there[name] = waiting.pop(name)
        elif act == "purge":
            kept.gc(now=True)
            waiting.clear()
        elif act == "wait":
            with monkeypatch.context() as later:
                pass_time(later, DAY_S + 60)
                kept.gc()
            waiting.clear()
        kept.gc()

        assert {one.ref for one in kept.undoable()} == waiting.keys()
        assert {info.name: files_of(kept, info.name) for info in kept.checkpoints()} == there
    assert kept.verify().ok
