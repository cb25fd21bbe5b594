"""``python -m tests.bench long``: what saves and looks cost in a run of 20,000 tiny checkpoints beside one of 200.

The stores are written directly, as their format says, and entered into the catalog by the first opening: saving 20,000
times takes minutes. They lie in memory where there is some, so that what is measured is this program and not the disk.
Rounds are interleaved, and each act but the warm save is a whole process; the figures are medians, of the clock and of
the processor's time, which other programs disturb less.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from ckstore import CkstoreWarning, Store
from ckstore.fs import blob_time
from ckstore.model.digest import algorithm_named, fan_out
from ckstore.model.manifest.manifest import BlobRecord, Extent, StateTexts, content_digest, render
from ckstore.model.manifest.parse import parse_manifest
from tests.support.checkpoint_dirs import checkpoint_dir
from tests.support.memory import memory_folder

Taken = tuple[float, float]
"""Seconds of the clock, and of the processor."""
Act = Callable[[Path], Taken]
_ALGORITHM = algorithm_named("xxh3_128")
_SIZES = (200, 2_000, 20_000)
_BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
_WARM_SAVES = 20
_TIMEOUT_S = 300.0
_LEAST_BYTES = 2**30
_SAVE = "import numpy; store.save({'w': numpy.full(16, time.time_ns() % 2**31, 'i4')}, metrics={'loss': 1.0})"
_FRESH = """
import sys, time, warnings
from ckstore import Store
warnings.simplefilter("ignore")
with Store(sys.argv[1], readonly={readonly}) as store:
    {act}
"""


def write_run(store: Path, count: int, run: str = "main") -> None:
    """Make a store with a run of so many checkpoints of 64 bytes, as saves leave it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CkstoreWarning)
        with Store.init(store) as made:
            made.save({"w": np.zeros(16, np.int32)}, step=0, run=run, metrics={"loss": 1.0})
        writer = _Writer(store, run)
        for step in range(1, count):
            writer.write(step)
        with Store(store):  # enters them into the catalog
            pass


class _Writer:
    """Writes checkpoints like the first one of a run, each a child of the one before."""

    def __init__(self, store: Path, run: str) -> None:
        self._store, self._run = store, store / "checkpoints" / run
        directory = checkpoint_dir(store, run, 0)
        self._has_ids = directory.name != "0"
        first = directory / "manifest.json"
        self._first, self._parent = parse_manifest(first.read_bytes(), where=str(first))
        self._texts = StateTexts.of(self._first.leaves, self._first.state)

    def write(self, step: int) -> None:
        data = np.full(16, step, np.int32).tobytes()
        digest = _ALGORITHM.digest(data)
        storages = (self._first.storages[0]._replace(extents=(Extent(digest, 0, 0, len(data)),)),)
        manifest = replace(
            self._first,
            step=step,
            sequence=self._first.sequence + step,
            created=f"{_BEGAN + timedelta(minutes=step, microseconds=1):%Y-%m-%dT%H:%M:%S.%fZ}",
            description=replace(self._first.description, parent=self._parent, metrics={"loss": 1 / step}),
            blobs=(BlobRecord(digest, len(data)),),
            storages=storages,
            content=content_digest(self._texts, storages, _ALGORITHM),
        )
        self._parent, text = render(manifest, _ALGORITHM, self._texts)
        folder = self._run / (f"{step}.{self._parent.partition('-')[2][:10]}" if self._has_ids else str(step))
        folder.mkdir(0o700)
        blob = folder / "blobs" / digest
        blob.parent.mkdir(0o700)
        _write_read_only(blob, data)
        blob_time.stamp(blob)
        canonical = self._store / "blobs" / fan_out(digest) / digest
        canonical.parent.mkdir(0o700, exist_ok=True)
        canonical.hardlink_to(blob)
        _write_read_only(folder / "manifest.json", text)


