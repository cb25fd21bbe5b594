"""Training loops for the check of a resume: each is exact, or broken in one way."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from ckstore import Store
from ckstore.training import EPOCH_END, Loop, ResumeReport, capture, restore

torch.set_num_threads(1)
_BATCHES = 4


class Rows(Dataset[Any]):
    """Rows with noise of NumPy and Python."""

    def __init__(self) -> None:
        self.rows = torch.randn(4 * _BATCHES, 8, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index] + np.random.rand() + random.random()  # noqa: NPY002 - what many data sets do


def _parts(**more: Any) -> dict[str, Any]:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return {"model": model, "optimizer": optimizer, **more}


def _step(parts: dict[str, Any], rows: Any) -> Any:
    parts["optimizer"].zero_grad()
    loss = parts["model"](rows).square().mean()
    loss.backward()
    parts["optimizer"].step()
    return loss


def _without(parts: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: part for name, part in parts.items() if name not in names}


def _epochs(parts: dict[str, Any], loader: Any, extra: dict[str, Any]) -> Callable[[], Iterator[Any]]:
    def train() -> Iterator[Any]:
        while extra["epoch"] < 100:
            for rows in loader:
                yield {"loss": _step(parts, rows), "rows": rows.mean()}
            parts["scheduler"].step()
            extra["epoch"] += 1
            yield EPOCH_END

    return train


def epochs() -> Loop:
    """Dropout, augmentation by NumPy, a scheduler, and a plain loader that is shuffled."""
    parts = _parts()
    parts["scheduler"] = torch.optim.lr_scheduler.StepLR(parts["optimizer"], 1, 0.5)
    parts["dataloader"] = DataLoader(Rows(), batch_size=4, shuffle=True)
    extra = {"epoch": 0}
    return Loop(_epochs(parts, parts["dataloader"], extra), parts, extra)


def epochs_without_scheduler() -> Loop:
    """As `epochs`, but the scheduler is no part."""
    loop = epochs()
    return Loop(loop.train, _without(dict(loop.parts), "scheduler"), loop.extra)


def epochs_without_extra() -> Loop:
    """As `epochs`, but the number of the epoch, on which the loss depends, is not kept."""
    parts = _parts(dataloader=DataLoader(Rows(), batch_size=4, shuffle=True))

    def train() -> Iterator[Any]:
        for epoch in range(100):
            for rows in parts["dataloader"]:
                yield _step(parts, rows * (epoch + 1)).item()
            yield EPOCH_END

    return Loop(train, parts)


def steps() -> Loop:
    """No data loader: rows are drawn."""
    parts = _parts()

    def train() -> Iterator[Any]:
        while True:
            yield _step(parts, torch.rand(4, 8))

    return Loop(train, parts)


def steps_in_a_function() -> Loop:
    """A function that does one step."""
    parts = _parts()

    def step() -> dict[str, Any]:
        rows = torch.rand(4, 8)
        return {"loss": _step(parts, rows), "batch": rows}

    return Loop(step, parts)


def six_steps() -> Loop:
    """The training ends."""
    parts = _parts()

    def train() -> Iterator[Any]:
        for _ in range(6):
            yield _step(parts, torch.rand(4, 8))

    return Loop(train, parts)


def without_optimizer() -> Loop:
    """The optimizer is no part."""
    loop = steps()
    return Loop(loop.train, _without(dict(loop.parts), "optimizer"))


def without_model() -> Loop:
    """The model is no part."""
    loop = steps()
    return Loop(loop.train, _without(dict(loop.parts), "model"))


def own_generator() -> Loop:
    """A generator that no part refers to."""
    parts, noise = _parts(), torch.Generator().manual_seed(3)

    def train() -> Iterator[Any]:
        while True:
            yield _step(parts, torch.rand(4, 8, generator=noise))

    return Loop(train, parts)


def own_generator_as_part() -> Loop:
    """The same generator as a part."""
    parts = _parts(noise=torch.Generator().manual_seed(3))

    def train() -> Iterator[Any]:
        while True:
            yield _step(parts, torch.rand(4, 8, generator=parts["noise"]))

    return Loop(train, parts)


def without_average() -> Loop:
    """Averaged weights are no part; the loss does not depend on them."""
    loop = averaged()
    return Loop(loop.train, _without(dict(loop.parts), "ema"))


def averaged() -> Loop:
    """Averaged weights are a part."""
    parts = _parts()
    ema = torch.optim.swa_utils.AveragedModel(parts["model"])

    def train() -> Iterator[Any]:
        while True:
            loss = _step(parts, torch.rand(4, 8))
            ema.update_parameters(parts["model"])
            yield loss

    return Loop(train, {**parts, "ema": ema})


def without_random_states() -> Loop:
    """Its own functions restore everything but the random states."""
    loop = steps()

    def save(store: Store) -> None:
        store.save(capture(**loop.parts))

    def load(store: Store) -> ResumeReport:
        return restore(store, rng=False, **loop.parts)

    return Loop(loop.train, loop.parts, save=save, load=load)


def without_numpy() -> Loop:
    """Its own functions know nothing of NumPy."""
    loop = epochs()
    parts = _without(dict(loop.parts), "dataloader")

    def save(store: Store) -> None:
        python = repr(random.getstate())
        store.save({**parts, "extra": loop.extra, "torch": torch.get_rng_state(), "python": python})

    def load(store: Store) -> None:
        state = store.load()
        for name, part in parts.items():
            part.load_state_dict(state[name])
        loop.extra.update(state["extra"])
        torch.set_rng_state(state["torch"])
        random.setstate(eval(state["python"]))  # noqa: S307 - what this same function has saved

    return Loop(loop.train, loop.parts, loop.extra, save, load)


def own_functions() -> Loop:
    """Its own functions save everything, by its own names."""
    loop = steps()

    def save(store: Store) -> None:
        store.save({"state": dict(loop.parts), "torch": torch.get_rng_state()})

    def load(store: Store) -> None:
        state = store.load()
        for name, part in loop.parts.items():
            part.load_state_dict(state["state"][name])
        torch.set_rng_state(state["torch"])

    return Loop(loop.train, loop.parts, save=save, load=load)


def not_deterministic() -> Loop:
    """Noise of the system, far below the size of the loss."""
    parts = _parts()

    def train() -> Iterator[Any]:
        while True:
            noise = int.from_bytes(os.urandom(4), "little") / 2**32
            yield _step(parts, torch.rand(4, 8) + 1e-6 * noise)

    return Loop(train, parts)


def late_not_deterministic() -> Loop:
    """Noise of the system from the fifth step on."""
    parts, counted = _parts(), [0]

    def train() -> Iterator[Any]:
        while True:
            counted[0] += 1
            noise = int.from_bytes(os.urandom(4), "little") / 2**32 if counted[0] > 4 else 0.0
            yield _step(parts, torch.rand(4, 8) + noise)

    return Loop(train, parts)


def noisy_without_optimizer() -> Loop:
    """The same, and its optimizer is no part."""
    loop = not_deterministic()
    return Loop(loop.train, _without(dict(loop.parts), "optimizer"))


def far_from_deterministic() -> Loop:
    """Noise of the size of the loss."""
    parts = _parts()

    def train() -> Iterator[Any]:
        while True:
            yield _step(parts, torch.rand(4, 8) * int.from_bytes(os.urandom(4), "little") / 2**32)

    return Loop(train, parts)


def random_projection() -> Loop:
    """The loss depends on a tensor that each process draws for itself."""
    parts, projection = _parts(), torch.randn(8, 8)

    def train() -> Iterator[Any]:
        while True:
            yield _step(parts, torch.rand(4, 8) @ projection)

    return Loop(train, parts)


class Meter:
    """Averages the loss, and its `load_state_dict` forgets a value."""

    def __init__(self) -> None:
        self.count, self.sum = 0, 0.0

    def state_dict(self) -> dict[str, Any]:
        """Return both."""
        return {"count": self.count, "sum": self.sum}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set one of the two."""
        self.count = state["count"]


