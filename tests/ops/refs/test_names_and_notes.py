"""Tags, pins and annotations: durable words about checkpoints, said while they cannot go."""

from __future__ import annotations

import errno
import functools
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ckstore
from ckstore import CkstoreWarning, Store
from ckstore.errors import BadInput, CkstoreError, InUse, NoSuchRef, ReadOnlyStore
from ckstore.fs import links, locks
from ckstore.fs.locks import try_exclusive
from ckstore.model.manifest.info import Note
from tests.support.crashing import run_and_kill
from tests.support.look import directory_of
from tests.support.meanwhile import elsewhere
from tests.support.requirements import CRASH_FULL, require_program, require_root
from tests.support.stores import check_store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def state(value: int) -> dict[str, Any]:
    return {"w": np.full(100, value, dtype=np.int32)}


def fill(store: Store, count: int, run: str = "main") -> None:
    for step in range(count):
        store.save(state(step), step, run, metrics={"loss": float(step)})


# ----------------------------------------------------------------------------------------------------- tags


def test_a_tag_names_moves_and_goes(store: Store) -> None:
    fill(store, 3)

    assert store.tag("good", 0).tags == ("good",)
    assert store.info("good").step == 0
    assert store.tag("good", "main@2").step == 2
    assert [(tag.name, tag.run, tag.step, tag.dangling) for tag in store.tags()] == [("good", "main", 2, False)]
    assert store.info(0).tags == ()

    store.untag("good")

    assert store.tags() == []
    with pytest.raises(NoSuchRef, match="no tag 'good'"):
        store.info("good")


def test_a_tag_outlives_the_catalog(store: Store) -> None:
    fill(store, 2)
    store.tag("good", 0)
    for path in store.path.glob("catalog.db*"):
        path.unlink()

    with pytest.warns(CkstoreWarning, match="Rebuilt the catalog"):
        assert Store.open(store.path).info("good").step == 0


def test_a_tag_that_dangles_says_so_and_can_be_taken_away(store: Store) -> None:
    fill(store, 2)
    store.tag("good", 0)
    shutil.rmtree(directory_of(store, 0))
    again = Store.open(store.path)

    (tag,) = again.tags()

    assert tag.dangling
    assert tag.id is None
    again.untag("good")
    assert again.tags() == []
    again.gc()


@pytest.mark.parametrize("name", ["latest", "12", "abcdef", ".hidden", "a/b", "", "../x"])
def test_what_cannot_be_a_tag_is_refused(store: Store, name: str) -> None:
    fill(store, 1)

    with pytest.raises(BadInput):
        store.tag(name, 0)
    with pytest.raises(NoSuchRef):
        store.untag(name)


# ----------------------------------------------------------------------------------------------------- pins


@pytest.mark.usefixtures("steady_clock")
def test_a_pin_says_who_why_and_until_when(store: Store) -> None:
    fill(store, 1)
    before = datetime.now(UTC)

    pin = store.pin("main@0", "figure 3", expires="36h")

    assert store.pins() == [pin]
    assert (pin.run, pin.step, pin.id, pin.reason) == ("main", 0, store.info(0).id, "figure 3")
    assert pin.expires is not None
    assert (
        before + timedelta(hours=36) <= datetime.fromisoformat(pin.expires) <= before + timedelta(hours=36, minutes=5)
    )
    assert not pin.expired(datetime.now(UTC))
    stored = json.loads((store.path / "pins" / f"{pin.name}.json").read_text())
    assert stored.pop("digest").startswith("xxh3-")
    assert {**stored, "name": pin.name, "dangling": False, "format": 0, "version": 0} == {
        **{name: getattr(pin, name) for name in type(pin).__dataclass_fields__},
        "format": 0,
        "version": 0,
    }


