"""Objects, enumerations, classes and functions of a state: kept by names, and given back where that is allowed."""

from __future__ import annotations

import enum
import math
import sys
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, NamedTuple

import pytest
import torch

import ckstore
from ckstore.errors import BadInput, CannotStore
from ckstore.tensors.named import safe_classes
from ckstore.tensors.state_capture import capture
from ckstore.tensors.state_restore import build
from tests.support.captures import Saved
from tests.support.states import assert_same

INT4: Any = getattr(torch, "int4")  # noqa: B009 - a dtype without tensors; the stubs of torch lack it


class Color(enum.Enum):
    RED = 1


class Access(enum.Flag):
    READ = 1
    WRITE = 2


def never(*_: object) -> Any:
    raise AssertionError("this is not to be called")


@dataclass(frozen=True)
class Config:
    dtype: torch.dtype
    color: Color = Color.RED
    inner: Any = None
    twice: int = field(init=False, default=0)
    __setstate__ = __reduce__ = __reduce_ex__ = never

    def __post_init__(self) -> None:
        object.__setattr__(self, "computed", [self.dtype])


@dataclass(slots=True)
class Slotted:
    weight: torch.Tensor


class Range(NamedTuple):
    low: float
    high: float


@pytest.fixture(autouse=True)
def only_these(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safe_classes, "_allowed", {})


def made(node: Any) -> Any:
    state: Any = build(["dict", [["a", node]]], (), never)
    return state["a"]


def test_a_member_of_an_enumeration_is_kept_without_being_allowed() -> None:
    state = {"a": Color.RED, "b": [HTTPStatus.OK], "c": Access.WRITE}

    saved = Saved(state)

    assert saved.manifest.state[1][0][1] == ["enum", f"{__name__}.Color", "RED"]
    assert saved.load() == state
    assert saved.load()["a"] is Color.RED


def test_a_dataclass_comes_back_with_its_fields_and_nothing_of_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    ckstore.add_safe_globals([Config, Slotted])
    state = {"config": Config(INT4, inner=(Slotted(torch.ones(2)), None))}
    saved = Saved(state)
    monkeypatch.setattr(Config, "__init__", never)
    monkeypatch.setattr(Config, "__post_init__", never)

    back = saved.load()["config"]

    assert type(back) is Config
    assert (back.dtype, back.color, back.twice, vars(back)["computed"]) == (INT4, Color.RED, 0, [INT4])
    assert_same(torch.ones(2), back.inner[0].weight)
    assert [leaf.name for leaf in saved.manifest.leaves] == ["config.inner[0].weight"]


def test_an_object_is_selected_as_a_whole() -> None:
    ckstore.add_safe_globals([Slotted, Config])
    saved = Saved({"a": Slotted(torch.ones(2)), "b": Config(torch.int8), "c": 1})

    assert saved.load(keep=lambda name: name == "c") == {"c": 1}
    with pytest.raises(BadInput, match=r"b is one object, of the parts dtype, .*select all of them"):
        saved.load(keep=lambda name: name == "b.dtype")


def test_a_named_tuple_that_is_allowed_comes_back_as_one() -> None:
    assert Saved([Range(1.0, 2.0)]).load() == [(1.0, 2.0)]
    ckstore.add_safe_globals([Range])

    back = Saved([Range(1.0, 2.0)]).load()[0]

    assert type(back) is Range
    assert back == Range(1.0, 2.0)


def test_classes_and_functions_that_are_allowed_are_kept_by_name() -> None:
    with pytest.raises(CannotStore, match="or store its name"):
        capture({"f": math.sqrt})
    ckstore.add_safe_globals([math.sqrt, Config])

    assert Saved({"f": math.sqrt, "c": Config}).load() == {"f": math.sqrt, "c": Config}
    assert ckstore.get_safe_globals() == [math.sqrt, Config]


def test_what_torch_was_told_of_is_allowed_too() -> None:
    with torch.serialization.safe_globals([Slotted, (Range, "old.Range")]):
        assert type(Saved([Slotted(torch.ones(1))]).load()[0]) is Slotted
        assert made(["object", [["low", 1], ["high", 2]], "old.Range"]) == Range(1, 2)
    with pytest.raises(CannotStore, match=r"import Slotted; ckstore.add_safe_globals\(\[Slotted\]\)"):
        capture([Slotted(torch.ones(1))])


