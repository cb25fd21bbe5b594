"""The fine-tuning program of the demo: `python -m ckstore_cli.demo.lora --store DIR --base REF --run NAME …`.

It takes the weights of a checkpoint, adds low-rank adapters (LoRA: Hu et al. 2021, section 4.1) and trains them
alone, on other text. What it saves is the whole model: the base is the same in every checkpoint. At its end it also
writes files of its own, as every trainer does.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from ckstore import Store
from ckstore.errors import CkstoreError
from ckstore.model.sizes import size_text
from ckstore_cli.demo.data import Batches, Rng, read_corpus
from ckstore_cli.demo.model import ByteGpt, Size

PACKAGE = "asyncio"
RANK, ALPHA = 4, 8.0
BATCH_SIZE = 8
RATE = 1e-3
SEED = 20260302


@dataclass(frozen=True, slots=True)
class Plan:
    """What the program was asked to do.

    Attributes:
        store: Directory of the store.
        base: The checkpoint whose weights are the base.
        run: Name of the run that is saved.
        steps: How long it trains.
        layers: Blocks of the model.
        save_every: Steps from save to save.
        files: New directory for the program's own files.
    """

    store: Path
    base: str
    run: str
    steps: int
    layers: int
    save_every: int
    files: Path


class Lora(nn.Module):
    """A linear layer that stays as it is, and a low-rank one that is added to it and trained."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, RANK, bias=False)
        self.up = nn.Linear(RANK, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)  # at first nothing is added

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, in) to (…, out)."""
        out: Tensor = self.base(x) + self.up(self.down(x)) * (ALPHA / RANK)
        return out


def adapted(model: ByteGpt) -> list[nn.Parameter]:
    """Freeze `model`, put adapters into its attention, and return their parameters."""
    model.requires_grad_(requires_grad=False)
    adapters: list[nn.Parameter] = []
    for block in model.blocks:
        for name in ("mix", "join"):
            lora = Lora(getattr(block, name))
            setattr(block, name, lora)
            adapters += [*lora.down.parameters(), *lora.up.parameters()]
    return adapters


def fine_tune(plan: Plan, say: Callable[[str], None]) -> None:
    """Train the adapters, save them with the base every few steps, and write the program's own files."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    random.seed(SEED)
    size = Size(layers=plan.layers)
    model = ByteGpt(size)
    with Store.open(plan.store) as store:
        base = store.info(plan.base)
        model.load_state_dict(store.load(base, select="model")["model"])
        adapters = adapted(model)
        optimizer = torch.optim.AdamW(adapters, lr=RATE)
        corpus = read_corpus(PACKAGE)
        batches = Batches(
            corpus, context=size.context, batch_size=BATCH_SIZE, epoch_windows=BATCH_SIZE * plan.steps, seed=SEED
        )
        state: dict[str, Any] = {"model": model, "optimizer": optimizer, "rng": Rng(), "data": batches}
        count = sum(adapter.numel() for adapter in adapters)
        say(f"base {base.name}; text {PACKAGE}, {size_text(len(corpus.text))}; adapters of {count:,} parameters")
        for step in range(1, plan.steps + 1):
            loss = model.loss(batches.next())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if step % plan.save_every == 0:
                store.save(state, step=step, run=plan.run, metrics={"loss": loss.item()}, parent=base)
    write_files(plan.files, model, optimizer, plan.steps)


def write_files(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    """Write what a trainer leaves: weights, optimizer, generators, and how far it came."""
    folder.mkdir(parents=True)
    save_file(model.state_dict(), folder / "model.safetensors", {"format": "pt"})
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    torch.save(Rng().state_dict(), folder / "rng_state.pth")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": steps}) + "\n", encoding="utf-8")


def main() -> int:
    """Parse the command line and train; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m ckstore_cli.demo.lora", description=__doc__)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--base", required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--save-every", type=int, required=True)
    parser.add_argument("--files", type=Path, required=True)
    try:
        fine_tune(Plan(**vars(parser.parse_args())), lambda line: print(line, flush=True))
    except CkstoreError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
