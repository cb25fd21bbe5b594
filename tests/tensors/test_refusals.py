"""Every value that cannot be stored is refused with its path, its type and what to do."""

from __future__ import annotations

import datetime as dt
import enum
import io
import math
import pickle
import struct
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ckstore.errors import CannotStore
from ckstore.tensors.state_capture import capture


def hidden() -> Any:
    class Elsewhere(enum.IntEnum):
        RED = 1

    return Elsewhere.RED


class Access(enum.Flag):
    READ = 1
    WRITE = 2


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


def unnamed_zone() -> dt.datetime:
    header = b"TZif" + bytes(16)
    rules = header + struct.pack(">6I", 0, 0, 0, 0, 1, 4) + struct.pack(">iBB", 0, 0, 0) + b"UTC\0"
    return dt.datetime(2026, 1, 1, tzinfo=ZoneInfo.from_file(io.BytesIO(rules)))


def loader() -> Any:
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset())


def closed_file() -> io.BytesIO:
    file = io.BytesIO(b"a")
    file.close()
    return file


DEEP_KEY: Any = 1
for _ in range(9):
    DEEP_KEY = (DEEP_KEY,)

PLAIN: list[tuple[str, Callable[[], Any], str, str]] = [
    ("struct sequence", lambda: torch.zeros(2).max(0), "return_types.max cannot be stored", "tuple(value)"),
    ("list subclass", type("Items", (list,), {}), "Items cannot be stored", "list(value)"),
    ("local enum", hidden, "Elsewhere cannot be stored", "value.value"),
    ("joined flags", lambda: Access.READ | Access.WRITE, "Access cannot be stored", "value.value"),
    ("int subclass", lambda: Steps(1), "Steps cannot be stored", "int(value)"),
    ("float subclass", lambda: Rate(1), "Rate cannot be stored", "float(value)"),
    ("str subclass", lambda: Word("a"), "Word cannot be stored", "str(value)"),
    ("bytes subclass", lambda: Blob(b"a"), "Blob cannot be stored", "bytes(value)"),
    ("default dict", lambda: defaultdict(Plain), "a defaultdict that makes its values with", "dict(value)"),
    ("set of lists", lambda: {b"a"}, "a set with the element", "store a list"),
    (
        "set of a nan",
        lambda: frozenset([math.nan]),
        "a frozenset with the element nan, which is not a number",
        "a list",
    ),
    ("time", lambda: dt.time(1), "datetime.time cannot be stored", "isoformat()"),
    (
        "named time zone",
        lambda: dt.datetime(2026, 1, 1, tzinfo=dt.timezone(dt.timedelta(0), "X")),
        "zone",
        "astimezone",
    ),
    ("time zone from a file", unnamed_zone, "zone", "astimezone"),
    ("path subclass", lambda: type("Where", (PurePosixPath,), {})("a"), "Where cannot be stored", "str(value)"),
    ("closed file in memory", closed_file, "a closed io.BytesIO", "before it is closed"),
    ("memoryview", lambda: memoryview(b"a"), "memoryview cannot be stored", "bytes(value)"),
    ("range", lambda: range(3), "range cannot be stored", "list(value)"),
    ("function", lambda: capture, "function cannot be stored", "leave it out"),
    ("class", lambda: torch.nn.Linear, "type cannot be stored", "leave it out"),
    ("module", lambda: dt, "module cannot be stored", "leave it out"),
    ("torch generator", torch.Generator, "Generator cannot be stored", "get_state()"),
    ("numpy generator", np.random.default_rng, "Generator cannot be stored", "bit_generator.state"),
    (
        "loader",
        loader,
        "DataLoader cannot be stored",
        "StatefulDataLoader",
    ),
    ("foreign object", Plain, "Plain cannot be stored", "import Plain; ckstore.add_safe_globals([Plain])"),
    ("bare object", object, "object cannot be stored", "state_dict and load_state_dict"),
    ("half a Stateful", OnlySaves, "OnlySaves cannot be stored", "not load_state_dict"),
    ("masked array", lambda: np.ma.array([1], mask=[False]), "MaskedArray cannot be stored", "value.mask"),
    ("numpy bytes", lambda: np.bytes_(b"a"), "numpy.bytes_ cannot be stored", "bytes(value)"),
    ("numpy scalar subclass", lambda: Grad(1), "Grad, a subclass", "value.dtype.type(value)"),
    ("long double", lambda: np.longdouble(1), "longdouble|float128", "float64"),
    ("object array", lambda: np.array([None]), "dtype object cannot be stored", "store a list"),
    ("structured array", lambda: np.zeros(1, "i4,f4"), "cannot be stored", "each field"),
    ("long double array", lambda: np.zeros(1, np.longdouble), "cannot be stored", "float64"),
    ("void array", lambda: np.zeros(1, "V3"), "dtype .V3 cannot be stored", "numbers, dates"),
]
if hasattr(np.dtypes, "StringDType"):  # NumPy has it since 2.0
    PLAIN.append(("string array", lambda: np.array(["a"], np.dtypes.StringDType()), "StringDType", "astype('U')"))


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
    ("csc", lambda: torch.eye(2).to_sparse_csc(), "layout torch.sparse_csc", "ccol_indices()"),
    ("bsr", lambda: torch.eye(2).to_sparse_bsr((1, 1)), "layout torch.sparse_bsr", "to_dense()"),
    ("quantized", quantized, r"quantized tensor \(torch.qint8\)", "dequantize()"),
    ("meta", lambda: torch.zeros(2, device="meta"), "meta device has no values", "to_empty()"),
    ("uint4", lambda: of_dtype("uint4"), "dtype torch.uint4 cannot", "view(torch.uint8)"),
    ("int3", lambda: of_dtype("int3"), "dtype torch.int3 cannot", "view(torch.uint8)"),
    ("bits8", lambda: torch.empty(2, dtype=torch.bits8), "dtype torch.bits8 cannot", "view(torch.uint8)"),
    ("bits16", lambda: torch.empty(2, dtype=torch.bits16), "dtype torch.bits16 cannot", "view(torch.int16)"),
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


