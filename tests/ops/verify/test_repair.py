"""`verify(repair=…)` puts right bytes where damaged ones were, from wherever they are, and says what it could not."""

from __future__ import annotations

import array
import errno
import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import Store
from ckstore.errors import BadInput, DamagedBlob, SaveFailed
from ckstore.fs import blob_time, direct, files, links
from ckstore.model.reports.verify_report import VerifyReport
from ckstore.objects import heal
from ckstore.objects.documents import marks
from tests.support.damage import MIB, blobs_by_size, cut, flip, same_state, two_part_state
from tests.support.look import directory_of
from tests.support.stores import check_store

_FIBMAP = 1


@pytest.fixture
def harmed(tmp_path: Path) -> Store:
    """A store that is not looked at after the test."""
    return Store.init(tmp_path / "harmed", chunk_bytes=MIB)


@pytest.fixture
def shared(harmed: Store) -> Store:
    """Three checkpoints with the same bytes and one with others."""
    for run in ("a", "b", "c"):
        harmed.save(two_part_state(1), run=run, step=1)
    harmed.save(two_part_state(2), run="d", step=1)
    return harmed


def canonical(store: Store, digest: str) -> Path:
    return store.path / "blobs" / digest.partition("-")[2][:2] / digest


def own_copy(path: Path) -> None:
    """Give a name an inode of its own, as at the limit of links."""
    shutil.copy2(path, path.with_name("copy"))
    path.with_name("copy").rename(path)


def assert_all_well(store: Store) -> None:
    """Everything loads, nothing is marked, every invariant holds."""
    opened = Store.open(store.path)
    report = opened.verify()
    assert (report.ok, report.damage) == (True, ())
    for info in opened.checkpoints():
        assert same_state(opened.load(info), two_part_state(2 if info.run == "d" else 1))
        assert not (directory_of(opened, info) / "damaged.json").exists()
    check_store(store.path)


def repaired(report: VerifyReport) -> list[tuple[str, int]]:
    assert report.unrepaired == ()
    return [(one.digest, one.checkpoint_count) for one in report.repaired]


