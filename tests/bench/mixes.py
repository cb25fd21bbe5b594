"""Time saves and loads of one mix of tensor sizes: ``python -m tests.bench.mixes MIX [--dir DIR]``.

Run it in turn from two checkouts to compare two commits. It needs root, to drop the page cache before cold loads.
"""

from __future__ import annotations

import argparse
import mmap
import os
import random
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from ckstore import Store
from tests.bench.sizes import size

_MIB = 2**20
_PART_BYTES = 8 * _MIB


def sizes_of(mix: str, state_bytes: int) -> Iterator[int]:
    """Yield the sizes of tensors in bytes until a state of at least `state_bytes` is complete."""
    drawing = random.Random(58)
    done = 0
    while done < state_bytes:
        if mix == "medium":
            nbytes = drawing.randrange(_MIB, 3 * _MIB) if drawing.random() < 0.95 else 16 * _MIB
        else:
            nbytes = 64 * _MIB if mix == "large" else state_bytes // 20_000
        yield nbytes // 4 * 4
        done += nbytes


def timed(name: str, act: Callable[[], object]) -> None:
    """Print how long `act` took, and the processor time of this process."""
    os.sync()
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    act()
    print(f"{name:24} {time.perf_counter() - wall_s:8.3f} s {time.process_time() - cpu_s:8.3f} s of processor")


def _cold() -> None:
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("1", encoding="ascii")


def _save_safetensors(state: dict[str, torch.Tensor], path: Path) -> None:
    save_file(state, path)
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def _write_directly(path: Path, nbytes: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)
    part = memoryview(mmap.mmap(-1, _PART_BYTES))
    for _ in range(0, nbytes, _PART_BYTES):
        os.write(fd, part)
    os.fsync(fd)
    os.close(fd)


def main() -> None:
    """Measure each act once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mix", choices=("medium", "small", "large"))
    parser.add_argument("--dir", type=Path, default=Path("build"), help="where to save")
    parser.add_argument("--size", type=size, default=2**30, help="of the state")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
    sizes = [*sizes_of(options.mix, options.size)]
    state = {f"t{i:05}": torch.randn(nbytes // 4) for i, nbytes in enumerate(sizes)}
    place = options.dir / f"mixes-{os.getpid()}"
    place.mkdir(parents=True)
    try:
        with Store.init(place / "store") as store:
            store.save({"w": torch.zeros(4)}, run="first")  # what a process does once is not timed
            timed("first save", lambda: store.save(state))
            timed("unchanged save", lambda: store.save(state))
            timed("load, warm", lambda: store.load("main@latest"))
            timed("load in place, warm", lambda: store.load_into(state, "main@latest"))
            _cold()
            timed("load, cold", lambda: store.load("main@latest"))
        shutil.rmtree(place / "store")
        timed("safetensors, fsync", lambda: _save_safetensors(state, place / "state.safetensors"))
        _cold()
        timed("safetensors, cold", lambda: load_file(place / "state.safetensors"))
        timed("direct write", lambda: _write_directly(place / "direct", sum(sizes)))
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
