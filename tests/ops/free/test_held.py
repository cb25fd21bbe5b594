"""While a process has a blob open or mapped, in any way, gc leaves it, names the process, and frees it afterwards."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import Store
from ckstore.model.reports.gc_report import GcReport
from tests.support.coverage import drawn
from tests.support.holding import holding
from tests.support.loopfs import loop_filesystem, unmount
from tests.support.requirements import require, require_program, require_root
from tests.support.stores import check_store

pytestmark = pytest.mark.usefixtures("every_process")

MIB = 2**20
KINDS = ["ext4", "xfs", "tmpfs"]
HOWS = {
    "read": "descriptor",
    "opath": "descriptor",
    "mapped_shared": "mapping",
    "mapped_private": "mapping",
    "other_name": "descriptor",
    "io_uring": "io_uring file",
    "in_flight": "",
}


@contextlib.contextmanager
def filesystem(kind: str, folder: Path) -> Iterator[Path]:
    if kind == "tmpfs":
        shm = Path("/dev/shm")
        require(shm.is_dir(), "needs a tmpfs at /dev/shm")
        require_root()
        with tempfile.TemporaryDirectory(dir=shm, prefix="ckstore-test-") as path:
            # One of its own: others use /dev/shm, and what was freed is told as the filesystem sees it.
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128m", "tmpfs", path], check=True, timeout=30)
            try:
                yield Path(path)
            finally:
                unmount(require_program("umount"), Path(path))
    elif kind == "overlay":
        with loop_filesystem("ext4", 128, folder) as mount, overlay(mount) as merged:
            yield merged
    else:
        with loop_filesystem(kind, 128, folder) as mount:  # type: ignore[arg-type]
            yield mount


@contextlib.contextmanager
def overlay(mount: Path) -> Iterator[Path]:
    for name in ("lower", "upper", "work", "merged"):
        (mount / name).mkdir()
    options = f"lowerdir={mount}/lower,upperdir={mount}/upper,workdir={mount}/work"
    command = ["mount", "-t", "overlay", "overlay", "-o", options, str(mount / "merged")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)
    require(done.returncode == 0, f"cannot mount an overlay: {done.stderr}")
    try:
        yield mount / "merged"
    finally:
        subprocess.run(["umount", str(mount / "merged")], check=True, timeout=30)


@pytest.fixture(scope="module", params=drawn(KINDS, len(KINDS)))
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with filesystem(request.param, tmp_path_factory.mktemp("held")) as found:
        yield found


@pytest.fixture(scope="module")
def overlay_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with filesystem("overlay", tmp_path_factory.mktemp("overlay")) as found:
        yield found


def state(seed: int) -> dict[str, Any]:
    return {"w": np.random.default_rng(seed).integers(0, 256, MIB, dtype=np.uint8)}


def fresh_store(place: Path) -> tuple[Store, Path]:
    """A store with two checkpoints, and the canonical blob that only the first of them has."""
    number = len(list(place.iterdir()))
    store = Store.init(place / f"store-{number}", chunk_bytes=MIB)
    store.save(state(1), step=1)
    (blob,) = (store.path / "blobs").rglob("xxh3-*")
    store.save(state(2), step=2)
    return store, blob


def check_kept(store: Store, blob: Path, report: GcReport) -> None:
    assert [(held.digest, held.nbytes) for held in report.held] == [(blob.name, MIB)]
    assert (report.freed_count, report.held_bytes) == (0, MIB)
    assert blob.stat().st_size == MIB
    assert not [leak for leak in store.doctor().leaks if any(str(store.path) in one.target for one in leak.holders)]


def check_freed(store: Store, blob: Path, report: GcReport) -> None:
    assert (report.freed_count, report.freed_bytes, report.held) == (1, MIB, ())
    assert report.filesystem_freed_bytes > MIB // 2
    assert not blob.exists()
    check_store(store.path)
    assert np.array_equal(store.load(2)["w"], state(2)["w"])


@pytest.mark.root
@pytest.mark.crossed
@pytest.mark.parametrize("how", HOWS)
def test_a_held_blob_is_not_freed_its_holder_is_named_and_it_goes_after_release(place: Path, how: str) -> None:
    store, blob = fresh_store(place)
    with holding(how, blob) as process:
        store.delete(1)
        would, report = store.gc(dry_run=True), store.gc()
        check_kept(store, blob, report)
        assert [held.digest for held in would.held] == [blob.name]
        named = report.held[0].holders
        if HOWS[how]:
            assert {holder.pid for holder in named} == {process.pid}
            assert named[0].how.startswith(HOWS[how])
            assert "holding.py" in named[0].command
            assert f"PID {process.pid}" in report.explanation
        else:
            assert named == ()
            assert "is not visible to this one" in report.explanation
        check_kept(store, blob, store.gc())

    report = store.gc()
    deadline = time.monotonic() + 20
    while report.held and how == "io_uring" and time.monotonic() < deadline:  # the kernel ends a ring some time later
        time.sleep(0.05)
        report = store.gc()
    check_freed(store, blob, report)


@pytest.mark.root
@pytest.mark.parametrize("how", ["read", "opath", "mapped_shared", "mapped_private"])
def test_on_overlayfs_what_is_only_mapped_is_seen_too(overlay_place: Path, how: str) -> None:
    store, blob = fresh_store(overlay_place)
    with holding(how, blob) as process:
        store.delete(1)
        report = store.gc()
        check_kept(store, blob, report)
        assert {holder.pid for holder in report.held[0].holders} == {process.pid}

    check_freed(store, blob, store.gc())


@pytest.mark.root
def test_a_loaded_mapping_of_this_very_process_holds_its_blob(place: Path) -> None:
    store, blob = fresh_store(place)
    loaded = store.load(1, mmap=True)
    store.delete(1)
    report = store.gc()
    check_kept(store, blob, report)
    assert {(holder.pid, holder.how) for holder in report.held[0].holders} == {(os.getpid(), "mapping")}
    assert np.array_equal(loaded["w"], state(1)["w"])
    del loaded

    check_freed(store, blob, store.gc())


@pytest.mark.root
def test_a_holder_in_another_pid_namespace_is_seen_from_outside(place: Path) -> None:
    unshare = require_program("unshare")
    store, blob = fresh_store(place)
    with holding("read", blob, inside=[str(unshare), "-fpm", "--mount-proc"]):
        store.delete(1)
        report = store.gc()
        check_kept(store, blob, report)
        assert len(report.held[0].holders) == 1

    check_freed(store, blob, store.gc())


@pytest.mark.root
@pytest.mark.parametrize("how", ["read", "mapped_private"])
def test_gc_inside_a_pid_namespace_leaves_what_a_process_outside_has_open(place: Path, how: str) -> None:
    unshare = require_program("unshare")
    store, blob = fresh_store(place)
    script = (
        "import pickle, sys; from ckstore import Store;"
        f" sys.stdout.buffer.write(pickle.dumps(Store({str(store.path)!r}).gc()))"
    )
    inside = [str(unshare), "-fpm", "--mount-proc", sys.executable, "-c", script]
    with holding(how, blob):
        store.delete(1)
        done = subprocess.run(inside, check=True, capture_output=True, timeout=60)
        report = pickle.loads(done.stdout)
        check_kept(store, blob, report)
        assert report.held[0].holders == ()

    check_freed(store, blob, store.gc())


@pytest.mark.root
def test_a_loop_device_on_a_blob_holds_it(place: Path) -> None:
    require_root()
    losetup = require_program("losetup")
    store, blob = fresh_store(place)
    made = subprocess.run(
        [losetup, "-r", "-f", "--show", blob], check=True, capture_output=True, text=True, timeout=30
    ).stdout.strip()
    try:
        store.delete(1)
        check_kept(store, blob, store.gc())
    finally:
        subprocess.run([losetup, "-d", made], check=True, timeout=30)

    check_freed(store, blob, store.gc())


@pytest.mark.root
def test_a_hardlink_outside_the_store_is_told_and_keeps_the_blob(place: Path) -> None:
    store, blob = fresh_store(place)
    alias = place / f"alias-of-{blob.name}"
    os.link(blob, alias)
    store.delete(1)

    would, report = store.gc(dry_run=True), store.gc()

    assert [(one.digest, one.nbytes, one.name_count) for one in report.linked_outside] == [(blob.name, MIB, 1)]
    assert would.linked_outside == report.linked_outside
    assert (report.freed_count, report.held) == (0, ())
    assert "hardlinks outside the store" in report.explanation
    assert blob.exists()
    alias.unlink()
    check_freed(store, blob, store.gc())


def as_another_user(work: Callable[[], GcReport]) -> GcReport:
    """Do something as a user without any right, in a forked child."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(read)
            os.setgid(65534)
            os.setuid(65534)
            with os.fdopen(write, "wb") as file:
                file.write(pickle.dumps(work()))
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        data = file.read()
    os.waitpid(child, 0)
    found: GcReport = pickle.loads(data)
    return found


