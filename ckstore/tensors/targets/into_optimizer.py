"""Compare an optimizer with its state in a checkpoint, and plan its load.

This module is imported only if a target has an optimizer. Parameters are matched by name if both the optimizer and the
checkpoint have names, that is, if both optimizers were made with ``named_parameters()``. Otherwise, they are matched by
position, as in torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from torch.nn.parameter import is_lazy

from ckstore.errors import BadInput
from ckstore.model.document import MAX_DEPTH
from ckstore.model.manifest.manifest import Node
from ckstore.model.manifest.nodes import decode_key
from ckstore.model.names import join_index, unwrapped
from ckstore.model.words import counted
from ckstore.tensors.kinds import hand_over, is_stateful, is_tensor, state_of
from ckstore.tensors.state_restore import build_with
from ckstore.tensors.targets import torch_targets
from ckstore.tensors.targets.load_comparison import Comparison, Leaf
from ckstore.tensors.torch_leaves import address_of
from ckstore.tensors.torch_ranges import count_beyond
from ckstore.tensors.walks import DICTS, leaf_numbers, name_below, parts_in

_LIKE_THE_PARAMETER = {
    *("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer", "square_avg"),
    *("acc_delta", "grad_avg", "sum", "prev", "step_size", "ax"),
}
"""State of torch's optimizers that has the shape of the parameter."""
_TELLING = {
    *("betas", "momentum", "alpha", "rho", "lambd", "t0", "etas", "step_sizes", "max_iter", "lr_decay"),
    *("initial_accumulator_value", "beta2_decay"),
}
"""Settings that distinguish torch's optimizers."""


_ITERATED = "<generator object "
"""The beginning of the text into which `load_state_dict` of torch 2.13 converts each string in a parameter's state."""
_NAMED_MOST = 3
"""The maximum number of names of parameters in a message."""


def plan_optimizer(comparison: Comparison, optimizer: Any, node: Node, path: str) -> None:
    """Plan to load an optimizer. If the groups differ, nothing is loaded into the optimizer.

    The state of a parameter is left out if a part of it does not fit, so that the optimizer creates new state.
    """
    parts = {decode_key(own): item for own, item in node[1]} if _is_dict(node) else {}
    if not {"state", "param_groups"} <= set(parts) or not _is_dict(parts["state"]):
        comparison.mismatch(path, "the state of an optimizer", comparison.described(node))
        return
    # A hook may rename groups or parameters. A comparison before the hook could refuse a state that fits after the
    # hook.
    if optimizer._optimizer_load_state_dict_pre_hooks:  # noqa: SLF001 - torch has no public way to query them
        make = comparison.new(node)

        def load_whole(leaf: Leaf) -> None:
            state: Any = make(leaf)
            hand_over(optimizer, state, path)
            numbers = chain.from_iterable(group["params"] for group in state["param_groups"])
            parameters = chain.from_iterable(group["params"] for group in optimizer.param_groups)
            _put_back(comparison, optimizer, state["state"], dict(zip(numbers, parameters, strict=False)), path)

        comparison.steps.append(load_whole)
        return
    groups: Any = build_with(parts["param_groups"], comparison.early, comparison.leaves)
    orders = _orders(comparison, optimizer, groups, path) if _fits_groups(comparison, optimizer, groups, path) else None
    if orders is None:
        return
    work = _Optimizer(comparison, optimizer, path, _ordered(groups, orders))
    state_of = work.by_parameter({decode_key(own): item for own, item in parts["state"][1]})
    kept = {key: item for key, item in state_of.items() if work.take(key, item)}
    rest = {key: item for key, item in parts.items() if key != "state"}
    for index in chain.from_iterable(map(leaf_numbers, rest.values())):
        comparison.filling.make_new(index)

    def load(leaf: Leaf) -> None:
        state: dict[object, Any] = {key: build_with(item, leaf, comparison.leaves) for key, item in rest.items()}
        state["param_groups"] = _ordered(state["param_groups"], orders)
        state["state"] = {
            key: build_with(item, work.placed(key, item, leaf), comparison.leaves) for key, item in kept.items()
        }
        hand_over(optimizer, state, path)
        _put_back(comparison, optimizer, state["state"], work.parameters, path)
        for index in chain.from_iterable(map(leaf_numbers, kept.values())):
            name = comparison.leaves[index].name
            if index in work.converted and name in comparison.differences.cast:
                value: Any = leaf(index)
                if count := count_beyond(value, work.converted[index]):
                    comparison.filling.beyond[name] += count

    comparison.steps.append(load)


