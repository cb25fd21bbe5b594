"""A filesystem that purges by age takes nothing that was used of late, and times tell whether a program wrote."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from ckstore import NoSuchRef, Store
from ckstore.fs import blob_time, dirfd_stat
from tests.purge import histories
from tests.support.coverage import covered, lane_seed
from tests.support.loopfs import loop_filesystem
from tests.support.requirements import CRASH_FULL, require
from tests.support.shared_folder import shared_folder
from tests.support.stores import check_store

pytestmark = [pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")]

_DAY_NS = 86400 * 10**9
_PLACES = ("memory", "ext4", "ext4 with whole seconds", "xfs", "btrfs", "shared", "shared with whole seconds")
_COUNT, _FULL_COUNT = 6, 500
_BASE = torch.arange(300_000.0)


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder on a filesystem, with times as it keeps them."""
    with ExitStack() as mounted:
        if request.param == "memory":
            yield tmp_path
        elif request.param.startswith("shared"):
            (tmp_path / "real").mkdir()
            lacks = "fractions" if "whole" in request.param else ""
            yield mounted.enter_context(shared_folder(tmp_path / "real", tmp_path / "shown", lacks=lacks, locks=True))
        else:
            kind = request.param.partition(" ")[0]
            small = ("-I", "128") if "whole" in request.param else ()
            yield mounted.enter_context(loop_filesystem(kind, 160, tmp_path, mkfs_options=small))


def blobs_of(store: Store) -> list[Path]:
    """The blobs of a store, the largest last."""
    return sorted(store.path.glob("blobs/*/*"), key=lambda path: path.stat().st_size)


def age(path: Path, days: float) -> None:
    """Make all that is below `path` older."""
    for inode in {found.stat().st_ino: found for found in path.rglob("*") if found.is_file()}.values():
        status = inode.stat()
        back_ns = int(days * _DAY_NS)
        os.utime(inode, ns=(status.st_atime_ns - back_ns, status.st_mtime_ns - back_ns))


def purge(path: Path, by: str, days: int) -> list[str]:
    """Delete what was not used for so many days; return the names."""
    command = ["find", str(path), "!", "-type", "d", by, f"+{days - 1}", "-print", "-delete"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("place", _PLACES, indirect=True)
def test_no_history_loses_what_was_used_within_the_window(
    place: Path, request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str]
) -> None:
    require(shutil.which("rsync") is not None, "needs rsync")
    torch.set_num_threads(1)
    count, seed = (_FULL_COUNT if CRASH_FULL else _COUNT), lane_seed()

    for number in range(count):
        histories.live(place, seed + number)

    name = request.node.callspec.params["place"]
    with capfd.disabled():
        print(f"\n{covered('purge', name, histories=count, seed=seed)}", file=sys.stderr, flush=True)


@pytest.mark.parametrize("place", _PLACES, indirect=True)
def test_a_write_is_told_from_a_stamp_on_every_filesystem(place: Path) -> None:
    path = place / "blob"
    path.write_bytes(b"x" * 100)
    before_ns = time.time_ns()
    for how, kind in ((blob_time.stamp, "stamp"), (blob_time.mark_suspect, "suspect")):
        with path.open("rb") as file:
            how(file.fileno())
        status = path.stat()
        assert blob_time.is_stamp(status.st_mtime_ns) == (kind == "stamp")
        assert blob_time.is_suspect(status.st_mtime_ns) == (kind == "suspect")
        # Never earlier than the write, which a backup of what is newer would miss, and hardly later.
        assert before_ns <= status.st_mtime_ns <= before_ns + 301 * 10**9
        assert abs(status.st_atime_ns - before_ns) < 10 * 10**9

        for write in (lambda: path.write_bytes(b"y"), lambda: os.utime(path), lambda: os.truncate(path, 3)):
            if _second_could_fit():
                continue
            write()
            written_ns = path.stat().st_mtime_ns
            assert not blob_time.is_stamp(written_ns)
            assert not blob_time.is_suspect(written_ns)


def _second_could_fit() -> bool:
    """Whether a filesystem with whole seconds gives a write of now the time of a stamp, as in one second of 150."""
    return any(int(time.time() + ahead) % 300 in (38, 94) for ahead in (0, 0.5))


