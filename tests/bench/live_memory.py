"""``python -m tests.bench.live_memory``: how fast another process takes the memory of a trainer without a copy by it.

The other process reads it with `process_vm_readv` in parts of 16 MiB, with one and with two threads, as a saver would;
beside it stand bare copies by the trainer. Meanwhile, and before, the trainer takes training steps of one thread, of
which the time from the end of one `optimizer.step` to the beginning of the next is what a save could hide in. For
docs/adr/0017-live-memory.md.
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection

import torch

from tests.bench.sizes import size

_PART_BYTES = 16 * 2**20
_PR_SET_PTRACER = 0x59616D61
_STEPS = 15
_WIDE, _LAYERS, _BATCH = 1024, 4, 128
_Iovec = ctypes.c_size_t * 2
_libc = ctypes.CDLL(None, use_errno=True)


def _parts(nbytes: int) -> Iterator[tuple[int, int]]:
    return iter([(at, min(_PART_BYTES, nbytes - at)) for at in range(0, nbytes, _PART_BYTES)])


def _on_threads(count: int, work: Iterator[tuple[int, int]], take: object) -> float:
    """Have each part taken by one of the threads; return the seconds."""

    def run() -> None:
        for at, nbytes in work:
            take(at, nbytes)  # type: ignore[operator]

    begun_s = time.perf_counter()
    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - begun_s


def _saver(pipe: Connection, trainer: int, address: int, nbytes: int) -> None:
    """Read all of it whenever the trainer asks for that, and say how long it took."""
    own = torch.ones(nbytes, dtype=torch.uint8)

    def take(at: int, length: int) -> None:
        mine, theirs = _Iovec(own.data_ptr() + at, length), _Iovec(address + at, length)
        got = _libc.process_vm_readv(trainer, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0)
        if got != length:
            raise OSError(ctypes.get_errno(), f"process_vm_readv: {os.strerror(ctypes.get_errno())}")

    while threads := pipe.recv():
        pipe.send(_on_threads(threads, _parts(nbytes), take))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.live_memory", description=__doc__)
    parser.add_argument("--size", type=size, default=2 * 2**30)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    live = torch.ones(options.size, dtype=torch.uint8)
    copy = torch.ones(options.size, dtype=torch.uint8)
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    spawned = multiprocessing.get_context("spawn").Process(
        target=_saver, args=(theirs, os.getpid(), live.data_ptr(), options.size), daemon=True
    )
    spawned.start()
    _libc.prctl(_PR_SET_PTRACER, spawned.pid, 0, 0, 0)  # where a child may not look at its parent otherwise
    theirs.close()
    found: dict[str, list[float]] = {}
    training = _Training()

    def put(what: str, seconds: float) -> None:
        found.setdefault(what, []).append(seconds)

    for _ in range(options.rounds + 1):
        for threads, words in ((1, "1 thread"), (2, "2 threads")):
            work = _parts(options.size)
            put(
                f"copy by the trainer, {words}",
                _on_threads(threads, work, lambda at, n: ctypes.memmove(copy.data_ptr() + at, live.data_ptr() + at, n)),
            )
        for threads, words in ((1, "1 thread"), (2, "2 threads")):
            before = [training.step() for _ in range(_STEPS)]
            ours.send(threads)
            meanwhile = []
            while not ours.poll():
                meanwhile.append(training.step())
            put(f"read by another process, {words}, beside steps", ours.recv())
            put("step", statistics.median(step for step, _ in before))
            put("between two optimizer.step", statistics.median(free for _, free in before))
            if meanwhile:
                put(
                    f"step beside {words}",
                    statistics.median(step for step, _ in meanwhile),
                )
    ours.send(0)
    spawned.join(60)
    print(f"{options.size:,} bytes, {options.rounds} rounds\n\n|  | ms | min – max |\n| --- | --- | --- |")
    for what, seconds in found.items():
        each = [one * 1e3 for one in seconds[len(seconds) // (options.rounds + 1) :]]  # the first is not counted
        print(f"| {what} | {statistics.median(each):.1f} | {min(each):.1f} – {max(each):.1f} |")
    return 0


class _Training:
    def __init__(self) -> None:
        layers = [layer for _ in range(_LAYERS) for layer in (torch.nn.Linear(_WIDE, _WIDE), torch.nn.ReLU())]
        self._model = torch.nn.Sequential(*layers)
        self._optimizer = torch.optim.AdamW(self._model.parameters())
        self._batch = torch.randn(_BATCH, _WIDE)

    def step(self) -> tuple[float, float]:
        """Take one; return its seconds, and those before its `optimizer.step`."""
        begun_s = time.perf_counter()
        self._optimizer.zero_grad()
        self._model(self._batch).square().mean().backward()
        free_s = time.perf_counter() - begun_s
        self._optimizer.step()
        return time.perf_counter() - begun_s, free_s


if __name__ == "__main__":
    raise SystemExit(main())
