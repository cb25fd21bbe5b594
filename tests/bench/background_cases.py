"""The cases of ``python -m tests.bench async``, each of which runs in a process of its own."""

from __future__ import annotations

import ctypes
import importlib
import shutil
import statistics
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ckstore import Store
from tests.bench import states
from tests.bench.case import sync_file
from tests.bench.states import Sizes, State

Lap = dict[str, float]
_PART_BYTES = 16 * 2**20
_STEPS = 25
_WIDE, _LAYERS, _BATCH = 1024, 4, 128
_TIMEOUT_S = 600.0
_MIRROR_BYTES_S = 32 * 2**20
"""What a mirror may take of a link beside a training."""


class Background(ABC):
    """A way to save in the background.

    Args:
        folder: An empty directory.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def begin(self, state: State, step: int) -> None:
        """Begin a save; the state may change when this returns."""

    def until_owned(self) -> None:  # noqa: B027 - for a peer it is when the call returns
        """Wait until this process may die."""

    @abstractmethod
    def is_done(self) -> bool:
        """Whether the save has ended."""

    @abstractmethod
    def finish(self) -> None:
        """Wait for the end, and raise if it failed."""

    @abstractmethod
    def forget(self, step: int) -> None:
        """Remove a step."""

    def close(self) -> None:  # noqa: B027 - most have nothing to do
        """End what was started."""


class Ours(Background):
    """`Store.save_async`, whose saver may make way for others."""

    def __init__(self, folder: Path, nice: int) -> None:
        super().__init__(folder)
        self._nice = nice
        self._store = Store.init(folder / "store")

    def begin(self, state: State, step: int) -> None:
        self._pending = self._store.save_async(state, step=step, nice=self._nice)

    def until_owned(self) -> None:
        self._pending.wait_staged(_TIMEOUT_S)

    def is_done(self) -> bool:
        return self._pending.done()

    def finish(self) -> None:
        self._pending.result(_TIMEOUT_S)

    def forget(self, step: int) -> None:
        self._store.delete(step)
        self._store.gc()

    def close(self) -> None:
        self._store.close(_TIMEOUT_S)


class Mirrored(Ours):
    """The same with a mirror, which has always one to push: each lap is beside the push of those before."""

    def __init__(self, folder: Path, nice: int) -> None:
        super().__init__(folder, nice)
        self._store.close(_TIMEOUT_S)
        self._store = Store.open_or_init(folder / "store", mirror=folder / "mirror")
        self._store.config.mirror_bytes_s = _MIRROR_BYTES_S

    def forget(self, step: int) -> None:
        # Two are left for the mirror, of which it is somewhere in the middle.
        if step >= 2:
            self._store.delete(step - 2)
            self._store.gc()

    def close(self) -> None:
        status = self._store.mirror_status()
        with Store.open((self.folder / "mirror").as_uri()) as mirror:
            there = mirror.checkpoints()
        self._store.config.mirror = None
        super().close()
        if status is None or not (there or status.behind):
            raise RuntimeError("the mirror had nothing to do")


class DistributedCheckpoint(Background):
    """DCP's `async_save`, with a stager that keeps its memory for the next save, which is its fastest form."""

    def __init__(self, folder: Path, *, process: bool) -> None:
        super().__init__(folder)
        self._dcp: Any = importlib.import_module("torch.distributed.checkpoint")
        staging: Any = importlib.import_module("torch.distributed.checkpoint.staging")
        saver: Any = importlib.import_module("torch.distributed.checkpoint.state_dict_saver")
        kind = saver.AsyncCheckpointerType
        self._kind = kind.PROCESS if process else kind.THREAD
        self._process = process
        self._stager = staging.DefaultStager(staging.StagingOptions(False, process, False, False))
        if process:
            torch.distributed.init_process_group("gloo", init_method=f"file://{folder / 'group'}", rank=0, world_size=1)

    def begin(self, state: State, step: int) -> None:
        writer = self._dcp.FileSystemWriter(self._path(step), thread_count=1, sync_files=True)
        self._future = self._dcp.async_save(
            dict(state),
            storage_writer=writer,
            async_checkpointer_type=self._kind,
            async_stager=self._stager,
            no_dist=not self._process,
        )
        self._step = step

    def is_done(self) -> bool:
        return bool(self._future.done())

    def finish(self) -> None:
        self._future.result(_TIMEOUT_S)
        sync_file(self._path(self._step))
        sync_file(self.folder)

    def forget(self, step: int) -> None:
        shutil.rmtree(self._path(step))

    def close(self) -> None:
        self._stager.close()
        if self._process:
            torch.distributed.destroy_process_group()

    def _path(self, step: int) -> Path:
        return self.folder / f"{step:06}"


