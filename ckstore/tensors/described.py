"""Turn a state whose tensors are described, and not there, into nodes and leaves: what a committed file holds.

A description may say in a few bytes that a value is at many places. So what all of it comes to is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

from ckstore.errors import CannotStore
from ckstore.model.manifest.captured import ByteSource, Captured
from ckstore.model.manifest.manifest import LeafRecord, Node
from ckstore.model.names import join_key
from ckstore.tensors.refusals import refuse_value
from ckstore.tensors.state_capture import Walk

# More reasons than any person reads; a pickle of a few bytes can name billions of such values.
REFUSED_MOST = 10_000


class DescribedLeaf(NamedTuple):
    """A leaf of a described value."""

    leaf: LeafRecord  # its name and layout; which storage it lies in is not looked at
    source: ByteSource  # the bytes of its storage
    memory: Hashable | None = None  # equal for leaves that lie in one storage; None: it has one of its own


class DescribedParts(NamedTuple):
    """A described tensor that is made of other tensors: its kind, its parts by name, the node of what else it needs."""

    kind: str
    parts: Mapping[str, object]
    extra: Node


class DescribedObject(NamedTuple):
    """A described object: the name of its class, and its attributes."""

    kind: str
    fields: Mapping[str, object]


Place = Callable[[Any, str], "DescribedLeaf | DescribedParts | DescribedObject | Node"]
"""Says what a described value with this path is in a state."""


class TooMuchDescribed(ValueError):
    """A description comes to more than its size can be meant to say; the message says of what."""


class Most(NamedTuple):
    """What a description may come to, where each value counts at every place that it has."""

    values: int  # values in containers
    names: int  # characters of the names of all values
    nbytes: int  # characters and bytes of texts, keys and arrays


def capture_described(state: object, places: Mapping[type, Place], most: Most) -> tuple[Captured, list[CannotStore]]:
    """Return what a described state is, and what is refused in it; the node of that is null."""
    # `state`: containers and plain values of Python, and descriptions. `places`: for the type of each description what
    # it is; what is of no such type is refused.
    walk = _DescribedWalk(places, most)
    node = walk.node(state, "", 1)
    return walk.captured(node), walk.refused


class _DescribedWalk(Walk):
    def __init__(self, places: Mapping[type, Place], most: Most) -> None:
        super().__init__()
        self._places = places
        self._most = most
        self._values = 0
        self._nbytes = 0

    def node(self, value: Any, path: str, depth: int) -> Node:
        if isinstance(value, str | bytes):
            # Before it is walked: a pickle refers to one list at many places, and each level doubles what comes out.
            self._count(nbytes=len(value))
        elif isinstance(value, dict | set | frozenset):
            self._count(1 + len(value), sum(map(_weight, value)), names=len(path) * len(value))
        elif isinstance(value, list | tuple):
            self._count(1 + len(value), names=len(path) * len(value))
        return super().node(value, path, depth)

    def _count(self, values: int = 0, nbytes: int = 0, *, names: int = 0) -> None:
        """Count what comes, before anything is made of it; `names` is counted where it is made."""
        self._values += values
        self._nbytes += nbytes
        most = self._most
        if self._values > most.values or self._nbytes > most.nbytes or self.name_chars + names > most.names:
            raise TooMuchDescribed("it repeats values more often than its size allows")
        if len(self.refused) > REFUSED_MOST:
            raise TooMuchDescribed(f"it has more than {REFUSED_MOST} values that cannot be loaded")

    def refused_key(self, key: object, path: str, reason: str) -> CannotStore:
        if type(key) in self._places:  # then its type is ours, and its text says what it is
            return CannotStore(path, f"a key, {key!a:.200}, which {reason}, cannot be loaded")
        return super().refused_key(key, path, reason)

    def foreign(self, value: Any, path: str, depth: int) -> Node:
        if type(value) is bytearray:
            self._count(nbytes=len(value))
            return self.held_bytes(value, path)
        self._count()
        place = self._places.get(type(value))
        if place is None:
            return refuse_value(value, path)
        found = place(value, path)
        if isinstance(found, DescribedParts):
            pairs = [[name, self.node(part, join_key(path, name), depth + 1)] for name, part in found.parts.items()]
            return ["parts", pairs, found.kind, found.extra]
        if isinstance(found, DescribedObject):
            self._count(len(found.fields), sum(map(_weight, found.fields)), names=len(path) * len(found.fields))
            with self._inside(value, path, "store a flatter state"):
                return ["object", self._named(found.fields, path, depth), found.kind]
        return self._leaf(found) if isinstance(found, DescribedLeaf) else found

    def _leaf(self, placed: DescribedLeaf) -> Node:
        storage = None if placed.memory is None else self.memories.get(placed.memory)
        if storage is None:
            self._count(nbytes=placed.source.nbytes)
            storage = self.next_storage()
            self.sources[storage] = placed.source
            if placed.memory is not None:
                self.memories[placed.memory] = storage
        index = self.next_leaf()
        self.leaves[index] = placed.leaf._replace(storage=storage)
        return ["leaf", index]


def _weight(key: Any) -> int:
    """Return about how many characters a key has."""
    if type(key) is tuple:
        return sum(map(_weight, key))
    return len(key) if type(key) in (str, bytes) else 8
