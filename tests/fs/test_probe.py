"""What a place can keep is looked at and tried, on real filesystems; a trial leaves nothing behind."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ckstore import Store
from ckstore.errors import CkstoreError, UnsafePlace
from ckstore.fs import links, locks, statx
from ckstore.fs.dirfd_stat import StorePath
from ckstore.fs.host import machine, mounts, probe
from ckstore.objects.layout import Layout
from tests.support.crashing import run_and_kill
from tests.support.loopfs import loop_filesystem
from tests.support.requirements import CRASH_FULL, require, require_root


@contextmanager
def mounted(kind: str, options: str, mountpoint: Path, source: str = "none") -> Iterator[Path]:
    require_root()
    mountpoint.mkdir(exist_ok=True)
    arguments = ["--bind", source] if kind == "bind" else ["-t", kind, "-o", options, source]
    done = subprocess.run(["mount", *arguments, str(mountpoint)], capture_output=True, text=True, check=False)
    require(done.returncode == 0, f"cannot mount {kind}: {done.stderr.strip()}")
    try:
        yield mountpoint
    finally:
        subprocess.run(["umount", str(mountpoint)], check=True)


def made(root: Path) -> Layout:
    Store.init(root)
    return Layout(root)


def everything(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if not path.name.startswith("catalog.db"))


def test_an_ext4_with_a_journal_is_told_from_one_without(tmp_path: Path) -> None:
    with loop_filesystem("ext4", 32, tmp_path) as mount:
        assert mounts.examine(mount).journal is True
        assert mounts.examine(mount).durable
    with loop_filesystem("ext4", 32, tmp_path, mkfs_options=("-O", "^has_journal")) as mount:
        facts = mounts.examine(mount)
        assert (facts.kind, facts.mount, facts.journal, facts.durable) == ("ext4", str(mount), False, False)


def test_write_barriers_that_are_off_are_seen(tmp_path: Path) -> None:
    with loop_filesystem("ext4", 32, tmp_path, mount_options="nobarrier") as mount:
        assert not mounts.examine(mount).durable


def test_memory_and_overlays_are_seen(tmp_path: Path) -> None:
    with mounted("tmpfs", "size=8M", tmp_path / "memory") as memory:
        assert (mounts.examine(memory).kind, mounts.examine(memory).durable) == ("tmpfs", False)
        for name in ("lower", "upper", "work"):
            (memory / name).mkdir()
        options = f"lowerdir={memory}/lower,upperdir={memory}/upper,workdir={memory}/work"
        with mounted("overlay", options, tmp_path / "overlay") as overlay:
            assert mounts.examine(overlay).kind == "overlay"


def test_options_are_those_of_the_mount_that_is_used(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with mounted("bind", "", tmp_path / "b", str(tmp_path / "a")) as view:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(view)], check=True)
        assert "ro" in mounts.examine(view).options
        assert "ro" not in mounts.examine(tmp_path / "a").options


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_links_work_on_real_filesystems_and_a_trial_leaves_nothing(kind: str, tmp_path: Path) -> None:
    with loop_filesystem(kind, 64, tmp_path) as mount:  # type: ignore[arg-type]
        layout = made(mount / "store")
        before = everything(layout.path)

        probe.try_links(layout.staging, layout.linked)

        assert everything(layout.path) == before
        assert machine.can_reflink(layout.staging) is (kind == "xfs")
        assert machine.link_limit(layout.path) == (65000 if kind == "ext4" else 2**31 - 1)
        assert machine.lease_support(layout.settings) == "yes"
        assert everything(layout.path) == before


@pytest.mark.parametrize("name", ["blobs", "checkpoints", "trash"])
def test_a_part_of_the_store_on_another_mount_is_refused_for_writing_and_can_be_read(name: str, tmp_path: Path) -> None:
    root = made(tmp_path / "store").path
    with Store(root) as store:
        store.save({"a": 1}, step=1)
    (tmp_path / "other").mkdir()
    for path in (root / name).iterdir():
        path.rename(tmp_path / "other" / path.name)

    with mounted("bind", "", root / name, str(tmp_path / "other")):  # the same filesystem: st_dev tells nothing
        probe._able.clear()
        with pytest.raises(UnsafePlace, match=rf"{root}: cannot link from staging/ into {name}/"):
            Store(root)
        assert Store(root, readonly=True).load() == {"a": 1}
    with mounted("tmpfs", "size=8M", root / name), pytest.raises(UnsafePlace, match="another filesystem"):
        Store(root)


def test_a_part_of_the_store_that_is_a_symlink_is_refused_for_writing(tmp_path: Path) -> None:
    root = made(tmp_path / "store").path
    (root / "blobs").rename(tmp_path / "blobs")
    (root / "blobs").symlink_to(tmp_path / "blobs")

    with pytest.raises(UnsafePlace, match="blobs is a symlink"):
        Store(root)
    assert Store(root, readonly=True).checkpoints() == []


@pytest.mark.parametrize("code", [errno.EPERM, errno.EXDEV, errno.EOPNOTSUPP])
def test_a_place_without_links_is_refused(code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    layout = made(tmp_path / "store")
    before = everything(layout.path)

    def refuse(source: Path, target: Path) -> None:
        raise OSError(code, os.strerror(code), str(source))

    monkeypatch.setattr(links, "link", refuse)
    with pytest.raises(UnsafePlace, match=os.strerror(code)):
        probe.try_links(layout.staging, layout.linked)
    assert everything(layout.path) == before


def test_a_broken_disk_is_no_unfit_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    layout = made(tmp_path / "store")

    def fail(source: Path, target: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(source))

    monkeypatch.setattr(links, "link", fail)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)) as excinfo:
        probe.try_links(layout.staging, layout.linked)
    assert not isinstance(excinfo.value, CkstoreError)


def test_a_place_is_tried_once_in_the_life_of_a_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = made(tmp_path / "store").path
    tried: list[StorePath] = []
    monkeypatch.setattr(probe, "try_links", lambda staging, others: tried.append(staging))
    probe._able.clear()

    for _ in range(3):
        Store(root)

    assert [str(staging) for staging in tried] == [str(root / "staging")]


def test_a_full_disk_is_no_unfit_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = made(tmp_path / "store").path
    probe._able.clear()

    def full(staging: Path, others: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(probe, "try_links", full)
    with Store(root) as store:
        assert not any("recovery" in note for note in store.warnings)


@pytest.mark.crash
def test_a_death_during_the_trial_leaves_nothing_behind(tmp_path: Path) -> None:
    layout = made(tmp_path / "store")
    before = everything(layout.path)
    at, died = 0, True
    while died:
        at += 1 if CRASH_FULL else 3
        for before_it in (True, False):
            died = run_and_kill(lambda: probe.try_links(layout.staging, layout.linked), at=at, before=before_it)
            Store(layout.path)
            assert everything(layout.path) == before, f"after a death at call {at}"
    assert at > 10


def test_names_of_one_who_is_still_trying_stay(tmp_path: Path) -> None:
    root = made(tmp_path / "store").path
    (root / "staging" / "try-1").mkdir()
    (root / "blobs" / ".try-1").touch()
    (root / "blobs" / ".try-2").touch()
    with locks.lock_shared(root / "staging" / "try-1"):
        Store(root)
        assert sorted(name for name in os.listdir(root / "blobs") if "try" in name) == [".try-1"]

    Store(root)
    assert [name for name in os.listdir(root / "blobs") if "try" in name] == []


def test_what_the_kernel_says_about_the_machine_is_read(tmp_path: Path) -> None:
    found = machine.dirty_pages()
    assert found.limit_bytes > 2**20
    assert machine.open_files_limit() > 100
    (tmp_path / "x").touch()
    assert statx.direct_io_bytes(tmp_path / "x") in (None, 0, 1, 512, 4096)