@pytest.mark.parametrize("key", [b"a", Access.READ, np.int64(3), Word("a"), math.nan, (1, b"a"), frozenset(), DEEP_KEY])
def test_a_key_that_the_format_does_not_hold_is_refused(key: Any) -> None:
    with pytest.raises(CannotStore, match=r"^a\.b: a key of type \S+, .* cannot be stored \(keys are str, int") as no:
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


def made_by_a_function() -> Any:
    return defaultdict(lambda: 1)


def with_a_tensor_as_attribute() -> Any:
    value = OrderedDict(a=1)
    vars(value)["more"] = torch.zeros(1)
    return value


class GivesAnother:
    def state_dict(self) -> Any:
        return GivesAnother()

    def load_state_dict(self, state: Any) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("make", [made_by_a_function, with_a_tensor_as_attribute, GivesAnother])
def test_what_is_refused_twice_is_refused_for_the_same_reason(make: Callable[[], Any]) -> None:
    value = make()

    with pytest.raises(CannotStore) as refused:
        capture({"a": value, "b": value})

    assert refused.value.refused["a"] == refused.value.refused["b"]


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

    with pytest.raises(CannotStore, match=r"^a: state_dict\(\) of .*Wrapper returned a .*\(let it return a dict"):
        capture({"a": Wrapper()})


def test_attributes_of_an_ordered_dict_hold_no_tensors() -> None:
    state: OrderedDict[str, int] = OrderedDict(a=1)
    state.scale = torch.zeros(2)  # type: ignore[attr-defined]

    with pytest.raises(CannotStore, match=r"^model: the attributes \(scale\) of an OrderedDict .*under keys"):
        capture({"model": state})


def test_a_refused_state_itself_has_a_message_too() -> None:
    with pytest.raises(CannotStore, match=r"^the state itself: range cannot be stored"):
        capture(range(2))


def test_a_refusal_survives_pickling() -> None:
    with pytest.raises(CannotStore) as refused:
        capture({"a": [range(2)]})

    again = pickle.loads(pickle.dumps(refused.value))

    assert (again.path, str(again)) == ("a[0]", str(refused.value))


def test_everything_that_cannot_be_stored_is_in_one_error_with_what_to_do() -> None:
    inside = {frozenset(): 1, "time": dt.time(1), "kept": 1}
    state = {"a": Plain(), "b": [range(2), torch.empty(1, device="meta")], "c": {"d": inside}}

    with pytest.raises(CannotStore) as refused:
        capture(state)

    error = pickle.loads(pickle.dumps(refused.value))
    assert list(error.refused) == ["a", "b[0]", "b[1]", "c.d", "c.d.time"]
    assert error.path == "a"
    assert str(error).splitlines()[0] == "5 values cannot be stored:"
    for line, path in zip(str(error).splitlines()[1:], error.refused, strict=True):
        assert line.startswith(f"  {path}: ")
        assert line.endswith(")")


def test_a_subclass_that_can_be_taken_apart_is_refused_until_torch_is_told_of_it() -> None:
    class Halves(torch.Tensor):
        def __tensor_flatten__(self) -> Any:
            raise NotImplementedError

    with pytest.raises(CannotStore, match=r"add_safe_globals\(\[Halves\]\)"):
        capture({"a": torch.zeros(2).as_subclass(Halves)})


def test_integers_that_would_not_be_read_again_are_refused_by_their_paths_with_the_line_that_works() -> None:
    value = 10**31_000
    with pytest.raises(CannotStore) as excinfo:
        capture({"seen": value, "list": [1, {"x": value}], "keys": {value: 1}, "set": {value}, "rng": (1, value)})

    assert list(excinfo.value.refused) == ["seen", "list[1].x", "keys", "set", "rng"]
    assert "more than 100,000 bits" in excinfo.value.refused["seen"]
    data = eval(str(excinfo.value.refused["seen"]).split("(store ")[1].split("; ")[0], {"value": value})  # noqa: S307
    assert int.from_bytes(data, "little", signed=True) == value
