"""The functions that `test_torch_checkpointing.py` calls on every rank of a group."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch_checkpointing import CheckpointManager, ItemSpec
from torch_checkpointing.config import AsyncCheckpointSaverConfig, SyncCheckpointSaverConfig
from torch_checkpointing.default_resharder import DefaultResharder
from torch_checkpointing.metadata_manager import DefaultMetadataManager
from torch_checkpointing.staging import CheckpointStagerConfig

from ckstore.integrations.torch_checkpointing import CkstoreStorage, CkstoreStorageConfig


def _gather(self: DefaultMetadataManager, data: Any, process_group: Any = None) -> dict[int, Any]:
    """Gather from all ranks as torch_checkpointing does, which needs a GPU for it."""
    every: list[Any] = [None] * dist.get_world_size(process_group)
    dist.all_gather_object(every, data, group=process_group)
    return dict(enumerate(every))


DefaultMetadataManager._all_gather_pickled_data = _gather  # type: ignore[method-assign]


def manager(store: str, folder: str, *, in_background: bool = False, **options: Any) -> CheckpointManager:
    """A manager whose model may be loaded by another number of ranks."""
    staging = CheckpointStagerConfig(use_pinned_memory=False, use_non_blocking_copy=False)
    return CheckpointManager(
        CheckpointManager.Config(
            items={"model": ItemSpec(resharder=DefaultResharder())},
            save=AsyncCheckpointSaverConfig(staging_config=staging) if in_background else SyncCheckpointSaverConfig(),
            storage_config=CkstoreStorageConfig(store, folder, **options),
        )
    )


def model(fill: float) -> dict[str, Any]:
    """Tensors whose parts are on all ranks."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = {"w": torch.arange(960.0).reshape(24, 40) * fill, "b": torch.arange(36.0) - fill}
    return {name: distribute_tensor(value, mesh, [Shard(0)]) for name, value in whole.items()}


def save(store: str, folder: str, step: int) -> None:
    """Save a step; its values follow from it."""
    of_ranks = manager(store, folder)
    of_ranks.save(f"{folder}/step-{step}", {"model": model(float(step)), "step": step})
    of_ranks.close()


def load(store: str, folder: str, step: int) -> dict[str, torch.Tensor]:
    """Return what a step has, as a whole."""
    of_ranks = manager(store, folder)
    state = model(0.0)
    of_ranks.load(f"{folder}/step-{step}", {"model": state})
    of_ranks.close()
    return {name: value.full_tensor() for name, value in state.items() if isinstance(value, DTensor)}


def save_and_die(store: str, folder: str, step: int, rank: int) -> None:
    """Save a step; one rank is killed when all files are written, before rank 0 commits them."""
    commits = CkstoreStorage.rename

    def die(self: CkstoreStorage, *names: Any, **options: Any) -> None:
        if Path(names[1]).name == f"step-{step}":
            os.kill(os.getpid(), signal.SIGKILL)
        commits(self, *names, **options)

    if dist.get_rank() == rank:
        CkstoreStorage.rename = die  # type: ignore[method-assign]
    save(store, folder, step)
