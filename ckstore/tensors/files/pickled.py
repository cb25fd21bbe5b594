"""Pickle a state like `torch.save`, but without the bytes of its storages, which need not be in memory."""

from __future__ import annotations

import io
import pickle  # a file of torch contains a pickle by definition; this module only writes it
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch

from ckstore.errors import BadInput
from ckstore.fs.mapping import reserve
from ckstore.model.manifest.manifest import LeafRecord, StorageRecord
from ckstore.tensors.memory_layout import StorageMemory
from ckstore.tensors.state_restore import allocate, make_leaf
from ckstore.tensors.torch_leaves import bytes_in, empty_bytes

_PROTOCOL = 2  # the protocol that torch writes and that ``weights_only=True`` reads


@dataclass(frozen=True, slots=True)
class PickledState:
    """The pickle of a state, and the storages to which the pickle refers by their index in `storages`."""

    data: bytes  # the pickle
    # For each storage, its number in the checkpoint, or its bytes if it is not a storage of the checkpoint.
    storages: tuple[int | bytes, ...]
    unsafe_globals: tuple[str, ...]  # classes and functions that ``weights_only=True`` rejects


class Placeholders:
    """Placeholders for the memory of storages. Each has a unique address, and they take no memory."""

    def __init__(self, storages: Sequence[StorageRecord]) -> None:
        self._starts, at = [], 0
        for record in storages:
            self._starts.append(at)
            at += -(-record.nbytes // 64) * 64
        self._storages = storages
        self._memory = reserve(at) if at else memoryview(b"")
        self._numbers: dict[int, int] = {}
        self._held: list[torch.UntypedStorage] = []

    def memory(self, storage: int) -> StorageMemory:
        """Return the placeholder for a storage."""
        start = self._starts[storage]
        nbytes = self._storages[storage].nbytes
        flat = bytes_in(self._memory[start : start + nbytes]) if nbytes else empty_bytes(0)
        held = flat.untyped_storage()
        self._held.append(held)  # so that its address is not reused
        self._numbers[held._cdata] = storage  # noqa: SLF001 - torch.save distinguishes storages by this address
        return StorageMemory(flat, memoryview(b""))

    def number(self, storage: torch.UntypedStorage) -> int | None:
        """Return the number of the storage that a placeholder stands for, or None if `storage` is no placeholder."""
        return self._numbers.get(storage._cdata)  # noqa: SLF001


def pickle_state(state: object, number: Callable[[torch.UntypedStorage], int | None]) -> PickledState:
    """Pickle a state whose storages may be placeholders.

    `number` returns the number of the storage that a placeholder stands for, or None for a storage with its own bytes.
    """
    keys: dict[int, int] = {}
    held: list[torch.UntypedStorage] = []
    named: dict[int, Any] = {}

    class _Pickler(pickle.Pickler):
        def persistent_id(self, obj: Any) -> Any:
            if isinstance(obj, torch.storage.TypedStorage):
                typed: Any = obj
                storage = typed._untyped_storage  # noqa: SLF001 - this function does the same as torch.save
                kind, count = getattr(torch, typed._pickle_storage_type()), typed._size()  # noqa: SLF001
            elif isinstance(obj, torch.UntypedStorage):
                storage, kind, count = obj, torch.UntypedStorage, obj.nbytes()
            else:
                return None
            key = storage._cdata  # noqa: SLF001
            if key not in keys:
                keys[key] = len(held)
                held.append(storage)
            return "storage", kind, str(keys[key]), "cpu", count

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, type | FunctionType | BuiltinFunctionType):
                named[id(obj)] = obj
            return NotImplemented

    data = io.BytesIO()
    try:
        _Pickler(data, protocol=_PROTOCOL).dump(state)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        msg = f"the state cannot be pickled: {error}"
        raise BadInput(
            msg, hint="torch imports classes by module and name: define the class in a module, or select the rest"
        ) from error
    storages: list[int | bytes] = []
    for storage in held:
        number_there = number(storage)
        if number_there is None:
            flat: Any = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
            storages.append(bytes(memoryview(flat)) if storage.nbytes() else b"")
        else:
            storages.append(number_there)
    return PickledState(data.getvalue(), tuple(storages), _unsafe(named.values()))


def pickle_tensor(leaf: LeafRecord, nbytes: int) -> bytes:
    """Return the pickle of a tensor with the shape, dtype and strides of `leaf`, in a storage of `nbytes` bytes."""
    stand_in = Placeholders([StorageRecord(nbytes, ())])
    memory = stand_in.memory(0) if nbytes else allocate("torch", 0)
    return pickle_state(make_leaf(leaf._replace(storage=0, offset=0), memory), stand_in.number).data


def saved(value: object) -> bytes:
    """Return the bytes that `torch.save` writes for a small value."""
    data = io.BytesIO()
    torch.save(value, data)
    return data.getvalue()


def _unsafe(named: Iterable[Any]) -> tuple[str, ...]:
    """Return the names of the classes and functions in a pickle that torch rejects with ``weights_only=True``."""
    from torch._weights_only_unpickler import _get_allowed_globals, _get_user_allowed_globals

    given: Any = _get_user_allowed_globals  # torch does not annotate it
    admitted = {**_get_allowed_globals(), **given()}
    same = {id(one) for one in admitted.values()}  # some of them have another name in a pickle
    names = ((f"{one.__module__}.{one.__qualname__}", one) for one in named)
    return tuple(sorted({name for name, one in names if name not in admitted and id(one) not in same}))
