"""Parts of a module that load in their own way: before anything else is touched, and undone if the whole is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from ckstore.errors import BadInput
from ckstore.tensors.targets.load_comparison import LoadRules
from ckstore.tensors.targets.module_parts import parts_of
from ckstore.tensors.targets.module_snapshot import ModuleSnapshot, kept_bytes
from tests.support.captures import Saved, differences
from tests.support.own_loaders import KINDS, Average, Derived, History, Quantized, Scales, Wary
from tests.support.states import assert_same


def values(module: nn.Module) -> dict[str, Any]:
    return {
        key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in module.state_dict().items()
    }


@pytest.mark.parametrize(
    "kind", ["linear", "norm", "instance norm", "lstm", "checkpointed", "average model", "quantized"]
)
def test_plain_parameters_and_buffers_are_filled_where_they_lie(kind: str) -> None:
    saved, target = KINDS[kind](), KINDS[kind]()

    assert parts_of(target, dict(saved.state_dict())).loaders == {}
    if kind != "quantized":
        plan = Saved(saved).load_into(target)

        assert plan.attempted == []
        assert len(plan.direct) == len(saved.state_dict())
        assert_same(values(saved), values(target))


LOADERS: list[tuple[str, dict[str, bool]]] = [
    ("scales", {"": False}),
    ("history", {"": True}),
    ("fused", {"": True}),
    ("derived", {"": True}),
    ("lazy", {"": True}),
    ("translating", {"": True}),
    ("spectral", {}),
    ("weight norm", {"": True}),
    ("checkpointed norm", {"": True}),
]


@pytest.mark.parametrize("kind, loaders", LOADERS)
def test_what_loads_in_its_own_way_is_known_by_its_methods_and_hooks(kind: str, loaders: dict[str, bool]) -> None:
    assert {prefix: one.whole for prefix, one in parts_of(KINDS[kind]()).loaders.items()} == loaders


def test_beside_a_part_that_loads_in_its_own_way_the_others_are_filled_where_they_lie() -> None:
    def make() -> nn.Module:
        return nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Sequential(Average(), nn.Linear(2, 2)), "c": Scales()})

    saved, target = make(), make()
    before = dict(target.named_parameters())

    plan = Saved(saved).load_into(target)

    assert len(plan.direct) == 4
    assert [len(storages) for storages in plan.attempted] == [1, 2]
    assert all(before[name] is one for name, one in target.named_parameters())


def test_an_old_norm_keeps_its_count_of_batches() -> None:
    saved = KINDS["old norm"]()
    target: Any = nn.BatchNorm1d(2)
    target.num_batches_tracked += 3

    Saved(saved).load_into(target)

    assert int(target.num_batches_tracked) == 3


def test_if_one_part_refuses_all_that_were_loaded_before_are_put_back() -> None:
    def make() -> dict[str, nn.Module]:
        return {"a": History(), "b": Scales(), "c": nn.Linear(2, 2), "d": Derived(), "e": Wary()}

    saved, target = Saved(make()), make()
    before = {key: values(module) for key, module in target.items()}

    with pytest.raises(BadInput, match=r"e: load_state_dict of .*Wary refused .* these scales .*nothing was loaded"):
        saved.plan(target).attempt(saved_memory(saved))

    assert_same(before, {key: values(module) for key, module in target.items()})


def saved_memory(saved: Saved) -> Any:
    return lambda storages: {storage: saved.memory(storage) for storage in storages}


def test_a_read_that_fails_leaves_nothing_of_what_was_read_before() -> None:
    target = nn.Sequential(Scales(), Average())
    saved = Saved(nn.Sequential(Scales(), Average()))
    before = values(target)
    asked: list[Any] = []

    def read(storages: Any) -> Any:
        asked.append(storages)
        if len(asked) == 2:
            raise OSError("the disk is gone")
        return saved_memory(saved)(storages)

    with pytest.raises(OSError, match="gone"):
        saved.plan(target).attempt(read)

    assert len(asked) == 2
    assert_same(before, values(target))


@pytest.mark.parametrize("hooked_first", [True, False])
def test_a_tensor_that_a_hook_changes_too_is_what_torch_makes_of_it(hooked_first: bool) -> None:
    def make() -> nn.Module:
        average, plain = Average(), nn.Linear(1, 2)
        average.weight = plain.bias
        return nn.Sequential(average, plain) if hooked_first else nn.Sequential(plain, average)

    saved, target = make(), make()
    twin = make()
    with torch.no_grad():
        for mine, other in zip(twin.parameters(), target.parameters(), strict=True):
            mine.copy_(other)

    Saved(saved).load_into(target)
    twin.load_state_dict(saved.state_dict())

    assert_same(values(twin), values(target))


def test_a_hook_runs_once_and_finds_what_was_loaded() -> None:
    saved, target = Derived(), Derived()

    Saved(saved).load_into(target)

    assert target.loads == 1
    assert target.sum == saved.inner.weight.sum().item()


def test_a_hook_is_given_the_names_that_its_part_has() -> None:
    prefixes: list[str] = []

    def make() -> nn.Module:
        return nn.ModuleDict({"a": nn.Sequential(nn.Identity(), nn.Linear(1, 1))})

    target: Any = make()
    target["a"][1].register_load_state_dict_pre_hook(lambda _, state, prefix, *__: prefixes.append(prefix))

    Saved(make()).load_into(target)

    assert prefixes == ["a.1."]


def test_a_snapshot_puts_back_values_shapes_attributes_and_extra_state() -> None:
    history: Any = History()
    scales, lazy = Scales(), nn.LazyLinear(2)
    part, known = nn.ModuleList([history, scales, lazy]), nn.ModuleList([history, scales])
    scales.meta = {"seen": [1]}
    history.weight.scale, history.note, past = torch.ones(1), ["kept"], history.past
    before = values(known)
    assert kept_bytes(part, whole=True) == 4 * (2 + 1 + 4)

    snapshot = ModuleSnapshot(part, whole=True)
    with torch.no_grad():
        history.weight.mul_(2)
        history.weight.scale.add_(1)
        history.past.data = torch.ones(7)
        history.more = nn.Parameter(torch.ones(1))
        history.note.append("lost")
        scales.meta["seen"].append(2)
        lazy(torch.ones(1, 3))
    snapshot.put_back()

    assert_same(before, values(known))
    assert history.past is past
    assert (history.weight.scale.tolist(), history.note) == ([1], ["kept"])
    assert nn.parameter.is_lazy(lazy.weight)


def test_parts_of_a_quantized_weight_are_named_and_the_weight_is_left_alone() -> None:
    target = Quantized()
    before = values(target)

    plan = Saved(Quantized()).load_into(target)

    assert differences(plan) == {
        "unexpected": [r"weight\.absmax", r"weight\.quant_state"],
        "mismatched": {"weight": "a plain tensor wanted, found a tensor with parts"},
        "partial": {"weight": "torch.nn.parameter.Parameter"},
    }
    assert_same(before, values(target))


def test_tied_parameters_on_the_meta_device_are_assigned_by_all_their_names() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(2, 2), nn.Linear(2, 2), Average()
            self.b.weight = self.a.weight
            self.c.weight = self.a.bias

    saved = Tied()
    with torch.device("meta"):
        target = Tied()
    state = saved.state_dict()
    del state["b.weight"]
    target.c._load_state_dict_pre_hooks.clear()

    plan = Saved(state).load_into(target, LoadRules(assign=True))

    assert differences(plan) == {}
    assert target.b.weight is target.a.weight
    assert target.c.weight is target.a.bias
    assert_same(values(saved), values(target))


def test_a_part_that_loads_in_its_own_way_gets_memory_too() -> None:
    saved = nn.Sequential(Scales(), nn.Linear(2, 2))
    with torch.device("meta"):
        target = nn.Sequential(Scales(), nn.Linear(2, 2)).bfloat16()

    plan = Saved(saved).load_into(target, LoadRules(assign=True, cast=True))

    assert sorted(plan.differences.cast) == [r"0\.weight", r"1\.bias", r"1\.weight"]
    assert target[0].weight.dtype is torch.bfloat16
    assert isinstance(target[0].weight, nn.Parameter)
    assert torch.equal(target[0].weight, saved[0].weight.bfloat16())  # type: ignore[arg-type]


def test_a_part_with_a_hook_does_not_convert_silently() -> None:
    target = Average().bfloat16()

    plan = Saved(Average()).plan(target)

    assert plan.differences.dtypes == {"weight": "bfloat16 wanted, found float32"}
