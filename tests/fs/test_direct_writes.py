"""Blobs that are written past the page cache have the bytes that they were given, whatever the filesystem refuses."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckstore.fs import blob_time, buffers, files, mapping
from ckstore.fs.buffers import GRAIN_BYTES, aligned_buffer, is_aligned
from tests.bench.usage import cached_share
from tests.support.examples import examples

MIB = 2**20


def filled(nbytes: int) -> memoryview:
    """Return an aligned buffer of that many bytes, no two pages alike."""
    pages = -(-nbytes // GRAIN_BYTES)
    buffer = aligned_buffer(max(pages, 1) * GRAIN_BYTES)
    for page in range(pages):
        buffer[page * GRAIN_BYTES : page * GRAIN_BYTES + 8] = page.to_bytes(8, "little")
    return buffer[:nbytes]


@pytest.fixture
def direct_writes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each call wrote past the page cache."""
    real, seen = os.write, list[int]()

    def write(fd: int, data: memoryview) -> int:
        count = real(fd, data)
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            seen.append(count)
        return count

    monkeypatch.setattr(os, "write", write)
    return seen


@settings(max_examples=examples(5), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(nbytes=st.integers(0, 3 * MIB) | st.sampled_from([MIB - 1, MIB, MIB + 1, 2 * MIB, 2 * MIB + GRAIN_BYTES]))
def test_what_was_given_is_there(journaled_tmp_path: Path, nbytes: int) -> None:
    data, path = filled(nbytes), journaled_tmp_path / f"blob-{nbytes}"

    files.create_blob(path, data)

    assert path.read_bytes() == data
    assert path.stat().st_mode & 0o7777 == files.BLOB_MODE
    assert blob_time.is_stamp(path.stat().st_mtime_ns)
    path.unlink()


def test_whole_blocks_pass_the_cache_by_and_the_rest_does_not(
    journaled_tmp_path: Path, direct_writes: list[int]
) -> None:
    path = journaled_tmp_path / "blob"

    files.create_blob(path, filled(20 * MIB + 5))

    assert direct_writes == [16 * MIB, 4 * MIB]
    share = cached_share([path])
    assert share is not None
    assert share < 0.01


def test_what_is_small_or_lies_anywhere_goes_through_the_cache(tmp_path: Path, direct_writes: list[int]) -> None:
    files.create_blob(tmp_path / "small", filled(MIB - 1))
    files.create_blob(tmp_path / "anywhere", memoryview(bytes(2 * MIB)))

    assert direct_writes == []
    assert (tmp_path / "anywhere").stat().st_size == 2 * MIB


def test_short_writes_are_continued(journaled_tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[[int, memoryview], int] = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[: max(1, len(data) // 3)]))
    data = filled(3 * MIB + 77)

    files.create_blob(journaled_tmp_path / "blob", data)

    assert (journaled_tmp_path / "blob").read_bytes() == data


@pytest.mark.parametrize("at", [1, 2])
def test_a_filesystem_that_refuses_gets_it_through_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    real: Callable[[int, memoryview], int] = os.write
    calls = []

    def refusing(fd: int, data: memoryview) -> int:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            calls.append(len(data))
            if len(calls) == at:
                raise OSError(errno.EINVAL, "not so")
        return real(fd, data)

    monkeypatch.setattr(os, "write", refusing)
    data = filled(33 * MIB)

    files.create_blob(tmp_path / "blob", data)

    assert (tmp_path / "blob").read_bytes() == data
    assert len(calls) == at


def test_an_error_of_the_disk_is_not_taken_for_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_fd: int, _data: memoryview) -> int:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "write", failing)

    with pytest.raises(OSError, match="broken"):
        files.create_blob(tmp_path / "blob", filled(2 * MIB))


def test_only_aligned_buffers_are_taken_for_such() -> None:
    assert is_aligned(aligned_buffer(GRAIN_BYTES))
    assert is_aligned(aligned_buffer(4 * MIB)[: MIB + 1])
    assert is_aligned(mapping.reserve(4 * MIB)[MIB:].toreadonly())
    assert not is_aligned(memoryview(bytearray(GRAIN_BYTES)))


def test_any_writable_memory_may_be_given_huge_pages() -> None:
    memory = bytearray(5 * MIB)
    memory[-1] = 7

    buffers.prefer_huge_pages(memoryview(memory))

    assert memory[-1] == 7
    assert not any(memory[:-1])
