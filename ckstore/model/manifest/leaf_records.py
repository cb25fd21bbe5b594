"""Check the leaves of a ``manifest.json``: their dtypes and shapes, and that all elements are inside their storages.

Source: docs/format/v1.md, "manifest.json" and "Leaves". `model/manifest/parse` reads the rest of the manifest.
"""

from __future__ import annotations

import re
from typing import Any, NoReturn, get_args

from ckstore.model.document import refuse, shown
from ckstore.model.manifest.dtypes import TORCH_ITEMSIZE
from ckstore.model.manifest.manifest import MAX_ELEMENTS, LeafKind, LeafRecord, StorageRecord

NUMPY_MAX_DIMENSIONS = 64
MAX_SIZE = 2**53

_LEAF_KINDS: dict[object, LeafKind] = {kind: kind for kind in get_args(LeafKind)}
_ARRAYS = ("torch", "numpy", "numbers")  # kinds of leaves that have a dtype and a shape


def read_leaves(items: list[Any], storages: tuple[StorageRecord, ...], where: str) -> tuple[LeafRecord, ...]:
    """Return the leaves in a JSON array; `storages` must be the storages of the same manifest.

    Raises:
        BadInput: The leaves do not conform to the format. The message begins with `where`, the name of the file.
    """
    return _Leaves([storage.nbytes for storage in storages], where).read(items)


class _Leaves:
    """Checks the leaves of one manifest."""

    def __init__(self, sizes: list[int], where: str) -> None:
        self.sizes = sizes
        self.where = where

    def read(self, items: list[Any]) -> tuple[LeafRecord, ...]:
        # Use a list, because a generator would add a tenth of the total time.
        leaves = tuple([self.leaf(item, i) for i, item in enumerate(items)])
        # Compare the count with a set first. The loop that finds the name runs only for the message.
        if len({leaf.name for leaf in leaves}) != len(leaves):
            seen: set[str] = set()
            for leaf in leaves:
                if leaf.name in seen:
                    refuse(self.where, "leaves", "each name once", leaf.name)
                seen.add(leaf.name)
        self.check_alone(leaves)
        return leaves

    def check_alone(self, leaves: tuple[LeafRecord, ...]) -> None:
        """Check that only tensors share a storage.

        If arrays, bytes or strings shared a storage, each of them would still take its own memory when it is loaded.
        """
        owners = {leaf.storage: leaf.name for leaf in leaves if leaf.kind != "torch" and 0 not in leaf.shape}
        for leaf in leaves if owners else ():
            if owners.get(leaf.storage, leaf.name) != leaf.name and 0 not in leaf.shape:
                self.refuse_shared(leaf.name, owners[leaf.storage])

    def refuse_shared(self, name: str, other: str) -> NoReturn:
        leaf = f"storage of leaf {shown(name)}"
        wanted = "one of its own, unless all its leaves are tensors"
        refuse(self.where, leaf, wanted, f"that of {shown(other)}", words=True)

    def leaf(self, item: Any, i: int) -> LeafRecord:
        if type(item) is not dict:
            refuse(self.where, f"leaves[{i}]", "an object", item)
        get = item.get
        name, storage, offset = get("name"), get("storage"), get("offset", 0)
        if type(name) is not str:
            refuse(self.where, f"name of leaves[{i}]", "a string", name)
        kind = _LEAF_KINDS.get(get("kind")) if type(get("kind")) is str else None
        if kind is None:
            refuse(self.where, f"kind of leaf {shown(name)}", ", ".join(_LEAF_KINDS.values()), get("kind"))
        if type(storage) is not int or not 0 <= storage < len(self.sizes):
            refuse(self.where, f"storage of leaf {shown(name)}", f"an index below {len(self.sizes)}", storage)
        if type(offset) is not int or offset < 0:
            refuse(self.where, f"offset of leaf {shown(name)}", "an integer from 0", offset)
        if kind not in _ARRAYS:
            if offset:
                refuse(self.where, f"offset of leaf {shown(name)}", f"none for kind {kind}", offset)
            return LeafRecord(name, kind, "", (), storage)
        dtype, shape, strides = self.layout(item, name, kind, offset, self.sizes[storage])
        return LeafRecord(name, kind, dtype, shape, storage, offset, strides)

    def layout(
        self, item: dict[str, Any], name: str, kind: str, offset: int, storage_bytes: int
    ) -> tuple[str, tuple[int, ...], tuple[int, ...] | None]:
        """Return dtype, shape and strides of a tensor or an array."""
        dtype, strides = item.get("dtype"), item.get("strides")
        item_bytes = itemsize(kind, dtype) if isinstance(dtype, str) else None
        if not isinstance(dtype, str) or item_bytes is None:
            refuse(self.where, f"dtype of leaf {shown(name)}", f"a dtype of kind {kind}", dtype)
        shape = self.sizes_of(item.get("shape"), name, kind, item_bytes)
        if strides is not None:
            strides = self.strides_of(strides, name, kind, len(shape))
        if kind == "numbers" and (len(shape) != 1 or strides is not None or offset):
            refuse(self.where, f"layout of leaf {shown(name)}", "one row from the start of its storage", item)
        low, high = _span_bytes(shape, strides, item_bytes)
        # An element outside its storage would belong to no piece, so no digest would cover it.
        if offset + low < 0 or (high and offset + high > storage_bytes):
            wanted = f"elements within the {storage_bytes} bytes of its storage"
            found = f"bytes {offset + low} to {offset + high}"
            refuse(self.where, f"leaf {shown(name)}", wanted, found, words=True)
        return dtype, shape, strides

    def sizes_of(self, shape: Any, name: str, kind: str, item_bytes: int) -> tuple[int, ...]:
        if type(shape) is not list or (kind == "numpy" and len(shape) > NUMPY_MAX_DIMENSIONS):
            refuse(self.where, f"shape of leaf {shown(name)}", "an array of sizes", shape)
        count = item_bytes if kind == "numpy" else 1  # NumPy limits the size in bytes, even without elements
        for size in shape:
            if type(size) is not int or size < 0:
                refuse(self.where, f"shape of leaf {shown(name)}", "an array of sizes", shape)
            count *= size or 1
            # Check this even if another size is 0, because torch and NumPy multiply the other sizes anyway.
            if count >= MAX_ELEMENTS:
                refuse(self.where, f"shape of leaf {shown(name)}", "less than 2^63 elements", shape)
        return tuple(shape)

    def strides_of(self, strides: Any, name: str, kind: str, dimensions: int) -> tuple[int, ...]:
        # NumPy allows negative strides, and torch does not. The elements are inside the storage in both cases.
        if (
            type(strides) is not list
            or len(strides) != dimensions
            or any(type(s) is not int or (s < 0 and kind == "torch") for s in strides)
        ):
            wanted = f"an array of {dimensions} strides"
            refuse(self.where, f"strides of leaf {shown(name)}", wanted, strides)
        return tuple(strides)


