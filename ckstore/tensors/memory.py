"""Memory that restored leaves lie in. One storage is one memory; its leaves share it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckstore.fs.buffers import prefer_huge_pages

if TYPE_CHECKING:
    from ckstore.model.manifest import LeafKind

_HUGE_FROM_BYTES = 4 * 2**20


@dataclass
class StorageMemory:
    """The bytes of one storage, to be filled before leaves are made of it.

    Attributes:
        owner: A flat uint8 tensor or array, or, for bytes and str, a buffer. Leaves keep it alive.
        view: All of its bytes, writable.
    """

    owner: object
    view: memoryview


def allocate(kind: LeafKind, nbytes: int) -> StorageMemory:
    """Return fresh memory for a storage of `nbytes` bytes; its content is undefined."""
    owner: Any
    if kind == "torch":
        from ckstore.tensors import torch_leaves

        owner = torch_leaves.empty_bytes(nbytes)
        return _in_huge_pages(StorageMemory(owner, memoryview(owner.numpy())))
    if kind == "numpy":
        from ckstore.tensors import numpy_leaves

        owner = numpy_leaves.empty_bytes(nbytes)
    else:
        owner = bytearray(nbytes)
    return _in_huge_pages(StorageMemory(owner, memoryview(owner)))


def _in_huge_pages(memory: StorageMemory) -> StorageMemory:
    if memory.view.nbytes >= _HUGE_FROM_BYTES:
        prefer_huge_pages(memory.view)
    return memory


def wrap(kind: LeafKind, buffer: object) -> StorageMemory:
    """Return the memory of a storage that lies in `buffer`, uncopied.

    Args:
        kind: Kind of the leaves that will be made of it.
        buffer: Any writable, contiguous buffer, such as a mapping. It stays exported, so that it
            cannot be closed, for as long as one of the leaves lives.
    """
    view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
    if not view.nbytes:
        return allocate(kind, 0)
    owner: Any = view
    if kind == "torch":
        from ckstore.tensors import torch_leaves

        owner = torch_leaves.bytes_in(view)
    elif kind == "numpy":
        from ckstore.tensors import numpy_leaves

        owner = numpy_leaves.bytes_in(view)
    return StorageMemory(owner, view)
