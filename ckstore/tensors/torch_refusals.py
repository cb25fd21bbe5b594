"""Why a tensor cannot be stored, and what to store instead."""

from __future__ import annotations

from typing import NoReturn

import torch

from ckstore.errors import CannotStore
from ckstore.tensors.refusals import how_to_allow

_BY_CLASS = {
    "DTensor": "save it with ckstore.integrations.dcp, or store value.full_tensor()",
    "FakeTensor": "save outside FakeTensorMode: there is nothing in it",
    "UninitializedParameter": "run a lazy module once before saving, so that it gets its shape",
    "UninitializedBuffer": "run a lazy module once before saving, so that it gets its shape",
    "NestedTensor": "store list(value.unbind())",
    "MaskedTensor": "store value.get_data() and value.get_mask()",
}
_BY_LAYOUT = {
    torch.sparse_csc: "store value.to_dense(), or value.ccol_indices(), .row_indices() and .values()",
}


def is_named_refused(kind: type) -> bool:
    """Whether tensors of a class are refused, although torch can take them apart."""
    return kind.__name__ in _BY_CLASS


def refuse_tensor(tensor: torch.Tensor, path: str) -> NoReturn:
    """Raise the error for a tensor that the format does not hold."""
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
    if tensor.device.type == "meta":
        return "a tensor on the meta device has no values and", "give the module memory first: to_empty()"
    if getattr(tensor, "has_names", bool)():
        return "a named tensor", "store value.rename(None)"
    hint = "store value.view(torch.uint8)" if tensor.element_size() == 1 else "convert it with .to()"
    return f"dtype {tensor.dtype}", hint
