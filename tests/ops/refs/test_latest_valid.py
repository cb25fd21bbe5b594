"""The newest checkpoint that is whole: damaged ones are passed over, with a warning, and can be saved again."""

from __future__ import annotations

import errno
import os
import re
import shutil
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ckstore import CkstoreWarning, RetentionPolicy, Store
from ckstore.errors import BadInput, CkstoreError, DamagedBlob, NoSuchRef, NoWholeCheckpoint
from ckstore.fs import files, locks
from ckstore.model.checkpoint.mark import Mark, MarkEntry
from ckstore.objects.documents import marks
from ckstore.ops.check.validity import why_not_valid
from tests.support.checkpoint_dirs import checkpoint_dir
from tests.support.damage import MIB, blobs_by_size, flip, same_state, two_part_state
from tests.support.look import directory_of
from tests.support.plans import plan_of


@pytest.fixture
def left_damaged(tmp_path: Path) -> Store:
    """A store that is not looked at after the test: damaged blobs that are unused are left in it."""
    return Store.init(tmp_path / "left", chunk_bytes=MIB)


HARMS = [
    "rotten chunk",
    "written chunk",
    "rotten pack",
    "missing blob",
    "short blob",
    "flipped manifest",
    "no manifest",
]


def harm(store: Store, ref: Any, how: str) -> None:
    folder = directory_of(store, ref)
    if how == "flipped manifest":
        flip(folder / "manifest.json", at=(folder / "manifest.json").stat().st_size // 2)
    elif how == "no manifest":
        os.unlink(folder / "manifest.json")
    elif how == "missing blob":
        os.unlink(blobs_by_size(store, ref)[-1])
    elif how == "short blob":
        path = blobs_by_size(store, ref)[-1]
        os.chmod(path, 0o644)
        os.truncate(path, 1000)
    else:
        flip(blobs_by_size(store, ref)[1 if how == "rotten pack" else -1], keep_time="rotten" in how)


def three_steps(store: Store) -> None:
    for step in (10, 20, 30):
        store.save(two_part_state(step), step=step)


def quietly(store: Store, ref: str = "latest-valid") -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return store.load(ref)


def test_without_damage_it_is_the_latest(store: Store) -> None:
    three_steps(store)

    assert same_state(quietly(store), two_part_state(30))
    assert store.info("latest-valid").step == 30
    assert store.latest(valid=True) == store.latest()
    assert all(not why_not_valid(store._context, info) for info in store.checkpoints())


@pytest.mark.crossed
@pytest.mark.parametrize("how", HARMS)
@pytest.mark.parametrize("reopened", ["no", "yes", "without its catalog"])
def test_a_damaged_one_is_passed_over_with_a_warning_and_saved_again(store: Store, how: str, reopened: str) -> None:
    three_steps(store)
    harm(store, 30, how)
    for left in store.path.glob("catalog.db*" if "catalog" in reopened else "nothing"):
        left.unlink()
    with pytest.warns(CkstoreWarning, match="Rebuilt the catalog") if "catalog" in reopened else nullcontext():
        user = store if reopened == "no" else Store(store.path)

    with pytest.warns(CkstoreWarning, match=r"latest-valid is main@20.*main@30: ") as caught:
        state = user.load("latest-valid")

    assert caught[0].filename == __file__
    assert same_state(state, two_part_state(20))
    with pytest.warns(CkstoreWarning, match="main@30"):
        assert user.latest(valid=True) == user.info(20)

    info = user.save(two_part_state(30), step=30)

    assert info.parent == user.info(20).id
    assert same_state(quietly(user), two_part_state(30))
    assert not why_not_valid(user._context, user.info(30))
    assert user.verify().ok


def test_a_marked_checkpoint_is_replaced_by_another_state_without_a_word(left_damaged: Store) -> None:
    store = left_damaged
    three_steps(store)
    flip(blobs_by_size(store, 30)[-1], keep_time=True)
    with pytest.warns(CkstoreWarning):
        store.load("latest-valid")

    store.save(two_part_state(31), step=30)

    assert same_state(quietly(store), two_part_state(31))
    assert not (directory_of(store, 30) / "damaged.json").exists()


def refuse_marks(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Let every opening of a mark for reading fail, be there one or not."""
    real = os.open

    def failing(path: Any, flags: int, *args: Any, **options: Any) -> int:
        if path == "damaged.json":
            raise OSError(code, os.strerror(code), path)
        return real(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", failing)


NOT_OF_THE_MARK = [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE]


@pytest.mark.parametrize("code", NOT_OF_THE_MARK)
def test_a_mark_that_could_not_be_looked_for_is_no_mark(
    store: Store, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """A process out of descriptors would go on from an older checkpoint."""
    three_steps(store)
    refuse_marks(monkeypatch, code)

    for ask in (quietly, lambda store: store.latest(valid=True)):
        with pytest.raises(CkstoreError, match=os.strerror(code)) as caught:
            ask(store)
        assert not isinstance(caught.value, DamagedBlob)
    with pytest.raises(OSError, match=os.strerror(code)):
        why_not_valid(store._context, store.info(30))
    monkeypatch.undo()

    assert same_state(quietly(store), two_part_state(30))


@pytest.mark.parametrize("code", NOT_OF_THE_MARK)
def test_a_mark_that_could_not_be_read_is_not_replaced(
    left_damaged: Store, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    left_damaged.save(two_part_state(1), step=1)
    place = checkpoint_dir(left_damaged.path, "main", 1)
    with locks.lock_shared(place) as lock:
        marks.write_mark(lock, Mark("2026-01-01T00:00:00Z", (MarkEntry("", ("first",), "damaged"),)))
        refuse_marks(monkeypatch, code)
        with pytest.raises(OSError, match=os.strerror(code)):
            marks.write_mark(lock, Mark("2026-01-02T00:00:00Z", (MarkEntry("", ("second",), "damaged"),)))
        monkeypatch.undo()

        mark = marks.read_mark(lock.fd)

    assert mark is not None
    assert [entry.names for entry in mark.entries] == [("first",)]


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES])
def test_a_mark_that_is_there_and_cannot_be_read_is_one(
    left_damaged: Store, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    three_steps(left_damaged)
    (directory_of(left_damaged, 30) / "damaged.json").write_text("{}")
    real = files.read_file

    def failing(path: Any, **options: Any) -> bytes:
        if path == "damaged.json":
            raise OSError(code, os.strerror(code), path)
        return real(path, **options)

    monkeypatch.setattr(files, "read_file", failing)

    assert "damaged.json marks it as damaged" in why_not_valid(left_damaged._context, left_damaged.info(30))


def test_rotten_bytes_that_were_found_are_not_used_by_the_next_save(store: Store) -> None:
    store.save(two_part_state(1), step=1)
    store.save(two_part_state(1) | {"more": np.ones(10)}, step=2)
    flip(blobs_by_size(store, 2)[-1], keep_time=True)
    with pytest.raises(DamagedBlob):
        store.load(2)

    store.save(two_part_state(1) | {"more": np.ones(11)}, step=3)

    assert same_state(store.load(3), two_part_state(1))
    assert same_state(store.load(1), two_part_state(1)), "healed everywhere"
    assert not (directory_of(store, 2) / "damaged.json").exists(), "the mark goes with the damage"
    assert all(not why_not_valid(store._context, info) for info in store.checkpoints())


def test_the_mark_outlives_the_catalog_and_the_process(left_damaged: Store) -> None:
    store = left_damaged
    three_steps(store)
    flip(blobs_by_size(store, 30)[-1], keep_time=True)
    with pytest.raises(DamagedBlob):
        store.load(30)
    for left in store.path.glob("catalog.db*"):
        left.unlink()

    with pytest.warns(CkstoreWarning, match="Rebuilt the catalog"):
        again = Store(store.path)

    assert [not why_not_valid(again._context, info) for info in again.checkpoints()] == [True, True, False]
    assert "big" in why_not_valid(again._context, again.info(30))
    with pytest.warns(CkstoreWarning, match=r"main@30: .*big"):
        assert again.info("latest-valid").step == 20


def read_by(store: Store, how: str) -> None:
    with store.open_checkpoint(1) as checkpoint:
        if how == "load":
            store.load(1)
        elif how == "mmap":
            store.load(1, mmap=True)
        elif how == "item":
            checkpoint["big"]
        elif how == "slice":
            checkpoint.slice("big")[:MIB]
            checkpoint.slice("big")[MIB:]
        elif how == "into":
            store.load_into(two_part_state(2), 1)
        else:
            checkpoint.load(select="big")


@pytest.mark.parametrize("how", ["load", "mmap", "item", "slice", "into", "selected"])
def test_every_read_that_finds_damage_marks(store: Store, how: str) -> None:
    info = store.save(two_part_state(1), step=1)
    flip(blobs_by_size(store, 1)[-1], keep_time=True)
    assert not why_not_valid(store._context, info)

    with pytest.raises(DamagedBlob, match="big"):
        read_by(store, how)

    assert why_not_valid(store._context, info)
    store.save(two_part_state(1), step=1)
    assert not why_not_valid(store._context, store.info(1))


def test_a_store_that_is_opened_for_reading_marks_nothing(store: Store) -> None:
    three_steps(store)
    flip(blobs_by_size(store, 30)[-1], keep_time=True)
    reader = Store.open(store.path, readonly=True)

    with pytest.warns(CkstoreWarning, match="main@30"):
        assert same_state(reader.load("latest-valid"), two_part_state(20))

    assert not (directory_of(store, 30) / "damaged.json").exists()
    assert not why_not_valid(store._context, store.info(30))
    flip(blobs_by_size(store, 30)[-1], keep_time=True)


def test_when_none_is_whole_the_error_says_what_is_wrong_with_each(store: Store) -> None:
    three_steps(store)
    harm(store, 10, "rotten pack")
    harm(store, 20, "missing blob")
    harm(store, 30, "flipped manifest")

    said = r"(?s)main@20: .*missing.*main@10: .*small.layer.*main@30: .*manifest"
    with pytest.raises(NoWholeCheckpoint, match=said):
        store.load("latest-valid")

    with pytest.raises(NoWholeCheckpoint, match=r"no checkpoint is complete. 3 exist"):
        store.latest(valid=True)
    for step in (10, 20, 30):
        store.save(two_part_state(step), step=step)


def test_an_empty_store_and_a_run_that_is_not_there_have_none(store: Store) -> None:
    with pytest.raises(NoSuchRef, match="no checkpoints"):
        store.load("latest-valid")
    with pytest.raises(NoSuchRef, match="nowhere"):
        store.load("nowhere@latest-valid")
    with pytest.raises(BadInput):
        store.load("../x@latest-valid")
    assert store.latest(valid=True) is None
    assert store.latest("nowhere", valid=True) is None


def test_it_looks_at_one_run(store: Store) -> None:
    store.save(two_part_state(1), step=1, run="a")
    store.save(two_part_state(2), step=2, run="b")
    store.save(two_part_state(3), step=3, run="a")
    flip(blobs_by_size(store, "a@3")[-1], keep_time=True)

    with pytest.warns(CkstoreWarning, match="latest-valid is a@1"):
        assert store.load("a@latest-valid")["step"] == 1
    assert quietly(store, "b@latest-valid")["step"] == 2
    store.save(two_part_state(3), step=3, run="a")


def test_a_damaged_one_that_is_older_is_not_worth_a_warning(store: Store) -> None:
    three_steps(store)
    harm(store, 10, "missing blob")

    assert same_state(quietly(store), two_part_state(30))
    store.save(two_part_state(10), step=10)


def test_one_whose_manifest_is_gone_is_said_to_be_there_and_perhaps_older(store: Store) -> None:
    for step in (1, 2):
        store.save({"w": np.full(9000, step)}, step=step)
    directory = directory_of(store, 1)
    (directory / "manifest.json").unlink()

    with pytest.warns(CkstoreWarning, match=r"main@1: .* is missing \(so it may be older\)"):
        assert store.load("latest-valid")["w"][0] == 2
    with pytest.raises(
        NoSuchRef, match=rf"main@1.*but {re.escape(f'checkpoints/main/{directory.name}')} exists and is incomplete"
    ):
        store.load("main@1")
    for left in store.path.glob("catalog.db*"):
        left.unlink()
    with pytest.warns(CkstoreWarning, match="Rebuilt the catalog"):
        again = Store.open(store.path)
    report = again.verify(repair=True)
    assert "its id is not known locally" in str(report)


@pytest.mark.parametrize("strict", [True, False])
def test_a_target_holds_all_of_the_one_before(store: Store, strict: bool) -> None:
    three_steps(store)
    flip(blobs_by_size(store, 30)[-1], keep_time=True)
    target = two_part_state(0)

    with pytest.warns(CkstoreWarning, match="main@30"):
        report = store.load_into(target, "latest-valid", strict=strict)

    assert report.info.step == 20
    assert same_state(target, two_part_state(20))
    store.save(two_part_state(30), step=30)


def test_without_strict_nothing_of_a_damaged_one_stays_in_the_target(store: Store) -> None:
    second = {"big": np.ones(3 * MIB, np.uint8), "zzz": np.full(2 * MIB - 5, 3, np.uint8)}
    store.save({"big": np.zeros(3 * MIB, np.uint8)}, step=1)
    store.save(second, step=2)
    flip(blobs_by_size(store, 2)[0], keep_time=True)
    target = {"big": np.full(3 * MIB, 7, np.uint8), "zzz": np.full(2 * MIB - 5, 7, np.uint8)}

    with pytest.warns(CkstoreWarning, match=r"main@2: .*blob"):
        report = store.load_into(target, "latest-valid", strict=False)

    assert report.missing == ("zzz",)
    assert not target["big"].any()
    assert (target["zzz"] == 7).all()
    store.save(second, step=2)


def test_a_target_that_fits_only_the_damaged_one_is_said_to_hold_a_part_of_it(store: Store) -> None:
    store.save({"v": np.zeros(5)}, step=1)
    store.save({"w": np.zeros(2 * MIB, np.uint8)}, step=2)
    flip(blobs_by_size(store, 2)[-1], keep_time=True)

    with pytest.raises(BadInput, match="a part of main@2"):
        store.load_into({"w": np.zeros(2 * MIB, np.uint8)}, "latest-valid")
    store.save({"w": np.zeros(2 * MIB, np.uint8)}, step=2)


def test_a_copied_store_is_valid_once_it_was_verified(store: Store, tmp_path: Path) -> None:
    three_steps(store)
    shutil.copytree(store.path, tmp_path / "copy", symlinks=True, copy_function=shutil.copyfile)
    copy = Store(tmp_path / "copy")
    assert all(why_not_valid(copy._context, info) for info in copy.checkpoints())

    assert same_state(quietly(copy), two_part_state(30))
    assert copy.info("latest-valid").step == 30
    assert not why_not_valid(copy._context, copy.info(30)), "what was read gets its time back"
    assert why_not_valid(copy._context, copy.info(10))
    assert copy.verify().ok
    assert all(not why_not_valid(copy._context, info) for info in copy.checkpoints())


def test_a_checkpoint_that_was_replaced_or_is_gone_is_not_valid(store: Store) -> None:
    info = store.save(two_part_state(1), step=1)
    new = store.save(two_part_state(2), step=1, if_exists="replace")
    assert "no longer" in why_not_valid(store._context, info)
    assert why_not_valid(store._context, new) == ""

    store.delete(1)

    assert "no longer" in why_not_valid(store._context, new)


def test_training_resumes_from_the_one_before_and_retention_keeps_it(left_damaged: Store) -> None:
    store = left_damaged
    store.config.retention = RetentionPolicy(keep_last=2)

    def train(model: torch.nn.Module, adam: torch.optim.Optimizer, steps: range) -> None:
        for step in steps:
            torch.manual_seed(step)
            adam.zero_grad()
            model(torch.randn(8, 16)).square().mean().backward()
            adam.step()
            if step % 10 == 0:
                store.save({"model": model, "optimizer": adam, "step": step}, step=step)

    def fresh() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = torch.nn.Linear(16, 4)
        return model, torch.optim.Adam(model.parameters())

    train(*fresh(), range(1, 31))
    whole = store.load(30)
    assert [info.step for info in store.checkpoints()] == [20, 30]
    flip(blobs_by_size(store, 30)[-1], keep_time=True)

    model, adam = fresh()
    with pytest.warns(CkstoreWarning, match=r"latest-valid is main@20.*main@30"):
        report = store.load_into({"model": model, "optimizer": adam, "step": 0}, "latest-valid")
    assert {entry.step for entry in plan_of(store, RetentionPolicy(keep_last=1)).kept} >= {20}
    train(model, adam, range(report.info.step + 1, 31))

    assert store.info("latest-valid").step == 30
    again = store.load(30)
    assert torch.equal(again["model"]["weight"], whole["model"]["weight"])
    assert again["step"] == 30
