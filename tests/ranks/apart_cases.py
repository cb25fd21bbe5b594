"""What ranks on nodes with stores of their own do; each function runs on every rank of a group."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard

from ckstore import CheckpointInfo, Store
from ckstore.integrations import dcp
from ckstore.remote.mirror import mirror_process as mirroring
from ckstore.remote.service.engine import ServiceObjects
from tests.support.torch_versions import distribute, in_background

vars(mirroring)["start"] = lambda *_: None  # a process that mirrors would outlive the test

MIB = 2**20


def _whole(step: int) -> torch.Tensor:
    return torch.randint(0, 256, (8, MIB), dtype=torch.uint8, generator=torch.Generator().manual_seed(step))


def _state(step: int, *, zeros: bool = False) -> dict[str, Any]:
    whole = torch.zeros(8, MIB, dtype=torch.uint8) if zeros else _whole(step)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return {"w": distribute(whole, mesh, Shard(0)), "step": 0 if zeros else step}


def _store(folder: str, mirror: str) -> Store:
    return Store.open_or_init(Path(folder) / f"node{dist.get_rank()}", chunk_bytes=MIB, mirror=mirror)


def save(folder: str, mirror: str, step: int) -> CheckpointInfo:
    """Save; return what is told."""
    return dcp.save(_store(folder, mirror), _state(step), step)


def save_async(folder: str, mirror: str, step: int, process: bool = False) -> bool:
    """Save in the background; return whether the store of this node lists it afterwards."""
    group = dist.new_group(backend="gloo") if not process else None
    store = _store(folder, mirror)
    dcp.async_save(store, _state(step), step, process_group=group, **in_background(process=process)).result()
    dist.barrier()
    return any(info.step == step for info in store.checkpoints())


def load(folder: str, mirror: str, ref: int | str, step: int) -> bool:
    """Load; return whether this is what was saved at a step."""
    state = _state(step, zeros=True)
    dcp.load(_store(folder, mirror), state, ref)
    mine = state["w"].to_local()
    rows = 8 // dist.get_world_size()
    first = dist.get_rank() * rows
    return state["step"] == step and torch.equal(mine, _whole(step)[first : first + rows])


def die(folder: str, mirror: str, step: int, rank: int, key: str) -> CheckpointInfo:
    """Save, and kill one rank before it writes the first object with such a key."""
    for call in ("send", "put"):
        setattr(ServiceObjects, call, _dying(getattr(ServiceObjects, call), rank, key))
    return save(folder, mirror, step)


def _dying(real: Callable[..., Any], rank: int, key: str) -> Callable[..., Any]:
    def write(objects: ServiceObjects, name: str, data: Any) -> Any:
        if dist.get_rank() == rank and key in name:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(objects, name, data)

    return write