class Training:
    """A step of a small model with AdamW, which one thread computes."""

    def __init__(self) -> None:
        layers = [layer for _ in range(_LAYERS) for layer in (torch.nn.Linear(_WIDE, _WIDE), torch.nn.ReLU())]
        self._model = torch.nn.Sequential(*layers)
        self._optimizer = torch.optim.AdamW(self._model.parameters())
        self._batch = torch.randn(_BATCH, _WIDE)

    def step(self) -> float:
        """Take one; return its seconds."""
        begun_s = time.perf_counter()
        self._optimizer.zero_grad()
        self._model(self._batch).square().mean().backward()
        self._optimizer.step()
        return time.perf_counter() - begun_s


CASES: dict[str, Callable[[Path], Background] | int] = {
    "copy, 1 thread": 1,
    "copy, 2 threads": 2,
    "ckstore": lambda folder: Ours(folder, nice=0),
    "ckstore, nice=10": lambda folder: Ours(folder, nice=10),
    "ckstore, nice=10, mirror": lambda folder: Mirrored(folder, nice=10),
    "DCP, thread": lambda folder: DistributedCheckpoint(folder, process=False),
    "DCP, process": lambda folder: DistributedCheckpoint(folder, process=True),
}
"""Ways to save by their names; a number is that of the threads of a bare copy."""


def run_case(name: str, parent: Path, nbytes: int, laps: int, *, seed: int) -> list[Lap]:
    """Run one case in this process, and return its laps without the first, which makes memory and starts processes."""
    torch.set_num_threads(1)
    state = states.make("llm", Sizes(nbytes, seed=seed))
    case = CASES[name]
    if isinstance(case, int):
        return _copies(state, case, laps)
    with tempfile.TemporaryDirectory(prefix="async-", dir=parent.resolve()) as folder:
        way = case(Path(folder))
        try:
            return _saves(state, way, laps)
        finally:
            way.close()


def _copies(state: State, threads: int, laps: int) -> list[Lap]:
    """Copy the bytes of the state to memory that is there."""
    target = torch.ones(sum(tensor.nbytes for tensor in state.values()), dtype=torch.uint8)
    parts, end = [], 0
    for tensor in state.values():
        parts += [
            (target.data_ptr() + end + at, tensor.data_ptr() + at, min(_PART_BYTES, tensor.nbytes - at))
            for at in range(0, tensor.nbytes, _PART_BYTES)
        ]
        end += tensor.nbytes
    found = []
    for lap in range(laps + 1):
        states.change(state, lap)
        begun_s = time.perf_counter()
        waiting = iter(parts)
        others = [threading.Thread(target=_copy, args=(waiting,)) for _ in range(threads - 1)]
        for other in others:
            other.start()
        _copy(waiting)
        for other in others:
            other.join()
        found.append({"blocked_s": time.perf_counter() - begun_s})
    return found[1:]


def _copy(parts: Any) -> None:
    for target, source, nbytes in parts:  # an iterator of a list gives each part to one thread
        ctypes.memmove(target, source, nbytes)


def _saves(state: State, way: Background, laps: int) -> list[Lap]:
    training = Training()
    found = []
    for lap in range(laps + 1):
        states.change(state, lap)
        before = [training.step() for _ in range(_STEPS)][_STEPS // 5 :]
        begun_s = time.perf_counter()
        way.begin(state, lap)
        blocked_s = time.perf_counter() - begun_s
        way.until_owned()
        owned_s = time.perf_counter() - begun_s
        meanwhile = []
        while not way.is_done():
            taken_s = training.step()
            if not way.is_done():
                meanwhile.append(taken_s)
        way.finish()
        one = {"blocked_s": blocked_s, "owned_s": owned_s, "durable_s": time.perf_counter() - begun_s}
        if meanwhile:
            one |= {"step_s": statistics.median(before), "meanwhile_s": statistics.median(meanwhile)}
        found.append(one)
        way.forget(lap)
    return found[1:]
