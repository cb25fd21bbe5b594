"""Where the filesystem cannot exchange two names a checkpoint is replaced by two renames; between them is a gap."""

from __future__ import annotations

import os
import shutil
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from ckstore import RetentionPolicy, Store
from ckstore.errors import CkstoreWarning, InUse, NoSuchRef, StepExists, UnknownOutcome, UnsafePlace
from ckstore.fs import files, links, locks, peek
from ckstore.objects import trash
from ckstore.objects.shared import two_renames
from ckstore.ops.refs import listing
from tests.support.crashing import run_and_kill
from tests.support.stores import check_store


@pytest.fixture(autouse=True)
def no_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(*_: object) -> NoReturn:
        raise UnsafePlace("this filesystem cannot exchange two names")

    monkeypatch.setattr(links, "exchange", cannot)


def state(seed: int) -> dict[str, Any]:
    return {"w": np.full(3000, seed)}


def value(store: Store, ref: Any = 1) -> int:
    return int(store.load(ref)["w"][0])


@pytest.fixture
def store(store: Store) -> Store:
    """A store with the steps 1 and 2."""
    for step in (1, 2):
        store.save(state(step), step=step)
    return store


def is_empty_place(path: Any) -> bool:
    return str(path).endswith("checkpoints/main/1") and not os.path.exists(str(path))


def stop_in_the_gap(store: Store, seed: int = 9, **given: Any) -> None:
    """Let a process die when the old step 1 has left its place, and the new one has not come."""
    rename = links.rename

    def dying(source: Any, target: Any, **given: Any) -> None:
        if is_empty_place(target) and ".old" not in str(source):
            os._exit(0)
        rename(source, target, **given)

    pid = os.fork()
    if pid == 0:
        links.rename = dying
        try:
            Store.open(store.path, recover=False).save(state(seed), step=1, if_exists="replace", **given)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert not (store.path / "checkpoints/main/1").exists()


def lose_the_new(store: Store) -> None:
    (old,) = (store.path / "staging").glob("*.old")
    shutil.rmtree(old.with_suffix("") / "blobs")


def test_a_checkpoint_is_replaced_and_nothing_is_left(store: Store) -> None:
    info = store.save(state(9), step=1, if_exists="replace")

    assert (value(store), store.info(1).id, info.warnings) == (9, info.id, ())
    assert os.listdir(store.path / "staging") == []
    store.gc()
    check_store(store.path)


def test_a_replacement_that_was_cut_short_is_completed_by_who_opens_next(store: Store) -> None:
    stop_in_the_gap(store)

    again = Store.open(store.path)

    assert value(again) == 9
    assert [info.step for info in again.checkpoints()] == [2, 1]
    assert os.listdir(store.path / "staging") == []
    again.gc()
    check_store(store.path)


def test_without_the_new_one_the_old_one_comes_back(store: Store) -> None:
    stop_in_the_gap(store)
    lose_the_new(store)

    again = Store.open(store.path)

    assert value(again) == 1
    assert os.listdir(store.path / "staging") == []
    check_store(store.path)


@pytest.mark.parametrize("look", ["load", "info", "list", "latest", "handle"])
def test_who_looks_next_completes_it(store: Store, look: str) -> None:
    known = store.info(1)
    stop_in_the_gap(store)

    if look == "handle":
        with pytest.raises(NoSuchRef, match="no longer in the store"):
            store.info(known)
    else:
        looks = {
            "load": lambda: value(store) == 9,
            "info": lambda: store.info(1).id != known.id,
            "list": lambda: {info.step for info in store.checkpoints()} == {1, 2},
            "latest": lambda: store.info("latest").step == 1,
        }
        assert looks[look]()
    assert (store.path / "checkpoints/main/1").is_dir()


def test_a_save_does_not_take_the_empty_place_as_free(store: Store) -> None:
    stop_in_the_gap(store)

    with pytest.raises(StepExists):
        store.save(state(5), step=1)
    assert value(store) == 9


def test_what_was_replaced_does_not_come_back_when_the_new_one_is_deleted(store: Store) -> None:
    stop_in_the_gap(store, seed=8)
    (old,) = (store.path / "staging").glob("*.old")
    os.rename(old.with_suffix(""), store.path / "checkpoints/main/1")  # and died right after the second rename

    store.delete(1)

    assert [info.step for info in Store.open(store.path).checkpoints()] == [2]
    assert os.listdir(store.path / "staging") == []


