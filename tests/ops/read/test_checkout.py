"""Checkout: all of it or nothing, nothing outside its destination, and every byte checked."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from ckstore import Store
from ckstore.errors import (
    BadInput,
    CkstoreError,
    CkstoreWarning,
    DamagedBlob,
    InsufficientSpace,
    NoSuchRef,
    UnsafePlace,
)
from ckstore.fs import files, links
from ckstore.fs.new_tree import NewTree
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.objects.pieces import PieceReader
from ckstore.ops.call_threads import Workers
from tests.support.crashing import run_and_kill
from tests.support.look import directory_of
from tests.support.requirements import CRASH_FULL
from tests.support.trees import look

MIB = 2**20


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint-3"
    (folder / "sub" / "deep").mkdir(parents=True)
    torch.manual_seed(0)
    save_file({"w": torch.randn(2, MIB // 4), "b": torch.randn(10)}, folder / "model.safetensors")
    (folder / "blob").write_bytes(np.random.default_rng(1).bytes(MIB))
    (folder / "sub" / "deep" / "config.json").write_text("{}")
    (folder / "sub" / "run.sh").write_text("#!/bin/sh\n")
    (folder / "sub" / "run.sh").chmod(0o755)
    (folder / "sub" / "link").symlink_to("run.sh")
    (folder / "sub").chmod(0o555)
    return folder


def remove(folder: Path) -> None:
    """Remove a tree of which some directories may not be written, as their owner."""
    for where, _, _ in os.walk(folder):
        os.chmod(where, 0o700)
    shutil.rmtree(folder)


def beside(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if "ckstore-" in name)


def test_an_error_of_the_store_is_not_said_of_the_destination(
    store: Store, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = store.commit(source)

    def stale(directory: CheckpointDirectory, *_: object, **__: object) -> int:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), f"{directory.path}/blobs")

    monkeypatch.setattr(CheckpointDirectory, "open_blob", stale)
    with pytest.raises(CkstoreError, match=r"^checkout failed: Stale file handle .*/blobs"):
        store.checkout(info.step, tmp_path / "out")

    assert beside(tmp_path) == []


def test_it_appears_at_once_and_says_what_it_wrote(store: Store, source: Path, tmp_path: Path) -> None:
    info = store.commit(source)

    report = store.checkout("3", tmp_path / "out")

    assert look(tmp_path / "out") == look(source)
    assert report.destination == tmp_path / "out"
    assert report.paths == ("blob", "model.safetensors", "sub/deep/config.json", "sub/link", "sub/run.sh")
    assert report.nbytes == info.logical_bytes
    assert beside(tmp_path) == []
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o777 & ~mask


def test_an_empty_directory_is_taken_and_anything_else_refused(store: Store, source: Path, tmp_path: Path) -> None:
    store.commit(source)
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("empty")

    store.checkout(3, tmp_path / "empty")

    assert look(tmp_path / "empty") == look(source)
    no_directory = "is not a directory"
    for name, why in [("full", "not empty"), ("file", no_directory), ("link", no_directory), ("file/x", no_directory)]:
        with pytest.raises(BadInput, match=why):
            store.checkout(3, tmp_path / name)
    with pytest.raises(BadInput, match="/no does not exist, so x cannot be made in it") as caught:
        store.checkout(3, tmp_path / "no" / "x")
    assert caught.value.hint == f"make it first: mkdir -p {tmp_path / 'no'}"
    assert os.listdir(tmp_path / "full") == ["x"]
    assert beside(tmp_path) == []


@pytest.mark.parametrize(
    "only, paths",
    [
        ("*.json", ["sub/deep/config.json"]),
        ("sub/*", ["sub/deep/config.json", "sub/link", "sub/run.sh"]),
        ("sub", ["sub/deep/config.json", "sub/link", "sub/run.sh"]),
        ("model.safetensors", ["model.safetensors"]),
        (["run.sh", "bl?b"], ["blob", "sub/run.sh"]),
    ],
)
def test_some_of_the_files(store: Store, source: Path, tmp_path: Path, only: Any, paths: list[str]) -> None:
    store.commit(source)

    assert list(store.checkout(3, tmp_path / "out", only=only).paths) == paths
    there = {path: entry for path, entry in look(tmp_path / "out").items() if entry[0] != "directory"}
    assert there == {path: look(source)[path] for path in paths}


def test_a_destination_in_the_store_is_refused(store: Store, source: Path) -> None:
    store.commit(source)

    with pytest.raises(BadInput, match="is in the store"):
        store.checkout(3, store.path / "out")


def test_the_newest_valid_one_is_checked_out_with_a_warning(store: Store, source: Path, tmp_path: Path) -> None:
    store.commit(source)
    (source / "blob").write_bytes(np.random.default_rng(7).bytes(MIB))
    newest = store.commit(source, step=4)
    for blob in (directory_of(store, newest) / "blobs").iterdir():
        if blob.read_bytes() == (source / "blob").read_bytes():
            blob.chmod(0o644)
            os.truncate(blob, 0)
            os.truncate(blob, MIB)

    with pytest.warns(CkstoreWarning, match="main@4"):
        store.checkout("latest-valid", tmp_path / "out")
    assert (tmp_path / "out" / "blob").read_bytes() != (source / "blob").read_bytes()
    store.commit(source, step=4)  # heals it, for the check of the store


def test_a_pattern_that_fits_nothing_is_an_error(store: Store, source: Path, tmp_path: Path) -> None:
    store.commit(source)

    with pytest.raises(NoSuchRef, match=r"no file that matches \*\.bin"):
        store.checkout(3, tmp_path / "out", only="*.bin")
    assert not (tmp_path / "out").exists()


def test_hardlinks_are_names_of_blobs_and_gc_counts_them(store: Store, source: Path, tmp_path: Path) -> None:
    store.commit(source)

    report = store.checkout(3, tmp_path / "out", link="hardlink")

    assert report.hardlinked == ("blob",)
    assert report.shared_bytes == MIB
    assert (tmp_path / "out" / "blob").stat().st_nlink == 3
    assert stat.S_IMODE((tmp_path / "out" / "blob").stat().st_mode) == 0o444
    assert (tmp_path / "out" / "model.safetensors").stat().st_nlink == 1
    store.delete(3)
    assert [one.name_count for one in store.gc().linked_outside] == [1]
    assert (tmp_path / "out" / "blob").read_bytes() == (source / "blob").read_bytes()
    remove(tmp_path / "out")
    assert store.gc().freed_bytes >= MIB


@pytest.mark.root
def test_blocks_are_shared_where_the_filesystem_can(make_filesystem: Callable[[Any, int], Path], source: Path) -> None:
    place = make_filesystem("xfs", 300)
    with Store.init(place / "store", chunk_bytes=MIB) as store:
        store.commit(source)

        report = store.checkout(3, place / "out", link="reflink")

        assert look(place / "out") == look(source)
        assert report.shared_bytes >= MIB
        assert store.checkout(3, place / "copy", link="copy").shared_bytes == 0


@pytest.mark.root
def test_reflink_is_refused_where_the_filesystem_cannot(journaled_tmp_path: Path, source: Path) -> None:
    with Store.init(journaled_tmp_path / "store", chunk_bytes=MIB) as store:
        store.commit(source)

        with pytest.raises(UnsafePlace, match="cannot share blocks"):
            store.checkout(3, journaled_tmp_path / "out", link="reflink")
        assert store.checkout(3, journaled_tmp_path / "out").shared_bytes == 0


def test_a_reflink_that_would_share_nothing_is_refused(store: Store, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    files = store.commit([tmp_path / "a", tmp_path / "b"], step=1)
    state = store.save({"w": torch.ones(2)}, step=2)

    with pytest.raises(UnsafePlace, match="main@1 has no blocks that a file can share") as caught:
        store.checkout(files, tmp_path / "out", link="reflink")
    assert "link='auto'" in caught.value.hint
    with pytest.raises(BadInput, match="main@2 is a saved state: its export is computed"):
        store.checkout(state, tmp_path / "out", link="reflink")
    assert not (tmp_path / "out").exists()
    assert beside(tmp_path) == []
    store.checkout(state, tmp_path / "out", link="copy")


def test_damage_is_named_by_file_and_nothing_is_left(store: Store, source: Path, tmp_path: Path) -> None:
    info = store.commit(source)
    for blob in (directory_of(store, info) / "blobs").iterdir():
        if blob.read_bytes() == (source / "blob").read_bytes():
            blob.chmod(0o644)
            with blob.open("r+b") as file:
                file.seek(5)
                file.write(b"damage")

    for link in ("auto", "hardlink"):
        with pytest.raises(DamagedBlob, match="blob of main@3 is damaged"):
            store.checkout(3, tmp_path / "out", link=link)
        assert not (tmp_path / "out").exists()
        assert beside(tmp_path) == []
    assert store.checkout(3, tmp_path / "out", only="*.json").paths == ("sub/deep/config.json",)
    store.commit(source)  # heals it, for the check of the store


@pytest.mark.root
def test_a_full_disk_is_refused_with_numbers_and_keeps_nothing(
    store: Store,
    source: Path,
    tmp_path: Path,
    make_filesystem: Callable[[Any, int], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (source / "big").write_bytes(np.random.default_rng(2).bytes(20 * MIB))
    store.commit(source)
    place = make_filesystem("ext4", 16)

    with pytest.raises(InsufficientSpace, match=r"needs [0-9.]+ .iB and 8 inodes, [0-9.]+ .?i?B"):
        store.checkout(3, place / "out")
    monkeypatch.setattr("ckstore.ops.read.checkout._check_space", lambda *_: None)
    with pytest.raises(InsufficientSpace, match="is full, and nothing was left behind"):
        store.checkout(3, place / "out")
    assert sorted(os.listdir(place)) == ["lost+found"]


def test_a_saved_state_is_checked_out_as_its_export(store: Store, tmp_path: Path) -> None:
    store.save({"w": torch.arange(5.0), "lr": 0.1}, step=1)

    report = store.checkout(1, tmp_path / "out")

    assert report.paths == ("model.safetensors", "state.json")
    with pytest.raises(BadInput, match="has no files to choose from"):
        store.checkout(1, tmp_path / "some", only="model*")
    assert sorted(os.listdir(tmp_path / "out")) == ["model.safetensors", "state.json"]


# ------------------------------------------------------------------------------------------------- kills


_SEAM = {os: ("mkdir", "symlink", "fchmod", "fsync"), files: ("write_all",), links: ("rename",)}


@pytest.mark.crash
def test_a_checkout_that_is_killed_leaves_nothing_half_made(store: Store, source: Path, tmp_path: Path) -> None:
    store.commit(source)
    killed = 0
    for before in (True, False):
        for at in range(1, 100, 1 if CRASH_FULL else 6):
            died = run_and_kill(lambda: store.checkout(3, tmp_path / "out"), at=at, before=before, seam=_SEAM)
            killed += died
            if (tmp_path / "out").exists():
                assert look(tmp_path / "out") == look(source)
                remove(tmp_path / "out")
            store.checkout(3, tmp_path / "out")
            assert look(tmp_path / "out") == look(source)
            assert beside(tmp_path) == [], "what the killed one left is removed by the next"
            remove(tmp_path / "out")
            if not died:
                break

    print(f"{killed} kill points of a checkout")
    assert killed > (50 if CRASH_FULL else 8)


def test_what_another_checkout_builds_is_left_alone(store: Store, source: Path, tmp_path: Path) -> None:
    store.commit(source)

    with NewTree.beside(tmp_path / "out") as other:
        store.checkout(3, tmp_path / "out")
        assert other.path.exists()
        with pytest.raises(BadInput, match="not empty"):
            other.publish()

    assert look(tmp_path / "out") == look(source)
    assert beside(tmp_path) == []


# ------------------------------------------------------------------------------------------------- races


def test_no_swap_of_directories_for_symlinks_leads_a_write_elsewhere(
    store: Store, source: Path, tmp_path: Path
) -> None:
    """While it is being built, another process of the user swaps each directory for a symlink and back."""
    rounds = 10_000 if CRASH_FULL else 60
    (source / "blob").unlink()
    (source / "model.safetensors").unlink()
    (source / "sub").chmod(0o755)
    store.commit(source)
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "deep").chmod(0o755)  # whatever the umask is
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            for name in beside(tmp_path):
                inner = tmp_path / name / "sub"
                try:
                    inner.rename(inner.with_name("aside"))
                    inner.symlink_to(outside)
                    inner.unlink()
                    inner.with_name("aside").rename(inner)
                except OSError:  # not made yet, or gone
                    continue
            time.sleep(0.005)  # else no checkout is ever done

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        done = refused = 0
        for number in range(rounds):
            try:
                store.checkout(3, tmp_path / "out")
                done += 1
            except BadInput:
                refused += 1
            assert look(outside) == {"deep": ("directory", 0o755, b"")}, number
            shutil.rmtree(tmp_path / "out", ignore_errors=True)
    finally:
        stop.set()
        thread.join()
    print(f"{rounds} rounds: {done} checkouts, {refused} refused")
    for name in beside(tmp_path):
        remove(tmp_path / name)


@pytest.mark.parametrize("act", ["read_into", "write_all"])
def test_ctrl_c_ends_it_within_a_piece(act: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.init(tmp_path / "store", chunk_bytes=16 * MIB)
    (tmp_path / "big").write_bytes(os.urandom(12 * MIB))
    store.commit(tmp_path / "big", 1)
    stopping = threading.Event()
    calls: list[int] = []
    true_act = getattr(files, act)
    stop = Workers.stop

    def act_and_interrupt(*args: Any) -> None:
        if any(isinstance(arg, memoryview) and len(arg) >= MIB for arg in args):
            calls.append(1)
            if len(calls) == 3:
                os.kill(os.getpid(), signal.SIGINT)  # to the process: the main thread has the handler
                assert stopping.wait(60)
        true_act(*args)

    def say_and_stop(pool: Workers) -> None:
        stopping.set()
        stop(pool)

    monkeypatch.setattr(files, act, act_and_interrupt)
    monkeypatch.setattr(Workers, "stop", say_and_stop)
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell has the signal ignored in the background
    try:
        with pytest.raises(KeyboardInterrupt):
            store.checkout(1, tmp_path / "out")
    finally:
        signal.signal(signal.SIGINT, before)

    assert len(calls) == 3
    assert beside(tmp_path) == []
    assert not (tmp_path / "out").exists()


def test_progress_says_what_is_done_within_a_file(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "big").write_bytes(os.urandom(4 * MIB))
    store.commit(tmp_path / "big", 1)
    told = threading.Event()
    read = PieceReader.read
    calls: list[int] = []
    shown: list[tuple[int, int]] = []

    def read_and_wait(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            assert told.wait(60)
        return read(*args, **kwargs)

    def progress(done_bytes: int, all_bytes: int) -> None:
        shown.append((done_bytes, all_bytes))
        if done_bytes == 2 * MIB:
            told.set()

    monkeypatch.setattr(PieceReader, "read", read_and_wait)
    store.checkout(1, tmp_path / "out", progress=progress)
    assert (2 * MIB, 4 * MIB) in shown
    assert shown[-1] == (4 * MIB, 4 * MIB)
