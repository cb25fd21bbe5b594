"""What a review found; each failed before it was mended."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckstore
from ckstore import Store
from ckstore.errors import BadInput, CannotStore, InUse, NoSuchRef, StepExists
from ckstore.fs import locks
from ckstore.fs.dirfd_stat import StorePath
from ckstore.objects import blobs
from ckstore.objects.staging import Staging
from tests.support.look import directory_of

MIB = 2**20


def drawn(nbytes: int, seed: int) -> Any:
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


def test_small_tensors_and_a_chunk_with_the_bytes_of_their_pack_do_not_undo_each_other(store: Store) -> None:
    """A flat parameter is what the small ones were packed to: one save claims one blob as a chunk and as a pack."""
    small = [drawn(64 * 1024, seed) for seed in range(16)]
    for step in range(0, 20, 2):
        store.save({"p": small}, step=step)
        store.delete(step)
        flat = np.concatenate(small)
        state = {"flat": flat, "one": small[3], "two": small[5]}

        store.save(state, step=step + 1)

        loaded = store.load(step + 1)
        assert all(np.array_equal(loaded[name], state[name]) for name in state)
        assert len(os.listdir(directory_of(store, step + 1) / "blobs")) >= 1


def test_a_tail_of_a_large_tensor_may_equal_a_small_one(store: Store) -> None:
    small = drawn(1000, 1)
    state = {"small": small, "big": np.concatenate([drawn(MIB, 2), small])}
    for step in range(4):
        store.save(state, step=step)

    assert all(np.array_equal(store.load(step)["big"], state["big"]) for step in range(4))


@pytest.mark.parametrize("way", ["save", "verify", "relink"])
def test_a_blob_that_is_being_checked_is_not_trusted_by_others(
    way: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save({"w": drawn(2 * MIB, 0)})
    blob = max(store.path.glob("blobs/*/*"), key=lambda path: path.stat().st_size)
    os.utime(blob)
    seen = []

    def watching(real: Callable[..., int]) -> Callable[..., int]:
        def read(fd: int, *more: Any) -> int:
            status = os.fstat(fd)
            if status.st_ino == blob.stat().st_ino:
                seen.append(blobs.looks_untouched(status, status.st_size))
            return real(fd, *more)

        return read

    for name in ("readv", "preadv"):
        monkeypatch.setattr(os, name, watching(getattr(os, name)))
    if way == "save":
        store.config.recheck_share = 0  # else it may be read once more when it is trusted again
        store.save({"w": drawn(2 * MIB, 0)})
    elif way == "verify":
        assert store.verify().ok
    else:
        store.reindex(relink=True)

    assert seen
    assert not any(seen)
    assert blobs.looks_untouched(os.stat(blob), os.stat(blob).st_size), "it was right"


def test_a_blob_that_a_program_writes_into_while_it_is_verified_stays_suspect(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save({"w": drawn(2 * MIB, 0)})
    blob = max(store.path.glob("blobs/*/*"), key=lambda path: path.stat().st_size)
    os.utime(blob)
    real = os.preadv

    def writing(fd: int, *more: Any) -> int:
        count = real(fd, *more)
        if os.fstat(fd).st_ino == blob.stat().st_ino:
            os.utime(blob)
        return count

    monkeypatch.setattr(os, "preadv", writing)
    store.verify()

    assert not blobs.looks_untouched(os.stat(blob), os.stat(blob).st_size)


def test_a_checkpoint_that_is_busy_is_not_taken_for_damaged(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save({"a": 1}, step=1)
    real = locks.lock_shared
    monkeypatch.setattr(locks, "lock_shared", lambda path, *, timeout_s=0.05: real(path, timeout_s=0.05))
    with locks.lock_exclusive(directory_of(store, 1), timeout_s=1), pytest.raises((InUse, StepExists)):
        store.save({"a": 2}, step=1)

    assert store.load(1) == {"a": 1}


def test_a_checkpoint_that_was_moved_by_hand_stays_beside_a_save_of_that_step(store: Store) -> None:
    store.save({"a": 3}, step=3)
    folder = directory_of(store, 3)
    folder.rename(folder.parent / "4")

    store.save({"a": 4}, step=4)

    assert store.load(4) == {"a": 4}
    (folder.parent / "4").rename(folder)
    assert store.load(3) == {"a": 3}


def test_the_sequence_goes_on_when_the_catalog_was_left_behind(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckstore.ops.save.save.CATALOG_TIMEOUT_S", 0.01)
    reader = Store.open(store.path)
    with locks.lock_exclusive(store.path, timeout_s=1):
        for step in range(3):
            store.save({"a": step}, step=step)
        last = reader.save({"a": 9}, step=9)

    assert last.sequence == 4
    latest = Store.open(store.path).latest()
    assert latest is not None
    assert latest.step == 9


def test_a_store_may_be_reached_through_a_symlink(store: Store, tmp_path: Path) -> None:
    (tmp_path / "way").symlink_to(store.path)

    info = Store.open(tmp_path / "way").save({"a": 1})

    assert info.catalogued


def test_the_same_content_is_not_acknowledged_over_a_damaged_copy(store: Store) -> None:
    state = {"w": drawn(2 * MIB, 0)}
    store.save(state, step=1)
    blob = max((directory_of(store, 1) / "blobs").iterdir(), key=lambda path: path.stat().st_size)
    data = bytearray(blob.read_bytes())
    data[5] ^= 1
    blob.unlink()
    blob.write_bytes(data)

    store.save(state, step=1)

    assert np.array_equal(store.load(1)["w"], state["w"])


def test_a_manifest_that_could_not_be_read_is_not_written(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckstore.ops.save.save.MANIFEST_MAX_BYTES", 1000)

    with pytest.raises(CannotStore, match="at most 1000 B can be read"):
        store.save({"order": list(range(1000))})

    assert store.checkpoints() == []


def test_what_others_put_into_the_store_is_neither_followed_nor_in_the_way(store: Store, tmp_path: Path) -> None:
    store.save({"w": drawn(MIB, 0)}, step=1)
    store.save({"w": drawn(MIB, 1)}, step=2)
    (tmp_path / "thesis.tex").write_text("all of it")
    (directory_of(store, 1) / "notes" / "deep").mkdir(parents=True)
    (directory_of(store, 1) / "notes" / "deep" / "a.txt").touch()
    (store.path / "staging" / "x").mkdir()
    (store.path / "staging" / "x" / "blobs").symlink_to(tmp_path)

    store.delete(1)
    Store.open(store.path)

    assert (tmp_path / "thesis.tex").read_text() == "all of it"
    assert os.listdir(store.path / "trash") == []
    assert len(list(store.path.glob("blobs/*/*"))) == 1


def test_directories_that_a_copy_left_out_are_made_again(store: Store) -> None:
    for name in ("staging", "trash", "refs", "pins"):
        (store.path / name).rmdir()

    reopened = Store.open(store.path)

    assert reopened.save({"a": 1}, tags=["t"]).tags == ("t",)


def test_a_checkpoint_that_was_left_open_is_let_go(store: Store) -> None:
    store.save({"a": np.ones(3)})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        store.open_checkpoint()["a"]
        gc.collect()

    assert any(issubclass(warning.category, ResourceWarning) for warning in caught)
    store.delete(0)


def test_a_closed_checkpoint_says_so(store: Store) -> None:
    store.save({"a": np.ones(3)})
    with store.open_checkpoint() as checkpoint:
        pass

    with pytest.raises(BadInput, match="was closed"):
        checkpoint["a"]


def test_brackets_in_a_selection_are_those_of_names_and_a_miss_is_told(store: Store) -> None:
    store.save({"layers": [{"w": 1}, {"w": 2}], "x": 3})

    assert store.load(select="layers[1].*") == {"layers": [None, {"w": 2}]}
    assert store.load(select="layers[*].w") == {"layers": [{"w": 1}, {"w": 2}]}
    with pytest.raises(NoSuchRef, match="no name that select='nosuch' matches"):
        store.load(select="nosuch")
    with pytest.raises(BadInput, match="select must be"):
        store.load(select=5)  # type: ignore[arg-type]


def test_arguments_that_look_right_and_are_not_are_refused(store: Store) -> None:
    with pytest.raises(BadInput, match="tags must be a list of names"):
        store.save({"a": 1}, tags="best")
    assert store.save({"a": 1}, step=np.int64(7)).step == 7  # type: ignore[call-overload]
    with pytest.raises(BadInput, match="a step is an integer"):
        store.save({"a": 1}, step=1.0)  # type: ignore[call-overload]


def test_a_save_that_is_swept_while_it_begins_begins_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    real = locks.lock_shared
    swept: list[StorePath] = []

    def sweep_first(path: StorePath, *, timeout_s: float = 10.0) -> locks.DirectoryLock:
        if path.inner.startswith("staging/") and not swept:
            swept.append(path)
            path.path.rmdir()
        return real(path, timeout_s=timeout_s)

    monkeypatch.setattr(locks, "lock_shared", sweep_first)

    assert store.save({"a": 1}).step == 0
    assert swept


def test_a_mapped_tensor_of_many_chunks_needs_few_descriptors(tmp_path: Path) -> None:
    import resource

    store = Store.init(tmp_path / "s", chunk_bytes=MIB)
    store.save({"w": drawn(80 * MIB, 0)})
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 20, hard))
    try:
        loaded = store.load(mmap=True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert np.array_equal(loaded["w"], drawn(80 * MIB, 0))


def test_a_blob_that_vanishes_from_the_staging_is_noticed_before_publishing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Staging.keep_exactly
    taken: list[str] = []

    def take_one(self: Staging, wanted: dict[str, int]) -> list[str]:
        if not taken:
            taken.append(next(iter(wanted)))
        self.unclaim(taken[0])
        return real(self, wanted)

    monkeypatch.setattr(Staging, "keep_exactly", take_one)

    with pytest.raises(ckstore.CkstoreError, match="in the staging directory are missing or changed"):
        store.save({"w": drawn(2 * MIB, 0)})

    assert store.checkpoints() == []
