"""Convert a state into nodes, leaves and byte sources, as defined in docs/format/v1.md ("Leaves", "Names", "Nodes").

This module does not read bytes and usually does not copy them, because the sources share the memory of the live values.
It need not import torch or NumPy, because a state can only contain values of a library that is already imported.
"""

from __future__ import annotations

import io
from collections import Counter, OrderedDict, defaultdict, deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ckstore.errors import CannotStore
from ckstore.model.canonical import fits_json
from ckstore.model.document import MAX_DEPTH
from ckstore.model.manifest.captured import ByteSource, BytesSource, Captured
from ckstore.model.manifest.manifest import LeafKind, LeafRecord, Node
from ckstore.model.manifest.nodes import (
    SPARSE_KINDS,
    NotStored,
    encode_bytes,
    encode_complex,
    encode_float,
    encode_int,
    encode_key,
    join,
)
from ckstore.model.manifest.python_values import FACTORY_NAMES, encode_held_bytes
from ckstore.model.names import join_index, join_key, plain
from ckstore.tensors.kinds import (
    Stateful,
    is_array,
    is_numpy_scalar,
    is_optimizer,
    is_plain_layout,
    is_stateful,
    is_tensor,
    state_of,
)
from ckstore.tensors.named.named_objects import named_value, taken_apart
from ckstore.tensors.plain_values import PLAIN, is_named_tuple, pack_numbers, torch_value
from ckstore.tensors.refusals import refuse_in_optimizer, refuse_key, refuse_value, type_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterator, Mapping

    from ckstore.tensors.torch_leaves import Admission, Admitted
    from ckstore.tensors.torch_parts import TensorParts

__all__ = ["Captured", "capture"]

_CONTAINERS = frozenset((dict, list, tuple, OrderedDict, Counter, defaultdict, deque))
# Longer values are stored as leaves, not in nodes.
BYTES_INLINE_MAX = 256  # in bytes
STR_INLINE_MAX = 4096  # in characters


def _itself(value: Node) -> Node:
    return value


_SCALARS: dict[type, Callable[[Any], Node]] = {
    type(None): _itself,
    bool: _itself,
    int: encode_int,
    float: encode_float,
    complex: encode_complex,
}


def capture(state: object, *, after: object = None, waited: Collection[object] = ()) -> Captured:
    """Return the nodes, the leaves and the sources of a state.

    The sources read live memory, so a change to the state also changes the bytes of sources that are read later. An
    object with `state_dict` and `load_state_dict` is stored as its `state_dict()`.

    Args:
        state: The state.
        after: A device event. After this event, the state is complete. The current streams wait for the event. If None,
            this function waits for all work that is queued on the devices of the state.
        waited: The devices for which the caller has already waited.

    Raises:
        CannotStore: Values have a type that the format does not support, contain themselves, or are nested too deep.
            The error has the path of each such value, and a hint for it.
    """
    walk = Walk()
    node = walk.node(state, "", 1)
    # Report all values at once, so that correcting a state with ten such values does not take ten failed saves.
    if walk.refused:
        raise CannotStore.of(walk.refused)
    walk.place_tensors(after, waited)
    return walk.captured(node)


def _factory_of(value: Any, path: str) -> str | None:
    factory: Any = value.default_factory
    if factory is None:
        return None
    name = FACTORY_NAMES.get(factory) if isinstance(factory, type) else None
    if name is None:
        reason = f"a defaultdict that makes its values with {factory!r:.60} cannot be stored"
        raise CannotStore(path, reason, hint="store dict(value), or let it make list, dict, set, int, float or str")
    return name


