"""Objects in a directory: other processes, other programs, other hosts, and filesystems that lack something."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import BadInput, ReadOnlyStore, RemoteDenied, RemoteError, RemoteFull, RemoteUnavailable, Store
from ckstore.fs import files, links
from ckstore.model.doctor.place import PlaceFacts
from ckstore.model.host import Reach
from ckstore.remote.service import directory_objects
from ckstore.remote.service.directory_objects import DirectoryObjects
from ckstore.remote.service.target import Target
from tests.support.mounts import mount, unmount
from tests.support.requirements import require_fuse, require_root
from tests.support.shared_folder import shared_folder
from tests.support.stores import check_store

MIB = 2**20


def opened(folder: Path) -> DirectoryObjects:
    return DirectoryObjects(Target("directory", str(folder)))


@contextmanager
def small(folder: Path, options: str) -> Iterator[Path]:
    """Mount a filesystem in memory."""
    require_root()
    folder.mkdir()
    mount(Path("none"), folder, "tmpfs", options)
    try:
        yield folder
    finally:
        unmount(folder)


_COUNTING = """
import sys
from ckstore.remote.service.directory_objects import DirectoryObjects
from ckstore.remote.service.target import Target
objects, name = DirectoryObjects(Target("directory", sys.argv[1])), sys.argv[2]
for _ in range(int(sys.argv[3])):
    while True:
        there = objects.head("condemned.json")
        value = int(objects.get("condemned.json", 100).split()[0])
        if objects.update("condemned.json", b"%d %s" % (value + 1, name.encode()), there.tag) is not None:
            break
