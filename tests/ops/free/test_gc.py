"""Gc: what it frees and what it leaves, whatever happens meanwhile."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckstore import CkstoreWarning, Store
from ckstore.catalog import Catalog
from ckstore.errors import InUse
from ckstore.fs import files, holders, links, locks
from ckstore.fs.host import machine
from ckstore.model.settings.retention import RetentionPolicy
from ckstore.objects import publish, trash
from ckstore.ops.free import reclaim
from ckstore.ops.free.gc_plan import plan_gc
from ckstore.ops.index import scan_blobs
from tests.support.crashing import run_and_kill, run_and_kill_instead
from tests.support.descriptors import open_below
from tests.support.examples import examples
from tests.support.holding import holding
from tests.support.meanwhile import run_with
from tests.support.requirements import CRASH_FULL
from tests.support.stores import check_links, check_store, disk_bytes

MIB = 2**20


def state(*seeds: int, small: int = 3) -> dict[str, Any]:
    """A chunk for each seed, and small tensors that only this first seed has."""
    chunks = {f"w{seed}": np.random.default_rng(seed).integers(0, 256, MIB, dtype=np.uint8) for seed in seeds}
    return chunks | {"small": [np.full(100, 10 * seeds[0] + i, dtype=np.int32) for i in range(small)]}


def same(loaded: Any, wanted: dict[str, Any]) -> bool:
    keys = [key for key in wanted if key != "small"]
    return all(np.array_equal(loaded[key], wanted[key]) for key in keys) and all(
        np.array_equal(one, other) for one, other in zip(loaded["small"], wanted["small"], strict=True)
    )


@contextlib.contextmanager
def nothing_given_back() -> Iterator[None]:
    """As if the process died after a drop, before it freed anything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reclaim, "free_unused", lambda *_: None)
        yield


def drop(store: Store, *refs: int) -> None:
    with nothing_given_back():
        for ref in refs:
            store.delete(ref)


def blobs_of(store: Store) -> set[str]:
    return {path.name for path in (store.path / "blobs").rglob("xxh3-*")}


def test_a_gc_that_frees_nothing_says_what_would(store: Store) -> None:
    assert store.gc().explanation == "no unused data"
    store.save(state(1, 2), step=100)
    assert store.gc().explanation == "no unused data"
    store.save(state(2, 3), step=200)

    report = store.gc()

    assert report.explanation == "no unused data; deleting the oldest checkpoint main@100 would free 1.0 MiB"
    assert store.gc(dry_run=True).plan.explanation == report.explanation
    store.save(state(2, 4), step=50)
    store.save(state(1, 2, 3, 4), step=60, tags=["best"])
    assert "main@100 would free nothing, since other checkpoints use the same bytes" in store.gc().explanation
    pin = store.pin(100, "in a paper")
    assert "the oldest checkpoint main@200 would free nothing" in store.gc().explanation
    (store.path / "pins" / f"{pin.name}.json").write_text("{")  # what it protects is unknown, so nothing may go
    assert store.gc().explanation == "no unused data"
    assert (report.freed_count, report.freed_bytes, report.held, report.linked_outside) == (0, 0, (), ())


def test_gc_frees_what_only_dropped_checkpoints_had(store: Store) -> None:
    for step in range(3):
        store.save(state(step, 10), step=step)
    drop(store, 0, 1)
    before = disk_bytes(store.path)
    free = os.statvfs(store.path)

    would, report = store.gc(dry_run=True), store.gc()

    assert report.freed_bytes == before - disk_bytes(store.path)
    assert report.freed_count == 4
    assert (would.freed_bytes, would.freed_count) == (report.freed_bytes, report.freed_count)
    assert report.explanation == f"freed 4 blobs, {report.freed_bytes / MIB:.1f} MiB"
    assert free.f_frsize > 0
    assert same(store.load(2), state(2, 10))
    assert store.gc().freed_count == 0


