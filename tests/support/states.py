"""States to save, drawn by Hypothesis, and whether what came back is the same.

`states()` draws everything that can be stored: tensors of all dtypes, strided, tied, as views of one
memory, conjugated, empty; arrays; numbers with odd bits; strings with surrogates; big containers no.
`assert_same(a, b)` compares bits, dtypes, shapes, structure, types and order; and what shares memory.
"""

from __future__ import annotations

import datetime as dt
import decimal
import io
import math
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from functools import cache
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from ckstore.model.canonical import fits_json
from ckstore.model.manifest.dtypes import TORCH_ITEMSIZE
from ckstore.model.manifest.nodes import join
from ckstore.model.names import join_index

TORCH_DTYPES = [getattr(torch, name) for name in TORCH_ITEMSIZE if hasattr(torch, name)]
NUMPY_DTYPES = [
    *("|b1", "|i1", "<i2", ">i4", "<i8", "|u1", "<u2", "<u4", ">u8"),
    *("<f2", "<f4", ">f4", "<f8", "<c8", "<c16", ">c16", "<M8[ns]", "<M8", "<m8[25s]", "|S3"),
]
_POOL_BYTES = 256
DAY = dt.timedelta(hours=23)

characters = st.characters(exclude_categories=())
"""Any code point, lone surrogates too."""


def tensors(pool: list[torch.Tensor] | None = None) -> st.SearchStrategy[torch.Tensor]:
    """Draw a tensor of any kind that can be stored; some look at a memory of `pool`."""
    return _tensors([] if pool is None else pool)