def _put_back(comparison: Comparison, optimizer: Any, saved: Any, parameters: dict[Any, Any], path: str) -> None:
    """Restore strings and dtypes of the saved state that torch changed, or report the conversion of a dtype.

    If a parameter was saved with its current dtype, but its state with another one, such as float64, then the optimizer
    keeps this dtype by design, and the dtype is restored. Otherwise, the run continues with parameters of another
    dtype, so torch's conversion of floats is intended, and is reported.
    """
    addresses = comparison.filling.same_dtype_addresses
    for number, found in saved.items():
        parameter = parameters.get(number)
        own = optimizer.state.get(parameter)
        if parameter is not None and isinstance(own, dict) and isinstance(found, dict):
            is_kept = address_of(parameter) in addresses
            cast = comparison.differences.cast
            name = name_below(name_below(path, "state"), number)
            own |= _as_saved(own, found, parameter.dtype, name, cast, is_kept=is_kept)


def _as_saved(own: Any, saved: Any, dtype: Any, name: str, cast: dict[str, str], *, is_kept: bool) -> Any:
    """Return `own` with the strings of `saved`, and with the tensors of `saved` that torch converted to `dtype`."""
    if isinstance(own, dict) and isinstance(saved, dict):
        return {
            key: _as_saved(item, saved[key], dtype, name_below(name, key), cast, is_kept=is_kept)
            if key in saved
            else item
            for key, item in own.items()
        }
    if type(own) in (list, tuple) and type(saved) is type(own) and len(own) == len(saved):
        return type(own)(
            _as_saved(one, its, dtype, join_index(name, i), cast, is_kept=is_kept)
            for i, (one, its) in enumerate(zip(own, saved, strict=True))
        )
    if type(own) is str and type(saved) is str and own.startswith(_ITERATED):
        return saved
    if not all(is_tensor(one) and torch_targets.can_be_filled(one) for one in (own, saved)):
        return own
    if not (own.dtype == dtype != saved.dtype and own.shape == saved.shape):
        return own
    # A hook may have changed the value, so the value is only replaced if it equals the converted value.
    converted = saved.to(own)
    if not bool(((own == converted) | (own.isnan() & converted.isnan())).all()):
        return own
    # torch also converts counters, masks and codes, which have no meaning in the dtype of a parameter.
    if not is_kept and (saved.is_floating_point() or saved.is_complex()):
        cast.setdefault(name, f"{torch_targets.dtype_name(saved)} to {torch_targets.dtype_name(own)}")
        return own
    cast.pop(name, None)
    return torch_targets.moved_to(saved, own)


def _is_dict(node: Node) -> bool:
    return isinstance(node, list) and node[0] in DICTS


def _fits_groups(comparison: Comparison, optimizer: Any, groups: Any, path: str) -> bool:
    """Whether the saved groups fit an optimizer whose parameters have memory. Report the differences.

    The number of groups, the size of each group, and the kind of optimizer are compared.
    """
    name = name_below(path, "param_groups")
    own = optimizer.param_groups
    if not isinstance(groups, list) or not all(map(_is_group, groups)):
        dicts = [one for one in groups if isinstance(one, dict)] if isinstance(groups, list) else []
        parameters = [one["params"] for one in dicts if isinstance(one.get("params"), list)]
        by_name = any(names and all(isinstance(one, str) for one in names) for names in parameters)
        found = "names of parameters, as get_state_dict of torch gives them" if by_name else "something else"
        comparison.mismatch(name, "groups with the numbers of parameters", found)
        return False
    if len(groups) != len(own):
        comparison.mismatch(name, counted(len(own), "group"), counted(len(groups), "group"))
        return False
    fits = True
    for i, (own_group, found) in enumerate(zip(own, groups, strict=True)):
        if len(own_group["params"]) != len(found["params"]):
            wanted = counted(len(own_group["params"]), "parameter")
            comparison.mismatch(f"{name}[{i}].params", wanted, counted(len(found["params"]), "parameter"))
            fits = False
        lacking = sorted((_TELLING & set(own_group)) - set(found))
        if lacking and _is_torchs(optimizer):
            other = sorted((_TELLING & set(found)) - set(own_group))
            kind = f"{type(optimizer).__name__} with {', '.join(lacking)}"
            comparison.mismatch(f"{name}[{i}]", kind, f"an optimizer with {', '.join(other) or 'neither'}")
            fits = False
    if any(one.is_meta for group in own for one in group["params"]):
        comparison.differences.meta.append(name)
        fits = False
    return fits


