"""`verify` finds any damage, names it by checkpoint and tensor, remembers it, and forgets it when it is mended."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import sqlite3
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckstore import Store
from ckstore.errors import BadInput, CkstoreError, DamagedBlob, InUse, NoSuchRef
from ckstore.fs import blob_time, dirfd_stat
from ckstore.fs.dirfd_stat import StorePath
from ckstore.model.checkpoint.mark import Mark, MarkEntry, parse_mark
from ckstore.model.manifest import parse as manifest_parse
from ckstore.objects import checkpoints
from ckstore.ops.check.validity import why_not_valid
from tests.support.checkpoint_dirs import checkpoint_dir, step_of_name
from tests.support.damage import MIB, blobs_by_size, flip, same_state, two_part_state
from tests.support.descriptors import open_below
from tests.support.examples import examples
from tests.support.look import directory_of
from tests.support.meanwhile import elsewhere
from tests.support.stores import disk_bytes, names_by_inode


@pytest.fixture
def harmed(tmp_path: Path) -> Store:
    """A store that is not looked at after the test."""
    return Store.init(tmp_path / "harmed", chunk_bytes=MIB)


def mark_of(store: Store, ref: Any) -> Path:
    return directory_of(store, ref) / "damaged.json"


def test_a_manifest_is_parsed_once_and_its_row_is_compared(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 2, 3):
        store.save({**two_part_state(step), "note": {"b": 1.5, "a": [step, None]}}, step=step, metrics={"loss": 0.5})
    read: list[str] = []
    parse = manifest_parse.parse_manifest

    def counted(data: bytes, *args: Any, **kwargs: Any) -> Any:
        read.append(hashlib.sha256(data).hexdigest())
        return parse(data, *args, **kwargs)

    monkeypatch.setattr(checkpoints, "parse_manifest", counted)
    assert store.verify(quick=True).ok
    assert sorted(Counter(read).values()) == [1, 1, 1]

    with sqlite3.connect(store.path / "catalog.db") as catalog:
        catalog.execute("DELETE FROM uses WHERE checkpoint_id = (SELECT max(id) FROM checkpoints)")
    catalog.close()
    (finding,) = store.verify(quick=True).findings
    assert (finding.kind, finding.mended) == ("catalog", True)
    assert "does not agree with the manifest of main@3" in str(finding)


def test_a_sound_store_is_read_once_and_nothing_changes(store: Store) -> None:
    for step in (1, 2, 3):
        store.save(two_part_state(step // 2), step=step)
    before = {ino: (len(names), names[0].stat().st_mtime_ns) for ino, names in names_by_inode(store.path).items()}

    report = store.verify()

    assert report.ok
    assert report.checkpoint_count == 3
    assert report.checked_bytes == disk_bytes(store.path)
    assert {i: (len(n), n[0].stat().st_mtime_ns) for i, n in names_by_inode(store.path).items()} == before
    assert store.verify(2).checked_bytes == sum(path.stat().st_size for path in blobs_by_size(store, 2))


def test_what_another_process_renames_under_the_look_at_links_is_no_damage(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.config.undo_by_hand_s = 3600
    for step in range(4):
        store.save(two_part_state(0), step=step)
    walk, going = dirfd_stat.walk, [0, 1]

    def walking(top: StorePath, *more: Any) -> Iterator[Any]:
        if top.name == "trash" and going:  # what was listed in its place is listed here once more
            elsewhere(lambda: Store.open(store.path).delete(going.pop()))
        return walk(top, *more)

    monkeypatch.setattr(dirfd_stat, "walk", walking)
    report = store.verify(quick=True)

    assert going == []
    assert report.ok, str(report)
    store.gc(now=True)


def test_an_empty_store_is_sound(store: Store) -> None:
    assert store.verify().ok
    assert store.verify().checkpoint_count == 0
    with pytest.raises(NoSuchRef):
        store.verify(3)


@pytest.mark.property
@settings(max_examples=examples(8))
@given(data=st.data())
def test_any_changed_byte_is_found_whatever_the_time_says(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Store.init(Path(folder, "store"), chunk_bytes=MIB)
        store.save(two_part_state(1), step=1)
        store.save(two_part_state(1) | {"more": np.ones(9)}, step=2, run="b")
        pieces = sorted(p for p in (store.path / "checkpoints").rglob("*") if p.is_file())
        path = data.draw(st.sampled_from(pieces))
        at = data.draw(st.integers(0, path.stat().st_size - 1))
        inode = path.stat().st_ino
        flip(path, at, keep_time=data.draw(st.booleans()))
        places = [p.relative_to(store.path / "checkpoints").parts for p in pieces if p.stat().st_ino == inode]
        users = {(run, step_of_name(name)) for run, name, *_ in places}

        report = store.verify()

        assert {(found.run, found.step) for found in report.damage} == users
        for found in report.damage:
            mark = checkpoint_dir(store.path, found.run, found.step) / "damaged.json"
            assert mark.exists() == found.affects
            loads = _loads(store, found.name)
            assert loads != found.affects
        flip(path, at)
        assert store.verify().ok
        assert all(not why_not_valid(store._context, info) for info in store.checkpoints())


def _loads(store: Store, ref: str) -> bool:
    try:
        store.load(ref)
    except (DamagedBlob, NoSuchRef):
        return False
    return True


def test_damage_is_named_by_every_checkpoint_and_tensor(harmed: Store) -> None:
    big = two_part_state(1)["big"]
    harmed.save({"a": big, "x": 1}, step=1)
    harmed.save({"b": {"c": big}}, step=2, run="b")
    harmed.save({"fine": np.ones(5)}, step=3)
    flip(blobs_by_size(harmed, 1)[-1], keep_time=True)

    report = harmed.verify()

    assert not report.ok
    assert [(found.name, found.names) for found in report.damage] == [("main@1", ("a",)), ("b@2", ("b.c",))]
    assert "the digest is" in report.damage[0].what
    assert report.damage[0].blob == report.damage[1].blob == blobs_by_size(harmed, 1)[-1].name
    mark = json.loads(mark_of(harmed, "b@2").read_bytes())
    assert mark["damage"][0]["names"] == ["b.c"]
    assert not mark_of(harmed, 3).exists()
    assert harmed.verify(3).ok


def test_only_the_tensors_in_the_damaged_part_of_a_pack_are_named(harmed: Store) -> None:
    first = {f"t{i}": np.full(1000, i) for i in range(6)}
    harmed.save(first, step=1)
    harmed.save({name: value for name, value in first.items() if name != "t2"}, step=2)
    (pack,) = blobs_by_size(harmed, 1)
    assert os.path.samefile(pack, blobs_by_size(harmed, 2)[0])
    flip(pack, at=2 * 8000 + 100, keep_time=True)

    report = harmed.verify()

    assert [(found.step, found.names, found.affects) for found in report.damage] == [
        (1, ("t2",), True),
        (2, (), False),
    ]
    assert mark_of(harmed, 1).exists()
    assert not mark_of(harmed, 2).exists()
    assert np.array_equal(harmed.load(2)["t1"], first["t1"])


@pytest.mark.parametrize(
    "how", ["empty directory", "no manifest", "no blobs", "link", "directory", "other step", "short"]
)
def test_what_is_not_a_complete_checkpoint_is_damage(harmed: Store, how: str) -> None:
    harmed.save(two_part_state(1), step=1)
    harmed.save(two_part_state(2), step=2)
    folder = directory_of(harmed, 2)
    misplaced = folder.with_name(f"7{folder.suffix}")
    big = blobs_by_size(harmed, 2)[-1]
    if how == "empty directory":
        shutil.rmtree(folder)
        folder.mkdir()
    elif how == "no manifest":
        (folder / "manifest.json").unlink()
    elif how == "no blobs":
        shutil.rmtree(folder / "blobs")
    elif how == "other step":
        folder.rename(misplaced)
    else:
        big.unlink()
        if how == "link":
            big.symlink_to(blobs_by_size(harmed, 1)[-1])
        elif how == "directory":
            big.mkdir()
        else:
            big.write_bytes(b"short")

    report = harmed.verify()

    assert {found.step for found in report.damage} == {7 if how == "other step" else 2}
    assert report.checkpoint_count == 2
    assert all(found.affects for found in report.damage)
    if how in ("link", "directory", "short", "no blobs"):
        assert any("big" in found.names for found in report.damage)
    harmed.save(two_part_state(3), step=7)
    if how == "other step":  # a whole checkpoint, only in the wrong place: no save takes it away
        misplaced.rename(folder)
    else:
        harmed.save(two_part_state(3), step=2)
        assert not folder.exists()
    assert Store(harmed.path).verify().ok


def test_a_manifest_that_lies_about_its_pieces_is_found(harmed: Store) -> None:
    from dataclasses import replace

    from ckstore.model.manifest.manifest import render
    from ckstore.model.manifest.parse import parse_manifest
    from ckstore.model.names import directory_of as name_of_directory

    harmed.save({f"t{i}": np.full(1000, i) for i in range(3)}, step=1)
    path = directory_of(harmed, 1) / "manifest.json"
    manifest, _ = parse_manifest(path.read_bytes(), where="")
    one, two, *rest = manifest.storages
    storages = (one._replace(extents=(one.extents[0]._replace(offset=two.extents[0].offset),)), two, *rest)
    manifest_id, data = render(replace(manifest, storages=storages), harmed._context.algorithm)
    path.chmod(0o644)
    path.write_bytes(data)
    path.parent.rename(path.parent.with_name(name_of_directory(1, manifest_id)))

    (found,) = harmed.verify().damage

    assert found.names == ("t0",)
    assert why_not_valid(harmed._context, harmed.info(1))


def test_the_mark_goes_when_the_checkpoint_is_found_whole(store: Store) -> None:
    info = store.save(two_part_state(1), step=1)
    big = blobs_by_size(store, 1)[-1]
    flip(big, keep_time=True)
    assert not store.verify().ok
    flip(big, keep_time=True)
    assert mark_of(store, 1).exists(), "the save that heals it does not know of the mark"

    assert not store.verify(quick=True).ok, "it is marked"
    store.verify(sample=0.01)
    assert mark_of(store, 1).exists(), "a part is not enough"
    assert why_not_valid(store._context, info)
    assert store.verify(1).ok
    assert not mark_of(store, 1).exists()
    assert not why_not_valid(store._context, info)


def test_a_mark_that_says_nothing_marks_and_is_removed_by_a_verification(store: Store) -> None:
    info = store.save(two_part_state(1), step=1)
    mark_of(store, 1).write_bytes(b"\0not a mark")
    assert why_not_valid(store._context, info)

    assert store.verify().ok

    assert not why_not_valid(store._context, info)
    assert sorted(path.name for path in directory_of(store, 1).iterdir()) == ["blobs", "manifest.json"]


def test_a_store_opened_for_reading_is_verified_and_left_as_it_is(harmed: Store) -> None:
    harmed.save(two_part_state(1), step=1)
    big = blobs_by_size(harmed, 1)[-1]
    flip(big)
    changed_ns = big.stat().st_mtime_ns

    report = Store.open(harmed.path, readonly=True).verify()

    assert [found.names for found in report.damage] == [("big",)]
    assert not mark_of(harmed, 1).exists()
    assert big.stat().st_mtime_ns == changed_ns


@pytest.mark.parametrize("sample", [0.01, 0.5, 1])
def test_a_sample_reads_a_part_of_the_blobs_and_finds_all_that_is_missing(harmed: Store, sample: float) -> None:
    for step in range(2):
        rng = np.random.default_rng(step)
        harmed.save({"w": rng.integers(0, 256, 8 * MIB, dtype=np.uint8)}, step=step)
    report = harmed.verify(sample=sample)
    assert report.ok
    assert report.sample == sample
    assert report.checked_bytes == MIB * max(1, int(16 * sample))

    blobs_by_size(harmed, 1)[0].unlink()

    assert [found.step for found in harmed.verify(sample=sample).damage] == [1]


@pytest.mark.parametrize("sample", [0, -1, 1.5, float("nan")])
def test_a_sample_that_is_no_part_is_refused(store: Store, sample: float) -> None:
    with pytest.raises(BadInput, match="above 0"):
        store.verify(sample=sample)


def test_progress_rises_to_the_total(store: Store) -> None:
    for step in range(3):
        store.save(two_part_state(step), step=step)
    calls: list[tuple[int, int]] = []

    report = store.verify(progress=lambda done, total: calls.append((done, total)))

    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert {total for _, total in calls} == {disk_bytes(store.path)}
    assert calls[-1][0] == calls[-1][1] == report.checked_bytes


def test_what_is_being_verified_is_not_taken_apart_and_what_went_is_left_out(store: Store) -> None:
    for step in (1, 2):
        store.save(two_part_state(step), step=step)
    done: list[str] = []

    def meanwhile(*_: int) -> None:
        if not done:
            with pytest.raises(InUse, match="open for reading"):
                elsewhere(lambda: store.delete(1))
            elsewhere(lambda: store.delete(2))
            done.append("both")

    report = store.verify(progress=meanwhile)

    assert done == ["both"]
    assert report.ok
    assert report.checkpoint_count == 1


def test_a_progress_that_raises_ends_the_verification_and_leaves_no_thread(store: Store) -> None:
    store.save(two_part_state(1), step=1)

    def stop(*_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.verify(progress=stop)
    assert store.verify().ok


def test_what_fails_in_one_thread_leaves_nothing_open_by_the_others(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others opened the directory of blobs when its lock had been released, and it stayed open."""
    store.save({str(number): np.full(2**19, number) for number in range(8)}, step=1)
    opened, failed = dirfd_stat.open_directory, threading.Event()

    def failing(where: StorePath) -> int:
        if where.name == "blobs" and "checkpoints" in str(where):
            if not failed.is_set():
                failed.set()
                time.sleep(0.05)  # until the others are at it
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            fd = opened(where)
            time.sleep(0.1)  # meanwhile the error ends the verification
            return fd
        return opened(where)

    monkeypatch.setattr("ckstore.fs.dirfd_stat.open_directory", failing)
    with pytest.raises(CkstoreError, match="Too many open files") as caught:  # its traceback keeps the lock
        store.verify()

    assert [name for name in open_below(store.path).values() if "checkpoints" in name] == [], caught


