"""Loading into what exists: straight into its memory where that is possible, and never in part."""

from __future__ import annotations

import re
from collections import OrderedDict, defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given

from ckstore.errors import BadInput
from ckstore.tensors.targets.into import plan_into
from tests.support.captures import Saved, differences
from tests.support.states import assert_same, states, tensor_bits


def zeroed(value: Any) -> Any:
    """Return a value of the same shape with other content, in memory of its own; nothing tied."""
    if isinstance(value, torch.Tensor):
        flat = torch.zeros(value.numel() * value.element_size(), dtype=torch.uint8)
        return flat.view(value.dtype).reshape(value.shape)
    if isinstance(value, np.ndarray):
        return np.zeros(value.shape, value.dtype)
    if isinstance(value, dict):
        out = type(value)({key: zeroed(item) for key, item in value.items()})
        if isinstance(value, OrderedDict):
            vars(out).update(vars(value))
        return out
    if isinstance(value, list | tuple):
        return type(value)(zeroed(item) for item in value)
    return 0


def without_ties(value: Any) -> Any:
    """Return a copy in which no two tensors share memory, all in row-major order."""
    if isinstance(value, torch.Tensor):
        if not value.numel():
            return zeroed(value)
        flat = torch.frombuffer(bytearray(tensor_bits(value)), dtype=torch.uint8)
        return flat.view(value.dtype).reshape(value.shape)
    if isinstance(value, np.ndarray):
        return np.array(value, order="C")
    if isinstance(value, dict):
        new = type(value)({key: without_ties(item) for key, item in value.items()})
        if isinstance(value, OrderedDict):
            vars(new).update(vars(value))
        return new
    return type(value)(map(without_ties, value)) if isinstance(value, list | tuple) else value


@pytest.mark.property
@given(state=states())
def test_a_target_of_the_same_shape_takes_every_value(state: Any) -> None:
    holder = {"state": state}
    target = zeroed(holder)

    plan = Saved(holder).load_into(target)

    assert differences(plan) == {}
    assert_same(without_ties(holder), target)


@pytest.mark.property
@given(state=states())
def test_an_empty_dict_takes_everything(state: Any) -> None:
    holder = {"state": state}
    target: dict[str, Any] = {}

    plan = Saved(holder).load_into(target)

    assert differences(plan) == {}
    assert_same(holder, target)


@pytest.mark.property
@given(state=states())
def test_planning_touches_nothing(state: Any) -> None:
    target = zeroed({"state": state})
    before = without_ties(target)

    Saved({"state": state}).plan(target)

    assert_same(before, target)


@pytest.mark.property
@given(state=states())
def test_a_restored_state_is_read_into_without_a_second_copy(state: Any) -> None:
    saved = Saved({"state": state})
    target = saved.load()

    plan = saved.plan(target)

    wanted = {
        leaf.storage
        for leaf in saved.manifest.leaves
        if leaf.kind == "torch" and 0 not in leaf.shape and leaf.strides is None and leaf.offset == 0
        if saved.manifest.storages[leaf.storage].nbytes == np.prod(leaf.shape) * _itemsize(leaf.dtype)
    }
    assert wanted <= set(plan.direct)


def _itemsize(dtype: str) -> int:
    size: int = getattr(torch, dtype).itemsize
    return size


def test_tensors_stay_where_they_are() -> None:
    target = {"a": torch.zeros(3), "deep": [{"b": torch.zeros(2, 2)}], "n": np.zeros(2)}
    tensor, array = target["a"], target["n"]
    assert isinstance(tensor, torch.Tensor)

    plan = Saved({"a": torch.ones(3), "deep": [{"b": torch.ones(2, 2)}], "n": np.ones(2)}).load_into(target)

    assert target["a"] is tensor
    assert target["n"] is array
    assert sorted(plan.direct) == [0, 1, 2]
    assert plan.indirect == set()
    assert tensor.tolist() == [1, 1, 1]


def test_parameters_that_require_grad_are_filled() -> None:
    parameter = torch.nn.Parameter(torch.zeros(3))
    transposed = torch.nn.Parameter(torch.zeros(2, 3).t())

    Saved({"p": torch.ones(3), "t": torch.ones(3, 2)}).load_into({"p": parameter, "t": transposed})

    assert parameter.tolist() == [1, 1, 1]
    assert transposed.tolist() == [[1, 1]] * 3
    assert parameter.requires_grad