def test_a_pin_goes_by_its_name_and_all_pins_by_the_checkpoint(store: Store) -> None:
    fill(store, 2)
    first, second, other = store.pin(0, "a"), store.pin(0, "b"), store.pin(1, "c")

    assert store.unpin(first.name) == [first.name]
    assert store.unpin(0) == [second.name]
    assert store.unpin(other) == [other.name]
    assert store.pins() == []
    with pytest.raises(NoSuchRef, match="main@0 is not pinned"):
        store.unpin(0)
    with pytest.raises(NoSuchRef, match=f"no pin has the name '{first.name}'"):
        store.unpin(first.name)
    with pytest.raises(NoSuchRef):
        store.unpin("../../store")


def test_a_pin_protects_its_checkpoint_when_another_one_supersedes_it(store: Store) -> None:
    fill(store, 1)
    pinned = store.info(0)
    store.pin(0, "a")
    store.save(state(9), 0, if_exists="replace")

    assert [(pin.id, pin.dangling) for pin in store.pins()] == [(pinned.id, False)]
    with pytest.raises(InUse, match="is pinned"):
        store.delete(pinned)
    store.delete(0)  # which no pin names
    assert store.info(0) == pinned


@pytest.mark.parametrize(
    "expires,said",
    [
        ("soon", "wanted a number with s, m, h, d or w"),
        (0, "above 0"),
        (-5, "above 0"),
        (True, "wanted seconds"),
        (datetime(1990, 1, 1, tzinfo=UTC), "after now"),  # also on a clock that jumps ten years back (make odd)
        (datetime(2120, 1, 1), "time zone"),  # noqa: DTZ001
    ],
)
def test_an_expiry_that_cannot_be_is_refused(store: Store, expires: Any, said: str) -> None:
    fill(store, 1)

    with pytest.raises(BadInput, match=said):
        store.pin(0, "a", expires=expires)
    assert store.pins() == []


def test_other_files_in_pins_are_left_aside(store: Store) -> None:
    fill(store, 1)
    for name in (".pin-1.json.new", "README", ".x.json", "a b.json"):
        (store.path / "pins" / name).write_text("{")

    assert store.pins() == []
    store.delete(0)


def test_what_killed_pinners_were_writing_goes_with_the_next_pin(store: Store) -> None:
    fill(store, 1)
    left: set[str] = set()
    for at in range(1, 10):
        run_and_kill(lambda: store.pin(0, "killed"), at=at, before=True)
        left |= {name for name in os.listdir(store.path / "pins") if name.startswith(".")}
        assert len([name for name in os.listdir(store.path / "pins") if name.startswith(".")]) <= 1

    store.pin(0, "again")

    assert len(left) == 1
    assert not left & set(os.listdir(store.path / "pins"))


# ---------------------------------------------------------------------------------------------- annotations


def test_metrics_and_notes_that_are_added_show_wherever_a_checkpoint_is_described(store: Store) -> None:
    fill(store, 2)

    told = store.annotate(0, metrics={"bleu": np.float32(27.5), "loss": 0.25}, note="best so far")
    told = store.annotate("main@0", metrics={"bleu": 28})

    assert told.metrics == {"loss": 0.25, "bleu": 28}
    assert [note.text for note in told.notes] == ["best so far"]
    assert isinstance(told.notes[0], Note)
    assert store.info(0) == store.checkpoints()[0] == Store.open(store.path).info(told.id[:20]) == told
    assert store.info(told).metrics == told.metrics
    with store.open_checkpoint(0) as checkpoint:
        assert checkpoint.info.metrics == told.metrics
    assert store.info(1).metrics == {"loss": 1.0}
    assert store.info(1).notes == ()


def test_annotations_outlive_the_catalog_and_go_with_a_copy(store: Store, tmp_path: Path) -> None:
    fill(store, 1)
    store.annotate(0, metrics={"bleu": 27.5})
    directory = directory_of(store, 0)
    for path in store.path.glob("catalog.db*"):
        path.unlink()

    shutil.copytree(directory, tmp_path / "copy")

    with pytest.warns(CkstoreWarning, match="is missing. Reading the directories"):
        assert Store.open(store.path, readonly=True).info(0).metrics["bleu"] == 27.5
    with ckstore.open_checkpoint(tmp_path / "copy") as checkpoint:
        assert checkpoint.info.metrics["bleu"] == 27.5


