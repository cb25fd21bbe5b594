"""Cut the power on real filesystems: `FS_IOC_SHUTDOWN` drops what was not made durable; then mount again."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import time
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest

from ckstore import CkstoreError, Store
from ckstore.fs import files, links, locks
from tests.support.loopfs import loop_filesystem, unmount
from tests.support.requirements import CRASH_FULL, representatives, require_program
from tests.support.stores import check_links

if TYPE_CHECKING:
    from pathlib import Path

_SHUTDOWN = 0x8004587D
"""``_IOR('X', 125, __u32)`` of linux/fs.h, the same on x86-64 and arm64."""
Kind = Literal["ext4", "xfs"]
_KINDS = [("ext4", 128), ("xfs", 320)]
MIB = 2**20


def cut_power(mount: Path, *, flush_log: bool) -> None:
    fd = os.open(mount, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", 1 if flush_log else 2))
    finally:
        os.close(fd)


def mount_again(mount: Path) -> None:
    source = subprocess.run(
        ["findmnt", "-no", "SOURCE", mount], check=True, capture_output=True, text=True, timeout=30
    ).stdout.strip()
    # The loop device lives as long as it is open; a second mount of it before the first is gone would see the dead one.
    image = subprocess.run(
        ["losetup", "-nO", "BACK-FILE", source], check=True, capture_output=True, text=True, timeout=30
    ).stdout.strip()
    unmount(require_program("umount"), mount)
    _wait_until_released(image)
    subprocess.run(["mount", "-o", "loop", image, mount], check=True, timeout=60)


def _wait_until_released(image: str) -> None:
    """Wait until no loop device has the image: a test that made a namespace of mounts may hold it for a moment."""
    deadline_s = time.monotonic() + 60
    while subprocess.run(["losetup", "-j", image], check=True, capture_output=True, text=True, timeout=30).stdout:
        if time.monotonic() > deadline_s:
            pytest.fail(f"{image} still has a loop device a minute after it was unmounted")
        time.sleep(0.02)


def state(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {"big": rng.integers(0, 256, 2 * MIB, dtype=np.uint8), "small": rng.random(50), "seed": seed}


def check(store: Store, ref: Any, seed: int) -> None:
    loaded = store.load(ref)
    assert loaded["seed"] == seed
    assert np.array_equal(loaded["big"], state(seed)["big"])
    assert np.array_equal(loaded["small"], state(seed)["small"])


@pytest.mark.crossed
@pytest.mark.root
@pytest.mark.crash
@pytest.mark.parametrize("flush_log", [False, True], ids=["log-lost", "log-kept"])
@pytest.mark.parametrize("kind, size_mib", _KINDS)
def test_an_acknowledged_checkpoint_survives_a_power_cut(
    kind: Kind, size_mib: int, flush_log: bool, disk_path: Path
) -> None:
    with loop_filesystem(kind, size_mib, disk_path) as mount:
        store = Store.init(mount / "store", chunk_bytes=MIB)
        assert store.warnings == ()
        saved = [store.save(state(0), step=0), store.save(state(1), step=1)]
        saved.append(store.save(state(2), step=0, if_exists="replace", tags=["best"]))
        assert all(info.durable for info in saved)
        cut_power(mount, flush_log=flush_log)
        mount_again(mount)

        again = Store.open(mount / "store")

        assert [(info.step, info.id) for info in again.checkpoints()] == [(1, saved[1].id), (0, saved[2].id)]
        check(again, 1, 1)
        check(again, "best", 2)
        check_links(again.path)
        again.save(state(3), step=3)
        check(again, 3, 3)


@pytest.mark.root
@pytest.mark.crash
@pytest.mark.parametrize("kind, size_mib", _KINDS)
def test_a_cut_between_opening_a_directory_and_syncing_it_is_told(
    kind: Kind, size_mib: int, disk_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync
    with loop_filesystem(kind, size_mib, disk_path) as mount:
        store = Store.init(mount / "store", chunk_bytes=MIB)
        store.save(state(0), step=0)
        store.pin(0, "figure 3")

        def cut_before(fd: int) -> None:
            if os.readlink(f"/proc/self/fd/{fd}").endswith("/pins"):
                cut_power(mount, flush_log=False)
            fsync(fd)  # of a directory: nothing that is lost is missed by XFS

        monkeypatch.setattr(os, "fsync", cut_before)
        with pytest.raises((OSError, CkstoreError)):
            store.unpin(0)
        monkeypatch.undo()
        mount_again(mount)

        assert [pin.reason for pin in Store.open(mount / "store").pins()] == ["figure 3"]


@pytest.mark.crossed
@pytest.mark.root
@pytest.mark.crash
@pytest.mark.parametrize("if_exists", ["error", "replace"])
@pytest.mark.parametrize("kind, size_mib", _KINDS)
def test_a_checkpoint_is_durable_without_the_catalog_s_own_fsyncs(
    kind: Kind, size_mib: int, if_exists: Any, disk_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckstore.ops.save.save.CATALOG_TIMEOUT_S", 0.01)
    with loop_filesystem(kind, size_mib, disk_path) as mount:
        store = Store.init(mount / "store", chunk_bytes=MIB)
        if if_exists == "replace":
            store.save(state(0), step=5)
        with locks.lock_exclusive(store.path, timeout_s=5):
            info = store.save(state(1), step=5, if_exists=if_exists)
            cut_power(mount, flush_log=False)
        mount_again(mount)

        assert not info.catalogued
        check(Store.open(mount / "store"), 5, 1)


@pytest.mark.root
@pytest.mark.crash
@pytest.mark.parametrize("kind, size_mib", representatives(_KINDS, _KINDS[0]))
def test_a_power_cut_at_any_step_of_a_save_leaves_whole_checkpoints(
    kind: Kind, size_mib: int, disk_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each change, or every other one, the power goes; the same filesystem goes on with what it kept."""
    seam = [(links, name) for name in ("link", "rename", "make_directory")]
    seam += [(files, name) for name in ("create_blob", "create_file", "sync_directory", "sync_open_directory")]
    originals = {(module, name): getattr(module, name) for module, name in seam}
    counter = {"left": -1}
    with loop_filesystem(kind, size_mib, disk_path) as mount:

        def counted(original: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                result = original(*args, **kwargs)
                counter["left"] -= 1
                if counter["left"] == 0:
                    cut_power(mount, flush_log=False)
                return result

            return call

        for module, name in seam:
            monkeypatch.setattr(module, name, counted(originals[module, name]))
        store = Store.init(mount / "store", chunk_bytes=MIB)
        acknowledged = {store.save(state(0), step=0).step: 0}
        cuts = 0
        for at in range(1, 40, 1 if CRASH_FULL else 2):
            counter["left"] = at
            replaced = at % 3 == 0
            step = 0 if replaced else at
            before = acknowledged.get(step)
            try:
                store.save(state(at), step=step, if_exists="replace")
                acknowledged[step] = at
            except Exception as error:  # the filesystem is gone: any error of the system may come
                print(f"cut after change {at}: {type(error).__name__}")
            was_cut = counter["left"] <= 0
            counter["left"] = -1
            if was_cut:
                cuts += 1
                mount_again(mount)
                store = Store.open(mount / "store")
            there = {info.step: store.load(info)["seed"] for info in store.checkpoints()}
            in_flight = {k: v for k, v in there.items() if acknowledged.get(k) != v}
            assert set(acknowledged) <= set(there), f"{kind}: acknowledged steps are gone after a cut at change {at}"
            assert in_flight in ({}, {step: at}), f"{kind}: cut at change {at}: {in_flight}, before {before}"
            for kept, seed in there.items():
                check(store, kept, seed)
            acknowledged = there
            check_links(store.path)
        assert cuts > (15 if CRASH_FULL else 7)
        print(f"{kind}: {cuts} power cuts, nothing acknowledged was lost")
