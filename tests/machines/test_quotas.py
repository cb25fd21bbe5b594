"""Quotas, of which statfs says nothing: failed saves leave nothing, rm, prune and gc free, and saves go on."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ckstore import CatalogFull, Store
from ckstore.catalog import connection
from ckstore.errors import CatalogUnavailable, InsufficientSpace
from ckstore.fs import files
from ckstore.fs.dirfd_stat import AnyPath, open_at
from ckstore.objects import reserve
from tests.machines.quota_acts import live_with
from tests.support.descriptors import open_below
from tests.support.loopfs import Kind, loop_filesystem
from tests.support.once import once
from tests.support.requirements import require, require_c_compiler, require_program, require_root

_ROOT = Path(__file__).parents[2]
_TIMEOUT_S = 300.0
_PROJECT = "42"
_NOT_IN_THIS_KERNEL = ("The kernel was not built with CONFIG_QUOTA", "quota support not available in this kernel")


@pytest.fixture(scope="session")
def quota_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """quota.c, built."""
    compiler = require_c_compiler()

    def build(folder: Path) -> None:
        source = _ROOT / "tests" / "support" / "quota.c"
        command = [str(compiler), "-shared", "-fPIC", "-O1", str(source), "-o", str(folder / "quota.so"), "-ldl"]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_TIMEOUT_S)
        require(done.returncode == 0, f"quota.c cannot be built: {done.stderr}")

    return once(tmp_path_factory, "quota", build) / "quota.so"


@pytest.mark.parametrize("number", [errno.EDQUOT, errno.ENOSPC], ids=errno.errorcode.get)
def test_a_quota_that_statfs_does_not_show_is_lived_with(disk_path: Path, quota_library: Path, number: int) -> None:
    root = disk_path.resolve() / "store"
    limit = disk_path.resolve() / "limit"
    done = subprocess.run(
        [sys.executable, "-m", "tests.machines.quota_acts", str(root), str(limit)],
        check=False,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        cwd=_ROOT,
        env={
            **os.environ,
            "LD_PRELOAD": str(quota_library),
            "QUOTA_ROOT": str(root),
            "QUOTA_LIMIT": str(limit),
            "QUOTA_ERRNO": str(number),
        },
    )

    assert done.returncode == 0, done.stderr


@pytest.mark.root
def test_a_quota_of_btrfs_is_lived_with_where_a_rename_needs_space_too(disk_path: Path) -> None:
    btrfs = require_program("btrfs")
    with loop_filesystem("btrfs", 300, disk_path) as mount:
        place = mount / "place"
        for words in (["quota", "enable", mount], ["subvolume", "create", place]):
            subprocess.run([btrfs, *map(str, words)], check=True, capture_output=True, timeout=_TIMEOUT_S)

        def limit(nbytes: int | None) -> None:
            os.sync()
            most = "none" if nbytes is None else str(referenced_bytes(btrfs, place) + nbytes)
            command = [str(btrfs), "qgroup", "limit", most, str(place)]
            subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT_S)

        live_with(place / "store", limit)


def referenced_bytes(btrfs: Path, place: Path) -> int:
    """Return what the quota group of a subvolume counts."""
    command = [str(btrfs), "qgroup", "show", "--raw", "-f", str(place)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S)
    return int(next(line.split()[1] for line in done.stdout.splitlines() if line.startswith("0/")))


@pytest.mark.root
@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_a_quota_of_a_project_is_lived_with(kind: Kind, disk_path: Path) -> None:
    xfs_quota = require_program("xfs_quota")
    skip_without_quotas(kind, disk_path)
    options = ("-O", "quota,project") if kind == "ext4" else ()
    with loop_filesystem(kind, 300, disk_path, mkfs_options=options, mount_options="prjquota") as mount:
        place = mount / "place"
        place.mkdir()

        def command(words: str) -> str:
            foreign = ["-f"] if kind == "ext4" else []
            called = [str(xfs_quota), *foreign, "-x", "-c", words, str(mount)]
            return subprocess.run(called, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S).stdout

        command(f"project -s -p {place} {_PROJECT}")

        def limit(nbytes: int | None) -> None:
            os.sync()
            used_kib = int(command(f"quota -p -N -b {_PROJECT}").split()[1])
            most = 0 if nbytes is None else used_kib + nbytes // 1024
            command(f"limit -p bhard={most}k {_PROJECT}")

        live_with(place / "store", limit)


def skip_without_quotas(kind: Kind, folder: Path) -> None:
    """Skip where the kernel has no quotas of this filesystem, with what it says; that is no failure anywhere."""
    require_root()
    image, mount = folder / "try.img", folder / "try"
    mount.mkdir()
    with image.open("xb") as file:
        file.truncate(300 << 20)
    options = ["-O", "quota,project"] if kind == "ext4" else []
    subprocess.run([require_program(f"mkfs.{kind}"), "-q", *options, image], check=True, capture_output=True)
    done = subprocess.run(
        [require_program("mount"), "-t", kind, "-o", "loop,prjquota", image, mount], check=False, capture_output=True
    )
    if done.returncode == 0:
        subprocess.run([require_program("umount"), mount], check=True)
        shutil.rmtree(mount)
        image.unlink()
        return
    log = subprocess.run([require_program("dmesg")], check=False, capture_output=True, text=True).stdout.splitlines()
    said = next((line for line in reversed(log) if any(reason in line for reason in _NOT_IN_THIS_KERNEL)), "")
    assert said, done.stderr
    pytest.skip(f"the kernel has no quotas of {kind}: {said.partition('] ')[2]}")


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file can be made."""
    monkeypatch.setattr(files, "has_room", lambda *_: False)