def test_a_class_that_moved_is_found_by_the_name_that_it_had() -> None:
    ckstore.add_safe_globals([(Range, "old.place.Range")])

    assert type(made(["object", [["low", 1], ["high", 2]], "old.place.Range"])) is Range


@pytest.mark.parametrize(
    "node",
    [
        ["global", "os.system"],
        ["global", "builtins.eval"],
        ["global", f"{__name__}.Color"],
        ["object", [["args", None]], "builtins.object"],
        ["object", [], "subprocess.Popen"],
        ["object", [["dtype", None]], f"{__name__}.Config"],
        ["enum", "os.path", "join"],
        ["enum", f"{__name__}.Config", "RED"],
        ["enum", "antigravity.Color", "RED"],
        ["enum", f"{__name__}.Color.RED", "RED"],
        ["enum", ".", "RED"],
        ["enum", f"{__name__}.Hidden", "RED"],
        ["enum", f"{__name__}.Computed.color", "RED"],
    ],
)
def test_nothing_is_imported_called_or_given_back_because_of_its_name(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules[__name__]
    monkeypatch.setattr(module, "Hidden", enum.Enum("Other", "RED"), raising=False)
    computing = type("Meta", (type,), {"color": property(never)})
    monkeypatch.setattr(module, "Computed", computing("Computed", (), {}), raising=False)
    monkeypatch.setattr(module, "__getattr__", never, raising=False)
    before = set(sys.modules)

    with pytest.raises(BadInput, match=r"^a needs .*, which this program has not allowed \(if you trust it: from "):
        made(node)

    assert set(sys.modules) == before


@pytest.mark.parametrize(
    "node, why",
    [
        (["enum", f"{__name__}.Color", "GREEN"], "has no member GREEN"),
        (["object", [["low", 1]], f"{__name__}.Range"], "is not made of the fields low"),
        (["object", [["high", 1], ["low", 1]], f"{__name__}.Range"], "is not made of the fields high, low"),
        (["object", [["color", 1]], f"{__name__}.Config"], "is not made of the fields color"),
        (["object", [["a", 1]], "math.sqrt"], "is not made of the fields a"),
        (["object", [], "collections.OrderedDict"], r"is not made of the fields \(none\)"),
        (["parts", [], f"{__name__}.Config", ["tuple", [None, ["tuple", []], ["tuple", []]]]], "do not fit"),
    ],
)
def test_what_is_allowed_and_does_not_fit_is_refused(node: Any, why: str) -> None:
    ckstore.add_safe_globals([Config, Range, math.sqrt, OrderedDict])

    with pytest.raises(BadInput, match=f"a.*{why}"):
        made(node)


def test_only_what_has_a_name_can_be_allowed() -> None:
    with pytest.raises(BadInput, match="takes classes and functions, got 7"):
        ckstore.add_safe_globals([Config, 7])
    assert ckstore.get_safe_globals() == []


def test_an_object_that_contains_itself_or_lacks_a_field_is_refused() -> None:
    ckstore.add_safe_globals([Config, Slotted])
    endless = Config(torch.int8, inner=[])
    endless.inner.append(endless)

    with pytest.raises(CannotStore, match=r"a.inner\[0\]: contains itself"):
        capture({"a": endless})
    with pytest.raises(CannotStore, match="cannot be stored, because the field weight has no value"):
        capture({"a": object.__new__(Slotted)})


def test_threads_add_at_once_and_none_is_lost() -> None:
    kinds = [type(f"K{i}", (), {}) for i in range(200)]
    threads = [threading.Thread(target=ckstore.add_safe_globals, args=([kind],)) for kind in kinds]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert set(ckstore.get_safe_globals()) == set(kinds)


@pytest.mark.parametrize("value", [INT4, torch.qint8, torch.strided, torch.sparse_coo, torch.channels_last])
def test_dtypes_that_no_tensor_of_a_state_has_and_layouts_are_kept(value: Any) -> None:
    assert Saved({"a": value}).load()["a"] is value


@pytest.mark.parametrize(
    "node", [["torch.dtype", "load"], ["torch.layout", "int8"], ["torch.dtype", "serialization"], ["torch.dtype", "x"]]
)
def test_a_name_of_torch_that_is_something_else_is_refused(node: Any) -> None:
    with pytest.raises(BadInput, match="is not known to torch"):
        made(node)
