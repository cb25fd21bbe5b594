"""One rank of a training with the checkpoint manager, optimizers and schedulers of torchtitan: see test_torchtitan.py.

Arguments: a folder, the rank, the number of ranks, what to do, the save mode of torchtitan, and the last step. If the
environment has MIRROR, each rank is on a node with its own store, which has this mirror. The last printed line is JSON:
the step that it resumed from and the digests of all values by name, or the error.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer
from torchtitan.components.optimizer.optimizer import ParamGroupConfig

from ckstore import CkstoreError, Store
from ckstore.integrations.torchtitan import CkstoreCheckpointManager
from ckstore.remote.mirror import mirror_process

GLOBAL_BATCH = 8
STEPS = 6


class TrainState:
    """The counters of a trainer, as torchtitan's own saves them."""

    def __init__(self) -> None:
        self.step = 0

    def state_dict(self) -> dict[str, Any]:
        return {"step": torch.tensor(self.step)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = int(state["step"])


def full(value: Any) -> torch.Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else torch.as_tensor(value)


def digests(states: dict[str, Any]) -> dict[str, str]:
    """Return the digest of each value of the model and the optimizers, whole, by name."""
    of_all = {**states["model"].state_dict(), **states["optimizer"].state_dict(), **states["train_state"].state_dict()}
    of_all["last_epoch"] = states["lr_scheduler"].state_dict()["last_epoch"]
    whole = {
        name: full(value) for name, value in sorted(of_all.items()) if isinstance(value, torch.Tensor | int | float)
    }
    return {
        name: hashlib.sha256(value.detach().contiguous().view(-1).numpy().tobytes()).hexdigest()
        for name, value in whole.items()
    }


def main(arguments: list[str]) -> dict[str, Any]:
    folder, act, mode = arguments[0], *arguments[3:5]
    rank, world, last = (int(arguments[index]) for index in (1, 2, 5))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/group-{act}", rank=rank, world_size=world)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(12, 32), torch.nn.Tanh(), torch.nn.Linear(32, 5, bias=False))
    mesh = init_device_mesh("cpu", (world,))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    kwargs = {"lr": 0.01, "weight_decay": 0.1}
    group = ParamGroupConfig(pattern=".*", optimizer_name="AdamW", optimizer_kwargs=kwargs)
    optimizers = OptimizersContainer.Config(param_groups=[group], implementation="for-loop").build(model_parts=[model])
    schedule = LRSchedulersContainer.Config(warmup_steps=2).build(optimizers=optimizers, training_steps=STEPS)
    train_state = TrainState()
    options: dict[str, Any] = {
        "enable": True,
        "folder": "checkpoint",
        "interval": 2,
        "async_mode": mode,
        "last_save_model_only": False,
        "keep_latest_k": 2 if act.endswith("prune") else 0,
        "exclude_from_loading": ["lr_scheduler"] if act == "part" else [],
    }
    if act == "folder":
        config = CheckpointManager.Config(**options)
    else:
        store = Path(folder, "store")
        if mirror := os.environ.get("MIRROR"):
            vars(mirror_process)["start"] = lambda *_: None  # a process that mirrors would outlive the test
            store = Store.open_or_init(f"{folder}/node{rank}", mirror=mirror).path
        config = CkstoreCheckpointManager.Config(**options, store=str(store), run="titan")
    manager = config.build(
        dataloader=None,
        model_parts=[model],
        optimizers=optimizers,
        lr_schedulers=schedule,
        states={"train_state": train_state, **({"more": TrainState()} if act == "misfit" else {})},
        sd_adapter=None,
        base_folder=folder,
    )
    loaded = manager.load(step=2 if act in ("second", "back") else -1)
    resumed_from = train_state.step if loaded else None
    samples = torch.Generator().manual_seed(8 if act == "back" else 7)
    batches = torch.randn(STEPS, GLOBAL_BATCH, 12, generator=samples)
    share = GLOBAL_BATCH // world
    while train_state.step < last:
        batch = batches[train_state.step][rank * share : (rank + 1) * share]
        optimizers.zero_grad()
        model(batch).square().mean().backward()
        optimizers.step()
        schedule.step()
        train_state.step += 1
        manager.maybe_wait_for_staging()
        if act == "killed" and train_state.step == last and rank == world - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        manager.save(train_state.step, last_step=train_state.step == STEPS and not act.endswith("prune"))
    manager.maybe_wait_for_saving()
    found = digests(manager.states)
    dist.barrier()
    manager.close()
    return {"resumed_from": resumed_from, "digests": found, "last_epoch": schedule.state_dict()["last_epoch"]}


if __name__ == "__main__":
    try:
        result = main(sys.argv[1:])
    except CkstoreError as error:
        result = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(result), flush=True)
    os._exit(0)  # a group whose other ranks failed cannot be destroyed
