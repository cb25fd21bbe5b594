"""A law of loads into modules: after one a module is what `load_state_dict` of torch makes of it, or as it was."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, note, settings
from hypothesis import strategies as st
from torch import nn

from ckstore import Store
from ckstore.errors import CkstoreError, DoesNotFit
from tests.ops.read.test_load_differences import bits
from tests.support.examples import examples
from tests.support.own_loaders import KINDS, Average, History, Scales

Spec = list[str]


def made(spec: Spec, seed: int) -> nn.Module:
    """Make a module of parts, or of one alone, with other values for each seed."""
    torch.manual_seed(seed)
    parts = [KINDS[kind]() for kind in spec]
    module = parts[0] if len(parts) == 1 else nn.Sequential(parts[0], nn.ModuleDict({"a": nn.Sequential(*parts[1:])}))
    for part in module.modules():
        if isinstance(part, nn.LazyLinear) and seed == SAVED:
            part(torch.rand(1, 2))
        if isinstance(part, Scales | History):
            part.change()
    return module


SAVED, TARGET = 1, 2
KIND = st.sampled_from(sorted(KINDS))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Spec, Spec]:
    """Draw what is saved, and a target that is like it, or differs in a part."""
    saved = draw(st.lists(KIND, min_size=1, max_size=3))
    target = [kind if draw(st.integers(0, 4)) else draw(KIND) for kind in saved]
    return saved, target


def held(module: nn.Module) -> Any:
    """Return all bits that a module shows and keeps, and which tensors it has."""
    kept = [{key: bits(value) for key, value in vars(part).items() if key in PLAIN} for part in module.modules()]
    return bits(dict(module.state_dict())), kept


PLAIN = {"meta", "loads", "sum", "scale", "packed"}


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store for all examples: each is a step of its own."""
    return Store.init(tmp_path_factory.mktemp("own") / "store")


def load_by_torch(module: nn.Module, state: Any, *, strict: bool) -> Any:
    try:
        module.load_state_dict(copy.deepcopy(state), strict=strict)
    except Exception:
        return None
    return held(module)


@pytest.mark.property
@settings(max_examples=examples(75), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pair=pairs(), strict=st.booleans())
@example(pair=(["lstm", "quantized"], ["lstm", "quantized"]), strict=False)
@example(pair=(["old norm", "checkpointed"], ["norm", "checkpointed"]), strict=True)
def test_a_module_is_what_torch_makes_of_it_or_as_it_was(pair: tuple[Spec, Spec], strict: bool, many: Store) -> None:
    saved, target = made(pair[0], SAVED), made(pair[1], TARGET)
    state, before = saved.state_dict(), held(target)
    wanted = load_by_torch(made(pair[1], TARGET), state, strict=strict)
    info = many.save({"model": saved})

    try:
        report = many.load_into({"model": target}, info, strict=strict)
    except CkstoreError as error:
        note(str(error))
        assert held(target) == before
        assert wanted is None or pair[0] != pair[1] or may_refuse(pair[0], wanted)
        return
    if report.not_loaded:
        assert not strict
        return
    assert held(target) == wanted


def may_refuse(spec: Spec, wanted: Any) -> bool:
    """Whether what torch loads may be refused.

    Of values that lack what they are quantized by, and of a module with no values, nothing is loaded. And with torch a
    hook of one part may clear what is missing in another.
    """
    return "quantized" in spec or not wanted[0] or {"leaving", "forgiving"} <= set(spec)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"wary", "quantized", "adding", "leaving", "nothing"}))
def test_every_kind_that_torch_loads_is_loaded(kind: str, store: Store) -> None:
    saved, target, twin = made([kind], SAVED), made([kind], TARGET), made([kind], TARGET)
    store.save({"model": saved}, step=1)

    wanted = load_by_torch(twin, saved.state_dict(), strict=True)
    report = store.load_into({"model": target}, 1)

    assert wanted is not None or kind == "old norm"
    assert wanted is None or held(target) == wanted
    assert str(report) == "main@1 loaded"


