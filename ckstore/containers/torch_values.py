"""Compute the results of the functions that torch.save names in a pickle, without calling these functions.

The functions of this module return None if arguments do not fit. Their behaviour follows torch/_utils.py,
torch/_tensor.py and torch/serialization.py of torch 2.13.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ckstore.containers.parsed_values import MAX_DIMENSIONS
from ckstore.containers.pickle_values import (
    NAME_CHARS_SHOWN,
    Global,
    PlainNode,
    PlainObject,
    Sparse,
    Storage,
    TensorView,
    Unknown,
)
from ckstore.containers.plain_functions import PLAIN_FUNCTIONS
from ckstore.model.manifest.dtypes import DTYPES, TORCH_ITEMSIZE
from ckstore.model.manifest.python_values import is_python_value

_STORAGES = {one.storage: one.torch for one in DTYPES if one.storage}
_UNTYPED = (Global("torch.storage", "UntypedStorage"), Global("torch", "UntypedStorage"))
_PLAIN_CLASSES = {
    Global("torch", "Tensor"),
    Global("torch._tensor", "Tensor"),
    Global("torch.nn.parameter", "Parameter"),
    Global("torch.nn.parameter", "Buffer"),
}
_LAYOUTS = {"torch.sparse_coo": ("indices", "values"), "torch.sparse_csr": ("crow_indices", "col_indices", "values")}


def _is_size(value: Any) -> bool:
    return type(value) is int and value >= 0


def _are_sizes(value: Any) -> bool:
    return type(value) is tuple and len(value) <= MAX_DIMENSIONS and all(map(_is_size, value))


def storage_of(persistent_id: Any) -> Any:
    """Return the storage of a persistent id, like persistent_load of torch.load.

    The persistent id is ``('storage', type, key, location, numel)``. In files from before torch 1.6, it also has a view
    of a part of the storage.
    """
    if type(persistent_id) is not tuple or len(persistent_id) not in (5, 6) or persistent_id[0] != "storage":
        return Unknown("a persistent id that is not of a storage")
    _, kind, key, _, count, *view = persistent_id
    if type(kind) is not Global or type(key) is not str or not _is_size(count):
        return Unknown("a storage with a persistent id that torch does not write")
    # A state that was saved on a GPU has storage classes of torch.cuda, with the same bytes.
    dtype = _STORAGES.get(kind.name) if kind.module in ("torch", "torch.cuda") else None
    if dtype is None and kind not in _UNTYPED:
        return Unknown(f"a storage of kind {kind}")
    found = Storage(dtype, key, count)
    if view and view[0] is not None:
        part = view[0]
        if type(part) is not tuple or len(part) != 3 or not _is_size(part[1]):
            return Unknown("a view of a storage that torch does not write")
        # Before torch 1.6, a view of a storage was written as a separate storage with an offset.
        return replace(found, first=part[1])
    return found


def _view(args: tuple[Any, ...], *, dtype: str | None, metadata: Any) -> Any:
    storage, offset, shape, strides = args
    if type(storage) is not Storage:
        return storage if type(storage) is Unknown else None
    # `metadata` contains flags such as conj and neg. If one is set, the bytes are not the values.
    if metadata is not None and not (type(metadata) is dict and not metadata):
        return Unknown("a tensor with a pending conjugation or negation")
    dtype = dtype or storage.dtype
    if dtype is None or not (_is_size(offset) and _are_sizes(shape) and _are_sizes(strides)):
        return None
    # If shape and strides differ in length, the tensor could be read beyond its storage.
    if len(shape) != len(strides):
        return None
    return TensorView(storage.key, dtype, storage.first + offset, shape, strides, storage)


def _rebuild_tensor(args: tuple[Any, ...]) -> Any:
    """Rebuild a tensor from storage, offset, size, stride, and in version 2 also requires_grad, hooks, metadata."""
    if not 4 <= len(args) <= 7:
        return None
    return _view(args[:4], dtype=None, metadata=args[6] if len(args) == 7 else None)


def _rebuild_tensor_v3(args: tuple[Any, ...]) -> Any:
    """Rebuild a tensor from storage, offset, size, stride, requires_grad, hooks, dtype, metadata."""
    if not 7 <= len(args) <= 8:
        return None
    dtype = args[6]
    if type(dtype) is not Global or dtype.module != "torch":
        return None
    if dtype.name not in TORCH_ITEMSIZE:
        return Unknown(f"a tensor of the dtype {dtype}")
    return _view(args[:4], dtype=dtype.name, metadata=args[7] if len(args) == 8 else None)


def _rebuild_parameter(args: tuple[Any, ...]) -> Any:
    """Rebuild a parameter from data, requires_grad, hooks, state."""
    return args[0] if args and type(args[0]) in (TensorView, Sparse, Unknown) else None


def _rebuild_from_type(args: tuple[Any, ...]) -> Any:
    """Rebuild a tensor of a class from a function, the class, the arguments of the function, and attributes."""
    if len(args) != 4 or type(args[0]) is not Global or type(args[2]) is not tuple:
        return None
    make = _TENSOR_FUNCTIONS.get(args[0])
    if make is None:
        return Unknown(str(args[0]))
    made = make(args[2])
    is_named = type(args[1]) is Global
    if made is None or (is_named and args[1] in _PLAIN_CLASSES):
        return made
    # Keep the name of a subclass, so that a load can refuse or allow the subclass by its name.
    kind = str(args[1]) if is_named else "a tensor of a class that is not named"
    return replace(made, kind=kind) if type(made) is TensorView else Unknown(kind)


def _rebuild_sparse(args: tuple[Any, ...]) -> Any:
    """Rebuild a sparse tensor from a layout and the data of this layout."""
    if len(args) != 2 or type(args[0]) is not Unknown or type(args[1]) is not tuple:
        return None
    layout = args[0].description
    names = _LAYOUTS.get(layout)
    if names is None:
        return Unknown(f"a tensor of the layout {layout[:NAME_CHARS_SHOWN]}")
    if len(args[1]) <= len(names):
        return None
    *parts, shape = args[1][: len(names) + 1]
    if type(shape) is PlainNode and shape.node[0] == "torch.Size":
        shape = tuple(shape.node[1])
    if len(parts) != len(names) or not _are_sizes(shape) or any(type(part) is not TensorView for part in parts):
        return None
    coalesced = args[1][len(names) + 1 :]
    if layout == "torch.sparse_coo" and not (len(coalesced) == 1 and type(coalesced[0]) is bool):
        coalesced = (False,)
    is_coalesced = layout == "torch.sparse_coo" and coalesced[0]
    return Sparse(layout.removeprefix("torch."), dict(zip(names, parts, strict=True)), shape, is_coalesced)


def _layout(args: tuple[Any, ...]) -> Any:
    """Return a layout by its name. Only sparse tensors use layouts."""
    return Unknown(args[0]) if len(args) == 1 and type(args[0]) is str else None


def _size(args: tuple[Any, ...]) -> Any:
    if not args:
        return PlainNode(["torch.Size", []])
    if (
        len(args) != 1
        or type(args[0]) not in (tuple, list)
        or len(args[0]) > MAX_DIMENSIONS
        or any(type(size) is not int for size in args[0])
    ):
        return None
    return _checked(["torch.Size", list(args[0])])


def _device(args: tuple[Any, ...]) -> Any:
    if len(args) not in (1, 2) or type(args[0]) is not str:
        return None
    # The index is limited, because it is converted to text. A million digits would take long, or fail.
    if len(args) == 2 and (type(args[1]) is not int or not 0 <= args[1] < 10_000):
        return None
    return _checked(["torch.device", ":".join(map(str, args))])


def _checked(node: list[Any]) -> PlainNode | None:
    return PlainNode(node) if is_python_value(node) else None


_TENSOR_FUNCTIONS: dict[Global, Callable[[tuple[Any, ...]], Any]] = {
    Global("torch._utils", "_rebuild_tensor"): _rebuild_tensor,
    Global("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    Global("torch._utils", "_rebuild_tensor_v3"): _rebuild_tensor_v3,
    Global("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    Global("torch._utils", "_rebuild_sparse_tensor"): _rebuild_sparse,
}
FUNCTIONS: dict[Global, Callable[[tuple[Any, ...]], Any]] = {
    **PLAIN_FUNCTIONS,
    **_TENSOR_FUNCTIONS,
    Global("torch._utils", "_rebuild_parameter_with_state"): _rebuild_parameter,
    Global("torch._tensor", "_rebuild_from_type_v2"): _rebuild_from_type,
    Global("torch.serialization", "_get_layout"): _layout,
    Global("torch", "Size"): _size,
    Global("torch", "device"): _device,
}
_OBJECT = Global("builtins", "object")
_RENAMED_MODULES = {"__builtin__": "builtins", "copy_reg": "copyreg", "torch.tensor": "torch._tensor"}


def global_of(module: str, name: str) -> Global:
    """Return the `Global` of a name, with the current name of its module in Python 3 and torch."""
    return Global(_RENAMED_MODULES.get(module, module), name)


def reduced(function: Any, args: Any) -> Any:
    """Return the result of calling a function, or an `Unknown` with the name of the function or class."""
    if type(function) is not Global:
        return function if type(function) is Unknown else Unknown("a call of something that is not a function")
    make = FUNCTIONS.get(function)
    if make is None:
        # `copyreg._reconstructor` makes objects of classes that do not define how they are pickled.
        is_object = str(function) == "copyreg._reconstructor" and type(args) is tuple and len(args) == 3
        if not is_object or type(args[0]) is not Global:
            return Unknown(str(function))
        # Protocols 0 and 1 write an argparse.Namespace in this way.
        make = FUNCTIONS.get(args[0]) if args[1:] == (_OBJECT, None) else None
        made = None if make is None else make(())
        return made if type(made) is PlainObject else Unknown(str(args[0]))
    made = make(args) if type(args) is tuple else None
    return Unknown(f"{function} with arguments that are not written by torch.save") if made is None else made
