"""Tensors that consist of other tensors, that is, sparse tensors and tensors of allowed subclasses.

This module is imported only if a state has such tensors. `safe_classes` decides which subclasses are allowed. No class
is imported by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

import torch

from ckstore.errors import BadInput, CannotStore
from ckstore.model.manifest.manifest import Node
from ckstore.model.names import plain
from ckstore.tensors.named.safe_classes import find, is_allowed, name_of
from ckstore.tensors.refusals import how_to_allow
from ckstore.tensors.torch_sources import beside
from ckstore.tensors.walks import with_others


class TensorParts(NamedTuple):
    """The parts of a tensor, and its extra data."""

    kind: str  # ``sparse_coo``, ``sparse_csr``, or the full name of its class
    tensors: dict[str, torch.Tensor]  # its parts by name
    extra: object  # plain values that are also needed to build the tensor


def take_apart(tensor: Any) -> TensorParts | None:
    """Return the parts of a tensor, or None for a tensor that is stored without parts or refused."""
    plain = type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter
    if plain and tensor.layout is torch.sparse_coo and not tensor.is_meta:
        # `indices()` refuses an uncoalesced tensor. The raw parts restore the same tensor.
        found = tensor.detach()
        parts = {"indices": found._indices(), "values": found._values()}  # noqa: SLF001 - see above
        return TensorParts("sparse_coo", parts, (found.shape, found.is_coalesced()))
    if plain and tensor.layout is torch.sparse_csr and not tensor.is_meta:
        found = tensor.detach()
        parts = {"crow_indices": found.crow_indices(), "col_indices": found.col_indices(), "values": found.values()}
        return TensorParts("sparse_csr", parts, found.shape)
    kind = type(tensor)
    # torch's protocol for subclasses runs code of the class during a save and a load, so the user must have allowed the
    # class.
    if plain or is_named_refused(kind) or not _has_protocol(kind) or not is_allowed(kind):
        return None
    names, context = tensor.__tensor_flatten__()
    outer = tuple(tensor.shape), tuple(tensor.stride())
    return TensorParts(name_of(kind), {name: getattr(tensor, name).detach() for name in names}, (context, *outer))


def without_location(extra: Node) -> Node:
    """Return the extra data of a tensor, with None in place of each device."""
    return with_others(extra, "torch.device", lambda _: None)


def at_location_of(parts: Mapping[str, object], extra: Node) -> Node:
    """Return the extra data of a tensor, with the device of its parts in place of each device."""
    # The data may contain the device from which the tensor was saved, such as a GPU that this machine does not have.
    locations = {getattr(part, "device", None) for part in parts.values()}
    if len(locations) != 1:
        return extra
    (location,) = locations
    return with_others(extra, "torch.device", lambda _: None if location is None else ["torch.device", str(location)])


def put_together(kind: str, tensors: Mapping[str, object], extra: Any, path: str) -> object:
    """Build a tensor from its parts and its extra data."""
    name = plain(path) or "the state itself"
    if not all(isinstance(part, torch.Tensor) for part in tensors.values()):
        raise BadInput(f"{name}: a tensor of kind {kind} has parts that are not tensors", hint="select other names")
    parts: dict[str, Any] = dict(tensors)
    try:
        # Without `check_invariants`, indices of a damaged or hostile checkpoint could make torch access other memory.
        if kind == "sparse_coo":
            shape, coalesced = extra
            indices, values = parts["indices"], parts["values"]
            with beside(values):
                return torch.sparse_coo_tensor(
                    indices, values, shape, is_coalesced=bool(coalesced), check_invariants=True
                )
        if kind == "sparse_csr":
            crow, col, values = parts["crow_indices"], parts["col_indices"], parts["values"]
            with beside(values):
                return torch.sparse_csr_tensor(crow, col, values, tuple(extra), check_invariants=True)
        context, shape, strides = extra
        found = find(kind, path)
        if not _has_protocol(found):
            raise TypeError("it is not a tensor by torch's protocol")  # noqa: TRY301
        return found.__tensor_unflatten__(parts, context, torch.Size(shape), tuple(strides))
    except BadInput:
        raise
    except Exception as error:
        msg = f"{name}: the parts of a {kind} do not fit: {type(error).__name__}: {error}"
        raise BadInput(msg, hint="load it with the version of its library that saved it") from error


def _has_protocol(kind: Any) -> bool:
    """Whether a class supports torch's protocol for subclasses, which splits a tensor into parts."""
    if not isinstance(kind, type) or not issubclass(kind, torch.Tensor):
        return False
    return hasattr(kind, "__tensor_flatten__") and hasattr(kind, "__tensor_unflatten__")


_BY_CLASS = {
    "DTensor": "save it with ckstore.integrations.dcp, or store value.full_tensor()",
    "FakeTensor": "save outside FakeTensorMode: a fake tensor has no data",
    "UninitializedParameter": "run a lazy module once before saving, so that it gets its shape",
    "UninitializedBuffer": "run a lazy module once before saving, so that it gets its shape",
    "NestedTensor": "store list(value.unbind())",
    "MaskedTensor": "store value.get_data() and value.get_mask()",
}
_SAME_SIZE = {2: "int16", 4: "int32", 8: "int64"}
_BY_LAYOUT = {torch.sparse_csc: "store value.to_dense(), or value.ccol_indices(), .row_indices() and .values()"}


def is_named_refused(kind: type) -> bool:
    """Whether tensors of a class are refused, even if torch can split them into parts."""
    return kind.__name__ in _BY_CLASS


def refuse_tensor(tensor: torch.Tensor, path: str) -> NoReturn:
    """Raise the error for a tensor that the format does not support."""
    reason, hint = _reason(tensor)
    raise CannotStore(path, f"{reason} cannot be stored", hint=hint)


def _reason(tensor: torch.Tensor) -> tuple[str, str]:
    kind = type(tensor)
    if kind is not torch.Tensor and kind is not torch.nn.Parameter:
        hint = _BY_CLASS.get(kind.__name__, "store the plain tensors that it is made of")
        if kind.__name__ not in _BY_CLASS and hasattr(kind, "__tensor_flatten__"):
            hint = f"allow its class: {how_to_allow(kind)}"
        return f"{kind.__module__}.{kind.__qualname__}, a subclass of torch.Tensor,", hint
    if tensor.is_nested:
        return "a nested tensor", _BY_CLASS["NestedTensor"]
    if tensor.is_quantized:
        hint = "store value.dequantize(), or value.int_repr() with its scale and zero point"
        return f"a quantized tensor ({tensor.dtype})", hint
    if tensor.layout is not torch.strided:
        hint = _BY_LAYOUT.get(tensor.layout, "store value.to_dense()")
        return f"a tensor of layout {tensor.layout}", hint
    if tensor.is_meta:
        return "a tensor on the meta device has no values and", "give the module memory first: to_empty()"
    if getattr(tensor, "has_names", bool)():
        return "a named tensor", "store value.rename(None)"
    # `view` works for every dtype of this size, but `to` does not work for dtypes such as bits16.
    return f"dtype {tensor.dtype}", f"store value.view(torch.{_SAME_SIZE.get(tensor.element_size(), 'uint8')})"