def test_a_blob_that_cannot_be_looked_at_leaves_no_directory_open(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as the error was kept, so was a directory of blobs: a comprehension was what went through them."""
    store.save(two_part_state(1), step=1)
    real, looks, kept = os.stat, [0, 0], list[CkstoreError]()

    def failing(path: Any, **options: Any) -> os.stat_result:
        if str(path).startswith("xxh3-"):
            looks[0] += 1
            if looks[0] == looks[1]:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path, **options)

    monkeypatch.setattr(os, "stat", failing)
    for at in range(1, 100):
        looks[:] = [0, at]
        try:
            store.verify()
        except CkstoreError as error:
            kept.append(error)
        assert [name for name in open_below(store.path).values() if "blobs" in name] == [], f"look {at}"
        if looks[0] < at:
            break

    assert len(kept) > 2
    assert looks[0] < looks[1], "it came to its end"


@pytest.mark.crossed
@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ESTALE, errno.ENOMEM])
@pytest.mark.parametrize("how", ["touched", "rotten"])
def test_a_time_that_cannot_be_set_is_no_damage_and_hides_none(
    harmed: Store, monkeypatch: pytest.MonkeyPatch, code: int, how: str
) -> None:
    harmed.save(two_part_state(1), step=1)
    blob = blobs_by_size(harmed, 1)[-1]
    if how == "touched":
        os.utime(blob)
    else:
        flip(blob, keep_time=True)

    def failing(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "utime", failing)
    report = harmed.verify()

    assert [found.blob for found in report.damage] == ([] if how == "touched" else [blob.name])
    assert report.checked_bytes > blob.stat().st_size, "it was read"


def touched_and_not_to_be_synced(store: Store, monkeypatch: pytest.MonkeyPatch, code: int) -> Path:
    """Save a step of which a program touched a blob, whose fsync fails; return the blob."""
    store.save(two_part_state(1), step=1)
    blob = blobs_by_size(store, 1)[-1]
    os.utime(blob)
    inode, real = blob.stat().st_ino, os.fsync

    def failing(fd: int) -> None:
        if os.fstat(fd).st_ino == inode:
            raise OSError(code, os.strerror(code))
        real(fd)

    monkeypatch.setattr(os, "fsync", failing)
    return blob


@pytest.mark.parametrize("code", [errno.EIO, errno.EREMOTEIO, errno.ENOSPC])
def test_an_fsync_that_the_disk_refuses_is_damage_of_that_blob(
    store: Store, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    blob = touched_and_not_to_be_synced(store, monkeypatch, code)
    report = store.verify()

    assert [found.blob for found in report.damage] == [blob.name]
    assert "cannot be made durable" in report.damage[0].what


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ESTALE, errno.EINTR, errno.ENOTCONN])
def test_an_fsync_that_fails_for_another_reason_than_the_disk_is_no_damage(
    store: Store, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    touched_and_not_to_be_synced(store, monkeypatch, code)
    with pytest.raises(CkstoreError, match=os.strerror(code)):
        store.verify()
    monkeypatch.undo()

    assert not mark_of(store, 1).exists()
    assert store.verify().ok


@pytest.mark.parametrize("how", ["touched", "written into"])
def test_a_time_that_cannot_be_set_after_the_reading_changes_no_verdict(
    harmed: Store, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    harmed.save(two_part_state(1), step=1)
    blob = blobs_by_size(harmed, 1)[-1]
    if how == "touched":
        os.utime(blob)
    else:
        flip(blob)
    real, inode, times = os.utime, blob.stat().st_ino, []

    def failing(where: Any, *args: Any, **options: Any) -> None:
        if isinstance(where, int) and os.fstat(where).st_ino == inode:
            times.append(where)
            # What is right is marked before it is made durable and read; what is wrong is read at once.
            if len(times) > (how == "touched"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(where, *args, **options)

    monkeypatch.setattr(os, "utime", failing)
    report = harmed.verify()

    assert len(times) > (how == "touched")
    assert [found.blob for found in report.damage] == ([] if how == "touched" else [blob.name])
    assert not blob_time.is_stamp(blob.stat().st_mtime_ns), "no save relies on it"


def test_a_small_blob_of_wrong_bytes_is_damage_without_a_flush(harmed: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """100,000 files that a stranger put into a store took as many flushes: minutes of a disk, and 13 s of processor."""
    harmed.save(two_part_state(1), step=1)
    blob = blobs_by_size(harmed, 1)[-1]
    flip(blob)
    before, real, flushed = blob.stat(), os.fsync, list[int]()

    def noted(fd: int) -> None:
        flushed.append(os.fstat(fd).st_ino)
        real(fd)

    monkeypatch.setattr(os, "fsync", noted)
    report = harmed.verify()

    assert [found.blob for found in report.damage] == [blob.name]
    assert before.st_ino not in flushed
    assert blob.stat().st_mtime_ns == before.st_mtime_ns
    assert not blob_time.is_stamp(before.st_mtime_ns), "no save relies on it"


def test_bytes_that_the_disk_cannot_read_are_damage(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save(two_part_state(1), step=1)
    bad = blobs_by_size(store, 1)[-1].stat().st_ino
    real = os.preadv

    def failing(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if os.fstat(fd).st_ino == bad:
            raise OSError(errno.EIO, "Input/output error")
        return real(fd, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", failing)
    with pytest.raises(DamagedBlob, match=r"cannot be read at byte .*Input/output"):
        store.load(1)
    report = store.verify()

    assert report.damage[0].names == ("big",)
    assert "cannot read byte" in report.damage[0].what
    monkeypatch.undo()
    assert store.verify().ok
    assert same_state(store.load(1), two_part_state(1))


@pytest.mark.root
def test_a_rotten_disk_below_the_page_cache_is_found(make_filesystem: Callable[[Any, int], Path]) -> None:
    mountpoint = make_filesystem("ext4", 64)
    store = Store.init(mountpoint / "store", chunk_bytes=MIB)
    pattern = np.random.default_rng(9).integers(0, 256, MIB, dtype=np.uint8)
    store.save({"w": pattern}, step=1)
    os.sync()
    image = mountpoint.with_suffix(".img")
    needle = pattern.tobytes()[4096:8192]
    at = image.read_bytes().find(needle)
    assert at > 0
    assert np.array_equal(store.load(1)["w"], pattern), "it is in the page cache now"
    with image.open("r+b") as disk:
        disk.seek(at)
        disk.write(bytes(64))
    assert np.array_equal(store.load(1)["w"], pattern), "a load is given what the cache holds"

    report = store.verify()

    assert [found.names for found in report.damage] == [("w",)]


BLOBS = st.sampled_from(["", *(f"xxh3-{i:032x}" for i in range(3))])
ENTRIES = st.builds(MarkEntry, BLOBS, st.lists(st.text(max_size=5), max_size=3).map(tuple), st.text())
MARKS = st.builds(Mark, st.text(max_size=30), st.lists(ENTRIES, max_size=4).map(tuple))


@pytest.mark.property
@given(mark=MARKS, other=MARKS)
def test_a_mark_comes_back_and_joined_ones_say_what_both_said(mark: Mark, other: Mark) -> None:
    assert parse_mark(mark.render(), "x") == mark
    assert set(mark.joined(other).entries) == {*mark.entries, *other.entries}
    for entry in mark.entries:
        assert entry not in mark.without(entry.blob).entries


@pytest.mark.property
@given(data=st.binary(max_size=60) | st.sampled_from([b"{}", b'{"damage": 3}', b'{"damage": [1, {"blob": 2}]}', b"[]"]))
def test_any_bytes_are_read_as_a_mark(data: bytes) -> None:
    assert isinstance(parse_mark(data, "x"), Mark)
