"""Make the tensors of a load on devices; see `state_restore.TensorSink`.

This module is imported only if a load requests a device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ckstore.errors import BadInput
from ckstore.model.manifest.manifest import LeafKind
from ckstore.tensors.device.memory_space import space_of
from ckstore.tensors.memory_layout import StorageMemory


class DeviceSink:
    """Makes tensors at a location, which has any of the forms of ``map_location`` of `torch.load`.

    The location is a device, a mapping from ``"cpu"`` to a device, or a function. The function is called with a storage
    and ``"cpu"``. It returns the storage to use, or None to use the given storage.
    """

    def __init__(self, location: object) -> None:
        self._location = location
        self._target: Any = location.get("cpu", "cpu") if isinstance(location, Mapping) else location
        # A torch.device is also callable, because it can be a decorator.
        self._is_function = callable(self._target) and not isinstance(self._target, torch.device)

    def check(self) -> None:
        """Raise if tensors cannot be placed at the location. A location that is a function is not checked."""
        if isinstance(self._location, torch.device) or not callable(self._location):
            self._moved(torch.empty(0, dtype=torch.uint8, device="cpu"))

    def allocate(self, sizes: Mapping[int, int]) -> dict[int, Any]:
        """Return memory for storages of these sizes, or an empty dict if a load cannot fill memory at this location."""
        # A function of the user receives filled storages on the CPU.
        if self._target is None or self._is_function:
            return {}
        try:
            device = torch.empty(0, dtype=torch.uint8, device=torch.device(self._target)).device  # with its index
            space = space_of(device)
            if space is None:
                return {}
            empty = {index: torch.empty(size, dtype=torch.uint8, device=device) for index, size in sizes.items()}
            return {index: space.fillable(flat) for index, flat in empty.items()}
        except RuntimeError as error:
            raise self._unusable(f"{type(error).__name__}: {error}") from error

    def placed(self, kind: LeafKind, memory: StorageMemory) -> StorageMemory:
        """Move the memory of a storage to the location, and return it. Only the memory of tensors is moved.

        Raises:
            BadInput: torch has no such device, the device lacks memory, or the function returns a wrong value.
        """
        if kind != "torch":
            return memory
        owner = memory.owner
        flat = owner if isinstance(owner, torch.Tensor) else torch.frombuffer(memory.view, dtype=torch.uint8)
        return StorageMemory(self._moved(flat), memory.view)

    def _moved(self, flat: torch.Tensor) -> torch.Tensor:
        try:
            if not self._is_function:
                return flat if self._target is None else flat.to(torch.device(self._target))
            # Call the function as `torch.load` does, so that functions for `map_location` work.
            storage = self._target(flat.untyped_storage(), "cpu")
            if storage is None:
                return flat
            found = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        except (AssertionError, AttributeError, NotImplementedError, RuntimeError, TypeError) as error:
            raise self._unusable(f"{type(error).__name__}: {error}") from error
        # If the function returned a storage of another size, the tensors would have wrong bytes.
        if found.numel() != flat.numel():
            raise self._unusable(f"it returned {found.numel()} bytes for {flat.numel()}")
        return found

    def _unusable(self, reason: str) -> BadInput:
        hint = (
            "give what map_location of torch.load takes: a device, a dict, or a function of a storage and its location"
        )
        return BadInput(f"device={self._location!r} cannot be used: {reason.splitlines()[0]}", hint=hint)