def _write_read_only(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    path.chmod(0o444)


def command(*words: str) -> Act:
    """Return an act that is a command."""
    return lambda store: _run([sys.executable, "-m", "ckstore_cli", "--store", str(store), *words])


def fresh(act: str, *, readonly: bool) -> Act:
    """Return an act that is a process which opens the store and calls it once."""
    code = _FRESH.format(act=act, readonly=readonly)
    return lambda store: _run([sys.executable, "-c", code, str(store)])


def warm_save(store: Path) -> Taken:
    """Return the medians of saves by a process that has saved before."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CkstoreWarning)
        with Store(store) as opened:
            taken = [_save(opened, number) for number in range(_WARM_SAVES + 1)][1:]
    return medians(taken)


def _save(store: Store, number: int) -> Taken:
    state = {"w": np.full(16, time.time_ns() % 2**30 + number, np.int32)}
    begun = time.perf_counter(), time.process_time()
    store.save(state, metrics={"loss": 1.0})
    return time.perf_counter() - begun[0], time.process_time() - begun[1]


def medians(taken: Sequence[Taken]) -> Taken:
    """Return the median of both clocks."""
    clock_s, processor_s = zip(*taken, strict=True)
    return statistics.median(clock_s), statistics.median(processor_s)


ACTS: dict[str, Act] = {
    "save, a fresh process": fresh(_SAVE, readonly=False),
    "save, a process that has saved": warm_save,
    "`Store.latest()`, a fresh process": fresh("store.latest()", readonly=True),
    "`ckstore show latest`": command("show", "latest"),
    "`ckstore runs`": command("runs"),
    "`ckstore log -n 20`": command("log", "-n", "20"),
    "`ckstore log`": command("log"),
    "`ckstore doctor`": command("doctor"),
    "`ckstore prune --keep-last 10 --dry-run`": command("prune", "--keep-last", "10", "--dry-run"),
}


def _run(words: Sequence[str]) -> Taken:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun_s = time.perf_counter()
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=_TIMEOUT_S)
    taken_s = time.perf_counter() - begun_s
    if done.returncode not in (0, 1):  # doctor has something to say of memory
        raise RuntimeError(f"{words}: {done.returncode}: {done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return taken_s, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def measure(stores: Mapping[int, Path], rounds: int) -> dict[str, dict[int, Taken]]:
    """Return the median times of each act by the number of checkpoints."""
    taken: dict[str, dict[int, list[Taken]]] = defaultdict(lambda: {count: [] for count in stores})
    for turn in range(rounds + 1):
        for name, act in ACTS.items():
            for count in sorted(stores, reverse=bool(turn % 2)):
                one = act(stores[count])
                if turn:  # the first compiles, and fills the caches of the kernel
                    taken[name][count].append(one)
    return {name: {count: medians(all_of) for count, all_of in by.items()} for name, by in taken.items()}


def table(found: Mapping[str, Mapping[int, Taken]]) -> str:
    """Return the table in Markdown, with the ratio of the largest store to the smallest."""
    sizes = sorted(next(iter(found.values())))
    rows = [
        f"| Act | {' | '.join(f'{count:,} checkpoints' for count in sizes)} | Ratio |",
        f"| --- |{' --- |' * (len(sizes) + 1)}",
    ]
    for name, by_count in found.items():
        cells = [f"{clock_s * 1e3:,.1f} ms ({cpu_s * 1e3:,.1f})" for clock_s, cpu_s in map(by_count.__getitem__, sizes)]
        first, last = by_count[sizes[0]], by_count[sizes[-1]]
        ratios = f"{last[0] / first[0]:.2f} ({last[1] / first[1]:.2f})"
        rows.append(f"| {name} | {' | '.join(cells)} | {ratios} |")
    return "\n".join(rows)


def main(arguments: Sequence[str]) -> int:
    """Make the stores, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench long", description=__doc__)
    parser.add_argument("--counts", type=int, nargs="+", default=_SIZES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", type=Path, help="where the stores lie; default: in memory")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="ckstore-long-", dir=options.dir or memory_folder(_LEAST_BYTES)) as folder:
        stores = {}
        for count in options.counts:
            begun_s = time.perf_counter()
            stores[count] = Path(folder, str(count))
            write_run(stores[count], count)
            print(
                f"{count:,} checkpoints written in {time.perf_counter() - begun_s:.1f} s", file=sys.stderr, flush=True
            )
        where = "memory" if options.dir is None else options.dir
        print(f"{options.rounds} rounds, in {where}; in brackets the processor's time\n")
        print(table(measure(stores, options.rounds)))
    return 0
