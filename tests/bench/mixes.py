"""Time saves and loads of three mixes of tensor sizes: ``python -m tests.bench.mixes [--mix MIX] [--dir DIR]``.

The mixes are 1 to 3 MiB with a few of 16 MiB (medium), 20,000 tensors (small), and 64 MiB (large). Each round is a
process that saves and loads one state with ckstore, its peers and the baselines. Rounds without other load, and rounds
beside two processes that keep two cores busy, alternate. All saves are durable. It needs root, to drop the page cache
before cold loads. ``--one MIX`` is one such process, which prints its seconds as JSON.
"""

from __future__ import annotations

import argparse
import importlib
import json
import mmap
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import xxhash
from safetensors.torch import load_file, save_file

from ckstore import Store
from tests.bench.sizes import size

_MIB = 2**20
_PART_BYTES = 8 * _MIB
MIXES = ("medium", "small", "large")
_BUSY_COUNT = 2
_TIMEOUT_S = 900.0
_DCP: Any = importlib.import_module("torch.distributed.checkpoint")  # its names are not exported
State = dict[str, torch.Tensor]
Seconds = dict[str, tuple[float, float]]
"""Act -> seconds of the clock, and of the processor."""


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


def _cold() -> None:
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("1", encoding="ascii")


def _synced(path: Path) -> None:
    for each in (*([path] if path.is_file() else path.iterdir()), path.parent):
        fd = os.open(each, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


def _save_torch(state: State, path: Path) -> None:
    torch.save(state, path)
    _synced(path)


def _save_safetensors(state: State, path: Path) -> None:
    save_file(state, path)
    _synced(path)


def _save_dcp(state: State, path: Path) -> None:
    _DCP.save(state, storage_writer=_DCP.FileSystemWriter(path, sync_files=True), no_dist=True)
    _synced(path)


def _load_dcp(state: State, path: Path) -> None:
    _DCP.load({name: torch.empty_like(value) for name, value in state.items()}, checkpoint_id=path, no_dist=True)


def _load_safetensors(path: Path) -> State:
    # The tensors are views of the mapped file, which is read when they are copied.
    return {name: value.clone() for name, value in load_file(path).items()}


def _write_directly(path: Path, nbytes: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)
    part = memoryview(mmap.mmap(-1, _PART_BYTES))
    for _ in range(0, nbytes, _PART_BYTES):
        os.write(fd, part)
    os.fsync(fd)
    os.close(fd)


def _read_directly(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    part = memoryview(mmap.mmap(-1, _PART_BYTES))
    while os.readv(fd, [part]):
        pass
    os.close(fd)


def _hash(state: State) -> None:
    for value in state.values():
        xxhash.xxh3_128_digest(value.numpy().data)


def _copy(state: State, target: State) -> None:
    for name, value in state.items():
        target[name].copy_(value)


def one_round(mix: str, folder: Path, state_bytes: int) -> Seconds:
    """Measure each act once."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
    state = {f"t{i:05}": torch.randn(nbytes // 4) for i, nbytes in enumerate(sizes_of(mix, state_bytes))}
    target = {name: value.clone() for name, value in state.items()}
    place = folder / f"mixes-{os.getpid()}"
    place.mkdir(parents=True)
    found: Seconds = {}

    def timed(name: str, act: Callable[[], object], *, cold: bool = False) -> None:
        os.sync()
        if cold:
            _cold()
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        act()
        found[name] = time.perf_counter() - wall_s, time.process_time() - cpu_s

    total_bytes = sum(value.nbytes for value in state.values())
    with ExitStack() as last:
        last.callback(shutil.rmtree, place)
        store = last.enter_context(Store.init(place / "store"))
        # Imports, and other work that a process does only once, are not timed.
        store.save({"w": torch.zeros(4)}, run="first")
        store.load("first@latest")
        store.load_into({"w": torch.zeros(4)}, "first@latest")
        saves: dict[str, Callable[[], object]] = {
            "save": lambda: store.save(state),
            "save/direct write": lambda: _write_directly(place / "direct", total_bytes),
            "save/torch.save": lambda: _save_torch(state, place / "state.pt"),
            "save/safetensors": lambda: _save_safetensors(state, place / "state.safetensors"),
            "save/DCP": lambda: _save_dcp(state, place / "dcp"),
        }
        for name in random.sample([*saves], len(saves)):
            timed(name, saves[name])
        timed("unchanged", lambda: store.save(state))
        timed("unchanged/hash", lambda: _hash(state))
        store.load("main@latest")  # the save wrote past the page cache
        timed("in place", lambda: store.load_into(target, "main@latest"))
        timed("in place/memcpy", lambda: _copy(state, target))
        loads: dict[str, Callable[[], object]] = {
            "cold load": lambda: store.load("main@latest"),
            "cold load/direct read": lambda: _read_directly(place / "direct"),
            "cold load/torch.load": lambda: torch.load(place / "state.pt"),
            "cold load/safetensors": lambda: _load_safetensors(place / "state.safetensors"),
            "cold load/DCP": lambda: _load_dcp(state, place / "dcp"),
        }
        for name in random.sample([*loads], len(loads)):
            timed(name, loads[name], cold=True)
    return found


def measure(mix: str, folder: Path, state_bytes: int, rounds: int) -> dict[bool, Seconds]:
    """Return the median times of each act, without and with other load."""
    taken: dict[bool, dict[str, list[tuple[float, float]]]] = {False: defaultdict(list), True: defaultdict(list)}
    command = [
        sys.executable,
        "-m",
        "tests.bench.mixes",
        "--one",
        mix,
        "--dir",
        str(folder),
        "--size",
        str(state_bytes),
    ]
    for turn in range(2 * rounds):
        busy = bool(turn % 2)
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(_BUSY_COUNT * busy)]
        try:
            done = subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT_S)
        finally:
            for other in others:
                other.kill()
                other.wait()
        for name, seconds in json.loads(done.stdout).items():
            taken[busy][name].append(seconds)
    return {busy: {name: _medians(all_of) for name, all_of in by.items()} for busy, by in taken.items()}


def _medians(taken: Sequence[tuple[float, float]]) -> tuple[float, float]:
    wall_s, cpu_s = zip(*taken, strict=True)
    return statistics.median(wall_s), statistics.median(cpu_s)


def rows(mix: str, found: Mapping[bool, Seconds]) -> Iterator[str]:
    """Yield the rows of a mix: seconds, share of the baseline, and speed beside the fastest peer, quiet and busy."""
    for act, baseline in (
        ("save", "direct write"),
        ("unchanged", "hash"),
        ("cold load", "direct read"),
        ("in place", "memcpy"),
    ):
        cells = [mix, act]
        for by in (found[False], found[True]):
            own_s, own_cpu_s = by[act]
            peers = [
                seconds for name, (seconds, _) in by.items() if name.startswith(f"{act}/") and baseline not in name
            ]
            peer = f"{min(peers) / own_s:.2f}" if peers else "–"
            cells += [f"{own_s:.2f} ({own_cpu_s:.2f})", f"{by[f'{act}/{baseline}'][0] / own_s:.2f} {baseline}", peer]
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mix", choices=MIXES, help="only this one")
    parser.add_argument("--one", choices=MIXES, help="measure one round in this process")
    parser.add_argument("--dir", type=Path, default=Path("build"), help="where to save")
    parser.add_argument("--size", type=size, default=2**30, help="of the state")
    parser.add_argument("--rounds", type=int, default=3, help="without and with other load (default: 3)")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one_round(options.one, options.dir, options.size)))
        return
    print(
        "| Mix | Act | quiet, s (processor) | share of | × best peer | busy, s (processor) | share of | × best peer |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for mix in [options.mix] if options.mix else MIXES:
        for row in rows(mix, measure(mix, options.dir, options.size, options.rounds)):
            print(row, flush=True)


if __name__ == "__main__":
    main()
