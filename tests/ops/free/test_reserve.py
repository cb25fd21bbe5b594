"""Gc, delete and prune work where not one byte and not one inode is free: the reserve is given up for them."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from ckstore import RetentionPolicy, Store
from ckstore.errors import CkstoreError
from ckstore.fs import files
from ckstore.objects import reserve
from ckstore.ops.free.retain import carry_out
from tests.support.filling import fill_bytes, fill_inodes, free_bytes, prepare
from tests.support.loopfs import Kind, loop_filesystem
from tests.support.plans import plan_of
from tests.support.requirements import CRASH_FULL
from tests.support.stores import check_store

MIB = 2**20
_OPTIONS: dict[Kind, tuple[int, tuple[str, ...]]] = {
    "ext4": (64, ("-N", "600", "-m", "0")),
    "xfs": (300, ("-i", "maxpct=1")),
}
"""Sizes, and few inodes, so that they are soon used up."""
Full = Literal["bytes", "inodes", "both"]
KINDS: list[Kind] = ["ext4", "xfs"]
_EVERY = [(kind, full) for kind in KINDS for full in ("bytes", "inodes", "both")]
FILLED = pytest.mark.parametrize("kind, full", _EVERY if CRASH_FULL else [("ext4", "both"), ("xfs", "inodes")])
COMMANDS = [("delete", "main@0", "--now"), ("prune", "--keep-last", "1", "--now"), ("gc", "--keep-last", "1", "--now")]


def state(seed: int) -> dict[str, Any]:
    return {"w": np.random.default_rng(seed).integers(0, 256, 3 * MIB, dtype=np.uint8), "seed": seed}


def reserved_bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in (root / "reserve").iterdir())


@contextmanager
def small_filesystem(kind: Kind, tmp_path: Path) -> Iterator[Path]:
    size_mib, options = _OPTIONS[kind]
    with loop_filesystem(kind, size_mib, tmp_path, mkfs_options=options) as mount:
        prepare(mount)
        yield mount


def fill(mount: Path, full: Full) -> None:
    if full != "bytes":
        fill_inodes(mount)
    if full != "inodes":
        fill_bytes(mount)
        assert free_bytes(mount) < 64 * 1024  # XFS keeps some for itself
    if full == "both":
        fill_inodes(mount)
    if full != "bytes":
        assert os.statvfs(mount).f_favail == 0


@pytest.mark.root
@pytest.mark.crash
@FILLED
def test_gc_frees_space_on_a_filesystem_without_a_free_byte_or_inode(kind: Kind, full: Full, tmp_path: Path) -> None:
    with small_filesystem(kind, tmp_path) as mount:
        store = Store.init(mount / "store", chunk_bytes=MIB)
        for step in range(3):
            store.save(state(step), step=step)
        carry_out(store._context, plan_of(store, RetentionPolicy(keep_last=2)))
        fill(mount, full)

        report = Store.open(store.path).gc()

        assert report.freed_bytes == 3 * MIB
        assert report.filesystem_freed_bytes > 2 * MIB
        assert reserved_bytes(store.path) == reserve.LEAST_BYTES
        assert store.load(1)["seed"] == 1
        Store.open(store.path)
        check_store(store.path)


@pytest.mark.root
@pytest.mark.crash
@pytest.mark.parametrize("kind", KINDS if CRASH_FULL else ["ext4"])
def test_gc_that_frees_nothing_leaves_the_reserve_for_the_next(kind: Kind, tmp_path: Path) -> None:
    with small_filesystem(kind, tmp_path) as mount:
        store = Store.init(mount / "store", chunk_bytes=MIB)
        store.save(state(0), step=0)
        fill(mount, "both")

        assert store.gc().freed_bytes == 0
        assert reserved_bytes(store.path) > reserve.LEAST_BYTES // 2
        store.delete(0)
        assert free_bytes(mount) > 2 * MIB


@pytest.mark.crossed
@pytest.mark.root
@pytest.mark.crash
@pytest.mark.parametrize("kind", KINDS if CRASH_FULL else ["ext4"])
@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_line_frees_a_full_disk(command: tuple[str, ...], kind: Kind, tmp_path: Path) -> None:
    with small_filesystem(kind, tmp_path) as mount:
        store = Store.init(mount / "store", chunk_bytes=MIB)
        for step in range(2):
            store.save(state(step), step=step)
        fill(mount, "both")

        def run(*arguments: str) -> dict[str, Any]:
            called = [sys.executable, "-m", "ckstore_cli", *arguments, "--json", "--store", str(store.path)]
            done = subprocess.run(called, check=False, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, done.stderr
            found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
            return found

        run(*command)
        if command[0] == "prune":  # the others give the space back themselves
            run("gc")

        assert free_bytes(mount) > 2 * MIB
        assert [info.step for info in Store.open(store.path).checkpoints()] == [1]
        check_store(store.path)


def test_the_reserve_is_made_at_init_and_made_again_when_there_is_room(store: Store) -> None:
    assert reserved_bytes(store.path) == reserve.LEAST_BYTES
    assert len(os.listdir(store.path / "reserve")) == reserve.INODES
    for path in (store.path / "reserve").iterdir():
        assert path.stat().st_blocks * 512 >= reserve.LEAST_BYTES // reserve.INODES
        path.unlink()

    Store.open(store.path)

    assert reserved_bytes(store.path) == reserve.LEAST_BYTES


def test_a_reserve_that_was_left_half_made_is_completed(store: Store) -> None:
    os.truncate(store.path / "reserve" / "space-3", 5)
    os.unlink(store.path / "reserve" / "space-5")

    store.gc()

    assert reserved_bytes(store.path) == reserve.LEAST_BYTES


def test_the_reserve_grows_with_the_catalog(store: Store) -> None:
    with (store.path / "catalog.db").open("r+b") as catalog:  # sparse; SQLite looks at the size in its header
        catalog.truncate(5 * MIB)

    reserve.fill(store._context.layout)

    assert reserved_bytes(store.path) == 8 * MIB


@pytest.mark.crossed
@pytest.mark.parametrize("place", ["_wait_until_free", "files.sync_directory"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.EIO, os.strerror(errno.EIO))])
def test_a_reserve_is_taken_back_also_when_giving_it_up_fails(
    store: Store, monkeypatch: pytest.MonkeyPatch, place: str, error: BaseException
) -> None:
    layout, before = store._context.layout, reserved_bytes(store.path)

    def failing(*_: object) -> None:
        assert reserved_bytes(store.path) == 0
        raise error

    monkeypatch.setattr(reserve, "is_full", lambda _: True)
    monkeypatch.setattr(f"ckstore.objects.reserve.{place}", failing)
    with pytest.raises(type(error)), reserve.given_up(layout):
        pytest.fail("it was not given up")
    monkeypatch.undo()

    assert reserved_bytes(store.path) == before > 0


def test_a_reserve_that_is_missing_is_not_made_on_a_full_disk(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (store.path / "reserve").iterdir():
        path.unlink()
    monkeypatch.setattr(reserve, "is_full", lambda _: True)

    with reserve.given_up(store._context.layout):
        pass

    assert reserved_bytes(store.path) == 0


def test_a_reserve_that_cannot_grow_keeps_its_size(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    path = store.path / "reserve" / "space-0"
    before = path.stat()
    with pytest.raises(OSError, match=r"File too large|No space left"):
        files.allocate(path, 2**62)
    with pytest.raises(OSError, match=r"File too large|No space left"):
        files.allocate(store.path / "reserve" / "new", 2**62)

    assert path.stat().st_size == before.st_size
    assert not (store.path / "reserve" / "new").exists()


@pytest.mark.root
def test_a_full_disk_is_said_at_opening_and_a_save_leaves_the_reserve_alone(
    make_filesystem: Callable[[Kind, int], Path],
) -> None:
    mount = make_filesystem("ext4", 64)
    prepare(mount)
    store = Store.init(mount / "store", chunk_bytes=MIB)
    store.save(state(0), step=0)
    # Else the catalog needs no room to be opened: its log is there.
    with closing(sqlite3.connect(store.path / "catalog.db")) as catalog:
        catalog.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    fill_bytes(mount)

    again = Store.open(store.path)
    with pytest.raises(CkstoreError):
        again.save(state(1), step=1)

    assert any("is full" in warning and "ckstore gc" in warning for warning in again.warnings)
    assert reserved_bytes(store.path) == reserve.LEAST_BYTES
    assert again.load(0)["seed"] == 0


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["hard link", "pipe", "symlink"])
def test_what_is_no_file_of_the_reserve_alone_is_replaced_and_not_enlarged(tmp_path: Path, kind: str) -> None:
    (tmp_path / "mine").write_bytes(b"mine")
    with Store.init(tmp_path / "store"):
        pass
    path = tmp_path / "store" / "reserve" / "space-0"
    path.unlink()
    if kind == "hard link":
        path.hardlink_to(tmp_path / "mine")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(tmp_path / "mine")

    with Store.open(tmp_path / "store"):
        pass

    assert (tmp_path / "mine").read_bytes() == b"mine"
    assert path.is_file()
    assert not path.is_symlink()
    assert path.stat().st_size > 4
