"""Markers of Lightning: each loads what it was written for, and what one of them names stays, in any folder."""

from __future__ import annotations

import errno
import importlib.util
import json
import logging
import os
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ckstore import BadInput, NoSuchRef, RetentionPolicy, Store
from tests.integrations.marks import TRAINS
from tests.integrations.tiny_lightning import fit
from tests.support.examples import examples
from tests.support.requirements import require
from tests.support.states import assert_same
from tests.support.stores import check_store

pytestmark = TRAINS
ROUNDS = examples(25)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    require(importlib.util.find_spec("lightning") is not None, "needs lightning")
    torch.set_num_threads(1)
    return Store.init(tmp_path / "store")


def checkpoint_io(store: Store, **options: Any) -> Any:
    from ckstore.integrations.lightning import CkstoreCheckpointIO

    return CkstoreCheckpointIO(store, **options)


def state(step: int, way: str) -> dict[str, Any]:
    return {"global_step": step, "way": way}


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("delete", [True, False])
@pytest.mark.parametrize("best_first", [True, False])
def test_the_best_and_the_newest_of_two_callbacks_are_both_there_at_the_end(
    tmp_path: Path, store: Store, best_first: bool, delete: bool, background: bool
) -> None:
    best = {"dirpath": tmp_path / "best", "monitor": "step", "mode": "min", "save_top_k": 1}
    newest = {"dirpath": tmp_path / "newest", "save_top_k": 1}
    io = checkpoint_io(store, delete=delete, background=background)

    callbacks = fit(store, tmp_path, io=io, callbacks=[best, newest] if best_first else [newest, best])[1]

    markers = [Path(callback.best_model_path) for callback in callbacks]
    assert sorted(marker.parent.name for marker in markers) == ["best", "newest"]
    for marker in markers:
        loaded = checkpoint_io(store).load_checkpoint(marker)
        assert loaded["global_step"] == (2 if marker.parent.name == "best" else 8)
    for marker in markers:
        io.remove_checkpoint(marker)
    store.gc(now=True)
    assert store.pins() == []
    assert [info.step for info in store.checkpoints(superseded=True)] == ([] if delete else [2, 4, 6, 8])


BEST = {"monitor": "step", "mode": "min", "save_top_k": 1}  # the first is the best
CALLBACKS: dict[str, list[dict[str, Any]]] = {
    "best and newest": [{**BEST, "filename": "best-{step}"}, {"save_top_k": 1, "filename": "newest-{step}"}],
    "with the names of Lightning": [BEST, {"save_top_k": 1}],
    "with names of no step": [{**BEST, "filename": "best"}, {"save_top_k": 1, "filename": "newest"}],
    "best and last": [{**BEST, "save_last": True}],
    "linked last": [{**BEST, "save_top_k": -1, "save_last": "link"}],
    "best, last and all": [{**BEST, "save_last": True}, {"filename": "all-{step}"}],
    "two and weights": [
        {**BEST, "save_top_k": 2},
        {"save_top_k": 1, "save_weights_only": True, "filename": "w-{step}"},
    ],
}


def files_below(folder: Path) -> list[Path]:
    return sorted(path.relative_to(folder) for path in folder.rglob("*.ckpt"))


@pytest.mark.crossed
@pytest.mark.parametrize("callbacks", CALLBACKS)
@pytest.mark.parametrize("own_folders", [True, False], ids=["own folders", "one folder"])
@pytest.mark.parametrize("is_reversed", [False, True], ids=["in order", "reversed"])
@pytest.mark.parametrize("delete", [True, False], ids=["delete", "keep"])
@pytest.mark.parametrize("background", [False, True], ids=["waiting", "background"])
def test_whatever_callbacks_there_are_the_files_at_the_end_are_those_of_lightning_alone(  # noqa: PLR0917
    tmp_path: Path, store: Store, callbacks: str, own_folders: bool, is_reversed: bool, delete: bool, background: bool
) -> None:
    folders = {name: tmp_path / name for name in ("alone", "stored")}
    io = checkpoint_io(store, delete=delete, background=background)
    for name, folder in folders.items():
        places = [folder / str(i if own_folders else 0) for i in range(len(CALLBACKS[callbacks]))]
        wanted = [{**one, "dirpath": place} for one, place in zip(CALLBACKS[callbacks], places, strict=True)]
        plugin = {"io": io} if name == "stored" else {}
        fit(None, folder, callbacks=wanted[::-1] if is_reversed else wanted, **plugin)

    assert files_below(folders["stored"]) == files_below(folders["alone"])
    reader = checkpoint_io(store)
    for path in files_below(folders["alone"]):
        own, loaded = (
            torch.load(folders["alone"] / path, weights_only=False),
            reader.load_checkpoint(folders["stored"] / path),
        )
        assert loaded["global_step"] == own["global_step"], path
        assert_same(loaded["state_dict"], own["state_dict"])
        assert_same(loaded.get("optimizer_states"), own.get("optimizer_states"))
    newest = store.latest()
    assert newest is not None
    assert newest.name == "main@8"
    assert {info.run for info in store.checkpoints(superseded=True)} == {"main"}

    for path in files_below(folders["stored"]):
        io.remove_checkpoint(folders["stored"] / path)
    assert store.pins() == []
    store.gc(now=True)
    assert [info.step for info in store.checkpoints(superseded=True)] == ([] if delete else [2, 4, 6, 8])
    check_store(store.path)


