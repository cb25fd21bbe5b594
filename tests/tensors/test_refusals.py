"""Every value that cannot be stored is refused with its path, its type and what to do."""

from __future__ import annotations

import datetime as dt
import enum
import pickle
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ckstore.errors import CannotStore
from ckstore.tensors.capture import capture

Point = namedtuple("Point", ["x", "y"])  # noqa: PYI024 - the kind that training code has


class Color(enum.IntEnum):
    RED = 1


class Steps(int):
    pass


class Rate(float):
    pass


class Word(str):
    __slots__ = ()


class Blob(bytes):
    pass


class Plain:
    pass


class OnlySaves:
    def state_dict(self) -> dict[str, int]:
        return {}


class Grad(np.float64):
    pass


class MyTensor(torch.Tensor):
    pass


class MyParameter(torch.nn.Parameter):
    pass


PLAIN: list[tuple[str, Callable[[], Any], str, str]] = [
    ("named tuple", lambda: Point(1, 2), "Point cannot be stored", "_asdict()"),
    ("tuple subclass", lambda: torch.Size([1]), "torch.Size cannot be stored", "tuple(value)"),
    ("struct sequence", lambda: torch.zeros(2).max(0), "return_types.max cannot be stored", "tuple(value)"),
    ("default dict", lambda: defaultdict(int), "collections.defaultdict cannot be stored", "dict(value)"),
    ("list subclass", type("Items", (list,), {}), "Items cannot be stored", "list(value)"),
    ("int enum", lambda: Color.RED, "Color cannot be stored", "value.value"),
    ("int subclass", lambda: Steps(1), "Steps cannot be stored", "int(value)"),
    ("float subclass", lambda: Rate(1), "Rate cannot be stored", "float(value)"),
    ("str subclass", lambda: Word("a"), "Word cannot be stored", "str(value)"),
    ("bytes subclass", lambda: Blob(b"a"), "Blob cannot be stored", "bytes(value)"),
    ("bytearray", lambda: bytearray(b"a"), "bytearray cannot be stored", "bytes(value)"),
    ("set", lambda: {1}, "set cannot be stored", "sorted(value)"),
    ("range", lambda: range(3), "range cannot be stored", "list(value)"),
    ("path", lambda: Path("a"), "PosixPath cannot be stored", "str(value)"),
    ("date", lambda: dt.date(2026, 1, 2), "datetime.date cannot be stored", "isoformat()"),
    ("function", lambda: capture, "function cannot be stored", "leave it out"),
    ("class", lambda: torch.nn.Linear, "type cannot be stored", "leave it out"),
    ("module", lambda: dt, "module cannot be stored", "leave it out"),
    ("torch dtype", lambda: torch.float32, "torch.dtype cannot be stored", "str(value)"),
    ("torch device", lambda: torch.device("cpu"), "torch.device cannot be stored", "str(value)"),
    ("torch generator", torch.Generator, "Generator cannot be stored", "get_state()"),
    ("numpy generator", np.random.default_rng, "Generator cannot be stored", "bit_generator.state"),
    ("foreign object", Plain, "Plain cannot be stored", "state_dict and load_state_dict"),
    ("half a Stateful", OnlySaves, "OnlySaves cannot be stored", "not load_state_dict"),
    ("masked array", lambda: np.ma.array([1], mask=[False]), "MaskedArray cannot be stored", "value.mask"),
    ("numpy str", lambda: np.str_("a"), "numpy.str_ cannot be stored", "str(value)"),
    ("numpy bytes", lambda: np.bytes_(b"a"), "numpy.bytes_ cannot be stored", "bytes(value)"),
    ("numpy scalar subclass", lambda: Grad(1), "Grad, a subclass", "value.dtype.type(value)"),
    ("long double", lambda: np.longdouble(1), "longdouble|float128", "float64"),
    ("object array", lambda: np.array([None]), "dtype object cannot be stored", "store a list"),
    ("structured array", lambda: np.zeros(1, "i4,f4"), "cannot be stored", "each field"),
    ("long double array", lambda: np.zeros(1, np.longdouble), "cannot be stored", "float64"),
    ("string array", lambda: np.array(["a"], np.dtypes.StringDType()), "StringDType", "astype('U')"),
    ("void array", lambda: np.zeros(1, "V3"), "dtype .V3 cannot be stored", "numbers, dates"),
]


def of_dtype(name: str) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, name)
    return torch.empty(2, dtype=dtype)


def nested() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged)


def old_nested() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.zeros(2)


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.qint8)


def freed() -> torch.Tensor:
    tensor = torch.zeros(4)
    tensor.untyped_storage().resize_(0)
    return tensor


