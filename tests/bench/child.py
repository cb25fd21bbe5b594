"""One case, measured in a process of its own: forked from a runner that has torch imported and does nothing else.

A fork is as fresh as a new program for what is measured (memory, descriptors, threads, the state of libraries) and
saves the second and a half that torch takes to be imported. No thread of torch runs in the runner.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from tests.bench.case import Case, Here, Scenario
from tests.bench.states import Sizes
from tests.bench.usage import (
    Footprint,
    PeakMemory,
    PrivateMemory,
    Usage,
    cached_share,
    footprint,
    make_cold,
    regular_files,
    sync_filesystem,
    usage,
)

MARK = "/ckstore-bench/"
_WARM_FROM, _COLD_TO = 0.99, 0.01
_PRELOADED = (
    "safetensors.torch",
    "torch.distributed.checkpoint",
    "ckstore.catalog",
    *(
        f"ckstore.ops.{verb}"
        for verb in (
            "open.opening",
            "free.gc",
            "refs.latest_valid",
            "read.open_checkpoint",
            "free.retain",
            "save.save",
            "verify.verify",
        )
    ),
)


class CacheNotReached(Exception):
    """The page cache could not be brought to the state that a case needs."""


@dataclass
class Sample:
    """What one run of a case gave.

    Attributes:
        seconds: Of each lap.
        nbytes: Bytes that the laps together worked on.
        cpu_s, written_bytes, read_bytes: Of the laps together, with the programs that were started.
        extra_bytes: The highest resident memory in a lap, above that before it.
        files, allocated_bytes: What the laps added to the filesystem.
        cached: Share of the files' pages that was in the page cache before the last lap; None: not looked at.
        scale: Part of the work that was done; times and counts are scaled up already.
        figures: What else the case found out.
    """

    seconds: list[float] = field(default_factory=list)
    nbytes: int = 0
    cpu_s: float = 0.0
    written_bytes: int = 0
    read_bytes: int = 0
    extra_bytes: int = 0
    files: int = 0
    allocated_bytes: int = 0
    cached: float | None = None
    scale: float = 1.0
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """How cases are run.

    Attributes:
        drop_everything: Whether cold means `drop_caches`, for the whole machine; else the files' own pages.
        own_filesystem: Whether no other program writes to the filesystem, which is then synced before each lap.
        thorough, rehearse: As in `tests.bench.case.Here`.
        fsync: Whether anything is made durable; not in a test of the benchmark itself.
        counting: Whether this pass is not timed: memory is sampled, and laps are marked for strace.
        only: Beginnings of the names of the cases to run; none: all.
        timeout_s: After which a case is killed.
    """

    sizes: Sizes
    drop_everything: bool
    own_filesystem: bool = False
    thorough: bool = False
    rehearse: bool = True
    fsync: bool = True
    counting: bool = False
    only: tuple[str, ...] = ()
    timeout_s: float = 1800.0


def preload() -> None:
    """Import what cases need before the first fork, and keep the collector from walking it in each of them.

    Torch and what is started compute with one thread: a forked process waits for ever for threads that the runner had,
    and two of OpenMP get into each other's way beside anything else.
    """
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    for name in _PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


def run_forked(scenario: Scenario, case: Case, folder: Path, settings: Settings) -> dict[str, Any]:
    """Run a case in a forked process, in an empty directory; return its `Sample` as a dict, or ``{"error": …}``."""
    answer = folder.with_name(f"{folder.name}.json")
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.setpgid(0, 0)  # so that a case that hangs is killed with what it started
            _answer(scenario, case, folder, settings, answer)
            status = 0
        finally:
            os._exit(status)
    ended = _wait(pid, settings.timeout_s)
    try:
        found: dict[str, Any] = json.loads(answer.read_text())
    except (OSError, ValueError):
        found = {"error": f"the process ended with {ended} and said nothing"}
    answer.unlink(missing_ok=True)
    return found


def _wait(pid: int, timeout_s: float) -> str:
    deadline_s = time.monotonic() + timeout_s
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return str(os.waitstatus_to_exitcode(status))
        if time.monotonic() > deadline_s:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return f"a kill after {timeout_s:.0f} s"
        time.sleep(0.005)


def _answer(scenario: Scenario, case: Case, folder: Path, settings: Settings, answer: Path) -> None:
    try:
        said: dict[str, Any] = asdict(measure(scenario, case, folder, settings))
    except Exception as error:
        traceback.print_exc()
        said = {"error": f"{type(error).__name__}: {error}"}
    answer.write_text(json.dumps(said))


def measure(scenario: Scenario, case: Case, folder: Path, settings: Settings) -> Sample:
    """Run a case in this process."""
    if scenario.without_fsync or not settings.fsync:
        os.fsync = os.fdatasync = lambda fd: None  # SQLite's own, two or three a save, stay
    sample = Sample()
    case.prepare(Here(folder, settings.sizes, settings.thorough, settings.rehearse))
    for lap in range(case.laps):
        case.before(lap)
        sample.cached = _set_cache(case, folder, settings)
        _lap(scenario, case, lap, (folder, settings), sample)
    case.check()
    sample.nbytes, sample.scale, sample.figures = case.nbytes, case.scale, case.figures
    for name in ("cpu_s", "written_bytes", "read_bytes", "files", "allocated_bytes"):
        value = getattr(sample, name)
        setattr(sample, name, type(value)(value / case.scale))
    sample.seconds = [seconds / case.scale for seconds in sample.seconds]
    return sample


def _lap(scenario: Scenario, case: Case, lap: int, here: tuple[Path, Settings], sample: Sample) -> None:
    folder, settings = here
    there = footprint(folder)
    if settings.own_filesystem:
        sync_filesystem(folder)
    gc.collect()
    memory = PrivateMemory() if settings.counting else PeakMemory()
    with memory:
        _mark(settings, "begin", scenario.name, case.name)
        before = usage()
        start_s = time.perf_counter()
        case.act(lap)
        seconds = time.perf_counter() - start_s
        used = usage() - before
        _mark(settings, "end", scenario.name, case.name)
    sample.seconds.append(seconds)
    sample.extra_bytes = max(sample.extra_bytes, memory.extra_bytes)
    _add(sample, used, there, footprint(folder))


def _add(sample: Sample, used: Usage, there: Footprint, now: Footprint) -> None:
    sample.cpu_s += used.cpu_s
    sample.written_bytes += used.written_bytes
    sample.read_bytes += used.read_bytes
    sample.files += now.files - there.files
    sample.allocated_bytes += now.allocated_bytes - there.allocated_bytes


def _mark(settings: Settings, what: str, *names: str) -> None:
    """Say in the trace of this process where a lap begins and ends: a call for a path that does not exist."""
    if settings.counting:
        os.access(f"{MARK}{what}/{'|'.join(names)}", os.F_OK)


def _set_cache(case: Case, folder: Path, settings: Settings) -> float | None:
    """Bring the files of the case into the page cache, or out of it, and look whether that worked.

    Raises:
        CacheNotReached: It did not.
    """
    if case.cache == "any":
        return None
    if case.cache == "warm":
        # First out: pages that a buffered write left are larger than those that a read brings in, and faster to map.
        make_cold(folder, everything=False)
        case.warm(folder)
    else:
        make_cold(folder, everything=settings.drop_everything)
    share = cached_share(regular_files(folder))
    if share is None:
        return None
    if (case.cache == "warm" and share < _WARM_FROM) or (case.cache == "cold" and share > _COLD_TO):
        raise CacheNotReached(f"{share:.0%} of the pages are in the page cache, wanted it {case.cache}")
    return share
