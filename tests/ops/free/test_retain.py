"""Retention in a store: plans that are carried out, with readers, pins, tags, damage and failures in between."""

from __future__ import annotations

import errno
import functools
import json
import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ckstore import Best, RetentionPolicy, Store
from ckstore.errors import BadInput, CkstoreError, CkstoreWarning, InUse, NewerFormat, NoSuchRef, SaveFailed
from ckstore.fs import blob_time, files, links
from ckstore.objects import store_locks
from ckstore.ops.free import gc
from ckstore.ops.free.retain import carry_out
from tests.support.crashing import run_and_kill
from tests.support.look import directory_of
from tests.support.meanwhile import elsewhere
from tests.support.plans import plan_of
from tests.support.requirements import CRASH_FULL
from tests.support.stores import check_links, check_store, disk_bytes, references_of_catalog, references_of_manifests

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckstore.provisional import RetentionPlan

MIB = 2**20


def state(value: int) -> dict[str, Any]:
    return {"w": np.full(MIB + 10, value, dtype=np.uint8), "small": np.arange(value, value + 5)}


def fill(store: Store, steps: Iterable[int], run: str = "main", **metrics: float) -> None:
    for step in steps:
        store.save(state(step % 200), step, run, metrics=metrics)


def steps(store: Store, run: str = "main") -> list[int]:
    return [info.step for info in store.checkpoints(run)]


def test_what_the_plan_drops_is_dropped_and_the_rest_loads(store: Store) -> None:
    fill(store, range(6))
    policy = RetentionPolicy(keep_last=2, keep_every=3)

    plan = plan_of(store, policy)
    report = carry_out(store._context, plan)

    assert [info.step for info in report.dropped] == [entry.step for entry in plan.dropped] == [1, 2]
    assert report.skipped == ()
    assert steps(store) == [0, 3, 4, 5]
    assert all(np.array_equal(store.load(step)["w"], state(step)["w"]) for step in steps(store))


def test_a_plan_changes_nothing(store: Store) -> None:
    fill(store, range(3))
    before = sorted(str(path) for path in store.path.rglob("*") if not path.name.startswith("catalog.db"))

    plan_of(store, RetentionPolicy(keep_last=1))

    after = sorted(str(path) for path in store.path.rglob("*") if not path.name.startswith("catalog.db"))
    assert after == before


def test_what_is_no_policy_is_refused(store: Store) -> None:
    fill(store, range(2))
    keep: Any = 3

    for act in (store.prune, functools.partial(store.prune, dry_run=True)):
        with pytest.raises(BadInput, match="policy must be a RetentionPolicy, a RetentionPlan or None, got 3"):
            act(keep)


def test_each_run_is_looked_at_by_itself(store: Store) -> None:
    fill(store, range(3), "a")
    fill(store, range(10, 12), "b")

    carry_out(store._context, plan_of(store, RetentionPolicy(keep_last=1), run="a"))
    assert (steps(store, "a"), steps(store, "b")) == ([2], [10, 11])

    carry_out(store._context, plan_of(store, RetentionPolicy(keep_last=1)))
    assert (steps(store, "a"), steps(store, "b")) == ([2], [11])


def test_dropping_unlinks_nothing_until_gc(store: Store) -> None:
    fill(store, range(3))
    before = disk_bytes(store.path)

    carry_out(store._context, plan_of(store, RetentionPolicy(keep_last=1)))

    assert disk_bytes(store.path) == before
    check_links(store.path)
    Store.open(store.path)


@pytest.mark.usefixtures("steady_clock")
def test_tags_pins_and_readers_keep_and_say_so(store: Store) -> None:
    fill(store, range(5))
    store.tag("paper", 0)
    store.pin(1, "figure 3")
    store.pin(2, "until yesterday", expires=timedelta(microseconds=1))

    with store.open_checkpoint(3):
        plan = plan_of(store, RetentionPolicy(keep_last=1))
        report = carry_out(store._context, plan)

    said = {entry.step: str(entry) for entry in plan.entries}
    assert "it has the tag paper" in said[0]
    assert "it is pinned: figure 3" in said[1]
    assert "dropped" in said[2]
    assert "it is open for reading" in said[3]
    assert [info.step for info in report.dropped] == [2]
    assert steps(store) == [0, 1, 3, 4]


