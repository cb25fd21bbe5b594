"""Baselines: plain operations of the disk, the memory and the hash on the same bytes, measured in the same run.

Files are of the chunk size of ckstore. Memory that baselines read and write is faulted in before the clock runs.
"""

from __future__ import annotations

import itertools
import mmap
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash

from ckstore.fs.buffers import prefer_huge_pages
from ckstore.model.settings.settings import DEFAULT_CHUNK_BYTES
from tests.bench import states
from tests.bench.case import Cache, Case, Here, Role
from tests.bench.states import Kind

_IO_BYTES = 8 * 2**20
_GRAIN_BYTES = 4096
_HUGE_FROM_BYTES = 4 * 2**20
_PART_BYTES = 2 * 2**20
_PIECE_BYTES = 2**20
"""What a thread copies or hashes at once: the xxhash package lets other threads run above 64 KiB."""


class Baseline(Case):
    """A case without a system; its bytes are as many as those of a state."""

    role: Role = "baseline"

    def __init__(self, name: str, kind: Kind = "llm") -> None:
        super().__init__()
        self.name = name
        self.kind: Kind = kind

    def prepare(self, here: Here) -> None:
        self._folder = here.folder
        self.nbytes = states.nbytes_of(self.kind, here.sizes)


class WriteFiles(Baseline):
    """Write the bytes in files of chunk size, fsync each, then the directory.

    Args:
        name: Its name.
        direct: Past the page cache.
        at_once: How many files are written at once.
        steady: As often as `SteadySaves` saves, each time to new files, after a first time that is not measured.
    """

    def __init__(self, name: str, *, direct: bool, at_once: int, steady: bool = False) -> None:
        super().__init__(name)
        self._flags = os.O_DIRECT if direct else 0
        self._at_once = at_once
        self._steady = steady

    def prepare(self, here: Here) -> None:
        super().prepare(here)
        self._buffers = [_random_buffer(here.sizes.seed + i, self.nbytes) for i in range(self._at_once)]
        self._written_bytes = self.nbytes
        if self._steady:
            self.act(0)
            self.laps = here.sizes.steady_laps
            self.nbytes *= self.laps

    def before(self, lap: int) -> None:
        for path in list(self._folder.iterdir()):
            path.unlink()

    def act(self, lap: int) -> None:
        files = list(enumerate(_file_sizes(self._written_bytes)))
        shares = [files[i :: self._at_once] for i in range(self._at_once)]
        _side_by_side(lambda i: self._write(self._buffers[i], shares[i]), self._at_once)
        fd = os.open(self._folder, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)

    def _write(self, buffer: memoryview, share: list[tuple[int, int]]) -> None:
        for number, nbytes in share:
            write_file(self._folder / f"{number:06}", buffer, nbytes, number, self._flags)

    def check(self) -> None:
        total = sum(path.stat().st_size for path in self._folder.iterdir())
        assert total == sum(_file_sizes(self._written_bytes)), "the baseline did not write all bytes"