@pytest.mark.parametrize("keep_last", [1, 2, 4])
def test_with_a_policy_the_dry_run_reports_what_the_run_frees(store: Store, keep_last: int) -> None:
    for step in range(4):
        store.save(state(step, step + 1, 10), step=step)
    policy = RetentionPolicy(keep_last=keep_last)

    would, report = store.prune(policy, dry_run=True), store.prune(policy)

    assert [info.step for info in store.checkpoints()] == list(range(4 - keep_last, 4))
    assert (would.freed_bytes, would.freed_count) == (report.freed_bytes, report.freed_count)
    assert (would.held, would.linked_outside) == (report.held, report.linked_outside) == ((), ())
    assert report.freed_count == 2 * (4 - keep_last)
    assert blobs_of(store) == used_by(store)


def test_gc_takes_what_killed_saves_left(store: Store) -> None:
    store.save(state(1), step=1)
    assert run_and_kill_instead(lambda: store.save(state(1, 2, 3), step=2), publish, "publish")
    left = len(os.listdir(store.path / "staging"))

    plan, report = store.gc(dry_run=True).plan, store.gc()

    assert left == len(plan.dead_stagings) == report.swept_stagings == 1
    assert (plan.freed_count, plan.freed_bytes) == (report.freed_count, report.freed_bytes)
    assert report.freed_count == 2  # under their canonical names and in the staging, and unknown to the catalog
    check_store(store.path)
    assert blobs_of(store) == used_by(store)


def test_gc_leaves_a_living_save_and_does_not_call_its_links_foreign(store: Store) -> None:
    store.save(state(1), step=1)
    (blob,) = [path for path in (store.path / "blobs").rglob("xxh3-*") if path.stat().st_size == MIB]
    staging = store.path / "staging" / "main@5.x"
    (staging / "blobs").mkdir(parents=True)
    with locks.lock_shared(staging):
        os.link(blob, staging / "blobs" / blob.name)
        os.link(blob, staging / "new-0")
        drop(store, 1)
        plan, report = store.gc(dry_run=True).plan, store.gc()

        assert (plan.linked_outside, report.linked_outside, report.held) == ((), (), ())
        assert plan.freed_count == report.freed_count == 1
        assert (staging / "blobs" / blob.name).exists()
        assert blob.exists()

    assert store.gc().freed_bytes == MIB