@st.composite
def _tensors(draw: st.DrawFn, pool: list[torch.Tensor]) -> torch.Tensor:
    dtype = draw(st.sampled_from(TORCH_DTYPES))
    shape = tuple(draw(st.lists(st.integers(0, 4) | st.integers(1, 3), max_size=3)))
    strides = draw(_strides(shape))
    span = 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    shared = bool(pool) and draw(st.booleans()) and span * dtype.itemsize <= _POOL_BYTES
    if not shared:
        offset = draw(st.integers(0, 2))
        nbytes = (offset + span + draw(st.integers(0, 2))) * dtype.itemsize
        memory = _memory(draw, nbytes)
    else:
        memory = draw(st.sampled_from(pool))
        offset = draw(st.integers(0, _POOL_BYTES // dtype.itemsize - span))
    tensor = tensor_over(memory, dtype, shape, strides, offset)
    if dtype in (torch.complex64, torch.complex128) and draw(st.booleans()):
        return tensor.conj()
    if dtype in (torch.float32, torch.bfloat16) and draw(st.booleans()):
        return torch.nn.Parameter(tensor, requires_grad=draw(st.booleans()))
    return tensor


@st.composite
def _strides(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[int, ...]:
    how = draw(st.sampled_from(["row-major", "row-major", "permuted", "any"]))
    if how == "any":
        return tuple(draw(st.integers(0, 5)) for _ in shape)
    order = list(reversed(range(len(shape))))
    if how == "permuted":
        order = draw(st.permutations(order))
    strides, step = [0] * len(shape), 1
    for dimension in order:
        strides[dimension] = step
        step *= max(shape[dimension], 1)
    return tuple(strides)


def _memory(draw: st.DrawFn, nbytes: int) -> torch.Tensor:
    data = draw(st.binary(min_size=nbytes, max_size=nbytes))
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).clone() if nbytes else torch.empty(0, dtype=torch.uint8)


def tensor_over(
    memory: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> torch.Tensor:
    """Return a tensor that looks at the bytes of `memory`; `strides` and `offset` are in elements."""
    plain = torch.float16 if "complex32" in str(dtype) else dtype  # for which torch.empty would warn
    empty = torch.empty(0, dtype=plain).view(dtype)
    if 0 in shape:
        return empty.resize_(shape)
    return empty.set_(memory.untyped_storage(), offset, shape, strides)


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """Draw a NumPy array that can be stored, in C order, in Fortran order or with gaps."""
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    count = math.prod(shape)
    if draw(st.booleans()) and draw(st.booleans()):
        words = draw(st.lists(st.text(max_size=4), min_size=count, max_size=count))
        array = np.array(words or [""], dtype="<U4")[:count].reshape(shape)
    else:
        dtype = np.dtype(draw(st.sampled_from(NUMPY_DTYPES)))
        data = draw(st.binary(min_size=count * dtype.itemsize, max_size=count * dtype.itemsize))
        array = np.frombuffer(bytearray(data), dtype).reshape(shape)
    how = draw(st.sampled_from(["C", "F", "gaps", "reversed"]))
    if how == "F":
        return np.asfortranarray(array)
    if how == "gaps" and shape:
        return np.repeat(array, 2, axis=0)[::2]
    return array[::-1] if how == "reversed" and shape else array


@st.composite
def numpy_scalars(draw: st.DrawFn) -> np.generic:
    """Draw a NumPy scalar that can be stored."""
    dtype = np.dtype(draw(st.sampled_from([name for name in NUMPY_DTYPES if "S" not in name])))
    data = draw(st.binary(min_size=dtype.itemsize, max_size=dtype.itemsize))
    if dtype.kind == "b":
        data = bytes([data[0] & 1])
    scalar: np.generic = np.frombuffer(data, dtype)[0]
    return scalar


@cache
def floats() -> st.SearchStrategy[float]:
    """Draw any float, every payload of nan too."""
    bits = st.binary(min_size=8, max_size=8).map(lambda data: float(struct.unpack(">d", data)[0]))
    return st.floats() | bits


@cache
def scalars() -> st.SearchStrategy[Any]:
    """Draw a value of Python's own types that is no container, short or long."""
    return st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.integers(2**53 - 2, 2**53 + 2),
        st.integers(-(2**70), 2**70).map(lambda n: n**17),
        floats(),
        st.builds(complex, floats(), floats()),
        st.text(characters, max_size=5),
        st.text(characters, min_size=1, max_size=2).map(lambda text: text * 4096),
        st.binary(max_size=4),
        st.binary(min_size=1, max_size=1).map(lambda data: data * 257),
    )


@cache
def plain_values() -> st.SearchStrategy[Any]:
    """Draw a value of the standard library, or a plain one of torch or NumPy."""
    zones = st.none() | st.just(dt.UTC) | st.timedeltas(-DAY, DAY).map(dt.timezone)
    return st.one_of(
        st.sets(every_key(), max_size=3),
        st.frozensets(every_key(), max_size=3),
        st.binary(max_size=4).map(bytearray),
        (st.binary(max_size=4) | st.just(b"ab" * 129)).map(io.BytesIO),
        st.decimals() | st.decimals(allow_nan=False, places=3),
        st.datetimes(timezones=zones),
        st.dates(),
        st.timedeltas(),
        st.sampled_from([Path("a/b"), PurePosixPath("/"), PureWindowsPath("c:/a")]),
        st.sampled_from([torch.Size([2, 0]), torch.Size([]), torch.float32, torch.device("cuda", 1), np.str_("é")]),
        st.sampled_from([torch.qint8, torch.sparse_coo, torch.channels_last, torch.per_channel_affine]),
    )


@cache
def every_key() -> st.SearchStrategy[Any]:
    """Draw a key of any kind."""
    simple = keys() | st.booleans() | st.floats(allow_nan=False) | st.none()
    return simple | st.tuples(simple) | st.tuples(simple, st.tuples(simple))


@cache
def keys() -> st.SearchStrategy[str | int]:
    """Draw a key that is a string or an integer."""
    texts = st.text("ab.[]\\0", max_size=3) | st.text(characters, max_size=3).filter(fits_json)
    return texts | st.integers(-3, 3) | st.integers()


def plain_states() -> st.SearchStrategy[Any]:
    """Draw a state of Python's own types."""
    return st.recursive(scalars(), _containers, max_leaves=8)


@st.composite
def states(draw: st.DrawFn) -> Any:
    """Draw a state: a nested dict, list or tuple, or a single value, of everything that can be stored."""
    pool = [_memory(draw, _POOL_BYTES) for _ in range(draw(st.integers(0, 2)))]
    leaves = tensors(pool) | arrays() | numpy_scalars() | scalars()
    return draw(st.recursive(leaves, _containers, max_leaves=12))


def _containers(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    dicts = st.dictionaries(keys(), children, max_size=5)
    return st.one_of(
        dicts,
        dicts.map(Counter),
        st.lists(children, max_size=4),
        st.lists(children, max_size=4).map(tuple),
        st.builds(_ordered, dicts, st.none() | st.dictionaries(st.text("_ab", min_size=1), st.integers(), max_size=2)),
    )


@st.composite
def every_state(draw: st.DrawFn) -> Any:
    """Draw a state with the values and containers that `states` leaves out."""
    inner = states() | plain_values()
    dicts = st.dictionaries(every_key(), inner, max_size=3)
    return draw(
        st.one_of(
            plain_values(),
            dicts,
            st.builds(defaultdict, st.sampled_from([None, list, int]), dicts),
            st.builds(deque, st.lists(inner, max_size=3), st.none() | st.integers(3, 9)),
        )
    )


def _ordered(items: dict[Any, Any], attributes: dict[str, Any] | None) -> OrderedDict[Any, Any]:
    out = OrderedDict(items)
    vars(out).update(attributes or {})
    return out


def assert_same(a: Any, b: Any) -> None:
    """Check that `b` is what a save and a load make of `a`.

    Parameters and conjugate views of `a` are plain tensors in `b`; objects with ``state_dict`` are
    their states. What shares memory in `a` does in `b`, as far apart where it overlaps.
    """
    in_a: list[torch.Tensor] = []
    in_b: list[torch.Tensor] = []
    _same(a, b, "", in_a, in_b)
    _same_ties(in_a, in_b)


def _same(a: Any, b: Any, path: str, in_a: list[torch.Tensor], in_b: list[torch.Tensor]) -> None:
    if isinstance(a, torch.Tensor):
        _same_tensor(a, b, path)
        in_a.append(a)
        in_b.append(b)
    elif isinstance(a, np.ndarray):
        _same_array(a, b, path)
    elif isinstance(a, dict):
        assert type(b) is type(a), path
        assert [(type(key), key) for key in b] == [(type(key), key) for key in a], path
        assert getattr(b, "default_factory", None) is getattr(a, "default_factory", None), path
        if type(a) is OrderedDict:
            _same(vars(a), vars(b), f"{path} (attributes)", in_a, in_b)
        for key in a:
            _same(a[key], b[key], join(path, key), in_a, in_b)
    elif isinstance(a, list | tuple | deque):
        assert type(b) is type(a), path
        assert getattr(b, "maxlen", None) == getattr(a, "maxlen", None), path
        assert len(b) == len(a), path
        for i, item in enumerate(a):
            _same(item, b[i], join_index(path, i), in_a, in_b)
    elif hasattr(a, "state_dict"):
        _same(a.state_dict(), b, path, in_a, in_b)
    else:
        assert type(b) is type(a), path
        assert _bits_of_value(b) == _bits_of_value(a), path


def _same_tensor(a: torch.Tensor, b: Any, path: str) -> None:
    assert type(b) is torch.Tensor, path
    assert (b.dtype, b.shape) == (a.dtype, a.shape), path
    assert not b.requires_grad, path
    assert not b.is_conj(), path
    assert tensor_bits(b) == tensor_bits(a), path


def _same_array(a: np.ndarray[Any, Any], b: Any, path: str) -> None:
    assert type(b) is np.ndarray, path
    assert (b.dtype.str, b.shape) == (a.dtype.str, a.shape), path
    assert b.tobytes() == a.tobytes(), path
    assert b.flags.writeable, path
    if a.flags.forc:
        assert (b.flags.c_contiguous, b.flags.f_contiguous) == (a.flags.c_contiguous, a.flags.f_contiguous), path


def tensor_bits(tensor: torch.Tensor) -> bytes:
    """Return the bytes of all elements, in row-major order."""
    plain = tensor.detach()
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(plain.element_size())
    if whole is not None:
        plain = plain.view(whole)
    return plain.cpu().numpy().tobytes()


def _bits_of_value(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.dtype.str, value.tobytes()
    if isinstance(value, float):
        return struct.pack(">d", value)
    if isinstance(value, complex):
        return struct.pack(">dd", value.real, value.imag)
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, io.BytesIO):
        return value.tell(), value.getvalue()
    if isinstance(value, dt.datetime):
        return value.isoformat(), value.fold, repr(value.tzinfo)
    return value


def _same_ties(in_a: list[torch.Tensor], in_b: list[torch.Tensor]) -> None:
    pairs = [(a, b) for a, b in zip(in_a, in_b, strict=True) if a.numel() and not a.is_conj() and not a.is_neg()]
    for i, (a, b) in enumerate(pairs):
        for other_a, other_b in pairs[:i]:
            tied = _memory_of(a) == _memory_of(other_a)
            assert (_memory_of(b) == _memory_of(other_b)) == tied
            if tied and _overlap(a, other_a):
                assert b.data_ptr() - other_b.data_ptr() == a.data_ptr() - other_a.data_ptr()
                assert all(n == 1 or s == t for n, s, t in zip(a.shape, b.stride(), a.stride(), strict=True))


def _memory_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    (a_start, a_stop), (b_start, b_stop) = _span(a), _span(b)
    return a_start < b_stop and b_start < a_stop


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()
