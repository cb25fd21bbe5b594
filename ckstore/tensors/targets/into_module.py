"""Compare a module with its state in a checkpoint, and plan how it is loaded. Imported if a target has one."""

from __future__ import annotations

from collections import OrderedDict
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import torch

from ckstore.model.names import join_key, plain
from ckstore.tensors.restore import build_with
from ckstore.tensors.stateful import hand_over, state_of
from ckstore.tensors.targets import torch_targets
from ckstore.tensors.targets.comparison import Comparison, Found, Leaf, Make
from ckstore.tensors.targets.module_trial import adapts, try_names
from ckstore.tensors.targets.renames import renamed
from ckstore.tensors.walks import DICTS, leaf_numbers

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckstore.model.manifest.manifest import Node


def plan_module(comparison: Comparison, module: Any, node: Node, path: str) -> None:
    """Plan to load a module: each of its tensors by its name, and what it keeps besides.

    It gets what fits by its own `load_state_dict`, so that hooks and `set_extra_state` are called; its tensors are
    filled by then. Those on the meta device are assigned: parameters stay parameters, with their `requires_grad`, and
    tensors that were one stay one.
    """
    if not isinstance(node, list) or node[0] not in DICTS:
        if comparison.wants_some(node, path):
            comparison.mismatch(path, "the state of a module", comparison.described(node))
        return
    own = _own_state(module, path)
    found = comparison.found_in(node, path, rename_all=True)
    work = _Module(comparison, module, path)
    absent = {key: value for key, value in own.items() if key not in found}
    for key, value in own.items():
        if key in found:
            work.take(key, value, *found[key])
    missing = [key for key, value in absent.items() if not work.has_as_tied(value)]
    unexpected = [key for key in found if key not in own]
    if (missing or unexpected) and adapts(module):
        missing, unexpected = work.try_names(node, found, missing, unexpected)
    for key in missing:
        comparison.miss(join_key(path, key))
    for key in unexpected:
        comparison.not_expect(*found[key])
    if missing and unexpected:
        comparison.suggest_rename(node, own, rename_all=True)
    if len(absent) == len(own) and not work.loaded and unexpected and comparison.wants_some(node, path):
        comparison.differences.strangers.append(path or "the target")
    work.plan(node)


def _own_state(module: Any, path: str) -> dict[str, Any]:
    """Return a module's state with the parameters themselves, which tells which of them are one."""
    if type(module).state_dict is torch.nn.Module.state_dict and "state_dict" not in vars(module):
        own = module.state_dict(keep_vars=True)
    else:
        own = state_of(module, path)
    return dict(own)


