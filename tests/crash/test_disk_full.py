"""Free bytes, then free inodes, stepped from nothing to just enough: a save is durable, or refused and leaves nothing.

Every second step takes the admission away, as if others had filled the disk after it: then the save meets the full disk
in the middle. After every step the earlier checkpoints load, gc works, and what is gone from the disk is accounted for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import Store
from ckstore.errors import CkstoreError, InsufficientSpace
from tests.faults.checker import check_tree
from tests.faults.states import expected, fingerprint, state
from tests.support.coverage import covered
from tests.support.filling import empty, free_bytes, leave_bytes, leave_inodes, prepare
from tests.support.loopfs import loop_filesystem
from tests.support.requirements import CRASH_FULL

pytestmark = [pytest.mark.crash, pytest.mark.root]

MIB = 2**20
_STEPS = 256 if CRASH_FULL else 12
_SHAPES = 16 if CRASH_FULL else 3
"""Of the saves that inodes are stepped for: one needs too few of them for so many steps."""
_EARLIER = ("first", "small-0")


@dataclass
class Tally:
    """What the steps have shown."""

    durable: int = 0
    refused: int = 0
    met: int = 0
    violations: list[str] = field(default_factory=list)


@pytest.fixture(params=[1024, 4096])
def block_bytes(request: pytest.FixtureRequest) -> int:
    """With the smaller ones the catalog has another journal (`ckstore.catalog.connection`)."""
    return int(request.param)


@pytest.fixture
def mount(block_bytes: int, tmp_path: Path) -> Iterator[Path]:
    options = ("-m", "0", "-N", "700", "-b", str(block_bytes))
    with loop_filesystem("ext4", 64, tmp_path, mkfs_options=options) as place:
        prepare(place)
        yield place


@pytest.fixture
def store(mount: Path) -> Store:
    made = Store.init(mount / "store", chunk_bytes=MIB)
    for step, name in enumerate(_EARLIER):
        made.save(state(name), step=step)
    return made


def noise(seed: int, nbytes: int) -> Any:
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


def names_below(root: Path) -> set[str]:
    """Return every name in the store but those of the catalog and the reserve."""
    found = set()
    for folder, directories, files in os.walk(root):
        relative = os.path.relpath(folder, root)
        if not relative.startswith(("reserve", "blobs")):  # directories of blobs/ stay once they are made
            found |= {f"{relative}/{name}" for name in directories}
        if not relative.startswith("reserve"):
            found |= {f"{relative}/{name}" for name in files if not name.startswith("catalog.db")}
    return found


def one_step(store: Store, value: dict[str, Any], where: str, tally: Tally, *, check: bool) -> bool:
    """Save on a disk that is nearly full, and look at everything; return whether it was durable."""
    before = names_below(store.path)
    with pytest.MonkeyPatch.context() as patch:
        if not check:
            patch.setattr("ckstore.ops.save.save.check_space", lambda *_: ())
        try:
            info = store.save(value, step=9)
            tally.durable += 1
        except InsufficientSpace as error:
            info = None
            tally.refused += 1
            tally.met += "Nothing was written" not in error.message
        except CkstoreError as error:
            tally.violations.append(f"{where}: {type(error).__name__}: {error}")
            info = None
    wrong = []
    if info is None:
        wrong += [f"left behind: {name}" for name in sorted(names_below(store.path) - before)]
    elif fingerprint(store.load(info)) != fingerprint(value):
        wrong.append("it loads other bytes than were saved")
    wrong += [
        f"{name} loads other bytes" for i, name in enumerate(_EARLIER) if fingerprint(store.load(i)) != expected(name)
    ]
    try:
        store.gc()
        if info is not None:
            store.delete(info)
            store.gc()
    except CkstoreError as error:
        wrong.append(f"gc or rm: {type(error).__name__}: {error}")
    wrong += [f"in the end: {name}" for name in sorted(names_below(store.path) ^ before)]
    tally.violations += [f"{where}: {text}" for text in wrong]
    return info is not None


def finish(what: str, tally: Tally, steps: int, store: Store, capfd: pytest.CaptureFixture[str]) -> None:
    counts = {"steps": steps, "durable": tally.durable, "refused": tally.refused, "refused_in_the_middle": tally.met}
    line = covered("disk full", what, violations=len(tally.violations), **counts)
    with capfd.disabled():
        print(f"\n{line}", file=sys.stderr, flush=True)
    Store.open(store.path)
    assert tally.violations[:10] == []
    assert check_tree(store.path) == []
    assert tally.durable > 0
    assert tally.met > 0
    assert tally.refused > tally.met


def spread(most: int, count: int) -> list[int]:
    """Return so many numbers from 0 to `most`, evenly."""
    return [round(i * most / (count - 1)) for i in range(count)]


def test_free_bytes_stepped_from_nothing_to_just_enough(
    mount: Path, store: Store, block_bytes: int, capfd: pytest.CaptureFixture[str]
) -> None:
    tally = Tally()
    enough = _what_it_takes(store, free_bytes, lambda: {**state("other"), "more": noise(0, MIB)})
    for i, nbytes in enumerate(spread(enough, _STEPS)):
        leave_bytes(mount, nbytes)
        value = {**state("other"), "more": noise(i + 1, MIB)}
        one_step(store, value, f"{nbytes} bytes free", tally, check=i % 2 == 0)

    empty(mount)
    finish(f"bytes, in blocks of {block_bytes}", tally, _STEPS, store, capfd)


@pytest.mark.parametrize("block_bytes", [4096], indirect=True)
def test_free_inodes_stepped_from_nothing_to_just_enough(
    mount: Path, store: Store, capfd: pytest.CaptureFixture[str]
) -> None:
    tally = Tally()
    steps = 0
    for shape in range(1, _SHAPES + 1):
        enough = _what_it_takes(store, _free_inodes, lambda shape=shape: {"w": noise(shape, shape * MIB)})  # type: ignore[misc]
        for i, count in enumerate(spread(enough, _STEPS // _SHAPES)):
            leave_inodes(mount, count)
            value = {"w": noise(1000 * shape + i, shape * MIB)}
            one_step(store, value, f"{count} inodes free, {shape} blobs", tally, check=i % 2 == 0)
            steps += 1

    empty(mount)
    finish("inodes", tally, steps, store, capfd)


def _free_inodes(path: Path) -> int:
    return os.statvfs(path).f_favail


def _what_it_takes(store: Store, free: Callable[[Path], int], value: Callable[[], dict[str, Any]]) -> int:
    """Return what a save takes where there is plenty, and a little more."""
    empty(store.path.parent)
    before = free(store.path)
    store.save(value(), step=9)
    taken = before - free(store.path)
    store.delete(9)
    store.gc()
    return taken + taken // 3
