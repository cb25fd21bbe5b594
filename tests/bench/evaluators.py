"""``python -m tests.bench.evaluators``: what ``follow(lacking=)`` costs for each checkpoint that it yields.

Each checkpoint gets one metric by ``annotate``, with and without the record that reserves it for one evaluator. Rounds
are interleaved and start from a copy of the same store. The last row has several evaluators in processes of their own.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ckstore import Store

_EVALUATOR = """
import sys
from ckstore import Store
with Store.open(sys.argv[1]) as store:
    done = [store.annotate(i, metrics={"m": 1.0}) for i in store.follow("main", lacking="m", timeout_s=0)]
print(len(done))
"""


def main(arguments: Sequence[str]) -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.evaluators", description=__doc__)
    parser.add_argument("--counts", type=int, nargs="+", default=[100, 1000], help="checkpoints in the run")
    parser.add_argument("--processes", type=int, default=4, help="evaluators at once")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="for the stores")
    given = parser.parse_args(arguments)
    rows: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory(prefix="ckstore-evaluators-", dir=given.dir) as folder:
        for count in given.counts:
            for what, found in _measured(Path(folder), count, given.processes, given.rounds).items():
                per = [1000 * seconds / count for seconds in found]
                rows.setdefault(what, []).append(f"{statistics.median(per):.1f} ({min(per):.1f} – {max(per):.1f})")
    print(f"| ms for each checkpoint | {' | '.join(f'{count:,} in the run' for count in given.counts)} |")
    print(f"| --- |{' --- |' * len(given.counts)}")
    print("\n".join(f"| {what} | {' | '.join(cells)} |" for what, cells in rows.items()))
    return 0


def _measured(folder: Path, count: int, processes: int, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each way to give all checkpoints of a run a metric."""
    made = folder / f"made-{count}"
    with Store.init(made) as store:
        for step in range(count):
            store.save({"w": np.full(64, step)}, step=step)
    ways = {"`annotate`": _annotate, "`follow(lacking=)` and `annotate`": _follow}
    ways[f"the same, {processes} processes"] = lambda path: _processes(path, processes, count)
    found: dict[str, list[float]] = {what: [] for what in ways}
    for _ in range(rounds):
        for what, way in ways.items():
            copy = folder / "copy"
            subprocess.run(["cp", "-a", str(made), str(copy)], check=True)
            Store.open(copy).close()  # the catalog of the copy is rebuilt
            found[what].append(way(copy))
            shutil.rmtree(copy)
    return found


def _annotate(path: Path) -> float:
    with Store.open(path) as store:
        begun_s = time.perf_counter()
        for info in store.checkpoints():
            store.annotate(info, metrics={"m": 1.0})
        return time.perf_counter() - begun_s


def _follow(path: Path) -> float:
    with Store.open(path) as store:
        begun_s = time.perf_counter()
        for info in store.follow("main", lacking="m", timeout_s=0):
            store.annotate(info, metrics={"m": 1.0})
        return time.perf_counter() - begun_s


def _processes(path: Path, processes: int, count: int) -> float:
    begun_s = time.perf_counter()
    children = [
        subprocess.Popen([sys.executable, "-c", _EVALUATOR, str(path)], stdout=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]
    done = sum(int(child.communicate()[0]) for child in children)
    if done != count:
        raise RuntimeError(f"{done} evaluations of {count} checkpoints")
    return time.perf_counter() - begun_s


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
