"""Copies of the values of a module, from which they are restored if custom loading fails."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch

from ckstore.tensors.targets import torch_targets
from ckstore.tensors.targets.module_parts import has_extra_state

_CONTAINERS = {dict, OrderedDict, list, set}


class ModuleSnapshot:
    """The values of a part of a module: values of tensors, attributes, and extra state.

    The content of objects in attributes is not kept, unless the extra state has it.
    """

    def __init__(self, part: Any, *, whole: bool) -> None:
        # Attributes and values are both kept, because a loader may replace a buffer, or write into a buffer.
        self._attributes = [_Attributes(one) for one in _modules(part, whole=whole)]
        self._values = [_Value(one) for one in _tensors(part, whole=whole).values()]
        self._extra = [
            (one, copy.deepcopy(one.get_extra_state()))
            for one in _modules(part, whole=whole)
            if getattr(type(one), "get_extra_state", None) is not torch.nn.Module.get_extra_state
            and has_extra_state(one)
        ]

    def put_back(self) -> None:
        """Restore the part."""
        self._put_back_attributes()
        for part, state in self._extra:
            try:
                part.set_extra_state(state)  # the loader may have changed objects in attributes in place
            except Exception:  # noqa: BLE001 - some parts refuse their own extra state, for example if the part is new
                self._put_back_attributes()
        with torch.no_grad():
            for value in self._values:
                value.put_back()

    def _put_back_attributes(self) -> None:
        for attributes in self._attributes:
            attributes.put_back()


def kept_bytes(part: Any, *, whole: bool) -> int:
    """Return the memory that a snapshot takes."""
    kept = filter(_has_values, _tensors(part, whole=whole).values())
    return sum(tensor.numel() * tensor.element_size() for tensor in kept)  # an upper bound for a sparse tensor


def _tensors(part: Any, *, whole: bool) -> dict[int, torch.Tensor]:
    """Return the tensors that a part has, and those inside them, by their `id`."""
    found: dict[int, torch.Tensor] = {}
    for one in _modules(part, whole=whole):
        below = [*one._parameters.values(), *one._buffers.values(), *vars(one).values()]  # noqa: SLF001
        tensors = [value for value in below if isinstance(value, torch.Tensor)]
        inner = [value for tensor in tensors for value in vars(tensor).values() if isinstance(value, torch.Tensor)]
        found |= {id(value): value for value in (*tensors, *inner)}
    return found


def _modules(part: Any, *, whole: bool) -> Iterator[Any]:
    return part.modules() if whole else iter([part])


def _has_values(tensor: torch.Tensor) -> bool:
    return not torch.nn.parameter.is_lazy(tensor) and not tensor.is_meta


class _Attributes:
    """The attributes of an object, and the items of those that are containers."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner
        self._held = dict(vars(owner))
        self._items = [(value, copy.copy(value)) for value in self._held.values() if type(value) in _CONTAINERS]

    def put_back(self) -> None:
        own = vars(self._owner)
        own.clear()
        own.update(self._held)
        for container, items in self._items:
            if isinstance(container, list):
                container[:] = items
            else:
                container.clear()
                container.update(items)


class _Value:
    """A copy of the values and attributes of a tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._kind = type(tensor)
        self._attributes = _Attributes(tensor)
        self._data = None
        if _has_values(tensor):
            is_plain = self._kind in {torch.Tensor, torch.nn.Parameter}
            # Copy plain tensors to the CPU, because a second copy of the layer may not fit on the GPU.
            self._data = tensor.detach().to("cpu", copy=True) if is_plain else tensor.detach().clone()

    def put_back(self) -> None:
        tensor, data = self._tensor, self._data
        if type(tensor) is not self._kind:  # a lazy parameter that got its shape
            tensor.data = tensor.new_empty(0)
            tensor.__class__ = self._kind
        elif data is not None and (tensor.shape, tensor.dtype) != (data.shape, data.dtype):
            tensor.data = torch_targets.moved_to(data, tensor)
        elif data is not None:
            tensor.copy_(data)
        self._attributes.put_back()
