"""Build a state from its nodes, its leaves and the memory of its storages.

`model/manifest/parse` must have checked the manifest. torch and NumPy are only imported for leaves of these libraries.
"""

from __future__ import annotations

import io
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from ckstore.errors import BadInput
from ckstore.fs.buffers import prefer_huge_pages
from ckstore.model.manifest.leaf_records import itemsize
from ckstore.model.manifest.manifest import LeafKind, LeafRecord, Node
from ckstore.model.manifest.nodes import DICTS, SEQUENCES, decode_float, decode_key, join, text_of_leaf
from ckstore.model.manifest.python_values import FACTORIES
from ckstore.model.names import join_index
from ckstore.tensors.memory_layout import StorageMemory
from ckstore.tensors.named import named_objects
from ckstore.tensors.named.safe_classes import find
from ckstore.tensors.plain_values import unpack_numbers, value_of

Keep = Callable[[str], bool]
_ABSENT = object()
# The minimum size of memory for which huge pages are requested: two huge pages. With huge pages for all memory, loads
# were twice as slow on a virtual machine that returns free memory to its host (docs/adr/0007).
_HUGE_FROM_BYTES = 4 * 2**20


class TensorSink(Protocol):
    """The place where a load makes its tensors."""

    def allocate(self, sizes: Mapping[int, int]) -> Mapping[int, Any]:
        """Return memory that a load fills directly, for storages of tensors with these sizes.

        The result is empty if the place is host memory. Each value has the interface of `pieces.Memory`, and a method
        `storage`.
        """

    def placed(self, kind: LeafKind, memory: StorageMemory) -> StorageMemory:
        """Move the filled memory of a storage to this place, and return the memory there.

        The result may be the given memory or a copy. Only storages of tensors are copied.
        """


class HostSink:
    """Makes tensors in host memory, into which the load reads their bytes."""

    def allocate(self, sizes: Mapping[int, int]) -> Mapping[int, Any]:  # noqa: ARG002
        """Return an empty mapping."""
        return {}

    def placed(self, kind: LeafKind, memory: StorageMemory) -> StorageMemory:  # noqa: ARG002
        """Return `memory` unchanged."""
        return memory


HOST = HostSink()


def sink_of(location: object, leaves: Sequence[LeafRecord]) -> TensorSink:
    """Return the sink for a state with these leaves at a location.

    The location has any of the forms of ``map_location`` of `torch.load`.

    Raises:
        BadInput: The state has tensors, and they cannot be made at the location.
    """
    if location is None or location == "cpu" or not any(leaf.kind == "torch" for leaf in leaves):
        return HOST
    from ckstore.tensors.device.device_sink import DeviceSink

    sink = DeviceSink(location)
    sink.check()
    return sink


def build(
    state: Node,
    leaves: Sequence[LeafRecord],
    memory: Callable[[int], StorageMemory],
    *,
    sink: TensorSink = HOST,
    keep: Keep | None = None,
) -> object:
    """Return the value of `state`.

    Args:
        state: The root node.
        leaves: All leaves of the manifest.
        memory: Returns the filled memory of a storage. Called once for each of `needed_storages`.
        sink: Where tensors are made. Each storage is moved once, so that tied tensors are still tied.
        keep: Selects leaves and plain values by name. If None, all are selected. Values that are not selected, and
            containers without a selected value, are omitted from dicts, and replaced by None in lists and tuples.
    """
    made = LeafMaker(leaves, memory, sink)
    return build_with(state, made.leaf, leaves, keep)


def build_with(
    state: Node,
    leaf: Callable[[int], object],
    leaves: Sequence[LeafRecord],
    keep: Keep | None = None,
    *,
    path: str = "",
) -> object:
    """Return the value of `state` at `path`. `leaf` returns the value of a leaf by its number."""
    try:
        value = _Building(leaf, leaves, keep).value(state, path)
    except BadInput:
        if keep is not None:
            raise
        # Names are built only for a selection. Build the state again with names, so that the error names the value.
        value = _Building(leaf, leaves, lambda _: True).value(state, path)
    if value is _ABSENT:
        return {} if isinstance(state, list) and state[0] in DICTS else None
    return value


