"""State of an optimizer in another dtype than its parameters comes back as it was, or is reported as converted."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from ckstore import CkstoreWarning, Store
from ckstore.training import capture, restore
from tests.support.stores import check_store

_DTYPES = (torch.float32, torch.bfloat16)


class Wide(torch.optim.Optimizer):
    """Keeps its momentum in double precision, as a tensor, in a list and in a dict, and a counter, codes and a mask."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                wide = torch.zeros_like(parameter, dtype=torch.float64)
                state |= {"m": wide, "several": [wide.clone(), 1], "deep": {"m": wide.clone(), "name": "m"}}
                state["scale"] = torch.tensor(float("nan"), dtype=torch.float64)
                state["count"] = torch.tensor(2**40)
                state["codes"] = torch.zeros_like(parameter, dtype=torch.uint8)
                state["mask"] = torch.ones_like(parameter, dtype=torch.bool)
            state["count"] += 1
            state["codes"] += 1
            for tensor in (state["m"], state["several"][0], state["deep"]["m"]):
                tensor.mul_(0.9).add_(parameter.grad.double())
            parameter.sub_((state["m"] + state["several"][0] + state["deep"]["m"]).to(parameter.dtype), alpha=0.001)


class Hooked(Wide):
    """With a hook, as optimizers have that convert states of older versions."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
        self.register_load_state_dict_pre_hook(lambda _, state: state)


def made(kind: type[Wide], dtype: torch.dtype, steps: int = 0) -> tuple[torch.nn.Module, Wide]:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3).to(dtype)
    optimizer = kind(model.parameters())
    train(model, optimizer, range(steps))
    return model, optimizer


def train(model: torch.nn.Module, optimizer: Wide, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        parameter = next(model.parameters())
        values = torch.randn(5, 4, generator=torch.Generator().manual_seed(step)).to(parameter.dtype)
        model(values).float().square().sum().backward()
        optimizer.step()


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(itertools.starmap(same, zip(one, other, strict=True)))
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one.nan_to_num(7), other.nan_to_num(7))
    return bool(one == other)


@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize("kind", [Wide, Hooked])
def test_state_in_double_precision_is_restored_exactly(tmp_path: Path, kind: type[Wide], dtype: torch.dtype) -> None:
    model, optimizer = made(kind, dtype, 3)
    with Store.init(tmp_path / "store") as store, warnings.catch_warnings():
        store.save(capture(model, optimizer), step=3)
        warnings.simplefilter("error", CkstoreWarning)
        again, other = made(kind, dtype)
        report = restore(store, model=again, optimizer=other)

    assert report.inexact == ()
    assert same(other.state_dict(), optimizer.state_dict())
    for pair in ((model, optimizer), (again, other)):
        train(*pair, range(3, 9))
    assert same(again.state_dict(), model.state_dict())
    assert same(other.state_dict(), optimizer.state_dict())
    check_store(tmp_path / "store")


@pytest.mark.parametrize("kind", [Wide, Hooked])
@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
def test_where_the_parameters_are_not_loaded_the_report_names_what_torch_converted(
    tmp_path: Path, kind: type[Wide]
) -> None:
    with Store.init(tmp_path / "store") as store:
        store.save(capture(*made(kind, torch.float32, 3)), step=3)
        _, other = made(kind, torch.float32)
        report = restore(store, optimizer=other)

    said = [line for line in report.inexact if "converted" in line]
    assert any(line == "optimizer.state[0].m was converted: float64 to float32" for line in said)
    assert any("several" in line for line in said)
    assert any("deep" in line for line in said)


@pytest.mark.parametrize("kind", [Wide, Hooked])
@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
def test_where_the_parameters_are_converted_so_is_their_state_and_the_report_names_it(
    tmp_path: Path, kind: type[Wide]
) -> None:
    with Store.init(tmp_path / "store") as store:
        model, optimizer = made(kind, torch.float32, 3)
        store.save({"model": model, "optimizer": optimizer}, step=3)
        again, other = made(kind, torch.bfloat16)
        report = store.load_into({"model": again, "optimizer": other}, cast=True)

    (state, *_) = other.state.values()
    assert {state["m"].dtype, state["several"][0].dtype, state["deep"]["m"].dtype} == {torch.bfloat16}
    assert report.cast["optimizer.state[0].m"].startswith("float64 to bfloat16")
    assert report.cast["model.weight"].startswith("float32 to bfloat16")
    assert (state["count"].item(), state["codes"].dtype, state["mask"].dtype) == (2**40 + 3, torch.uint8, torch.bool)
    assert not [name for name in report.cast if name.endswith(("count", "codes", "mask"))]


def test_what_torch_makes_of_its_own_optimizers_is_unchanged(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    with Store.init(tmp_path / "store") as store:
        store.save({"model": model, "optimizer": optimizer}, step=1)
        again = torch.nn.Linear(4, 3)
        other = torch.optim.AdamW(again.parameters())
        with warnings.catch_warnings():
            warnings.simplefilter("error", CkstoreWarning)
            store.load_into({"model": again, "optimizer": other})
    assert same(other.state_dict(), optimizer.state_dict())
