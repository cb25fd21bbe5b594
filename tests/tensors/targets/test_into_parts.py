"""Quantized weights in a target: filled where their parts lie, replaced where that was asked for, else left alone."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import ckstore
from ckstore.errors import BadInput
from ckstore.tensors.named import safe_classes
from ckstore.tensors.targets.load_comparison import LoadRules
from tests.support.captures import Saved, differences
from tests.support.states import assert_same
from tests.support.subclasses import Mode, Rounded, Rounding, rounded

WEIGHT = r"model.0\.weight"
X = torch.linspace(-1, 1, 8).reshape(2, 4)


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safe_classes, "_allowed", {})
    ckstore.add_safe_globals([Rounded, Rounding])


def model(seed: int, **how: Any) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 3, **how), torch.nn.Linear(3, 3, **how))


def quantized(seed: int, mode: Mode = Mode.NEAREST) -> torch.nn.Module:
    return rounded(model(seed), mode)


def weights(module: torch.nn.Module) -> list[Any]:
    return [layer.weight for layer in module.children()]


def same_output(one: Any, other: Any) -> bool:
    return torch.equal(one(X), other(X))


def test_a_module_that_is_quantized_equally_is_filled_where_its_parts_lie() -> None:
    source, target = quantized(0), quantized(1)
    places = [(id(weight), weight.codes.data_ptr(), weight.scale.data_ptr()) for weight in weights(target)]

    plan = Saved({"model": source}).load_into({"model": target})

    assert differences(plan) == {}
    assert same_output(source, target)
    assert len(plan.direct) == 6  # straight into the memory of codes, scales and biases
    assert places == [(id(weight), weight.codes.data_ptr(), weight.scale.data_ptr()) for weight in weights(target)]


def test_what_a_load_gives_is_what_torch_loads_too() -> None:
    source, target = quantized(0), quantized(1)

    back = Saved(source).load()
    target.load_state_dict(back)

    assert type(back["0.weight"]) is Rounded
    assert back["0.weight"].rounding == Rounding(Mode.NEAREST)
    assert same_output(source, target)


@pytest.mark.parametrize("make", [lambda: model(0, device="meta"), lambda: model(1), lambda: quantized(1, Mode.DOWN)])
def test_assigned_weights_take_the_place_of_what_was_there(make: Any) -> None:
    source, target = quantized(0), make()
    target.requires_grad_(False)

    plan = Saved({"model": source}).load_into({"model": target}, LoadRules(assign=True))

    assert differences(plan) == {}
    assert type(target[0].weight) is Rounded
    assert isinstance(target[0].weight, torch.nn.Parameter)
    assert same_output(source, target)


@pytest.mark.parametrize(
    "make, why",
    [
        (
            lambda: model(1),
            r"shape \[3, 4\] float32 wanted, found .*Rounded of shape \[3, 4\], which is of another class$",
        ),
        (lambda: quantized(1, Mode.DOWN), r"found .*Rounded of shape \[3, 4\], with another rounding$"),
        (lambda: rounded(model(1).double()), r"found .*, with another dtype$"),
        (lambda: torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Linear(3, 3)), r"\[5, 4\] float32 wanted"),
    ],
)
def test_a_module_that_is_quantized_otherwise_is_not_touched(make: Any, why: str) -> None:
    target = make()
    before = {name: getattr(tensor, "codes", tensor).clone() for name, tensor in target.state_dict().items()}
    saved = Saved({"model": quantized(0)})

    found = saved.plan({"model": target}).differences

    assert next(iter(found.mismatched)) == WEIGHT
    assert re.search(why, found.mismatched[WEIGHT])
    for name, tensor in target.state_dict().items():
        assert torch.equal(getattr(tensor, "codes", tensor), before[name])


def test_the_meta_device_without_assign_and_another_shape_are_said() -> None:
    saved = Saved({"model": quantized(0)})

    assert saved.plan({"model": model(0, device="meta")}).differences.meta[0] == WEIGHT
    with torch.device("meta"):
        other = torch.nn.Sequential(torch.nn.Linear(9, 3), torch.nn.Linear(3, 3))
    assert list(saved.plan({"model": other}, LoadRules(assign=True)).differences.mismatched) == [WEIGHT]


def test_tensors_in_a_dict_are_filled_or_replaced() -> None:
    saved = Saved({"w": Rounded.of(X), "v": [Rounded.of(X)]})
    target: Any = {"w": Rounded.of(X + 3), "v": [torch.zeros(2, 4)]}
    first = target["w"]

    assert differences(saved.plan(target))["replaceable"] == ["v[0]"]
    saved.load_into(target, LoadRules(assign=True))

    assert target["w"] is first
    assert_same(Rounded.of(X).codes, first.codes)
    assert_same(Rounded.of(X).scale, target["v"][0].scale)


def test_weights_that_are_one_stay_one_and_are_told_apart_by_nothing_else() -> None:
    source, target = quantized(0), quantized(1)
    first: Any = target[0]  # type: ignore[index]
    target.add_module("2", torch.nn.Linear(4, 3))
    target[2].weight = first.weight  # type: ignore[index]
    saved = Saved({"model": source})

    assert saved.load_into({"model": target}).differences.missing == [r"model.2\.bias"]


def test_a_sparse_tensor_of_a_module_is_copied() -> None:
    module, other = torch.nn.Module(), torch.nn.Module()
    module.register_buffer("mask", torch.eye(3).to_sparse())
    other.register_buffer("mask", torch.zeros(3, 3).to_sparse())

    plan = Saved({"model": module}).load_into({"model": other})

    assert differences(plan) == {}
    assert_same(torch.eye(3), other.get_buffer("mask").to_dense())


def test_a_class_that_is_not_allowed_here_stops_the_load_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = Saved({"first": torch.ones(2), "model": quantized(0)})
    monkeypatch.setattr(safe_classes, "_allowed", {})
    ckstore.add_safe_globals([Rounded])
    target = {"first": torch.zeros(2), "model": quantized(1)}

    with pytest.raises(BadInput, match=r"^model.0.weight needs tests.support.subclasses.Rounding, which .*\[Rounding"):
        saved.load_into(target)

    assert_same(torch.zeros(2), target["first"])


def test_an_error_in_a_context_names_the_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = Saved({"model": quantized(0)})
    monkeypatch.setattr(safe_classes, "_allowed", {})
    ckstore.add_safe_globals([Rounded])

    with pytest.raises(BadInput, match=r"^model.0.weight needs tests.support.subclasses.Rounding, "):
        saved.load()
    with pytest.raises(BadInput, match=r"^a: .*Rounded, which is built from .*Rounding cannot.*\[Rounding\]"):
        Saved({"a": Rounded.of(X)})


class Sgd:
    """An optimizer that keeps its state quantized."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.state: dict[str, Any] = {"m": Rounded.of(torch.randn(2, 4)), "step": seed}

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def test_an_object_is_given_its_quantized_state() -> None:
    one, other = Sgd(0), Sgd(1)

    Saved({"o": one}).load_into({"o": other})

    assert other.state["step"] == 0
    assert_same(one.state["m"].codes, other.state["m"].codes)


def test_a_context_follows_the_device_of_the_load() -> None:
    saved = Saved({"w": Rounded.of(X)})

    back = saved.load(device="meta")["w"]

    assert back.codes.device.type == "meta"
    assert back.device.type == "meta"
