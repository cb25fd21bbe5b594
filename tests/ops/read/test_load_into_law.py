"""A law of `load_into`: whatever the checkpoint and the target are, all that fits is loaded, or nothing is touched."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, note, settings
from hypothesis import strategies as st

from ckstore import Store
from ckstore.errors import CkstoreError
from tests.ops.read.test_load_differences import bits

NAMES = ("a", "b", "module.a", "_orig_mod.b", "0")
DTYPES = (torch.float32, torch.bfloat16, torch.int64)
SHAPES = ((), (2,), (3, 2), (0,))


@st.composite
def tensors(draw: Any) -> torch.Tensor:
    """A small tensor, laid out in one of several ways, sometimes without memory."""
    shape, dtype = draw(st.sampled_from(SHAPES)), draw(st.sampled_from(DTYPES))
    tensor = torch.full(shape, draw(st.integers(0, 9))).to(dtype)
    layout = draw(st.sampled_from(["plain", "plain", "plain", "transposed", "spread", "meta", "half"]))
    if layout == "transposed" and len(shape) == 2:
        return tensor.t().contiguous().t()
    if layout == "spread" and shape:
        return tensor.repeat_interleave(2, -1)[..., ::2]
    return tensor.to("meta") if layout == "meta" and draw(st.booleans()) else tensor


@st.composite
def modules(draw: Any) -> torch.nn.Module:
    """Some parameters and buffers, flat or below one another, sometimes tied, sometimes with an optimizer's load."""
    module = torch.nn.Module()
    for name in draw(st.lists(st.sampled_from(NAMES[:2]), unique=True)):
        tensor = draw(tensors())
        if tensor.is_floating_point() and draw(st.booleans()):
            module.register_parameter(name, torch.nn.Parameter(tensor))
        else:
            module.register_buffer(name, tensor)
    tied = getattr(module, "a", None)
    if isinstance(tied, torch.nn.Parameter) and draw(st.booleans()):
        module.register_parameter("tied", tied)
    if draw(st.booleans()):
        module.add_module(draw(st.sampled_from(["module", "_orig_mod", "deep"])), draw(modules()))
    return module


def optimizer_of(module: torch.nn.Module, kind: Any, *, step: bool) -> torch.optim.Optimizer | int:
    parameters = [one for one in module.parameters() if not one.is_meta]
    if not parameters:
        return 0
    made: torch.optim.Optimizer = kind(parameters, lr=0.1)
    if step:
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        made.step()
    return made


@st.composite
def trees(draw: Any, *, meta: bool = True) -> dict[str, Any]:
    """A state: tensors, plain values, a module, an optimizer, dicts and lists of them."""
    value = st.one_of(tensors(), st.integers(0, 3), st.just("text"), modules())
    deep = st.recursive(
        value,
        lambda inner: st.one_of(
            st.dictionaries(st.sampled_from(NAMES), inner, max_size=3), st.lists(inner, max_size=3)
        ),
        max_leaves=6,
    )
    tree: dict[str, Any] = draw(st.dictionaries(st.sampled_from(NAMES), deep, max_size=3))
    if draw(st.booleans()):
        module = draw(modules())
        kind = draw(st.sampled_from([torch.optim.AdamW, torch.optim.SGD]))
        tree |= {"model": module, "optimizer": optimizer_of(module, kind, step=draw(st.booleans()))}
    return tree if meta else {key: with_memory(value) for key, value in tree.items()}


def with_memory(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.ones(value.shape, dtype=value.dtype) if value.is_meta else value
    if isinstance(value, torch.nn.Module):
        return value.to_empty(device="cpu") if any(t.is_meta for t in value.state_dict().values()) else value
    if isinstance(value, dict):
        return {key: with_memory(item) for key, item in value.items()}
    return [with_memory(item) for item in value] if isinstance(value, list) else value


def everything(value: Any) -> Any:
    """Return the identity of every object in a target, and all bits in it."""
    if isinstance(value, torch.nn.Module):
        held = {name: id(one) for name, one in value.named_parameters(remove_duplicate=False)}
        return id(value), held, bits(value.state_dict())
    if isinstance(value, torch.optim.Optimizer):
        return id(value), bits(value.state_dict())
    if isinstance(value, dict):
        return id(value), {key: everything(item) for key, item in value.items()}
    if isinstance(value, list):
        return id(value), [everything(item) for item in value]
    return id(value) if isinstance(value, torch.Tensor) else value, bits(value)


@st.composite
def requests(draw: Any) -> dict[str, Any]:
    rename = st.dictionaries(
        st.sampled_from(["", "module.", "_orig_mod.", "a", ".deep."]), st.sampled_from(["", "a", "."])
    )
    return {
        "strict": draw(st.booleans()),
        "cast": draw(st.booleans()),
        "assign": draw(st.booleans()),
        "rename": draw(st.none() | rename),
        "select": draw(st.none() | st.sampled_from(["a", "model", "*", "*.a", ["a", "b"]])),
    }


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store for all examples: each is a step of its own."""
    return Store.init(tmp_path_factory.mktemp("law") / "store")


@pytest.mark.property
@settings(max_examples=min(settings().max_examples, 600))  # each is a durable save
@given(data=st.data(), request=requests())
def test_a_load_into_any_target_touches_nothing_or_loads_all_that_it_does_not_report(
    data: st.DataObject, request: dict[str, Any], many: Store
) -> None:
    saved = data.draw(trees(meta=False))
    target = copy.deepcopy(saved) if data.draw(st.booleans()) else data.draw(trees())
    info = many.save(saved)
    before = everything(target)

    try:
        report = many.load_into(target, info, **request)
    except CkstoreError as error:
        note(str(error))
        assert everything(target) == before
        return

    left = {*report.missing, *report.not_loaded, *report.cast}
    if request["select"] is None and not request["rename"]:
        found, now = flat(saved, ""), flat(target, "")
        names = [name for name in found if name in now and not is_left(name, left)]
        assert {name: found[name] for name in names} == {name: now[name] for name in names}


def is_left(name: str, left: set[str]) -> bool:
    return any(name == one or name.startswith((f"{one}.", f"{one}[")) for one in left)


def flat(value: Any, path: str) -> dict[str, Any]:
    """Return the bits of each value in modules, dicts and lists, by its plain name."""
    if isinstance(value, torch.nn.Module):
        value = dict(value.state_dict())
    if isinstance(value, torch.optim.Optimizer):
        return {}
    if isinstance(value, dict):
        parts = [flat(item, f"{path}.{key}" if path else str(key)) for key, item in value.items()]
    elif isinstance(value, list):
        parts = [flat(item, f"{path}[{i}]") for i, item in enumerate(value)]
    else:
        return {path: bits(value)}
    return {name: item for part in parts for name, item in part.items()}
