"""Harm a store the way disks and other programs do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.support.look import directory_of

if TYPE_CHECKING:
    from ckstore import Store

MIB = 2**20


def two_part_state(seed: int = 0) -> dict[str, Any]:
    """Return a tensor with chunks of its own, small ones that share a pack, and plain values."""
    rng = np.random.default_rng(seed)
    small = {f"layer{i}": rng.random(300) for i in range(10)}
    return {"big": rng.integers(0, 256, 2 * MIB + 7, dtype=np.uint8), "small": small, "lr": 0.1 + seed, "step": seed}


def same_state(one: Any, other: Any) -> bool:
    """Whether two states of `two_part_state` are equal."""
    return (
        np.array_equal(one["big"], other["big"])
        and one["small"].keys() == other["small"].keys()
        and all(np.array_equal(one["small"][name], other["small"][name]) for name in one["small"])
        and (one["lr"], one["step"]) == (other["lr"], other["step"])
    )


def blobs_by_size(store: Store, ref: Any) -> list[Path]:
    """Return the blobs of a checkpoint, the smallest first."""
    return sorted((directory_of(store, ref) / "blobs").iterdir(), key=lambda path: (path.stat().st_size, path.name))


def cut(path: Path, nbytes: int) -> None:
    """Give a file another length; as its owner, who first has to allow writing."""
    os.chmod(path, 0o644)
    os.truncate(path, nbytes)
    os.chmod(path, 0o444)


def flip(path: Path, at: int = 100, *, keep_time: bool = False) -> None:
    """Change one byte in place; with `keep_time` as a rotten disk does, else as a program that writes there."""
    before = path.stat()
    os.chmod(path, 0o644)
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 0xFF]))
        file.flush()
        os.fsync(file.fileno())  # what rots is on the disk
    os.chmod(path, 0o444)
    if keep_time:
        os.utime(path, ns=(before.st_mtime_ns, before.st_mtime_ns))