def test_a_second_gc_is_refused_while_one_is_at_work(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckstore.ops.free.gc._START_TIMEOUT_S", 0.05)
    with locks.lock_exclusive(store.path / "trash", timeout_s=1), pytest.raises(InUse, match="another gc is running"):
        store.gc()

    assert store.gc().freed_count == 0


def test_a_gc_waits_for_a_save_that_empties_the_trash(store: Store) -> None:
    lock = locks.lock_exclusive(store.path / "trash", timeout_s=1)
    timer = threading.Timer(0.2, lock.release)
    timer.start()
    try:
        assert store.gc().freed_count == 0
    finally:
        timer.join()


def test_dead_bytes_of_packs_are_reported(store: Store) -> None:
    small = {f"s{i}": np.full(1000, i, dtype=np.int64) for i in range(20)}
    store.save(small, step=0)
    assert store.gc().dead_pack_bytes == 0
    store.save({key: small[key] for key in list(small)[:12]}, step=1)
    drop(store, 0)

    report = store.gc()

    assert 8 * 8000 <= report.dead_pack_bytes <= 8 * 8064
    assert report.freed_count == 0


def test_names_that_a_power_cut_brought_back_are_found_after_the_start(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(state(1), step=1)
    kept = store.path.parent / "kept"
    shutil.copytree(store.path / "blobs", kept)
    store.delete(1)
    assert blobs_of(store) == set()
    for blob in kept.rglob("xxh3-*"):
        (store.path / "blobs" / blob.parent.name).mkdir(exist_ok=True)
        shutil.copy2(blob, store.path / "blobs" / blob.parent.name / blob.name)
    assert Store.open(store.path).gc().freed_count == 0  # the catalog was not told

    monkeypatch.setattr(machine, "boot_id", lambda: "another")
    store.save(state(2), step=2)
    report = Store.open(store.path).gc()

    assert report.freed_count == 2
    assert same(store.load(2), state(2))
    assert Store.open(store.path).gc().freed_count == 0


def test_blobs_are_listed_once_for_each_start(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = scan_blobs.list_blobs

    def counted(*args: Any, **kwargs: Any) -> int:
        calls.append(1)
        return real(*args, **kwargs)

    monkeypatch.setattr("ckstore.ops.index.catalog_update.list_blobs", counted)
    Store.open(store.path)
    assert calls == []
    monkeypatch.setattr(machine, "boot_id", lambda: "another")

    Store.open(store.path)
    Store.open(store.path)

    assert calls == [1]


def test_a_rebuilt_catalog_knows_the_unused_blobs_too(store: Store) -> None:
    store.save(state(1), step=1)
    store.save(state(2), step=2)
    drop(store, 1)
    for path in store.path.glob("catalog.db*"):
        path.unlink()

    with nothing_given_back(), pytest.warns(CkstoreWarning, match="Rebuilt the catalog"):
        again = Store.open(store.path)

    assert again.gc().freed_count == 2
    assert same(again.load(2), state(2))


@pytest.mark.root
def test_gc_works_on_a_full_disk(make_filesystem: Callable[[str, int], Path]) -> None:
    place = make_filesystem("ext4", 64)
    store = Store.init(place / "store", chunk_bytes=MIB)
    store.save(state(1, 2, 3, 4), step=1)
    store.save(state(5), step=2)
    drop(store, 1)
    with (place / "litter").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    status = os.statvfs(place)
    assert status.f_bavail * status.f_frsize < 64 * 1024

    report = store.gc()

    assert report.freed_count == 5
    assert report.filesystem_freed_bytes > 3 * MIB
    assert same(store.load(2), state(5))
    check_store(store.path)


def test_a_gc_that_can_remove_nothing_says_why_and_the_next_one_goes_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(state(1), step=1)
    drop(store, 1)
    with monkeypatch.context() as patch:
        patch.setattr(links, "unlink", raising(OSError(5, "Input/output error", "x")))
        with pytest.warns(CkstoreWarning, match="The rest still uses space: trash/main@1.*Input/output error"):
            assert store.gc().freed_count == 0

    assert store.gc().freed_count == 2


def raising(error: OSError) -> Callable[..., None]:
    def call(*_: object) -> None:
        raise error

    return call


# ------------------------------------------------------------------------------------------------ laws


@pytest.mark.slow
@pytest.mark.property
@settings(max_examples=examples(5), suppress_health_check=list(HealthCheck))
@given(
    saved=st.lists(st.sets(st.integers(0, 5), min_size=1, max_size=4), min_size=1, max_size=5),
    dropped=st.sets(st.integers(0, 4)),
    linked=st.sets(st.integers(0, 5)),
    opened=st.sets(st.integers(0, 5)),
    killed=st.booleans(),
)
def test_the_plan_is_what_the_run_reports_and_nothing_that_is_needed_goes(  # noqa: PLR0917
    tmp_path: Path, saved: list[set[int]], dropped: set[int], linked: set[int], opened: set[int], killed: bool
) -> None:
    folder = tmp_path / f"at-{len(list(tmp_path.iterdir()))}"
    folder.mkdir()
    store = Store.init(folder / "store", chunk_bytes=MIB)
    digests: dict[int, Path] = {}
    for step, seeds in enumerate(saved):
        store.save({str(seed): state(seed)[f"w{seed}"] for seed in seeds}, step=step)
        for path in (store.path / "blobs").rglob("xxh3-*"):
            new = seeds - digests.keys()
            for seed in new:
                if path.read_bytes() == state(seed)[f"w{seed}"].tobytes():
                    digests[seed] = path
    files_open = [digests[seed].open("rb") for seed in opened & digests.keys()]
    for seed in linked & digests.keys():
        os.link(digests[seed], folder / f"alias-{seed}")
    gone = dropped & set(range(len(saved)))
    drop(store, *gone)
    if killed:
        run_and_kill(lambda: store.save({"new": state(9)["w9"], **state(1)}, step=50), at=9, before=True)

    plan = store.gc(dry_run=True).plan
    report = store.gc()

    unused = digests.keys() - set().union(*(saved[step] for step in set(range(len(saved))) - gone))
    assert (plan.freed_count, plan.freed_bytes) == (report.freed_count, report.freed_bytes)
    assert plan.linked_outside == report.linked_outside
    assert [one.digest for one in plan.held] == [one.digest for one in report.held]
    assert {one.digest for one in report.linked_outside} == {digests[seed].name for seed in unused & linked}
    assert {one.digest for one in report.held} == {digests[seed].name for seed in (unused - linked) & opened}
    for seed in unused - linked - opened:
        assert not digests[seed].exists()
    for file in files_open:
        file.close()
    for seed in linked & digests.keys():
        (folder / f"alias-{seed}").unlink()
    store.gc()
    assert disk_bytes(store.path) == MIB * len(digests.keys() - unused)
    check_store(store.path)
    for step in set(range(len(saved))) - gone:
        for seed in saved[step]:
            assert np.array_equal(store.load(step)[str(seed)], state(seed)[f"w{seed}"])
    shutil.rmtree(folder)


def blob_names(store: Store) -> set[str]:
    """Every digest of which there is a file in ``blobs/`` or, on its way out, in ``trash/``."""
    files_there = [*(store.path / "blobs").rglob("xxh3-*"), *(store.path / "trash").rglob("xxh3-*")]
    return {path.name.partition(".")[0] for path in files_there if path.is_file() and not path.is_symlink()}


@pytest.mark.property
@settings(max_examples=examples(5), suppress_health_check=list(HealthCheck))
@given(
    saved=st.lists(st.sets(st.integers(0, 5), min_size=1, max_size=4), min_size=1, max_size=5),
    dropped=st.sets(st.integers(0, 4)),
    condemned=st.sets(st.integers(0, 5)),
    put_back=st.sets(st.integers(0, 5)),
    forgotten=st.booleans(),
    policy=st.none()
    | st.builds(RetentionPolicy, keep_last=st.integers(1, 3))
    | st.builds(RetentionPolicy, keep_every=st.integers(2, 3), keep_last=st.none() | st.integers(1, 2)),
)
def test_what_a_dry_run_plans_is_exactly_what_goes(  # noqa: PLR0917
    tmp_path: Path,
    saved: list[set[int]],
    dropped: set[int],
    condemned: set[int],
    put_back: set[int],
    forgotten: bool,
    policy: RetentionPolicy | None,
) -> None:
    folder = tmp_path / f"at-{len(list(tmp_path.iterdir()))}"
    store = Store.init(folder, chunk_bytes=MIB)
    for step, seeds in enumerate(saved):
        store.save({str(seed): np.full(MIB, seed, np.uint8) for seed in seeds}, step=step)
    digests = {path.name: path for path in (folder / "blobs").rglob("xxh3-*")}
    of_seed = {int(path.read_bytes()[0]): path for path in digests.values()}
    with nothing_given_back():
        for step in dropped & set(range(len(saved))):
            store.delete(step)
    for number, seed in enumerate(
        sorted((condemned | put_back) & of_seed.keys())
    ):  # as gc left them when it was killed
        in_trash = folder / "trash" / f"{of_seed[seed].name}.{number:012}"
        os.link(of_seed[seed], in_trash)
        if seed not in put_back:
            of_seed[seed].unlink()
    if forgotten:  # as where the catalog was rebuilt meanwhile, and the checkpoints were taken apart
        for taken_apart in [path for path in (folder / "trash").iterdir() if path.is_dir()]:
            shutil.rmtree(taken_apart)
        store._context.catalog.forget(list(digests), timeout_s=5.0)
    there = blob_names(store)

    would = store.prune(policy, dry_run=True) if policy else store.gc(dry_run=True)
    dropping = [entry.info.key for entry in would.retention.plan.dropped] if would.retention else []
    plan = plan_gc(store._context, dropping)
    report = store.prune(policy) if policy else store.gc()

    assert (would.freed_count, would.freed_bytes) == (report.freed_count, report.freed_bytes)
    assert {blob.digest for blob in plan.blobs} == there - blob_names(store)
    assert (would.held, would.linked_outside) == (report.held, report.linked_outside) == ((), ())
    assert (would.retention is None) == (report.retention is None) == (policy is None)
    if would.retention is not None and report.retention is not None:
        planned = [entry.info.name for entry in would.retention.plan.dropped]
        assert [info.name for info in report.retention.dropped] == planned
        assert report.retention.skipped == ()
        assert would.dropped == report.dropped
    check_store(store.path)
    shutil.rmtree(folder)


# --------------------------------------------------------------------------------- kills at every point


def prepared(folder: Path) -> Path:
    """A store with work of every kind for gc: dropped checkpoints, a dead save, a blob that gc left in trash."""
    store = Store.init(folder / "origin", chunk_bytes=MIB)
    for step in range(4):
        store.save(state(step, 10), step=step)
    with nothing_given_back():
        assert run_and_kill(lambda: store.save(state(7, 8, 10), step=9), at=14, before=True)
        store.delete(0)
        store.delete(1)
        for at in itertools.count(1):
            run_and_kill(store.gc, at=at, before=True)
            if any(name.startswith("xxh3-") for name in os.listdir(store.path / "trash")):
                break
        store.delete(2)
        os.link(next((store.path / "blobs").rglob("xxh3-*")), folder / "outside")
        (folder / "outside").unlink()
    return store.path


def copied(origin: Path, target: Path) -> Store:
    """Copy a store with its hardlinks, and open it without anything being given back."""
    subprocess.run(["cp", "-a", str(origin), str(target)], check=True, timeout=60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ckstore.ops.open.opening.recover", lambda *_: [])
        return Store.open(target)


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.crossed
@pytest.mark.parametrize("with_holder", [False, True])
@pytest.mark.parametrize("before", [True, False])
def test_a_gc_that_is_killed_at_any_change_is_continued(tmp_path: Path, before: bool, with_holder: bool) -> None:
    origin = prepared(tmp_path)
    killed = 0
    for at in itertools.count(1, 1 if CRASH_FULL else 4):
        store = copied(origin, tmp_path / f"at-{at}")
        held = max(blobs_of(store) - used_by(store)) if with_holder else ""
        blob = store.path / "blobs" / held.removeprefix("xxh3-")[:2] / held if held else None
        with blob.open("rb") if blob is not None else contextlib.nullcontext():
            died = run_and_kill(store.gc, at=at, before=before)
            killed += died
            check_links(store.path)
            assert same(store.load(3), state(3, 10))
            report = store.gc()
            assert [one.digest for one in report.held] == ([held] if held else [])
            assert blob is None or blob.exists()
            assert not [leak for leak in store.doctor().leaks if str(store.path) in leak.holders[0].target]
        if held:
            assert store.gc().freed_count == 1
        assert blobs_of(store) == used_by(store)
        assert store.gc(dry_run=True).plan.freed_count == 0
        assert store._context.catalog.unused() == []
        assert open_below(store.path) == {}
        check_store(store.path)
        assert same(store.load(3), state(3, 10))
        shutil.rmtree(store.path)
        if not died:
            break

    print(f"{killed} kill points {'before' if before else 'after'} a change, holder: {with_holder}")
    assert killed > (10 if CRASH_FULL else 3)


def used_by(store: Store) -> set[str]:
    return {path.name for path in (store.path / "checkpoints").rglob("xxh3-*")}


# ------------------------------------------------------------------------------ savers at every moment

SEAM = [
    (links, "link"),
    (links, "rename"),
    (links, "unlink"),
    (links, "remove_directory"),
    (files, "sync_directory"),
    (holders, "holding_of"),
    (holders, "find_holders"),
    (Catalog, "add_candidates"),
    (Catalog, "forget"),
    (Catalog, "unused"),
]


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.crossed
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("what", ["save", "killed save"])
def test_a_saver_that_claims_at_any_moment_of_a_gc_never_loses_bytes(tmp_path: Path, before: bool, what: str) -> None:
    """The same bytes that gc is about to free are saved again, by another process, at each of its steps."""
    origin = prepared(tmp_path)
    wanted = state(0, 1, 2, 7, 8)
    tried = 0
    for at in itertools.count(1, 1 if CRASH_FULL else 5):
        store = copied(origin, tmp_path / f"at-{at}")

        new_bytes: list[int] = []

        def meanwhile(store: Store = store, new_bytes: list[int] = new_bytes) -> None:
            other = Store(store.path, readonly=True)
            other._context.readonly = False  # opening must not sweep here
            if what == "save":
                new_bytes.append(other.save(wanted, step=20).new_bytes)
            else:
                assert run_and_kill(lambda: other.save(wanted, step=20), at=12, before=True)

        had_bytes = disk_bytes(store.path)
        report, there = run_with(store.gc, meanwhile, at, before=before, steps=SEAM)

        check_links(store.path)
        assert [name for name in os.listdir(store.path / "trash") if name.startswith("xxh3-")] == []
        if there:
            tried += 1
        if there and what == "save":
            assert same(store.load(20), wanted)
            assert had_bytes + sum(new_bytes) - disk_bytes(store.path) == report.freed_bytes
        store.gc()
        store.gc()
        again = Store.open(store.path)
        check_store(store.path)
        assert blobs_of(again) - used_by(again) == set()
        assert again._context.catalog.unused() == []
        assert same(again.load(3), state(3, 10))
        if there and what == "save":
            assert same(again.load(20), wanted)
        shutil.rmtree(store.path)
        if not there:
            break

    print(f"a {what} at {tried} moments of a gc")
    assert tried > (12 if CRASH_FULL else 4)


def test_an_entry_of_trash_that_is_gone_keeps_no_other_there(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    (store.path / "trash/other").write_bytes(b"")
    names_in = trash.names_in
    monkeypatch.setattr(trash, "names_in", lambda folder: [*["a-gone"] * (folder.name == "trash"), *names_in(folder)])

    with pytest.warns(CkstoreWarning, match="trash/a-gone: No such file"):
        store.gc()
    assert os.listdir(store.path / "trash") == []


def test_an_entry_of_trash_that_cannot_be_removed_keeps_no_blob_and_is_named_in_a_warning(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(state(1), step=1)
    drop(store, 1)
    (store.path / "trash/bad-block").write_bytes(b"")
    unlink = links.unlink

    def failing(path: Any, **given: Any) -> None:
        if getattr(path, "name", path) == "bad-block":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        unlink(path, **given)

    monkeypatch.setattr(links, "unlink", failing)
    with pytest.warns(CkstoreWarning, match="trash/bad-block: Input/output error") as warned:
        report = store.gc()
    assert len(warned) == 1
    assert report.freed_bytes >= MIB
    assert report.trash_left == ("bad-block",)

    monkeypatch.undo()
    assert store.gc().trash_left == ()
    check_store(store.path)


@pytest.mark.crash
def test_who_holds_is_told_also_when_gc_was_killed_before(store: Store) -> None:
    store.save(state(1), step=1)
    (blob,) = [path for path in (store.path / "blobs").rglob("xxh3-*") if path.stat().st_size == MIB]
    with holding("opath", blob) as process:
        drop(store, 1)
        for at in range(1, 30, 1 if CRASH_FULL else 5):
            run_and_kill(store.gc, at=at, before=False)
            report = store.gc()
            assert [[holder.pid for holder in one.holders] for one in report.held] == [[process.pid]]
            assert blob.exists()
            assert report.trash_left == ()

    assert store.gc().freed_bytes == MIB


def test_a_name_that_an_opening_tries_in_trash_may_vanish_before_gc_looks_at_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (store.path / "trash/other").write_bytes(b"")
    names_in = trash.names_in
    gone = [".try-0123456789ab"]
    monkeypatch.setattr(trash, "names_in", lambda folder: [*gone * (folder.name == "trash"), *names_in(folder)])

    store.gc()

    assert os.listdir(store.path / "trash") == []