def test_two_callbacks_at_one_step_keep_two_checkpoints_without_a_word(
    tmp_path: Path, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    io = checkpoint_io(store)
    one, two = tmp_path / "a" / "best-step=5.ckpt", tmp_path / "b" / "newest-step=5.ckpt"

    with caplog.at_level(logging.WARNING, logger="ckstore"):
        io.save_checkpoint(state(5, "best"), one)
        io.save_checkpoint(state(5, "newest"), two)

    assert "stays" not in caplog.text
    assert [io.load_checkpoint(path)["way"] for path in (one, two)] == ["best", "newest"]
    assert store.load(5)["way"] == "newest"
    store.gc(now=True)
    io.remove_checkpoint(two)
    assert io.load_checkpoint(one)["way"] == "best"
    assert store.load(5)["way"] == "best"
    io.remove_checkpoint(one)
    assert (store.checkpoints(superseded=True), store.pins()) == ([], [])


def test_two_trainings_from_the_start_keep_their_own_checkpoints(tmp_path: Path, store: Store) -> None:
    from ckstore.integrations.lightning import CkstoreCheckpointIO

    weights: list[torch.Tensor] = []
    markers: list[Path] = []
    for folder in ("version_0", "version_1"):
        io = CkstoreCheckpointIO(store, "auto")
        model, _ = fit(store, tmp_path / folder, seed=len(weights) + 1, io=io)
        weights.append(model.layer.weight)
        markers.append(next((tmp_path / folder / "ckpt").glob("*step=8.ckpt")))

    for marker, weight in zip(markers, weights, strict=True):
        assert torch.equal(checkpoint_io(store).load_checkpoint(marker)["state_dict"]["layer.weight"], weight)


def test_a_marker_whose_checkpoint_is_gone_is_an_error_and_never_another_of_its_step(
    tmp_path: Path, store: Store
) -> None:
    io, path = checkpoint_io(store), tmp_path / "best-step=5.ckpt"
    io.save_checkpoint(state(5, "best"), path)
    (tmp_path / "kept").mkdir()
    copy = Path(shutil.copy(path, tmp_path / "kept"))
    io.remove_checkpoint(path)
    io.save_checkpoint(state(5, "another"), tmp_path / "newest-step=5.ckpt")

    with pytest.raises(NoSuchRef, match=r"kept/best-step=5\.ckpt names main@5 with the id xxh3-\w+, which") as refused:
        io.load_checkpoint(copy)
    assert refused.value.hint == "ckpt_path='ckstore:main@5' loads the current checkpoint of this step"


def test_a_copy_that_is_removed_leaves_what_its_original_names_and_a_folder_can_be_moved(
    tmp_path: Path, store: Store
) -> None:
    io, path = checkpoint_io(store), tmp_path / "a" / "best-step=5.ckpt"
    io.save_checkpoint(state(5, "best"), path)
    (tmp_path / "b").mkdir()
    copy = Path(shutil.copy(path, tmp_path / "b"))

    io.remove_checkpoint(copy)
    assert io.load_checkpoint(path)["way"] == "best"
    path.parent.rename(tmp_path / "moved")
    moved = tmp_path / "moved" / path.name
    assert io.load_checkpoint(moved)["way"] == "best"
    io.remove_checkpoint(moved)
    assert (store.checkpoints(superseded=True), store.pins()) == ([], [])


def test_a_pin_of_a_user_that_a_marker_names_is_not_removed(tmp_path: Path, store: Store) -> None:
    io, path = checkpoint_io(store), tmp_path / "step=5.ckpt"
    io.save_checkpoint(state(5, "one"), path)
    pin = store.pin(5, "in the paper")
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "pin": pin.name}))

    io.remove_checkpoint(path)

    assert [left.reason for left in store.pins()] == ["in the paper"]
    assert store.load(5)["way"] == "one"