def test_a_target_laid_out_otherwise_is_filled_by_copying() -> None:
    values = torch.arange(6.0).reshape(2, 3)
    target = {"t": torch.zeros(3, 2).t(), "slice": torch.zeros(2, 10)[:, 2:5], "conj": torch.zeros(2, 3, 2)[..., 0]}

    plan = Saved(dict.fromkeys(target, values)).load_into(target)

    assert plan.direct == {}
    assert all(torch.equal(tensor, values) for tensor in target.values())


def test_a_target_of_channels_last_takes_channels_last_directly() -> None:
    values = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    target = torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)

    plan = Saved({"a": values}).load_into({"a": target})

    assert list(plan.direct) == [0]
    assert torch.equal(target, values)


def test_memory_between_the_elements_is_left_alone() -> None:
    values = torch.ones(4, 4)[:, ::2]
    memory = torch.zeros(4, 4)

    plan = Saved([values, values]).load_into([memory[:, ::2], memory[:, ::2]])

    assert plan.direct == {}
    assert memory.tolist() == [[1, 0, 1, 0]] * 4


def test_memory_around_a_slice_is_left_alone() -> None:
    memory = torch.zeros(10)

    plan = Saved({"a": torch.ones(3)}).load_into({"a": memory[4:7]})

    assert list(plan.direct) == [0]
    assert memory.tolist() == [0, 0, 0, 0, 1, 1, 1, 0, 0, 0]


def test_tied_tensors_go_straight_to_tied_targets() -> None:
    values = torch.rand(8)
    memory = torch.zeros(8)

    plan = Saved({"a": values, "b": values, "c": values[2:4]}).load_into({"a": memory, "b": memory, "c": memory[2:4]})

    assert list(plan.direct) == [0]
    assert torch.equal(memory, values)


def test_tied_tensors_fill_targets_that_are_not_tied() -> None:
    values = torch.rand(4)
    target = {"a": torch.zeros(4), "b": torch.zeros(4)}

    plan = Saved({"a": values, "b": values}).load_into(target)

    assert plan.copied == [0]
    assert torch.equal(target["a"], values)
    assert torch.equal(target["b"], values)


def test_two_storages_never_go_straight_to_one_memory() -> None:
    memory = torch.zeros(4)
    state = {"a": torch.ones(4), "b": torch.full((2,), 2.0), "c": torch.full((2,), 3.0)}

    plan = Saved(state).load_into({"a": memory, "b": memory[1:3], "c": memory[2:4]})

    assert len(plan.direct) == 1
    assert memory.tolist() == [1, 2, 3, 3]


def test_copying_keeps_the_bits_of_a_bool_that_is_neither_0_nor_1() -> None:
    stored = torch.tensor([[2, 1], [0, 7]], dtype=torch.uint8).view(torch.bool)
    target = torch.zeros(2, 2, dtype=torch.bool).t()

    Saved(stored).load_into(target)

    assert tensor_bits(target) == bytes([2, 1, 0, 7])


def test_inference_tensors_are_filled() -> None:
    with torch.inference_mode():
        target = {"a": torch.zeros(2), "t": torch.zeros(2, 2).t()}

    Saved({"a": torch.ones(2), "t": torch.ones(2, 2)}).load_into(target)

    assert target["a"].tolist() == [1, 1]
    assert target["t"].tolist() == [[1, 1], [1, 1]]


def test_a_conjugate_target_shows_the_loaded_values() -> None:
    target = {"a": torch.zeros(2, dtype=torch.complex64).conj()}

    Saved({"a": torch.tensor([1 + 2j, 3j])}).load_into(target)

    assert target["a"].tolist() == [1 + 2j, 3j]


def test_filled_tensors_count_as_modified() -> None:
    target = {"direct": torch.zeros(2), "copied": torch.zeros(2, 2).t()}
    before = {name: tensor._version for name, tensor in target.items()}

    Saved({"direct": torch.ones(2), "copied": torch.ones(2, 2)}).load_into(target)

    assert all(target[name]._version > version for name, version in before.items())


def test_plain_values_are_replaced_also_in_tuples() -> None:
    pair = (torch.zeros(2), 1)
    target = {"step": 0, "list": [torch.zeros(1), "old"], "pair": pair, "none": None}

    Saved({"step": 5, "list": [torch.ones(1), "new"], "pair": (torch.ones(2), 9), "none": [1]}).load_into(target)

    assert target["step"] == 5
    assert target["list"][1] == "new"  # type: ignore[index]
    assert target["pair"][0] is pair[0]  # type: ignore[index]
    assert target["pair"][1] == 9  # type: ignore[index]
    assert pair[0].tolist() == [1, 1]
    assert target["none"] == [1]


