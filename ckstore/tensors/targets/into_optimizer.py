"""Compare an optimizer with its state in a checkpoint, and plan how it is loaded. Imported if a target has one.

A parameter has no name in an optimizer: it is found by its place, as torch does it.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from torch.nn.parameter import is_lazy

from ckstore.model.manifest.nodes import decode_key
from ckstore.tensors.kinds import is_tensor
from ckstore.tensors.restore import build_with
from ckstore.tensors.stateful import hand_over, state_of
from ckstore.tensors.targets import torch_targets
from ckstore.tensors.targets.comparison import Comparison, Leaf
from ckstore.tensors.targets.live import tensors_in
from ckstore.tensors.walks import DICTS, leaf_numbers, name_below, parts_in

if TYPE_CHECKING:
    from ckstore.model.manifest.manifest import Node

_LIKE_THE_PARAMETER = {
    *("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer", "square_avg"),
    *("acc_delta", "grad_avg", "sum", "prev", "step_size", "ax"),
}
"""What torch's optimizers keep with the shape of the parameter."""
_TELLING = {
    *("betas", "momentum", "alpha", "rho", "lambd", "t0", "etas", "step_sizes", "max_iter", "lr_decay"),
    *("initial_accumulator_value", "beta2_decay"),
}
"""Settings by which one optimizer of torch is told from another."""


def plan_optimizer(comparison: Comparison, optimizer: Any, node: Node, path: str) -> None:
    """Plan to load an optimizer: whole, or not at all if its groups differ.

    The state of a parameter that has another shape is left out, so that the optimizer begins afresh with it.
    """
    parts = {decode_key(own): item for own, item in node[1]} if isinstance(node, list) and node[0] in DICTS else {}
    if not {"state", "param_groups"} <= set(parts) or not _is_dict(parts["state"]):
        comparison.mismatch(path, "the state of an optimizer", comparison.described(node))
        return
    if optimizer._optimizer_load_state_dict_pre_hooks:  # noqa: SLF001 - torch has no other way to ask for them
        make = comparison.new(node)  # the hooks may change what is compared below, so that it is for them to judge
        comparison.steps.append(lambda leaf: hand_over(optimizer, make(leaf), path))
        return
    groups: Any = build_with(parts["param_groups"], comparison.early, comparison.leaves)
    if not _fits_groups(comparison, optimizer, groups, path):
        return
    work = _Optimizer(comparison, optimizer, path, groups)
    kept = {decode_key(own): item for own, item in parts["state"][1] if work.take(decode_key(own), item)}
    rest = {key: item for key, item in parts.items() if key != "state"}
    for index in chain.from_iterable(map(leaf_numbers, rest.values())):
        comparison.filling.make_new(index)

    def load(leaf: Leaf) -> None:
        state: dict[object, object] = {key: build_with(item, leaf, comparison.leaves) for key, item in rest.items()}
        state["state"] = {
            key: build_with(item, work.placed(key, item, leaf), comparison.leaves) for key, item in kept.items()
        }
        hand_over(optimizer, state, path)

    comparison.steps.append(load)


def _is_dict(node: Node) -> bool:
    return isinstance(node, list) and node[0] in DICTS


def _fits_groups(comparison: Comparison, optimizer: Any, groups: Any, path: str) -> bool:
    """Whether there are as many groups of as many parameters, of an optimizer like this one, with memory."""
    name = name_below(path, "param_groups")
    own = optimizer.param_groups
    if not isinstance(groups, list) or not all(map(_is_group, groups)):
        comparison.mismatch(name, "a list of groups", "something else")
        return False
    if len(groups) != len(own):
        comparison.mismatch(name, _counted(len(own), "group"), _counted(len(groups), "group"))
        return False
    fits = True
    for i, (mine, found) in enumerate(zip(own, groups, strict=True)):
        if len(mine["params"]) != len(found["params"]):
            wanted = _counted(len(mine["params"]), "parameter")
            comparison.mismatch(f"{name}[{i}].params", wanted, _counted(len(found["params"]), "parameter"))
            fits = False
        lacking = sorted((_TELLING & set(mine)) - set(found))
        if lacking and _is_torchs(optimizer):
            other = sorted((_TELLING & set(found)) - set(mine))
            kind = f"{type(optimizer).__name__} with {', '.join(lacking)}"
            comparison.mismatch(f"{name}[{i}]", kind, f"an optimizer with {', '.join(other) or 'neither'}")
            fits = False
    if any(one.device.type == "meta" for group in own for one in group["params"]):
        comparison.differences.meta.append(name)
        fits = False
    return fits


