"""On a filesystem that other hosts have what is dropped waits for a grace; then any host frees it, while others work.

The hosts are on a local disk, each with a catalog of its own, which says that others may be at work; the clock of the
filesystem is put forward. With two FUSE mounts: `test_hosts_that_rotate_free_what_they_drop`.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import CkstoreWarning, RetentionPolicy, Store
from ckstore.errors import BadInput, CkstoreError, InsufficientSpace, InUse, SaveFailed
from ckstore.fs import files, links, statx
from ckstore.fs.dirfd_stat import StorePath
from ckstore.fs.lock_files import LockFile
from ckstore.objects import trash
from ckstore.objects.shared import grace
from ckstore.objects.staging import Staging
from ckstore.ops.free.make_room import how_to_free
from ckstore.ops.save import save
from tests.support.checkpoint_dirs import checkpoint_dir
from tests.support.crashing import run_and_kill_instead
from tests.support.descriptors import open_below
from tests.support.requirements import representatives, require_fuse, require_root
from tests.support.shared_folder import shared_folder
from tests.support.stores import check_blobs, check_links

MIB = 2**20


def state(seed: int) -> dict[str, Any]:
    return {"w": np.random.default_rng(seed).integers(0, 256, MIB, dtype=np.uint8)}


def open_as(host: str, path: Path) -> Store:
    return Store.open_or_init(path, chunk_bytes=MIB, catalog_path=path.parent / host / "its.db")


def blob_bytes(store: Store) -> int:
    found = [path.stat() for path in store.path.rglob("xxh3-*")]
    return sum({status.st_ino: status.st_size for status in found}.values())


@pytest.fixture
def one(tmp_path: Path) -> Store:
    """A host with the store open, and the steps 1 and 2."""
    store = open_as("one", tmp_path / "store")
    for step in (1, 2):
        store.save(state(step), step=step)
    return store


@pytest.fixture
def two(one: Store, tmp_path: Path) -> Store:
    """Another host."""
    return open_as("two", tmp_path / "store")


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts the clock of the filesystem forward by so many hours."""
    begin = grace.begin

    def put_forward(hours: float) -> None:
        def beginning(layout: Any, grace_s: float) -> grace.Grace:
            found = begin(layout, grace_s)
            return grace.Grace(found.now_ns + int(hours * 3600 * 10**9), found.grace_ns)

        monkeypatch.setattr(grace, "begin", beginning)

    return put_forward


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
def test_what_was_dropped_is_freed_by_any_host_after_the_grace(one: Store, two: Store, later: Any) -> None:
    one.delete(1)
    (entry,) = (one.path / "trash").iterdir()
    for path in [*entry.rglob("*"), entry]:  # it was written long before
        os.utime(path, (time.time() - 10**6,) * 2)
    assert one.gc().freed_count == two.gc().freed_count == 0
    assert blob_bytes(one) == 2 * MIB

    later(0.9)
    two.gc()
    assert len(os.listdir(one.path / "trash")) == 1  # still the whole checkpoint
    later(1.1)
    two.gc()  # takes it apart; the blob has lost its last use, and waits from now on
    later(0.9)
    assert two.gc().freed_count == 0
    assert blob_bytes(one) == 2 * MIB
    later(2.2)
    freed = two.gc()

    assert (freed.freed_count, freed.freed_bytes, blob_bytes(one)) == (1, MIB, MIB)
    assert os.listdir(one.path / "trash") == []
    assert one.verify().ok