def _orders(comparison: Comparison, optimizer: Any, groups: Any, path: str) -> list[list[int] | None] | None:
    """Return the positions of the parameters of each group in the checkpoint, or None if names differ.

    The item for a group is None if the optimizer or the checkpoint has no names. The order of such a group is kept.
    """
    name = name_below(path, "param_groups")
    orders: list[list[int] | None] = []
    fits = True
    for i, (own_group, found) in enumerate(zip(optimizer.param_groups, groups, strict=True)):
        own, its = own_group.get("param_names"), found.get("param_names")
        if not own or not its:
            orders.append(None)
            continue
        orders.append(_order(comparison, own, its))
        if orders[-1] is None:
            more = [one for one in own if one not in its], [one for one in its if one not in own]
            wanted, there = (", ".join(names[:_NAMED_MOST]) or "other names" for names in more)
            comparison.mismatch(f"{name}[{i}].param_names", wanted, there)
            fits = False
    return orders if fits else None


def _order(comparison: Comparison, own: list[str], its: Any) -> list[int] | None:
    """Return the positions of the optimizer's names in the checkpoint's names, or None if they differ."""
    if not isinstance(its, list) or len(its) != len(own) or not all(isinstance(one, str) for one in its):
        return None
    terms, used = comparison.terms, comparison.differences.renaming
    given = [terms.rename.apply(one, used) for one in its]
    for form in (str, unwrapped):  # if names differ, compare them without wrappers such as ``module.``
        wanted, places = [form(one) for one in own], {form(one): j for j, one in enumerate(given)}
        if len(places) == len(given) and places.keys() == {*wanted}:
            return [places[one] for one in wanted]
    return None


def _ordered(groups: Any, orders: list[list[int] | None]) -> Any:
    """Return groups with their parameters in the order of an optimizer."""
    return [
        group
        if order is None
        else {**group, **{key: [group[key][j] for j in order] for key in ("params", "param_names")}}
        for group, order in zip(groups, orders, strict=True)
    ]


def _is_group(found: Any) -> bool:
    numbers = found.get("params") if isinstance(found, dict) else None
    return isinstance(numbers, list) and all(type(number) is int for number in numbers)


def _is_torchs(optimizer: Any) -> bool:
    return type(optimizer).__module__.startswith("torch.optim")


def _below(node: Node, tag: str) -> set[int]:
    """Return the numbers of the leaves below all nodes with a tag."""
    return {index for _, part in parts_in(node, tag=tag) for index in leaf_numbers(part)}