def _is_group(found: Any) -> bool:
    numbers = found.get("params") if isinstance(found, dict) else None
    return isinstance(numbers, list) and all(type(number) is int for number in numbers)


def _is_torchs(optimizer: Any) -> bool:
    return type(optimizer).__module__.startswith("torch.optim")


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


def _below(node: Node, tag: str) -> set[int]:
    """Return the leaves below the nodes with a tag."""
    return {index for _, part in parts_in(node, tag=tag) for index in leaf_numbers(part)}


class _Optimizer:
    def __init__(self, comparison: Comparison, optimizer: Any, path: str, groups: Any) -> None:
        self.comparison = comparison
        self.path = name_below(path, "state")
        self._is_torchs = _is_torchs(optimizer)
        self._live = dict(tensors_in(state_of(optimizer, path), path))
        numbers = chain.from_iterable(group["params"] for group in groups)
        parameters = chain.from_iterable(group["params"] for group in optimizer.param_groups)
        self._parameters = dict(zip(numbers, parameters, strict=True))

    def take(self, key: Any, node: Node) -> bool:
        """Plan to load what is kept for one parameter; False if a part of it does not fit."""
        indexes = list(leaf_numbers(node))
        inside = _below(node, "parts") | _below(node, "object")  # with shapes of their own
        parameter = self._parameters.get(key)
        found = self.comparison.differences
        before = len(found.mismatched), len(found.dtypes)
        fitting = [index for index in indexes if index in inside or self._fits(index, parameter)]
        if before != (len(found.mismatched), len(found.dtypes)):
            return False
        self.comparison.bind_shown(self._live, fitting)
        return before == (len(found.mismatched), len(found.dtypes))

    def placed(self, key: object, node: Node, leaf: Leaf) -> Leaf:
        """Return what gives leaves, those inside objects on the device of their parameter.

        torch moves the tensors of a state there, but looks into no object.
        """
        parameter, inside = self._parameters.get(key), _below(node, "object")
        if parameter is None or parameter.device.type == "cpu" or not inside:
            return leaf

        def give(index: int) -> object:
            value: Any = leaf(index)
            return value.to(parameter.device) if index in inside and is_tensor(value) else value

        return give

    def _fits(self, index: int, parameter: Any) -> bool:
        """Say if a tensor has another shape than its parameter, or than the one that is there."""
        leaf = self.comparison.leaves[index]
        if leaf.kind != "torch":
            return True
        live = self._live.get(leaf.name)
        last = leaf.name.rpartition(".")[2]
        if live is not None:
            if leaf.shape != tuple(live.shape):
                shown = self.comparison.described(["leaf", index])
                self.comparison.mismatch(leaf.name, torch_targets.describe(live), shown)
                return False
            return True
        if parameter is None or is_lazy(parameter):  # the module, loaded before, gives it its shape
            return True
        if self._is_torchs and last in _LIKE_THE_PARAMETER and leaf.shape not in {tuple(parameter.shape), ()}:
            wanted = f"shape {list(parameter.shape)}, that of its parameter,"
            self.comparison.mismatch(leaf.name, wanted, self.comparison.described(["leaf", index]))
            return False
        mine = torch_targets.dtype_name(parameter)
        if last != "step" and parameter.is_floating_point() and leaf.dtype != mine:
            self.comparison.differences.cast[leaf.name] = f"{leaf.dtype} to {mine}"
        return True