def refuse_lock(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let the lock service fail for one file of ``locks/``."""
    real = fcntl.flock

    def failing(fd: int, kind: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").endswith(f"/locks/{name}"):
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        real(fd, kind)

    monkeypatch.setattr(fcntl, "flock", failing)


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
def test_a_lock_service_that_fails_is_not_another_gc(one: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_lock(monkeypatch, "trash")

    with pytest.raises(InUse, match="/locks/trash cannot be locked: No locks available") as caught:
        one.gc()

    assert "lock service" in caught.value.hint


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
def test_a_lock_service_that_fails_after_a_save_is_said(one: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    one.config.retention = RetentionPolicy(keep_last=1)
    refuse_lock(monkeypatch, "trash")

    info = one.save(state(3), step=3)

    (warning,) = [said for said in info.warnings if "retention of the run" in said]
    assert "the checkpoint is saved" in warning
    assert "/locks/trash cannot be locked: No locks available" in warning


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
def test_a_gc_of_another_host_is_one(one: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckstore.ops.free.gc._START_TIMEOUT_S", 0.05)
    one.config.retention = RetentionPolicy(keep_last=1)
    lock = LockFile.take(one._context.layout.locks / "trash", exclusive=True, timeout_s=0.0)

    with pytest.raises(InUse, match="another gc is running"):
        one.gc()
    info = one.save(state(3), step=3)
    lock.close()

    assert not any("retention of the run" in said for said in info.warnings)


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
def test_a_blob_that_another_host_took_meanwhile_gets_its_name_back(
    one: Store, two: Store, later: Any, tmp_path: Path
) -> None:
    one.delete(1)
    later(1.1)
    one.gc()
    (condemned,) = (one.path / "trash").glob("xxh3-*")
    os.link(condemned, tmp_path / "claim")  # by a save that still had the old name in its cache

    later(2.2)
    assert two.gc().freed_count == 0

    assert blob_bytes(one) == 2 * MIB
    assert two.save(state(1), step=5).new_bytes == 0
    os.unlink(tmp_path / "claim")
    assert two.verify().ok


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
def test_what_died_while_it_made_a_lock_is_swept_after_the_grace(one: Store, two: Store, later: Any) -> None:
    folder = one.path / "locks"
    one.gc()
    names = set(os.listdir(folder))
    assert names >= {"run-main", "trash"}
    (folder / ".new-0123456789ab").touch()
    os.link(folder / "run-main", folder / ".new-ba9876543210")  # it died after it had made the lock
    (folder / ".new-of-a-user").mkdir()

    later(0.9)
    two.gc()
    assert set(os.listdir(folder)) == names | {".new-0123456789ab", ".new-of-a-user"}
    later(1.1)
    two.gc()
    assert set(os.listdir(folder)) == names | {".new-of-a-user"}
    (folder / ".new-0123456789ab").touch()
    one.gc(exclusive=True)
    assert set(os.listdir(folder)) == names | {".new-of-a-user"}


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
def test_that_nothing_comes_back_is_durable_when_a_checkpoint_was_deleted(
    one: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another host may have dropped an older checkpoint of the step at this moment, and not durably."""
    done: list[str] = []
    sync, move = files.sync_directory, trash.move_to_trash

    def syncing(folder: Any) -> None:
        done.append(folder.name)
        sync(folder)

    def moving(layout: Any, path: Any, lock: Any = None, **more: Any) -> Any:
        done.append("dropped")
        return move(layout, path, lock, **more)

    monkeypatch.setattr(files, "sync_directory", syncing)
    monkeypatch.setattr(trash, "move_to_trash", moving)
    one.delete(1)

    after = done[done.index("dropped") + 1 :]
    assert after[:2] == ["trash", "main"]


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
def test_what_an_nfs_client_keeps_for_who_has_it_open_stops_no_gc(
    one: Store, two: Store, later: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot be unlinked, and goes with its last user; found on NFS, by `tests.nfs.machine`."""
    unlink = links.unlink

    def refusing(path: Any, **named: Any) -> None:
        if Path(str(path)).name.startswith(".nfs"):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        unlink(path, **named)

    one.delete(1)
    (dropped,) = (one.path / "trash").iterdir()
    kept = dropped / "blobs/.nfs00000000000002a200000001"
    os.rename(next((dropped / "blobs").iterdir()), kept)
    (dropped / "blobs/other").touch()
    one.delete(2)
    later(1.1)
    monkeypatch.setattr(links, "unlink", refusing)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CkstoreWarning)  # gc warns of each name that it could not remove
        two.gc()
    assert [path.name for path in dropped.rglob("*") if path.is_file()] == [kept.name]
    assert len(list((one.path / "trash").glob("main@*"))) == 1  # what else was to go is gone
    monkeypatch.setattr(links, "unlink", unlink)
    later(2.2)
    two.gc()
    assert not list((one.path / "trash").glob("main@*"))


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
def test_a_time_that_never_comes_ends_no_grace_and_begins_none(one: Store, two: Store, later: Any) -> None:
    one.delete(1)
    (entry,) = (one.path / "trash").iterdir()
    os.utime(entry, (time.time() + 10**9,) * 2)
    later(-24 * 365)  # the clock of the filesystem was set back by a year
    dated = entry.stat()
    time.sleep(0.05)  # longer than a tick of the kernel's clock
    two.gc()
    assert entry.stat().st_ctime > dated.st_ctime
    assert entry.stat().st_mtime_ns == dated.st_mtime_ns

    later(24 * 365 + 1.5)  # relative to what it is set back to
    two.gc()

    assert not entry.exists()


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
def test_gc_says_that_something_waits_and_what_frees_it(one: Store, later: Any) -> None:
    one.delete(1)

    assert one.gc().explanation == (
        "1 entry of trash/ waits for the grace period (config.grace_s), since other hosts may be using the store; "
        "if none does, ckstore gc --exclusive frees at once"
    )
    assert one.gc(dry_run=True).explanation == "would free 1 blob, 1.0 MiB; all of it at once only with --exclusive"
    one.save(state(3), step=3)
    assert "prune --keep-last 1 and then gc --exclusive would free" in how_to_free(one._context)


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
def test_a_dead_save_that_cannot_be_looked_at_does_not_stay_locked(one: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = one._context.layout
    Staging.create(layout, "main", 7).lock.release()

    def failing(*_: object) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(statx, "refresh", failing)
    failed: dict[str, OSError | CkstoreError] = {}  # their tracebacks keep what they were about
    trash.sweep_staging(layout, failed, grace.begin(layout, 3600))

    assert [getattr(error, "errno", 0) for error in failed.values()] == [errno.ESTALE]
    assert list(open_below(one.path / "staging").values()) == [], failed


def test_a_dead_save_is_swept_after_the_grace(one: Store, two: Store, later: Any) -> None:
    staging = Staging.create(two._context.layout, "main", 7)
    staging.lock.release()
    assert one.gc().swept_stagings == 0

    later(1.1)

    assert one.gc().swept_stagings == 1


def replace_and_die(path: Path) -> None:
    """Save step 1 again, and die before the older checkpoint is dropped."""
    saving = open_as("one", path)
    again = saving.info(1)  # a forked process replaces only what it continues
    assert run_and_kill_instead(
        lambda: saving.save(state(9), step=1, if_exists="replace", parent=again), save, "drop_older"
    )


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
def test_what_a_host_left_superseded_another_drops_after_the_grace(one: Store, two: Store, later: Any) -> None:
    older = one.info(1)
    replace_and_die(one.path)

    assert np.array_equal(two.load(1)["w"], state(9)["w"])
    assert np.array_equal(two.load(older.id)["w"], state(1)["w"])
    would = two.gc(dry_run=True)
    assert (would.freed_bytes, would.waits_for_grace) == (MIB, True)
    two.gc()
    assert two.info(older.id).superseded

    later(1.1)
    two.gc()

    assert {info.id for info in two.checkpoints(superseded=True)} == {two.info(1).id, two.info(2).id}
    assert np.array_equal(two.load(1)["w"], state(9)["w"])
    assert blob_bytes(one) == 3 * MIB
    for hours in (2.2, 3.3):
        later(hours)
        two.gc()
    assert blob_bytes(one) == 2 * MIB


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
def test_what_a_host_left_superseded_goes_at_once_where_no_other_is_at_work(one: Store, two: Store) -> None:
    replace_and_die(one.path)

    assert two.gc(exclusive=True).freed_bytes == MIB

    assert np.array_equal(two.load("latest")["w"], state(9)["w"])
    assert len(two.checkpoints(superseded=True)) == 2


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
def test_until_then_a_checkpoint_can_be_put_back(one: Store, two: Store) -> None:
    directory = checkpoint_dir(one.path, "main", 1)
    one.delete(1)
    one.gc()
    (dropped,) = (one.path / "trash").iterdir()

    dropped.rename(directory)

    assert np.array_equal(open_as("two", one.path).load(1)["w"], state(1)["w"])
    assert one.verify().ok


@pytest.mark.parametrize("seconds", [-1, float("nan"), True, "1h", 10**9])
def test_a_grace_that_is_no_time_is_refused(one: Store, seconds: Any) -> None:
    with pytest.raises(BadInput, match="grace_s must be seconds from 0 to a year"):
        one.config.grace_s = seconds
    assert one.config.grace_s == 3600


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
def test_the_grace_is_a_setting_of_the_store(one: Store, two: Store) -> None:
    one.config.grace_s = 0
    two.delete(1)

    assert sum(two.gc().freed_bytes for _ in range(3)) == MIB
    one.config.grace_s = None
    assert two.config.grace_s == 3600


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
def test_the_count_of_links_is_asked_of_the_server_both_times(
    one: Store, later: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(statx, "refresh", lambda path: asked.append(str(path)))
    one.delete(1)
    later(1.1)
    one.gc()
    (condemned,) = (one.path / "trash").glob("xxh3-*")
    assert any("/blobs/" in path and path.endswith(condemned.name.split(".")[0]) for path in asked)
    asked.clear()
    later(2.2)
    one.gc()

    # Its age first, then the count, when nothing else is between that and its end.
    assert sum(path.endswith(f"trash/{condemned.name}") for path in asked) == 2


def filling_at(monkeypatch: pytest.MonkeyPatch, at: int, code: int, meanwhile: Callable[[], object]) -> None:
    """Let the write of the blob number `at` fail, after `meanwhile`."""
    create, written = files.create_blob, itertools.count(1)

    def failing(path: StorePath, data: memoryview) -> None:
        if next(written) == at:
            meanwhile()
            raise OSError(code, os.strerror(code), str(path))
        create(path, data)

    monkeypatch.setattr(files, "create_blob", failing)


def three_blobs() -> dict[str, Any]:
    return {"w": np.random.default_rng(7).integers(0, 256, 3 * MIB, dtype=np.uint8)}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_on_a_full_disk_what_only_the_failed_save_ever_had_is_freed_at_once(
    code: int, one: Store, two: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    claimed: list[Path] = []

    def claim() -> None:
        """As a save of the other host that has the same first bytes."""
        (of_staging,) = (one.path / "staging").iterdir()
        deadline = time.monotonic() + 60
        while not claimed and time.monotonic() < deadline:  # the other threads write, and then link
            for mine in sorted((of_staging / "blobs").iterdir()):
                with suppress(FileNotFoundError):
                    os.link(one.path / "blobs" / mine.name[5:7] / mine.name, tmp_path / "claim")
                    claimed.append(mine)
                    break

    filling_at(monkeypatch, 3, code, claim)

    with pytest.raises(InsufficientSpace):
        one.save(three_blobs(), step=3, retries=0)

    assert [os.listdir(one.path / name) for name in ("staging", "trash")] == [[], []]
    assert blob_bytes(one) == 3 * MIB  # of the steps 1 and 2, and what the other host claimed
    assert (one.path / "blobs" / claimed[0].name[5:7] / claimed[0].name).exists()
    os.unlink(tmp_path / "claim")
    assert two.verify().ok


def test_what_fails_for_another_reason_stays_for_the_grace(one: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    filling_at(monkeypatch, 3, errno.EIO, lambda: None)

    with pytest.raises(SaveFailed):
        one.save(three_blobs(), step=3, retries=0)

    assert blob_bytes(one) == 4 * MIB
    assert one.save(three_blobs(), step=3).new_bytes == MIB


def read_mapped(store: Store, ref: str, seed: int) -> None:
    assert np.array_equal(store.load(ref, mmap=True)["w"], state(seed)["w"])


@pytest.mark.parametrize("lacks", representatives(["", "exchange"]))
@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
def test_hosts_that_rotate_free_what_they_drop(lacks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two mounts that know nothing of each other's locks; each saves its own run, and the other reads and maps it.

    In `make crash`; the rules one by one are above.
    """
    require_root()
    require_fuse()
    (tmp_path / "real").mkdir()
    with ExitStack() as mounted:
        stores = []
        for name in ("one", "two"):
            place = mounted.enter_context(shared_folder(tmp_path / "real", tmp_path / name, lacks=lacks))
            monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"cache {name}"))
            stores.append(Store.open_or_init(place / "store", chunk_bytes=MIB))
        stores[0].config.grace_s = 0
        stores[0].config.retention = RetentionPolicy(keep_last=3)
        for step in range(6):
            for seed, (mine, other) in enumerate((stores, stores[::-1])):
                run = f"of-{seed}"
                mine.save(state(100 * seed + step), run=run, step=step)
                mine.save(state(100 * seed + step + 50), run=run, step=step, if_exists="replace")
                read_mapped(other, f"{run}@{step}", 100 * seed + step + 50)
                # Three of each run, those that were dropped last, and what each save replaced.
                assert blob_bytes(mine) <= 2 * (3 + 4) * MIB
        for store in stores:
            assert {info.step for info in store.checkpoints()} == {3, 4, 5}
            assert store.verify().ok
        for store in stores:  # so that libfuse has nothing open
            store.close()
    check_links(tmp_path / "real/store")
    check_blobs(tmp_path / "real/store")
