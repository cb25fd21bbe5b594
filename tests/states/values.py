"""Rows: the values that people keep in states beside tensors, and tensors of every kind."""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import io
import pathlib
import random
import threading
import types
import uuid
from collections import Counter, OrderedDict, UserDict, defaultdict, deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import torch

from tests.states.table import Refused, Row, Value


class Colour(enum.Enum):
    """An enumeration whose values are strings."""

    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    """An enumeration of numbers."""

    LOW = 1
    HIGH = 2


class Wish(enum.Flag):
    """Flags that can be put together."""

    FAST = 1
    SMALL = 2


class Word(enum.StrEnum):
    """An enumeration of strings."""

    MEAN = "mean"


class Point(NamedTuple):
    """A named tuple."""

    x: int
    y: float


@dataclasses.dataclass
class Config:
    """A dataclass with one inside it."""

    lr: float
    betas: tuple[float, float] = (0.9, 0.99)
    inner: Config | None = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    """A dataclass that cannot be changed."""

    steps: int
    weight: torch.Tensor


@dataclasses.dataclass(slots=True)
class Slotted:
    """A dataclass without a dict of attributes."""

    steps: int


class Plain:
    """An object of a class that says nothing of its state."""

    def __init__(self) -> None:
        self.a = 1


class Meter:
    """An object that says its state."""

    def __init__(self) -> None:
        self.total = 0.5

    def state_dict(self) -> dict[str, float]:
        """Return the state."""
        return {"total": self.total}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Take it up."""
        self.total = state["total"]


class MyDict(dict[str, int]):
    """A subclass of dict."""


class MyList(list[int]):
    """A subclass of list."""


class MyFloat(float):
    """A subclass of float."""


class MyInt(int):
    """A subclass of int."""


class MyStr(str):
    """A subclass of str."""

    __slots__ = ()


class MyTensor(torch.Tensor):
    """A subclass of Tensor that adds nothing."""


_PLAIN: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "an int": lambda: 3,
    "a negative int": lambda: -1,
    "an int beyond 2^53": lambda: 2**53 + 1,
    "an int beyond 2^64": lambda: 2**80,
    "an int of 300 digits": lambda: 10**300,
    "a float": lambda: 0.1,
    "-0.0": lambda: -0.0,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "the smallest float": lambda: 5e-324,
    "a complex": lambda: 1.5 - 2j,
    "a str": lambda: "text",
    "an empty str": lambda: "",
    "a str with a surrogate": lambda: "a\udcff",
    "a str beyond the plane": lambda: "🙂é",
    "a long str": lambda: "x" * 9000,
    "a str with a zero": lambda: "a\0b",
    "bytes": lambda: b"\0\xff",
    "empty bytes": lambda: b"",
    "long bytes": lambda: bytes(1000),
    "a bytearray": lambda: bytearray(b"x"),
    "a long bytearray": lambda: bytearray(1000),
    "an empty list": list,
    "a list": lambda: [1, "a", None, [2.5]],
    "a long list of ints": lambda: list(range(2000)),
    "a long list of floats": lambda: [i / 3 for i in range(2000)],
    "a long list of bools": lambda: [i % 3 == 0 for i in range(2000)],
    "a tuple": lambda: (1, ("a", ())),
    "an empty tuple": tuple,
    "an empty dict": dict,
    "a dict with keys of many kinds": lambda: {"a": 1, 3: 2, 0.5: 3, True: 4, None: 5, (0, "b"): 6},
    "a dict with dots and brackets in its keys": lambda: {"a.b": 1, "c[0]": 2, "": 3, "\\": 4, "d\ne": 5},
    "an OrderedDict": lambda: OrderedDict(b=1, a=2),
    "a Counter": lambda: Counter("hello"),
    "a defaultdict of list": lambda: defaultdict(list, {"a": [1]}),
    "a defaultdict of int": lambda: defaultdict(int, a=1),
    "a defaultdict of nothing": lambda: defaultdict(None, a=1),
    "a deque": lambda: deque([1, 2], maxlen=3),
    "a deque without a limit": lambda: deque(["a"]),
    "a set": lambda: {1, "b", (2, 3)},
    "a frozenset": lambda: frozenset({0.5, None}),
    "an empty set": set,
    "a Decimal": lambda: decimal.Decimal("1.10"),
    "a Decimal nan": lambda: decimal.Decimal("NaN"),
    "a datetime": lambda: dt.datetime(2026, 1, 2, 3, 4, 5, 6),  # noqa: DTZ001 - without a zone
    "a datetime in UTC": lambda: dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
    "a datetime with an offset": lambda: dt.datetime(2026, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=5, minutes=30))),
    "a datetime in Berlin": lambda: dt.datetime(2026, 1, 2, tzinfo=ZoneInfo("Europe/Berlin")),
    "a date": lambda: dt.date(2026, 1, 2),
    "a timedelta": lambda: dt.timedelta(days=-1, microseconds=1),
    "a Path": lambda: pathlib.Path("a/b"),
    "a PurePosixPath": lambda: pathlib.PurePosixPath("/a"),
    "a PureWindowsPath": lambda: pathlib.PureWindowsPath("C:/a"),
    "torch.Size": lambda: torch.Size([2, 3]),
    "torch.layout": lambda: torch.strided,
    "torch.qscheme": lambda: torch.per_tensor_affine,
    "torch.device": lambda: torch.device("cpu"),
    "torch.device with an index": lambda: torch.device("cuda", 1),
    "numpy.str_": lambda: np.str_("a"),
    "the state of random": lambda: random.Random(0).getstate(),
    "the state of torch's generator": torch.Generator().get_state,
    "the state of MT19937": lambda: np.random.MT19937(0).state,
    "the state of PCG64": lambda: np.random.PCG64(0).state,
    "the state of Philox": lambda: np.random.Philox(0).state,
    "the state of SFC64": lambda: np.random.SFC64(0).state,
    "the state of RandomState": lambda: np.random.RandomState(0).get_state(legacy=False),
    "the state of RandomState as a tuple": lambda: np.random.RandomState(0).get_state(),
}


def _tied() -> list[Any]:
    tied = torch.arange(4)
    return [tied, tied[1:], {"again": tied}]


_DTYPES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "bfloat16"),
    *("float32", "float64", "complex32", "bcomplex32", "complex64", "complex128", "float8_e4m3fn"),
    *("float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"),
)
_OTHER_DTYPES = ("qint8", "quint8", "qint32")
_NUMPY = (
    *("?", "i1", "<i2", ">i4", "<i8", "u1", "<u2", "<u4", ">u8", "<f2", "<f4", ">f4", "<f8", "<c8", ">c16"),
    *("<M8[ns]", "<M8[D]", "<m8[25s]", "S3", "<U4"),
)
_TENSORS: dict[str, Callable[[], Any]] = {
    "a tensor without dimensions": lambda: torch.tensor(1.5),
    "an empty tensor": lambda: torch.empty(0, 3),
    "a transposed tensor": lambda: torch.arange(6).reshape(2, 3).T,
    "a tensor, channels last": lambda: torch.rand(1, 2, 3, 3).to(memory_format=torch.channels_last),
    "every second element": lambda: torch.arange(10)[::2],
    "an expanded tensor": lambda: torch.tensor([1.0, 2.0]).expand(3, 2),
    "a part of a larger tensor": lambda: torch.zeros(1000)[10:20],
    "a conjugate view": lambda: torch.tensor([1 + 2j]).conj(),
    "a negative view": lambda: torch.tensor([1 + 2j]).conj().imag,
    "nan with other bits": lambda: torch.tensor([0x7FC00001, 0x7F800001], dtype=torch.int32).view(torch.float32),
    "a tensor with requires_grad": lambda: torch.ones(2, requires_grad=True),
    "a parameter": lambda: torch.nn.Parameter(torch.ones(2)),
    "a buffer": lambda: torch.nn.Buffer(torch.ones(2)),
    "sparse, COO": lambda: torch.eye(2).to_sparse(),
    "sparse, COO, not coalesced": lambda: torch.sparse_coo_tensor(torch.tensor([[0, 0]]), [1.0, 2.0], (2,)),
    "sparse, COO, with dense dimensions": lambda: torch.sparse_coo_tensor(
        torch.tensor([[0, 1]]), torch.rand(2, 3), (4, 3)
    ),
    "sparse, CSR": lambda: torch.eye(2).to_sparse_csr(),
    "tied tensors": _tied,
}
_BACK: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "a datetime that comes twice": (  # of which the pickle of torch.save forgets which of both it is
        lambda: dt.datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
        lambda value: value,
    ),
    "torch.memory_format": (lambda: torch.channels_last, lambda value: value),  # which pickle refuses
    "a named tuple": (lambda: Point(1, 0.5), tuple),
    "a module": (lambda: torch.nn.BatchNorm1d(2), lambda value: value.state_dict()),
    "an object with a state": (Meter, lambda value: value.state_dict()),
    "a Fortran array": (lambda: np.asfortranarray(np.arange(6).reshape(2, 3)), lambda value: value),
    "an array with gaps": (lambda: np.arange(10)[::3], np.ascontiguousarray),
    "an array backwards": (lambda: np.arange(10)[::-1], np.ascontiguousarray),
    "an array without dimensions": (lambda: np.array(1.5), lambda value: value),
}
_KEPT_BY_THEIR_CLASS: dict[str, Callable[[], Any]] = {
    "an Enum": lambda: Colour.RED,
    "an IntEnum": lambda: Level.HIGH,
    "a Flag": lambda: Wish.FAST,
    "a StrEnum": lambda: Word.MEAN,
    "a Namespace": lambda: argparse.Namespace(lr=0.1, names=["a"]),
    "a SimpleNamespace": lambda: types.SimpleNamespace(lr=0.1, held={"a": torch.ones(2)}),
    "a BytesIO": lambda: io.BytesIO(b"abc"),
    "a UserDict": lambda: UserDict(a=1),
    "torch.qint8 as a dtype": lambda: torch.qint8,
    "torch.quint8 as a dtype": lambda: torch.quint8,
}


_ALLOWED: dict[str, Callable[[], Any]] = {
    "a dataclass": lambda: Config(0.1, inner=Config(0.2)),
    "a frozen dataclass with a tensor": lambda: Frozen(3, torch.ones(2)),
    "a dataclass with slots": lambda: Slotted(3),
    "a dict of a dataclass and an Enum": lambda: {"config": Config(0.5), "how": [Colour.BLUE, Level.LOW]},
    "an object of an allowed class": Plain,
    "a UUID": lambda: uuid.UUID(int=5),
}


def _endless() -> list[Any]:
    endless: list[Any] = []
    endless.append(endless)
    return endless


def _quantized() -> Any:
    return torch.quantize_per_tensor(torch.tensor([0.5, -1.0]), 0.1, 3, torch.qint8)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


_REFUSED: list[Refused] = [
    Refused("a time of day", lambda: dt.time(12, 30), "value.isoformat()", dt.time.fromisoformat),
    Refused(
        "a datetime of a zone of its own",
        lambda: dt.datetime(2026, 1, 1, tzinfo=Zone()),
        "value.astimezone(datetime.timezone.utc)",
        using={"datetime": dt},
    ),
    Refused("a defaultdict of a function", lambda: defaultdict(lambda: 1, a=2), "dict(value)"),
    Refused("a subclass of dict", lambda: MyDict(a=1), "dict(value)", MyDict),
    Refused("a subclass of list", lambda: MyList([1]), "list(value)", MyList),
    Refused("a subclass of float", lambda: MyFloat(0.5), "float(value)", MyFloat),
    Refused("a subclass of int", lambda: MyInt(5), "int(value)", MyInt),
    Refused("a subclass of str", lambda: MyStr("a"), "str(value)", MyStr),
    Refused("a range", lambda: range(3), "list(value)", lambda back: range(len(back))),
    Refused("a memoryview", lambda: memoryview(b"x"), "bytes(value)"),
    Refused("a Fraction", lambda: fractions.Fraction(1, 3), "str(value)", fractions.Fraction),
    Refused("random.Random", lambda: random.Random(0), "value.getstate()"),
    Refused("torch.Generator", _generator, "value.get_state()"),
    Refused("numpy.random.Generator", lambda: np.random.default_rng(0), "value.bit_generator.state"),
    Refused("numpy.random.RandomState", lambda: np.random.RandomState(0), "value.get_state(legacy=False)"),
    Refused("two Flags", lambda: Wish.FAST | Wish.SMALL, "value.value", Wish),
    Refused("a dataclass", lambda: Config(0.1), "dataclasses.asdict(value)", using={"dataclasses": dataclasses}),
    Refused(
        "an untyped storage",
        lambda: torch.ones(2).untyped_storage(),
        "torch.tensor(value, dtype=torch.uint8)",
        hint="store a tensor over it",
    ),
    Refused("a function", lambda: half, "value.__name__", hint="leave it out, or store its name"),
    Refused("a class", lambda: Plain, "value.__name__", hint="leave it out, or store its name"),
    Refused("a lambda", lambda: lambda: 1, "None", hint="leave it out"),
    Refused("a module of Python", lambda: random, "None", hint="leave it out"),
    Refused("a lock", threading.Lock, "None", hint="store what it consists of"),
    Refused("a set of bytes", lambda: {b"a"}, "list(value)", set, hint="store a list"),
    Refused(
        "a dict with bytes as keys", lambda: {b"a": 2}, "list(value.items())", dict, hint="a list of (key, value) pairs"
    ),
    Refused("sparse, CSC", lambda: torch.eye(2).to_sparse_csc(), "value.to_dense()"),
    Refused("sparse, BSR", lambda: torch.eye(4).to_sparse_bsr((2, 2)), "value.to_dense()"),
    Refused(
        "a nested tensor", lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "list(value.unbind())"
    ),
    Refused("a quantized tensor", _quantized, "value.dequantize()"),
    Refused(
        "a subclass of Tensor",
        lambda: torch.ones(2).as_subclass(MyTensor),
        "value.as_subclass(torch.Tensor)",
        hint="store the plain tensors that it is made of",
    ),
    Refused(
        "a masked array",
        lambda: np.ma.array([1, 2], mask=[False, True]),
        "[value.data, value.mask]",
        lambda back: np.ma.array(back[0], mask=back[1]),
        hint="store value.data and value.mask",
    ),
    Refused("an array of objects", lambda: np.array(["a", None], dtype=object), "value.tolist()", hint="store a list"),
    Refused(
        "an array with fields",
        lambda: np.zeros(2, [("a", "i4")]),
        "{name: array[name] for name in array.dtype.names}",
        called="array",
    ),
    Refused("something that contains itself", _endless, "None", hint="store a flatter state"),
]


def half(epoch: int) -> float:
    """Return a number: a function that a state may name."""
    return float(0.5**epoch)


class Zone(dt.tzinfo):
    """A zone that no library knows."""

    def utcoffset(self, when: dt.datetime | None) -> dt.timedelta:
        return dt.timedelta(hours=1)

    def tzname(self, when: dt.datetime | None) -> str:
        return "own"

    def dst(self, when: dt.datetime | None) -> dt.timedelta:
        return dt.timedelta(0)


def _tensor_of(name: str) -> torch.Tensor:
    return torch.arange(1, 9, dtype=torch.uint8).repeat(4).view(getattr(torch, name) if name != "bool" else torch.uint8)


def _array_of(name: str) -> np.ndarray[Any, Any]:
    dtype = np.dtype(name)
    if dtype.kind in "US":
        return np.array(["ab", "c"], dtype)
    return np.arange(3).astype(dtype)


def _scalar_of(name: str) -> Any:
    return _array_of(name)[1]


def rows() -> Iterator[Row]:
    """Yield the rows."""
    for name, make in {**_PLAIN, **_TENSORS, **_KEPT_BY_THEIR_CLASS}.items():
        yield Value(name, make)
    for name, make in _ALLOWED.items():
        yield Value(f"{name}, allowed", make, allow=True)
    for name, (make, back) in _BACK.items():
        yield Value(name, make, back)
    for name in _DTYPES:
        if hasattr(torch, name):
            yield Value(f"a tensor of {name}", partial(_tensor_of, name))
            yield Value(f"torch.{name} as a dtype", partial(getattr, torch, name))
    for name in _NUMPY:
        yield Value(f"an array of {name}", partial(_array_of, name), lambda value: value)
        if np.dtype(name).kind != "S":
            yield Value(f"a NumPy scalar of {name}", partial(_scalar_of, name))
    yield from _REFUSED