def rot_on_disk(path: Path) -> None:
    """Change bytes of a file on the disk and leave the page cache as it is, with the right ones."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        block = array.array("i", [0])
        fcntl.ioctl(file, _FIBMAP, block)
        block_bytes = os.fstatvfs(file.fileno()).f_bsize
    device = os.stat(path).st_dev
    image = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/loop/backing_file").read_text().strip()
    with open(image, "r+b") as disk:
        disk.seek(block[0] * block_bytes)
        disk.write(bytes(block_bytes))
        disk.flush()
        os.fsync(disk.fileno())


# -------------------------------------------------------------------------------------------- from where


@pytest.mark.root
def test_a_copy_that_is_right_in_memory_only_is_a_damaged_one(journaled_tmp_path: Path) -> None:
    store = Store.init(journaled_tmp_path / "store", chunk_bytes=MIB)
    other = Store.init(journaled_tmp_path / "other", chunk_bytes=MIB)
    for one in (store, other):
        one.save(two_part_state(1), run="a", step=1)
    victim = blobs_by_size(store, "a@1")[-1]
    before = victim.read_bytes()
    rot_on_disk(victim)
    assert victim.read_bytes() == before, "the page cache has not seen it"

    assert not store.verify().ok
    victim.read_bytes()  # a second read; had the cache the right bytes, they would be back
    assert repaired(store.verify(repair_from=[other.path])) == [(victim.name, 1)]

    assert_all_well(store)


def test_a_repair_creates_the_quarantine_that_a_user_has_removed(shared: Store, tmp_path: Path) -> None:
    shutil.copytree(shared.path, tmp_path / "backup")
    for _ in range(2):
        victim = blobs_by_size(shared, "a@1")[-1]
        flip(victim, keep_time=True)

        report = shared.verify(repair_from=tmp_path / "backup")

        assert (report.ok, report.unrepaired) == (True, ())
        assert len(os.listdir(shared.path / "quarantine")) == 1
        shutil.rmtree(shared.path / "quarantine")  # after the user has inspected the file

    assert_all_well(shared)


def test_without_another_copy_the_damaged_one_is_put_aside_and_named(shared: Store) -> None:
    victim = blobs_by_size(shared, "a@1")[-1]
    flip(victim, keep_time=True)
    inode = victim.stat().st_ino

    report = shared.verify(repair=True)

    assert not report.ok
    assert [(lost.digest, lost.why) for lost in report.unrepaired] == [(victim.name, "no intact copy exists")]
    assert report.quarantined == (f"quarantine/{victim.name}.{inode}",)
    assert (shared.path / report.quarantined[0]).stat().st_ino == inode
    assert not canonical(shared, victim.name).exists(), "no save links it any more"
    assert [found.name for found in report.damage] == ["a@1", "b@1", "c@1"]
    assert report.whole == ("d@1",)

    shared.save(two_part_state(1), run="e", step=1)

    assert_all_well(shared)


@pytest.mark.parametrize("how", ["flip", "truncate", "delete", "link", "directory"])
def test_a_good_copy_in_the_store_heals_without_writing_one(shared: Store, how: str) -> None:
    victim = blobs_by_size(shared, "b@1")[-1]
    own_copy(victim)
    good = canonical(shared, victim.name).stat().st_ino
    if how == "flip":
        flip(victim, keep_time=True)
    elif how == "truncate":
        cut(victim, 10)
    else:
        victim.unlink()
        if how == "link":
            victim.symlink_to("elsewhere")
        elif how == "directory":
            victim.mkdir()
    assert not shared.verify().ok

    report = shared.verify(repair=True)

    assert report.ok
    assert repaired(report) == [(victim.name, 1)]
    assert report.repaired[0].source == "the store"
    assert victim.stat().st_ino == good
    assert_all_well(shared)


def test_a_damaged_canonical_copy_is_replaced_by_the_good_one_of_a_checkpoint(shared: Store) -> None:
    own = blobs_by_size(shared, "c@1")[-1]
    own_copy(own)
    flip(blobs_by_size(shared, "a@1")[-1], keep_time=True)

    report = shared.verify(repair=True)

    assert repaired(report) == [(own.name, 2)]
    assert {path.stat().st_ino for path in shared.path.rglob(own.name)} == {own.stat().st_ino}
    assert_all_well(shared)


def no_memory(*_: object) -> None:
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOMEM, errno.ESTALE])
def test_a_lack_of_means_puts_no_right_copy_aside(harmed: Store, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    harmed.save(two_part_state(1), run="a", step=1)
    victim = blobs_by_size(harmed, "a@1")[-1]
    own_copy(victim)
    flip(victim, keep_time=True)
    good = canonical(harmed, victim.name)

    def failing(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(direct, "aligned_buffer", failing)
    report = harmed.verify(repair=True)

    assert good.exists(), "the only right copy stays where it is"
    assert [(lost.digest, lost.why) for lost in report.unrepaired] == [(victim.name, os.strerror(code))]
    assert report.quarantined == ()
    monkeypatch.undo()
    assert repaired(harmed.verify(repair=True)) == [(victim.name, 1)]
    assert_all_well(harmed)


def test_a_copy_that_cannot_be_read_now_is_no_reason_to_leave_the_next_one_out(
    harmed: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harmed.save(two_part_state(1), run="a", step=1)
    shutil.copytree(harmed.path, tmp_path / "one")
    shutil.copytree(harmed.path, tmp_path / "two")
    victim = blobs_by_size(harmed, "a@1")[-1]
    flip(victim, keep_time=True)
    read = direct.read_range

    def failing(path: Any, start: int, stop: int) -> bytearray:
        if str(path).startswith(str(tmp_path / "one")):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return read(path, start, stop)

    monkeypatch.setattr(direct, "read_range", failing)

    assert harmed.verify(repair_from=[tmp_path / "one", tmp_path / "two"]).unrepaired == ()
    assert harmed.verify().ok


def test_a_lack_of_means_is_the_reason_also_for_a_name_with_other_bytes(
    shared: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (canonical(shared, path.name) for path in blobs_by_size(shared, "a@1")[-2:])
    one.unlink()
    os.link(other, one)
    monkeypatch.setattr(direct, "aligned_buffer", no_memory)

    report = shared.verify(repair=True)

    assert [(lost.digest, lost.why) for lost in report.unrepaired] == [(one.name, "Cannot allocate memory")]
    assert report.quarantined == ()
    monkeypatch.undo()
    assert shared.verify(repair=True).ok
    assert_all_well(shared)


def test_a_lack_of_means_is_the_reason_also_for_a_manifest(
    shared: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(directory_of(shared, "a@1"), tmp_path / "backup")
    manifest = directory_of(shared, "a@1") / "manifest.json"
    flip(manifest, at=manifest.stat().st_size // 2)
    real = files.read_file

    def failing(path: Any, **options: Any) -> bytes:
        if isinstance(path, Path):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        return real(path, **options)

    monkeypatch.setattr(files, "read_file", failing)
    report = shared.verify(repair_from=tmp_path / "backup")
    monkeypatch.undo()

    assert [lost.why for lost in report.unrepaired] == [f"a@1: Too many open files ({tmp_path}/backup/manifest.json)"]
    assert shared.verify(repair_from=tmp_path / "backup").ok


def test_a_lack_of_means_is_the_reason_also_for_a_source(
    shared: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(directory_of(shared, "a@1"), tmp_path / "backup" / "a")
    victim = blobs_by_size(shared, "a@1")[-1]
    flip(victim, keep_time=True)
    real = os.scandir

    def failing(folder: Any) -> Any:
        if folder == f"{tmp_path}/backup/a":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), folder)
        return real(folder)

    monkeypatch.setattr(os, "scandir", failing)
    report = shared.verify(repair_from=tmp_path / "backup")
    monkeypatch.undo()

    assert [lost.why for lost in report.unrepaired] == [f"Too many open files ({tmp_path}/backup/a)"]
    assert repaired(shared.verify(repair_from=tmp_path / "backup")) == [(victim.name, 3)]


def test_what_lacks_memory_to_look_for_right_copies_still_reports_the_damage(
    shared: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip(blobs_by_size(shared, "b@1")[-1], keep_time=True)
    monkeypatch.setattr(direct, "aligned_buffer", no_memory)

    report = shared.verify()

    assert [found.name for found in report.damage] == ["a@1", "b@1", "c@1"]
    assert report.healable == ()


def test_a_blob_that_cannot_be_made_durable_is_written_again(shared: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes are right where they are read; whether the disk has them is unknown, and a second fsync says yes."""
    victim = blobs_by_size(shared, "a@1")[-1]
    os.utime(victim)
    inode, real, synced = victim.stat().st_ino, os.fsync, []

    def failing(fd: int) -> None:
        if os.fstat(fd).st_ino == inode:
            synced.append(fd)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd)

    monkeypatch.setattr(os, "fsync", failing)
    report = shared.verify(repair=True)

    assert repaired(report) == [(victim.name, 3)]
    assert report.quarantined == ()
    assert len(synced) == 1
    monkeypatch.undo()
    assert victim.stat().st_ino != inode
    assert_all_well(shared)


