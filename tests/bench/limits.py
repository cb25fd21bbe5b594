"""Baselines that show what limits loads: the sizes of files that are mapped, and where fresh memory comes from."""

from __future__ import annotations

import mmap
import os
import resource
import time

import xxhash

from tests.bench.baselines import Baseline, FreshCopy
from tests.bench.case import Cache, Here
from tests.bench.usage import use_memory

_PART_BYTES = 8 * 2**20


class MapFiles(Baseline):
    """Map files of one size, which another program has read, and hash every byte, as for every byte of a mapped load.

    Its `page_faults` are those of the act: the larger the pages that the read made, the fewer.
    """

    cache: Cache = "warm"

    def __init__(self, name: str, *, file_bytes: int) -> None:
        super().__init__(name)
        self._file_bytes = file_bytes

    def prepare(self, here: Here) -> None:
        super().prepare(here)
        part = memoryview(os.urandom(_PART_BYTES))
        sizes = [self._file_bytes] * (self.nbytes // self._file_bytes) or [self.nbytes]
        self.nbytes = sum(sizes)
        for number, nbytes in enumerate(sizes):
            with (here.folder / f"{number:06}").open("wb") as file:
                for at in range(0, nbytes, _PART_BYTES):
                    file.write(part[: nbytes - at])
                os.fsync(file.fileno())

    def act(self, lap: int) -> None:
        before = resource.getrusage(resource.RUSAGE_SELF)
        self._mapped = [_mapped(os.fspath(path)) for path in sorted(self._folder.iterdir())]
        self._digests = [xxhash.xxh3_64_intdigest(memory) for memory in self._mapped]
        after = resource.getrusage(resource.RUSAGE_SELF)
        self.figures["page_faults"] = float(after.ru_minflt - before.ru_minflt)

    def check(self) -> None:
        assert sum(len(memory) for memory in self._mapped) == self.nbytes, "the baseline did not map all bytes"
        assert len(set(self._digests)) <= 2, "files of the same bytes have different digests"


class RestedCopy(FreshCopy):
    """`FreshCopy` so long after another process had used as much memory: what is free has been free since then."""

    def __init__(self, name: str, *, huge: bool, rest_s: float) -> None:
        super().__init__(name, huge=huge)
        self._rest_s = rest_s

    def before(self, lap: int) -> None:
        super().before(lap)
        use_memory(self.nbytes)
        time.sleep(self._rest_s)


def _mapped(path: str) -> mmap.mmap:
    fd = os.open(path, os.O_RDONLY)
    try:
        return mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    finally:
        os.close(fd)
