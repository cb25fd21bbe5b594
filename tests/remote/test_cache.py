"""The cache of bytes fetched by reads of evicted checkpoints is bounded, and its content is always verified."""

from __future__ import annotations

import errno
import os
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import BytesElsewhere, Store
from ckstore.fs import dirfd_stat, files
from ckstore.fs.dirfd_stat import AnyPath
from ckstore.ops import download_cache
from ckstore.ops.download_cache import DownloadCache, cached_bytes, limit_bytes
from ckstore.remote import keys
from ckstore.store import context_of
from tests.remote.double import Double, new_remote
from tests.remote.test_pull import same
from tests.remote.test_push import MIB, state
from tests.support.checkpoint_dirs import blobs_dir, checkpoint_dir


@pytest.fixture
def evicted(tmp_path: Path) -> tuple[Store, Double]:
    store = Store.init(tmp_path / "store", chunk_bytes=MIB)
    for step in (1, 2):
        store.save(state(step), step=step)
    objects, remote = new_remote(store.settings)
    store.push(remote=remote, all=True)
    store.evict(1, remote)
    objects.forget_requests()
    return store, objects


def kept(store: Store) -> int:
    return cached_bytes(context_of(store).layout)


def test_a_second_load_fetches_nothing_even_by_another_handle(evicted: tuple[Store, Double]) -> None:
    store, objects = evicted
    assert same(store.load(1), state(1))
    assert objects.requests["read"] > 0
    objects.forget_requests()
    assert same(store.load(1), state(1))
    other = Store.open(store.path, readonly=True)
    with other.open_checkpoint(1) as ckpt:
        assert np.array_equal(ckpt.slice("big")[5:10], state(1)["big"][5:10])  # type: ignore[index]
    assert objects.request_count() == 0
    assert kept(store) > 3 * MIB
    assert store.verify().ok


def test_damaged_or_forged_bytes_in_the_cache_are_fetched_again(evicted: tuple[Store, Double]) -> None:
    store, objects = evicted
    store.load(1)
    place = Path(str(context_of(store).layout.downloads))
    for path in place.iterdir():
        path.write_bytes(os.urandom(path.stat().st_size))
    objects.forget_requests()
    assert same(store.load(1), state(1))
    assert objects.requests["read"] > 0
    assert not (checkpoint_dir(store.path, "main", 1) / "damaged.json").exists()
    for path in place.iterdir():
        path.write_bytes(b"short")
    assert same(Store.open(store.path).load(1), state(1))
    # What came right the last time is what is kept.
    objects.forget_requests()
    assert same(Store.open(store.path).load(1), state(1))
    assert objects.requests["read"] == 0


def test_the_cache_is_bounded_and_drops_the_least_recently_used_entry(tmp_path: Path) -> None:
    store = Store.init(tmp_path / "store")
    store.config.cache_bytes = 10_000
    cache = DownloadCache(context_of(store))
    digests = [f"xxh3-{number:032x}" for number in range(8)]
    for number, digest in enumerate(digests[:4]):
        cache.keep(digest, 0, memoryview(bytes([number]) * 2000))
        os.utime(Path(str(context_of(store).layout.downloads)) / f"{digest}.0.2000", (number, number))
    into = memoryview(bytearray(100))
    assert cache.read_into(digests[0], 500, into)
    assert bytes(into) == b"\0" * 100
    for digest in digests[4:6]:
        cache.keep(digest, 0, memoryview(bytes(2000)))

    assert kept(store) <= 10_000
    assert cache.read_into(digests[0], 0, into)
    assert not cache.read_into(digests[1], 0, into)
    cache.keep(digests[6], 0, memoryview(bytes(20_000)))  # more than all of it
    assert not cache.read_into(digests[6], 0, into)
    assert kept(store) <= 10_000


def test_the_cache_never_takes_more_than_half_of_the_free_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ckstore.fs import dirfd_stat

    layout = context_of(Store.init(tmp_path / "store")).layout
    real = dirfd_stat.free_space(layout.path)
    monkeypatch.setattr(dirfd_stat, "free_space", lambda _: real._replace(total_bytes=10**9, free_bytes=10**6))
    assert limit_bytes(layout, 0) == 500_000
    monkeypatch.setattr(dirfd_stat, "free_space", lambda _: real._replace(total_bytes=10**9, free_bytes=10**9))
    assert limit_bytes(layout, 0) == 10**8


def test_size_zero_disables_the_cache_gc_empties_it_and_du_and_doctor_report_it(evicted: tuple[Store, Double]) -> None:
    store, objects = evicted
    store.config.cache_bytes = 0
    store.load(1)
    assert kept(store) == 0
    store.config.cache_bytes = None
    store.load(1)
    held = kept(store)
    usage = store.du()
    assert usage.cached_bytes == held > 0
    assert "were fetched from remotes and are cached" in str(usage)
    found = {finding.what: finding.found for finding in store.doctor().findings}
    assert found["cache"].startswith("keeps 3.")
    assert "removed 3." in str(store.gc())
    assert kept(store) == 0
    objects.fault = lambda *_: "fail"
    with pytest.raises(BytesElsewhere):
        store.load(1)