class Walk:
    """One pass over a state. Storages are numbered in the order of their first leaves.

    Tensors are placed after the pass, when all tensors that share memory are known.
    """

    def __init__(self) -> None:
        self.leaves: dict[int, LeafRecord] = {}
        self.sources: dict[int, ByteSource] = {}
        self.leaf_count = 0
        self.storage_count = 0
        self.name_chars = 0
        self.refused: list[CannotStore] = []
        self.left_out: list[str] = []
        self._owners: list[type] = []  # the classes of the objects whose `state_dict` is being walked
        self._open: set[int] = set()
        self._optimizer_state: str | tuple[()] = ()  # the prefix of all paths in the state of the latest optimizer
        # Classes whose tensors have no parts. This set saves a check of each of tens of thousands of tensors.
        self._tensor_kinds: set[type] = set()
        self._admission: Admission | None = None
        self._tensors: dict[int, list[tuple[int, Admitted]]] = {}
        self.memories: dict[Hashable, int] = {}

    def captured(self, node: Node) -> Captured:
        """Return the captured state whose root is `node`."""
        leaves = tuple(self.leaves[index] for index in range(self.leaf_count))
        sources = tuple(self.sources[index] for index in range(self.storage_count))
        return Captured(node, leaves, sources, name_chars=self.name_chars, left_out=tuple(self.left_out))

    def place_tensors(self, after: object = None, waited: Collection[object] = ()) -> None:
        """Set the sources and the leaves of all tensors, after the walk."""
        if not self._tensors:
            return
        from ckstore.tensors import torch_leaves

        every = [admitted for numbered in self._tensors.values() for _, admitted in numbered]
        # CUDA kernels that were queued before the save must end before the tensors are read.
        written = torch_leaves.wait_for(every, after, waited)
        for storage, numbered in self._tensors.items():
            # All tensors that share this memory are known now, so the part of the memory that they cover is also known.
            members = [admitted for _, admitted in numbered]
            self.sources[storage], leaves = torch_leaves.place(members, storage)
            for (index, _), leaf in zip(numbered, leaves, strict=True):
                self.leaves[index] = leaf
        if after is None:  # otherwise, later reads are queued behind the copies of `place`
            torch_leaves.wait_for_placing(written)

    def node(self, value: Any, path: str, depth: int) -> Node:
        """Return the node of the value at `path`."""
        # Compare the exact type. A subclass may have additional data, and this data would be lost.
        kind = type(value)
        scalar = _SCALARS.get(kind)
        # Check the most common kinds first, because a state may have millions of values.
        if kind is str:
            if len(value) <= STR_INLINE_MAX and fits_json(value):
                return value
            # Python strings may have lone surrogates, for example in file names. Strict UTF-8 would refuse surrogates.
            return self._text("str", path, value.encode("utf-8", "surrogatepass"))
        if kind is bytes:
            return encode_bytes(value) if len(value) <= BYTES_INLINE_MAX else self._text("bytes", path, value)
        try:
            if scalar is not None:
                return scalar(value)
            if kind is list or kind in _CONTAINERS:
                return self._container(value, path, depth)
            encode = PLAIN.get(kind)
            if encode is not None:
                return encode(value)
            return self.foreign(value, path, depth)
        except NotStored as error:
            self.refused.append(CannotStore(path, f"{error} cannot be stored", hint=error.hint))
        except CannotStore as error:  # continue, so that all values that cannot be stored are reported at once
            self.refused.append(error)
        return None

    def _container(self, value: Any, path: str, depth: int) -> Node:
        if depth > MAX_DEPTH or id(value) in self._open:
            reason = "contains itself" if id(value) in self._open else f"nested deeper than {MAX_DEPTH}"
            raise CannotStore(path, f"{reason} and cannot be stored", hint="store a flatter state")
        # As nodes, a list of a million numbers, such as the order of a sampler, would be most of a manifest.
        if type(value) is list and (packed := pack_numbers(value)) is not None:
            dtype, data, count = packed
            leaf = LeafRecord(path, "numbers", dtype, (count,), self.storage_count)
            return self._alone(leaf, BytesSource(path, data))
        self.name_chars += len(path) * len(value)
        # A value may be in two places, but not inside itself. So `_open` only has the values that contain this value.
        self._open.add(id(value))
        try:
            return self._dict(value, path, depth) if isinstance(value, dict) else self._sequence(value, path, depth)
        finally:
            self._open.discard(id(value))

    def _sequence(self, value: Any, path: str, depth: int) -> Node:
        items: Node = [
            scalar(item)
            if (scalar := _SCALARS.get(type(item))) is not None
            else self.node(item, join_index(path, index), depth + 1)
            for index, item in enumerate([*value])  # copied, because another thread may append to a deque
        ]
        if type(value) is deque:
            return ["deque", items, value.maxlen]
        return ["tuple" if isinstance(value, tuple) else "list", items]

    def _dict(self, value: dict[Any, Any], path: str, depth: int) -> Node:
        pairs = []
        for key, item in list(value.items()):  # copied, because another thread may add a key meanwhile
            # Almost every key of a state is an ASCII string, which is its own node.
            if type(key) is str and key.isascii():
                pairs.append([key, self.node(item, join_key(path, key), depth + 1)])
                continue
            try:
                own = encode_key(key)
            except ValueError as error:
                self.refused.append(self.refused_key(key, path, str(error)))
                continue
            # A JSON object cannot represent a dict, because keys may be integers or tuples, and have an order.
            pairs.append([own, self.node(item, join(path, key), depth + 1)])
        kind = type(value)
        if kind is OrderedDict:
            return ["odict", pairs, self._attributes(value, path, depth)]
        if kind is defaultdict:
            return ["defaultdict", pairs, _factory_of(value, path)]
        if kind is Counter:
            self._report_attributes(value, path)
        return ["dict" if kind is dict else "counter", pairs]

    def refused_key(self, key: object, path: str, reason: str) -> CannotStore:
        """Return the error for a key that the format does not support."""
        return refuse_key(key, path, reason)

    def _attributes(self, value: dict[Any, Any], path: str, depth: int) -> Node:
        attributes = getattr(value, "__dict__", None)
        if not attributes:
            return None
        before = self.leaf_count
        node = self.node(dict(attributes), path, depth + 1)
        # A leaf in an attribute would have no name by which it could be found, selected or compared.
        if self.leaf_count > before:
            names = ", ".join(map(str, attributes))
            reason = f"the attributes ({names}) of an OrderedDict hold tensors, arrays or long values"
            raise CannotStore(path, reason, hint="store them under keys of the dict")
        return node

    def foreign(self, value: Any, path: str, depth: int) -> Node:
        """Return the node of a value that is not a plain Python value."""
        if type(value) in self._tensor_kinds or is_tensor(value):
            return self._tensor(value, path, depth)
        if is_array(value):
            return self._array(value, path)
        if is_numpy_scalar(value):
            from ckstore.tensors import numpy_leaves

            return numpy_leaves.encode_scalar(value, path)
        if (found := torch_value(value) or named_value(value) or self._object(value, path, depth)) is not None:
            return found
        if is_named_tuple(value):
            self._report_attributes(value, path)
            return self._container(value, path, depth)
        if type(value) in (bytearray, io.BytesIO):
            return self.held_bytes(value, path)
        return self._stateful(value, path, depth) if is_stateful(value) else refuse_value(value, path)

    def _stateful(self, value: Stateful, path: str, depth: int) -> Node:
        if path.startswith(self._optimizer_state):
            refuse_in_optimizer(value, path)
        if is_optimizer(value, own_load=True):
            self._optimizer_state = f"{join_key(path, 'state')}["  # its keys are indexes of parameters
        if self._owners:
            outer, inner = type_name(self._owners[-1]), type_name(type(value))
            told = f"load_state_dict of {outer} gets this dict instead of the {inner}"
            self.left_out.append(f"{plain(path)} is stored as its state_dict() ({told})")
        with self._inside(value, path, "leave the object out of its own state_dict()"):
            self._owners.append(type(value))
            try:
                return self.node(state_of(value, path), path, depth)
            finally:
                self._owners.pop()

    def held_bytes(self, value: bytearray | io.BytesIO, path: str) -> Node:
        """Return the node of a bytearray or an io.BytesIO. The position in an io.BytesIO is not stored."""
        kind: LeafKind = "bytearray" if isinstance(value, bytearray) else "io.BytesIO"
        try:
            data = bytes(value) if isinstance(value, bytearray) else value.getvalue()
        except ValueError as error:
            reason = "a closed io.BytesIO, which no longer has its bytes, cannot be stored"
            raise CannotStore(path, reason, hint="save before it is closed, or leave it out") from error
        self._report_attributes(value, path)
        return encode_held_bytes(kind, data) if len(data) <= BYTES_INLINE_MAX else self._text(kind, path, data)

    def _tensor(self, value: Any, path: str, depth: int) -> Node:
        if type(value) not in self._tensor_kinds or not is_plain_layout(value):
            from ckstore.tensors import torch_parts

            apart = torch_parts.take_apart(value)
            if apart is not None:
                # An allowed subclass decides which of its attributes are parts of it.
                if apart.kind in SPARSE_KINDS:
                    self._report_attributes(value, path)
                return self._parts(apart, path, depth)
        if self._admission is None:
            from ckstore.tensors import torch_leaves

            self._admission = torch_leaves.Admission()
        admitted = self._admission.admit(value, path)
        self._report_attributes(value, path)
        self._tensor_kinds.add(type(value))
        # Tensors with the same memory get the same storage, so that tied weights and views are still tied after a load.
        storage = self.memories.get(admitted.memory) if admitted.memory is not None else None
        if storage is None:
            storage = self.next_storage()
            self._tensors[storage] = []
            self.memories[admitted.memory] = storage
        index = self.next_leaf()
        self._tensors[storage].append((index, admitted))
        return ["leaf", index]

    def _report_attributes(self, value: object, path: str) -> None:
        """Report the attributes that were set on a value whose node has no place for attributes."""
        attributes = getattr(value, "__dict__", None)
        # Attributes that begin with an underscore are private to a library, such as those that torch sets for its
        # compiler. They are not reported.
        if attributes and (names := [str(name) for name in attributes if not str(name).startswith("_")]):
            owner = plain(path) or "the state itself"
            self.left_out.append(f"attributes of {owner} are not stored ({', '.join(names)})")

    def _object(self, value: object, path: str, depth: int) -> Node | None:
        found = taken_apart(value, path)
        if found is None:
            return None
        name, fields = found
        if is_named_tuple(value):
            self._report_attributes(value, path)
        with self._inside(value, path, "store a flatter state"):
            return ["object", self._named(fields, path, depth), name]

    def _named(self, parts: Mapping[str, Any], path: str, depth: int) -> list[Node]:
        """Return the pairs of name and node for named parts."""
        if depth > MAX_DEPTH:
            reason = f"nested deeper than {MAX_DEPTH} and cannot be stored"
            raise CannotStore(path, reason, hint="store a flatter state")
        self.name_chars += len(path) * len(parts)
        return [[name, self.node(part, join_key(path, name), depth + 1)] for name, part in parts.items()]

    @contextmanager
    def _inside(self, value: object, path: str, hint: str) -> Iterator[None]:
        """Mark an object as being walked, so that a state that contains itself is detected."""
        if id(value) in self._open:
            raise CannotStore(path, "contains itself and cannot be stored", hint=hint)
        self._open.add(id(value))
        try:
            yield
        finally:
            self._open.discard(id(value))

    def _parts(self, apart: TensorParts, path: str, depth: int) -> Node:
        pairs = self._named(apart.tensors, path, depth)
        before, refused = self.leaf_count, len(self.refused)
        extra = self.node(apart.extra, path, depth + 1)
        for i, error in enumerate(
            self.refused[refused:], refused
        ):  # make the error name the tensor of the state, not its inner part
            reason = f"a {apart.kind}, which is built from {error.message.partition(': ')[2]}"
            self.refused[i] = CannotStore(path, reason, hint=error.hint)
        if self.leaf_count > before:
            reason = f"a {apart.kind}, whose structure contains tensors or long values, cannot be stored"
            raise CannotStore(path, reason, hint="store the plain tensors that it consists of")
        return ["parts", pairs, apart.kind, extra]

    def _array(self, value: Any, path: str) -> Node:
        from ckstore.tensors import numpy_leaves

        parts = numpy_leaves.take_apart(value, path)
        return self._alone(
            LeafRecord(path, "numpy", parts.dtype, parts.shape, self.storage_count, 0, parts.strides), parts.source
        )

    def _text(self, kind: LeafKind, path: str, data: bytes) -> Node:
        leaf = LeafRecord(path, kind, "", (), self.storage_count)
        return self._alone(leaf, BytesSource(path, data))

    def _alone(self, leaf: LeafRecord, source: ByteSource) -> Node:
        index = self.next_leaf()
        self.leaves[index] = leaf
        self.sources[self.next_storage()] = source
        return ["leaf", index]

    def next_leaf(self) -> int:
        """Return the number of a new leaf."""
        self.leaf_count += 1
        return self.leaf_count - 1

    def next_storage(self) -> int:
        """Return the number of a new storage."""
        self.storage_count += 1
        return self.storage_count - 1
