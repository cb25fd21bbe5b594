"""What a save costs a processor without a disk, by the number of threads that write: ``python -m tests.bench.cores``.

Three forms on tmpfs: all of it; with files that only get their size; and with neither copy nor hash, which leaves what
Python and the system calls take for each blob: all that more cores would not do at once.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from ckstore import Store
from ckstore.fs import files
from ckstore.model.digest import Algorithm
from ckstore.ops.save import write

_MIB = 2**20
_STATE_MIB = 1024
_LAPS = 4
_CHUNKS_MIB = (32, 2)
_THREADS = (1, 4, 16)
_FORMS = ("all", "no write", "no write, hash or copy")


def _only_size(fd: int, data: memoryview) -> int:
    os.ftruncate(fd, len(data))
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


def main() -> None:
    """Print a table."""
    print("| Without a disk, 1 GiB | Chunk, MiB | Threads | Seconds | CPU-seconds | CPU-µs a blob |")
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="ckstore-cores-") as place:
        for form in _FORMS:
            for chunk_mib in _CHUNKS_MIB:
                for threads in _THREADS:
                    cpu_s, wall_s = _measured(Path(place), form, chunk_mib, threads)
                    each_us = cpu_s / (_STATE_MIB // chunk_mib) * 1e6
                    print(
                        f"| {form} | {chunk_mib} | {threads} | {wall_s:.3f} | {cpu_s:.3f} | {each_us:,.0f} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
