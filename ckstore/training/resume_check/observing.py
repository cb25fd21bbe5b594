"""Record batches, random states, loss, gradients, parts and variables after each step in a process of the check."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from ckstore.errors import BadInput
from ckstore.model.digest import ALGORITHMS
from ckstore.tensors.kinds import (
    is_array,
    is_module,
    is_numpy_scalar,
    is_optimizer,
    is_plain_layout,
    is_stateful,
    is_tensor,
    state_of,
)
from ckstore.tensors.refusals import type_name
from ckstore.training.capture import unwrapped
from ckstore.training.generators import find_generators, find_objects, kind_of_generator, states_of
from ckstore.training.resume_check.batches import record_batches
from ckstore.training.resume_check.loop import Loop
from ckstore.training.resume_check.records import NUMBER, VARIABLE, Observation
from ckstore.training.rng import random_states

_XXH3 = ALGORITHMS["xxh3_128"]
_TEXT_CHARS = 80
"""The maximum length of a recorded text, in characters. Only the digest of a longer text is kept."""
_LOADERS = ("torch.utils.data", "torchdata")
"""Modules of loaders, whose ``state_dict()`` may draw random numbers. The batches are recorded instead."""
_PLAIN = (bool, int, float, str)
_NO_STATE = (types.ModuleType, types.BuiltinFunctionType, types.FunctionType, type)
_NONE: Mapping[str, Any] = MappingProxyType({})


class Observer:
    """Records the state of a loop after each step."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._parts = {name: unwrapped(part) for name, part in loop.parts.items() if part is not None}
        self._batches: list[str] = []
        self._tensors: dict[str, Any] = {}
        loader = loop.parts.get("dataloader")
        if loader is not None:
            record_batches(loader, lambda batch: self._batches.append(digest_of(batch)))

    def record(
        self, position: str, step: int, result: Any = None, *, variables: Mapping[str, Any] = _NONE
    ) -> Observation:
        """Return the values to compare.

        Args:
            position: The position of the loop, as in `Observation`.
            step: The number of trained steps.
            result: The value that the loop yielded after a step.
            variables: The local variables of the loop.
        """
        self._tensors = {}
        variables = {**variables_of(self._loop.train), **variables}
        left_out = {f"{VARIABLE}{path}": one for path, one in self._left_out(variables).items()}
        values: dict[str, dict[str, str]] = {}
        for name, text in self._results(result) if position == "step" else ():
            values.setdefault("loss" if name == "loss" else "metric", {})[name] = text
        values["batch"] = {str(at): text for at, text in enumerate(self._batches)}
        self._batches.clear()
        values["random state"] = self._random(variables)
        modules, _ = find_objects({**self._parts, **left_out}, is_module)
        owners = {id(one): name for module in modules.values() for name, one in module.named_parameters()}
        for name, part in {**self._parts, **left_out}.items():
            if name != "dataloader":
                leaves = dict(flat(part, name, owners))
                self._tensors |= leaves
                values.setdefault(_kind(name, part), {}).update((key, text_of(leaf)) for key, leaf in leaves.items())
        trained, _ = find_objects(self._parts, is_module)
        gradients = {
            f"{path}.{name}.grad": parameter.grad
            for path, module in trained.items()
            for name, parameter in module.named_parameters()
            if parameter.grad is not None
        }
        self._tensors |= gradients
        values["gradient"] = {name: text_of(gradient) for name, gradient in gradients.items()}
        values[NUMBER] = _numbers(variables, self._loop)
        return Observation(position, step, {kind: found for kind, found in values.items() if found}, tuple(left_out))

    def tensors(self, names: tuple[str, ...] | None = None) -> dict[str, Any]:
        """Return the tensors with these names at the last call of `record`, by default all tensors."""
        return {
            name: leaf
            for name, leaf in self._tensors.items()
            if (is_tensor(leaf) or is_array(leaf)) and (names is None or name in names)
        }

    def _results(self, result: Any) -> Iterator[tuple[str, str]]:
        named = result if isinstance(result, Mapping) else {"loss": result}
        if "loss" not in named:
            hint = 'yield the loss after each step, or a dict such as {"loss": loss}'
            raise BadInput(f"the loop yielded {sorted(map(str, named))} and no loss", hint=hint)
        for name, value in named.items():
            if name == "batch":
                self._batches[:] = [digest_of(value)]
            else:
                yield str(name), _number_text(name, value)

    def _random(self, variables: Mapping[str, Any]) -> dict[str, str]:
        found = {kind: digest_of(state) for kind, state in random_states().items()}
        mine, _ = find_generators(self._parts)
        others, _ = find_generators(variables)
        ids = set(map(id, mine.values()))
        left_out = {f"{VARIABLE}{path}": one for path, one in others.items() if id(one) not in ids}
        return found | {path: digest_of(state) for path, state in states_of({**mine, **left_out}).items()}

    def _left_out(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        """Return, by path, the objects with a state to which a variable refers and which belong to no part."""
        mine, _ = find_objects(self._parts, _has_state)
        known = set(map(id, mine.values()))
        known |= {id(inner) for one in mine.values() if is_module(one) for inner in one.modules()}
        found, _ = find_objects(variables, _has_state)
        return {path: one for path, one in found.items() if id(unwrapped(one)) not in known}


def variables_of(function: Any) -> dict[str, Any]:
    """Return the variables that a function refers to: its closure, its object, and globals of its module.

    If the function calls other functions of its module, their variables are included.
    """
    found: dict[str, Any] = {}
    waiting, seen = [function], set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, types.MethodType):
            found.setdefault("self", one.__self__)
            waiting.append(one.__func__)
        elif isinstance(one, functools.partial):
            found |= {**{f"argument {at}": value for at, value in enumerate(one.args)}, **one.keywords}
            waiting.append(one.func)
        elif isinstance(one, types.FunctionType):
            mine = dict(_variables(one))
            inner = [name for name, value in mine.items() if isinstance(value, types.FunctionType)]
            waiting += [mine[name] for name in inner if mine[name].__module__ == one.__module__]
            found = {**mine, **found}
        else:
            found.setdefault("self", one)
    return {name: value for name, value in found.items() if not isinstance(value, _NO_STATE)}


