"""What happens at the edge of a promise: a claim in the middle of a gc, a directory that cannot be made durable."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ckstore import Store
from ckstore.errors import NoSuchRef, SaveFailed, UnknownOutcome
from ckstore.fs import files, links, locks
from ckstore.ops.refs import labels
from tests.support.checkpoint_dirs import checkpoint_dir
from tests.support.look import directory_of

if TYPE_CHECKING:
    from pathlib import Path


MIB = 2**20


def drawn(seed: int) -> dict[str, Any]:
    return {"w": np.random.default_rng(seed).integers(0, 256, MIB, dtype=np.uint8)}


def test_a_blob_that_is_claimed_while_it_is_condemned_gets_its_name_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A saver links the canonical name between the look at its link count and its rename to trash."""
    monkeypatch.setattr("ckstore.ops.free.reclaim.free_unused", lambda *_: None)
    store.save(drawn(1), step=1)
    blob = max(store.path.glob("blobs/*/*"), key=lambda path: path.stat().st_size)
    store.delete(1)
    claim = store.path / "staging" / "claim"
    real = links.rename

    def rename(source: Path, target: Path, **options: Any) -> None:
        if str(source) == str(blob):
            os.link(blob, claim)
        real(source, target, **options)

    monkeypatch.setattr(links, "rename", rename)
    report = store.gc()

    assert claim.stat().st_nlink == 2
    assert blob.stat().st_ino == claim.stat().st_ino
    assert report.freed_count == 0
    assert report.trash_left == ()
    claim.unlink()


def test_a_process_in_doubt_writes_no_more(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(fd: int) -> None:
        raise OSError(errno.EIO, "the directory is lost")

    with monkeypatch.context() as patched:
        patched.setattr(files, "sync_open_directory", failing)
        with pytest.raises(UnknownOutcome, match="may or may not exist after a restart"):
            store.save(drawn(1), step=1)

    with pytest.raises(SaveFailed, match="accepts no more writes from this process"):
        store.save(drawn(2), step=2)
    again = Store.open(store.path)
    again.save(drawn(2), step=2)
    assert np.array_equal(again.load(2)["w"], drawn(2)["w"])


def test_a_store_whose_names_cannot_be_made_durable_takes_no_writes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy had left out empty directories; the fsync that makes the new ones durable fails."""
    (store.path / "refs").rmdir()
    real = files.sync_directory

    def failing(path: Path) -> None:
        if str(path) == str(store.path):
            raise OSError(errno.EIO, "the directory is lost")
        real(path)

    with monkeypatch.context() as patched:
        patched.setattr(files, "sync_directory", failing)
        opened = Store.open(store.path)

    assert any("recovery while opening the store failed" in warning for warning in opened.warnings)
    with pytest.raises(SaveFailed, match="could not be made durable"):
        opened.save(drawn(1), step=1)
    Store.open(store.path).save(drawn(1), step=1)


def test_the_same_content_again_is_tagged_under_its_own_lock(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save(drawn(1), step=1)
    real = labels.write_tag
    taken: list[locks.DirectoryLock | None] = []

    def write_tag(*arguments: Any) -> None:
        lock = locks.try_exclusive(checkpoint_dir(store.path, "main", 1))
        if lock is not None:
            lock.release()
        taken.append(lock)
        real(*arguments)

    monkeypatch.setattr("ckstore.ops.save.save.write_tag", write_tag)
    info = store.save(drawn(1), step=1, tags=("best",))

    assert info.tags == ("best",)
    assert taken == [None]


def test_a_tag_that_could_not_be_made_durable_is_not_acknowledged(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = files.sync_directory

    def failing(path: Path) -> None:
        if str(path) == str(store.path / "refs"):
            raise OSError(errno.EIO, "the directory is lost")
        real(path)

    monkeypatch.setattr(files, "sync_directory", failing)
    info = store.save(drawn(1), step=1, tags=("best",))

    assert info.tags == ()


def test_a_hit_that_is_too_short_is_healed_though_its_time_is_right(store: Store) -> None:
    store.config.recheck_share = 0  # its size alone says so
    store.save(drawn(1), step=1)
    blob = max(store.path.glob("blobs/*/*"), key=lambda path: path.stat().st_size)
    before_ns = blob.stat().st_mtime_ns
    blob.chmod(0o644)
    os.truncate(blob, 5)
    blob.chmod(0o444)
    os.utime(blob, ns=(before_ns, before_ns))

    store.save(drawn(1), step=2)

    assert np.array_equal(store.load(2)["w"], drawn(1)["w"])
    assert np.array_equal(store.load(1)["w"], drawn(1)["w"])


def test_what_took_the_name_of_a_checkpoint_that_is_being_dropped_stays(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program puts a directory there between the lock on the checkpoint and its rename to trash."""
    store.save(drawn(1), step=1)
    place, fresh, away = directory_of(store, 1), store.path / "staging" / "fresh", store.path / "staging" / "away"
    fresh.mkdir()
    (fresh / "of another program").touch()
    real = links.rename

    def rename(source: Path, target: Path, **options: Any) -> None:
        if str(source) == str(place) and not away.exists():
            place.rename(away)
            fresh.rename(place)
        real(source, target, **options)

    monkeypatch.setattr(links, "rename", rename)
    with pytest.raises(NoSuchRef):
        store.delete(1)
    found = os.listdir(place)
    place.rename(fresh)
    away.rename(place)
    monkeypatch.undo()
    Store.open(store.path)

    assert found == ["of another program"]
    assert np.array_equal(store.load(1)["w"], drawn(1)["w"])
