"""Decide which tensors of a target are filled directly from the disk, and which are filled by a copy."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from ckstore.model.manifest.leaf_records import itemsize
from ckstore.model.manifest.manifest import LeafRecord
from ckstore.tensors.kinds import is_tensor, is_tensor_class
from ckstore.tensors.memory_layout import Region, StorageMemory, row_major, span_elements
from ckstore.tensors.state_restore import LeafMaker, is_empty


class Filling:
    """The destination of each leaf: a tensor or array of the target, or a new value.

    Call `bind` and `make_new` for the wanted leaves, and then `decide`. Fill the storages that `decide` returns, and
    then call `finish`.
    """

    def __init__(self, leaves: Sequence[LeafRecord]) -> None:
        self._leaves = leaves
        self._bound: dict[int, Any] = {}
        self._new: set[int] = set()
        self._direct: dict[int, Region] = {}
        self._copied: dict[int, list[int]] = {}
        self._cast: dict[int, str] = {}
        self._made: dict[int, tuple[Callable[[], Any], str]] = {}
        self.beyond: Counter[str] = Counter()  # name in the target -> number of values out of its dtype's range

    def bind(self, target: Any, index: int, *, cast_as: str | None = None) -> bool:
        """Plan to load the values of leaf `index` into `target`. Return False if `target` cannot hold them.

        If `cast_as`, the name of `target`, is given, the values may be converted to the dtype of `target`.
        """
        leaf, functions = self._leaves[index], functions_for(type(target))
        if not functions.takes(target, leaf):
            if cast_as is None or not functions.casts(target, leaf):
                return False
            self._cast[index] = cast_as
        self._bound[index] = target
        return True

    @property
    def same_dtype_addresses(self) -> frozenset[int]:
        """The addresses of the bound tensors that are filled from a leaf with their dtype."""
        return frozenset(
            functions_for(type(target)).address_of(target)
            for index, target in self._bound.items()
            if is_tensor(target) and index not in self._cast
        )

    def bind_later(self, make: Callable[[], Any], index: int, name: str) -> None:
        """Plan to load the values of leaf `index` into a new tensor. `decide` calls `make`, which returns the tensor.

        The tensor must have the shape of the leaf.
        """
        self._made[index] = make, name

    def make_new(self, index: int) -> None:
        """Plan to load leaf `index` as a new value."""
        self._new.add(index)

    @property
    def wanted(self) -> frozenset[int]:
        """The selected leaves."""
        return frozenset((*self._bound, *self._new, *self._made))

    @property
    def addresses(self) -> frozenset[int]:
        """The addresses at which the memory of the bound tensors and arrays begins."""
        return frozenset(functions_for(type(target)).address_of(target) for target in self._bound.values()) - {0}

    @property
    def later_bytes(self) -> int:
        """The size of the tensors of `bind_later`, in bytes. A tensor with several names counts once for each name."""
        return sum(_elements_bytes(self._leaves[index]) for index in self._made)

    def decide(self, storage_bytes: Sequence[int] | None) -> tuple[dict[int, Any], list[int], set[int]]:
        """Decide how each storage is read.

        A storage is read directly into the target under three conditions. First, one leaf covers the whole storage, and
        its tensor in the target has the same layout. Second, the tensors of all other leaves of the storage are at the
        same places in the memory of this tensor (tied tensors). Third, no other storage is read into the same memory. A
        storage is copied if it is not read directly and no new value is made from it.

        Args:
            storage_bytes: The sizes of the storages. If None, each storage ends with its last element.

        Returns:
            The memory of the target for each storage that is read directly, the storages to copy, and the storages to
            read into new memory.
        """
        # Memory is only allocated now, because a load that is refused must not allocate gigabytes first.
        for index, (make, name) in self._made.items():
            self.bind(make(), index, cast_as=name)
        wanted = defaultdict(list)
        for index in (*self._bound, *self._new):
            leaf = self._leaves[index]
            if not is_empty(leaf):
                wanted[leaf.storage].append(index)
        sizes = self._sizes() if storage_bytes is None else storage_bytes
        claims = _Claims()
        for storage, indexes in wanted.items():
            region = self._region_of(indexes, sizes[storage])
            # If two storages of the checkpoint share memory in the target, threads would overwrite each other's data.
            if region is not None and claims.add(region):
                self._direct[storage] = region
            elif self._new.isdisjoint(indexes):
                self._copied[storage] = indexes
        direct = {storage: region.memory for storage, region in self._direct.items()}
        return direct, sorted(self._copied), set(wanted) - set(direct) - set(self._copied)

    def streams(self, storage: int, cuts: Sequence[int]) -> bool:
        """Whether a copied storage can be passed to `fill_part` in parts that begin at these bytes."""
        for index in self._copied[storage]:
            leaf, target = self._leaves[index], self._bound[index]
            size = itemsize(leaf.kind, leaf.dtype) or 1
            if not functions_for(type(target)).streams(target, leaf) or any((cut - leaf.offset) % size for cut in cuts):
                return False
        return True

    def fill_part(self, storage: int, start: int, data: memoryview) -> None:
        """Copy bytes of a storage, from `start` on, to the target. The bytes must be whole elements."""
        for index in self._copied[storage]:
            leaf = self._leaves[index]
            low, high = max(start, leaf.offset), min(start + len(data), leaf.offset + _elements_bytes(leaf))
            if low < high:
                part = data[low - start : high - start]
                target = self._bound[index]
                beyond = functions_for(type(target)).fill_part(target, leaf, low - leaf.offset, part)
                self._count(index, beyond)

    def fill(self, storage: int, memory: StorageMemory) -> None:
        """Copy a whole storage to the target."""
        maker = LeafMaker(self._leaves, lambda _: memory)
        for index in self._copied[storage]:
            target = self._bound[index]
            self._count(index, functions_for(type(target)).fill(target, maker.leaf(index)))

    def _count(self, index: int, beyond: int) -> None:
        if beyond:
            self.beyond[self._cast[index]] += beyond

    def finish(self, memory: Callable[[int], StorageMemory]) -> Callable[[int], object]:
        """Copy bound leaves from storages in new memory, and return a function that returns the value of a leaf."""
        maker = LeafMaker(self._leaves, memory)
        modified = []
        for index, target in self._bound.items():
            leaf = self._leaves[index]
            if leaf.storage in self._direct:
                if leaf.kind == "torch" and not is_empty(leaf):
                    modified.append(target)
            elif leaf.storage not in self._copied and not is_empty(leaf):
                self._count(index, functions_for(type(target)).fill(target, maker.leaf(index)))
        if modified:
            # These tensors were filled from the disk without torch. Without this call, autograd would not detect that a
            # value that it saved has changed.
            functions_for(type(modified[0])).count_as_modified(modified)

        def value(index: int) -> object:
            return self._bound[index] if index in self._bound else maker.leaf(index)

        return value

    def _region_of(self, indexes: Sequence[int], nbytes: int) -> Region | None:
        """Return the region of the target with the same layout as the whole storage, or None."""
        if not self._new.isdisjoint(indexes):
            return None
        for index in indexes:
            leaf = self._leaves[index]
            # A direct read writes all bytes of the storage. Bytes outside this leaf would be written beyond the tensor.
            if (
                leaf.offset
                or _elements_bytes(leaf) != nbytes
                or (leaf.strides is not None and _end_bytes(leaf) != nbytes)
            ):
                continue
            # A direct read cannot convert values to another dtype.
            if index in self._cast:
                continue
            target = self._bound[index]
            region: Region | None = functions_for(type(target)).region(target, leaf)
            if region is not None and all(self._lies_in(region, other) for other in indexes if other != index):
                return region
        return None

    def _lies_in(self, region: Region, index: int) -> bool:
        target, leaf = self._bound[index], self._leaves[index]
        if not is_tensor(target) or target.is_conj() or target.is_neg():
            return False
        strides = row_major(leaf.shape) if leaf.strides is None else leaf.strides
        if index in self._cast:
            return False
        same_strides = all(
            size == 1 or own == its for size, own, its in zip(leaf.shape, target.stride(), strides, strict=True)
        )
        return same_strides and target.data_ptr() == region.address + leaf.offset

    def _sizes(self) -> dict[int, int]:
        sizes: dict[int, int] = defaultdict(int)
        for leaf in self._leaves:
            if leaf.kind in ("torch", "numpy") and not is_empty(leaf):
                sizes[leaf.storage] = max(sizes[leaf.storage], _end_bytes(leaf))
        return sizes


class _Claims:
    """Memory of the target that a storage is read into. No other storage may be read into the same memory."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def add(self, region: Region) -> bool:
        """Claim a region. Return False if a part of it is already claimed."""
        start, stop = region.address, region.address + region.nbytes
        at = bisect_left(self._ranges, (start, stop))
        if at and self._ranges[at - 1][1] > start:
            return False
        if at < len(self._ranges) and self._ranges[at][0] < stop:
            return False
        insort(self._ranges, (start, stop))
        return True


def _elements_bytes(leaf: LeafRecord) -> int:
    return math.prod(leaf.shape) * (itemsize(leaf.kind, leaf.dtype) or 0)


def _end_bytes(leaf: LeafRecord) -> int:
    if leaf.strides is None:
        return leaf.offset + _elements_bytes(leaf)
    strides = [max(s, 0) for s in leaf.strides]
    return leaf.offset + span_elements(leaf.shape, strides) * (itemsize(leaf.kind, leaf.dtype) or 0)


def _functions_for(kind: type) -> Any:
    # An import statement in a function of a state with 20,000 tensors would take longer than most of these functions.
    if is_tensor_class(kind):
        from ckstore.tensors.targets import torch_targets

        return torch_targets
    from ckstore.tensors import numpy_leaves

    return numpy_leaves


functions_for: Callable[[type], Any] = lru_cache(maxsize=64)(_functions_for)
"""Returns the module with the functions for targets of a class, which are tensors or arrays."""
