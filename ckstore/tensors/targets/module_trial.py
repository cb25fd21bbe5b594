"""Try on a copy without memory what a module's own hooks make of the names of a checkpoint."""

from __future__ import annotations

import copy
import warnings
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch

from ckstore.tensors.torch_leaves import DTYPES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ckstore.model.manifest.manifest import LeafRecord


def adapts(module: Any) -> bool:
    """Whether a part of a module has a hook, or a method of its own, that may change names as it is loaded."""
    plain = torch.nn.Module._load_from_state_dict  # noqa: SLF001 - the documented place for such changes
    return any(
        type(part)._load_from_state_dict is not plain or part._load_state_dict_pre_hooks  # noqa: SLF001
        for part in module.modules()
    )


def try_names(module: Any, leaves: Mapping[str, LeafRecord], metadata: object) -> tuple[set[str], set[str]] | None:
    """Return the names that would be missing and unexpected; None if that cannot be found out.

    The module itself is not touched: its copy has tensors on the meta device, and so has what is loaded into it.
    """
    state: OrderedDict[str, torch.Tensor] = OrderedDict()
    for name, leaf in leaves.items():
        if leaf.dtype in DTYPES:
            state[name] = torch.empty(leaf.shape, dtype=DTYPES[leaf.dtype], device="meta")
    if isinstance(metadata, dict):
        vars(state)["_metadata"] = metadata
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            keys = copy.deepcopy(module, _memo(module)).load_state_dict(state, strict=False)
    except Exception:  # noqa: BLE001 - foreign code: what cannot be copied or tried is compared by its names alone
        return None
    return set(keys.missing_keys), set(keys.unexpected_keys)


def _memo(module: Any) -> dict[int, Any]:
    tensors: Iterable[torch.Tensor] = (*module.parameters(), *module.buffers())
    return {id(tensor): _without_memory(tensor) for tensor in tensors if not torch.nn.parameter.is_lazy(tensor)}


def _without_memory(tensor: torch.Tensor) -> torch.Tensor:
    empty = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty
