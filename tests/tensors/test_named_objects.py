"""Objects that are what is set on them: Python's own containers of names, and classes that the program allows."""

from __future__ import annotations

import threading
from argparse import Namespace
from collections import UserDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import ckstore
from ckstore import BadInput, CannotStore, Store
from ckstore.tensors.named import safe_classes
from ckstore.tensors.named.named_objects import put_together
from ckstore.tensors.state_capture import capture
from ckstore.tensors.targets import into_optimizer
from tests.support.captures import Saved
from tests.support.states import assert_same


def never(*_: object) -> Any:
    raise AssertionError("this is not to be called")


class Projector:
    """As optimizers keep in their state: no state_dict, a tensor among its attributes."""

    __setstate__ = __reduce__ = __reduce_ex__ = never

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.matrix = torch.full((rank,), 2.0)

    def project(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * self.matrix


class Slots:
    __slots__ = ("left", "unset")

    def __init__(self) -> None:
        self.left = 1


class More(Slots):
    def __init__(self) -> None:
        super().__init__()
        self.right = torch.ones(1)


class Guarded:
    x = property(lambda _: never(), never)
    __setattr__ = never

    def __init__(self) -> None:
        vars(self)["a"] = 1


class Counts:
    """Is stored as its state, allowed or not."""

    def __init__(self) -> None:
        self.count = 3

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


@pytest.fixture(autouse=True)
def only_these(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safe_classes, "_allowed", {})


@pytest.mark.parametrize(
    "value", [Namespace(lr=0.1, b={"c": (1, 2)}), SimpleNamespace(a=1, b=Namespace()), UserDict({"a": 1, 2: None})]
)
def test_containers_of_python_need_no_permission(value: Any) -> None:
    back = Saved({"a": value}).load()["a"]

    assert type(back) is type(value)
    assert back == value


def test_a_tensor_in_a_namespace_has_its_name() -> None:
    saved = Saved({"args": Namespace(w=torch.ones(2)), "d": UserDict(w=torch.ones(3))})

    assert [leaf.name for leaf in saved.manifest.leaves] == ["args.w", "d.data.w"]
    assert_same(torch.ones(2), saved.load()["args"].w)


def test_an_object_is_refused_with_the_line_that_works(tmp_path: Path) -> None:
    store = Store.init(tmp_path / "store")
    state = {"p": Projector(3), "other": 1}

    with pytest.raises(CannotStore) as caught:
        store.save(state, step=1)
    line = caught.value.hint.removeprefix("allow its class: ")
    assert line == f"from {__name__} import Projector; ckstore.add_safe_globals([Projector])"
    exec(line, {"ckstore": ckstore})  # noqa: S102 - the advice itself is tried
    store.save(state, step=1)

    back: Any = store.load(1)
    assert type(back["p"]) is Projector
    assert torch.equal(back["p"].project(torch.ones(3)), torch.full((3,), 2.0))


class Galore(torch.optim.SGD):
    """Keeps an object in its state."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if "projector" not in state:
                    state["projector"] = Projector(parameter.numel())
                state["projector"].matrix += 1
                parameter.sub_(state["projector"].project(parameter.grad))


def stepped(count: int, store: Store | None = None) -> torch.nn.Parameter:
    """Train for some steps, from a checkpoint if there is a store."""
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = Galore([weight], lr=1.0)
    if store is not None:
        store.load_into({"w": {"w": weight.data}, "o": optimizer}, 2)
    for _ in range(count):
        weight.grad = torch.full((3,), 0.5)
        optimizer.step()
    if store is None and count == 2:
        saved = Store.open("store")
        saved.save({"w": {"w": weight.data}, "o": optimizer}, step=2)
    return weight


def test_an_optimizer_with_objects_in_its_state_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    ckstore.add_safe_globals([Projector])
    store = Store.init(tmp_path / "store")
    stepped(2)

    assert torch.equal(stepped(3, store), stepped(5))


class WithState(Projector):
    """Has what the store asks of other objects."""

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


@pytest.mark.parametrize("own", [False, True])
def test_an_object_that_an_optimizer_would_get_back_as_a_dict_is_refused(tmp_path: Path, own: bool) -> None:
    class Own(torch.optim.SGD):
        def load_state_dict(self, state_dict: Any) -> None:
            super().load_state_dict(state_dict)

    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = (Own if own else torch.optim.SGD)([weight])
    optimizer.state[weight]["projector"] = WithState(3)
    store = Store.init(tmp_path / "store")

    with pytest.raises(
        CannotStore, match=r"o\.state\[0\]\.projector: .*WithState in .* get a dict instead of the object"
    ) as caught:
        store.save({"o": optimizer})
    line = caught.value.hint.partition("allow the class: ")[2]
    assert line == f"from {__name__} import WithState; ckstore.add_safe_globals([WithState])"
    store.save({"p": WithState(3), "list": [WithState(3)]})


def test_tensors_inside_objects_go_where_the_parameter_is() -> None:
    ckstore.add_safe_globals([Projector])
    node = Saved({"projector": Projector(3), "step": torch.ones(1)}).manifest.state
    work = object.__new__(into_optimizer._Optimizer)
    work.parameters = {0: torch.empty(3, device="meta"), 1: torch.empty(3)}

    assert work.placed(0, node, lambda _: torch.ones(3))(0).device.type == "meta"  # type: ignore[attr-defined]
    assert work.placed(0, node, lambda _: torch.ones(3))(1).device.type == "cpu"  # type: ignore[attr-defined]
    assert work.placed(1, node, lambda _: torch.ones(3))(0).device.type == "cpu"  # type: ignore[attr-defined]


def test_where_its_class_is_not_allowed_the_load_says_so_and_the_rest_can_be_selected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.init(tmp_path / "store")
    ckstore.add_safe_globals([Projector])
    store.save({"p": [Projector(3)], "other": 1, "w": torch.ones(2)}, step=1)
    monkeypatch.setattr(safe_classes, "_allowed", {})

    with pytest.raises(BadInput, match=r"p\[0\] needs .*Projector, which .*import Projector; ckstore.add_safe_globals"):
        store.load(1)
    with pytest.raises(BadInput, match="not allowed"):
        store.load_into({"p": [None], "other": 0, "w": torch.zeros(2)}, 1)
    assert store.load(1, select="other") == {"other": 1}
    target = {"w": torch.zeros(2)}
    store.load_into(target, 1, select="w")
    assert torch.equal(target["w"], torch.ones(2))


def test_slots_and_attributes_come_back_and_what_was_not_set_stays_unset() -> None:
    ckstore.add_safe_globals([Slots, More])

    one, two = Saved([Slots(), More()]).load()

    assert (one.left, two.left) == (1, 1)
    assert not hasattr(one, "unset")
    assert_same(torch.ones(1), two.right)


class Default(Slots):
    """Replaces a slot of its base class by a plain attribute."""

    left = 5


class SlotAgain(Slots):
    __slots__ = ("left",)


def default() -> Slots:
    value = object.__new__(Default)
    value.left = 3
    return value


def slot_again() -> Slots:
    value = SlotAgain()
    vars(Slots)["left"].__set__(value, 4)
    return value


@pytest.mark.parametrize("value", [default(), slot_again()], ids=["attribute", "slot"])
def test_an_object_with_two_values_of_one_name_is_refused(tmp_path: Path, value: Slots) -> None:
    ckstore.add_safe_globals([Default, SlotAgain])
    store = Store.init(tmp_path / "store")

    with pytest.raises(CannotStore, match=r"p: .*its slot left is defined again by a subclass") as caught:
        store.save({"p": value})
    assert caught.value.hint == "give left another name in the subclass"
    store.save({"p": SlotAgain()})
    assert store.load()["p"].left == 1


@pytest.mark.parametrize("key", [1, None, (1, 2)])
@pytest.mark.parametrize("kind", [Namespace, UserDict, SimpleNamespace])
def test_an_object_whose_attributes_have_a_key_other_than_a_string_is_refused(
    tmp_path: Path, kind: type[Any], key: Any
) -> None:
    value = kind()
    vars(value)[key] = 2

    with pytest.raises(CannotStore, match=r"p\[0\]: .* because a key of its __dict__ is not a str: ") as caught:
        Store.init(tmp_path / "store").save({"p": [value]})
    assert list(caught.value.refused) == ["p[0]"]


def test_nothing_of_the_class_is_called_and_no_field_changes_the_class() -> None:
    ckstore.add_safe_globals([Guarded, Slots, Projector])

    back = Saved([Guarded()]).load()[0]
    hostile = put_together(f"{__name__}.Guarded", {"x": 1, "__class__": Projector, "__dict__": {}}, "a")

    assert vars(back) == {"a": 1}
    assert type(hostile) is Guarded
    with pytest.raises(BadInput, match=r"a: .*Slots is not made of the fields other"):
        put_together(f"{__name__}.Slots", {"other": 1}, "a")


def test_an_object_with_a_state_stays_what_it_was() -> None:
    ckstore.add_safe_globals([Counts, torch.nn.Linear])

    assert Saved([Counts()]).load() == [{"count": 3}]
    with pytest.raises(BadInput, match="is not made of the fields"):
        put_together("torch.nn.modules.linear.Linear", {"weight": 1}, "a")


@pytest.mark.parametrize("value", [threading.Lock(), object(), iter([1])])
def test_what_is_more_than_its_fields_is_not_to_be_allowed(value: Any) -> None:
    with pytest.raises(CannotStore, match="store what it consists of"):
        capture({"a": value})
    ckstore.add_safe_globals([type(value)])
    with pytest.raises(CannotStore, match="store what it consists of"):
        capture({"a": value})


@pytest.mark.parametrize(
    "kind, advice",
    [
        ("omegaconf.dictconfig.DictConfig", "store omegaconf.OmegaConf.to_container(value)"),
        ("torch.utils.data.dataloader.DataLoader", "StatefulDataLoader"),
    ],
)
def test_objects_of_libraries_have_an_advice_of_their_own(kind: str, advice: str) -> None:
    module, _, name = kind.rpartition(".")

    with pytest.raises(CannotStore, match="cannot be stored") as caught:
        capture({"a": type(name, (), {"__module__": module})()})

    assert advice in caught.value.hint
