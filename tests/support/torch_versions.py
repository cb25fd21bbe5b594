"""Functions of `torch.distributed` that have other arguments in older versions of torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, distribute_tensor


def distribute(tensor: torch.Tensor, mesh: DeviceMesh, placement: Placement) -> DTensor:
    """Return a tensor that every rank has as a distributed one. Nothing is sent."""
    if has_argument(distribute_tensor, "src_data_rank"):
        return distribute_tensor(tensor, mesh, [placement], src_data_rank=None)
    # torch 2.6 would send the tensor from rank 0.
    return DTensor.from_local(tensor, mesh, [Replicate()], run_check=False).redistribute(mesh, [placement])


def without_group(function: Callable[..., object]) -> dict[str, Any]:
    """Return the argument for one process of `dcp.save` or `dcp.load`. Older versions have none, and need none."""
    return {"no_dist": True} if has_argument(function, "no_dist") else {}


def in_background(*, process: bool) -> dict[str, Any]:
    """Return the arguments for `dcp.async_save` to save in a process or in a thread. torch 2.6 has only threads."""
    kinds = getattr(state_dict_saver, "AsyncCheckpointerType", None)
    if kinds is None:
        return {}
    return {"async_checkpointer_type": kinds.PROCESS if process else kinds.THREAD}


def compiled(module: torch.nn.Module, backend: str = "inductor") -> Any:
    """Return a compiled module, or skip the test: torch 2.9 cannot compile with Python 3.14."""
    try:
        return torch.compile(module, backend=backend)
    except RuntimeError as error:
        pytest.skip(str(error))


def has_argument(function: Callable[..., object], name: str) -> bool:
    """Whether this version of torch knows an argument of a function."""
    return name in inspect.signature(function).parameters
