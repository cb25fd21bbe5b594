"""Models quantized with torchao: saved, loaded, loaded in place, exported, and found by name, kind by kind."""

from __future__ import annotations

import importlib
import importlib.util
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

import ckstore
from ckstore import Store
from ckstore.errors import BadInput, CannotStore, DoesNotFit
from ckstore.tensors.named import safe_classes

X = torch.linspace(-1, 1, 256).reshape(2, 128).bfloat16()
Quantize = Callable[[torch.nn.Module], None]


def config(name: str, module: str = "torchao.quantization", **how: Any) -> Quantize:
    def quantize(model: torch.nn.Module) -> None:
        importlib.import_module("torchao.quantization").quantize_(
            model, getattr(importlib.import_module(module), name)(**how)
        )

    return quantize


def intx(name: str, **how: Any) -> Quantize:
    def quantize(model: torch.nn.Module) -> None:
        per_group = importlib.import_module("torchao.quantization").PerGroup(32)
        four_bits = getattr(torch, "int4")  # noqa: B009 - the stubs of torch lack it
        config(name, weight_dtype=four_bits, **{how.get("granularity", "granularity"): per_group})(model)

    return quantize


def nf4(model: torch.nn.Module) -> None:
    module = importlib.import_module("torchao.quantization.quantize_.workflows.nf4.nf4_tensor")
    for part in model.modules():
        if isinstance(part, torch.nn.Linear):
            part.weight = torch.nn.Parameter(module.to_nf4(part.weight, 64, 64), requires_grad=False)


KINDS: dict[str, Quantize] = {
    "Int8WeightOnly": config("Int8WeightOnlyConfig"),
    "Int8Dynamic": config("Int8DynamicActivationInt8WeightConfig"),
    "Float8WeightOnly": config("Float8WeightOnlyConfig"),
    "Float8Dynamic": config("Float8DynamicActivationFloat8WeightConfig"),
    "Int4WeightOnly": config("Int4WeightOnlyConfig", group_size=32),
    "IntxWeightOnly": intx("IntxWeightOnlyConfig"),
    "Int8DynamicIntx": intx("Int8DynamicActivationIntxWeightConfig", granularity="weight_granularity"),
    "Float8Int4": config("Float8DynamicActivationInt4WeightConfig"),
    "MX": config("MXDynamicActivationMXWeightConfig", "torchao.prototype.mx_formats"),
    "NVFP4": config("NVFP4DynamicActivationNVFP4WeightConfig", "torchao.prototype.mx_formats"),
    "NF4": nf4,
}
NOT_IN_SAFETENSORS = {"NF4"}
"""torchao has no loader of such files for these."""


@pytest.fixture(autouse=True, scope="module")
def _torchao() -> None:
    if importlib.util.find_spec("torchao") is None:
        pytest.skip("needs torchao, which is no development package: make states")
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _as_in_a_new_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safe_classes, "_allowed", {})


def plain(seed: int, **how: Any) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(128, 64, dtype=torch.bfloat16, **how), torch.nn.ReLU())


def quantized(kind: str, seed: int) -> torch.nn.Module:
    model = plain(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            KINDS[kind](model)
        except (AssertionError, ImportError, NotImplementedError, RuntimeError) as error:
            pytest.skip(f"torchao has no {kind} on this machine: {error}")
    return model


def bits(model: Any) -> list[tuple[str, torch.Tensor]]:
    """Return all parts of a weight as bytes, and what it says of itself, for kinds that compute nothing here."""
    weight = model[0].weight.detach()  # requires_grad is a part of some contexts
    names, context = weight.__tensor_flatten__()
    parts = [getattr(weight, name).detach().reshape(-1) for name in names]
    return [(f"{names} {context}", torch.cat([part.view(torch.uint8) if part.numel() else part for part in parts]))]


def same(one: Any, other: Any) -> bool:
    left, right = bits(one), bits(other)
    return left[0][0] == right[0][0] and torch.equal(left[0][1], right[0][1])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.init(tmp_path / "store")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def saved(store: Store, kind: str) -> Any:
    """A model in the store; what its error says to allow is allowed."""
    model = quantized(kind, 0)
    if kind == "NF4":
        with pytest.raises(CannotStore, match=r"ckstore.add_safe_globals\(\[SubclassTensorArgs\]\)"):
            store.save({"model": model}, step=1)
        module = importlib.import_module("torchao.quantization.quantize_.workflows.nf4.nf4_tensor")
        ckstore.add_safe_globals([module.SubclassTensorArgs])
    store.save({"model": model}, step=1)
    return model


def test_it_loads_as_torch_loads_it(store: Store, kind: str, saved: Any) -> None:
    target = quantized(kind, 1)

    target.load_state_dict(store.load(1)["model"])

    assert same(saved, target)


@pytest.mark.parametrize("assign", [False, True])
def test_it_is_loaded_in_place(store: Store, kind: str, saved: Any, assign: bool) -> None:
    target: Any = quantized(kind, 1)
    weight = target[0].weight

    report = store.load_into({"model": target}, 1, assign=assign)

    assert not report.not_loaded
    assert target[0].weight is weight
    assert same(saved, target)


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_it_takes_the_place_of_plain_weights(store: Store, kind: str, saved: Any, device: str) -> None:
    target = plain(1, device=device)
    with pytest.raises(DoesNotFit, match="assign=True"):
        store.load_into({"model": target}, 1)

    store.load_into({"model": target}, 1, assign=True)

    assert isinstance(target[0].weight, torch.nn.Parameter)
    assert same(saved, target)


def test_it_is_found_by_its_name(store: Store, kind: str, saved: Any) -> None:
    with store.open_checkpoint(1) as checkpoint:
        weight = checkpoint["model.0.weight"]
        assert checkpoint.keys() == ["model.0.weight", "model.0.bias"]

    assert type(weight) is type(saved[0].weight)
    assert same(saved, [types.SimpleNamespace(weight=weight)])


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("form", ["torch", "dcp"])
def test_it_is_exported_for_torch(store: Store, kind: str, saved: Any, form: Any, tmp_path: Path) -> None:
    from torch.distributed.checkpoint.state_dict_loader import load

    target = quantized(kind, 1)
    state = {"model": target.state_dict()}

    store.export(1, tmp_path / "out", format=form)
    if form == "torch":
        state = torch.load(tmp_path / "out", weights_only=kind != "NF4")
    else:
        load(state, checkpoint_id=tmp_path / "out", no_dist=True)
    target.load_state_dict(state["model"])

    assert same(saved, target)


def test_it_is_exported_for_torchaos_own_loader(store: Store, kind: str, saved: Any, tmp_path: Path) -> None:
    if kind in NOT_IN_SAFETENSORS:
        with pytest.raises(BadInput, match=r"^model.0.weight is a torchao.*format='torch'"):
            store.export(1, tmp_path / "out", format="safetensors")
        return
    from torchao.prototype.safetensors import safetensors_support  # type: ignore[import-not-found, unused-ignore]

    store.export(1, tmp_path / "out", format="safetensors")
    with safe_open(tmp_path / "out" / "model.safetensors", framework="pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    state, rest = safetensors_support.unflatten_tensor_state_dict(tensors, metadata)
    target = quantized(kind, 1)
    target.load_state_dict({name.removeprefix("model."): tensor for name, tensor in state.items()}, assign=True)

    assert rest == {}
    assert torch.equal(bits(saved)[0][1], bits(target)[0][1])  # JSON makes lists of tuples in the context
