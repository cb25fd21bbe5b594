"""What all frameworks that write directories share, without a framework."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ckstore import BadInput, CheckpointInfo, CkstoreWarning, InUse, Store
from ckstore.integrations import directories
from ckstore.integrations.directories import checkout_to_resume, inexact, remove
from ckstore.training import Conditions
from tests.support.damage import flip
from tests.support.look import directory_of


def commit_directory(*given: Any, **named: Any) -> CheckpointInfo:
    info = directories.commit_directory(*given, **named)
    assert isinstance(info, CheckpointInfo)
    return info


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "out" / "checkpoint-5"
    made.mkdir(parents=True)
    (made / "rng_state.pth").write_bytes(b"1")
    return made


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.init(tmp_path / "store")


def test_a_step_is_replaced_and_a_pinned_one_stays_superseded(folder: Path, store: Store) -> None:
    def again(data: bytes) -> Any:
        (folder / "rng_state.pth").write_bytes(data)
        return commit_directory(store, folder, 5, None, metrics={}, conditions=Conditions())

    first, second = again(b"1"), again(b"2")
    store.pin(5, "mine")
    third = again(b"3")

    assert [note for note in third.warnings if "is kept: main@5 is pinned" in note] != []
    assert store.info(5).id == third.id
    assert [info.id for info in store.checkpoints(superseded=True)] == [second.id, third.id]
    assert first.id != second.id


@pytest.mark.parametrize("ref", [5, np.int64(5), torch.tensor(5), "5", "latest", "gpt@5"])
def test_a_ref_of_any_kind_is_one_of_the_run_that_is_resumed(ref: Any, folder: Path, store: Store) -> None:
    for run in ("gpt", "main"):
        (folder / "rng_state.pth").write_bytes(run.encode())
        commit_directory(store, folder, 5, run, metrics={}, conditions=Conditions())

    info, path = checkout_to_resume(store, "gpt", ref, folder.parent)

    assert info.run == "gpt"
    assert (path / "rng_state.pth").read_bytes() == b"gpt"


def test_what_is_committed_after_a_rollback_continues_what_was_resumed(folder: Path, store: Store) -> None:
    made = []
    for step in (1, 2, 3):
        (folder / "rng_state.pth").write_bytes(b"%d" % step)
        made.append(commit_directory(store, folder, step, None, metrics={}, conditions=Conditions()))

    checkout_to_resume(store, None, 1, folder.parent)
    (folder / "rng_state.pth").write_bytes(b"again")
    again = commit_directory(store, folder, 2, None, metrics={}, conditions=Conditions())

    assert [info.parent for info in made[1:]] == [info.id for info in made[:2]]
    assert again.parent == made[0].id


def test_a_run_that_another_process_uses_is_an_error_also_at_a_step_that_is_there(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_directory(store, folder, 5, None, metrics={}, conditions=Conditions())

    def in_use(*_: Any, **__: Any) -> None:
        raise InUse("another process holds the lock of the run")

    monkeypatch.setattr(store, "commit", in_use)
    with pytest.raises(InUse, match="holds the lock"):
        commit_directory(store, folder, 5, None, metrics={}, conditions=Conditions())


@pytest.mark.parametrize("metadata", [{}, {"training": "phase 2"}, {"training": {"world_size": 1}}])
def test_a_checkpoint_without_conditions_says_so_also_if_the_name_is_used_otherwise(
    metadata: dict[str, Any], folder: Path, store: Store
) -> None:
    info = store.commit(folder, metadata=metadata)

    assert inexact(store, info, Conditions()) == ("main@5 has no record of the conditions under which it was saved",)


def test_random_states_are_looked_for_among_the_files(folder: Path, store: Store) -> None:
    recorded = {"training": Conditions(rng_ranks=(0,)).to_json()}
    with_state = store.commit(folder, metadata=recorded)
    (folder / "rng_state.pth").rename(folder / "other.pth")
    without = store.commit(folder, 6, metadata=recorded)

    assert inexact(store, with_state, Conditions()) == ()
    assert inexact(store, without, Conditions()) == (
        "the checkpoint holds no random states: numbers drawn from here on will differ",
    )


def test_a_random_state_of_another_rank_that_is_missing_is_named(folder: Path, store: Store) -> None:
    (folder / "rng_state.pth").rename(folder / "rng_state_0.pth")
    info = commit_directory(store, folder, 5, None, metrics={}, conditions=Conditions(world_size=2, rng_ranks=(0, 1)))
    assert info is not None

    assert inexact(store, info, Conditions(world_size=2)) == (
        "the checkpoint holds no random state of rank 1, only of 0",
    )


def test_a_resume_from_a_store_that_is_open_for_reading_only_passes_over_what_is_damaged(
    folder: Path, store: Store
) -> None:
    for step in (1, 2):
        (folder / "model.bin").write_bytes(bytes([step]) * 3000)
        commit_directory(store, folder, step, None, metrics={}, conditions=Conditions())
    own = [blob for blob in (directory_of(store, 2) / "blobs").iterdir() if blob.stat().st_nlink == 2]
    for blob in own:
        flip(blob, blob.stat().st_size // 2, keep_time=True)
    reader = Store.open(store.path, readonly=True)

    with pytest.warns(CkstoreWarning, match="restoring main@1, since newer checkpoints are damaged"):
        info, path = checkout_to_resume(reader, None, "latest-valid", folder.parent)

    assert info.step == 1
    assert (path / "model.bin").read_bytes() == b"\1" * 3000


def test_what_an_earlier_resume_left_and_cannot_be_removed_is_an_error(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_directory(store, folder, 5, None, metrics={}, conditions=Conditions())
    _, path = checkout_to_resume(store, None, "latest-valid", folder.parent)

    def fail(directory: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(directory / "rng_state.pth"))

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", fail)
        with pytest.raises(BadInput, match=r"rng_state\.pth, which an earlier save or resume left") as caught:
            checkout_to_resume(store, None, "latest-valid", folder.parent)
        assert caught.value.hint == f"remove {path}, then start again"
        remove(folder.parent / "nothing")
    link = folder.parent / "link"
    link.symlink_to(folder)
    with pytest.raises(BadInput, match="link, which an earlier"):
        remove(link)
    assert checkout_to_resume(store, None, "latest-valid", folder.parent)[1] == path
