"""``python -m tests.bench.scale``: what one save, prune, gc and log cost in a store of many checkpoints and of few.

Both stores lie on the same filesystem, as root an ext4 on a loop device as in ``make bench``, and hold states of the
same small tensors, of which one changes with each save. Every second step is kept for good, as a long run keeps every
thousandth; each round saves two that are not kept, and drops one by the policy and one by its name. Rounds are
interleaved; the figures are medians, and what counts is their ratio.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ckstore import RetentionPolicy, Store
from tests.bench.places import Place, given, on_loops

State = dict[str, npt.NDArray[np.int32]]
Act = Callable[[], None]
_POLICY = RetentionPolicy(keep_last=1, keep_every=2)
_SHOWN = 20
_CHANGING = 40
_SAID = 500
_TIMEOUT_S = 300.0
_IMAGE_BYTES = 8 * 2**30


class Kept:
    """A store with so many checkpoints, and two more in each round, of which it gives two away again."""

    def __init__(self, path: Path, tensors: int) -> None:
        self._state: State = {f"layer.{i}": np.full(64, i, np.int32) for i in range(tensors)}
        self._store = Store.init(path)
        self._saved = self._kept = 0

    def fill(self, count: int) -> None:
        """Save so many that are kept."""
        with _without_fsync():
            for done in range(1, count + 1):
                self._save_kept()
                if done % _SAID == 0:
                    print(f"{done} of {count} saved", file=sys.stderr, flush=True)
        os.sync()

    def acts(self) -> Iterator[tuple[str, Act]]:
        """Yield what a round does, each with its name."""
        yield from (("save", self._save_other), ("save", self._save_kept), ("prune and gc", self._prune))
        yield from (
            ("save", self._save_other),
            ("save", self._save_kept),
            ("delete", self._delete),
            ("gc, nothing to free", self._gc),
        )
        yield "log in a process of its own", self._log

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def _save_kept(self) -> None:
        self._kept += 2
        self._state |= self._changed()
        self._store.save(self._state, self._kept)

    def _save_other(self) -> None:
        self._store.save(self._state | self._changed(), self._kept + 1)  # its change dies with it

    def _changed(self) -> State:
        self._saved += 1
        # Few of them, so that the states of both stores lie in as many packs.
        return {f"layer.{self._saved % _CHANGING}": np.full(64, 1_000_000 + self._saved, np.int32)}

    def _prune(self) -> None:
        report = self._store.prune(_POLICY)
        if report.freed_count != 1:
            raise AssertionError(f"the blob of one checkpoint should be freed, {report.freed_count} were")

    def _delete(self) -> None:
        self._store.delete(self._kept - 1)

    def _gc(self) -> None:
        self._store.gc()

    def _log(self) -> None:
        command = [sys.executable, "-m", "ckstore_cli", "--store", str(self._store.path), "log", "-n", str(_SHOWN)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=_TIMEOUT_S)


@contextmanager
def _without_fsync() -> Iterator[None]:
    """Make the preparation take minutes and not an hour."""
    kept = os.fsync, os.fdatasync
    os.fsync = os.fdatasync = lambda fd: None
    try:
        yield
    finally:
        os.fsync, os.fdatasync = kept


def measure(stores: Mapping[int, Kept], rounds: int) -> dict[str, dict[int, list[float]]]:
    """Return for each act the seconds of every round, by the number of checkpoints in the store."""
    seconds: dict[str, dict[int, list[float]]] = defaultdict(lambda: {count: [] for count in stores})
    for turn in range(rounds + 1):
        order = list(stores.items())
        for count, kept in order if turn % 2 else reversed(order):
            for name, act in kept.acts():
                begun_s = time.perf_counter()
                act()
                if turn:  # the first opens and imports
                    seconds[name][count].append(time.perf_counter() - begun_s)
    return seconds


def main(arguments: Sequence[str]) -> int:
    """Make both stores, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.scale", description=__doc__)
    parser.add_argument("--many", type=int, default=10_000)
    parser.add_argument("--few", type=int, default=100)
    parser.add_argument("--tensors", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--dir", type=Path, help="where to measure; else, as root, a new ext4 on a loop device")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="where the image of that lies")
    options = parser.parse_args(arguments)
    few, many = options.few, options.many
    with _place(options) as place, ExitStack() as opened:
        stores = {}
        for count in (few, many):
            stores[count] = Kept(place.path / str(count), options.tensors)
            opened.callback(stores[count].close)
            stores[count].fill(count)
        seconds = measure(stores, options.rounds)
    print(f"{options.tensors} tensors, {options.rounds} rounds, {place.words}\n")
    print(f"| Act | {few} checkpoints | {many} checkpoints | Ratio |\n| --- | --- | --- | --- |")
    for act, taken in seconds.items():
        low, high = statistics.median(taken[few]) * 1e3, statistics.median(taken[many]) * 1e3
        print(f"| {act} | {low:.1f} ms | {high:.1f} ms | {high / low:.2f} |")
    return 0


def _place(options: argparse.Namespace) -> AbstractContextManager[Place]:
    options.out.mkdir(parents=True, exist_ok=True)
    if options.dir is None and os.geteuid() == 0:
        return on_loops(options.out, _IMAGE_BYTES, 0)
    return given(options.dir or options.out, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