def test_without_delete_the_policy_decides_and_a_marker_pins_what_another_callback_replaces(
    tmp_path: Path, store: Store
) -> None:
    store.config.retention = RetentionPolicy(keep_last=2)
    io = checkpoint_io(store, delete=False)
    for step in range(1, 6):
        io.save_checkpoint(state(step, "best"), tmp_path / f"step={step}.ckpt")
    assert [info.step for info in store.checkpoints()] == [4, 5]
    io.save_checkpoint(state(5, "newest"), tmp_path / "newest-step=5.ckpt")
    assert [io.load_checkpoint(tmp_path / name)["way"] for name in ("step=5.ckpt", "newest-step=5.ckpt")] == [
        "best",
        "newest",
    ]
    (pin,) = store.pins()
    assert pin.reason == f"{tmp_path / 'step=5.ckpt'} names it"
    io.remove_checkpoint(tmp_path / "step=5.ckpt")
    assert store.pins() == []


def test_without_delete_the_policy_decides_also_beside_a_last_checkpoint(tmp_path: Path, store: Store) -> None:
    store.config.retention = RetentionPolicy(keep_last=2)

    fit(store, tmp_path, io=checkpoint_io(store, delete=False), save_last=True)

    # The first time the path of last.ckpt is new in the state of the callback, so last.ckpt is another checkpoint, and
    # replaces the one before. From then on both markers name one checkpoint.
    assert [pin.step for pin in store.pins()] == [2]
    store.gc(now=True)
    assert [info.step for info in store.checkpoints(superseded=True)] == [2, 6, 8]
    assert checkpoint_io(store).load_checkpoint(tmp_path / "ckpt" / "last.ckpt")["global_step"] == 8


def test_a_save_that_fails_in_the_background_leaves_no_file(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    io, path = checkpoint_io(store, background=True), tmp_path / "ckpt" / "step=5.ckpt"
    io.save_checkpoint(state(5, "lost"), path)
    (pending,) = [pending for _, pending, _ in io._to_do]
    pending.result()
    pending._error = NoSuchRef("of this test")

    with pytest.raises(NoSuchRef, match="of this test"):
        io.teardown()

    assert os.listdir(path.parent) == []


def test_without_symlinks_a_save_in_the_background_is_waited_for(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, _target: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))

    monkeypatch.setattr(Path, "symlink_to", refuse)
    path = tmp_path / "ckpt" / "step=5.ckpt"

    checkpoint_io(store, background=True).save_checkpoint(state(5, "here"), path)

    assert checkpoint_io(store).load_checkpoint(path)["way"] == "here"


def reserve_and_kill(store: Store, path: Path) -> str:
    """Save in the background in a process that is killed before it writes the marker; return what was left."""
    code = (
        "import os, sys; from ckstore import Store; from ckstore.integrations.lightning import CkstoreCheckpointIO\n"
        "io = CkstoreCheckpointIO(Store.open(sys.argv[1]), background=True)\n"
        "io.save_checkpoint({'global_step': 5}, sys.argv[2])\n"
        "assert os.path.exists(sys.argv[2])\n"
        "os.kill(os.getpid(), 9)"
    )
    command = [sys.executable, "-c", code, str(store.path), str(path)]
    started = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    _, said = started.communicate(timeout=120)
    assert started.returncode == -9, said
    # Its saver may still be opening the store, and notices the death a moment later.
    while any(_group_of(int(name)) == started.pid for name in os.listdir("/proc") if name.isdigit()):
        time.sleep(0.02)
    # Its saver makes the checkpoint that was ordered.
    assert next(iter(store.follow("main", timeout_s=60))).step == 5
    return os.readlink(path)


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def test_the_name_of_a_save_that_a_kill_ended_is_free(tmp_path: Path, store: Store) -> None:
    path = tmp_path / "step=5.ckpt"

    reserve_and_kill(store, path)

    assert path.is_symlink()
    assert not path.exists()
    with pytest.raises(BadInput, match="not a marker"):
        checkpoint_io(store).load_checkpoint(path)
    # What the killed training has saved is in the store, though no marker names it.
    io = checkpoint_io(Store.open(store.path, continue_from="latest"), background=True)
    io.save_checkpoint(state(5, "again"), path)
    assert path.exists()
    io.teardown()
    assert io.load_checkpoint(path)["way"] == "again"
    check_store(store.path)