def forgetful_part() -> Loop:
    """A part that takes up only a piece of its state."""
    parts = _parts(meter=Meter())

    def train() -> Iterator[Any]:
        while True:
            loss = _step(parts, torch.rand(4, 8))
            parts["meter"].count += 1
            parts["meter"].sum += loss.item()
            yield loss

    return Loop(train, parts)


class Drawing(Meter):
    """A part that draws a random number for its state."""

    def state_dict(self) -> dict[str, Any]:
        """Return it."""
        torch.rand(1)
        return {"count": 0}


def changed_by_its_save() -> Loop:
    """Each save draws a random number."""
    loop = steps()
    return Loop(loop.train, {**loop.parts, "drawing": Drawing()})


def hidden_state() -> Loop:
    """The loss depends on a value that nothing shows."""
    parts, hidden = _parts(), [0.0]

    def train() -> Iterator[Any]:
        while True:
            hidden[0] += 1
            yield _step(parts, torch.rand(4, 8) * hidden[0])

    return Loop(train, parts)


def drifts() -> Loop:
    """A table that no loss depends on counts the steps of its process."""
    parts, counted = _parts(table={"table": torch.zeros(3)}), [0.0]

    def train() -> Iterator[Any]:
        while True:
            loss = _step(parts, torch.rand(4, 8))
            counted[0] += 1
            parts["table"]["table"][1] = float(counted[0] >= 8)
            yield loss

    return Loop(train, parts)


