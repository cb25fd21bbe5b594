"""Convert NumPy arrays to leaves and NumPy scalars to nodes, and back.

This module is imported only if a state has such values.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ckstore.errors import CannotStore
from ckstore.model.canonical import fits_json
from ckstore.model.manifest.captured import BytesSource
from ckstore.model.manifest.leaf_records import numpy_itemsize
from ckstore.model.manifest.manifest import LeafRecord, Node
from ckstore.model.manifest.nodes import bytes_of_text, text_of_bytes
from ckstore.model.manifest.tensor_cuts import Block
from ckstore.tensors.memory_layout import Region, StorageMemory, may_overlap, row_major
from ckstore.tensors.refusals import check_numbers

Bytes = npt.NDArray[np.uint8]
_GIL_KEPT_BYTES = 64 * 2**10


class ArraySource(BytesSource):
    """The bytes of one array; see `captured.ByteSource`. Modifications are not detected."""

    __slots__ = ()

    def read_into(self, start: int, stop: int, out: memoryview) -> None:
        """Copy these bytes into `out`."""
        copy_bytes(self._data[start:stop], out)


class ArrayParts(NamedTuple):
    """An array as a leaf and the source of its bytes."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None  # in elements; None for row-major order
    source: ArraySource


def take_apart(array: npt.NDArray[Any], path: str) -> ArrayParts:
    """Return an array as a leaf. An array in C or Fortran order is not copied."""
    dtype = _check_dtype(array.dtype, path)
    # A memmap is treated as a plain array.
    plain = array.view(np.ndarray)
    if not plain.size:
        check_numbers(path, plain.shape)
    strides = None
    if plain.flags.c_contiguous:
        flat = plain.reshape(-1)
    elif plain.flags.f_contiguous:
        flat = plain.T.reshape(-1)
        strides = tuple(reversed(row_major(plain.shape[::-1])))
    else:
        # Only arrays with gaps or negative steps are copied.
        flat = np.array(plain, order="C").reshape(-1)
    return ArrayParts(dtype, plain.shape, strides, ArraySource(path, flat.view(np.uint8).data.toreadonly()))


def make_array(leaf: LeafRecord, flat: Bytes) -> npt.NDArray[Any]:
    """Return the array of a leaf, in the memory of `flat`, which has the bytes of the leaf's storage."""
    dtype = np.dtype(leaf.dtype)
    if 0 in leaf.shape:
        return np.empty(leaf.shape, dtype)
    steps = None if leaf.strides is None else tuple(s * dtype.itemsize for s in leaf.strides)
    return np.ndarray(leaf.shape, dtype, flat, leaf.offset, steps)


def flat_array(memory: StorageMemory) -> Bytes:
    """Return the bytes of a storage as an array without a copy, even if they were not allocated for arrays."""
    owner = memory.owner
    # An owner that is an array already has all bytes, so no second array over the same memory is needed.
    return owner if isinstance(owner, np.ndarray) else bytes_in(memory.view)


def encode_scalar(value: object, path: str) -> Node:
    """Return the node of a NumPy scalar (`kinds.is_numpy_scalar`)."""
    scalar: Any = value
    if type(scalar) is np.str_ and fits_json(str(scalar)):
        return ["numpy.str_", str(scalar)]
    if isinstance(scalar, (str, bytes)):
        plain = "str" if isinstance(scalar, str) else "bytes"
        raise CannotStore(path, f"numpy.{type(scalar).__name__} cannot be stored", hint=f"store {plain}(value)")
    dtype = _check_dtype(scalar.dtype, path)
    if type(scalar) is not scalar.dtype.type:
        reason = f"{type(scalar).__qualname__}, a subclass of a NumPy scalar, cannot be stored"
        raise CannotStore(path, reason, hint="store value.dtype.type(value)")
    return ["numpy", dtype, text_of_bytes(scalar.tobytes())]


def decode_scalar(dtype: str, text: str) -> object:
    """Return the NumPy scalar of a node. `text` has the bytes of the scalar."""
    value: object = np.frombuffer(bytes_of_text(text), np.dtype(dtype))[0]
    return value