def test_of_times_that_people_and_programs_choose_none_is_a_stamp() -> None:
    for second in range(0, 86400, 60):  # full minutes, as in `touch -d 12:00`
        for fraction_ns in (0, 500_000_000, 999_999_999):
            assert not blob_time.is_stamp(second * 10**9 + fraction_ns)
            assert not blob_time.is_suspect(second * 10**9 + fraction_ns)
    # An hour more or less, as by a copy from a filesystem that keeps local time, changes nothing.
    for at_ns in range(0, 10**13, 10**11 - 7):
        assert blob_time.is_stamp(at_ns) == blob_time.is_stamp(at_ns + 3600 * 10**9)


@pytest.mark.parametrize("by", ["-mtime", "-atime"])
def test_a_base_that_each_save_uses_outlives_any_purge(tmp_path: Path, by: str) -> None:
    for day in range(0, 40, 2):
        with Store.open_or_init(tmp_path / "store") as store:
            store.save({"base": _BASE, "w": torch.full((5,), float(day))}, step=day)
        age(tmp_path, 2)
        purge(tmp_path, by, 7)

    with Store.open(tmp_path / "store") as store:
        assert torch.equal(store.load("latest")["base"], _BASE)
        whole = {f"main@{step}" for step in range(0, 40, 2)} - {found.name for found in store.verify().damage}
    assert {"main@34", "main@36", "main@38"} <= whole
    assert "main@0" not in whole


def test_one_process_renews_the_stores_own_files_once_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.init(tmp_path / "store") as store:
        store.config.undo_by_hand_s = 60
        for step in range(5):
            store.save({"base": _BASE}, step=step)
            age(tmp_path, 2)
            now_s = time.time() + 2 * 86400
            monkeypatch.setattr(store._context.known, "own_files_renewed_s", now_s - 3.5 * 86400)
            purge(tmp_path, "-mtime", 7)
        assert (tmp_path / "store" / "store.json").exists()
        assert (tmp_path / "store" / "config.json").exists()


def test_a_save_renews_times_at_most_once_a_day(tmp_path: Path) -> None:
    with Store.init(tmp_path / "store") as store:
        store.save({"base": _BASE}, step=1)
        age(tmp_path, 0.5)
        first_ns = blobs_of(store)[-1].stat().st_mtime_ns
        store.save({"base": _BASE}, step=2)
        assert blobs_of(store)[-1].stat().st_mtime_ns == first_ns
        age(tmp_path, 0.51)
        store.save({"base": _BASE}, step=3)

        status = blobs_of(store)[-1].stat()
        assert blob_time.is_stamp(status.st_mtime_ns)
        assert min(status.st_mtime_ns, status.st_atime_ns) > time.time_ns() - _DAY_NS / 2
        assert status.st_nlink == 4


def test_saving_the_same_step_again_renews_the_checkpoint_that_is_there(tmp_path: Path) -> None:
    with Store.init(tmp_path / "store") as store:
        info = store.save({"base": _BASE}, step=1)
        age(tmp_path, 30)
        assert store.save({"base": _BASE}, step=1).id == info.id
        assert purge(tmp_path / "store" / "checkpoints", "-mtime", 7) == []
    check_store(tmp_path / "store")


def test_a_store_of_the_draft_is_converted_blob_by_blob(tmp_path: Path) -> None:
    with Store.init(tmp_path / "store") as store:
        store.save({"base": _BASE, "w": torch.ones(70_000)}, step=1)
        for blob in blobs_of(store):
            os.utime(blob, ns=(10**18, 10**18))
        assert store.verify(quick=True).ok
        store.save({"base": _BASE, "w": torch.zeros(70_000)}, step=2)

        old = [blob for blob in blobs_of(store) if blob.stat().st_mtime_ns == 10**18]
        assert [blob.stat().st_nlink for blob in old] == [2], "the one that the second save did not use"
        store.touch()
        assert purge(tmp_path, "-mtime", 7) == []
        assert torch.equal(store.load(1)["base"], _BASE)