@pytest.mark.parametrize("kind", ["store", "copied checkpoint", "directory of copies", "plain files"])
def test_right_bytes_come_from_elsewhere(shared: Store, tmp_path: Path, kind: str) -> None:
    source = tmp_path / "source"
    if kind == "store":
        other = Store.init(source, chunk_bytes=MIB)
        other.save({"also": two_part_state(1)["big"], "and": two_part_state(1)}, run="x")
    elif kind == "copied checkpoint":
        shutil.copytree(directory_of(shared, "a@1"), source)
    elif kind == "directory of copies":
        shutil.copytree(directory_of(shared, "d@1"), source / "old" / "d")
        shutil.copytree(directory_of(shared, "a@1"), source / "old" / "deep" / "a")
    else:
        source.mkdir()
        for number, path in enumerate(blobs_by_size(shared, "a@1")):
            shutil.copy(path, source / f"file-{number}.bin")
    victim = blobs_by_size(shared, "a@1")[-1]
    flip(victim, keep_time=True)
    before = {path: path.read_bytes() for path in source.rglob("*") if path.is_file()}

    report = shared.verify(repair_from=source)

    assert report.ok
    assert repaired(report) == [(victim.name, 3)]
    assert report.repaired[0].source.startswith(str(source))
    assert {path: path.read_bytes() for path in source.rglob("*") if path.is_file()} == before
    assert_all_well(shared)