def test_a_replaced_checkpoint_takes_its_annotations_with_it(store: Store) -> None:
    fill(store, 1)
    store.annotate(0, metrics={"bleu": 27.5})

    store.save(state(5), 0, if_exists="replace")

    assert store.info(0).metrics == {}


def test_the_same_content_again_returns_what_was_added(store: Store) -> None:
    fill(store, 1)
    store.annotate(0, metrics={"bleu": 27.5})

    assert store.save(state(0), 0).metrics == {"loss": 0.0, "bleu": 27.5}


@pytest.mark.parametrize(
    "words",
    [
        {},
        {"metrics": {}},
        {"note": ""},
        {"note": 3},
        {"metrics": {"a": "b"}},
        {"metrics": {"a": True}},
        {"metrics": [1]},
    ],
)
def test_what_cannot_be_said_is_refused(store: Store, words: dict[str, Any]) -> None:
    fill(store, 1)

    with pytest.raises(BadInput):
        store.annotate(0, **words)
    assert not (directory_of(store, 0) / "annotations.json").exists()


def test_a_number_that_json_lacks_comes_back(store: Store) -> None:
    fill(store, 1)

    store.annotate(0, metrics={"a": float("inf"), "b": float("-inf"), "c": float("nan")})

    found = store.info(0).metrics
    assert (found["a"], found["b"]) == (float("inf"), float("-inf"))
    assert found["c"] != found["c"]


def test_damaged_annotations_hide_nothing_else_and_are_not_overwritten(store: Store) -> None:
    fill(store, 2)
    path = directory_of(store, 0) / "annotations.json"
    path.write_text("{")

    assert store.info(0).metrics == {"loss": 0.0}
    assert [info.step for info in store.checkpoints()] == [0, 1]
    assert any(str(path) in warning for warning in store.warnings)
    assert np.array_equal(store.load(0)["w"], state(0)["w"])
    with pytest.raises(BadInput, match="repair or remove that file"):
        store.annotate(0, metrics={"bleu": 1.0})
    assert path.read_text() == "{"

    path.unlink()
    store.info(0)
    assert not any(str(path) in warning for warning in store.warnings)


def _annotate_many(root: Path, mine: int, count: int) -> None:
    store = Store.open(root)
    for number in range(count):
        store.annotate(0, metrics={f"m{mine}-{number}": number}, note=f"{mine}-{number}")


@pytest.mark.slow
def test_of_many_annotations_at_once_none_is_lost(store: Store) -> None:
    fill(store, 1)
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_annotate_many, args=(store.path, mine, 10)) for mine in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)

    wanted = {f"m{mine}-{number}" for mine in range(3) for number in range(10)}
    info = store.info(0)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert set(info.metrics) == wanted | {"loss"}
    assert sorted(note.text for note in info.notes) == sorted(name[1:] for name in wanted)


# ------------------------------------------------------------------------------------------------ all of them

SAY: dict[str, Callable[[Store, Any], object]] = {
    "tag": lambda store, ref: store.tag("good", ref),
    "pin": lambda store, ref: store.pin(ref, "why"),
    "annotate": lambda store, ref: store.annotate(ref, metrics={"bleu": 1.0}),
}


def said(store: Store) -> bool:
    there = {info.step: info for info in store.checkpoints()}
    return bool(store.tags() or store.pins() or (0 in there and "bleu" in there[0].metrics))


@pytest.mark.parametrize("what", SAY)
def test_nothing_is_said_about_what_was_deleted_or_replaced_meanwhile(store: Store, what: str) -> None:
    fill(store, 2)
    gone, replaced = store.info(0), store.info(1)
    store.delete(0)
    store.save(state(7), 1, if_exists="replace")

    for info in (gone, replaced):
        with pytest.raises(NoSuchRef):
            SAY[what](store, info)
    assert not said(store)