class HashAndWriteFiles(WriteFiles):
    """The same as a save has to do it: each file is hashed, copied to private memory part by part, and hashed there."""

    def __init__(self, name: str, *, at_once: int) -> None:
        super().__init__(name, direct=True, at_once=at_once)

    def _write(self, buffer: memoryview, share: list[tuple[int, int]]) -> None:
        private = _random_buffer(0, _PART_BYTES)
        target = np.frombuffer(private, np.uint8)
        for number, nbytes in share:
            buffer[:8] = (number + 1).to_bytes(8, "little")
            source = np.frombuffer(buffer[:nbytes], np.uint8)
            first, second = xxhash.xxh3_128(source.data), xxhash.xxh3_128()
            fd = os.open(self._folder / f"{number:06}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT, 0o600)
            for at in range(0, nbytes, _PART_BYTES):
                part = source[at : at + _PART_BYTES]
                np.copyto(target[: len(part)], part)
                second.update(private[: len(part)])
                if os.pwrite(fd, private[: len(part)], at) != len(part):
                    raise OSError(f"{self.name}: a write was cut short")
            os.fsync(fd)
            os.close(fd)
            assert first.digest() == second.digest(), "the copy differs"


class ReadFiles(Baseline):
    """Read the bytes past the page cache, from files of chunk size, into memory that is there."""

    def __init__(self, name: str, *, at_once: int) -> None:
        super().__init__(name)
        self._at_once = at_once

    def prepare(self, here: Here) -> None:
        super().prepare(here)
        self._buffers = [_random_buffer(here.sizes.seed + i, self.nbytes) for i in range(self._at_once)]
        for number, nbytes in enumerate(_file_sizes(self.nbytes)):
            write_file(self._folder / f"{number:06}", self._buffers[0], nbytes, number, os.O_DIRECT)
        self._read_bytes = 0

    def act(self, lap: int) -> None:
        paths = sorted(self._folder.iterdir())
        counts = _side_by_side(lambda i: self._read(self._buffers[i], paths[i :: self._at_once]), self._at_once)
        self._read_bytes = sum(counts)

    def _read(self, buffer: memoryview, paths: list[Path]) -> int:
        done = 0
        for path in paths:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
            at = 0
            while count := os.preadv(fd, [buffer[at : at + _IO_BYTES]], at):
                at += count
                if at >= len(buffer):
                    break
            os.close(fd)
            done += at
        return done

    def check(self) -> None:
        assert self._read_bytes == sum(_file_sizes(self.nbytes)), "the baseline did not read all bytes"


class Fsync(Baseline):
    """Append 4 KiB and fsync, once a lap; its figure is the time of one."""

    def __init__(self, name: str, laps: int = 20) -> None:
        super().__init__(name)
        self.laps = laps

    def prepare(self, here: Here) -> None:
        self._fd = os.open(here.folder / "appended", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._data = _random_buffer(here.sizes.seed, _GRAIN_BYTES)[:_GRAIN_BYTES]
        self.nbytes = self.laps * _GRAIN_BYTES

    def act(self, lap: int) -> None:
        os.write(self._fd, self._data)
        os.fsync(self._fd)

    def check(self) -> None:
        os.close(self._fd)


class Copy(Baseline):
    """Copy the state to memory that is there."""

    def __init__(self, name: str, *, threads: int) -> None:
        super().__init__(name)
        self._threads = threads

    def prepare(self, here: Here) -> None:
        state = states.make(self.kind, here.sizes)
        self._from = [states.as_bytes(tensor).numpy() for tensor in state.values()]
        self._to = [states.as_bytes(torch.ones_like(tensor)).numpy() for tensor in state.values()]
        self.nbytes = sum(array.nbytes for array in self._from)

    def act(self, lap: int) -> None:
        pairs = list(zip(self._to, self._from, strict=True))
        _in_pieces(self._threads, [array.nbytes for array in self._from], lambda i, part: _copy(*pairs[i], part))

    def check(self) -> None:
        assert all(np.array_equal(a, b) for a, b in zip(self._to, self._from, strict=True)), "the copy differs"


class FreshCopy(Copy):
    """Copy the state to untouched memory, by two threads: what a load into fresh memory needs at least.

    Args:
        name: Its name.
        huge: Ask for huge pages, where ckstore does as well.
        again: The same has been done before, and that memory was given back.
    """

    def __init__(self, name: str, *, huge: bool, again: bool = False) -> None:
        super().__init__(name, threads=2)
        self._huge = huge
        self._again = again

    def before(self, lap: int) -> None:
        if self._again:
            self.act(lap)
            self._to.clear()

    def prepare(self, here: Here) -> None:
        state = states.make(self.kind, here.sizes)
        self._from = [states.as_bytes(tensor).numpy() for tensor in state.values()]
        self.nbytes = sum(array.nbytes for array in self._from)

    def act(self, lap: int) -> None:
        self._to = [torch.empty(array.nbytes, dtype=torch.uint8).numpy() for array in self._from]
        for array in self._to:
            if self._huge and array.nbytes >= _HUGE_FROM_BYTES:
                prefer_huge_pages(array.data)
        super().act(lap)


class ReadCached(Copy):
    """Read the state from one file in the page cache to memory that is there: what `read` costs."""

    cache: Cache = "warm"

    def prepare(self, here: Here) -> None:
        super().prepare(here)
        self._fd = os.open(here.folder / "state", os.O_RDWR | os.O_CREAT, 0o600)
        self._at = list(itertools.accumulate((array.nbytes for array in self._from), initial=0))
        for at, array in zip(self._at, self._from, strict=False):
            for start in range(0, array.nbytes, _IO_BYTES):
                part = array[start : start + _IO_BYTES]
                if os.pwrite(self._fd, part.data, at + start) != part.nbytes:
                    raise OSError(f"{self.name}: a write was cut short")

    def act(self, lap: int) -> None:
        def work(i: int, part: slice) -> None:
            out = self._to[i][part].data
            if os.preadv(self._fd, [out], self._at[i] + part.start) != len(out):
                raise OSError(f"{self.name}: a read was cut short")

        _in_pieces(self._threads, [array.nbytes for array in self._to], work)

    def check(self) -> None:
        os.close(self._fd)
        super().check()


class Hash(Baseline):
    """Hash the state with the hash of the store, 1 MiB at a time."""

    def __init__(self, name: str, *, threads: int, kind: Kind = "llm") -> None:
        super().__init__(name, kind)
        self._threads = threads

    def prepare(self, here: Here) -> None:
        self._state = states.make(self.kind, here.sizes)
        self._arrays = [states.as_bytes(tensor).numpy() for tensor in self._state.values()]
        self.nbytes = sum(array.nbytes for array in self._arrays)

    def act(self, lap: int) -> None:
        def work(i: int, part: slice) -> None:
            xxhash.xxh3_128_intdigest(self._arrays[i][part].data)

        _in_pieces(self._threads, [array.nbytes for array in self._arrays], work)


def _copy(to: Any, source: Any, part: slice) -> None:
    np.copyto(to[part], source[part])  # which lets other threads run; a slice of a memoryview does not


def write_file(path: Path, buffer: memoryview, nbytes: int, number: int, flags: int) -> None:
    """Write one file of the baseline and make it durable; its content depends on its number."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | flags, 0o600)
    try:
        for at in range(0, nbytes, _IO_BYTES):
            part = buffer[at : min(at + _IO_BYTES, nbytes)]
            part[:8] = (number + 1).to_bytes(8, "little")
            if os.pwrite(fd, part, at) != len(part):
                raise OSError(f"{path}: a write was cut short")
        os.fsync(fd)
    finally:
        os.close(fd)


def _file_sizes(nbytes: int) -> list[int]:
    whole, rest = divmod(nbytes, DEFAULT_CHUNK_BYTES)
    return [DEFAULT_CHUNK_BYTES] * whole + ([-(-rest // _GRAIN_BYTES) * _GRAIN_BYTES] if rest else [])


def _random_buffer(seed: int, nbytes: int) -> memoryview:
    """Return page-aligned memory of one chunk, faulted in; less where all bytes together are less, in whole MiB."""
    memory = mmap.mmap(-1, min(DEFAULT_CHUNK_BYTES, -(-nbytes // _PIECE_BYTES) * _PIECE_BYTES))
    array = np.frombuffer(memory, np.uint8)
    block = np.random.default_rng(seed).integers(0, 256, _PIECE_BYTES, np.uint8)
    for at in range(0, len(array), len(block)):
        array[at : at + len(block)] = block + np.uint8(at // len(block))
    return memoryview(memory)


def _side_by_side(work: Callable[[int], Any], threads: int) -> list[Any]:
    if threads == 1:
        return [work(0)]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, range(threads)))


def _in_pieces(threads: int, sizes: Iterable[int], work: Callable[[int, slice], None]) -> None:
    """Give each thread a contiguous part of all bytes, in pieces that stay in the cache of a core."""
    pieces = [
        (i, slice(at, min(at + _PIECE_BYTES, nbytes)))
        for i, nbytes in enumerate(sizes)
        for at in range(0, nbytes, _PIECE_BYTES)
    ]
    cuts = [len(pieces) * i // threads for i in range(threads + 1)]
    parts = [pieces[start:stop] for start, stop in itertools.pairwise(cuts)]

    def share(thread: int) -> None:
        for i, part in parts[thread]:
            work(i, part)

    _side_by_side(share, threads)