def test_bytes_elsewhere_that_are_damaged_too_are_not_used(shared: Store, tmp_path: Path) -> None:
    shutil.copytree(directory_of(shared, "a@1"), tmp_path / "bad")
    shutil.copytree(directory_of(shared, "a@1"), tmp_path / "good")
    victim = blobs_by_size(shared, "a@1")[-1]
    flip(victim, keep_time=True)
    flip(tmp_path / "bad" / "blobs" / victim.name, at=7, keep_time=True)

    assert not shared.verify(repair_from=tmp_path / "bad").ok
    report = shared.verify(repair_from=[tmp_path / "bad", tmp_path / "good"])

    assert report.repaired[0].source.startswith(str(tmp_path / "good"))
    assert_all_well(shared)


def test_a_link_in_a_source_is_not_followed(shared: Store, tmp_path: Path) -> None:
    victim = blobs_by_size(shared, "a@1")[-1]
    shutil.copy(victim, tmp_path / "elsewhere")
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / victim.name).symlink_to(tmp_path / "elsewhere")
    flip(victim, keep_time=True)

    assert not shared.verify(repair_from=tmp_path / "source").ok


# ----------------------------------------------------------------------------------------------- pieces


def test_a_pack_is_put_together_from_pieces_that_other_packs_have(harmed: Store) -> None:
    first = {f"t{i}": np.full(1000, i) for i in range(6)}
    harmed.save(first, run="a", step=1)
    other = Store.init(harmed.path.with_name("other"), chunk_bytes=MIB)
    other.save({"x": first["t2"], "y": np.ones(70), "z": first["t4"]}, step=1)
    (pack,) = blobs_by_size(harmed, "a@1")
    for number in (2, 4):
        flip(pack, at=number * 8000 + 100, keep_time=True)

    report = harmed.verify(repair_from=other.path)

    assert report.ok
    assert repaired(report) == [(pack.name, 1)]
    assert "pieces in " in report.repaired[0].source
    assert all(np.array_equal(harmed.load("a@1")[name], value) for name, value in first.items())
    check_store(harmed.path)


def test_two_damaged_copies_of_a_pack_make_one_that_is_right(harmed: Store) -> None:
    state = {f"t{i}": np.full(1000, i) for i in range(6)}
    for run in ("a", "b"):
        harmed.save(state, run=run, step=1)
    own = blobs_by_size(harmed, "b@1")[0]
    own_copy(own)
    flip(own, at=5, keep_time=True)
    flip(blobs_by_size(harmed, "a@1")[0], at=8000 * 5 + 1, keep_time=True)

    report = harmed.verify(repair=True)

    assert repaired(report) == [(own.name, 2)]
    assert len(report.quarantined) == 2
    assert harmed.verify().ok


def test_a_short_pack_is_filled_up_and_a_piece_that_is_nowhere_is_not_made_up(harmed: Store) -> None:
    state = {f"t{i}": np.full(1000, i) for i in range(4)}
    harmed.save(state, run="a", step=1)
    (pack,) = blobs_by_size(harmed, "a@1")
    whole = pack.read_bytes()
    cut(pack, 24_001)
    assert not harmed.verify(repair=True).ok
    other = Store.init(harmed.path.with_name("other"), chunk_bytes=MIB)
    other.save({"a": state["t3"]}, step=1)

    assert harmed.verify(repair_from=other.path).ok
    assert pack.read_bytes() == whole


# -------------------------------------------------------------------------------- manifests, names, links


