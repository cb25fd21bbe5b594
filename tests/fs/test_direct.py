"""Reading past the page cache gives the same bytes, whatever the range and whatever the filesystem can."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckstore.fs import buffers, direct

DATA = os.urandom(50_001)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    return path


@pytest.mark.property
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(start=st.integers(0, 51_000), length=st.integers(1, 60_000), cached=st.booleans(), pages=st.integers(2, 9))
def test_any_range_is_read_as_it_is(file: Path, start: int, length: int, cached: bool, pages: int) -> None:
    buffer = buffers.aligned_buffer(pages * buffers.GRAIN_BYTES)
    found = bytearray()
    with direct.opened_uncached(file) as opened:
        if cached:
            fcntl.fcntl(opened.fd, fcntl.F_SETFL, fcntl.fcntl(opened.fd, fcntl.F_GETFL) & ~os.O_DIRECT)
            opened.direct = False
        while len(found) < length and (part := opened.read(start + len(found), start + length, buffer)):
            found += part

    assert found == DATA[start : start + length]


def test_a_filesystem_that_refuses_direct_reads_at_the_first_is_still_read(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.preadv
    refused: list[int] = []

    def refusing(fd: int, buffers: Sequence[Any], offset: int) -> int:
        if not refused:
            refused.append(fd)
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", refusing)

    assert direct.read_range(file, 0, len(DATA) + 1) == DATA
    assert refused


def test_a_filesystem_that_cannot_open_for_direct_reads_is_still_read(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open
    dropped: list[int] = []

    def refusing(path: Any, flags: int, *more: Any, **names: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(path, flags, *more, **names)

    monkeypatch.setattr(os, "open", refusing)
    monkeypatch.setattr(os, "posix_fadvise", lambda *call: dropped.append(call[3]))

    assert direct.read_range(file, 0, len(DATA) + 1) == DATA
    assert dropped == [os.POSIX_FADV_DONTNEED] * 2, "before and after"


def test_an_error_of_the_disk_passes_on_and_nothing_stays_open(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "preadv", broken)

    with pytest.raises(OSError, match="Input/output error"):
        direct.read_range(file, 0, len(DATA) + 1)


def test_a_range_ends_where_it_is_told_to_or_where_the_file_does(file: Path) -> None:
    assert direct.read_range(file, 10_000, 10_001) == DATA[10_000:10_001]
    assert direct.read_range(file, 50_000, 60_000) == DATA[50_000:]
    assert direct.read_range(file, 60_000, 70_000) == b""


def test_short_reads_are_continued(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, into, offset: real(fd, [into[0][: buffers.GRAIN_BYTES]], offset))

    assert direct.read_range(file, 5, 49_000) == DATA[5:49_000]


def test_a_lease_of_another_is_waited_for(file: Path) -> None:
    code = (
        "import fcntl, os, signal, sys\n"
        "fd = os.open(sys.argv[1], os.O_RDONLY)\n"
        "def free(*_):\n"
        "    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)\n"
        "    os._exit(0)\n"
        "signal.signal(signal.SIGIO, free)\n"
        "fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)\n"
        "print('held', flush=True)\n"
        "signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, file], stdout=subprocess.PIPE, text=True) as holder:
        if holder.stdout is None or holder.stdout.readline() != "held\n":
            pytest.fail("no lease could be had")
        with pytest.raises(BlockingIOError):
            os.open(file, os.O_RDONLY | os.O_NONBLOCK)

        assert direct.read_range(file, 0, len(DATA)) == DATA
        assert holder.wait(timeout=30) == 0


@pytest.mark.root
def test_what_is_read_does_not_fill_the_page_cache(journaled_tmp_path: Path) -> None:
    path = journaled_tmp_path / "file"
    path.write_bytes(DATA * 20)
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        with direct.opened_uncached(path) as opened:
            assert opened.direct
        direct.read_range(path, 0, path.stat().st_size)
        with pytest.raises(OSError, match="temporarily unavailable"):  # RWF_NOWAIT reads only what is cached
            os.preadv(fd, [bytearray(4096)], 0, os.RWF_NOWAIT)
    finally:
        os.close(fd)


@pytest.mark.property
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(start=st.integers(0, 12), lead=st.sampled_from([0, 1, 512]), pages=st.integers(1, 13), cached=st.booleans())
def test_whole_blocks_are_read_past_the_cache_and_the_rest_through_it(
    file: Path, start: int, lead: int, pages: int, cached: bool
) -> None:
    offset = start * buffers.GRAIN_BYTES + lead
    out = buffers.aligned_buffer(pages * buffers.GRAIN_BYTES)[
        : max(0, min(pages * buffers.GRAIN_BYTES, len(DATA) - offset))
    ]
    fd = os.open(file, os.O_RDONLY)
    try:
        if not cached:
            os.fsync(fd)
            direct.drop_cached(fd)
        done = direct.read_past_cache(fd, offset, out)

        assert done <= len(out)
        assert out[:done] == DATA[offset : offset + done]
        assert not (done and lead), "a direct read begins at a block"
        assert not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT
    finally:
        os.close(fd)
