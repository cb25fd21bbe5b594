"""What a save and a load cost a processor without a disk, by the number of threads: ``python -m tests.bench.cores``.

Three forms on tmpfs: all of it; with files that only get their size, or without reading them; and with neither copy nor
hash, which leaves what Python and the system calls take for each blob: all that more cores would not do at once.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count, product
from pathlib import Path
from typing import Any, Self
from unittest import mock

import numpy as np

from ckstore import Store
from ckstore.fs import files
from ckstore.model.digest import Algorithm
from ckstore.objects import pieces
from ckstore.ops.read import storage_read
from ckstore.ops.save import write

_MIB = 2**20
_STATE_MIB = 1024
_LAPS = 4
_CHUNKS_MIB = (32, 2)
_THREADS = (1, 4, 16)
_FORMS = ("all", "no write", "no write, hash or copy")
_LOADS = ("all", "no read", "no read or hash")


class _NoHash:
    """Stands for the algorithm of a piece."""

    def start(self) -> Self:
        return self

    def update(self, data: memoryview) -> None:
        pass

    def digest_of_parts(self, running: object) -> str:
        return ""


def _only_size(fd: int, data: memoryview) -> int:
    os.ftruncate(fd, os.fstat(fd).st_size + len(data))
    return len(data)


def _without_hash_or_copy(replaced: Callable[..., Any]) -> None:
    real, numbers = Algorithm.digest, count(time.time_ns())

    def digest(self: Algorithm, data: memoryview) -> str:
        if len(data) < _MIB:
            return real(self, data)
        return f"xxh3-{next(numbers):032x}"

    replaced(Algorithm, "digest", digest)
    replaced(write._ChunkWriter, "_parts", lambda _, chunk: chunk.source.view(chunk.start, chunk.stop))


def _measured(place: Path, form: str, chunk_mib: int, threads: int) -> tuple[float, float]:
    """Return the least seconds of the processor, and of the clock in the same lap, of saves of which all is new."""
    state = np.zeros((_STATE_MIB, _MIB // 4), dtype=np.uint32)
    laps = []
    with ExitStack() as patches:

        def replaced(owner: Any, name: str, by: Any) -> None:
            patches.enter_context(mock.patch.object(owner, name, by))

        if form != _FORMS[0]:
            replaced(files, "_write_direct", _only_size)
        if form == _FORMS[2]:
            _without_hash_or_copy(replaced)
        with Store.init(place / "store", chunk_bytes=chunk_mib * _MIB) as store:
            store.config.threads = threads
            for lap in range(_LAPS):
                state[:, 0] = np.arange(_STATE_MIB) + lap * _STATE_MIB + 1  # so no two blobs are the same
                began, used = time.perf_counter(), time.process_time()
                store.save({"w": state}, lap)
                laps.append((time.process_time() - used, time.perf_counter() - began))
                store.delete(lap)
                store.gc()
    shutil.rmtree(place / "store")
    return min(laps[1:])


def _measured_load(place: Path, form: str, chunk_mib: int, threads: int) -> tuple[float, float]:
    """Return the same of loads into memory that is there."""
    state = np.zeros((_STATE_MIB, _MIB // 4), dtype=np.uint32)
    state[:, 0] = np.arange(_STATE_MIB)
    laps = []
    with (
        Store.init(place / "store", chunk_bytes=chunk_mib * _MIB) as store,
        mock.patch.object(storage_read, "_CORES", threads),
        ExitStack() as patches,
    ):
        store.config.threads = threads
        store.save({"w": state}, 0)
        target = {"w": np.ones_like(state)}
        if form != _LOADS[0]:
            patches.enter_context(mock.patch.object(files, "read_into", return_value=None))
        patches.enter_context(mock.patch.object(pieces, "_compare", return_value=None))  # it would find that out
        if form == _LOADS[2]:
            patches.enter_context(mock.patch.object(pieces, "algorithm_of", return_value=_NoHash()))
        for _ in range(_LAPS):
            began, used = time.perf_counter(), time.process_time()
            store.load_into(target, 0)
            laps.append((time.process_time() - used, time.perf_counter() - began))
    shutil.rmtree(place / "store")
    return min(laps[1:])


def main() -> None:
    """Print a table."""
    print("| Act | Without a disk, 1 GiB | Chunk, MiB | Threads | Seconds | CPU-seconds | CPU-µs a blob |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="ckstore-cores-") as place:
        for act, measured, forms in (("save", _measured, _FORMS), ("load", _measured_load, _LOADS)):
            for form, chunk_mib, threads in product(forms, _CHUNKS_MIB, _THREADS):
                cpu_s, wall_s = measured(Path(place), form, chunk_mib, threads)
                each_us = cpu_s / (_STATE_MIB // chunk_mib) * 1e6
                cells = (act, form, chunk_mib, threads, f"{wall_s:.3f}", f"{cpu_s:.3f}", f"{each_us:,.0f}")
                print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
