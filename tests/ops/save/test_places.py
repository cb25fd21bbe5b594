"""A run is changed by one process at a time, from the look at the checkpoints of a step to the rename of one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import Store
from ckstore.errors import InUse, StepExists
from ckstore.fs import files, links, locks
from ckstore.fs.dirfd_stat import StorePath
from ckstore.objects import publish, trash
from ckstore.objects.publish import IfExists
from ckstore.ops.free import reclaim
from tests.support import crashing
from tests.support.look import directory_of
from tests.support.requirements import CRASH_FULL

_NEVER = 10**9


def state(seed: int) -> dict[str, Any]:
    return {"w": np.random.default_rng(seed).integers(0, 256, 70_000, dtype=np.uint8)}


def is_alone(store: Store) -> bool:
    """Whether no other process can publish in the run main now."""
    try:
        locks.lock_shared(store.path / "checkpoints" / "main", timeout_s=0).release()
    except InUse:
        return True
    return False


@pytest.mark.parametrize("if_exists", ["error", "replace", "keep"])
def test_no_save_publishes_between_the_look_at_a_step_and_the_rename(
    store: Store, monkeypatch: pytest.MonkeyPatch, if_exists: IfExists
) -> None:
    store.save(state(0), step=1)
    step = 1 if if_exists == "replace" else 2
    alone: list[bool] = []
    look, rename = publish._sound_of_step, links.rename

    def looking(*args: Any) -> Any:
        alone.append(is_alone(store))
        return look(*args)

    def renaming(one: StorePath, other: StorePath, **given: Any) -> None:
        if other.parent.name == "main":
            alone.append(is_alone(store))
        rename(one, other, **given)

    monkeypatch.setattr(publish, "_sound_of_step", looking)
    monkeypatch.setattr(links, "rename", renaming)
    store.save(state(1), step=step, if_exists=if_exists)

    assert alone == [True, True]
    assert not is_alone(store)


def test_no_save_publishes_while_a_checkpoint_is_taken_from_its_place(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a rename by path could take another one along, which a kill then leaves in trash."""
    store.save(state(0), step=1)
    alone: list[bool] = []
    move = trash.move_to_trash

    def moving(*args: Any, **options: Any) -> StorePath:
        alone.append(is_alone(store))
        return move(*args, **options)

    monkeypatch.setattr(trash, "move_to_trash", moving)
    store.delete(1)

    assert alone == [True]
    assert not is_alone(store)


def save_when_told(path: Path, step: int, if_exists: IfExists, go: int, done: int) -> int:
    """Fork a saver that waits for a byte, saves, and says whether that was acknowledged."""
    pid = os.fork()
    if pid == 0:
        os.read(go, 1)
        publish._RUN_TIMEOUT_S = 0.0
        try:
            Store.open(path).save(state(1000), step=step, if_exists=if_exists)
            os.write(done, b"y")
        except (InUse, StepExists):
            os.write(done, b"n")
        os._exit(0)
    return pid


@pytest.mark.parametrize("if_exists", ["error", "replace"])
def test_an_acknowledged_save_is_not_lost_when_another_of_the_same_step_dies(store: Store, if_exists: IfExists) -> None:
    """Two find a step damaged. The second comes while the first looks; the first may die at any later call."""
    look = publish._sound_of_step
    for at in range(1, 100 if CRASH_FULL else 5):
        store.save(state(0), step=at)
        for blob in (directory_of(store, at) / "blobs").iterdir():
            blob.unlink()
        (go, tell), (told, done) = os.pipe(), os.pipe()
        other = save_when_told(store.path, at, if_exists, go, done)

        def looking(*args: Any, tell: int = tell, told: int = told, done: int = done, at: int = at) -> Any:
            found = look(*args)
            os.write(tell, b"!")
            said = os.read(told, 1)
            os.write(done, said)  # for the parent
            publish._sound_of_step = look
            crashing.arm(at, before=True)
            return found

        def repair(looking: Any = looking, step: int = at) -> None:
            publish._sound_of_step = looking
            Store.open(store.path).save(state(1), step=step, if_exists=if_exists)

        died = crashing.run_and_kill(repair, at=_NEVER, before=True, may_fail=False)
        os.write(tell, b"!")  # if the first never came so far
        os.waitpid(other, 0)
        acknowledged = os.read(told, 1) == b"y"
        for fd in (go, tell, told, done):
            os.close(fd)

        if acknowledged:
            assert np.array_equal(Store.open(store.path).load(at)["w"], state(1000)["w"]), f"killed after call {at}"
        Store.open(store.path).save(state(1), step=at, if_exists="replace")
        store.gc(now=True)  # the damaged one is left when the process dies before it drops it
        if not died:
            return
    assert not CRASH_FULL, "the save never came to its end"


def test_what_was_published_is_durable_before_a_dead_save_is_taken_apart(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(state(0), step=1)
    layout = store._context.layout
    links.make_directory(layout.staging / "main@1.dead")
    (layout.staging / "main@1.dead" / "manifest.json").path.write_text("of a checkpoint that was renamed")
    calls: list[str] = []
    sync, unlink = files.sync_directory, os.unlink

    def syncing(path: StorePath) -> None:
        calls.append(f"sync {path.name}")
        sync(path)

    def unlinking(path: Any, *, dir_fd: int | None = None) -> None:
        calls.append("unlink")
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(files, "sync_directory", syncing)
    monkeypatch.setattr(os, "unlink", unlinking)
    assert len(trash.sweep_staging(layout, {})) == 1
    reclaim.free_unused(store._context)

    assert os.listdir(layout.trash.path) == []
    assert {"sync main", "sync staging", "sync trash"} <= set(calls[: calls.index("unlink")])