def _variables(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    code = function.__code__
    yield from ((name, function.__globals__[name]) for name in _names_in(code) if name in function.__globals__)
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not set yet
            continue


def _names_in(code: types.CodeType) -> set[str]:
    inner = (one for one in code.co_consts if isinstance(one, types.CodeType))
    return set(code.co_names).union(*map(_names_in, inner))


def _has_state(value: Any) -> bool:
    return is_stateful(value) and not type(value).__module__.startswith(_LOADERS)


def _kind(name: str, part: Any) -> str:
    if name == "model":
        return "model"
    if name == "optimizer" or is_optimizer(part, own_load=True):
        return "optimizer"
    is_scheduler = name == "scheduler" or type(part).__module__ == "torch.optim.lr_scheduler"
    return "scheduler" if is_scheduler else "part"


def _numbers(variables: Mapping[str, Any], loop: Loop) -> dict[str, str]:
    """Return the plain values of variables and of `extra`, and the tensors of variables that outlive a step."""
    mine = {name: value for name, value in variables.items() if type(value) in _PLAIN}
    lasting = variables_of(loop.train).items()
    tensors = {name: value for name, value in lasting if is_tensor(value) or is_array(value)}
    of_extra = {f"extra.{name}": value for name, value in loop.extra.items() if type(value) in _PLAIN}
    return {name: text_of(value) for name, value in {**mine, **tensors, **of_extra}.items()}


def _number_text(name: object, value: Any) -> str:
    """Return a number as text that keeps every bit, followed by its type if it is a tensor."""
    if is_tensor(value) or is_array(value) or is_numpy_scalar(value):
        if value.reshape(-1).shape[0] != 1:
            hint = "yield a number, such as loss.item(); the input of the step may be yielded as batch"
            raise BadInput(f"{name} has {value.reshape(-1).shape[0]} elements, not one", hint=hint)
        return f"{float(value)!r} {_type_of(value)}"
    if value is None:
        raise BadInput(f"the loop yielded no {name}", hint="yield the loss after each step")
    if not isinstance(value, int | float):
        hint = 'yield the loss after each step, or a dict of numbers such as {"loss": loss}'
        raise BadInput(f"{name} must be a number, got {type_name(type(value))}", hint=hint)
    return repr(float(value))


def _type_of(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.")


def flat(value: Any, name: str, owners: Mapping[int, str]) -> Iterator[tuple[str, Any]]:
    """Yield each leaf of a state with its name, without generators. `owners` maps the id of a parameter to its name."""
    if kind_of_generator(value) is not None:
        return
    if is_optimizer(value, own_load=True):
        yield from _flat_optimizer(value, name, owners)
    elif is_stateful(value):
        yield from flat(state_of(value, name), name, owners)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from flat(item, f"{name}.{key}", owners)
    elif isinstance(value, list | tuple):
        for at, item in enumerate(value):
            yield from flat(item, f"{name}.{at}", owners)
    else:
        yield name, value


def _flat_optimizer(optimizer: Any, name: str, owners: Mapping[int, str]) -> Iterator[tuple[str, Any]]:
    """Yield leaves as `flat` does, with names instead of numbers for the parameters of modules."""
    state = state_of(optimizer, name)
    if not isinstance(state, dict) or not isinstance(state.get("state"), Mapping):
        yield from flat(state, name, owners)
        return
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    names = {at: owners.get(id(one), str(at)) for at, one in enumerate(parameters)}
    yield from flat({str(names.get(key, key)): one for key, one in state["state"].items()}, f"{name}.state", owners)
    yield from flat({key: one for key, one in state.items() if key != "state"}, name, owners)


def digest_of(value: Any) -> str:
    """Return one digest of a nested value. If an object in it is not data, only the class of the object is included."""
    texts = (f"{name} {text_of(leaf)}" for name, leaf in flat(value, "", {}))
    return _XXH3.digest("\n".join(texts).encode("utf-8", "surrogatepass"))


def text_of(leaf: Any) -> str:
    """Return the text of a leaf for comparisons: type, shape and digest of a tensor, or the value of a short leaf."""
    if is_tensor(leaf):
        return f"{_type_of(leaf)}{[*leaf.shape]} {_digest_of_tensor(leaf)}"
    if is_array(leaf):
        import numpy as np

        return f"{_type_of(leaf)}{[*leaf.shape]} {_XXH3.digest(np.ascontiguousarray(leaf).tobytes())}"
    if is_numpy_scalar(leaf):
        leaf = leaf.item()
    if isinstance(leaf, bytes | bytearray):
        return _XXH3.digest(leaf)
    if isinstance(leaf, set | frozenset):
        leaf = sorted(map(text_of, leaf))
    elif leaf is not None and not isinstance(leaf, bool | int | float | complex | str):
        return f"a {type_name(type(leaf))}"  # its `repr` may contain an address
    text = repr(leaf)
    return text if len(text) <= _TEXT_CHARS else _XXH3.digest(text.encode("utf-8", "surrogatepass"))


def _digest_of_tensor(tensor: Any) -> str:
    import torch

    tensor = tensor.detach()
    if hasattr(tensor, "__tensor_flatten__"):  # quantized, or distributed
        names, _ = tensor.__tensor_flatten__()
        return digest_of([getattr(tensor, name) for name in names])
    if not is_plain_layout(tensor):
        tensor = tensor.to_dense()
    if tensor.is_meta:
        return "without data"
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    flat_bytes = tensor.resolve_neg().cpu().contiguous().reshape(-1).view(torch.uint8)
    return _XXH3.digest(memoryview(flat_bytes.numpy()))


def tensors_apart(
    before: Mapping[str, Any], after: Mapping[str, Any], distance: Callable[[Any, Any], dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return, for each name, the distance between the two tensors. Names without a distance are omitted."""
    found = {name: distance(before[name], after[name]) for name in after if name in before}
    return {name: numbers for name, numbers in found.items() if numbers}
