"""The training program of the demo: `python -m ckstore_cli.demo.trainer --store DIR --run NAME`.

Not different from any training loop: everything that decides about the next step is in one dict,
`Store.save_async` takes it every few steps, and `Store.load_into` fills it again when the store has
the run already. It can be killed at any moment and started again with the same command.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR

from ckstore import PendingSave, Store
from ckstore.errors import CkstoreError
from ckstore.model.sizes import size_text
from ckstore_cli._format import columns
from ckstore_cli.demo.data import Batches, Corpus, Rng, read_corpus
from ckstore_cli.demo.model import ByteGpt, Size
from ckstore_cli.demo.proof import digests

BATCH_SIZE = 16
EPOCH_STEPS = 10
WARM_UP_STEPS = 8
PEAK_RATE = 3e-3
SEED = 20260301


@dataclass(frozen=True, slots=True)
class Plan:
    """What the program was asked to do.

    Attributes:
        store: Directory of the store.
        run: Name of the run, resumed when the store has it.
        steps: The run ends after this step.
        layers: Blocks of the model.
        save_every: Steps from save to save; 0: save after the last step only.
        report: Where the digests of the state after the last step go, as JSON; None: nowhere.
    """

    store: Path
    run: str
    steps: int
    layers: int
    save_every: int
    report: Path | None

    def saves_after(self, step: int) -> bool:
        """Whether there is a save after `step`."""
        return step == self.steps or (self.save_every > 0 and step % self.save_every == 0)


class Training:
    """Everything that a step reads and changes.

    `state` is what is saved and loaded: a dict of objects that have `state_dict`.
    """

    def __init__(self, corpus: Corpus, size: Size, steps: int) -> None:
        self.model = ByteGpt(size)
        self.optimizer = torch.optim.AdamW(self.model.trained(), lr=PEAK_RATE, weight_decay=0.1)
        self.scheduler = LambdaLR(self.optimizer, warm_up_then_cosine(steps))
        self.batches = Batches(
            corpus,
            context=size.context,
            batch_size=BATCH_SIZE,
            epoch_windows=BATCH_SIZE * EPOCH_STEPS,
            seed=SEED,
        )
        self.state: dict[str, Any] = {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "rng": Rng(),
            "data": self.batches,
        }

    def step(self) -> float:
        """Train on one batch; return its loss in nats a byte."""
        loss = self.model.loss(self.batches.next())
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.trained(), 1.0)
        self.optimizer.step()
        self.scheduler.step()
        return loss.item()

    def describe(self) -> str:
        """Return lines that say what is trained on what."""
        corpus, parameters = self.batches.corpus, list(self.model.parameters())
        trained = sum(one.numel() for one in parameters if one.requires_grad)
        fixed = sum(one.numel() for one in parameters) - trained
        text = f"{corpus.files} modules of Python's standard library"
        rows = [
            ("text", f"{text}, {size_text(len(corpus.text))}"),
            (
                "model",
                f"GPT over bytes, {trained:,} trained parameters, {fixed:,} fixed (embeddings)",
            ),
            (
                "saved",
                "weights, AdamW, schedule, generators of torch, NumPy, Python, order of data",
            ),
        ]
        return "\n".join([*columns(rows, "<<"), ""])


def warm_up_then_cosine(steps: int) -> Callable[[int], float]:
    """Return the share of the peak rate at each step: up in a line, down to a tenth in a cosine."""

    def share(step: int) -> float:
        if step < WARM_UP_STEPS:
            return (step + 1) / WARM_UP_STEPS
        done = min(1.0, (step - WARM_UP_STEPS) / max(1, steps - WARM_UP_STEPS))
        return 0.1 + 0.45 * (1 + math.cos(math.pi * done))

    return share


def train(plan: Plan, say: Callable[[str], None]) -> None:
    """Train `plan.run` to its last step, from its newest checkpoint if it has one."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    random.seed(SEED)
    training = Training(read_corpus(), Size(layers=plan.layers), plan.steps)
    with Store.open_or_init(plan.store) as store:
        newest = store.latest(run=plan.run)
        if newest is not None:
            store.load_into(training.state, newest)
            say(f"resumed from {newest.name}, saved with loss {newest.metrics['loss']:.3f}")
        elif not store.checkpoints(newest=1):
            say(training.describe())
        saving: Saving | None = None
        for step in range(1 if newest is None else newest.step + 1, plan.steps + 1):
            loss = training.step()
            if plan.saves_after(step):
                if saving is not None:
                    say(saving.finished())
                saving = begin_save(store, training, plan.run, step, loss)
        if saving is not None:
            say(saving.finished())
    if plan.report is not None:
        plan.report.write_text(json.dumps(digests(training.state)), encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Saving:
    """A save in the background.

    Attributes:
        pending: The save.
        loss: That of its step.
        blocked_s: How long training waited.
    """

    pending: PendingSave
    loss: float
    blocked_s: float

    def finished(self) -> str:
        """Wait for its end; return what is said then.

        Raises:
            CkstoreError: Nothing was saved.
        """
        info = self.pending.result()
        return (
            f"step {info.step:>4}   loss {self.loss:.3f}   training waited {self.blocked_s:.2f} s, "
            f"{size_text(info.new_bytes):>8} of {size_text(info.logical_bytes)} new"
        )


def begin_save(store: Store, training: Training, run: str, step: int, loss: float) -> Saving:
    """Have the state saved in the background; it may change when this returns."""
    started_s = time.perf_counter()
    pending = store.save_async(
        training.state, step=step, run=run, metrics={"loss": loss}, message=f"epoch {training.batches.epoch}"
    )
    return Saving(pending, loss, time.perf_counter() - started_s)


def main() -> int:
    """Parse the command line and train; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m ckstore_cli.demo.trainer", description=__doc__)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--save-every", type=int, default=0)
    parser.add_argument("--report", type=Path)
    try:
        train(Plan(**vars(parser.parse_args())), lambda line: print(line, flush=True))
    except CkstoreError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
