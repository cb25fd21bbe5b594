"""A run gets another name: nothing but the name and the ids changes, and a kill at any moment loses nothing."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import (
    BadInput,
    CkstoreError,
    CkstoreWarning,
    DamagedBlob,
    InUse,
    NoSuchRef,
    Protected,
    RetentionPolicy,
    StepExists,
    Store,
)
from ckstore.objects.layout import Layout
from ckstore.ops import config_file
from tests.support.crashing import run_and_kill
from tests.support.damage import flip
from tests.support.look import directory_of
from tests.support.requirements import CRASH_FULL
from tests.support.stores import check_store, disk_bytes


def save(store: Store, step: int, run: str = "old", **options: Any) -> None:
    rng = np.random.default_rng(step)
    store.save({"w": rng.integers(0, 255, 300_000, dtype=np.uint8)}, step=step, run=run, **options)


def said(store: Store, run: str) -> list[tuple[object, ...]]:
    """Return what must stay of each checkpoint of a run."""
    return [
        (info.step, info.sequence, info.created, info.content, info.metrics, info.notes, info.tags, info.message)
        for info in store.checkpoints(run)
    ]


def test_all_but_the_name_and_the_ids_stays_and_comes_back_with_the_old_name(store: Store) -> None:
    for step in range(3):
        save(store, step, metrics={"loss": 3.0 - step}, message=f"step {step}")
    store.tag("best", 1)
    pin = store.pin(0, "kept", expires="2d")
    store.annotate(2, {"bleu": 20.0}, note="evaluated")
    store.config.retention_by_run = {"old": RetentionPolicy(keep_last=2), "other": RetentionPolicy(keep_last=1)}
    before, ids, full = said(store, "old"), [info.id for info in store.checkpoints()], disk_bytes(store.path)

    infos = store.rename_run("old", "new")

    assert [info.name for info in infos] == ["new@0", "new@1", "new@2"] == [info.name for info in store.checkpoints()]
    assert said(store, "new") == before
    assert [info.parent for info in infos] == [None, infos[0].id, infos[1].id]
    (moved,) = store.pins()
    assert (moved.name, moved.run, moved.id, moved.expires, moved.dangling) == (
        *(pin.name, "new", infos[0].id, pin.expires),
        False,
    )
    assert list(store.config.retention_by_run) == ["new", "other"]
    assert store.undoable() == ()
    assert disk_bytes(store.path) < full + 100_000
    assert [event.why for event in store.events() if event.event == "renamed"] == ["it was old"]
    assert store.verify().ok
    check_store(store.path)

    store.rename_run("new", "old")
    assert [info.id for info in store.checkpoints()] == ids


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
def test_a_superseded_checkpoint_that_a_pin_keeps_is_renamed_and_returned(store: Store) -> None:
    save(store, 1)
    store.pin(1, "kept")
    store.save({"w": 1}, step=1, run="old", if_exists="replace")
    save(store, 2)

    infos = store.rename_run("old", "new")

    assert [(info.step, info.superseded) for info in infos] == [(1, True), (1, False), (2, False)]
    assert {info.id for info in infos} == {info.id for info in store.checkpoints(superseded=True)}
    assert [pin.id for pin in store.pins()] == [infos[0].id]


def test_a_compacted_checkpoint_stays_compacted(tmp_path: Path) -> None:
    store = Store.init(tmp_path / "compacted")
    weights = np.random.default_rng(0).normal(size=300_000).astype(np.float32)
    for step in range(6):
        store.save({"w": weights + np.float32(step) * 2**-20}, step=step, run="old")
    assert store.compact().compacted
    small = disk_bytes(store.path)

    store.rename_run("old", "new")

    assert (store.load("new@1")["w"] == weights + np.float32(1) * 2**-20).all()
    assert disk_bytes(store.path) < small + 100_000
    assert store.verify().ok


def test_what_cannot_be_renamed_is_refused_before_anything_is_changed(store: Store) -> None:
    save(store, 1)
    save(store, 2)
    save(store, 2, "taken")
    save(store, 9, "free")
    before = [info.id for info in store.checkpoints()]

    for new, error in (("old", BadInput), ("no/run", BadInput), ("taken", StepExists), ("free", StepExists)):
        with pytest.raises(error):
            store.rename_run("old", new)
    with pytest.raises(NoSuchRef, match="there is no run 'absent'"):
        store.rename_run("absent", "new")
    with store.open_checkpoint("old@1"), pytest.raises(InUse, match="old@1 is open for reading"):
        store.rename_run("old", "new")

    assert [info.id for info in store.checkpoints()] == before


def test_rules_of_both_names_are_refused_as_one_of_them_would_be_lost(store: Store) -> None:
    save(store, 1)
    rules = {"old": RetentionPolicy(keep_last=50), "new": RetentionPolicy(keep_last=1)}
    store.config.retention_by_run = rules

    with pytest.raises(BadInput, match="old and new both have rules in retention_by_run") as caught:
        store.rename_run("old", "new")

    assert store.config.retention_by_run == rules
    assert [info.name for info in store.checkpoints()] == ["old@1"]
    assert caught.value.command_hint == "ckstore config retention off --run new removes the rules of new"


def test_a_rule_that_is_removed_during_a_rename_stays_removed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    save(store, 1)
    store.config.retention_by_run = {"old": RetentionPolicy(keep_last=50)}
    edit = config_file.edit

    def after_another(layout: Layout, *arguments: Any) -> None:
        edit(layout, config_file.BY_RUN, lambda _: None)
        edit(layout, *arguments)

    monkeypatch.setattr(config_file, "edit", after_another)
    store.rename_run("old", "new")

    assert store.config.retention_by_run == {}
    assert [info.name for info in store.checkpoints()] == ["new@1"]


def test_a_run_with_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    store = Store.init(tmp_path / "damaged")
    save(store, 1)
    flip(next((directory_of(store, store.info("old@1")) / "blobs").iterdir()), 9)
    store.verify()

    with pytest.raises(DamagedBlob, match="old@1 is marked as damaged"):
        store.rename_run("old", "new")

    assert [info.name for info in store.checkpoints()] == ["old@1"]


def test_a_run_to_which_a_save_is_under_way_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    save(store, 1)
    from ckstore.objects import publish

    original, at, go_on = publish.publish, threading.Event(), threading.Event()

    def publishing(*args: Any, **kwargs: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():  # not the renaming, which publishes, too
            at.set()
            assert go_on.wait(60)
        return original(*args, **kwargs)

    monkeypatch.setattr(publish, "publish", publishing)
    saving = threading.Thread(target=save, args=(store, 2))
    saving.start()
    assert at.wait(60)

    try:
        with pytest.raises(InUse, match="a save to the run old or a compaction of it is under way"):
            Store.open(store.path).rename_run("old", "new")
    finally:
        go_on.set()
        saving.join()
    assert [info.name for info in store.checkpoints()] == ["old@1", "old@2"]


def test_what_is_noted_between_the_copy_and_the_drop_goes_along(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    save(store, 1)
    at_first(monkeypatch, "_take_names", lambda: Store.open(store.path).annotate("old@1", {"late": 1.0}, note="late"))

    (info,) = store.rename_run("old", "new")

    assert (info.metrics["late"], [note.text for note in info.notes]) == (1.0, ["late"])


def elsewhere(act: Callable[[], object]) -> None:
    """Act in another thread, as another process would."""
    other = threading.Thread(target=act)
    other.start()
    other.join()


def at_first(monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[[], object]) -> None:
    """Act in another thread before `rename_run` calls one of its functions for the first time."""
    around_first(monkeypatch, name, act, lambda: None)


def around_first(
    monkeypatch: pytest.MonkeyPatch, name: str, before: Callable[[], object], after: Callable[[], object]
) -> None:
    """Act in another thread before and after the first call of one of its functions by `rename_run`."""
    from ckstore.ops import rename_run as room

    original, acts = getattr(room, name), [after, before]

    def call(*args: Any, **kwargs: Any) -> Any:
        if len(acts) == 2:
            elsewhere(acts.pop())
        found = original(*args, **kwargs)
        if acts:
            elsewhere(acts.pop())
        return found

    monkeypatch.setattr(room, name, call)


def test_a_checkpoint_that_is_saved_meanwhile_is_not_called_incomplete(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(store, 1)
    around_first(monkeypatch, "infos", lambda: None, lambda: save(Store.open(store.path), 2))

    assert [info.name for info in store.rename_run("old", "new")] == ["new@1"]

    assert [info.name for info in store.checkpoints()] == ["new@1", "old@2"]
    assert [info.name for info in store.rename_run("old", "new")] == ["new@2"]
    assert [info.name for info in store.checkpoints()] == ["new@1", "new@2"]
    assert store.verify().ok
    check_store(store.path)


def test_a_step_that_was_saved_again_under_the_old_name_is_not_moved(store: Store) -> None:
    other = Store.open(store.path)
    save(other, 1)
    store.rename_run("old", "new")
    other.save({"w": 5}, step=1, run="old")

    with pytest.raises(StepExists, match="the run new exists and has its own checkpoints"):
        store.rename_run("old", "new")

    assert {info.name for info in store.checkpoints()} == {"new@1", "old@1"}
    check_store(store.path)


def test_another_training_that_began_under_the_old_name_is_not_moved(store: Store) -> None:
    save(store, 1)
    store.rename_run("old", "new")
    save(store, 2)

    with pytest.raises(StepExists, match="the run new exists and has its own checkpoints"):
        store.rename_run("old", "new")

    assert {info.name for info in store.checkpoints()} == {"new@1", "old@2"}
    check_store(store.path)


def test_background_saves_of_the_handle_are_finished_before_their_run_is_renamed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ckstore.ops import rename_run as room

    store.save_async({"w": np.arange(9)}, step=1, run="old").result()
    (saver,) = store.savers()
    os.kill(saver.pid, signal.SIGSTOP)
    saves = [store.save_async({"w": np.full(9, step)}, step=step, run="old", max_in_flight=3) for step in (2, 3, 4)]
    original = room.rename_run
    done: list[bool] = []

    def rename_run(*args: Any) -> Any:
        done.extend(one.done() for one in saves)
        return original(*args)

    monkeypatch.setattr(room, "rename_run", rename_run)
    resuming = threading.Timer(0.5, os.kill, (saver.pid, signal.SIGCONT))
    resuming.start()
    try:
        renamed = store.rename_run("old", "new")
    finally:
        resuming.join()

    assert done == [True, True, True]
    assert [info.name for info in renamed] == ["new@1", "new@2", "new@3", "new@4"]
    assert [one.result().name for one in saves] == ["old@2", "old@3", "old@4"]
    assert store.info("latest").name == "new@4"
    store.close()
    check_store(store.path)


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
def test_a_rename_continues_after_a_superseded_checkpoint_was_dropped(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ckstore.ops import rename_run as room
    from ckstore.ops.free import drop as dropping

    save(store, 1)
    store.pin(1, "kept")
    store.save({"w": 1}, step=1, run="old", if_exists="replace")

    def drop(*args: Any, **options: Any) -> Any:
        dropping.drop(*args, **options)
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as failing:
        failing.setattr(room, "drop", drop)
        with pytest.raises(CkstoreError):
            store.rename_run("old", "new")

    assert [info.superseded for info in store.rename_run("old", "new")] == [False]
    assert [info.superseded for info in store.checkpoints("new", superseded=True)] == [True, False]
    check_store(store.path)


def test_a_checkpoint_that_is_deleted_meanwhile_is_not_called_incomplete(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        save(store, step)
    at_first(monkeypatch, "infos", lambda: Store.open(store.path).delete("old@2"))

    assert [info.name for info in store.rename_run("old", "new")] == ["new@1"]
    assert store.verify().ok
    check_store(store.path)


def test_a_whole_checkpoint_under_another_name_is_not_to_be_deleted(store: Store) -> None:
    save(store, 1)
    save(store, 2)
    place = directory_of(store, store.info("old@2"))
    moved = place.rename(place.parent / place.name.replace("2.", "3.", 1))

    with pytest.raises(DamagedBlob, match="holds the checkpoint old@2") as caught:
        store.rename_run("old", "new")

    assert caught.value.hint == "move that directory out of the run, or back to its own name"
    moved.rename(place)
    assert [info.name for info in store.rename_run("old", "new")] == ["new@1", "new@2"]
    check_store(store.path)


def test_a_name_that_a_process_has_reserved_is_refused(store: Store) -> None:
    save(store, 1)
    save(store, 1, "main")
    other = Store.open(store.path, run="auto")
    assert other.run == "main-2"

    with pytest.raises(StepExists, match='the name main-2 is reserved by a process that opened the store with run="a'):
        store.rename_run("old", "main-2")

    assert [info.name for info in store.checkpoints("old")] == ["old@1"]
    assert other.save({"w": 1}, step=1).name == "main-2@1"
    check_store(store.path)


def test_the_name_of_a_run_whose_checkpoints_were_deleted_is_free(store: Store) -> None:
    save(store, 1)
    other = Store.open(store.path, run="auto")
    assert other.run == "main"
    other.save({"w": 1}, step=1)
    store.delete("main@1", now=True)

    assert [info.name for info in store.rename_run("old", "main")] == ["main@1"]
    check_store(store.path)


def test_tags_that_are_moved_or_removed_meanwhile_are_not_reverted(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        save(store, step)
    save(store, 7, "other")
    for name in ("first", "gone", "moved", "moved-away"):
        store.tag(name, "old@1")

    def change() -> None:
        other = Store.open(store.path)
        other.untag("gone")
        other.tag("moved", "old@2")
        other.tag("moved-away", "other@7")

    at_first(monkeypatch, "held", change)  # the tags have been read, and none is written yet

    with pytest.raises(Protected, match="old@2 has the tag moved, set during the renaming") as caught:
        store.rename_run("old", "new")

    assert caught.value.hint == "rename the run again, which completes the renaming"
    named = {tag.name: f"{tag.run}@{tag.step}" for tag in store.tags()}
    assert named == {"first": "new@1", "moved": "old@2", "moved-away": "other@7"}
    store.rename_run("old", "new")
    assert {tag.name: f"{tag.run}@{tag.step}" for tag in store.tags()} == named | {"moved": "new@2"}
    assert [info.name for info in store.checkpoints("new")] == ["new@1", "new@2"]
    assert store.checkpoints("old") == []
    assert store.verify().ok
    check_store(store.path)


def test_a_pin_that_is_removed_meanwhile_is_not_restored(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    save(store, 1)
    pins = [store.pin("old@1", reason) for reason in ("kept", "removed")]
    at_first(monkeypatch, "write_pin", lambda: Store.open(store.path).unpin(pins[1].name))

    store.rename_run("old", "new")

    assert [(pin.name, pin.run) for pin in store.pins()] == [(pins[0].name, "new")]
    check_store(store.path)


def test_a_tag_that_is_removed_while_the_rename_moves_it_is_removed_afterwards(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ckstore.ops.refs import labels

    save(store, 1)
    store.tag("best", "old@1")
    original, threads = labels._replace, []

    def replace(*args: Any) -> None:  # the text of the tag has been compared
        threads.append(threading.Thread(target=lambda: Store.open(store.path).untag("best")))
        threads[0].start()
        threads[0].join(0.2)
        original(*args)

    monkeypatch.setattr(labels, "_replace", replace)

    store.rename_run("old", "new")
    threads[0].join()

    assert store.tags() == []
    check_store(store.path)


def test_a_reader_that_opened_a_checkpoint_meanwhile_lets_the_rename_be_completed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        save(store, step)
    opened: list[Any] = []
    at_first(monkeypatch, "drop", lambda: opened.append(Store.open(store.path).open_checkpoint("old@2")))

    with pytest.raises(InUse, match="old@2 is open for reading") as caught:
        store.rename_run("old", "new")
    opened[0].close()

    expected = "when that process no longer uses it, rename the run again, which completes the renaming"
    assert caught.value.hint == expected
    assert [info.name for info in store.rename_run("old", "new")] == ["new@2"]
    assert [info.name for info in store.checkpoints()] == ["new@1", "new@2"]
    check_store(store.path)


@pytest.mark.parametrize(
    "before, message, names",
    [
        ("_take_directory", "old@1 was dropped during the renaming", ["new@2", "new@3"]),
        (
            "_take_names",
            "old@1 was dropped during the renaming, after it was copied to new@1, which stays",
            ["new@1", "new@2", "new@3"],
        ),
    ],
)
def test_a_checkpoint_that_a_rule_drops_meanwhile_does_not_stop_the_rename(
    store: Store, monkeypatch: pytest.MonkeyPatch, before: str, message: str, names: list[str]
) -> None:
    for step in (1, 2, 3):
        save(store, step)
    rule = RetentionPolicy(keep_last=2)
    at_first(monkeypatch, before, lambda: Store.open(store.path).prune(rule, run="old"))

    with pytest.warns(CkstoreWarning) as told:
        infos = store.rename_run("old", "new")

    assert [str(one.message) for one in told] == [message]
    assert [info.name for info in infos] == [info.name for info in store.checkpoints()] == names
    assert store.verify().ok
    check_store(store.path)


def test_a_rename_whose_checkpoints_were_all_dropped_meanwhile_says_that_there_is_no_run(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(store, 1)
    at_first(monkeypatch, "_take_directory", lambda: Store.open(store.path).delete("old@1"))

    with pytest.raises(NoSuchRef, match="there is no run 'old'"):
        store.rename_run("old", "new")


def test_a_checkpoint_whose_copy_a_rule_drops_meanwhile_keeps_its_name(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2, 3):
        save(store, step)
    store.tag("best", "old@1")
    rule = RetentionPolicy(keep_last=1)  # the copies do not have the tag yet
    at_first(monkeypatch, "_take_names", lambda: Store.open(store.path).prune(rule, run="new"))

    with pytest.warns(CkstoreWarning, match="new@1 was dropped during the renaming, so old@1 keeps its name") as told:
        store.rename_run("old", "new")

    assert len(told) == 1
    assert str(told[0].message).endswith("; rename the run again, which completes the renaming")
    assert [info.name for info in store.checkpoints()] == ["old@1", "old@2", "new@3"]
    assert [info.name for info in store.rename_run("old", "new")] == ["new@1", "new@2"]
    assert store.info("best").name == "new@1"
    assert [info.name for info in store.checkpoints()] == ["new@1", "new@2", "new@3"]
    check_store(store.path)


def test_a_checkpoint_that_is_compacted_meanwhile_is_renamed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    value = rng.normal(size=300_000).astype(np.float32)
    for step in (1, 2):
        value[step::7] += np.float32(0.001)
        store.save({"w": value}, step=step, run="old")
    done: list[int] = []
    at_first(
        monkeypatch,
        "_take_directory",
        lambda: done.extend(
            one.info.step for one in Store.open(store.path).compact(keep_newest=1, run="old").compacted
        ),
    )

    infos = store.rename_run("old", "new")

    assert done == [1]
    assert [info.name for info in infos] == [info.name for info in store.checkpoints()] == ["new@1", "new@2"]
    assert store.verify().ok
    check_store(store.path)


@pytest.mark.crash
@pytest.mark.parametrize("before", [True, False])
def test_after_a_kill_at_any_change_the_same_call_goes_on(store: Store, before: bool) -> None:
    save(store, 1, metrics={"loss": 1.0})
    save(store, 2)
    store.tag("best", "old@1")
    store.pin("old@2", "kept")
    run, other = "old", "new"
    for at in itertools.count(1, 1 if CRASH_FULL else 5):
        kept = said(store, run)
        died = run_and_kill(lambda: Store.open(store.path).rename_run(run, other), at=at, before=before)  # noqa: B023
        opened = Store.open(store.path)
        steps = {(info.step, info.content) for info in opened.checkpoints()}
        assert steps == {(step, content) for step, _, _, content, *_ in kept}
        if opened.checkpoints(run):
            opened.rename_run(run, other)
        assert said(opened, other) == kept
        assert opened.verify(quick=True).ok
        run, other = other, run
        if not died:
            break
    assert at > 10


def test_a_run_can_be_renamed_without_the_catalog(tmp_path: Path) -> None:
    store = Store.init(tmp_path / "store")
    for step in range(2):
        save(store, step)
    for path in store.path.glob("catalog.db*"):
        path.unlink()

    with pytest.warns(CkstoreWarning, match="catalog.db is missing. Reading the directories instead"):
        infos = store.rename_run("old", "new")

    assert [(info.run, info.step) for info in infos] == [("new", 0), ("new", 1)]
    store.close()
    with pytest.warns(CkstoreWarning, match="Rebuilt the catalog"), Store.open(tmp_path / "store") as again:
        assert [info.run for info in again.checkpoints()] == ["new", "new"]
    check_store(tmp_path / "store")
