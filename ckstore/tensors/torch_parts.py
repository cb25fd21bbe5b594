"""Tensors that are made of other tensors: sparse ones, and subclasses that torch was told to trust. Imported for those.

A class is never imported by its name: it is looked for among torch's safe globals, where the program has put it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ckstore.errors import BadInput
from ckstore.tensors.torch_refusals import is_named_refused

if TYPE_CHECKING:
    from collections.abc import Mapping


class Parts(NamedTuple):
    """What a tensor is made of.

    Attributes:
        kind: ``sparse_coo``, ``sparse_csr``, or the full name of its class.
        tensors: Its parts by name.
        extra: What else is needed to put them together; plain values.
    """

    kind: str
    tensors: dict[str, torch.Tensor]
    extra: object


def take_apart(tensor: Any) -> Parts | None:
    """Return what a tensor is made of; None if it is to be stored, or refused, as a whole."""
    plain = type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter
    if plain and tensor.layout is torch.sparse_coo and tensor.device.type != "meta":
        found = tensor.detach()
        parts = {"indices": found._indices(), "values": found._values()}  # noqa: SLF001 - the others are for coalesced ones
        return Parts("sparse_coo", parts, (found.shape, found.is_coalesced()))
    if plain and tensor.layout is torch.sparse_csr and tensor.device.type != "meta":
        found = tensor.detach()
        parts = {
            "crow_indices": found.crow_indices(),
            "col_indices": found.col_indices(),
            "values": found.values(),
        }
        return Parts("sparse_csr", parts, found.shape)
    if plain or is_named_refused(type(tensor)) or _safe_class(full_name(type(tensor))) is not type(tensor):
        return None
    names, context = tensor.__tensor_flatten__()
    outer = tuple(tensor.shape), tuple(tensor.stride())
    return Parts(full_name(type(tensor)), {name: getattr(tensor, name).detach() for name in names}, (context, *outer))


def put_together(kind: str, tensors: Mapping[str, object], extra: Any, path: str) -> object:
    """Return the tensor of these parts.

    Raises:
        BadInput: They do not fit, or its class is not among torch's safe globals.
    """
    name = path or "the state itself"
    if not all(isinstance(part, torch.Tensor) for part in tensors.values()):
        msg = f"{name}: a tensor of kind {kind} has parts that are no tensors"
        raise BadInput(msg, hint="select other names")
    parts: dict[str, Any] = dict(tensors)
    try:
        if kind == "sparse_coo":
            shape, coalesced = extra
            return torch.sparse_coo_tensor(
                parts["indices"], parts["values"], shape, is_coalesced=bool(coalesced), check_invariants=True
            )
        if kind == "sparse_csr":
            crow, col = parts["crow_indices"], parts["col_indices"]
            return torch.sparse_csr_tensor(crow, col, parts["values"], tuple(extra), check_invariants=True)
        context, shape, strides = extra
        return _trusted(kind, name).__tensor_unflatten__(parts, context, torch.Size(shape), tuple(strides))
    except BadInput:
        raise
    except Exception as error:
        msg = f"{name}: the parts of a {kind} do not fit: {type(error).__name__}: {error}"
        raise BadInput(msg, hint="load it with the version of its library that saved it") from error


def full_name(kind: type) -> str:
    """Return the name by which a class is known among torch's safe globals."""
    return f"{kind.__module__}.{kind.__qualname__}"


def _trusted(kind: str, name: str) -> Any:
    found = _safe_class(kind)
    if found is None:
        msg = f"{name} is a {kind}, which is not among the safe globals of torch here"
        raise BadInput(msg, hint="import its class and give it to torch.serialization.add_safe_globals([…])")
    return found


def _safe_class(name: str) -> Any:
    """Return the class of that name, a subclass of Tensor that can be taken apart; None if torch was not told of it."""
    for given in torch.serialization.get_safe_globals():
        kind: Any = given[0] if isinstance(given, tuple) else given
        if isinstance(kind, type) and issubclass(kind, torch.Tensor) and full_name(kind) == name:
            return kind if hasattr(kind, "__tensor_flatten__") and hasattr(kind, "__tensor_unflatten__") else None
    return None