def test_a_list_of_plain_values_takes_as_many_as_were_stored() -> None:
    history = [1, 2]

    plan = Saved({"history": [4, 5, 6]}).load_into({"history": history})

    assert history == [4, 5, 6]
    assert differences(plan) == {}


def test_what_only_one_side_has_is_named_and_left_alone() -> None:
    target = {"a": {"x": torch.zeros(1), "old": 1}, "list": [torch.zeros(1), torch.zeros(1)], True: 3, "e": 2}
    state = {"a": {"x": torch.ones(1), "new": 2}, "list": [torch.ones(1)], 7: 1, "f.g": torch.ones(1)}

    plan = Saved(state).load_into(target)

    missing, unexpected = ["a.old", "list[1]", "[True]", "e"], ["a.new", "[7]", r"f\.g"]
    assert differences(plan) == {"missing": missing, "unexpected": unexpected}
    assert target["a"] == {"x": torch.ones(1), "old": 1}
    assert target["e"] == 2
    assert set(target) == {"a", "list", True, "e"}


MISMATCHES: list[tuple[Any, Any, str]] = [
    (torch.zeros(2, 3), torch.ones(3, 2), r"shape \[2, 3\] float32 wanted, found shape \[3, 2\] float32"),
    (torch.zeros(2), torch.ones(2).double(), "float32 wanted, found float64"),
    (torch.zeros(2), 3, r"shape \[2\] float32 wanted, found int"),
    (torch.zeros(2), None, r"shape \[2\] float32 wanted, found None"),
    (torch.zeros(2), 0.5, r"shape \[2\] float32 wanted, found float"),
    (torch.zeros(2), "x" * 5000, r"shape \[2\] float32 wanted, found str"),
    (torch.zeros(2), {"a": 1}, r"shape \[2\] float32 wanted, found a dict"),
    (torch.zeros(2), np.ones(2), r"shape \[2\] float32 wanted, found a NumPy array of shape \[2\] <f8"),
    (torch.zeros(2, device="meta"), torch.ones(2), "on meta"),
    (
        torch.zeros(1).expand(2),
        torch.ones(2),
        "a plain tensor with memory wanted, found one whose elements share memory in the target",
    ),
    (
        torch.eye(2).to_sparse(),
        torch.ones(2, 2),
        "a plain tensor with memory wanted, found one of layout torch.sparse_coo in the target",
    ),
    (torch.zeros(6).as_strided((2, 3), (5, 0)), torch.ones(2, 3), "a plain tensor with memory wanted"),
    (torch.zeros(9).as_strided((3, 3), (2, 2)), torch.ones(3, 3), "a plain tensor with memory wanted"),
    (torch.nn.UninitializedBuffer(), torch.ones(2), "a plain tensor with memory wanted, found .*UninitializedBuffer"),
    ({"a": torch.zeros(1)}, [1], "a dict wanted, found a list"),
    ([torch.zeros(1)], torch.ones(1), r"a list wanted, found shape \[1\] float32"),
]


@pytest.mark.parametrize("target, found, message", MISMATCHES)
def test_what_does_not_fit_is_told_and_left_alone(target: Any, found: Any, message: str) -> None:
    holder = {"w": target}
    saved = Saved({"w": found})

    plan = saved.plan(holder)

    found = plan.differences
    why = {**found.mismatched, **found.dtypes, **dict.fromkeys(found.meta, "on meta")}
    assert list(why) == ["w"]
    assert re.match(message, why["w"])
    saved.load_into(holder)
    assert holder["w"] is target


def test_an_array_that_does_not_fit_is_replaced() -> None:
    target: dict[str, Any] = {"grown": np.zeros(2), "frozen": np.frombuffer(b"ab", np.uint8), "kind": np.zeros(1)}

    Saved({"grown": np.ones(3), "frozen": np.ones(2, np.uint8), "kind": torch.ones(1)}).load_into(target)

    assert target["grown"].tolist() == [1, 1, 1]
    assert target["frozen"].tolist() == [1, 1]
    assert isinstance(target["kind"], torch.Tensor)


def test_an_array_in_another_order_is_filled_by_copying() -> None:
    array = np.zeros((2, 3), order="F")

    plan = Saved({"n": np.arange(6.0).reshape(2, 3)}).load_into({"n": array})

    assert plan.copied == [0]
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_the_target_may_be_a_tensor_a_list_or_an_object() -> None:
    tensor, items, module = torch.zeros(2), [torch.zeros(2)], torch.nn.Linear(1, 1)

    Saved(torch.ones(2)).load_into(tensor)
    Saved([torch.ones(2)]).load_into(items)
    Saved(torch.nn.Linear(1, 1)).load_into(module)

    assert tensor.tolist() == [1, 1]
    assert items[0].tolist() == [1, 1]


