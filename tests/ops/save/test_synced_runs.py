"""The name of a run in ``checkpoints/`` is made durable once by each process, and again if the run has changed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

import pytest

from ckstore import Store
from ckstore.fs import files

Synced = Callable[[int], bool]


@pytest.fixture
def synced(store: Store, monkeypatch: pytest.MonkeyPatch) -> Synced:
    """Saves a step; returns whether ``checkpoints/`` was synced."""
    sync = files.sync_open_directory
    paths: list[str] = []

    def syncing(fd: int) -> None:
        paths.append(os.readlink(f"/proc/self/fd/{fd}"))
        sync(fd)

    def save(step: int) -> bool:
        paths.clear()
        monkeypatch.setattr(files, "sync_open_directory", syncing)
        store.save({"step": step}, step=step)
        monkeypatch.setattr(files, "sync_open_directory", sync)
        assert str(store.path / "checkpoints/main") in paths
        assert str(store.path / "staging") in paths
        return str(store.path / "checkpoints") in paths

    return save


def test_it_is_synced_with_the_first_save_of_a_process(store: Store, synced: Synced) -> None:
    assert [synced(1), synced(2), synced(3)] == [True, False, False]


def test_it_is_synced_again_after_another_process_changed_the_run(store: Store, synced: Synced) -> None:
    synced(1)
    Store.open(store.path).save({"step": 2}, step=2)

    assert [synced(3), synced(4)] == [True, False]


def test_it_is_synced_again_if_the_run_was_made_again(store: Store, synced: Synced) -> None:
    run = store.path / "checkpoints/main"
    synced(1)
    os.rename(run, run.parent.parent / "moved")
    shutil.copytree(run.parent.parent / "moved", run, copy_function=os.link)

    assert [synced(2), synced(3)] == [True, False]