@pytest.mark.parametrize("turned", [False, True])
def test_what_was_replaced_does_not_come_back_when_the_next_replacement_stops(
    store: Store, turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_in_the_gap(store, seed=8)
    (old,) = (store.path / "staging").glob("*.old")
    os.rename(old.with_suffix(""), store.path / "checkpoints/main/1")  # and died right after the second rename

    stop_in_the_gap(store, seed=9)

    names = peek.names
    monkeypatch.setattr(peek, "names", lambda where: sorted(names(where), key=old.name.__eq__, reverse=turned))
    assert value(Store.open(store.path)) == 9
    assert os.listdir(store.path / "staging") == []


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
def test_a_checkpoint_is_deleted_though_another_process_swept_what_it_replaced(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = two_renames.begun
    swept = partial(begun, names=["main@1.0123456789ab.old"])  # its name was listed, and then it went
    with monkeypatch.context() as patch:
        patch.setattr(
            two_renames, "begun", lambda layout, names=None: swept(layout) if names is None else begun(layout, names)
        )
        patch.setattr(listing, "DEADLINE_S", 0.01)  # the name stays in the list

        store.delete(1)
        with pytest.raises(NoSuchRef):
            store.load("1")

    assert [info.step for info in store.checkpoints()] == [2]


def test_what_was_replaced_is_swept_when_what_replaced_it_is_durable(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process died before it synced the run; else a power cut could leave neither, if renames come back singly."""
    stop_in_the_gap(store, seed=8)
    (old,) = (store.path / "staging").glob("*.old")
    os.rename(old.with_suffix(""), store.path / "checkpoints/main/1")
    synced: list[str] = []
    sync, move = files.sync_directory, trash.move_to_trash

    def syncing(folder: Any) -> None:
        synced.append(folder.name)
        sync(folder)

    def moving(layout: Any, path: Any, lock: Any = None) -> Any:
        assert "main" in synced
        return move(layout, path, lock)

    monkeypatch.setattr(files, "sync_directory", syncing)
    monkeypatch.setattr(trash, "move_to_trash", moving)

    assert len(trash.sweep_staging(store._context.layout)) == 1


def test_a_sweep_leaves_both_checkpoints_of_a_gap(store: Store) -> None:
    stop_in_the_gap(store)
    with locks.lock_shared(store.path / "checkpoints/main", timeout_s=1):  # so that no process can complete it
        store.gc()

    assert sorted(len(name.split(".")) for name in os.listdir(store.path / "staging")) == [2, 3]
    assert value(store) == 9


def test_a_reader_waits_for_a_process_that_is_in_the_gap(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_in_the_gap(store)
    reader = Store.open(store.path, readonly=True)
    waited = []
    sleep = time.sleep

    def sleeping(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:  # the process that replaces goes on
            other.submit(Store.open, store.path).result()
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", sleeping)
    with ThreadPoolExecutor(1) as other:
        assert value(reader) == 9
    assert len(waited) >= 3


def test_a_reader_waits_no_longer_than_its_deadline_and_says_why(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_in_the_gap(store)
    monkeypatch.setattr(listing, "DEADLINE_S", 0.01)
    reader = Store.open(store.path, readonly=True)

    with pytest.warns(CkstoreWarning, match="main@1 is not there, since a save that replaces it has not finished"):
        assert [info.step for info in reader.checkpoints()] == [2]
    assert any("has not finished" in warning for warning in reader.warnings)
    for ref in (1, "main@1"):
        with pytest.raises(InUse, match=r"has not finished: the old one is .*main@1\..*old"):
            reader.load(ref)


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
def test_what_stopped_in_the_gap_is_not_taken_for_a_run_that_has_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer that is told that there is nothing begins from the start."""
    one = store.info(1)
    store.tag("best", 1)
    store.delete(2)
    stop_in_the_gap(store, force=True)
    monkeypatch.setattr(listing, "DEADLINE_S", 0.01)
    reader = Store.open(store.path, readonly=True)

    for ask in (
        reader.latest,
        partial(reader.latest, "main"),
        partial(reader.latest, valid=True),
        partial(reader.load, "latest"),
        partial(reader.load, "latest-valid"),
        partial(reader.load, "best"),
        partial(reader.load, one),
        partial(reader.load, one.id),
    ):
        with pytest.raises(InUse, match="has not finished"):
            ask()
    with pytest.raises(NoSuchRef):
        reader.load(7)
    assert reader.latest("other") is None


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
def test_what_stopped_in_the_gap_is_not_answered_with_another_run(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(state(5), step=1, run="other")
    store.delete("main@2")
    stop_in_the_gap(store)
    monkeypatch.setattr(listing, "DEADLINE_S", 0.01)
    reader = Store.open(store.path, readonly=True)

    for ask in (partial(reader.info, 1), partial(reader.info, "latest"), partial(reader.load, "latest-valid")):
        with pytest.raises(InUse, match="main@1 is not there"):
            ask()
    with pytest.raises(InUse, match="main@1 is not there"):
        reader.latest()
    assert value(reader, "other@latest") == 5


def test_a_gap_that_cannot_be_completed_is_told_with_the_cause_and_not_waited_for(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> NoReturn:
        raise OSError(5, os.strerror(5))

    stop_in_the_gap(store)
    with monkeypatch.context() as patch:
        patch.setattr(two_renames, "complete", failing)
        patch.setattr(time, "sleep", lambda _: pytest.fail("it waits for what it could not do itself"))
        with pytest.warns(CkstoreWarning, match="main@1 was not completed"):
            assert [info.step for info in store.checkpoints()] == [2]

    assert any("main@1 was not completed: Input/output error" in warning for warning in store.warnings)


def test_a_gap_that_stays_fails_no_save_where_warnings_are_errors(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention, which comes after the commit, lists the store."""

    def failing(*_: object) -> NoReturn:
        raise OSError(5, os.strerror(5))

    store.config.retention = RetentionPolicy(keep_last=3)
    stop_in_the_gap(store)
    monkeypatch.setattr(two_renames, "complete", failing)
    monkeypatch.setattr(listing, "DEADLINE_S", 0.01)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        info = store.save(state(7), run="other", step=1)

    assert any("main@1 was not completed" in warning for warning in info.warnings)
    assert value(store, "other@1") == 7
    monkeypatch.undo()
    store.gc()


def test_a_tag_and_a_pin_name_what_took_the_place(store: Store) -> None:
    store.tag("best", 1)
    store.pin(1, "for the paper")

    info = store.save(state(9), step=1, if_exists="replace", force=True)

    assert store.info("best").id == info.id
    (pin,) = store.pins()
    assert (pin.id, pin.dangling) == (info.id, False)


@pytest.mark.parametrize("failing", ["sync", "rename"])
def test_an_error_in_the_gap_puts_the_old_one_back(store: Store, failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rename, sync = links.rename, files.sync_directory
    failed: list[str] = []

    def fail(what: Any) -> None:
        failed.append(str(what))
        raise OSError(5, os.strerror(5))

    def renaming(source: Any, target: Any, **given: Any) -> None:
        if failing == "rename" and is_empty_place(target) and ".old" not in str(source):
            fail(target)
        rename(source, target, **given)

    def syncing(directory: Any) -> None:
        if failing == "sync" and not failed and list((store.path / "staging").glob("*.old")):
            fail(directory)
        sync(directory)

    monkeypatch.setattr(links, "rename", renaming)
    monkeypatch.setattr(files, "sync_directory", syncing)
    with pytest.raises(Exception, match="Input/output error"):
        store.save(state(9), step=1, if_exists="replace")

    assert len(failed) == 1
    assert value(store) == 1
    assert os.listdir(store.path / "staging") == []


def test_where_it_cannot_go_back_the_outcome_is_unknown_and_the_next_opening_completes_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = links.rename

    def renaming(source: Any, target: Any, **given: Any) -> None:
        if is_empty_place(target):
            raise OSError(5, os.strerror(5))
        rename(source, target, **given)

    with monkeypatch.context() as patch:
        patch.setattr(links, "rename", renaming)
        with pytest.raises(UnknownOutcome, match="was being replaced when the system failed"):
            store.save(state(9), step=1, if_exists="replace")

    assert value(Store.open(store.path)) == 9


def replace_in(path: Path, seed: int) -> None:
    Store.open(path, recover=False).save(state(seed), step=1, if_exists="replace")


def test_a_kill_at_any_change_leaves_the_old_one_or_the_new_one(store: Store) -> None:
    for at in range(1, 40):
        before = value(store)
        died = run_and_kill(partial(replace_in, store.path, at + 10), at=at, before=at % 2 == 0)
        again = Store.open(store.path)
        assert value(again) in (before, at + 10)
        assert {info.step for info in again.checkpoints()} == {1, 2}
        store = again
        if not died:
            break
    else:
        pytest.fail("a replacement has less than 40 changes")
    store.gc()
    check_store(store.path)


def test_names_that_only_look_like_those_of_a_replacement_are_left_alone(store: Store) -> None:
    for name in ("main@1.old", "main@x.0123456789ab.old", "@1.0123456789ab.old", "main@1.0123456789ab.old.old"):
        (store.path / "staging" / name).mkdir()

    assert list(two_renames.begun(store._context.layout)) == []


def test_a_relink_puts_one_file_in_the_place_of_another(store: Store, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(store.path, copy)

    report = Store.open(copy).reindex(relink=True)

    assert report.relinked is not None
    assert report.relinked.relinked_count > 0
    check_store(copy)
