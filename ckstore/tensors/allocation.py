"""Allocate memory for a storage, or wrap existing memory, as its kind of leaves needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckstore.fs.buffers import prefer_huge_pages
from ckstore.tensors.memory_layout import StorageMemory

if TYPE_CHECKING:
    from ckstore.model.manifest.manifest import LeafKind


# Two huge pages at least; huge ones everywhere were twice as slow where the host must give memory back (docs/adr/0007).
_HUGE_FROM_BYTES = 4 * 2**20


def allocate(kind: LeafKind, nbytes: int) -> StorageMemory:
    """Return new memory for a storage of `nbytes` bytes, with undefined content."""
    try:
        memory = _fresh(kind, nbytes)
        if memory.view.nbytes >= _HUGE_FROM_BYTES:
            prefer_huge_pages(memory.view)
    # torch says RuntimeError, NumPy ValueError or MemoryError: callers catch one.
    except (MemoryError, OverflowError, RuntimeError, TypeError, ValueError) as error:  # torch, NumPy and Python differ
        raise MemoryError(f"{nbytes} bytes for one storage could not be allocated") from error
    return memory


def _fresh(kind: LeafKind, nbytes: int) -> StorageMemory:
    owner: Any
    if kind == "torch":
        from ckstore.tensors import torch_leaves

        owner = torch_leaves.empty_bytes(nbytes)
        return StorageMemory(owner, memoryview(owner.numpy()))
    if kind == "numpy":
        from ckstore.tensors import numpy_leaves

        owner = numpy_leaves.empty_bytes(nbytes)
    else:
        owner = bytearray(nbytes)
    return StorageMemory(owner, memoryview(owner))


def wrap(kind: LeafKind, view: memoryview) -> StorageMemory:
    """Return the memory of a storage in `view`, without a copy."""
    # `kind`: kind of the leaves that will be made of it. `view`: Bytes of a writable buffer, such as a mapping. It
    # stays exported, so that it cannot be closed, for as long as one of the leaves lives.
    if not view:
        return allocate(kind, 0)
    owner: Any = view
    if kind == "torch":
        from ckstore.tensors import torch_leaves

        owner = torch_leaves.bytes_in(view)
    elif kind == "numpy":
        from ckstore.tensors import numpy_leaves

        owner = numpy_leaves.bytes_in(view)
    return StorageMemory(owner, view)