TENSORS: list[tuple[str, Callable[[], Any], str, str]] = [
    ("sparse", lambda: torch.eye(2).to_sparse(), "layout torch.sparse_coo", "to_dense()"),
    ("csr", lambda: torch.eye(2).to_sparse_csr(), "layout torch.sparse_csr", "crow_indices()"),
    ("csc", lambda: torch.eye(2).to_sparse_csc(), "layout torch.sparse_csc", "ccol_indices()"),
    ("bsr", lambda: torch.eye(2).to_sparse_bsr((1, 1)), "layout torch.sparse_bsr", "to_dense()"),
    ("quantized", quantized, r"quantized tensor \(torch.qint8\)", "dequantize()"),
    ("meta", lambda: torch.zeros(2, device="meta"), "meta device has no values", "to_empty()"),
    ("uint4", lambda: of_dtype("uint4"), "dtype torch.uint4 cannot", "view(torch.uint8)"),
    ("int3", lambda: of_dtype("int3"), "dtype torch.int3 cannot", "view(torch.uint8)"),
    ("bits8", lambda: torch.empty(2, dtype=torch.bits8), "dtype torch.bits8 cannot", "view(torch.uint8)"),
    ("bits16", lambda: torch.empty(2, dtype=torch.bits16), "dtype torch.bits16 cannot", ".to()"),
    ("nested", old_nested, "nested tensor cannot be stored", "unbind()"),
    ("jagged", nested, "NestedTensor, a subclass of torch.Tensor", "unbind()"),
    ("fake", fake, "FakeTensor, a subclass of torch.Tensor", "FakeTensorMode"),
    ("lazy", lambda: torch.nn.LazyLinear(2).weight, "UninitializedParameter, a subclass", "run a lazy module"),
    ("lazy buffer", torch.nn.UninitializedBuffer, "UninitializedBuffer, a subclass", "run a lazy module"),
    ("tensor subclass", lambda: torch.zeros(2).as_subclass(MyTensor), "MyTensor, a subclass", "plain tensors"),
    ("parameter subclass", lambda: MyParameter(torch.zeros(2)), "MyParameter, a subclass", "plain tensors"),
    ("freed memory", freed, "a storage of 0 bytes, 16 needed", "gather it"),
    ("zero tensor", lambda: torch._efficientzerotensor(3), "without memory of its own", "clone()"),
]


@pytest.mark.filterwarnings("ignore")  # what torch says about its own prototypes
@pytest.mark.parametrize("make, why, hint", [pytest.param(*case[1:], id=case[0]) for case in PLAIN + TENSORS])
def test_what_cannot_be_stored_is_refused_with_path_type_and_advice(
    make: Callable[[], Any], why: str, hint: str
) -> None:
    state = {"optimizer": {"param_groups": [{"foo": make()}]}}

    with pytest.raises(CannotStore, match=why) as refused:
        capture(state)

    assert refused.value.path == "optimizer.param_groups[0].foo"
    assert refused.value.message.startswith("optimizer.param_groups[0].foo: ")
    assert hint in refused.value.hint


@pytest.mark.skipif("mkldnn" not in torch.__config__.show().lower(), reason="torch without MKL-DNN")
def test_an_mkldnn_tensor_is_refused() -> None:
    with pytest.raises(CannotStore, match=r"a: a tensor of layout torch._mkldnn cannot be stored .*to_dense"):
        capture({"a": torch.zeros(2, 2).to_mkldnn()})


def test_a_tensor_inside_vmap_is_refused() -> None:
    def save(tensor: torch.Tensor) -> torch.Tensor:
        with pytest.raises(CannotStore, match="without memory of its own"):
            capture(tensor)
        return tensor

    torch.func.vmap(save)(torch.zeros(3, 2))


@pytest.mark.parametrize("key", [True, None, 1.5, (1, 2), b"a", Color.RED, np.int64(3), Word("a")])
def test_a_key_that_is_neither_str_nor_int_is_refused(key: Any) -> None:
    with pytest.raises(CannotStore, match=r"^a\.b: a key of type \S+, .* cannot be stored \(keys are str or int") as no:
        capture({"a": {"b": {key: 1}}})

    assert type(key).__name__ in no.value.message


def test_a_key_that_json_would_change_is_refused() -> None:
    with pytest.raises(CannotStore, match="surrogates that JSON would join"):
        capture({"\ud83d" + "\ude00": 1})


@pytest.mark.parametrize("kind", [list, dict, OrderedDict])
def test_a_container_that_contains_itself_is_refused(kind: Callable[[], Any]) -> None:
    state = kind()
    inner = {"again": state}
    if kind is list:
        state.append(inner)
    else:
        state[0] = inner

    with pytest.raises(CannotStore, match=r"^\[0\]\.again: contains itself"):
        capture(state)


def test_an_object_in_its_own_state_is_refused() -> None:
    class Loop:
        def state_dict(self) -> dict[str, Any]:
            return {"me": self}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise NotImplementedError

    with pytest.raises(CannotStore, match=r"^a\.me: contains itself"):
        capture({"a": Loop()})


def test_an_object_whose_state_is_an_object_is_refused() -> None:
    class Wrapper:
        def state_dict(self) -> Any:
            return torch.nn.Linear(1, 1)

        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise NotImplementedError

    with pytest.raises(CannotStore, match=r"^a: state_dict\(\) of .*Wrapper gave a .*Linear \(let it give a dict"):
        capture({"a": Wrapper()})


def test_attributes_of_an_ordered_dict_hold_no_tensors() -> None:
    state: OrderedDict[str, int] = OrderedDict(a=1)
    state.scale = torch.zeros(2)  # type: ignore[attr-defined]

    with pytest.raises(CannotStore, match=r"^model: the attributes \(scale\) of an OrderedDict .*under keys"):
        capture({"model": state})


def test_a_refused_state_itself_has_a_message_too() -> None:
    with pytest.raises(CannotStore, match=r"^the state itself: set cannot be stored"):
        capture({1, 2})


def test_a_refusal_survives_pickling() -> None:
    with pytest.raises(CannotStore) as refused:
        capture({"a": [set()]})

    again = pickle.loads(pickle.dumps(refused.value))

    assert (again.path, str(again)) == ("a[0]", str(refused.value))