def test_a_manifest_comes_back_from_a_copy_of_that_very_checkpoint(shared: Store, tmp_path: Path) -> None:
    for run in ("a", "d"):
        shutil.copytree(directory_of(shared, f"{run}@1"), tmp_path / "backup" / run)
    manifest = directory_of(shared, "a@1") / "manifest.json"
    flip(manifest, at=manifest.stat().st_size // 2)
    assert not shared.verify(repair=True).ok

    report = shared.verify(repair_from=tmp_path / "backup")

    assert report.ok
    assert report.repaired[0].source == str(tmp_path / "backup" / "a" / "manifest.json")
    assert_all_well(shared)


def test_a_manifest_of_another_save_at_that_step_is_not_taken(shared: Store, tmp_path: Path) -> None:
    other = Store.init(tmp_path / "other", chunk_bytes=MIB)
    other.save(two_part_state(3), run="a", step=1)
    (directory_of(shared, "a@1") / "manifest.json").unlink()

    report = shared.verify(repair_from=other.path)

    assert not report.ok
    assert report.repaired == ()


def test_two_names_that_were_swapped_are_right_again_and_no_other_is_blamed(shared: Store) -> None:
    one, other = blobs_by_size(shared, "a@1")[-2:]
    assert one.stat().st_size == other.stat().st_size
    one.rename(one.with_name("between"))
    other.rename(one)
    one.with_name("between").rename(other)

    report = shared.verify()

    assert {found.name for found in report.damage} == {"a@1"}
    assert all(blob_time.is_stamp(path.stat().st_mtime_ns) for path in blobs_by_size(shared, "b@1"))
    fixed = shared.verify(repair=True)
    assert (fixed.ok, fixed.quarantined) == (True, ())
    assert_all_well(shared)


def test_a_canonical_name_of_other_bytes_is_put_aside_and_made_again(shared: Store) -> None:
    one, other = (canonical(shared, path.name) for path in blobs_by_size(shared, "a@1")[-2:])
    one.unlink()
    os.link(other, one)

    report = shared.verify()

    assert [(found.kind, found.subject) for found in report.findings if found.harmful] == [("name", one.name)]
    assert report.damage == ()
    fixed = shared.verify(repair=True)
    assert fixed.ok
    assert fixed.quarantined == ()
    assert os.path.samefile(one, next(p for p in blobs_by_size(shared, "a@1") if p.name == one.name))
    assert_all_well(shared)


def test_where_no_further_name_is_possible_copies_are_made(shared: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = blobs_by_size(shared, "b@1")[-1]
    own_copy(victim)
    flip(victim, keep_time=True)
    real = links.link

    def limited(source: Path, target: Path) -> None:
        if os.stat(str(source)).st_nlink >= 3:
            raise OSError(errno.EMLINK, "Too many links", str(source))
        real(source, target)

    monkeypatch.setattr(links, "link", limited)

    assert shared.verify(repair=True).ok
    monkeypatch.undo()
    assert_all_well(shared)


# --------------------------------------------------------------------------------------------- by saving


@pytest.mark.crossed
@pytest.mark.parametrize("which", [1, -1], ids=["pack", "chunk"])
@pytest.mark.parametrize("how", ["own copy", "deleted", "no blobs", "quarantined"])
def test_saving_the_same_bytes_heals_what_verify_found(shared: Store, how: str, which: int) -> None:
    victim = blobs_by_size(shared, "b@1")[which]
    if how == "own copy":
        own_copy(victim)
        flip(victim, keep_time=True)
    elif how == "deleted":
        victim.unlink()
    elif how == "no blobs":
        shutil.rmtree(victim.parent)
    else:
        flip(victim, keep_time=True)
    assert not shared.verify(repair=how == "quarantined").ok or how != "quarantined"

    Store.open(shared.path).save(two_part_state(1), run="e", step=1)

    assert_all_well(shared)


def test_a_marked_checkpoint_that_cannot_be_healed_does_not_fail_a_save(
    shared: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs_by_size(shared, "b@1")[-1].unlink()
    shared.verify()

    def refused(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(heal, "put_name", refused)
    info = shared.save(two_part_state(1), run="e", step=1)
    monkeypatch.undo()

    assert sorted(os.listdir(directory_of(shared, info))) == ["blobs", "manifest.json"]
    with pytest.raises(DamagedBlob):
        shared.load("b@1")
    shared.save(two_part_state(1), run="f", step=1)
    assert_all_well(shared)


def test_a_mark_stays_when_what_was_put_right_could_not_be_made_durable(
    shared: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(directory_of(shared, "a@1"), tmp_path / "backup")
    flip(blobs_by_size(shared, "a@1")[-1], keep_time=True)  # one inode, of three checkpoints
    names, mark = directory_of(shared, "b@1") / "blobs", directory_of(shared, "b@1") / "damaged.json"
    real = files.sync_directory

    def failing(path: Path) -> None:
        if str(path) == str(names):
            raise OSError(errno.EIO, "Input/output error")
        real(path)

    monkeypatch.setattr(marks, "_unsure", set())
    monkeypatch.setattr(files, "sync_directory", failing)
    assert shared.verify(repair_from=tmp_path / "backup").unrepaired
    monkeypatch.setattr(files, "sync_directory", real)
    again = shared.verify(repair_from=tmp_path / "backup")

    assert again.ok, "it reads whole, until the power goes"
    assert mark.exists()

    monkeypatch.setattr(marks, "_unsure", set())  # as in another process
    assert_all_well(shared)


# ------------------------------------------------------------------------------------------------ bounds


def test_an_error_while_one_blob_is_repaired_is_told_and_the_others_are_repaired(
    shared: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(directory_of(shared, "a@1"), tmp_path / "backup")
    *_, one, other = blobs_by_size(shared, "a@1")
    for path in (one, other):
        flip(path, keep_time=True)
    real: Callable[..., None] = files.create_blob

    def failing(path: Path, data: memoryview) -> None:
        if path.name == one.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, data)

    monkeypatch.setattr(files, "create_blob", failing)
    report = shared.verify(repair_from=tmp_path / "backup")
    monkeypatch.undo()

    assert [(lost.digest, lost.why) for lost in report.unrepaired] == [(one.name, "No space left on device")]
    assert [found.digest for found in report.repaired] == [other.name]
    assert {found.blob for found in report.damage} == {one.name}
    assert shared.verify(repair_from=tmp_path / "backup").ok
    assert_all_well(shared)


def test_one_checkpoint_is_repaired_by_its_ref_and_with_a_quick_look(shared: Store) -> None:
    blobs_by_size(shared, "b@1")[-1].unlink()

    report = shared.verify("b@1", quick=True, repair=True)

    assert report.ok
    assert_all_well(shared)


@pytest.mark.parametrize("options", [{"repair": True}, {"repair_from": "."}])
def test_a_store_for_reading_is_not_repaired(shared: Store, options: dict[str, Any]) -> None:
    with pytest.raises(SaveFailed, match="reading only"):
        Store.open(shared.path, readonly=True).verify(**options)


def test_a_source_that_is_not_a_directory_is_refused(shared: Store, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(BadInput, match="not a directory"):
        shared.verify(repair_from=tmp_path / "file")


def test_a_reader_of_the_damaged_copy_keeps_what_it_has_open(shared: Store, tmp_path: Path) -> None:
    shutil.copytree(directory_of(shared, "a@1"), tmp_path / "backup")
    flip(blobs_by_size(shared, "a@1")[-1], keep_time=True)

    with shared.open_checkpoint("a@1") as checkpoint:
        report = shared.verify(repair_from=tmp_path / "backup")
        assert report.ok
        assert np.array_equal(checkpoint["big"], two_part_state(1)["big"])
    assert_all_well(shared)


def test_a_verification_recommends_a_repair_where_it_would_heal(shared: Store) -> None:
    path = blobs_by_size(shared, "a@1")[-1]
    own_copy(path)  # the copies of the others stay right
    flip(path)

    report = shared.verify()

    assert report.healable == (path.name,)
    assert not shared.verify(quick=True).healable
    done = shared.verify(repair=True)
    assert ([one.digest for one in done.repaired], done.healable) == ([path.name], ())


def test_where_no_right_copy_is_left_no_repair_is_recommended(shared: Store) -> None:
    flip(blobs_by_size(shared, "d@1")[-1])
    report = shared.verify()
    assert report.damage
    assert report.healable == ()


def test_the_only_right_copy_is_never_called_unused(shared: Store) -> None:
    path = blobs_by_size(shared, "d@1")[-1]
    path.unlink()  # only its canonical name is left

    report = shared.verify()

    assert report.healable == (path.name,)
    assert [found for found in report.findings if found.kind == "unused"] == []
    shared.gc()
    assert shared.verify(repair=True).ok
    assert_all_well(shared)