def test_touch_renews_old_checkpoints_and_leaves_suspect_blobs_suspect(tmp_path: Path) -> None:
    with Store.init(tmp_path / "store") as store:
        for step in (1, 2):
            store.save({"base": _BASE, "w": torch.full((70_000,), float(step))}, step=step, run="a")
        store.save({"other": torch.ones(70_000)}, step=1, run="b")
        written = blobs_of(store)[-1]
        os.utime(written)
        age(tmp_path, 30)

        report = store.touch(run="a")
        assert (report.checkpoint_count, report.blob_count, report.refused) == (2, 3, ())
        assert str(report).startswith("renewed the times of 2 checkpoints (3 blobs, ")
        assert not blob_time.is_stamp(written.stat().st_mtime_ns)
        purge(tmp_path, "-mtime", 7)
        assert torch.equal(store.load("a@1")["base"], _BASE)
        assert torch.equal(store.load("a@2")["base"], _BASE)
        with pytest.raises(NoSuchRef):
            store.load("b@1")


@pytest.mark.parametrize("how", ["touch", "cp -r", "tar"])
def test_what_was_restored_is_read_once_and_stamped_again(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ckstore.objects import blobs

    path = tmp_path / "store"
    with Store.init(path) as store:
        store.save({"base": _BASE}, step=1)
    if how == "touch":
        subprocess.run(["find", path, "-exec", "touch", "{}", "+"], check=True)
    elif how == "cp -r":
        subprocess.run(["cp", "-r", path, tmp_path / "copy"], check=True)
        path = tmp_path / "copy"
    else:
        subprocess.run(["tar", "-cf", tmp_path / "a.tar", "-C", tmp_path, "store"], check=True)
        (tmp_path / "back").mkdir()
        subprocess.run(["tar", "-xf", tmp_path / "a.tar", "-C", tmp_path / "back"], check=True)
        path = tmp_path / "back" / "store"
    read: list[int] = []  # inode numbers: after cp -r a checkpoint has copies of its own
    real: Callable[..., os.stat_result | None] = blobs.verified

    def counted(path: Path, digest: str, nbytes: int) -> os.stat_result | None:
        read.append(dirfd_stat.status(path).st_ino)
        return real(path, digest, nbytes)

    monkeypatch.setattr(blobs, "verified", counted)
    with Store.open(path) as store:
        for step in (2, 3):
            assert store.save({"base": _BASE}, step=step).new_bytes == 0
        assert len(read) == len(set(read)) == (2 if how == "cp -r" else 1)
        assert blob_time.is_stamp(blobs_of(store)[-1].stat().st_mtime_ns)


def test_an_incremental_backup_has_every_new_blob(tmp_path: Path) -> None:
    with Store.init(tmp_path / "store") as store:
        store.save({"base": _BASE}, step=1)
        subprocess.run(["cp", "-a", tmp_path / "store", tmp_path / "back"], check=True)
        age(tmp_path, 30)
        since = f"@{int(time.time())}"
        store.save({"base": _BASE, "w": torch.ones(70_000)}, step=2)
        done = subprocess.run(
            ["tar", "-cf", tmp_path / "new.tar", f"--newer-mtime={since}", "-C", tmp_path, "store"],
            check=True,
            capture_output=True,
        )
        assert done.stderr == b""
    extract = ["tar", "-xf", f"{tmp_path}/new.tar", "-C", f"{tmp_path}/back", "--strip-components=1"]
    subprocess.run(extract, check=True)
    with Store.open(tmp_path / "back") as store:
        found = store.load("main@2")
    assert torch.equal(found["base"], _BASE)
    assert torch.equal(found["w"], torch.ones(70_000))


def test_a_write_after_touch_has_listed_a_checkpoint_is_not_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.init(tmp_path / "store") as store:
        store.save({"base": _BASE}, step=1)
        blob = blobs_of(store)[-1]
        listed = dirfd_stat.statuses

        def then_written(folder: Any) -> list[tuple[str, os.stat_result]]:
            found = listed(folder)
            if any(name == blob.name for name, _ in found):
                os.utime(blob)  # as a program that writes into it at this moment
            return found

        monkeypatch.setattr(dirfd_stat, "statuses", then_written)
        store.touch()
        monkeypatch.undo()

        assert not blob_time.is_stamp(blob.stat().st_mtime_ns)
        assert store.save({"base": _BASE}, step=2).new_bytes == 0
    check_store(tmp_path / "store")
