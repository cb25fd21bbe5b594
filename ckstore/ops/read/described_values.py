"""Convert the descriptions of values in a committed file to values of a state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from ckstore.containers.file_value import FileValue
from ckstore.containers.pickle_values import (
    Global,
    NumpyArray,
    NumpyDtype,
    PlainNode,
    PlainObject,
    Sparse,
    Storage,
    TensorView,
    Unknown,
)
from ckstore.errors import CannotStore
from ckstore.model.document import shown
from ckstore.model.manifest.captured import BytesSource
from ckstore.model.manifest.dtypes import TORCH_ITEMSIZE
from ckstore.model.manifest.manifest import LeafRecord, Node
from ckstore.model.manifest.python_values import TORCH_NAMED, is_python_value
from ckstore.tensors.described import DescribedLeaf, DescribedObject, DescribedParts, Place
from ckstore.tensors.memory_layout import row_major

_SHOWN_CHARS = 200


class StoredSource(BytesSource):
    """The bytes of a storage of the checkpoint."""

    __slots__ = ("storage",)

    def __init__(self, name: str, storage: int) -> None:
        super().__init__(name, b"")
        self.storage = storage


def places_of(found: FileValue, storages: Mapping[tuple[int, int], int]) -> dict[type, Place]:
    """Return, for each type of described value, the function that converts the value to a leaf or node of a state.

    Args:
        found: The value of the file.
        storages: The storages of the checkpoint by their start and stop in the file.
    """

    def place_tensor(view: TensorView, path: str) -> DescribedLeaf:
        if view.kind:
            _unknown(Unknown(view.kind), path)
        reach_bytes = view.reach_bytes()
        # The strides and sizes are from a pickle that anyone may have written, so check them before any memory is read.
        if reach_bytes is None:
            _refuse(path, f"a tensor of the shape {shown(view.shape)}")
        leaf = LeafRecord(path, "torch", view.dtype, view.shape, 0)
        if reach_bytes == 0:
            return DescribedLeaf(leaf, BytesSource(path, b""))
        span = found.spans.get(view.key)
        if span is None:
            _refuse(path, f"a tensor in the storage {shown(view.key)}, which is missing or compressed in the file,")
        _check_storage(path, view, reach_bytes, span[1] - span[0])
        number = storages.get(span)
        if number is None:
            reason = "a tensor of a file that was not cut at its tensors by the commit cannot be loaded"
            raise CannotStore(path, reason, hint="commit the file again")
        strides = None if view.is_row_major else view.strides
        offset = view.offset * TORCH_ITEMSIZE[view.dtype]
        return DescribedLeaf(leaf._replace(offset=offset, strides=strides), StoredSource(path, number), number)

    return {**_PLACES, TensorView: place_tensor}


def _check_storage(path: str, view: TensorView, reach_bytes: int, nbytes: int) -> None:
    """Raise if a tensor exceeds its storage, or if the pickle states another size for the storage."""
    if reach_bytes > nbytes:
        _refuse(path, f"a tensor that reaches to byte {reach_bytes} of a storage of {nbytes}")
    said = view.storage
    # The bytes in the file may end within an element, but the number of whole elements must be right.
    if said is not None and not said.count * said.item_bytes <= nbytes < (said.count + 1) * said.item_bytes:
        _refuse(path, f"a tensor in a storage of {nbytes} bytes, for which the pickle states {said.count} elements,")


def _refuse(path: str, description: str) -> NoReturn:
    raise CannotStore(path, f"{description[:_SHOWN_CHARS]} cannot be loaded")


def _unknown(value: Unknown, path: str) -> NoReturn:
    _refuse(path, value.description if value.description.isprintable() else shown(value.description))


def _global(value: Global, path: str) -> Node:
    if value.module == "torch":
        for tag in TORCH_NAMED:  # in a pickle, these values of torch look like functions
            if is_python_value([tag, value.name]):
                return [tag, value.name]
    return _unknown(Unknown(str(value)), path)


def _array(value: NumpyArray, path: str) -> DescribedLeaf:
    if value.dtype is None or value.unknown:
        _unknown(Unknown(value.unknown), path)
    strides = None
    if value.is_fortran and sum(size > 1 for size in value.shape) > 1:
        strides = tuple(reversed(row_major(value.shape[::-1])))
    return DescribedLeaf(
        LeafRecord(path, "numpy", value.dtype.text, value.shape, 0, 0, strides), BytesSource(path, value.data)
    )


def _sparse(value: Sparse, path: str) -> DescribedParts:
    del path
    size: Any = ["torch.Size", list(value.shape)]
    extra = ["tuple", [size, value.is_coalesced]] if value.layout == "sparse_coo" else size
    return DescribedParts(value.layout, value.parts, extra)


_PLACES: dict[type, Place] = {
    Unknown: _unknown,
    Global: _global,
    PlainNode: lambda value, _: value.node,
    NumpyArray: _array,
    NumpyDtype: lambda value, path: _unknown(Unknown(value.unknown or f"the NumPy dtype {value.code}"), path),
    Sparse: _sparse,
    PlainObject: lambda value, _: DescribedObject(value.kind, value.fields),
    Storage: lambda _, path: _unknown(Unknown("a storage without a tensor"), path),
}