@pytest.fixture
def open_place() -> Iterator[Path]:
    require_root()
    with filesystem("tmpfs", Path()) as path:
        path.chmod(0o755)
        yield path


def give_away(root: Path, *, blobs: bool) -> None:
    for folder, _, files in os.walk(root):
        os.chown(folder, 65534, 65534)
        for name in files:
            if blobs or not name.startswith("xxh3-"):
                os.chown(Path(folder, name), 65534, 65534)


@pytest.mark.root
def test_what_root_holds_is_kept_by_the_gc_of_another_user_who_cannot_see_it(open_place: Path) -> None:
    store, blob = fresh_store(open_place)
    with holding("read", blob):
        store.delete(1)
        store.gc()
        give_away(store.path, blobs=True)
        report = as_another_user(store.gc)
        check_kept(store, blob, report)
        assert report.held[0].holders == ()
        assert report.unseen_processes

    assert as_another_user(store.gc).freed_count == 1
    assert not blob.exists()


@pytest.mark.root
def test_a_blob_of_another_user_is_kept_since_the_kernel_does_not_say(open_place: Path) -> None:
    store, blob = fresh_store(open_place)
    with holding("read", blob):
        store.delete(1)
    give_away(store.path, blobs=False)

    report = as_another_user(store.gc)

    check_kept(store, blob, report)
    assert report.held[0].why == "it belongs to uid 0: only a gc by that user or by root can free it"
    check_freed(store, blob, store.gc())
