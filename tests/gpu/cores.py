"""Save and load a state in the memory of the processor, by the number of threads: in /dev/shm and on the local disk.

The machine with a GPU is the one with many cores. Baselines beside it say what they can do at best, by as many threads.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from ckstore import Store
from ckstore.ops.call_threads import DEFAULT_THREADS
from tests.bench import states
from tests.bench.baselines import Baseline, Copy, Hash, ReadFiles, WriteFiles
from tests.bench.case import Here
from tests.bench.states import Sizes, State
from tests.bench.usage import make_cold
from tests.gpu.parts import SAVE, timed

Figures = dict[str, Any]
CHOSEN = "chosen"
THREADS = (CHOSEN, "16", "4", "1", "8", "2")
"""In the order of their weight: where time runs out, the last are missing."""
BASELINES = ("16", "4", "1")
_SHM = Path("/dev/shm")
_SLOW_BYTES_A_S = 2 * 10**9
_READ = {
    "read_file": "ckstore.fs.files:read_into",
    "read_pieces": "ckstore.objects.pieces:PieceReader.read",
    "read_parts": "ckstore.ops.read.storage_read:_read_parts",
}


class _Clock:
    """Says when no more is begun."""

    def __init__(self, seconds: float) -> None:
        self._end_s = time.monotonic() + seconds

    def __bool__(self) -> bool:
        return time.monotonic() < self._end_s


def by_threads(folder: Path, state_bytes: int, seconds: float) -> Figures:
    """Measure baselines, saves and loads by the number of threads, and begin nothing more after `seconds`.

    Args:
        folder: On the local disk.
        state_bytes: Of the state; half of them on a disk that is slow, where the number of threads says little.
        seconds: After which no more is begun: what is missing then is not in the figures.
    """
    clock = _Clock(seconds)
    state = states.make("llm", Sizes(state_bytes))
    found: Figures = {
        "bytes": _nbytes(state),
        "cores": len(os.sched_getaffinity(0)),
        "chosen": DEFAULT_THREADS,
        "places": {},
    }
    baseline = Sizes(state_bytes // 8)
    found["hash"] = _baselines(folder, baseline, clock, lambda n: Hash("hash", threads=n))
    found["copy"] = _baselines(folder, baseline, clock, lambda n: Copy("copy", threads=n))
    target = states.like(state)
    if os.access(_SHM, os.W_OK) and shutil.disk_usage(_SHM).free > 2 * state_bytes:
        with tempfile.TemporaryDirectory(prefix="ckstore-gpu-", dir=_SHM) as shm:
            found["places"]["shm"] = _in_place(Path(shm), state, target, clock, cold=False)
    disk: Figures = {
        "write": _baselines(folder, baseline, clock, lambda n: WriteFiles("write", direct=True, at_once=n)),
        "read": _baselines(folder, baseline, clock, lambda n: ReadFiles("read", at_once=n)),
    }
    if max(disk["write"].values(), default=0.0) < _SLOW_BYTES_A_S:
        state = dict(list(state.items())[::2])
        target = {name: target[name] for name in state}
    found["places"]["disk"] = disk | _in_place(folder, state, target, clock, cold=True)
    found["same"] = all(place.get("same", True) for place in found["places"].values())
    return found


def _baselines(folder: Path, sizes: Sizes, clock: _Clock, made: Callable[[int], Baseline]) -> dict[str, float]:
    """Return bytes a second of a baseline by the number of threads; the better of two laps."""
    found = {}
    for threads in BASELINES:
        if not clock:
            break
        with tempfile.TemporaryDirectory(dir=folder) as home:
            baseline = made(int(threads))
            baseline.prepare(Here(Path(home), sizes))
            laps = []
            for lap in range(2):
                baseline.before(lap)
                begun_s = time.perf_counter()
                baseline.act(lap)
                laps.append(time.perf_counter() - begun_s)
            baseline.check()
            found[threads] = baseline.nbytes / min(laps)
    return found


def _in_place(folder: Path, state: State, target: State, clock: _Clock, *, cold: bool) -> Figures:
    """Save, all of it new each time, and load into memory that is there; `cold`: from the disk."""
    nbytes = _nbytes(state)
    found: Figures = {"bytes": nbytes, "save": {}, "load": {}, "parts": {}}
    with Store.init(folder / "store") as store:
        laps = count(1)

        def act(threads: str) -> None:
            states.change(state, lap := next(laps))
            store.config.threads = None if threads == CHOSEN else int(threads)
            with timed(SAVE) as save_parts:
                saved = _measured(lambda: store.save(state, step=lap))
            if cold:
                make_cold(folder, everything=os.geteuid() == 0)
            with timed(_READ) as load_parts:
                loaded = _measured(lambda: store.load_into(target, lap))
            found["save"][threads], found["load"][threads] = nbytes / saved["s"], nbytes / loaded["s"]
            found["parts"][threads] = {"save": {**saved, **save_parts}, "load": {**loaded, **load_parts}}

        if not cold:  # the first place: what imports is not counted
            act(THREADS[0])
        for threads in THREADS:
            if not clock:
                break
            act(threads)
            if threads == CHOSEN:  # comparing takes longer than all that is measured
                found["same"] = states.same(target, state)
            store.delete("latest")  # so that no place needs room for two
            store.gc()
    shutil.rmtree(folder / "store")
    return found


def _measured(act: Callable[[], object]) -> Figures:
    """Return the seconds of an act, and those that processors were at work in it."""
    began_s, used_s = time.perf_counter(), time.process_time()
    act()
    return {"s": time.perf_counter() - began_s, "cpu_s": time.process_time() - used_s}


def _nbytes(state: State) -> int:
    return sum(tensor.nbytes for tensor in state.values())