def test_the_name_of_a_save_that_a_kill_ended_is_free_for_a_process_of_the_same_number(
    tmp_path: Path, store: Store
) -> None:
    path = tmp_path / "ckpt" / "last.ckpt"
    left = reserve_and_kill(store, path)
    path.unlink()
    # As in a container that is started again: this process has the PID of the one that was killed.
    path.symlink_to(re.sub(r"/proc/\d+/", f"/proc/{os.getpid()}/", left))

    again = Store.open(store.path, continue_from="latest")
    fit(again, tmp_path, "last", save_last=True, io=checkpoint_io(again, background=True))

    assert checkpoint_io(store).load_checkpoint(path)["global_step"] == 8
    assert not (path.parent / "last-v1.ckpt").exists()
    check_store(store.path)


def test_a_save_in_the_background_leaves_no_descriptor_open(tmp_path: Path, store: Store) -> None:
    io = checkpoint_io(store, background=True)
    for step in (1, 2):
        io.save_checkpoint(state(step, "here"), tmp_path / f"step={step}.ckpt")
    taken = [int(os.readlink(path).rpartition("/")[2]) for path in tmp_path.glob("*.ckpt") if path.is_symlink()]
    assert taken

    io.teardown()

    for fd in taken:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_the_pin_that_a_kill_left_goes_with_the_next_marker_at_its_path(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ckstore.integrations.lightning as integration

    path = tmp_path / "step=5.ckpt"

    class Killed(BaseException):
        pass

    def killed(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(integration, "atomic_file", SimpleNamespace(replace_by=killed))
        with pytest.raises(Killed):
            checkpoint_io(store).save_checkpoint(state(5, "lost"), path)
    assert len(store.pins()) == 1
    io = checkpoint_io(Store.open(store.path, continue_from="latest"))
    io.save_checkpoint(state(5, "again"), path)
    assert io.load_checkpoint(path)["way"] == "again"
    assert len(store.checkpoints(superseded=True)) == len(store.pins()) == 1
    io.remove_checkpoint(path)
    assert (store.checkpoints(superseded=True), store.pins()) == ([], [])


@pytest.mark.crash
@pytest.mark.parametrize("background", [False, True])
def test_whatever_callbacks_save_and_remove_each_marker_loads_its_own(
    tmp_path: Path, store: Store, background: bool
) -> None:
    draw = random.Random(54)
    wanted: dict[Path, str] = {}
    io = checkpoint_io(store, background=background)
    reader = checkpoint_io(Store.open(store.path))
    reached = 0  # only a load goes back to an earlier step
    for number in range(ROUNDS):
        if draw.random() < 0.2:
            io.teardown()
            io = checkpoint_io(store, background=background)  # a new process, which resumes
            for path, way in wanted.items():
                assert reader.load_checkpoint(path)["way"] == way
            if store.latest() is not None:
                io.load_checkpoint("ckstore:latest")
                reached = 0
        step, folder = draw.randrange(reached, 3), tmp_path / draw.choice("abc")
        path = folder / draw.choice([f"best-step={step}.ckpt", f"newest-step={step}.ckpt", "last.ckpt"])
        if path in wanted and draw.random() < 0.6:
            io.remove_checkpoint(path)
            del wanted[path]
        else:
            io.save_checkpoint(state(step, f"{number}"), path)
            wanted[path] = f"{number}"
            reached = step
        if draw.random() < 0.2:
            store.gc(now=True)

    io.teardown()
    store.gc(now=True)
    for path, way in wanted.items():
        assert io.load_checkpoint(path)["way"] == way
    assert len(store.checkpoints(superseded=True)) == len(store.pins()) == len(wanted)
    for path in wanted:
        io.remove_checkpoint(path)
    io.teardown()
    store.gc(now=True)
    assert (store.checkpoints(superseded=True), store.pins()) == ([], [])