@pytest.mark.parametrize(
    "kind, missing, unexpected",
    [
        ("quantized", (), ("model.weight.absmax", "model.weight.quant_state")),
        ("adding", (), ("model.added",)),
        ("leaving", ("model.base",), ()),
    ],
)
def test_what_a_module_itself_would_not_load_is_named(
    kind: str, missing: tuple[str, ...], unexpected: tuple[str, ...], store: Store
) -> None:
    saved, target = made([kind], SAVED), made([kind], TARGET)
    store.save({"model": saved}, step=1)
    before = held(target)

    with pytest.raises(DoesNotFit) as caught:
        store.load_into({"model": target}, 1)

    assert (caught.value.missing, caught.value.unexpected) == (missing, unexpected)
    assert held(target) == before


def test_what_parts_report_is_a_difference_and_all_parts_are_as_they_were(store: Store) -> None:
    def make(seed: int) -> nn.Module:
        return nn.ModuleDict({"a": made(["scales"], seed), "b": made(["history"], seed), "c": made(["fused"], seed)})

    state, target = make(SAVED).state_dict(), make(TARGET)
    del state["b.weight"]
    state["c.w"] = torch.ones(1)
    store.save({"model": state}, step=1)
    before = held(target)

    with pytest.raises(DoesNotFit) as caught:
        store.load_into({"model": target}, 1)

    assert (caught.value.missing, caught.value.unexpected) == (("model.b.weight",), ("model.c.w",))
    assert held(target) == before

    report = store.load_into({"model": target}, 1, strict=False)

    assert (report.missing, report.unexpected) == (("model.b.weight",), ("model.c.w",))
    after = target.state_dict()
    assert bits({**state, "b.weight": after["b.weight"]}) == bits({**after, "c.w": state["c.w"]})


def test_a_parameter_of_another_shape_is_named_also_where_its_part_loads_in_its_own_way(store: Store) -> None:
    class Wide(Average):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.rand(3)), nn.Parameter(torch.rand(2))

    saved, target = Average(), Wide()
    saved.bias = nn.Parameter(torch.zeros(2))
    store.save({"model": saved}, step=1)
    weight = target.weight.detach().clone()

    with pytest.raises(DoesNotFit) as caught:
        store.load_into({"model": target}, 1)
    report = store.load_into({"model": target}, 1, strict=False)

    why = {"model.weight": "shape [3] float32 wanted, found shape [2] float32"}
    assert (caught.value.mismatched, report.not_loaded) == (why, why)
    assert torch.equal(target.weight, weight)
    assert target.bias.tolist() == [0, 0]


def test_names_of_a_wrapper_are_suggested_also_where_the_model_has_hooks(store: Store) -> None:
    saved, target = nn.Sequential(made(["derived"], SAVED)), made(["derived"], TARGET)
    store.save({"model": saved}, step=1)
    before = held(target)

    with pytest.raises(DoesNotFit) as caught:
        store.load_into({"model": target}, 1, strict=False)
    assert held(target) == before
    store.load_into({"model": target}, 1, rename={"0.": ""})

    assert "rename={'0.': ''} makes all names fit" in str(caught.value.hint)
    assert bits(target.state_dict()["inner.weight"]) == bits(saved.state_dict()["0.inner.weight"])


def test_only_the_selected_parts_are_given_values(store: Store) -> None:
    saved = nn.ModuleDict({"a": made(["scales"], SAVED), "b": made(["wary"], SAVED)})
    target = nn.ModuleDict({"a": made(["scales"], TARGET), "b": made(["wary"], TARGET)})
    store.save({"model": saved}, step=1)
    before = held(target["b"])

    report = store.load_into({"model": target}, 1, select="model.a")

    assert (report.missing, report.unexpected) == ((), ())
    assert held(target["a"]) == held(saved["a"])
    assert held(target["b"]) == before


def test_a_weight_of_four_bits_is_never_loaded_without_its_quantization(store: Store) -> None:
    saved, target = made(["quantized"], SAVED), made(["quantized"], TARGET)
    store.save({"model": saved}, step=1)
    before = held(target)

    with pytest.raises(DoesNotFit, match="its parts: create the weight from the result of load") as caught:
        store.load_into({"model": target}, 1)
    with pytest.raises(DoesNotFit):
        store.load_into({"model": target}, 1, strict=False)

    assert "strict=False" not in str(caught.value.hint)
    assert held(target) == before