def takes(target: object, leaf: LeafRecord) -> bool:
    """Whether the array `target` can hold the values of a leaf unchanged."""
    if not isinstance(target, np.ndarray) or leaf.kind != "numpy":
        return False
    same = target.dtype.str == leaf.dtype and target.shape == leaf.shape
    # A read-only array, such as one over a mapping, cannot be filled, so it is replaced.
    if not same or not target.flags.writeable:
        return False
    # If elements overlap, as in sliding windows, writing one element would change other elements.
    steps = tuple(abs(step) // max(1, target.itemsize) for step in target.strides)
    return bool(target.flags.c_contiguous) or not may_overlap(target.shape, steps)


def casts(target: object, leaf: LeafRecord) -> bool:
    """Return False, since an array is replaced by the stored one, not converted."""
    del target, leaf
    return False


def streams(target: object, leaf: LeafRecord) -> bool:
    """Return False, since arrays that cannot be filled directly from the disk are copied whole."""
    del target, leaf
    return False


def region(target: npt.NDArray[Any], leaf: LeafRecord) -> Region | None:
    """Return the memory of the elements of `target`, or None if its layout differs from that of the leaf."""
    if leaf.strides is not None or not target.flags.c_contiguous or not target.size:
        return None
    flat = target.view(np.ndarray).reshape(-1).view(np.uint8)
    return Region(flat.ctypes.data, flat.nbytes, flat.data, flat)


def address_of(target: npt.NDArray[Any]) -> int:
    """Return the address at which the memory of an array begins, or 0 if it has no elements."""
    return target.ctypes.data if target.size else 0


def elements_key(target: npt.NDArray[Any]) -> object:
    """Return a value that is equal for arrays with the same elements of the same memory."""
    return address_of(target) or id(target), target.dtype, target.shape, target.strides


def fill(target: npt.NDArray[Any], found: object) -> int:
    """Copy the values of an array of the same dtype and shape into `target`, bit for bit, and return 0."""
    values: Any = found
    np.copyto(target, values, casting="no")
    return 0  # no value is out of the range of its own dtype


def copy_bytes(source: memoryview, out: memoryview) -> None:
    """Copy bytes between buffers of the same size. Other threads can run during a long copy."""
    if source.nbytes <= _GIL_KEPT_BYTES:  # NumPy would release the GIL, which takes longer than this copy
        out[:] = source
    else:
        np.copyto(np.frombuffer(out, np.uint8), np.frombuffer(source, np.uint8))


def empty_bytes(nbytes: int) -> Bytes:
    """Return a flat array of `nbytes` undefined bytes."""
    return np.empty(nbytes, np.uint8)


def bytes_in(view: memoryview) -> Bytes:
    """Return a flat array over `view`, which must not be empty."""
    return np.frombuffer(view, np.uint8)


def _check_dtype(dtype: np.dtype[Any], path: str) -> str:
    name = dtype.str
    if numpy_itemsize(name) == dtype.itemsize and dtype.names is None:
        return name
    raise CannotStore(path, f"NumPy dtype {dtype} cannot be stored", hint=_dtype_hint(dtype))


def _dtype_hint(dtype: np.dtype[Any]) -> str:
    if dtype.hasobject and dtype.kind == "O":
        return "store a list, or an array of numbers or of fixed-length strings"
    if dtype.names is not None:
        return "store each field as an array of its own, e.g. {name: array[name] for name in array.dtype.names}"
    if dtype.kind in "fc":
        return "convert it with .astype(numpy.float64) or .astype(numpy.complex128)"
    if dtype.kind == "T":
        return "convert it to fixed-length strings with .astype('U')"
    return "convert it to an array of numbers, dates or fixed-length strings"


def copy_common(source: memoryview, block: Block, out: memoryview, wanted: Block) -> None:
    """Copy the elements common to two blocks.

    Args:
        source: The row-major bytes of `block`.
        block: The block to copy from.
        out: The row-major bytes of `wanted`.
        wanted: The block to copy to.
    """
    common = block.meet(wanted)
    if common is None:
        return
    _part(out, wanted, common)[...] = _part(source, block, common)


def _part(data: memoryview, block: Block, common: Block) -> np.ndarray:
    array = np.frombuffer(data, dtype=np.uint8).reshape(block.sizes)
    at = [slice(a - b, a - b + n) for a, b, n in zip(common.offsets, block.offsets, common.sizes, strict=True)]
    return array[tuple(at)]
