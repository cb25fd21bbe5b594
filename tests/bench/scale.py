"""``python -m tests.bench.scale``: what one save, prune, gc and log cost in a store of many checkpoints and of few.

Both stores lie in the same directory, and hold states of the same small tensors, of which one changes with each save.
Rounds are interleaved; the figures are medians, and what counts is their ratio.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ckstore import RetentionPolicy, Store

State = dict[str, npt.NDArray[np.int32]]
_SHOWN = 20
_SAID = 500
_TIMEOUT_S = 300.0


class Kept:
    """A store with so many checkpoints, to which one is added in each round, and from which one is dropped."""

    def __init__(self, path: Path, count: int, tensors: int) -> None:
        self._count = count
        self._state: State = {f"layer.{i}": np.full(64, i, np.int32) for i in range(tensors)}
        self._store = Store.init(path)
        self._step = 0
        for _ in range(count):
            self.save()
            if self._step % _SAID == 0:
                print(f"{self._step} of {count} saved", file=sys.stderr, flush=True)

    def save(self) -> None:
        """Save the next step."""
        names = list(self._state)
        changed = names[self._step % len(names)]
        self._state[changed] = np.full(64, 1_000_000 + self._step, np.int32)
        self._store.save(self._state, step=self._step)
        self._step += 1

    def prune(self) -> None:
        """Drop the oldest by a policy."""
        plan = self._store.plan_retention(RetentionPolicy(keep_last=self._count))
        assert len(self._store.apply(plan).dropped) == 1, "one checkpoint too many was there"

    def gc(self) -> None:
        """Free what only that one used."""
        self._store.gc()

    def log(self) -> None:
        """Show the newest, in a process of its own."""
        command = [sys.executable, "-m", "ckstore_cli", "--store", str(self._store.path), "log", "-n", str(_SHOWN)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=_TIMEOUT_S)

    def close(self) -> None:
        """Close the store."""
        self._store.close()


def measure(stores: Sequence[Kept], rounds: int) -> dict[str, list[list[float]]]:
    """Return for each act the seconds of every round, for each store."""
    seconds: dict[str, list[list[float]]] = defaultdict(lambda: [[] for _ in stores])
    for turn in range(rounds + 1):
        order = list(enumerate(stores))
        for number, kept in order if turn % 2 else reversed(order):
            acts: tuple[Callable[[], None], ...] = (kept.save, kept.prune, kept.gc, kept.log)
            for act in acts:
                begun_s = time.perf_counter()
                act()
                if turn:  # the first opens and imports
                    seconds[act.__name__][number].append(time.perf_counter() - begun_s)
    return seconds


def main(arguments: Sequence[str]) -> int:
    """Make both stores, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.scale", description=__doc__)
    parser.add_argument("--many", type=int, default=10_000)
    parser.add_argument("--few", type=int, default=100)
    parser.add_argument("--tensors", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--dir", type=Path, default=Path("/dev/shm" if os.access("/dev/shm", os.W_OK) else "."))
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="ckstore-scale-", dir=options.dir) as folder:
        stores = [Kept(Path(folder, str(count)), count, options.tensors) for count in (options.few, options.many)]
        seconds = measure(stores, options.rounds)
        for kept in stores:
            kept.close()
    print(f"| Act | {options.few} checkpoints | {options.many} checkpoints | Ratio |\n| --- | --- | --- | --- |")
    for act, (few, many) in seconds.items():
        low, high = statistics.median(few) * 1e3, statistics.median(many) * 1e3
        print(f"| {act} | {low:.1f} ms | {high:.1f} ms | {high / low:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
