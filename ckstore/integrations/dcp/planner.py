"""What the planners of `torch.distributed.checkpoint` say: what a rank saves, and what of a checkpoint fits.

The planner of `load` compares names, shapes and kinds before anything is read, and names what does not fit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, create_default_local_load_plan
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, SavePlan, SavePlanner, WriteItem, WriteItemType

from ckstore.errors import BadInput, DoesNotFit
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.ops.read.load_into import LoadReport, listed, pairs
from ckstore.ranks.part import Content, Shard, content_of


class ComparingPlanner(DefaultLoadPlanner):
    """Loads what fits."""

    def __init__(self, *, strict: bool = True) -> None:
        # Strict: refuse a name that the checkpoint lacks, and what has another shape or kind there.
        super().__init__(allow_partial_load=not strict)
        # As in `LoadReport`, of this rank.
        self.missing: tuple[str, ...] = ()
        self.unexpected: tuple[str, ...] = ()
        self.not_loaded: dict[str, str] = {}
        self.cast: dict[str, str] = {}

    def create_local_plan(self) -> LoadPlan:
        """Plan what fits."""
        there: dict[str, Any] = {} if self.metadata is None else self.metadata.state_dict_metadata
        self.missing = tuple(name for name in self.state_dict if name not in there)
        self.unexpected = tuple(name for name in there if name not in self.state_dict)
        self._compare({name: there[name] for name in self.state_dict if name in there})
        fits = {name: value for name, value in self.state_dict.items() if name in there and name not in self.not_loaded}
        differs = self.missing or self.not_loaded
        if differs and not (self.allow_partial_load and fits):
            self._refuse()
        if self.metadata is None:
            raise BadInput("a plan was wanted before the checkpoint was looked at")
        return create_default_local_load_plan(fits, self.metadata, strict=False)

    def report(self, info: CheckpointInfo, read_bytes: int) -> LoadReport:
        """Return what was loaded, and what was not."""
        return LoadReport(info, self.missing, self.unexpected, self.not_loaded, self.cast, read_bytes)

    def _compare(self, found: dict[str, Any]) -> None:
        for name, stored in found.items():
            mine = self.state_dict[name]
            is_tensor = isinstance(stored, TensorStorageMetadata)
            if isinstance(mine, Tensor) != is_tensor:
                self.not_loaded[name] = f"{_kind(mine)} wanted, found {'a tensor' if is_tensor else 'a plain value'}"
            elif is_tensor and mine.size() != stored.size:
                self.not_loaded[name] = f"shape {list(mine.size())} wanted, found shape {list(stored.size)}"
            elif is_tensor and mine.dtype != stored.properties.dtype:
                self.cast[name] = f"{_short(stored.properties.dtype)} to {_short(mine.dtype)}"

    def _refuse(self) -> None:
        kinds = (
            ("another shape or kind", pairs(self.not_loaded)),
            ("only in the target", self.missing),
            ("only in the checkpoint", self.unexpected),
        )
        lines = [line for what, names in kinds for line in listed(what, names)]
        raise DoesNotFit(
            "\n".join(["the checkpoint does not fit the target, nothing was loaded:", *lines]),
            hint="" if self.allow_partial_load else "strict=False loads what fits and reports the rest",
            missing=self.missing,
            unexpected=self.unexpected,
            mismatched=self.not_loaded,
        )


def content_of_plan(plan: SavePlan, planner: SavePlanner, chunk_bytes: int) -> Content:
    """Return what a rank is to save by its plan."""
    shards = [_shard(item, planner) for item in plan.items if item.type != WriteItemType.BYTE_IO]
    values = {item.index.fqn: _value(item, planner) for item in plan.items if item.type == WriteItemType.BYTE_IO}
    return content_of(shards, values, chunk_bytes)


def _shard(item: WriteItem, planner: SavePlanner) -> Shard:
    tensor = planner.resolve_data(item)
    if not isinstance(tensor, torch.Tensor) or item.tensor_data is None:
        raise BadInput(f"{item.index.fqn}: the planner gave {type(tensor).__name__} for a tensor")
    chunk = item.tensor_data.chunk
    if tuple(chunk.sizes) != tuple(tensor.shape):
        found = f"{list(tensor.shape)} for a shard of {list(chunk.sizes)}"
        raise BadInput(f"{item.index.fqn}: the planner gave a tensor of {found}")
    return Shard(item.index.fqn, tensor, tuple(item.tensor_data.size), tuple(chunk.offsets))


def _value(item: WriteItem, planner: SavePlanner) -> object:
    look_up = getattr(planner, "lookup_object", None)
    if look_up is not None:
        return look_up(item.index)
    data: Any = planner.resolve_data(item)
    return torch.load(data, weights_only=True)


def _kind(value: object) -> str:
    return "a tensor" if isinstance(value, Tensor) else f"a plain value ({type(value).__name__})"


def _short(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")
