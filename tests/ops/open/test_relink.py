"""A store that was copied without its hardlinks becomes what it was; nothing is trusted before its bytes were read."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckstore import Store
from ckstore.errors import CkstoreError
from ckstore.fs import blob_time, files, links
from ckstore.fs.dirfd_stat import StorePath
from ckstore.model.digest import algorithm_of
from ckstore.model.reports.reindex_report import RelinkReport
from ckstore.objects import blobs
from tests.support.checkpoint_dirs import blobs_dir, step_of_name
from tests.support.damage import flip
from tests.support.look import directory_of
from tests.support.requirements import CRASH_FULL
from tests.support.stores import check_links, check_store, disk_bytes

MIB = 2**20
_BIG = [np.random.default_rng(seed).integers(0, 256, MIB + 10, dtype=np.uint8) for seed in range(3)]


def state(big: int, small: int = 0) -> dict[str, Any]:
    return {"big": _BIG[big], "small": [np.full(200, small + i, np.int64) for i in range(3)]}


def same(one: Any, other: Any) -> bool:
    return np.array_equal(one["big"], other["big"]) and all(map(np.array_equal, one["small"], other["small"]))


def filled(path: Path) -> Store:
    store = Store.init(path, chunk_bytes=MIB)
    for step in range(3):
        store.save(state(step // 2, step), step, tags=[f"t{step}"])
    return store


def copied(store: Store, how: str) -> Store:
    """Return a copy of a store without hardlinks; ``cp -r`` gives new times and modes, ``cp -rp`` keeps them."""
    target = store.path.parent / "copy"
    if how == "cp -r":
        subprocess.run(["cp", "-r", str(store.path), str(target)], check=True)
    else:
        shutil.copytree(store.path, target, symlinks=True)
    return Store.open(target, recover=False)


def files_of(store: Store) -> dict[str, set[int]]:
    """Return the inodes of each digest that a checkpoint names."""
    found: dict[str, set[int]] = {}
    for path in (*store.path.glob("checkpoints/*/*/blobs/*"), *store.path.glob("blobs/*/*")):
        found.setdefault(path.name, set()).add(path.stat().st_ino)
    return found


def relinked(store: Store) -> RelinkReport:
    report = store.reindex(relink=True).relinked
    assert report is not None
    return report


@pytest.mark.parametrize("how", ["cp -r", "cp -rp"])
def test_a_copy_becomes_what_it_was(tmp_path: Path, how: str) -> None:
    original = filled(tmp_path / "store")
    copy = copied(original, how)
    names = list(copy.path.glob("checkpoints/*/*/blobs/*"))
    needed_bytes = disk_bytes(original.path)
    before = copy.reindex()
    taken_bytes = disk_bytes(copy.path)

    report = relinked(copy)

    assert (before.copy_count, before.copy_bytes) == (len(names), taken_bytes - needed_bytes)
    assert (report.relinked_count, report.spare_bytes) == (len(names), taken_bytes - needed_bytes)
    assert (report.checked_bytes, report.damaged) == (needed_bytes, ())
    assert disk_bytes(copy.path) == needed_bytes
    assert copy.reindex().copy_count == 0
    check_store(copy.path)
    for path in copy.path.glob("blobs/*/*"):
        assert blobs.looks_untouched(path.stat(), path.stat().st_size)
        assert stat.S_IMODE(path.stat().st_mode) == 0o444
    assert copy.save(state(0, 0), 9).new_bytes == 0
    assert copy.verify().ok


def test_in_a_store_that_is_as_it_should_be_nothing_is_read_or_changed(store: Store) -> None:
    store.save(state(0), 1)
    store.save(state(0, 1), 2)
    before = files_of(store)

    assert relinked(store) == RelinkReport()
    assert files_of(store) == before


# ------------------------------------------------------------------------------- the law

FATES = st.sampled_from(["right", "right", "rotten", "written", "short", "gone"])


@pytest.mark.property
@settings(max_examples=100 if CRASH_FULL else 6)
@given(fates=st.lists(FATES, min_size=12, max_size=12), keeps_times=st.booleans())
def test_whatever_the_files_of_a_blob_are_each_name_is_right_if_any_was(fates: list[str], keeps_times: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        original = Store.init(Path(folder, "store"), chunk_bytes=MIB)
        for step in range(3):
            original.save({"big": _BIG[0], "own": np.full(300, step)}, step)
        store = copied(original, "cp -rp" if keeps_times else "cp -r")
        whole = {path.name: path.read_bytes() for path in original.path.glob("blobs/*/*")}
        names = sorted((*store.path.glob("blobs/*/*"), *store.path.glob("checkpoints/*/*/blobs/*")))
        for path, fate in zip(names, fates * 2, strict=False):
            inflict(path, fate)
        right = {path.name for path in names if path.exists() and path.read_bytes() == whole[path.name]}
        there = {path for path in names if path.exists() and path.parent.name == "blobs"}

        report = relinked(store)

        for path in there:
            if path.name in right:
                assert path.read_bytes() == whole[path.name]
                assert path.stat().st_ino == (store.path / "blobs" / path.name[5:7] / path.name).stat().st_ino
        assert set(report.damaged) == {path.name for path in there} - right
        assert all(path.exists() for path in there)
        assert os.listdir(store.path / "staging") == os.listdir(store.path / "trash") == []
        check_links(store.path)


def inflict(path: Path, fate: str) -> None:
    if fate == "gone":
        path.unlink()
    elif fate == "short":
        os.chmod(path, 0o644)
        os.truncate(path, path.stat().st_size - 1)
    elif fate != "right":
        flip(path, at=5, keep_time=fate == "rotten")


# ------------------------------------------------------------------------------- readers and limits


def test_a_copy_that_is_open_or_mapped_is_kept_until_its_reader_is_done(tmp_path: Path) -> None:
    copy = copied(filled(tmp_path / "store"), "cp -rp")
    copy.reindex()
    blob = max((directory_of(copy, 1) / "blobs").iterdir(), key=lambda path: path.stat().st_size)
    wanted = blob.read_bytes()
    with blob.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        relinked(copy)

        assert blob.stat().st_ino != os.fstat(file.fileno()).st_ino
        assert os.fstat(file.fileno()).st_nlink == 1, "it waits in trash, and is not freed behind the reader's back"
        assert mapped[:] == wanted

    copy.gc()
    assert os.listdir(copy.path / "trash") == []
    check_store(copy.path)


def test_a_checkpoint_that_is_open_is_read_to_its_end(tmp_path: Path) -> None:
    copy = copied(filled(tmp_path / "store"), "cp -rp")
    with copy.open_checkpoint(2) as checkpoint:
        first = checkpoint["small[0]"]
        relinked(copy)

        assert np.array_equal(checkpoint["big"], _BIG[1])
        assert np.array_equal(checkpoint["small[0]"], first)


def test_a_mark_goes_with_the_damage_that_another_file_heals(tmp_path: Path) -> None:
    copy = copied(filled(tmp_path / "store"), "cp -rp")
    flip(max((directory_of(copy, 1) / "blobs").iterdir(), key=lambda path: path.stat().st_size), keep_time=True)
    assert not copy.verify(1).ok
    assert (directory_of(copy, 1) / "damaged.json").exists()

    report = relinked(copy)

    assert report.damaged == ()
    assert not (directory_of(copy, 1) / "damaged.json").exists()
    assert copy.verify().ok
    assert same(copy.load(1), state(0, 1))


@pytest.mark.parametrize("which", ["the right one", "the other one"])
def test_where_a_file_takes_no_more_links_copies_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    copy = copied(filled(tmp_path / "store"), "cp -rp")
    link, before = links.link, files_of(copy)

    def full(source: StorePath, target: StorePath) -> None:
        if "new-" in target.name and (which == "the right one") == (source.parent.parent.name == "blobs"):
            raise OSError(31, "Too many links")
        link(source, target)

    monkeypatch.setattr(links, "link", full)

    assert relinked(copy).relinked_count == 0
    assert files_of(copy) == before
    assert copy.verify().ok


def test_a_canonical_file_that_was_replaced_after_it_was_read_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = copied(filled(tmp_path / "store"), "cp -rp")
    verified = blobs.verified
    done: list[str] = []

    def then_replaced(place: StorePath, digest: str, nbytes: int) -> os.stat_result | None:
        found = verified(place, digest, nbytes)
        path = place.path
        if not done and path.parent.parent == copy.path / "blobs":
            done.append(digest)
            path.unlink()
            path.write_bytes(b"?" * nbytes)
        return found

    monkeypatch.setattr(blobs, "verified", then_replaced)
    relinked(copy)

    assert done
    for path in copy.path.glob(f"checkpoints/*/*/blobs/{done[0]}"):
        assert blobs.digest_of_file(path, path.name) == path.name


def test_a_write_while_a_file_is_read_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for keep_time in (True, False):
        path = tmp_path / "blob"
        data = b"x" * 1000
        digest = algorithm_of("xxh3-" + "0" * 32).digest(memoryview(data))
        path.write_bytes(data)
        if keep_time:
            blob_time.stamp(path)
        read = blobs._digest_of

        def then_written(fd: int, like: str, *, read: Any = read, path: Path = path) -> str:
            found: str = read(fd, like)
            path.write_bytes(b"y" * 1000)
            return found

        with monkeypatch.context() as patch:
            patch.setattr(blobs, "_digest_of", then_written)

            assert blobs.verified(path, digest, 1000) is None
        assert not blob_time.is_stamp(path.stat().st_mtime_ns)
        path.unlink()


def test_what_was_read_and_is_right_is_durable_before_it_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "blob"
    path.write_bytes(b"x" * 1000)
    digest = algorithm_of("xxh3-" + "0" * 32).digest(memoryview(b"x" * 1000))
    fsync = os.fsync
    synced: list[int] = []

    def counted(fd: int) -> None:
        synced.append(os.fstat(fd).st_ino)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", counted)
    status = blobs.verified(path, digest, 1000)

    assert status is not None
    assert synced == [status.st_ino]
    assert blobs.looks_untouched(path.stat(), 1000)
    assert stat.S_IMODE(path.stat().st_mode) == 0o444


def test_what_was_put_right_before_an_error_is_durable_before_a_sweep_frees_the_old_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut a name of the checkpoint could be that of a file that is gone."""
    copy = copied(filled(tmp_path / "store"), "copytree")
    calls: list[str] = []
    rename, sync, unlink = links.rename, files.sync_directory, os.unlink

    def renaming(one: StorePath, other: StorePath, **given: Any) -> None:
        if other.parent.name == "blobs" and calls:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(one, other, **given)
        if other.parent.name == "blobs":
            calls.append("rename")

    def syncing(path: StorePath) -> None:
        calls.append(f"sync {os.path.relpath(path.path, copy.path)}")
        sync(path)

    def unlinking(path: Any, *, dir_fd: int | None = None) -> None:
        calls.append(f"unlink {path}")
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(links, "rename", renaming)
    monkeypatch.setattr(files, "sync_directory", syncing)
    monkeypatch.setattr(os, "unlink", unlinking)
    with pytest.raises(CkstoreError, match="Input/output error"):
        copy.reindex(relink=True)
    assert not any(call.startswith("unlink new-") for call in calls)
    with monkeypatch.context() as failing:
        failing.setattr(files, "sync_directory", partial(failing_below_checkpoints, sync))
        copy.gc()  # which goes on without them
        assert not any(call.startswith("unlink new-") for call in calls)
        Store.open(copy.path).close()
    calls.append("swept")
    copy.gc()
    monkeypatch.undo()

    done = calls[calls.index("swept") :]
    gone = next(at for at, call in enumerate(done) if call.startswith("unlink new-"))
    assert f"sync {blobs_dir(copy.path, 'main', 0).relative_to(copy.path)}" in done[:gone]
    assert copy.verify().ok


def failing_below_checkpoints(sync: Callable[[StorePath], None], path: StorePath) -> None:
    if path.name == "blobs" and step_of_name(path.parent.name) == 0:
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    sync(path)