@pytest.mark.parametrize("what", SAY)
def test_nothing_is_said_about_what_is_replaced_between_finding_and_locking_it(
    store: Store, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, 1)
    original = locks.lock_shared
    once = iter([True])

    def replaced_first(path: Path, **options: Any) -> locks.DirectoryLock:
        if path.name == "main" and next(once, False):
            elsewhere(lambda: store.save(state(7), 0, if_exists="replace"))
        return original(path, **options)

    info = store.info(0)
    monkeypatch.setattr(locks, "lock_shared", replaced_first)
    with pytest.raises(NoSuchRef, match="no longer exists"):
        SAY[what](store, info)
    monkeypatch.undo()

    assert not said(store)


@pytest.mark.parametrize("what", SAY)
def test_a_checkpoint_cannot_be_taken_apart_while_something_is_said_about_it(
    store: Store, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, 1)
    path = directory_of(store, 0)
    asked = []
    original = links.rename

    def watched(*paths: Any, **options: Any) -> None:
        asked.append(try_exclusive(path))
        original(*paths, **options)

    monkeypatch.setattr(links, "rename", watched)
    SAY[what](store, 0)

    assert asked == [None]
    assert said(store)


@pytest.mark.parametrize("what", SAY)
def test_a_failing_disk_leaves_what_was_said_before_and_no_rest(
    store: Store, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, 1)
    store.annotate(0, metrics={"before": 1.0})
    before = {str(path) for path in store.path.rglob("*") if "catalog" not in path.name}

    def failing(*paths: Any, **options: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(paths[0]))

    monkeypatch.setattr(links, "rename", failing)
    with pytest.raises(CkstoreError, match="Input/output error"):
        SAY[what](store, 0)
    monkeypatch.undo()

    assert {str(path) for path in store.path.rglob("*") if "catalog" not in path.name} == before
    assert not said(store)
    assert store.info(0).metrics["before"] == 1.0


@pytest.mark.parametrize("what", SAY)
def test_a_store_opened_for_reading_takes_no_words(store: Store, what: str) -> None:
    fill(store, 1)

    with pytest.raises(ReadOnlyStore, match=r"was opened for reading only \(open it with readonly=False"):
        SAY[what](Store.open(store.path, readonly=True), 0)
    assert not said(store)


@pytest.mark.root
def test_a_store_on_a_filesystem_that_is_mounted_read_only_says_so(store: Store) -> None:
    require_root()
    unshare = require_program("unshare")
    fill(store, 1)
    mount = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
    code = "import sys; from ckstore import Store; Store(sys.argv[1]).tag('x', 0)"
    words = [sys.executable, "-W", "ignore", "-c", code, str(store.path)]

    done = subprocess.run(
        [unshare, "-m", "sh", "-c", mount, store.path, *words], capture_output=True, text=True, timeout=60, check=False
    )

    told = "ReadOnlyStore: .* was opened for reading only: its filesystem is mounted read-only .mount it for writing"
    assert re.search(told, done.stderr), done.stderr
    assert not store.tags()


@pytest.mark.crash
@pytest.mark.parametrize("what", SAY)
def test_a_kill_at_any_change_leaves_it_said_or_not_and_the_next_to_speak_is_heard(tmp_path: Path, what: str) -> None:
    for at in range(1, 30, 1 if CRASH_FULL else 3):
        store = Store.init(tmp_path / f"store-{at}")
        fill(store, 1)
        died = run_and_kill(functools.partial(SAY[what], store, 0), at=at, before=True)

        again = Store.open(store.path)
        if died:
            SAY[what](again, 0)
        assert said(again)
        check_store(store.path)
        if not died:
            assert at > 4
            return
    pytest.fail("more than 30 changes")
