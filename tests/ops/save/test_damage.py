"""Bytes changed behind the store's back: found when read, healed when the same bytes are saved again."""

from __future__ import annotations

import errno
import os
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ckstore
from ckstore import Store
from ckstore.errors import BadInput, DamagedBlob
from ckstore.fs import blob_time, links
from tests.support.checkpoint_dirs import checkpoint_dir
from tests.support.damage import cut
from tests.support.look import directory_of
from tests.support.stores import check_store, names_by_inode

if TYPE_CHECKING:
    from pathlib import Path

MIB = 2**20


def state(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {"big": rng.integers(0, 256, 2 * MIB, dtype=np.uint8), "small": [rng.random(30) for _ in range(10)]}


def same(one: Any, other: Any) -> bool:
    return np.array_equal(one["big"], other["big"]) and all(
        np.array_equal(a, b) for a, b in zip(one["small"], other["small"], strict=True)
    )


def blobs_of(store: Store) -> list[Path]:
    return sorted(store.path.glob("blobs/*/*"), key=lambda path: path.stat().st_size)


def flip(path: Path, at: int = 100) -> None:
    """Change one byte in place, as a program that writes into a hardlinked file does."""
    os.chmod(path, 0o644)
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 0xFF]))
    os.chmod(path, 0o444)


@pytest.mark.parametrize("which", ["pack", "chunk"])
def test_the_next_save_that_would_hit_a_changed_blob_heals_it_everywhere(store: Store, which: str) -> None:
    for run in ("a", "b", "c"):
        store.save(state(), run=run)
    victim = blobs_of(store)[0 if which == "pack" else -1]
    flip(victim)
    with pytest.raises(DamagedBlob):
        store.load("a@latest")

    info = store.save(state(), run="d")

    assert info.new_bytes == victim.stat().st_size
    for run in ("a", "b", "c", "d"):
        assert same(store.load(f"{run}@latest"), state())
    assert len({path.stat().st_ino for path in store.path.rglob(victim.name)}) == 1


def test_a_fresh_process_heals_a_pack_too(store: Store) -> None:
    store.save(state(), run="a")
    flip(blobs_of(store)[0])

    Store.open(store.path).save(state(), run="b")

    assert same(store.load("a@latest"), state())


def test_a_damaged_pack_of_which_other_bytes_are_needed_is_not_built_upon(store: Store) -> None:
    first = state()
    store.save(first, run="a")
    flip(blobs_of(store)[0], at=5)
    second = {"big": first["big"], "small": first["small"][1:]}

    store.save(second, run="b")

    assert same(store.load("b@latest"), second)
    with pytest.raises(DamagedBlob, match=r"small\[0\]"):
        store.load("a@latest")
    store.delete("a@latest")


def test_a_blob_that_was_only_touched_is_used_further(store: Store) -> None:
    store.save(state())
    for blob in blobs_of(store):
        os.utime(blob)

    assert store.save(state()).new_bytes == 0
    assert all(blob_time.is_stamp(blob.stat().st_mtime_ns) for blob in blobs_of(store))


def test_a_truncated_blob_is_a_miss(store: Store) -> None:
    store.save(state())
    victim = blobs_of(store)[-1]
    cut(victim, 100)

    store.save(state(), step=0)

    assert same(store.load(), state())


def test_damage_is_reported_by_tensor_and_checkpoint(store: Store) -> None:
    store.save(state(), step=7)
    victim = blobs_of(store)[-1]
    flip(victim, at=MIB - 1)

    with pytest.raises(DamagedBlob, match=rf"big of main@7 is damaged: .*{victim.name}"):
        store.load()
    with pytest.raises(DamagedBlob, match=r"big of main@7"):
        store.load(mmap=True)
    assert store.load(verify=False)["small"][3].shape == (30,)
    flip(victim, at=MIB - 1)


def test_a_damaged_checkpoint_is_replaced_by_saving_the_step_again(store: Store) -> None:
    store.save(state(), step=3)
    os.unlink(directory_of(store, 3) / "blobs" / blobs_of(store)[-1].name)
    with pytest.raises(DamagedBlob, match="is missing"):
        store.load(3)

    store.save(state(1), step=3)

    assert same(store.load(), state(1))