"""


def counting(folder: Path, name: str, count: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", _COUNTING, str(folder), name, str(count)])


def test_updates_of_several_processes_are_never_lost(tmp_path: Path) -> None:
    objects = opened(tmp_path)
    objects.put("condemned.json", b"0")
    processes = [counting(tmp_path, name, 50) for name in "abc"]
    assert [process.wait(60) for process in processes] == [0, 0, 0]

    assert (objects.get("condemned.json", 100) or b"").split()[0] == b"150"


def test_an_update_waits_for_another_one_that_has_compared_the_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = opened(tmp_path)
    expected = objects.put("condemned.json", b"0").tag
    rename, late = directory_objects._rename, list[Future[str | None]]()

    def rename_late(*arguments: Any) -> Any:
        if not late:
            late.append(thread.submit(objects.update, "condemned.json", b"late", expected))
            # It cannot end before this update, so this wait is in vain unless both hold the lock.
            wait(late, 0.5)
        return rename(*arguments)

    monkeypatch.setattr(directory_objects, "_rename", rename_late)
    with ThreadPoolExecutor(1) as thread:
        assert objects.update("condemned.json", b"first", expected) is not None
        assert late[0].result() is None

    assert objects.get("condemned.json", 100) == b"first"


def test_a_killed_writer_leaves_a_complete_object_and_no_lasting_leftover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = opened(tmp_path)
    objects.put("condemned.json", b"0")
    for round_ in range(6):
        process = counting(tmp_path, "a", 1_000_000)
        before = objects.get("condemned.json", 100)
        while objects.get("condemned.json", 100) == before and process.poll() is None:
            time.sleep(0.01)
        time.sleep(0.003 * round_)
        process.send_signal(signal.SIGKILL)
        process.wait(20)
        # Its lock ended with it.
        there = objects.head("condemned.json")
        assert there is not None
        value = int((objects.get("condemned.json", 100) or b"").split()[0])
        assert objects.update("condemned.json", b"%d me" % (value + 1), there.tag) is not None
    left = tmp_path / ".incoming/left"
    left.write_bytes(b"half of an object")
    opened(tmp_path).put("x", b"1")
    assert left.exists()
    monkeypatch.setattr(directory_objects, "_LEFT_S", -1.0)
    opened(tmp_path).put("x", b"1")

    assert list((tmp_path / ".incoming").iterdir()) == []
    assert [one.key for one in objects.list("")] == ["condemned.json", "x"]


def test_a_forked_child_can_use_the_objects(tmp_path: Path) -> None:
    objects = opened(tmp_path)
    objects.put("x", b"1")
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10)
        objects.put("y", b"2")
        os._exit(0 if (objects.get("x", 1), opened(tmp_path).get("y", 1)) == (b"1", b"2") else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert objects.get("y", 1) == b"2"


def test_a_forked_child_can_close_the_objects_whatever_a_thread_of_its_parent_did(tmp_path: Path) -> None:
    objects = opened(tmp_path)
    with objects._workers._mutex:  # no thread of the child releases it
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(10)
            objects.close()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0


def test_each_version_has_its_own_tag(tmp_path: Path) -> None:
    """Also within a tick of the clock, and if a file gets the inode number of a removed one."""
    objects = opened(tmp_path)
    marks = [objects.send("x", b"12345678") for _ in range(300)]

    assert len({*marks}) == 300
    assert [objects.update("x", b"87654321", mark) for mark in marks[:-1]] == [None] * 299
    # Also where a clock went back since the version before was written.
    later_ns = time.time_ns() + 3600 * 10**9
    os.utime(tmp_path / "x", ns=(later_ns, later_ns))
    objects.send("x", b"12345678")
    assert (tmp_path / "x").stat().st_mtime_ns > later_ns


def test_empty_folders_are_removed_and_created_while_others_write(tmp_path: Path) -> None:
    objects, other = opened(tmp_path), opened(tmp_path)
    for number in range(200):
        objects.put(f"checkpoints/main/{number % 3}/x/manifest.json", b"1")
        other.delete([f"checkpoints/main/{number % 3}/x/manifest.json"])

    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == []


def test_a_folder_that_is_removed_before_an_object_gets_its_name_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects, real = opened(tmp_path), links.rename
    removed: list[bool] = []

    def rename(source: Any, target: Any, **more: Any) -> None:
        if not removed:
            removed.append(True)
            os.rmdir(tmp_path / "refs")
        real(source, target, **more)

    monkeypatch.setattr(links, "rename", rename)
    objects.put("refs/a.json", b"1")

    assert objects.get("refs/a.json", 10) == b"1"


def test_foreign_files_and_symlinks_are_not_objects(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "m").mkdir()
    objects = opened(tmp_path / "m")
    objects.put("refs/a.json", b"1")
    (tmp_path / "m/refs/b.json").symlink_to("a.json")
    (tmp_path / "m/pins").symlink_to(tmp_path / "outside")
    (tmp_path / "m/claims").touch()
    (tmp_path / "m/condemned.json").mkdir()

    assert [one.key for one in objects.list("")] == ["claims", "refs/a.json"]
    with pytest.raises(RemoteError, match="not a regular file"):
        objects.get("refs/b.json", 10)
    for key in ("pins/x.json", "claims/x/y.json", "condemned.json"):
        with pytest.raises(RemoteError):
            objects.put(key, b"1")
    assert list((tmp_path / "outside").iterdir()) == []
    assert list((tmp_path / "m/.incoming").iterdir()) == []


def test_a_full_disk_is_reported_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with small(tmp_path / "m", "size=1m") as folder:
        objects = opened(folder)
        with pytest.raises(RemoteFull, match="No space left"):
            objects.put("blobs/ab/x", bytes(2 * MIB))

        assert list((folder / ".incoming").iterdir()) == []
        objects.put("blobs/ab/x", bytes(1000))


def test_an_unwritable_directory_is_reported(tmp_path: Path) -> None:
    with small(tmp_path / "m", "ro") as folder:
        store = Store.init(tmp_path / "store")
        with pytest.raises(RemoteDenied, match="Read-only file system"):
            opened(folder).put("x", b"1")
        with pytest.raises(RemoteError, match="there is no remote"):
            store.remotes.add("m", folder)


def test_a_missing_or_unmounted_directory_accepts_nothing(tmp_path: Path) -> None:
    store = Store.init(tmp_path / "store")
    store.save({"w": np.arange(10)}, step=1)
    store.remotes.add("m", tmp_path / "m")
    (tmp_path / "m").rename(tmp_path / "away")
    with pytest.raises(RemoteUnavailable, match="there is no directory") as raised:
        store.push(1)
    assert "mount" in raised.value.hint
    (tmp_path / "m").mkdir()
    with pytest.raises(RemoteError, match=r"remote.json is missing"):
        store.push(1)
    assert list((tmp_path / "m").iterdir()) == []


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EACCES, errno.EDQUOT])
def test_an_error_of_the_filesystem_is_one_of_a_remote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    objects = opened(tmp_path)

    def fails(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(files, "write_all", fails)
    wanted = {errno.EACCES: RemoteDenied, errno.EDQUOT: RemoteFull}.get(code, RemoteUnavailable)
    with pytest.raises(wanted, match=f"writing x at {tmp_path} failed: {os.strerror(code)}"):
        objects.put("x", b"1")
    assert list(objects.list("")) == []


@pytest.mark.parametrize("lacks", ["link", ""])
def test_a_store_mirrors_to_a_mounted_place_of_several_hosts(tmp_path: Path, lacks: str) -> None:
    """Like a mounted drive or bucket: without hardlinks, and with locks that may not reach other hosts."""
    require_fuse()
    (tmp_path / "real").mkdir()
    with shared_folder(tmp_path / "real", tmp_path / "mnt", "rclone", lacks=lacks) as mounted:
        store = Store.open_or_init(tmp_path / "store", chunk_bytes=MIB, mirror=mounted / "m")
        for step in (1, 2):
            store.save({"w": np.arange(1000) + step}, step=step)
        store.push(all=True)
        abilities = store.remotes.get("mirror").abilities
        assert abilities is not None
        assert (abilities.create, abilities.cas) == (not lacks, "no")
        assert store.evict(1).evicted
        assert np.array_equal(store.load(1)["w"], np.arange(1000) + 1)
        with pytest.raises(RemoteError, match=r"exclusive"):
            store.remotes.prune("mirror")
        store.remotes.prune("mirror", exclusive=True)
        with Store.clone(mounted / "m", tmp_path / "clone") as clone:
            assert [info.step for info in clone.checkpoints()] == [1, 2]
            assert np.array_equal(clone.load(2)["w"], np.arange(1000) + 2)
        store.config.mirror = None
        store.close()
    check_store(tmp_path / "store")


def test_a_place_where_a_hardlink_is_an_error_of_the_disk_is_a_remote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some mounted buckets respond like this."""
    store = Store.init(tmp_path / "store")
    store.save({"w": 1}, step=1)

    def fails(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr("ckstore.remote.service.directory_objects.links.link", fails)
        patched.setattr(directory_objects, "reach_of_locks", lambda *_: Reach(None))
        patched.setattr(directory_objects, "examine", lambda path: PlaceFacts(str(path), kind="fuse.gcsfuse"))
        entry = store.remotes.add("m", tmp_path / "m")
        assert entry.abilities is not None
        assert not entry.abilities.create
        store.push(1, "m")
    assert Store.open(f"file://{tmp_path}/m").load(1) == {"w": 1}


def test_a_filesystem_of_one_host_without_hardlinks_has_locks(tmp_path: Path) -> None:
    require_fuse()
    (tmp_path / "real").mkdir()
    with shared_folder(tmp_path / "real", tmp_path / "mnt", "bindfs", lacks="link") as mounted:
        (mounted / "m").mkdir()
        objects = opened(mounted / "m")
        first = objects.send("condemned.json", b"1")
        assert objects.update("condemned.json", b"2", first) is not None
        assert objects.update("condemned.json", b"3", first) is None
        assert [objects.create("refs/a.json", data) for data in (b"1", b"1", b"2")] == [True, True, False]


def test_a_directory_without_fsync_is_left_to_its_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SMB has no fsync for directories."""
    objects, real = opened(tmp_path), os.fsync

    def fsync(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    objects.put("refs/a.json", b"1")
    objects.delete(["refs/a.json"])

    assert list(objects.list("")) == []


def test_a_case_insensitive_filesystem_is_refused(tmp_path: Path) -> None:
    require_fuse()
    (tmp_path / "real").mkdir()
    with shared_folder(tmp_path / "real", tmp_path / "mnt", "smb", lacks="case") as mounted:
        store = Store.init(tmp_path / "store")
        with pytest.raises(RemoteError, match="does not distinguish A from a"):
            store.remotes.add("m", mounted / "m")
        store.close()


def test_files_in_a_shared_directory_get_its_permissions(tmp_path: Path) -> None:
    folder = tmp_path / "group"
    folder.mkdir()
    folder.chmod(0o2770)
    store = Store.init(tmp_path / "store")
    store.save({"w": np.arange(10)}, step=1)
    store.remotes.add("group", folder)
    store.push(1)
    store.remotes.add("own", tmp_path / "m")

    modes = {path.stat().st_mode & 0o7777 for path in folder.rglob("*") if path.is_dir()}
    assert modes == {0o2770}
    assert {path.stat().st_mode & 0o7777 for path in folder.rglob("*") if path.is_file()} == {0o660}
    assert (tmp_path / "m").stat().st_mode & 0o7777 == 0o700


def test_folders_created_by_many_threads_get_the_permissions_of_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m").chmod(0o770)
    objects, real = opened(tmp_path / "m"), links._give_owner_and_mode

    def slow(*given: Any) -> None:
        time.sleep(0.01)  # in which others find the folder, and make theirs in it
        real(*given)

    monkeypatch.setattr(links, "_give_owner_and_mode", slow)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: objects.put(f"checkpoints/main/{number}/x/manifest.json", b"1"), range(32)))

    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "m").rglob("*") if path.is_dir()} == {0o770}


def test_a_remote_in_a_directory_is_not_opened_as_a_store(tmp_path: Path) -> None:
    store = Store.init(tmp_path / "store")
    store.save({"w": 1}, step=1)
    store.remotes.add("m", tmp_path / "m")
    store.push(1)
    with pytest.raises(Exception, match="there is no store") as raised:
        Store.open(tmp_path / "m")
    assert "it is a remote" in raised.value.hint  # type: ignore[attr-defined]
    with pytest.raises(BadInput, match="is neither empty nor a store"):
        Store.init(tmp_path / "m")
    assert Store.open(f"file://{tmp_path}/m").load(1) == {"w": 1}


def test_a_write_to_a_store_opened_by_url_is_refused_with_advice_that_can_work(tmp_path: Path) -> None:
    own = Store.init(tmp_path / "own")
    own.remotes.add("other", tmp_path / "remote")
    own.save({"w": 1}, step=1)
    own.push(1, "other")
    url = f"file://{tmp_path / 'remote'}"

    with pytest.raises(ReadOnlyStore, match="was opened by its URL, which allows reading only") as raised:
        Store.open(url).tag("good", 1)

    assert raised.value.hint.endswith(f"Store.clone({url!r}, PATH)")
    Store.clone(url, tmp_path / "clone").tag("good", 1)
