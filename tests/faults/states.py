"""What the scenarios save: small states of NumPy arrays, made again by name.

They are compared by a fingerprint that owes nothing to ckstore.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

CHUNK_BYTES = 2**20

_SMALL_COUNT = 200
_SMALL_MOST_ITEMS = 96


def _noise(seed: int, items: int) -> np.ndarray[Any, Any]:
    noise = np.arange(items, dtype="<u4") * np.uint32(2654435761) + np.uint32(seed)
    # Without the highest bit of the exponent each is finite: a state with NaN is unhealthy, and rules pass over it.
    return (noise & np.uint32(0xBFFFFFFF)).view("<f4")


def _mixed(seed: int, *, changed: int = 0) -> dict[str, Any]:
    large = _noise(seed, 2**18 + 2**14)  # a MiB and a bit: two chunks, the last one short
    large[0] = changed  # so only the first of the two chunks
    return {
        "model": {
            "weight": large,
            "embedding": _noise(seed + 1, 2**16),
            "bias": np.arange(7, dtype="<f8") + seed + changed,
        },
        "optimizer": {
            "groups": [{"lr": 1e-3 + changed, "betas": (0.9, 0.999)}],
            "step": np.int64(seed + changed),
        },
        "rng": bytes(range(256)) * 8,
        "note": f"state {seed}",
        "empty": np.zeros((0, 3), dtype="<i4"),
        "done": False,
        "nothing": None,
    }


def _small(versions: Callable[[int], int], count: int = _SMALL_COUNT) -> dict[str, Any]:
    """Many small arrays; the i-th is the same in two states whose versions of i are the same."""

    def one(i: int) -> np.ndarray[Any, Any]:
        rng = np.random.default_rng((i, versions(i)))
        return rng.integers(0, 2**31, size=1 + i % _SMALL_MOST_ITEMS, dtype=np.int64)

    return {f"layer{i}": one(i) for i in range(count)}


def _moved() -> dict[str, Any]:
    """As "small-0", with one element of each array changed: of its pack every piece is another one."""
    state = _small(lambda i: 0)
    for i, array in enumerate(state.values()):
        array[0] += i + 1
    return state


def _files(seed: int) -> dict[str, bytes]:
    """A small checkpoint directory: a safetensors file with a tensor of more than a chunk, and others; as bytes."""
    large, small = _noise(seed, 2**18 + 2**12).tobytes(), _noise(seed + 1, 500).tobytes()
    entries = {
        "large": {"dtype": "F32", "shape": [len(large) // 4], "data_offsets": [0, len(large)]},
        "small": {"dtype": "F32", "shape": [500], "data_offsets": [len(large), len(large) + len(small)]},
    }
    header = json.dumps(entries).encode()
    return {
        "config.json": b'{"seed": %d}' % seed,
        "model.safetensors": len(header).to_bytes(8, "little") + header + large + small,
        "sub/empty": b"",
        "sub/rng": bytes(range(256)) * 10,
    }


def write_files(name: str, folder: Path) -> None:
    """Write the files that are the state of that name."""
    for path, data in state(name).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the files below a directory, as they are a state."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


_BUILDERS: dict[str, Callable[[], dict[str, Any]]] = {
    "first": lambda: _mixed(1),
    "second": lambda: _mixed(1, changed=1),
    "other": lambda: _mixed(2),
    "probe": lambda: _mixed(3),
    "small-0": lambda: _small(lambda i: 0),
    "small-1": lambda: _small(lambda i: int(i % 100 == 0)),
    # Three tenths of "small-0": its pack is mostly dead then, and the pieces are written again.
    "small-sparse": lambda: _small(lambda i: 0 if i % 10 < 3 else 2),
    "small-moved": _moved,
    "files-1": lambda: _files(11),
    "files-2": lambda: {**_files(11), "config.json": b"{}"},
}
NAMES = tuple(_BUILDERS)


def state(name: str) -> dict[str, Any]:
    """Return a new copy of the state of that name."""
    return deepcopy(_built(name))


@cache
def _built(name: str) -> dict[str, Any]:
    return _BUILDERS[name]()


@cache
def expected(name: str) -> str:
    """Return the fingerprint of the state of that name."""
    return fingerprint(state(name))


def fingerprint(value: object) -> str:
    """Return a digest of the types, the structure and every bit of `value`."""
    running = hashlib.sha256()
    for part in _parts(value):
        running.update(len(part).to_bytes(8, "little"))
        running.update(part)
    return running.hexdigest()


def _parts(value: object) -> Iterator[bytes]:
    yield type(value).__name__.encode()
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _parts(key)
            yield from _parts(inner)
        yield b"end"
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _parts(inner)
        yield b"end"
    elif isinstance(value, np.ndarray | np.generic):
        yield value.dtype.str.encode()
        yield repr(value.shape).encode()
        yield value.tobytes()
    elif isinstance(value, float):
        yield value.hex().encode()
    elif isinstance(value, bytes):
        yield value
    elif value is None or isinstance(value, bool | int | str):
        yield repr(value).encode()
    else:
        msg = f"no state of these tests holds a {type(value)}"
        raise TypeError(msg)