def test_verify_names_the_remote_of_evicted_bytes_and_reports_no_damage(evicted: tuple[Store, Double]) -> None:
    store, objects = evicted
    report = store.verify()
    assert report.ok
    assert [(one.name, one.remotes) for one in report.elsewhere] == [("main@1", ("away",))]
    assert "main@1  its data is only on away, and was not read" in str(report)
    info = store.info(1)
    assert info.remotes == ("away",)
    assert "elsewhere at away" in str(info)
    assert store.info(2).remotes == ()
    usage = store.du()
    assert usage.elsewhere_bytes == info.logical_bytes
    found = {finding.what: finding for finding in store.doctor().findings}
    # The double is no remote of the settings, so that is what the doctor says.
    assert "1 checkpoint at away, but the store has no remote away" in found["elsewhere"].found
    here = {*os.listdir(blobs_dir(store.path, "main", 2))}
    away = next(name for key in objects.held if (name := keys.blob_in(key)) is not None and name.digest not in here)
    assert [(use.name, use.remotes) for use in store.why(away.digest)] == [("main@1", ("away",))]
    assert {use.name: use.remotes for use in store.why(min(here))}["main@2"] == ()


def test_a_forked_child_does_not_wait_for_threads_of_its_parent(tmp_path: Path) -> None:
    store = Store.init(tmp_path / "store")
    cache, is_held, may_end = DownloadCache(context_of(store)), threading.Event(), threading.Event()

    def hold() -> None:
        with download_cache._mutex:
            is_held.set()
            may_end.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert is_held.wait(60)
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        os._exit(cache.read_into("xxh3_128-0", 0, memoryview(bytearray(1))))
    may_end.set()
    holder.join()
    assert os.waitpid(child, 0)[1] == 0


def test_a_forked_child_still_reads_evicted_checkpoints(evicted: tuple[Store, Double]) -> None:
    store, _ = evicted
    with store.open_checkpoint(1) as opened:
        name = next(name for name in opened if opened.slice(name).shape)
        saved: Any = state(1)
        child = os.fork()
        if not child:
            status = 1
            with suppress(BaseException):
                status = 0 if np.array_equal(opened[name], saved[name]) else 2
            os._exit(status)
        assert os.waitpid(child, 0)[1] == 0


def test_without_a_readable_cache_directory_bytes_are_fetched(
    evicted: tuple[Store, Double], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, objects = evicted
    store.load(1)
    statuses = dirfd_stat.statuses

    def refuse(where: AnyPath) -> list[tuple[str, os.stat_result]]:
        if str(where).endswith("/.cache"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(where))
        return statuses(where)

    monkeypatch.setattr(dirfd_stat, "statuses", refuse)
    objects.forget_requests()

    with Store.open(store.path, readonly=True) as other:
        assert same(other.load(1), state(1))
        assert other.du().cached_bytes == 0
        assert other.gc(dry_run=True).cached_bytes == 0
    assert objects.requests["read"] > 0
    assert store.gc().cached_bytes == 0, "it stays, and stops no gc"


def test_fetched_bytes_are_written_by_several_threads_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = context_of(Store.init(tmp_path / "store"))
    cache = DownloadCache(context)
    # Each write waits until the other one has begun.
    together = threading.Barrier(2)
    write_all = files.write_all

    def write(fd: int, data: Any) -> None:
        together.wait(30)
        write_all(fd, data)

    monkeypatch.setattr(files, "write_all", write)
    digests = [f"xxh3-{number:032x}" for number in range(2)]
    threads = [threading.Thread(target=cache.keep, args=(digest, 0, memoryview(b"x" * 1000))) for digest in digests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    into = bytearray(1000)
    assert all(cache.read_into(digest, 0, memoryview(into)) for digest in digests)
    assert (bytes(into), cached_bytes(context.layout)) == (b"x" * 1000, 2000)


def test_concurrent_writers_keep_the_cache_within_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.init(tmp_path / "store")
    store.config.cache_bytes = 3000
    context = context_of(store)
    cache = DownloadCache(context)
    begun, go = threading.Semaphore(0), threading.Event()
    write_all = files.write_all

    def write(fd: int, data: Any) -> None:
        begun.release()
        assert go.wait(30)
        write_all(fd, data)

    monkeypatch.setattr(files, "write_all", write)
    digests = [f"xxh3-{number:032x}" for number in range(5)]
    threads = [threading.Thread(target=cache.keep, args=(digest, 0, memoryview(b"x" * 1000))) for digest in digests]
    for thread in threads:
        thread.start()
    assert all(begun.acquire(timeout=30) for _ in range(3))
    go.set()
    for thread in threads:
        thread.join()

    assert cached_bytes(context.layout) <= 3000