def _span_bytes(shape: tuple[int, ...], strides: tuple[int, ...] | None, item_bytes: int) -> tuple[int, int]:
    """Return the start and the end of the elements in bytes, relative to the first; (0, 0) without elements."""
    if strides is None:
        count = 1
        for size in shape:
            count *= size
        return 0, count * item_bytes
    low, high = 0, 1
    for size, stride in zip(shape, strides, strict=True):
        if size == 0:
            return 0, 0
        if stride < 0:
            low += (size - 1) * stride
        else:
            high += (size - 1) * stride
    return low * item_bytes, high * item_bytes


NUMBERS_ITEMSIZE = {"int64": 8, "float64": 8, "bool": 1}  # dtype of a long list of numbers -> bytes of an item

_NUMPY_SIZED = {"b": {1}, "i": {1, 2, 4, 8}, "u": {1, 2, 4, 8}, "f": {2, 4, 8}, "c": {8, 16}}
_NUMPY_PATTERN = re.compile(
    r"([<>|])([biufcMmSU])([1-9][0-9]{0,9})(\[(?:[1-9][0-9]{0,8})?(?:Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?\Z"
)
_MAX_ITEM_BYTES = 2**31 - 1  # NumPy 1 stores the size of an item as a signed 32-bit integer
_DATETIME_BYTES = 8
_UNICODE_BYTES = 4


def numpy_itemsize(dtype: str) -> int | None:
    """Return the bytes of one item of a NumPy dtype string, or None if the format does not support the dtype."""
    match = _NUMPY_PATTERN.match(dtype)
    if match is None:
        return None
    kind, size, unit = match[2], int(match[3]), match[4]
    if kind in "Mm":
        return size if size == _DATETIME_BYTES else None
    if unit is not None:
        return None
    if kind in "SU":
        size *= _UNICODE_BYTES if kind == "U" else 1
        return size if size <= _MAX_ITEM_BYTES else None
    return size if size in _NUMPY_SIZED[kind] else None


def itemsize(kind: str, dtype: str) -> int | None:
    """Return the bytes of one item, or None if leaves of `kind` cannot have that dtype."""
    if kind == "torch":
        return TORCH_ITEMSIZE.get(dtype)
    if kind == "numbers":
        return NUMBERS_ITEMSIZE.get(dtype)
    return numpy_itemsize(dtype) if kind == "numpy" else None


def elements(shape: tuple[int, ...]) -> int | None:
    """Return the number of elements of a shape, or None if a manifest may not contain such a shape."""
    count = bound = 1
    for size in shape:
        count *= size
        bound *= max(size, 1)
        if bound >= MAX_ELEMENTS or size > MAX_SIZE:
            return None
    return count