class _Module:
    def __init__(self, comparison: Comparison, module: Any, path: str) -> None:
        self.comparison = comparison
        self.module = module
        self.path = path
        self.loaded: dict[str, Node] = {}
        self.filled: dict[str, torch.Tensor] = {}
        self.assigned: dict[str, tuple[Any, Make]] = {}
        self._memories: dict[object, tuple[str, Node]] = {}
        self._fresh: dict[int, torch.Tensor] = {}

    def take(self, key: str, value: Any, name: str, item: Node) -> None:
        """Plan to load one value, or say why it does not fit."""
        if not self.comparison.wants(item, name):
            return
        name = join_key(self.path, key)
        if not isinstance(value, torch.Tensor):
            self.comparison.new(item)
            self.loaded[key] = item
        elif torch.nn.parameter.is_lazy(value):
            self._take_uninitialized(key, name, item)
        elif isinstance(item, list) and item[0] == "parts":
            self._take_parts(key, value, name, item)
        elif value.device.type == "meta":
            self._take_meta(key, value, name, item)
        elif torch_targets.can_be_filled(value):
            if not self._contradicts(value, item, name) and self.comparison.bind(value, item, name):
                self.loaded[key] = item
                self._memories.setdefault(_memory(value), (name, item))
        elif not torch_targets.can_copy(value):
            found = f"{torch_targets.describe_unfilled(value)} in the target"
            self.comparison.mismatch(name, "a plain tensor with memory", found)
        elif self._fits(value, item, name):
            self.comparison.new(item)
            self.loaded[key] = item

    def try_names(
        self, node: Node, found: Found, missing: list[str], unexpected: list[str]
    ) -> tuple[list[str], list[str]]:
        """Return what is still missing and unexpected after the module's hooks; the other names are loaded."""
        leaves = self.comparison.leaves
        given = {
            key: leaves[item[1]]
            for key, (name, item) in found.items()
            if self.comparison.is_tensor_leaf(item) and self.comparison.wants(item, name)
        }
        seen = try_names(self.module, given, self._metadata(node[2] if node[0] == "odict" else None))
        if seen is None:
            return missing, unexpected
        for key in unexpected:
            if key in given and key not in seen[1]:
                self.comparison.new(found[key][1])
                self.loaded[key] = found[key][1]
        return [key for key in missing if key in seen[0]], [key for key in unexpected if key not in self.loaded]

    def has_as_tied(self, value: Any) -> bool:
        """Whether a tensor is the same as one that is loaded by another name."""
        return isinstance(value, torch.Tensor) and _memory(value) in self._memories

    def plan(self, node: Node) -> None:
        """Add what is to be done."""
        if not self.loaded and not self.filled and not self.assigned:
            return
        attributes = node[2] if node[0] == "odict" else None
        self.comparison.steps.append(lambda leaf: self._load(leaf, attributes))

    def _load(self, leaf: Leaf, attributes: Node) -> None:
        metadata = self._metadata(attributes)
        if self.assigned:
            parameters: dict[int, Any] = {}
            state = OrderedDict()
            for key, (value, make) in self.assigned.items():
                if id(value) not in parameters:
                    parameters[id(value)] = torch_targets.as_parameter_of(value, make(leaf))
                state[key] = parameters[id(value)]
            self._hand_over(state, metadata, assign=True)
        if self.loaded or self.filled:
            leaves = self.comparison.leaves
            state = OrderedDict((key, build_with(item, leaf, leaves)) for key, item in self.loaded.items())
            state |= self.filled
            self._hand_over(state, metadata)

    def _hand_over(self, state: OrderedDict[str, Any], metadata: Any, **how: bool) -> None:
        if metadata is not None:
            vars(state)["_metadata"] = metadata
        hand_over(self.module, state, self.path, strict=False, **how)

    def _metadata(self, attributes: Node) -> Any:
        """Return the versions of modules that torch keeps with a state, by the names that modules have now."""
        if attributes is None:
            return None
        found: Any = build_with(attributes, _no_leaf, self.comparison.leaves)
        metadata = found.get("_metadata")
        rename = self.comparison.terms.rename
        if not isinstance(metadata, dict) or not rename:
            return metadata
        return {renamed(f"{name}.", rename).removesuffix(".") if name else "": own for name, own in metadata.items()}

    def _take_uninitialized(self, key: str, name: str, item: Node) -> None:
        if isinstance(item, list) and item[0] == "leaf" and self.comparison.leaves[item[1]].kind == "torch":
            self.comparison.new(item)
            self.loaded[key] = item
        else:
            self.comparison.mismatch(name, "a tensor", self.comparison.described(item))

    def _take_meta(self, key: str, value: torch.Tensor, name: str, item: Node) -> None:
        if not self.comparison.terms.assign:
            self.comparison.differences.meta.append(name)
        elif not self._contradicts(value, item, name) and self.comparison.bind(value, item, name):
            self.assigned[key] = value, lambda leaf: leaf(item[1])
            self._memories.setdefault(_memory(value), (name, item))
            self.comparison.filling.bind_later(self._maker(value), item[1])

    def _take_parts(self, key: str, value: torch.Tensor, name: str, item: Node) -> None:
        from ckstore.tensors.targets.into_parts import How, plan_parts

        if self._contradicts(value, item, name):
            return
        how = plan_parts(self.comparison, value, item, name)
        if how is not None:
            self._memories.setdefault(_memory(value), (name, item))
        if how is How.FILLED:
            self.filled[key] = value
        elif how is How.COPIED:
            self.loaded[key] = item
        elif how is How.ASSIGNED:
            self.assigned[key] = value, lambda leaf: build_with(item, leaf, self.comparison.leaves)

    def _maker(self, value: torch.Tensor) -> Callable[[], torch.Tensor]:
        def make() -> torch.Tensor:
            if id(value) not in self._fresh:
                self._fresh[id(value)] = torch_targets.empty_like_meta(value)
            return self._fresh[id(value)]

        return make

    def _contradicts(self, value: torch.Tensor, item: Node, name: str) -> bool:
        """Say if two names are one tensor in the module and have different values in the checkpoint."""
        known = self._memories.get(_memory(value))
        if known is None or not isinstance(item, list) or item[0] not in ("leaf", "parts"):
            return False
        first, node = known
        pairs = list(zip_longest(leaf_numbers(node), leaf_numbers(item)))
        if all(None not in pair and self.comparison.have_same_values(*pair) for pair in pairs):
            return False
        self.comparison.mismatch(name, f"the values of {plain(first)}, to which it is tied,", "other ones")
        return True

    def _fits(self, value: torch.Tensor, item: Node, name: str) -> bool:
        """Whether a tensor of a class of its own, which copies by itself, has the shape of a leaf."""
        leaf = self.comparison.leaves[item[1]] if isinstance(item, list) and item[0] == "leaf" else None
        if leaf is not None and leaf.kind == "torch" and leaf.shape == tuple(value.shape):
            return True
        self.comparison.mismatch(name, torch_targets.describe(value), self.comparison.described(item))
        return False


def _memory(value: torch.Tensor) -> object:
    """Return what is equal for tensors that are one: the same elements of the same memory."""
    if value.device.type == "meta" or not value.numel() or hasattr(value, "__tensor_flatten__"):
        return id(value)  # a wrapper of other tensors has no memory: all of them have the address 0
    try:
        return value.device, value.data_ptr(), value.dtype, tuple(value.shape), value.stride()
    except (NotImplementedError, RuntimeError):  # without memory of its own
        return id(value)


def _no_leaf(index: int) -> object:
    msg = f"leaf {index} is an attribute of a dict"
    raise LookupError(msg)