def needed_storages(state: Node, leaves: Sequence[LeafRecord], keep: Keep | None = None) -> list[int]:
    """Return the numbers of the storages that `build` needs with this `keep`, in order."""
    del state  # exactly one node refers to each leaf, so the leaves are sufficient
    needed = {leaf.storage for leaf in leaves if not is_empty(leaf) and (keep is None or keep(leaf.name))}
    return sorted(needed)


def is_empty(leaf: LeafRecord) -> bool:
    """Whether a leaf has no elements, so that it needs no storage."""
    return 0 in leaf.shape


def allocate(kind: LeafKind, nbytes: int) -> StorageMemory:
    """Return new memory for a storage of `nbytes` bytes, with undefined content."""
    try:
        memory = _fresh(kind, nbytes)
        if memory.view.nbytes >= _HUGE_FROM_BYTES:
            prefer_huge_pages(memory.view)
    # torch, NumPy and Python raise different errors. Callers only catch MemoryError.
    except (MemoryError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise MemoryError(f"{nbytes} bytes for one storage could not be allocated") from error
    return memory


def _fresh(kind: LeafKind, nbytes: int) -> StorageMemory:
    owner: Any
    if kind == "torch":
        from ckstore.tensors.torch_leaves import empty_bytes
        from ckstore.tensors.torch_sources import memory_at

        owner = empty_bytes(nbytes)
        return StorageMemory(owner, memory_at(owner.data_ptr(), nbytes, writable=True))
    if kind == "numpy":
        from ckstore.tensors import numpy_leaves

        owner = numpy_leaves.empty_bytes(nbytes)
    else:
        owner = bytearray(nbytes)
    return StorageMemory(owner, memoryview(owner))


def wrap(kind: LeafKind, view: memoryview) -> StorageMemory:
    """Return the memory of a storage in `view`, without a copy.

    Args:
        kind: The kind of the leaves that will be made from the storage.
        view: Bytes of a writable buffer, such as a mapping. The buffer remains exported while any of the leaves exists,
            so it cannot be closed too early.
    """
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


class LeafMaker:
    """Makes leaves, and requests each storage once."""

    def __init__(
        self, leaves: Sequence[LeafRecord], memory: Callable[[int], StorageMemory], sink: TensorSink = HOST
    ) -> None:
        self._leaves = leaves
        self._memory = memory
        self._sink = sink
        self._got: dict[int, StorageMemory] = {}

    def leaf(self, index: int) -> object:
        """Return the value of leaf `index`."""
        leaf = self._leaves[index]
        # A tensor without elements may have the storage of another leaf, which must not be read for this tensor.
        if is_empty(leaf):
            return make_leaf(leaf, self._sink.placed(leaf.kind, allocate(leaf.kind, 0)))
        memory = self._got.get(leaf.storage)
        if memory is None:
            memory = self._sink.placed(leaf.kind, self._memory(leaf.storage))
            # With a second copy of the storage, tied tensors would no longer be tied.
            self._got[leaf.storage] = memory
        return make_leaf(leaf, memory)


def make_leaf(leaf: LeafRecord, memory: StorageMemory) -> object:
    """Return the tensor, array, bytes or string of a leaf.

    Tensors and arrays share `memory`, which must be filled and have the kind of the leaf (`allocate`).
    """
    if leaf.kind == "torch":
        from ckstore.tensors import torch_leaves

        return torch_leaves.make_tensor(leaf, torch_leaves.flat_tensor(memory))
    if leaf.kind == "numpy":
        from ckstore.tensors import numpy_leaves

        return numpy_leaves.make_array(leaf, numpy_leaves.flat_array(memory))
    if leaf.kind == "numbers":
        return unpack_numbers(leaf.dtype, memory.view[: leaf.shape[0] * (itemsize(leaf.kind, leaf.dtype) or 0)])
    if leaf.kind == "bytearray":
        return bytearray(memory.view)
    if leaf.kind == "io.BytesIO":
        return io.BytesIO(memory.view)
    data = bytes(memory.view)
    return data if leaf.kind == "bytes" else text_of_leaf(leaf, data)


class _Building:
    """One walk over the nodes. Names are only built if the caller selects values by name."""

    def __init__(
        self, leaf: Callable[[int], object], leaves: Sequence[LeafRecord], keep: Keep | None, within: str = ""
    ) -> None:
        self._leaf = leaf
        self._leaves = leaves
        self._keep = keep
        # Path of the value whose attributes are built, for errors: attributes have no names of their own.
        self._within = within

    def value(self, node: Node, path: str) -> Any:
        tag = node[0] if isinstance(node, list) else None
        if isinstance(tag, str) and (walk := self._CONTAINERS.get(tag)) is not None:
            return walk(self, node, path)
        if self._keep is not None:
            name = self._leaves[node[1]].name if tag == "leaf" else path
            if not self._keep(name):
                return _ABSENT
        if tag is None:
            return node
        if tag == "leaf":
            return self._leaf(node[1])
        if tag == "float":  # checked early, because most plain values are floats
            return decode_float(node[1])
        if tag == "enum":
            return named_objects.member_of(node[1], node[2], path or self._within)
        return find(node[1], path or self._within) if tag == "global" else value_of(node)

    def _mapping(self, node: Node, path: str) -> Any:
        out: dict[Any, Any] = {}
        if node[0] == "counter":
            out = Counter()
        elif node[0] == "defaultdict":
            out = defaultdict(None if node[2] is None else FACTORIES[node[2]])
        return self._dict(out, node[1], path)

    def _sequence(self, node: Node, path: str) -> Any:
        if self._keep is None:
            items = [self.value(item, "") for item in node[1]]
        else:
            items = [self.value(item, join_index(path, i)) for i, item in enumerate(node[1])]
            if self._is_absent(path, was_empty=not node[1], is_empty=all(item is _ABSENT for item in items)):
                return _ABSENT
            items = [None if item is _ABSENT else item for item in items]
        if node[0] == "deque":
            return deque(items, node[2])
        return tuple(items) if node[0] == "tuple" else items

    def _dict(self, out: dict[Any, Any], pairs: Iterable[Any], path: str) -> Any:
        was_empty = True
        for own, node in pairs:
            was_empty = False
            key = own if type(own) is str else decode_key(own)
            if self._keep is None:
                out[key] = self.value(node, "")
                continue
            value = self.value(node, join(path, key))
            if value is not _ABSENT:
                out[key] = value
        return _ABSENT if self._is_absent(path, was_empty=was_empty, is_empty=not out) else out

    def _is_absent(self, path: str, *, was_empty: bool, is_empty: bool) -> bool:
        """Whether a container is not selected.

        An empty container is selected by its own name, and any other container by its values.
        """
        if self._keep is None:
            return False
        return not self._keep(path) if was_empty else is_empty

    def _parts(self, node: Node, path: str) -> Any:
        parts = self._named(node, path, "tensor")
        if parts is None:
            return _ABSENT
        from ckstore.tensors import torch_parts

        context = torch_parts.at_location_of(parts, node[3])
        extra = _Building(self._leaf, self._leaves, None, path).value(context, "")
        return torch_parts.put_together(node[2], parts, extra, path)

    def _object(self, node: Node, path: str) -> Any:
        fields = self._named(node, path, "object")
        return _ABSENT if fields is None else named_objects.put_together(node[2], fields, path or self._within)

    def _named(self, node: Node, path: str, kind: str) -> dict[str, Any] | None:
        """Return the parts of a tensor or an object by name, or None if none of them is selected."""
        parts = {own: self.value(item, join(path, own)) for own, item in node[1]}
        absent = [own for own, part in parts.items() if part is _ABSENT]
        if self._is_absent(path, was_empty=not parts, is_empty=len(absent) == len(parts)):
            return None
        # With only some parts of a sparse tensor, torch would fail later, and its error would not name the selection.
        if absent:
            msg = f"{path or 'the state itself'} is one {kind}, of the parts {', '.join(parts)}"
            raise BadInput(msg, hint="select all of them, or none")
        return parts

    def _ordered(self, node: Node, path: str) -> Any:
        out = self._dict(OrderedDict(), node[1], path)
        if out is not _ABSENT and node[2] is not None:
            # Attributes have no names that could be selected, so they are loaded with their dict.
            attributes: Any = _Building(self._leaf, self._leaves, None, path).value(node[2], "")
            # `setattr` is not used, because an attribute may have the name of a method of dict, such as `copy`.
            vars(out).update(attributes)
        return out

    _CONTAINERS: ClassVar[dict[str, Callable[[_Building, Node, str], Any]]] = {
        **dict.fromkeys(SEQUENCES, _sequence),
        **dict.fromkeys(DICTS, _mapping),
        "odict": _ordered,
        "parts": _parts,
        "object": _object,
    }
