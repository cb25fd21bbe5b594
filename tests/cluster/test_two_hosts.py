"""Each act of a store on a filesystem that two hosts have: two mounts that know nothing of each other's locks.

``CKSTORE_CRASH=full`` tries them with locks of the cluster and of each host, and with caches of names and attributes,
as clients of network filesystems have them; else without any of these.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import RetentionPolicy, Store
from ckstore.errors import CkstoreError, InUse
from ckstore.fs import locks
from ckstore.fs.locks import DirectoryLock
from ckstore.objects import publish, store_locks
from ckstore.objects.checkpoints import id_at
from ckstore.objects.documents import atomic_file
from ckstore.ops.free import drop, gc
from tests.support.coverage import covered
from tests.support.loopfs import loop_filesystem
from tests.support.requirements import CRASH_FULL, require_fuse, require_root
from tests.support.shared_folder import shared_folder
from tests.support.stores import check_blobs, check_links

MIB = 2**20
_DEADLINE_S = 60.0
_CACHE_S = 1.0
_DISK_MIB = 64
_KEPT = 3
_WAITING = 6
"""Of each run: what was dropped last, and what each gc has condemned since."""
_NAMES_BYTES = 2 * MIB
"""Manifests, and directories: of checkpoints, and one for each two digits with which digests begin."""
_KINDS = [(0.0, False)]
if CRASH_FULL:
    _KINDS += [(0.0, True), (_CACHE_S, False), (_CACHE_S, True)]

pytestmark = [
    pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning"),
    pytest.mark.crash,
]


def state(seed: int) -> dict[str, Any]:
    return {"w": np.random.default_rng(seed).integers(0, 256, MIB, dtype=np.uint8)}


def seen(look: Callable[[], object]) -> None:
    """Wait until a host sees what the other did: its caches may hold what was for a while, and never half of it."""
    deadline = time.monotonic() + _DEADLINE_S
    while True:
        try:
            if look():
                return
        except (CkstoreError, OSError):
            if time.monotonic() > deadline:
                raise
        if time.monotonic() > deadline:
            pytest.fail("the other host never saw it")
        time.sleep(0.05)


@pytest.fixture(params=_KINDS, ids=lambda kind: f"{kind[0]:g} s, {'cluster' if kind[1] else 'host'}")
def hosts(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Store]]:
    """The store as two hosts have it open, on a filesystem of its own; afterwards its links and blobs are right."""
    require_root()
    require_fuse()
    cache_s, locks_reach = request.param
    with loop_filesystem("ext4", _DISK_MIB, tmp_path) as real:
        with ExitStack() as mounted:
            stores = []
            for name in ("one", "two"):
                place = mounted.enter_context(shared_folder(real, tmp_path / name, cache_s=cache_s, locks=locks_reach))
                monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"cache {name}"))
                stores.append(Store.open_or_init(place / "store", chunk_bytes=MIB))
            yield stores
            for store in stores:
                store.close()
        check_links(real / "store")
        check_blobs(real / "store")


def test_each_act_of_a_host_is_seen_whole_by_the_other(hosts: list[Store], tmp_path: Path) -> None:
    one, two = hosts

    def holds(ref: Any, seed: int) -> bool:
        return bool(np.array_equal(two.load(ref)["w"], state(seed)["w"]))

    for step in (1, 2, 3):
        one.save(state(step), step=step)
    seen(lambda: [info.step for info in two.checkpoints()] == [1, 2, 3])
    one.save(state(9), step=2, if_exists="replace")
    seen(lambda: holds(2, 9))
    one.tag("best", 2)
    one.annotate(2, {"loss": 0.5})
    one.pin(3, "for the paper")
    seen(lambda: two.info("best").metrics == {"loss": 0.5})
    seen(lambda: [pin.reason for pin in two.pins()] == ["for the paper"])

    (tmp_path / "files").mkdir()
    (tmp_path / "files/a.txt").write_text("of the files")
    one.commit(tmp_path / "files", step=7, run="files")
    seen(lambda: two.checkout("files@7", tmp_path / "out").paths == ("a.txt",))
    assert (tmp_path / "out/a.txt").read_text() == "of the files"
    seen(lambda: two.export_safetensors("main@2", tmp_path / "exported"))
    assert (tmp_path / "exported").exists()

    one.prune(RetentionPolicy(keep_last=1), "main")
    seen(lambda: [info.name for info in two.checkpoints()] == ["main@3", "main@2", "files@7"])
    one.config.grace_s = 0
    seen(lambda: two.config.grace_s == 0)
    seen(lambda: freed(hosts))
    assert two.verify().ok
    assert one.reindex().checkpoint_count == 3


def freed(hosts: list[Store]) -> bool:
    """Let each collect; return whether only the blobs of the checkpoints are left: steps 2 and 3, and the files."""
    for store in hosts:
        store.gc()
    return len(list((hosts[1].path / "blobs").glob("*/*"))) == 3


@pytest.mark.skipif(not CRASH_FULL, reason="300 saves: CKSTORE_CRASH=full; ten are in tests/ops/free/test_grace.py")
@pytest.mark.timeout(1800)
def test_three_hundred_saves_of_each_host_stay_within_what_is_kept(
    hosts: list[Store], capsys: pytest.CaptureFixture[str]
) -> None:
    """What a host reads it has mapped for as long as the other keeps it; what ``df`` says is what is kept and waits."""
    hosts[0].config.grace_s = 0
    hosts[0].config.retention = RetentionPolicy(keep_last=_KEPT)
    begun = taken_bytes(hosts[0])
    most_bytes = 0
    mapped = [deque[tuple[dict[str, Any], dict[str, Any]]](maxlen=_KEPT) for _ in hosts]
    for step in range(300):
        for seed, (mine, other) in enumerate((hosts, hosts[::-1])):
            made = state(1000 * seed + step)
            mine.save(made, run=f"of-{seed}", step=step)
            seen(partial(has_mapped, other, f"of-{seed}@{step}", made, mapped[seed]))
            assert all(np.array_equal(there["w"], wanted["w"]) for there, wanted in mapped[seed])
            blobs = {path.stat().st_ino: path.stat().st_blocks * 512 for path in mine.path.rglob("xxh3-*")}
            assert sum(blobs.values()) <= 2 * (_KEPT + _WAITING) * MIB
            most_bytes = max(most_bytes, taken_bytes(mine) - begun)
    with capsys.disabled():
        print("\n" + covered("two hosts", "300 saves each", violations=0, saves=600, df_bytes=most_bytes))
    assert most_bytes <= 2 * (_KEPT + _WAITING) * MIB + _NAMES_BYTES


def taken_bytes(store: Store) -> int:
    """Return what ``df`` says that is in use, as the host sees it."""
    room = os.statvfs(store.path)
    return (room.f_blocks - room.f_bfree) * room.f_frsize


def has_mapped(
    store: Store, ref: str, made: dict[str, Any], mapped: deque[tuple[dict[str, Any], dict[str, Any]]]
) -> bool:
    """Map a checkpoint, and keep that; whether it is right."""
    found = store.load(ref, mmap=True)
    mapped.append((found, made))
    return bool(np.array_equal(found["w"], made["w"]))


@pytest.fixture(params=[True, False], ids=["locks of the cluster", "locks of the host"])
def rivals(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[bool, list[Store]]]:
    """Whether the locks reach the other host, and the store as two hosts have it open."""
    require_root()
    require_fuse()
    (tmp_path / "real").mkdir()
    with ExitStack() as mounted:
        stores = []
        for name in ("one", "two"):
            place = mounted.enter_context(shared_folder(tmp_path / "real", tmp_path / name, locks=request.param))
            monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"cache {name}"))
            stores.append(Store.open_or_init(place / "store", chunk_bytes=MIB))
        yield request.param, stores
        for store in stores:
            store.close()


def test_where_locks_reach_other_hosts_one_host_at_a_time_replaces_drops_collects_and_sets(
    rivals: tuple[bool, list[Store]], monkeypatch: pytest.MonkeyPatch
) -> None:
    reach, (one, two) = rivals
    for module in (publish, drop):
        monkeypatch.setattr(module, "_RUN_TIMEOUT_S", 0.0)
    monkeypatch.setattr(atomic_file, "_TIMEOUT_S", 0.0)
    monkeypatch.setattr(gc, "_START_TIMEOUT_S", 0.0)
    one.save(state(1), step=1)
    two.save(state(2), step=2)
    layout = one._context.layout
    lock_run = partial(store_locks.lock_run, layout, "main", exclusive=True, timeout_s=0.0)

    def trash() -> DirectoryLock:
        lock = store_locks.try_trash(layout)
        assert lock is not None
        return lock

    for held, act in (
        (lock_run, lambda: two.save(state(3), step=1, if_exists="replace")),
        (lock_run, lambda: two.delete(2)),
        (trash, two.gc),
        (partial(atomic_file.changing, layout), lambda: setattr(two.config, "grace_s", 7)),
    ):
        with held():
            if reach:
                with pytest.raises(InUse):
                    act()
            else:
                act()
        if reach:
            act()
    seen(lambda: [info.step for info in one.checkpoints()] == [1])
    seen(lambda: np.array_equal(one.load(1)["w"], state(3)["w"]))
    seen(lambda: one.config.grace_s == 7)


def test_where_locks_reach_other_hosts_a_tag_waits_for_a_host_that_drops(rivals: tuple[bool, list[Store]]) -> None:
    reach, (one, two) = rivals
    one.save(state(1), step=1)
    seen(lambda: [info.step for info in two.checkpoints()] == [1])
    with ThreadPoolExecutor(1) as other:
        with store_locks.lock_run(one._context.layout, "main", exclusive=True):
            tagging = other.submit(two.tag, "best", 1)
            done, _ = wait([tagging], timeout=0.5 if reach else 30)
            assert bool(done) != reach
        tagging.result(60)

    seen(lambda: [tag.name for tag in one.tags()] == ["best"])


def test_a_save_whose_lock_was_lost_publishes_nothing(
    rivals: tuple[bool, list[Store]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, (one, two) = rivals
    one.save(state(1), step=1)
    look = publish._sound_of_step

    def looking(*given: Any) -> Any:
        """The server forgets the locks, and the other host takes this one for a moment."""
        (lock,) = (lock for lock in locks._held if lock.file is not None)
        assert lock.file is not None
        fcntl.flock(lock.file._fd, fcntl.LOCK_UN)
        store_locks.lock_run(two._context.layout, "main", exclusive=True, timeout_s=0.0).release()
        return look(*given)

    monkeypatch.setattr(publish, "_sound_of_step", looking)
    with pytest.raises(InUse, match="was lost"):
        one.save(state(2), step=1, if_exists="replace")

    assert np.array_equal(two.load(1)["w"], state(1)["w"])
    monkeypatch.setattr(publish, "_sound_of_step", look)
    one.save(state(2), step=1, if_exists="replace")


def test_a_delete_whose_lock_was_lost_changes_nothing(
    rivals: tuple[bool, list[Store]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, (one, two) = rivals
    one.save(state(1), step=1)
    look = id_at

    def looking(path: Any) -> Any:
        found = look(path)
        (lock,) = (lock for lock in locks._held if lock.file is not None)
        assert lock.file is not None
        fcntl.flock(lock.file._fd, fcntl.LOCK_UN)
        store_locks.lock_run(two._context.layout, "main", exclusive=True, timeout_s=0.0).release()
        return found

    monkeypatch.setattr(drop, "id_at", looking)
    with pytest.raises(InUse, match="was lost"):
        one.delete(1)

    assert np.array_equal(two.load(1)["w"], state(1)["w"])


def test_a_save_after_the_other_hosts_save_does_not_read_every_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each host has a catalog of its own, which lacks the saves of the other."""
    require_root()
    require_fuse()
    (tmp_path / "real").mkdir()
    with ExitStack() as mounted:
        hosts = []
        for name in ("one", "two"):
            place = mounted.enter_context(shared_folder(tmp_path / "real", tmp_path / name))
            monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"cache {name}"))
            hosts.append(mounted.enter_context(Store.open_or_init(place / "store")))
        for step in range(60):
            hosts[0].save({"w": np.full(8, step)}, step=step)
        hosts[1].save({"w": np.full(8, 60)}, step=60)
        opened: list[object] = []
        real = os.open

        def counted(path: Any, *given: Any, **options: Any) -> int:
            opened.append(path)
            return real(path, *given, **options)

        monkeypatch.setattr(os, "open", counted)
        saved = hosts[0].save({"w": np.full(8, 61)}, step=61)
        monkeypatch.undo()
        # Once to look for marks of damage, and a few times those that are new.
        assert sum(str(path).split(".")[0].isdigit() for path in opened) < 61 + 20
        assert saved.sequence > hosts[1].info(60).sequence
    check_links(tmp_path / "real/store")
    check_blobs(tmp_path / "real/store")
