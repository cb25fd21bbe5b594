"""Load the parts of a module with custom loading before anything else in the target, and restore them on failure.

Only such a part knows which values it accepts. For example, a hook may rename keys, a method may enlarge a buffer, and
extra state may have any shape. So the part receives its values as torch's `load_state_dict` would pass them, and the
keys that it does not accept are reported as differences.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch

from ckstore.errors import BadInput
from ckstore.model.manifest.manifest import Node
from ckstore.model.names import join_key
from ckstore.tensors.kinds import naming_refusals, reported
from ckstore.tensors.memory_layout import StorageMemory
from ckstore.tensors.state_restore import LeafMaker, build_with, is_empty
from ckstore.tensors.targets import torch_targets
from ckstore.tensors.targets.load_comparison import Comparison
from ckstore.tensors.targets.module_parts import Loader, ModuleParts, overrides_load
from ckstore.tensors.targets.module_snapshot import ModuleSnapshot, kept_bytes
from ckstore.tensors.walks import leaf_numbers

Read = Callable[[Iterable[int]], Mapping[int, StorageMemory]]  # returns storages in new memory


_NOTHING_LOADED = "nothing was loaded; load(ref, select=…) returns the state for inspection"


class Attempt:
    """An attempt to load values with the loaders of one module.

    Args:
        comparison: The comparison of the target.
        path: The name of the module in the state.
        parts: The parts of the module.
        handed: Prefix of a loader -> key -> node of a value for it. Filled before `run`.
        metadata: Returns the versions of modules that torch keeps with a state.
        report: Called with the missing keys and the unexpected keys.
    """

    def __init__(
        self,
        comparison: Comparison,
        path: str,
        parts: ModuleParts,
        handed: dict[str, dict[str, Node]],
        *,
        metadata: Callable[[], Any],
        report: Callable[[list[str], list[str]], None],
    ) -> None:
        self.handed = handed
        self._comparison = comparison
        self._path = path
        self._parts = parts
        self._metadata = metadata
        self._report = report
        self._snapshots: list[ModuleSnapshot] = []

    @property
    def kept_bytes(self) -> int:
        """Memory that `run` needs to keep the current values of the parts, in bytes."""
        return sum(kept_bytes(loader.part, whole=loader.whole) for loader in self._parts.loaders.values())

    def storages(self) -> list[list[int]]:
        """Return the storages that are read for each loader."""
        return [self._storages(given.values()) for given in self.handed.values()]

    def run(self, read: Read) -> None:
        """Run each loader, and report the missing and the unexpected keys.

        Raises:
            BadInput: A loader refuses its values for an unknown reason. The caller must call `undo`.
        """
        missing: list[str] = []
        unexpected: list[str] = []
        for prefix, loader in self._parts.loaders.items():
            given = self.handed[prefix]
            # A loader without a selected value is not called, because it would report all its keys as missing.
            if not given and self._comparison.terms.keep is not None:
                continue
            lacking, left = self._try(loader, given, read)
            missing += lacking
            unexpected += left
        self._report(missing, unexpected)

    def undo(self) -> None:
        """Restore the values of the parts, in reverse order."""
        while self._snapshots:
            self._snapshots.pop().put_back()

    def _try(self, loader: Loader, given: Mapping[str, Node], read: Read) -> tuple[Iterable[str], Iterable[str]]:
        leaves = self._comparison.leaves
        leaf = LeafMaker(leaves, read(self._storages(given.values())).__getitem__).leaf
        with self._naming(loader):
            snapshot = ModuleSnapshot(loader.part, whole=loader.whole)
        # The snapshot is added before the load, so that `undo` also restores a part whose loader raises midway.
        self._snapshots.append(snapshot)
        values = {key: build_with(item, leaf, leaves) for key, item in given.items()}
        try:
            return self._load(loader, values)
        except BadInput:
            # The error need not name all values that do not fit. This comparison reports all of them.
            misfits = self._misfits(given)
            if not misfits:
                raise
        # The failed call may have loaded some values.
        snapshot.put_back()
        fitting = {key: value for key, value in values.items() if key not in misfits}
        try:
            missing, unexpected = self._load(loader, fitting)
        except BadInput:
            if not self._comparison.terms.strict:
                raise
            return [], []  # the misfits are already reported
        return [key for key in missing if key not in misfits], unexpected

    def _load(self, loader: Loader, values: dict[str, Any]) -> tuple[Iterable[str], Iterable[str]]:
        """Load a part as torch does, and return the missing and the unexpected keys that it reports."""
        how = {"assign": True} if self._assign(values) else {}
        state = OrderedDict(values)
        metadata = self._metadata()
        if metadata is not None:
            vars(state)["_metadata"] = metadata
        with self._naming(loader):
            if not loader.whole:
                return _load_its_own(loader, state, metadata, **how)
            if not loader.prefix and overrides_load(loader.part):
                load = loader.part.load_state_dict
                if not self._comparison.terms.strict and "strict" in inspect.signature(load).parameters:
                    how["strict"] = False
                return reported(load(state, **how))
            # Missing keys raise no error here, because they are reported with their names in the whole model.
            return reported(_below(loader).load_state_dict(state, strict=False, **how))

    def _naming(self, loader: Loader) -> AbstractContextManager[None]:
        name = join_key(self._path, loader.prefix[:-1]) if loader.prefix else self._path
        return naming_refusals(loader.part, name, _NOTHING_LOADED)

    def _assign(self, values: dict[str, Any]) -> bool:
        """Like torch, make parameters of the values for targets without memory, and return whether there are any.

        Tied parameters remain tied.
        """
        places = self._parts.places
        empty = {key: places[key].value for key in values if key in places and places[key].value.is_meta}
        made: dict[int, Any] = {}
        for key, place in empty.items():
            value = values[key]
            # Names of tied parameters must get one parameter. Two parameters would be trained separately.
            if id(place) not in made and isinstance(value, torch.Tensor):
                value = value.to(place.dtype) if self._comparison.terms.cast else value
                made[id(place)] = torch_targets.as_parameter_of(place, value)
            values[key] = made.get(id(place), value)
        return bool(empty)

    def _misfits(self, given: Mapping[str, Node]) -> set[str]:
        """Report values whose shape differs from the parameter or buffer of the same name, and return their keys."""
        misfits = set()
        for key, item in given.items():
            place = self._parts.places.get(key)
            if place is None or torch.nn.parameter.is_lazy(place.value):
                continue
            leaf = self._comparison.leaves[item[1]] if self._comparison.is_tensor_leaf(item) else None
            if leaf is None or leaf.shape != tuple(place.value.shape):
                name = join_key(self._path, key)
                self._comparison.mismatch(name, torch_targets.describe(place.value), self._comparison.described(item))
                misfits.add(key)
        return misfits

    def _storages(self, nodes: Iterable[Node]) -> list[int]:
        leaves = [self._comparison.leaves[index] for node in nodes for index in leaf_numbers(node)]
        return sorted({leaf.storage for leaf in leaves if not is_empty(leaf)})


def _load_its_own(
    loader: Loader, state: OrderedDict[str, Any], metadata: Any, **how: bool
) -> tuple[list[str], list[str]]:
    """Load only the tensors of a part itself, not those of its children, as torch's `load_state_dict` does."""
    own = dict((metadata or {}).get(loader.prefix.removesuffix("."), {}))
    if how:
        own["assign_to_params_buffers"] = True
    missing: list[str] = []
    unexpected: list[str] = []
    errors: list[str] = []
    loader.part._load_from_state_dict(state, loader.prefix, own, True, missing, unexpected, errors)  # noqa: SLF001
    if errors:
        raise RuntimeError("; ".join(errors))
    return missing, unexpected


def _below(loader: Loader) -> Any:
    """Return a module that has only the part, at its prefix, so that hooks get the original names."""
    part = loader.part
    for name in reversed(loader.prefix.split(".")[:-1]):
        outer = torch.nn.Module()
        outer.add_module(name, part)
        part = outer
    return part
