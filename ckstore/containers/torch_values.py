"""What the functions that torch.save names in a pickle would make, as plain values; none of them is looked up.

Sources: torch/_utils.py, torch/_tensor.py and torch/serialization.py of torch 2.13.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ckstore.containers.values import MAX_DIMENSIONS
from ckstore.model.manifest.dtypes import TORCH_ITEMSIZE


class _Opaque:
    """A value that is not followed."""


OPAQUE: Final = _Opaque()


@dataclass(frozen=True, slots=True)
class Global:
    """A name that unpickling would import."""

    module: str
    name: str


@dataclass(frozen=True, slots=True)
class Storage:
    """A record of bytes; `dtype` is None if it is untyped."""

    dtype: str | None
    key: str


@dataclass(frozen=True, slots=True)
class TensorView:
    """A tensor as the pickle says, not compared with what is there.

    Attributes:
        key: Name of the record of its storage, below ``data/``.
        dtype: Of `model/manifest/dtypes`.
        offset: Elements from the start of the storage to the first one.
        shape, strides: As torch has them, of one length, none below 0.
    """

    key: str
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


_STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexDoubleStorage": "complex128",
    "ComplexFloatStorage": "complex64",
}
_UNTYPED = (Global("torch.storage", "UntypedStorage"), Global("torch", "UntypedStorage"))


def _is_size(value: Any) -> bool:
    return type(value) is int and value >= 0


def _are_sizes(value: Any) -> bool:
    return type(value) is tuple and len(value) <= MAX_DIMENSIONS and all(map(_is_size, value))


def storage_of(persistent_id: Any) -> Any:
    """Return what torch.load's persistent_load would: ``('storage', type, key, location, numel)``."""
    if type(persistent_id) is not tuple or len(persistent_id) != 5 or persistent_id[0] != "storage":
        return OPAQUE
    _, kind, key, _, _ = persistent_id
    if type(kind) is not Global or type(key) is not str:
        return OPAQUE
    if kind in _UNTYPED:
        return Storage(None, key)
    dtype = _STORAGES.get(kind.name) if kind.module == "torch" else None
    return Storage(dtype, key) if dtype else OPAQUE


def _view(args: tuple[Any, ...], *, dtype: str | None, metadata: Any) -> Any:
    storage, offset, shape, strides = args
    # What `metadata` has are flags such as conj and neg: then the bytes are not the values.
    plain = metadata is None or (type(metadata) is dict and not metadata)
    if type(storage) is not Storage or not plain:
        return OPAQUE
    dtype = dtype or storage.dtype
    if dtype is None or not (_is_size(offset) and _are_sizes(shape) and _are_sizes(strides)):
        return OPAQUE
    return TensorView(storage.key, dtype, offset, shape, strides) if len(shape) == len(strides) else OPAQUE


def _rebuild_tensor(args: tuple[Any, ...]) -> Any:
    """See `torch._utils`: storage, offset, size, stride, and in version 2 requires_grad, hooks, metadata."""
    if not 4 <= len(args) <= 7:
        return OPAQUE
    return _view(args[:4], dtype=None, metadata=args[6] if len(args) == 7 else None)


def _rebuild_tensor_v3(args: tuple[Any, ...]) -> Any:
    """See `torch._utils`: storage, offset, size, stride, requires_grad, hooks, dtype, metadata."""
    if not 7 <= len(args) <= 8:
        return OPAQUE
    dtype = args[6]
    if type(dtype) is not Global or dtype.module != "torch" or dtype.name not in TORCH_ITEMSIZE:
        return OPAQUE
    return _view(args[:4], dtype=dtype.name, metadata=args[7] if len(args) == 8 else None)


def _rebuild_parameter(args: tuple[Any, ...]) -> Any:
    """See `torch._utils`: data, requires_grad, hooks, state."""
    return args[0] if args and type(args[0]) is TensorView else OPAQUE


def _rebuild_from_type(args: tuple[Any, ...]) -> Any:
    """See `torch._tensor`: function, type, its arguments, attributes."""
    if len(args) != 4 or type(args[0]) is not Global or type(args[2]) is not tuple:
        return OPAQUE
    make = _TENSOR_FUNCTIONS.get(args[0])
    return OPAQUE if make is None else make(args[2])


def _empty_dict(args: tuple[Any, ...]) -> Any:
    # With arguments it is what Python 2 wrote.
    return OPAQUE if args else {}


_TENSOR_FUNCTIONS: dict[Global, Callable[[tuple[Any, ...]], Any]] = {
    Global("torch._utils", "_rebuild_tensor"): _rebuild_tensor,
    Global("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    Global("torch._utils", "_rebuild_tensor_v3"): _rebuild_tensor_v3,
}
FUNCTIONS: dict[Global, Callable[[tuple[Any, ...]], Any]] = {
    **_TENSOR_FUNCTIONS,
    Global("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    Global("torch._utils", "_rebuild_parameter_with_state"): _rebuild_parameter,
    Global("torch._tensor", "_rebuild_from_type_v2"): _rebuild_from_type,
    Global("collections", "OrderedDict"): _empty_dict,
    Global("collections", "defaultdict"): lambda args: {} if len(args) <= 1 else OPAQUE,
}