@pytest.mark.parametrize("target", [3, "a", None, (1, 2), object()])
def test_a_target_that_cannot_be_filled_is_refused(target: Any) -> None:
    with pytest.raises(BadInput, match="the target must be a dict, a list, a tensor or an object"):
        Saved((5, 6)).plan(target)


def test_a_target_that_contains_itself_is_refused() -> None:
    target: list[Any] = []
    target.append(target)

    with pytest.raises(BadInput, match="a: the target contains itself"):
        Saved({"a": [1]}).plan({"a": target})


def test_a_dict_of_another_class_keeps_it() -> None:
    target: defaultdict[str, int] = defaultdict(int, a=0)

    Saved({"a": 5}).load_into({"counts": {}} and target)

    assert target == {"a": 5}
    assert type(target) is defaultdict


class Recorder:
    """An object whose state is a copy of what it holds."""

    def __init__(self, **held: Any) -> None:
        self.held = held
        self.given: Any = None

    def state_dict(self) -> dict[str, Any]:
        return self.held

    def load_state_dict(self, state: Any) -> None:
        self.given = state


class Reader(Recorder):
    """Loses its place when it is asked for its state, as the loaders of torchdata do."""

    def state_dict(self) -> dict[str, Any]:
        raise AssertionError("only a save asks for a state")


def test_an_object_is_handed_its_value_and_asked_for_nothing() -> None:
    own = torch.zeros(3)
    target = Reader(w=own, gone=torch.zeros(1), step=1)

    plan = Saved({"o": Recorder(w=torch.ones(4), new=torch.ones(2), step=4, n=np.ones(2))}).load_into({"o": target})

    assert differences(plan) == {}
    assert own.tolist() == [0, 0, 0]
    assert_same({"w": torch.ones(4), "new": torch.ones(2), "step": 4, "n": np.ones(2)}, target.given)


class Reporting(Reader):
    """Says which keys it did not take."""

    def load_state_dict(self, state: Any) -> Any:
        return torch.nn.modules.module._IncompatibleKeys(["mine"], list(state))


def test_keys_that_an_object_reports_are_an_error() -> None:
    with pytest.raises(BadInput, match=r"o: load_state_dict of .*Reporting refused .*: missing mine; unexpected a, b"):
        Saved({"o": {"a": 1, "b": 2}}).load_into({"o": Reporting()})


def test_an_object_that_the_checkpoint_lacks_is_missing_and_not_called() -> None:
    target = Recorder(w=torch.zeros(1))

    plan = Saved({"a": 1}).load_into({"a": 2, "o": target})

    assert plan.differences.missing == ["o"]
    assert target.given is None


def test_tied_tensors_come_tied_to_an_object() -> None:
    values = torch.rand(3)
    target = Recorder()

    Saved({"o": Recorder(a=values, b=values, c=values[1:], d=values[:2])}).load_into({"o": target})

    assert_same([values, values, values[1:], values[:2]], [target.given[name] for name in "abcd"])


def test_without_sizes_a_storage_ends_with_its_last_element() -> None:
    saved = Saved({"a": torch.ones(3), "s": "x" * 5000})

    plan = plan_into({"a": torch.zeros(3), "s": ""}, saved.manifest.state, saved.manifest.leaves)
    plan.prepare()

    assert (list(plan.direct), plan.indirect) == ([0], {1})


def test_a_storage_that_is_longer_than_its_leaf_is_not_read_into_the_target() -> None:
    saved = Saved({"a": torch.ones(3)})

    plan = plan_into({"a": torch.zeros(3)}, saved.manifest.state, saved.manifest.leaves)
    plan.prepare([16])

    assert (plan.direct, plan.copied) == ({}, [0])


class Meter(dict[str, float]):
    """A dict that says itself how it is stored."""

    def state_dict(self) -> dict[str, Any]:
        return {"values": dict(self)}

    def load_state_dict(self, state: Any) -> None:
        self.clear()
        self.update(state["values"])


def test_a_container_with_a_state_of_its_own_is_an_object() -> None:
    target = {"deep": [Meter(loss=1.0)]}

    saved = Saved({"deep": [Meter(loss=2.0)]})
    saved.load_into(target)

    assert saved.load() == {"deep": [{"values": {"loss": 2.0}}]}
    assert target == {"deep": [{"loss": 2.0}]}
    assert type(target["deep"][0]) is Meter
