"""The planner of `load`, which compares names, shapes and kinds before any data is read, and lists the differences."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, create_default_local_load_plan
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem

from ckstore.errors import BadInput, DoesNotFit
from ckstore.integrations.dcp.optimizers import SavedOptimizers, own_groups
from ckstore.integrations.dcp.state_keys import set_at
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.name_globs import NameGlobs
from ckstore.model.words import beyond_text
from ckstore.ops.read.target_load import LoadReport, Strict, globs_of, listed, must_fit, pairs


class ComparingPlanner(DefaultLoadPlanner):
    """Loads the values that fit, and refuses or reports the differences."""

    def __init__(self, *, strict: Strict = True) -> None:
        # `strict` selects the names for which a difference is refused. A difference is a name that the checkpoint
        # lacks, a name that no rank has, or a different shape or kind. Differences of other names are only reported.
        super().__init__(allow_partial_load=strict is not True)
        self._must_fit = must_fit(strict)
        self._globs = globs_of(strict)
        # The fields of the `LoadReport` of this rank. When the ranks have compared their plans, `unexpected` has the
        # names that no rank has.
        self.missing: tuple[str, ...] = ()
        self.unexpected: tuple[str, ...] = ()
        self.not_loaded: dict[str, str] = {}
        self.cast: dict[str, str] = {}
        self._first: dict[str, float] = {}

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        """Flatten the state as a save does."""
        # torch's load flattens sharded tensors first. It then drops empty dicts, so the names in lists with empty dicts
        # differ from those of its save.
        flat, mappings = flatten_state_dict(state_dict)
        super().set_up_planner(flat, metadata, is_coordinator)
        self.original_state_dict, self.mappings = state_dict, mappings

    def create_local_plan(self) -> LoadPlan:
        """Plan the load of the values that fit."""
        if self.metadata is None:
            raise BadInput("create_local_plan was called before set_up_planner")
        there = self.metadata.state_dict_metadata
        saved: SavedOptimizers = self.metadata.storage_data
        # A misspelled glob would refuse nothing.
        if unused := NameGlobs(self._globs).unused({**there, **self.state_dict}):
            raise BadInput(f"strict={unused[0]!r} matches no name in the checkpoint or the state")
        lacking = [name for name in self.state_dict if name not in there]
        self._first = {
            name: first
            for name in lacking
            if isinstance(self.state_dict[name], Tensor) and (first := saved.first_value(name)) is not None
        }
        self.missing = tuple(name for name in lacking if name not in self._first)
        self.unexpected = tuple(name for name in there if name not in self.state_dict)
        self._compare({name: there[name] for name in self.state_dict if name in there})
        # If the names of an optimizer's parameters differ, it would load the moments of other parameters.
        for name, groups in own_groups(self.original_state_dict):
            if said := saved.other_order(name, groups):
                self.not_loaded[name or "the state itself"] = said
        # If a name is not loaded, the names below it are not loaded either.
        left_out = tuple(f"{name}." for name in self.not_loaded)
        fits = {
            name: mine
            for name, mine in self.state_dict.items()
            if name in there and not f"{name}.".startswith(left_out)
        }
        differing = [*self.missing, *self.not_loaded]
        if any(map(self._must_fit, differing)) or (differing and not fits):
            self._refuse()
        plan = create_default_local_load_plan(fits, self.metadata, strict=False)
        return replace(plan, planner_data=tuple(name for name in there if name in self.state_dict))

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        """Find the names that no rank has, and refuse them if `strict` selects them. The coordinator calls this."""
        # Do not do this on each rank, because with pipeline parallelism each rank has only the layers of its stage.
        placed = {name for plan in global_plan for name in plan.planner_data}
        there = {} if self.metadata is None else self.metadata.state_dict_metadata
        self.unexpected = tuple(name for name in there if name not in placed)
        if any(map(self._must_fit, self.unexpected)):
            self._refuse()
        plans = super().create_global_plan(global_plan)
        return [replace(plan, planner_data=self.unexpected) for plan in plans]

    def finish_plan(self, new_plan: LoadPlan) -> LoadPlan:
        """Keep the names that no rank has, for the report."""
        self.unexpected = new_plan.planner_data
        return super().finish_plan(new_plan)

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Set a value under the keys of the state. For a key that is a number, torch would add a second key as text."""
        path = self.mappings[read_item.dest_index.fqn]
        # The unpickled bytes are not from the store. The reader has built the value from the manifest and pickled it.
        set_at(self.original_state_dict, path, torch.load(value, weights_only=False))

    def begin_afresh(self) -> None:
        """Set the state of parameters that had no gradient to the initial values of their optimizer."""
        # get_state_dict creates this state through an optimizer step with zero gradients, which changes the step count.
        with torch.no_grad():
            for name, first in self._first.items():
                self.state_dict[name].fill_(first)

    def report(self, info: CheckpointInfo, read_bytes: int, beyond: Mapping[str, int]) -> LoadReport:
        """Return the report of the load. `beyond` has, for each converted name, the number of values out of range."""
        for name, count in beyond.items():
            self.cast[name] += f", {beyond_text(count)}"
        return LoadReport(
            info, self.missing, self.unexpected, self.not_loaded, self.cast, tuple(self._first), read_bytes
        )

    def _compare(self, found: dict[str, Any]) -> None:
        for name, stored in found.items():
            mine = self.state_dict[name]
            is_tensor = isinstance(stored, TensorStorageMetadata)
            if isinstance(mine, Tensor) != is_tensor:
                wanted = "a tensor" if isinstance(mine, Tensor) else f"a plain value ({type(mine).__name__})"
                self.not_loaded[name] = f"{wanted} wanted, found {'a tensor' if is_tensor else 'a plain value'}"
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
            hint="; ".join(self._advice()),
            missing=self.missing,
            unexpected=self.unexpected,
            mismatched=self.not_loaded,
        )

    def _advice(self) -> Iterator[str]:
        there = () if self.metadata is None else self.metadata.state_dict_metadata
        for name, _ in own_groups(self.original_state_dict):
            state = f"{name}.state.".removeprefix(".")
            own = {one for one in self.state_dict if one.startswith(state)}
            if own.intersection(there) or not any(one.startswith(state) for one in there):
                continue
            if own:
                yield (
                    f"the state of {name} has numbers of parameters on one side and names on the other: save and load "
                    "the result of get_state_dict, or load a checkpoint with numbers by store.load_into"
                )
            else:
                yield (
                    f"{name} has not stepped, so it has no state to load into: get_state_dict(model, optimizer) of "
                    "torch.distributed.checkpoint.state_dict creates the state, or load it by store.load_into"
                )
        if not self.allow_partial_load:
            yield "strict=False loads what fits and reports the rest"


def _short(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")
