"""Train with FSDP2: torchrun --nproc-per-node=2 fsdp2.py STORE.

Every rank saves its shards. Any number of ranks can resume.
"""

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from ckstore import RetentionPolicy, Store
from ckstore.integrations import dcp

torch.set_num_threads(1)
dist.init_process_group("gloo")  # "cpu:gloo,cuda:nccl" with GPUs
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
mesh = init_device_mesh("cpu", (ranks,))  # "cuda" with GPUs
for part in (model[0], model[2], model):
    fully_shard(part, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


def state_at(step: int) -> dict[str, Any]:
    """Return the state of this rank: its shards, and plain values that are equal on all ranks."""
    weights, optimizer_state = get_state_dict(model, optimizer)
    return {"model": weights, "optim": optimizer_state, "step": step}


if rank == 0:
    Store.open_or_init(sys.argv[1]).config.retention = RetentionPolicy(keep_last=3)
dist.barrier()
store = Store.open(sys.argv[1])

step = 0
if store.latest() is not None:
    state = state_at(0)
    report = dcp.load(store, state, "latest-valid")  # or "main@4", to roll back
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
    step = state["step"]
    if rank == 0:
        print(f"{report.info.name} restored")

while step < 8:
    step += 1
    rows = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))  # the same on any number of ranks
    optimizer.zero_grad()
    loss = model(rows[rank::ranks]).square().mean()
    loss.backward()
    optimizer.step()
    if step % 2 == 0:
        info = dcp.save(store, state_at(step), step, metrics={"loss": loss.item()}, if_exists="replace")
        if rank == 0:
            print(f"saved {info.name}")
dist.destroy_process_group()