def crashes() -> Loop:
    """It raises in the second step."""
    parts = _parts()

    def train() -> Iterator[Any]:
        yield _step(parts, torch.rand(4, 8))
        raise ZeroDivisionError("no learning rate")

    return Loop(train, parts)


def crashes_when_restored() -> Loop:
    """It raises when its checkpoint is read."""
    loop = steps()

    def load(store: Store) -> None:
        raise KeyError(f"no optimizer in {store.info('latest').step}")

    return Loop(loop.train, loop.parts, save=lambda store: store.save(capture(**loop.parts), step=7), load=load)


def exits() -> Loop:
    """It ends its process."""
    raise SystemExit(3)


_TRACER = """
import ctypes, os, time
libc = ctypes.CDLL(None, use_errno=True)
seized = libc.ptrace(0x4206, os.getppid(), None, None)  # PTRACE_SEIZE
print(f"tracer {os.getpid()} {seized}", flush=True)
time.sleep(60)  # without a bound the check would wait for this
"""


def is_traced() -> Loop:
    """Its second step never ends, and a debugger that stands still has its process."""
    parts = _parts()

    def train() -> Iterator[Any]:
        yield _step(parts, torch.rand(4, 8))
        ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1))  # PR_SET_PTRACER, any: for Yama
        # In a session of its own, so that it is not killed with the loop.
        subprocess.Popen([sys.executable, "-c", _TRACER], start_new_session=True)
        time.sleep(10_000)

    return Loop(train, parts)


def hangs() -> Loop:
    """Its second step never ends."""
    parts = _parts()

    def train() -> Iterator[Any]:
        yield _step(parts, torch.rand(4, 8))
        worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(10_000)"])
        print(f"pid {os.getpid()}\npid {worker.pid}\nwaiting for the other ranks", flush=True)
        time.sleep(10_000)

    return Loop(train, parts)


def is_killed() -> Loop:
    """Its process is killed, as for its memory."""
    parts = _parts()

    def train() -> Iterator[Any]:
        yield _step(parts, torch.rand(4, 8))
        os.kill(os.getpid(), signal.SIGKILL)

    return Loop(train, parts)


def gives_no_loss() -> Loop:
    """It yields nothing after a step."""

    def train() -> Iterator[Any]:
        while True:
            yield

    return Loop(train)


def gives_only_accuracy() -> Loop:
    """It yields a metric and no loss."""

    def train() -> Iterator[Any]:
        while True:
            yield {"accuracy": 1.0}

    return Loop(train)


def gives_losses() -> Loop:
    """It yields a loss for each row."""

    def train() -> Iterator[Any]:
        while True:
            yield torch.ones(3)

    return Loop(train)


def gives_text() -> Loop:
    """It yields a word."""

    def train() -> Iterator[Any]:
        while True:
            yield "loss"

    return Loop(train)


def half_a_pair() -> Loop:
    """It can save, and not load."""
    return Loop(print, save=print)


def parts_in_a_list() -> Loop:
    """Its parts have no names."""
    return Loop(print, [torch.nn.Linear(1, 1)])  # type: ignore[arg-type]


def trains_nothing() -> Any:
    """It gives an iterator where a function is wanted."""
    return Loop(iter([1.0]))  # type: ignore[arg-type]


def only_parts() -> Any:
    """It returns its parts and no loop."""
    return {}


A_NUMBER = 3