def test_a_flipped_manifest_is_never_loaded(store: Store) -> None:
    store.save(state(), step=1)
    manifest = directory_of(store, 1) / "manifest.json"
    data = bytearray(manifest.read_bytes())
    data[len(data) // 2] ^= 1
    os.chmod(manifest, 0o644)
    manifest.write_bytes(data)

    with pytest.raises(DamagedBlob, match=r"manifest\.json"):
        ckstore.open_checkpoint(checkpoint_dir(store.path, "main", 1))
    store.save(state(), step=1, if_exists="replace")


def test_a_copied_checkpoint_is_complete_without_the_store(store: Store, tmp_path: Path) -> None:
    store.save(state(), step=5, metrics={"loss": 1.5})
    shutil.copytree(directory_of(store, 5), tmp_path / "copy")
    aside = store.path.rename(tmp_path / "aside")

    with ckstore.open_checkpoint(tmp_path / "copy") as checkpoint:
        assert same(checkpoint.load(), state())
        assert checkpoint.info.metrics == {"loss": 1.5}
        assert np.array_equal(checkpoint["big"], state()["big"])
        assert np.array_equal(checkpoint.slice("big")[MIB - 5 : MIB + 5], state()["big"][MIB - 5 : MIB + 5])
    aside.rename(store.path)


def test_a_place_that_is_no_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is not a directory"):
        ckstore.open_checkpoint(tmp_path / "nothing")
    with pytest.raises(DamagedBlob, match=r"manifest\.json is missing"):
        ckstore.open_checkpoint(tmp_path)


def test_a_limit_of_links_does_not_fail_a_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = links.link

    def limited(source: Path, target: Path) -> None:
        if os.stat(str(source)).st_nlink >= 6:  # more than opening tries
            raise OSError(errno.EMLINK, "Too many links", str(source))
        real(source, target)

    monkeypatch.setattr(links, "link", limited)
    store = Store.init(tmp_path / "store", chunk_bytes=MIB)
    for step in range(9):
        store.save(state(), step=step)

    for step in range(9):
        assert same(store.load(step), state())
    check_store(store.path)
    assert max(len(names) for names in names_by_inode(store.path).values()) <= 6


@pytest.mark.root
@pytest.mark.slow
def test_a_blob_at_the_real_limit_of_ext4_does_not_fail_a_save(journaled_tmp_path: Path) -> None:
    store = Store.init(journaled_tmp_path / "store", chunk_bytes=MIB)
    assert store.warnings == ()
    store.save(state(), step=0)
    (journaled_tmp_path / "more").mkdir()
    victim = blobs_of(store)[-1]
    for i in range(65_000 - victim.stat().st_nlink):
        os.link(victim, journaled_tmp_path / "more" / str(i))
    with pytest.raises(OSError, match="Too many links"):
        os.link(victim, journaled_tmp_path / "more" / "last")

    info = store.save(state(), step=1)
    again = store.save(state(), step=2)

    assert info.new_bytes == MIB
    assert again.new_bytes == 0
    assert same(store.load(1), state())
    shutil.rmtree(journaled_tmp_path / "more")


def test_a_directory_that_the_disk_cannot_look_into_fails_no_save(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each save looks for marks of damage in all checkpoints, to heal what it can; that is no reason to fail."""
    store.save(state(1), step=1)
    directory = checkpoint_dir(store.path, "main", 1).relative_to(store.path)
    (store.path / "checkpoints/main/notes").mkdir()
    real = os.stat
    asked: list[str] = []

    def failing(path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> os.stat_result:
        if path == "damaged.json" and dir_fd is not None:
            place = os.readlink(f"/proc/self/fd/{dir_fd}")
            asked.append(place)
            if place.endswith((str(directory), "main/notes")):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(os, "stat", failing)
    saved = store.save(state(2), step=2)
    monkeypatch.undo()

    assert asked
    assert np.array_equal(store.load(saved)["big"], state(2)["big"])