class _Optimizer:
    def __init__(self, comparison: Comparison, optimizer: Any, path: str, groups: Any) -> None:
        self.comparison = comparison
        self.path = name_below(path, "state")
        self.converted: dict[int, Any] = {}  # leaf -> the dtype to which torch converts it
        self._is_torchs = _is_torchs(optimizer)
        self._held = optimizer.state  # not `state_dict()`, which may be foreign code, and need not have these tensors
        numbers = chain.from_iterable(group["params"] for group in groups)
        parameters = chain.from_iterable(group["params"] for group in optimizer.param_groups)
        self.parameters = dict(zip(numbers, parameters, strict=True))
        # A tensor of the state that shares memory with a parameter must not be filled. This would overwrite weights.
        self._places = {one.data_ptr() for one in self.parameters.values() if torch_targets.can_be_filled(one)} - {0}

    def by_parameter(self, found: dict[Any, Node]) -> dict[Any, Node]:
        """Return the state by parameter number. `torch.distributed.checkpoint` saves these numbers as strings."""
        numbers = {str(number): number for number in self.parameters if number not in found}
        return {numbers.get(key, key) if isinstance(key, str) else key: node for key, node in found.items()}

    def take(self, key: Any, node: Node) -> bool:
        """Plan to load the state of one parameter. Return False if a part of it does not fit."""
        # An optimizer of torch would load an unknown key and never use it. Other optimizers may have additional keys.
        if key not in self.parameters and (self._is_torchs or type(key) is int):
            parameters = counted(len(self.parameters), "parameter")
            self.comparison.mismatch(name_below(self.path, key), f"the state of one of {parameters}", "another key")
            return False
        indexes = list(leaf_numbers(node))
        inside = _below(node, "parts") | _below(node, "object")  # these leaves have other shapes than the parameter
        parameter = self.parameters.get(key)
        held = {} if parameter is None else self._held.get(parameter, {})
        live = dict(_tensors_in(held, name_below(self.path, key)))
        misfits = [index for index in indexes if index not in inside and not self._fits(index, parameter, live)]
        if misfits:  # `_fits` has reported all of them
            return False
        for index in indexes:
            self._bind(index, live)
        return True

    def placed(self, key: object, node: Node, leaf: Leaf) -> Leaf:
        """Return a function like `leaf` that puts tensors inside objects on the device of their parameter."""
        # torch itself moves the tensors of a state to that device, but not tensors inside objects.
        parameter, inside = self.parameters.get(key), _below(node, "object")
        if parameter is None or parameter.is_cpu or not inside:
            return leaf

        def give(index: int) -> object:
            value: Any = leaf(index)
            return torch_targets.moved_to(value, parameter) if index in inside and is_tensor(value) else value

        return give

    def _bind(self, index: int, live: dict[str, Any]) -> None:
        """Plan to fill the optimizer's tensor of the same name, unless another leaf or a parameter uses its memory."""
        leaf = self.comparison.leaves[index]
        own = live.get(leaf.name)
        place = None if own is None else own.data_ptr()
        if own is None or place in self._places or not self.comparison.filling.bind(own, index):
            self.comparison.filling.make_new(index)
        else:
            self._places.add(place)

    def _fits(self, index: int, parameter: Any, live: dict[str, Any]) -> bool:
        """Whether a leaf has the expected shape, if that shape is known. Report another shape, or a conversion."""
        # Shapes are only checked for torch's own optimizers. Other optimizers may use any shapes for their state.
        leaf = self.comparison.leaves[index]
        last = leaf.name.rpartition(".")[2]
        if leaf.kind != "torch" or parameter is None or is_lazy(parameter):  # the load gives it its shape
            return True
        own = live.get(leaf.name)
        if self._is_torchs and last in _LIKE_THE_PARAMETER:
            wanted = f"shape {list(parameter.shape)}, that of its parameter,"
            shapes = {tuple(parameter.shape), ()}
            if own is not None:
                wanted, shapes = torch_targets.describe(own), {tuple(own.shape)}
            if leaf.shape not in shapes:
                self.comparison.mismatch(leaf.name, wanted, self.comparison.described(["leaf", index]))
                return False
        own_dtype = torch_targets.dtype_name(parameter)
        # torch itself converts state to the parameter's dtype, except `step`. Report this conversion.
        if last != "step" and parameter.is_floating_point() and leaf.dtype != own_dtype:
            self.comparison.differences.cast[leaf.name] = f"{leaf.dtype} to {own_dtype}"
            self.converted[index] = parameter.dtype
        return True


def _tensors_in(state: object, path: str, depth: int = 1) -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each plain tensor in the state of an object, with the names of `capture`."""
    if is_tensor(state):
        from ckstore.tensors.targets import torch_targets

        if torch_targets.can_be_filled(state):  # type: ignore[arg-type]
            yield path, state
    elif depth > MAX_DEPTH:
        raise BadInput(f"{path}: the state of an object contains itself or is nested deeper than {MAX_DEPTH}")
    elif is_stateful(state):
        yield from _tensors_in(state_of(state, path), path, depth + 1)
    elif isinstance(state, dict):
        for key, item in state.items():
            yield from _tensors_in(item, name_below(path, key), depth + 1)
    elif isinstance(state, list | tuple):
        for i, item in enumerate(state):
            yield from _tensors_in(item, join_index(path, i), depth + 1)