def test_what_was_tagged_pinned_or_opened_since_the_plan_is_skipped(store: Store) -> None:
    fill(store, range(5))
    plan = plan_of(store, RetentionPolicy(keep_last=1))
    store.tag("paper", 0)
    store.pin(1, "figure 3")

    with store.open_checkpoint(2):
        report = carry_out(store._context, plan)

    assert [info.step for info in report.dropped] == [3]
    reasons = {skipped.info.step: skipped.reason for skipped in report.skipped}
    assert "has the tag paper" in reasons[0]
    assert "is pinned: figure 3" in reasons[1]
    assert "open for reading" in reasons[2]


def test_a_step_that_was_saved_again_since_the_plan_is_another_checkpoint(store: Store) -> None:
    fill(store, range(3))
    plan = plan_of(store, RetentionPolicy(keep_last=1))
    store.save(state(77), 0, if_exists="replace")

    report = carry_out(store._context, plan)

    assert [info.step for info in report.dropped] == [1]
    assert "no longer exists" in report.skipped[0].reason
    assert np.array_equal(store.load("main@0")["w"], state(77)["w"])


def test_nothing_goes_when_what_was_to_stay_went(store: Store) -> None:
    fill(store, range(3))
    plan = plan_of(store, RetentionPolicy(keep_last=1))
    store.delete(2)

    report = carry_out(store._context, plan)

    assert report.dropped == ()
    assert all("still exists and is valid" in skipped.reason for skipped in report.skipped)
    assert steps(store) == [0, 1]


def test_a_damaged_newest_checkpoint_protects_the_one_before(store: Store) -> None:
    fill(store, range(4))
    blob = max((directory_of(store, 3) / "blobs").iterdir(), key=lambda path: path.stat().st_size)
    os.utime(blob, ns=(1, 1))  # as a program that writes into it would

    plan = plan_of(store, RetentionPolicy(keep_last=1))

    said = {entry.step: str(entry) for entry in plan.entries}
    assert "kept because it is the newest valid checkpoint of the run main" in said[2]
    assert "it would be the newest, but is damaged" in said[3]
    assert [entry.step for entry in plan.dropped] == [0, 1]
    blob_time.stamp(blob)


def test_what_turned_out_valid_and_newest_since_the_plan_stays(store: Store) -> None:
    fill(store, range(3))
    blob = max((directory_of(store, 2) / "blobs").iterdir(), key=lambda path: path.stat().st_size)
    os.utime(blob, ns=(1, 1))
    plan = plan_of(store, RetentionPolicy(keep_every=1000))
    assert [entry.step for entry in plan.dropped] == [2]
    blob_time.stamp(blob)

    report = carry_out(store._context, plan)

    assert report.dropped == ()
    assert "newest valid checkpoint" in report.skipped[0].reason


def test_the_best_by_an_annotated_metric_stays(store: Store) -> None:
    fill(store, range(4), loss=1.0)
    store.annotate(1, metrics={"bleu": 40.0})
    store.annotate(2, metrics={"bleu": 30.0})

    carry_out(store._context, plan_of(store, RetentionPolicy(keep_best=Best("bleu", "max"))))

    assert steps(store) == [1, 3]


def test_a_checkpoint_whose_annotations_cannot_be_read_stays(store: Store) -> None:
    fill(store, range(3))
    (directory_of(store, 0) / "annotations.json").write_text("{")

    plan = plan_of(store, RetentionPolicy(keep_last=1))

    assert [entry.step for entry in plan.dropped] == [1]
    assert any("annotations.json" in warning for warning in store.warnings)


