"""Whether a byte is in the page cache is asked without waiting for the disk."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ckstore.fs import files
from tests.bench.usage import cached_share

MIB = 2**20
TRIES = 200


def drop(path: Path, fd: int) -> None:
    """Drop the pages of a file; the few that another core has in its hands stay in the cache for a moment."""
    for _ in range(TRIES):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if cached_share([path]) == 0:
            return
        time.sleep(0.01)
    pytest.fail(f"{cached_share([path]):.1%} of {path} stay in the page cache")


def test_what_was_read_is_cached_and_what_was_dropped_is_not(journaled_tmp_path: Path) -> None:
    path = journaled_tmp_path / "blob"
    path.write_bytes(os.urandom(4 * MIB))
    with files.opened(path, os.O_RDONLY) as fd:
        assert files.is_cached(fd, 0)
        assert files.is_cached(fd, 4 * MIB - 1)

        os.sync()
        for offset in (0, 4 * MIB - 1):
            drop(path, fd)
            assert not files.is_cached(fd, offset)


def test_beyond_the_end_nothing_is_cached(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"abc")
    with files.opened(tmp_path / "short", os.O_RDONLY) as fd:
        assert not files.is_cached(fd, 3)


def test_a_filesystem_that_cannot_tell_counts_as_not_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there").write_bytes(b"abc")

    def refusing(*_: object) -> int:
        raise OSError(95, "Operation not supported")

    with files.opened(tmp_path / "there", os.O_RDONLY) as fd, monkeypatch.context() as patched:
        patched.setattr(os, "preadv", refusing)
        assert not files.is_cached(fd, 0)


def test_a_disk_is_told_from_memory(journaled_tmp_path: Path) -> None:
    with files.opened(journaled_tmp_path / "file", os.O_RDWR | os.O_CREAT) as fd:
        assert files.on_local_disk(fd)
    with open(os.memfd_create("file"), "rb") as file:
        assert not files.on_local_disk(file.fileno())
