"""Keep-last-3 for long on a small disk: ckstore, and the writer whose rotation filled a disk (DeepSpeed #8003)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from ckstore import Store
from ckstore.fs.holders import deleted_but_open
from ckstore.model.settings.retention import RetentionPolicy
from tests.soak.leaking_writer import LeakingWriter
from tests.support.descriptors import open_below
from tests.support.requirements import CRASH_FULL
from tests.support.stores import check_store, disk_bytes

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.endurance]

MIB = 2**20
KEPT = 3
SAVES, SAVED_BYTES, DISK_MIB = (1000, 64 * MIB, 512) if CRASH_FULL else (40, 4 * MIB, 64)


@dataclass
class Watch:
    """What the process and the filesystem look like after each save."""

    place: Path
    descriptors: list[int] = field(default_factory=list)
    used_bytes: list[int] = field(default_factory=list)
    catalog_bytes: list[int] = field(default_factory=list)

    def look(self) -> None:
        catalog = sum(path.stat().st_size for path in self.place.glob("store/catalog.db*") if path.suffix != ".db-shm")
        status = os.statvfs(self.place)
        self.descriptors.append(len(open_below(self.place)))
        self.catalog_bytes.append(catalog)
        self.used_bytes.append((status.f_blocks - status.f_bfree) * status.f_frsize - catalog)

    def __str__(self) -> str:
        after = slice(KEPT, None)
        spread = max(self.used_bytes[after]) - min(self.used_bytes[after])
        return (
            f"{len(self.descriptors)} saves of {SAVED_BYTES // MIB} MiB: "
            f"descriptors {min(self.descriptors[after])} to {max(self.descriptors[after])}, "
            f"df without the catalog within {spread / MIB:.2f} MiB, "
            f"catalog {min(self.catalog_bytes[after]) >> 10} to {max(self.catalog_bytes[after]) >> 10} KiB"
        )


def fresh(data: np.ndarray[tuple[int], np.dtype[np.uint8]], step: int) -> None:
    """Change every chunk."""
    data[::4096] += 1
    data[:: MIB // 2] = step % 251


@pytest.mark.timeout(7200)
def test_keeping_the_last_three_for_long_leaks_nothing_and_needs_no_more_space(
    make_filesystem: Callable[[str, int], Path],
) -> None:
    place = make_filesystem("ext4", DISK_MIB)
    store = Store.init(place / "store", chunk_bytes=MIB)
    store.config.retention = RetentionPolicy(keep_last=KEPT)
    data = np.random.default_rng(0).integers(0, 256, SAVED_BYTES, dtype=np.uint8)
    watch = Watch(place)
    for step in range(SAVES):
        fresh(data, step)
        assert store.save({"w": data, "step": step}, step=step).warnings == ()
        watch.look()

    print(f"\n{watch}")
    assert [info.step for info in store.checkpoints()] == [SAVES - 3, SAVES - 2, SAVES - 1]
    assert set(watch.descriptors[KEPT:]) == {watch.descriptors[KEPT]}
    assert store.doctor().leaks == ()
    assert max(watch.used_bytes[KEPT:]) - min(watch.used_bytes[KEPT:]) <= MIB
    assert max(watch.catalog_bytes) < 2 * MIB
    assert disk_bytes(store.path) == KEPT * SAVED_BYTES
    check_store(store.path)


@pytest.mark.usefixtures("descriptors_may_leak")
def test_the_writer_of_problem_1_fills_the_same_disk_with_unseen_files(
    make_filesystem: Callable[[str, int], Path],
) -> None:
    place = make_filesystem("ext4", DISK_MIB)
    store = Store.init(place / "store", chunk_bytes=MIB)  # empty: only to ask who holds what
    data = np.random.default_rng(0).integers(0, 256, SAVED_BYTES + 100, dtype=np.uint8)
    error: OSError | None = None
    step = 0
    try:
        for step in range(SAVES):
            fresh(data, step)
            try:
                writer = LeakingWriter(place / f"step-{step}")
                writer.write(data.tobytes())
            except OSError as failed:
                error = failed
                break
            writer.close()
            (place / f"step-{step - KEPT}").unlink(missing_ok=True)

        seen = sum(path.stat().st_size for path in place.glob("step-*"))
        leaks = deleted_but_open(place.stat().st_dev)
        assert store.doctor().leaks == ()  # they are not the store's
        print(f"\nthe peer: {error} at save {step}, {len(leaks)} deleted files open, {seen // MIB} MiB to be seen")
        assert error is not None
        assert error.errno == errno.ENOSPC
        assert seen <= (KEPT + 1) * (SAVED_BYTES + 100)
        assert len(leaks) >= step - KEPT
        assert all(leak.holders[0].pid == os.getpid() for leak in leaks)
    finally:
        for fd in open_below(place):
            os.close(fd)