@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_CANTOPEN])
@pytest.mark.usefixtures("full")
def test_an_error_of_sqlite_on_a_full_disk_is_said_as_that(tmp_path: Path, code: int) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = code
    with (
        pytest.raises(CatalogFull, match="is full") as caught,
        connection._translated(tmp_path / "c", for_writing=True),
    ):
        raise error

    assert isinstance(caught.value, InsufficientSpace)
    assert caught.value.exit_status == 6


def test_another_error_of_the_disk_is_not_said_as_a_full_one(tmp_path: Path) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_READ
    with (
        pytest.raises(CatalogUnavailable, match="disk I/O error") as caught,
        connection._translated(tmp_path / "c", for_writing=True),
    ):
        raise error

    assert not isinstance(caught.value, InsufficientSpace)


def test_trying_whether_there_is_room_leaves_nothing(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Store.open(store_path)._context.layout
    before = sorted(os.listdir(store_path / "reserve"))
    assert not reserve.is_full(layout)
    assert sorted(os.listdir(store_path / "reserve")) == before

    def refused(*_: object) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(os, "posix_fallocate", refused)
    assert reserve.is_full(layout)
    assert sorted(os.listdir(store_path / "reserve")) == before


@pytest.fixture
def unnamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file needs a name, as on NFS."""

    def without(where: AnyPath, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return open_at(where, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(files, "open_at", without)


@pytest.mark.usefixtures("unnamed")
def test_room_is_tried_also_where_a_file_needs_a_name(store_path: Path) -> None:
    layout = Store.open(store_path)._context.layout
    before = sorted(os.listdir(store_path / "reserve"))
    assert files.has_room(layout.reserve, 2**20)
    assert sorted(os.listdir(store_path / "reserve")) == before


@pytest.mark.usefixtures("unnamed")
def test_nothing_stays_open_where_that_name_cannot_be_taken_away(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Store.open(store_path)._context.layout

    def failing(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    before = open_below(store_path)
    monkeypatch.setattr(os, "unlink", failing)
    assert files.has_room(layout.reserve, 2**20)
    assert open_below(store_path) == before


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    """A store with a checkpoint."""
    with Store.init(tmp_path / "store") as store:
        store.save({"w": np.arange(9)}, step=1)
    return tmp_path / "store"
