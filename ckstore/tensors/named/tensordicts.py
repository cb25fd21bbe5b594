"""A TensorDict of the tensordict library as items, batch size, device and names. The library is not imported."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from ckstore.errors import BadInput, CannotStore

KIND = "tensordict.TensorDict"
_FIELDS = ["items", "batch_size", "device", "names"]


def is_tensor_dict(value: object) -> bool:
    """Whether `value` is a TensorDict itself; one that is lazy, or lies in a file, is stored as its `state_dict()`."""
    library = sys.modules.get("tensordict")
    return library is not None and type(value) is library.TensorDict


def fields_of(value: Any, path: str) -> dict[str, Any]:
    """Return what a TensorDict is made of."""
    items = dict(value.items())
    other = next((name for name, item in items.items() if not _is_item(item)), None)
    if other is not None:
        reason = f"a TensorDict with {other!r}, which is not a tensor, cannot be stored"
        raise CannotStore(path, reason, hint="store value.to_dict()")
    names = value.names if any(name is not None for name in value.names) else None
    return dict(zip(_FIELDS, (items, value.batch_size, value.device, names), strict=True))


def put_together(fields: Mapping[str, Any], path: str) -> object:
    """Return the TensorDict of these fields, on the device on which its items are."""
    torch, library = sys.modules["torch"], sys.modules["tensordict"]
    try:
        items, batch_size, device, names = (fields[name] for name in _FIELDS)
        if not all(map(_is_item, items.values())):
            raise TypeError("an item is not a tensor")  # noqa: TRY301
        if device is not None:
            device = next((item.device for item in items.values() if item.device is not None), device)
        return library.TensorDict(items, batch_size=torch.Size(batch_size), device=device, names=names)
    except (AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
        msg = f"{path or 'the state itself'}: the fields of a TensorDict do not fit: {type(error).__name__}: {error}"
        raise BadInput(msg, hint="load it with the version of tensordict that saved it") from error


def _is_item(item: object) -> bool:
    return is_tensor_dict(item) or isinstance(item, sys.modules["torch"].Tensor)
