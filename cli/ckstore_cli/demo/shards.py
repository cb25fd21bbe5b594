"""The training program of ``ckstore demo --ranks``: FSDP2 on the CPU, each rank a process of its own.

The batch depends on the step, not on the number of ranks: each takes its rows. Rank 0 writes down what all ranks
together have, as gathered by `full_tensor`, for comparison with the store.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from ckstore import Store
from ckstore.errors import CkstoreError
from ckstore.integrations import dcp
from ckstore.model.sizes import size_text
from ckstore_cli.demo.data import read_corpus
from ckstore_cli.demo.model import ByteGpt, Size
from ckstore_cli.demo.proof import digests

BATCH_SIZE = 16
"""As many as there may be ranks: each has a row at least."""
SEED = 20260301
RUN = "ranks"
CHUNK_BYTES = 2**20
"""So small that each rank has whole chunks: what is equal is then shared between numbers of ranks."""


class Ranked:
    """The model and its optimizer, cut among the ranks."""

    def __init__(self, layers: int) -> None:
        torch.manual_seed(SEED)
        self.size = Size(layers=layers, dropout=0.0)
        self.text = read_corpus().text
        self.model = ByteGpt(self.size)
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for block in self.model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.trained(), lr=1e-3)

    def step(self, number: int) -> float:
        """Train one step; return the mean loss of all ranks."""
        generator = torch.Generator().manual_seed(SEED + number)
        window = self.size.context + 1
        starts = torch.randint(len(self.text) - window, (BATCH_SIZE,), generator=generator).tolist()
        mine = starts[dist.get_rank() :: dist.get_world_size()]
        loss = self.model.loss(torch.stack([self.text[start : start + window] for start in mine]).long())
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean)
        return float(mean) / dist.get_world_size()

    def state(self, step: int) -> dict[str, Any]:
        """Return what all ranks save."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optim": optimizer, "step": step}

    def load(self, store: Store, ref: str) -> int:
        """Take the state of a checkpoint; return its step."""
        state = self.state(0)
        dcp.load(store, state, ref)
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
        return int(state["step"])


def whole(value: Any) -> Any:
    """Return a state with each tensor put together from the shards of all ranks, and the names in order."""
    if isinstance(value, DTensor):
        return value.full_tensor()
    if isinstance(value, dict):
        return {key: whole(value[key]) for key in sorted(value)}
    return [whole(item) for item in value] if isinstance(value, list) else value


def train(given: argparse.Namespace) -> None:
    """Train from the newest checkpoint on to the last step, and save every few."""
    first = dist.get_rank() == 0
    training = Ranked(given.layers)
    told: dict[str, Any] = {}
    store = Store.open(given.store)
    start = 0
    if store.latest(run=RUN) is not None:
        start = training.load(store, f"{RUN}@latest")
        told["loaded"] = digests(whole(training.state(start)))
        if first:
            print(f"step {start:>4}   resumed", flush=True)
    for step in range(start + 1, given.steps + 1):
        loss = training.step(step)
        if step % given.save_every == 0:
            info = dcp.save(store, training.state(step), step, RUN, metrics={"loss": loss})
            if first:
                size = f"{size_text(info.new_bytes):>8} of {size_text(info.logical_bytes)} new"
                print(f"step {step:>4}   loss {loss:.3f}   saved from all ranks, {size}", flush=True)
    told["trained"] = digests(whole(training.state(given.steps)))
    if first:
        given.report.write_text(json.dumps(told), encoding="utf-8")


def main() -> int:
    """Parse the command line, join the other ranks, and train; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m ckstore_cli.demo.shards", description=__doc__)
    for name in ("rank", "world-size", "steps", "save-every", "layers"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("store", "meeting", "report"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{given.meeting}", rank=given.rank, world_size=given.world_size)
    try:
        train(given)
    except CkstoreError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status
    finally:
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