def test_a_disk_that_does_not_say_whether_there_are_annotations_is_no_answer(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`os.access` says no to every error, and the best by an annotated metric would have none, and go."""
    fill(store, range(4), loss=1.0)
    store.annotate(1, metrics={"bleu": 40.0})
    status = os.stat

    def stale(path: Any, **given: Any) -> os.stat_result:
        if str(path).endswith("annotations.json"):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return status(path, **given)

    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    monkeypatch.setattr(os, "stat", stale)
    with pytest.raises(CkstoreError, match="Stale file handle"):
        plan_of(store, RetentionPolicy(keep_best=Best("bleu", "max")))
    monkeypatch.undo()
    carry_out(store._context, plan_of(store, RetentionPolicy(keep_best=Best("bleu", "max"))))
    assert steps(store) == [1, 3]


def test_an_unreadable_pin_stops_every_drop(store: Store) -> None:
    fill(store, range(3))
    plan = plan_of(store, RetentionPolicy(keep_last=1))
    pin = store.pin(0, "important")
    (store.path / "pins" / f"{pin.name}.json").write_text('{"format": "ckstore-pin"')

    with pytest.raises(BadInput, match=f"unpin\\('{pin.name}'\\) removes the pin"):
        plan_of(store, RetentionPolicy(keep_last=1))
    with pytest.raises(BadInput):
        carry_out(store._context, plan)
    with pytest.raises(BadInput):
        store.delete(1)
    assert steps(store) == [0, 1, 2]

    store.unpin(pin.name)
    store.delete(1)


def test_a_store_opened_for_reading_plans_but_does_not_drop(store: Store) -> None:
    fill(store, range(2))
    readonly = Store.open(store.path, readonly=True)

    plan = plan_of(readonly, RetentionPolicy(keep_last=1))

    with pytest.raises(SaveFailed, match="reading only"):
        carry_out(readonly._context, plan)


# ------------------------------------------------------------------------------------- the policy of a store


@pytest.mark.usefixtures("steady_clock")
def test_a_policy_is_kept_in_the_store_and_applied_after_each_save(store: Store) -> None:
    policy = RetentionPolicy(keep_last=2, keep_best=[Best("loss"), Best("acc", "max", 2)], keep_within=0.000001)
    assert Store.open(store.path).config.retention is None

    store.config.retention = policy

    assert Store.open(store.path).config.retention == store.config.retention == policy
    for step, loss in enumerate([3.0, 1.0, 2.0, 4.0, 5.0]):
        info = Store.open(store.path).save(state(step), step, metrics={"loss": loss, "acc": -loss})
        assert info.warnings == ()
    assert steps(store) == [1, 2, 3, 4]
    store.config.retention = None
    fill(store, [5])
    assert Store.open(store.path).config.retention is None
    assert steps(store) == [1, 2, 3, 4, 5]


def test_a_policy_with_a_metric_that_no_checkpoint_has_drops_nothing_and_each_save_says_so(store: Store) -> None:
    store.config.retention = RetentionPolicy(keep_last=1, keep_best=Best("los", "min"))

    for step in range(3):
        info = store.save(state(step), step, metrics={"loss": 1.0})
        (warning,) = info.warnings
        assert "the metric los, so none of its checkpoints is dropped; did you mean loss?" in warning
    assert steps(store) == [0, 1, 2]

    assert store.save(state(3), 3, metrics={"los": 1.0}).warnings == ()
    assert steps(store) == [3]


@pytest.mark.parametrize("setting", ["retention", "make_room"])
def test_a_policy_with_a_misspelt_metric_is_not_kept_in_the_store(store: Store, setting: str) -> None:
    best = RetentionPolicy(keep_best=Best("loss"))
    setattr(store.config, setting, best)  # nothing is there that could say it is wrong
    store.save(state(0), 0)
    setattr(store.config, setting, best)
    store.save(state(1), 1, metrics={"loss": 1.0})

    with pytest.raises(BadInput, match="unchanged: no checkpoint has the metric los") as caught:
        setattr(store.config, setting, RetentionPolicy(keep_best=[Best("loss"), Best("los", "min")]))

    assert caught.value.hint == "did you mean loss?"
    assert getattr(store.config, setting) == best


def test_a_plan_by_a_metric_that_no_checkpoint_has_is_refused(store: Store) -> None:
    policy = RetentionPolicy(keep_last=1, keep_best=Best("los", "min"))
    assert plan_of(store, policy).entries == ()
    store.save(state(0), 0, metrics={"loss": 1.0})
    store.save(state(0), 0, run="other")

    for run, named in ((None, "no checkpoint has"), ("main", "no checkpoint of the run main has")):
        with pytest.raises(BadInput, match=f"{named} the metric los") as caught:
            plan_of(store, policy, run)
        assert caught.value.hint == "did you mean loss?"
    with pytest.raises(BadInput, match="the run other has the metric loss"):
        plan_of(store, RetentionPolicy(keep_best=Best("loss")), "other")
    with pytest.raises(BadInput, match="the metric los"):
        store.prune(policy)
    assert len(plan_of(store, RetentionPolicy(keep_best=Best("loss"))).kept) == 2


def test_a_plan_for_a_run_that_is_not_there_is_refused(store: Store) -> None:
    store.save(state(0), 0)

    with pytest.raises(NoSuchRef, match="there is no run 'mian'") as caught:
        plan_of(store, RetentionPolicy(keep_last=1), "mian")
    assert caught.value.hint == "its runs: main"


def test_what_a_save_drops_is_freed(store: Store) -> None:
    store.config.retention = RetentionPolicy(keep_last=1)

    sizes = []
    for step in range(5):
        fill(store, [step])
        sizes.append(disk_bytes(store.path))

    assert len(set(sizes)) == 1
    assert os.listdir(store.path / "trash") == []


def test_other_settings_and_runs_stay_when_a_policy_is_set(store: Store) -> None:
    (store.path / "config.json").write_text(
        '{"format": "ckstore-config", "version": 1, "reserve_bytes": 7, "odd": {"$float": "nan"}}'
    )
    fill(store, range(2), "other")

    store.config.retention = RetentionPolicy(keep_last=1)
    fill(store, range(2))

    kept = json.loads((store.path / "config.json").read_text())
    assert (kept["reserve_bytes"], kept["odd"], kept["retention"]) == (7, {"$float": "nan"}, {"keep_last": 1})
    assert (steps(store), steps(store, "other")) == ([1], [0, 1])


@pytest.mark.parametrize(
    "config,error",
    [
        ("{", BadInput),
        ('{"format": "ckstore-config", "version": 1, "retention": {"keep_monthly": 1}}', BadInput),
        ('{"format": "ckstore-config", "version": 2}', NewerFormat),
    ],
)
def test_a_policy_that_cannot_be_understood_is_not_applied_and_the_save_says_so(
    store: Store, config: str, error: type[Exception]
) -> None:
    fill(store, range(2))
    (store.path / "config.json").write_text(config)

    info = store.save(state(2), 2)

    assert steps(store) == [0, 1, 2]
    assert "config.json" in info.warnings[-1]
    assert info.warnings[-1] in store.warnings
    with pytest.raises(error):
        _ = store.config.retention


@pytest.mark.parametrize("call", ["sync_directory", "rename"])
def test_a_failure_of_retention_does_not_fail_the_save_and_is_said_until_it_works(
    store: Store, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    fill(store, range(2))
    store.config.retention = RetentionPolicy(keep_last=1)
    module: Any = files if call == "sync_directory" else links
    original = getattr(module, call)

    def failing(*paths: Any, **options: Any) -> Any:
        if "trash" in str(paths[-1]):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(paths[-1]))
        return original(*paths, **options)

    monkeypatch.setattr(module, call, failing)
    info = store.save(state(2), 2)
    monkeypatch.undo()

    assert (
        "the checkpoint is saved, but retention of the run main failed afterwards: Input/output error"
        in info.warnings[0]
    )
    assert info.warnings[0] in store.warnings
    assert np.array_equal(store.load(2)["w"], state(2)["w"])
    assert store.save(state(3), 3).warnings == ()
    assert not any("retention of the run" in warning for warning in store.warnings)
    assert steps(store) == [3]


def test_a_save_with_a_step_below_the_others_stays_and_is_the_newest(store: Store) -> None:
    fill(store, [900, 1000, 1100])
    store.config.retention = RetentionPolicy(keep_last=2)

    fill(store, [100])

    assert steps(store) == [1100, 100]


@pytest.mark.usefixtures("steady_clock")
def test_delete_refuses_what_is_pinned_until_the_pin_is_gone_or_expired(store: Store) -> None:
    fill(store, range(3))
    store.pin(0, "figure 3", expires="1h")
    store.pin(1, "gone at once", expires=timedelta(microseconds=1))

    with pytest.raises(InUse, match="is pinned: figure 3"):
        store.delete(0)
    store.delete(1)
    store.unpin(0)
    store.delete(0)

    assert steps(store) == [2]


def test_a_step_that_is_saved_again_while_it_is_dropped_stays_in_the_catalog(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, range(2))
    other = Store.open(store.path)
    original = store._context.catalog.reconcile

    def saved_first(*arguments: Any, **options: Any) -> None:
        monkeypatch.undo()
        elsewhere(lambda: other.save(state(50), 0))
        original(*arguments, **options)

    monkeypatch.setattr(store._context.catalog, "reconcile", saved_first)
    store.delete(0)

    assert references_of_catalog(store.path) == references_of_manifests(store.path)
    assert np.array_equal(store.load("main@0")["w"], state(50)["w"])


@pytest.mark.crash
@pytest.mark.slow
def test_a_kill_at_any_change_of_a_save_with_retention_loses_nothing_that_is_to_stay(tmp_path: Any) -> None:
    for at in range(1, 200, 1 if CRASH_FULL else 13):
        root = tmp_path / f"store-{at}"
        store = Store.init(root, chunk_bytes=MIB)
        fill(store, range(3))
        store.tag("good", 0)
        store.config.retention = RetentionPolicy(keep_last=1)

        died = run_and_kill(functools.partial(store.save, state(3), 3), at=at, before=True)

        again = Store.open(root)
        check_store(root)
        there = steps(again)
        assert there in ([0, 1, 2], [0, 1, 2, 3], [0, 2, 3], [0, 3]), f"killed at {at}: {there}"
        assert all(np.array_equal(again.load(f"main@{step}")["w"], state(step)["w"]) for step in there)
        if not died:
            assert there == [0, 3]
            assert at > 30
            return
    pytest.fail("the save did more than 200 changes")


def test_errors_of_the_system_are_errors_of_ckstore(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, range(2))

    def failing(path: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(files, "sync_directory", failing)
    with pytest.raises(CkstoreError, match="prune failed: Input/output error"):
        store.prune(RetentionPolicy(keep_last=1))
    monkeypatch.undo()

    assert steps(store) == [0, 1]


@pytest.mark.usefixtures("steady_clock")
def test_the_clock_of_a_plan_is_the_present(store: Store) -> None:
    fill(store, range(2))

    plan = plan_of(store, RetentionPolicy(keep_within="1h"))

    assert abs(plan.now - datetime.now(UTC)) < timedelta(minutes=5)
    assert plan.dropped == ()
    with pytest.raises(BadInput, match="no retention policy"):
        plan_of(store)


def test_a_plan_that_was_looked_at_is_carried_out_as_it_was_made(store: Store) -> None:
    fill(store, range(3))
    plan = plan_of(store, RetentionPolicy(keep_last=1))
    fill(store, range(3, 5))

    report = store.prune(plan)

    assert [info.step for info in report.dropped] == [0, 1]
    assert [info.step for info in store.checkpoints()] == [2, 3, 4]


def test_what_was_dropped_is_said_although_another_gc_keeps_its_space(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, range(3))
    monkeypatch.setattr(gc, "_START_TIMEOUT_S", 0.0)

    with store_locks.try_trash(store._context.layout) or pytest.fail("no lock"):
        with pytest.warns(CkstoreWarning, match=r"dropped main@0, main@1, but their space is not free yet"):
            report = store.prune(RetentionPolicy(keep_last=1))
        with pytest.raises(InUse, match="another gc is running"):
            store.prune(RetentionPolicy(keep_last=1))

    assert [info.step for info in report.dropped] == [0, 1]
    assert report.explanation.startswith("2 in trash/ left for a later gc")
    assert "no unused data" not in str(report)
    assert store.gc().freed_bytes > 2 * MIB


def test_a_dry_run_that_drops_but_frees_nothing_says_why(store: Store) -> None:
    for step in range(3):
        store.save(state(1), step)

    report = store.prune(RetentionPolicy(keep_last=1), dry_run=True)

    assert "would free nothing: other checkpoints have the same blobs" in str(report)
    assert "no unused data" not in str(report)


def test_a_run_has_the_policy_of_its_name_or_glob_after_each_save_and_in_prune(store: Store) -> None:
    store.config.retention_by_run = {"sweep-*": RetentionPolicy(keep_last=1), "sweep-1": RetentionPolicy(keep_last=2)}

    fill(store, range(4), "sweep-1")
    fill(store, range(4), "sweep-2")
    fill(store, range(4))

    assert (steps(store, "sweep-1"), steps(store, "sweep-2"), steps(store)) == ([2, 3], [3], [0, 1, 2, 3])
    report = store.prune(dry_run=True)
    assert report.retention is not None
    assert report.retention.plan.dropped == ()
    with pytest.raises(BadInput, match="a glob"):
        store.config.retention_by_run = {"a/b": RetentionPolicy(keep_last=1)}


def _two_runs(store: Store) -> RetentionPlan:
    """Save three checkpoints of each of two runs, and return a plan that drops two of each."""
    for run in ("a", "b"):
        for step in (1, 2, 3):
            store.save({"w": np.full(10, float(step))}, step=step, run=run)
    return plan_of(store, RetentionPolicy(keep_last=1))


@pytest.mark.parametrize("is_bound", [False, True], ids=["given", "bound"])
def test_a_plan_of_several_runs_is_applied_to_the_given_run_only(store: Store, is_bound: bool) -> None:
    plan = _two_runs(store)
    handle, run = (Store.open(store.path, run="a"), None) if is_bound else (store, "a")

    would, report = handle.prune(plan, run, dry_run=True), handle.prune(plan, run)

    assert would.retention is not None
    assert report.retention is not None
    assert [info.name for info in would.retention.dropped] == ["a@1", "a@2"]
    assert report.retention.dropped == would.retention.dropped
    assert [info.name for info in store.checkpoints()] == ["a@3", "b@1", "b@2", "b@3"]


def test_a_plan_that_does_not_concern_the_run_is_refused(store: Store) -> None:
    plan = _two_runs(store)
    with pytest.raises(BadInput, match="no checkpoint of the run c, but of a, b"):
        store.prune(plan, "c")
    assert len(store.checkpoints()) == 6


def test_a_dry_run_of_an_earlier_plan_reports_the_store_of_now(store: Store) -> None:
    for step in range(1, 7):
        store.save({"w": np.full(10, float(step))}, step=step)
    plan = plan_of(store, RetentionPolicy(keep_last=1))
    store.tag("good", 1)
    store.pin(2, "paper")
    store.delete(3)

    with store.open_checkpoint(4):
        would, report = store.prune(plan, dry_run=True), store.prune(plan)

    assert would.retention is not None
    assert report.retention is not None
    assert [info.step for info in would.retention.dropped] == [5]
    assert [(one.info.step, one.reason) for one in would.retention.skipped] == [
        (one.info.step, one.reason) for one in report.retention.skipped
    ]
    assert would.retention.dropped == report.retention.dropped
    assert [one.info.step for one in would.retention.skipped] == [1, 2, 3, 4]
    assert "main@1 is kept, since main@1 has the tag good" in str(would.retention)
    assert str(would.retention).endswith("would drop 1 of 6 checkpoints")
