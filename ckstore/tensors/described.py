"""Convert a state with described tensors, such as that of a committed file, into nodes and leaves.

A short description may repeat a value in many places, so the size of the result is counted and limited.
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

# A pickle of a few bytes can refer to billions of values that are refused.
REFUSED_MOST = 10_000
"""The maximum number of refused values in a description. No user would read more reasons."""


class DescribedLeaf(NamedTuple):
    """A leaf of a described value."""

    leaf: LeafRecord  # its name and layout; the index of its storage is ignored
    source: ByteSource  # the bytes of its storage
    memory: Hashable | None = None  # equal for leaves in the same storage; None if the leaf has its own storage


class DescribedParts(NamedTuple):
    """A described tensor that consists of other tensors: its kind, its named parts, and the node of its extra data."""

    kind: str
    parts: Mapping[str, object]
    extra: Node


class DescribedObject(NamedTuple):
    """A described object: the name of its class, and its attributes."""

    kind: str
    fields: Mapping[str, object]


Place = Callable[[Any, str], "DescribedLeaf | DescribedParts | DescribedObject | Node"]
"""A function that takes a described value and its path, and returns the form of the value in a state."""


class TooMuchDescribed(ValueError):
    """The result would be unreasonably large for the size of the description. The message has the reason."""


class Most(NamedTuple):
    """The limits for the result of a description. A value that occurs in several places counts each time."""

    values: int  # values in containers
    names: int  # characters in the names of all values
    nbytes: int  # characters and bytes in texts, keys and arrays


def capture_described(state: object, places: Mapping[type, Place], most: Most) -> tuple[Captured, list[CannotStore]]:
    """Return the captured form of a described state, and an error for each refused value, whose node is null.

    Args:
        state: Containers and plain values of Python, and descriptions.
        places: Type of a description -> function that returns the form of a value. Values of other types are refused.
        most: The limits for the result.
    """
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
            # Count each value before it is walked. A pickle may refer to one list in many places, so that each level
            # doubles the result.
            self._count(nbytes=len(value))
        elif isinstance(value, dict | set | frozenset):
            self._count(1 + len(value), sum(map(_weight, value)), names=len(path) * len(value))
        elif isinstance(value, list | tuple):
            self._count(1 + len(value), names=len(path) * len(value))
        return super().node(value, path, depth)

    def _count(self, values: int = 0, nbytes: int = 0, *, names: int = 0) -> None:
        """Count a value before anything is created for it.

        `names` is only compared with its limit, because the walk itself counts the characters of names.
        """
        self._values += values
        self._nbytes += nbytes
        most = self._most
        if self._values > most.values or self._nbytes > most.nbytes or self.name_chars + names > most.names:
            raise TooMuchDescribed("it repeats values more often than its size allows")
        if len(self.refused) > REFUSED_MOST:
            raise TooMuchDescribed(f"it has more than {REFUSED_MOST} values that cannot be loaded")

    def refused_key(self, key: object, path: str, reason: str) -> CannotStore:
        if type(key) in self._places:  # a type of ckstore, whose `repr` describes the value
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
    """Return the approximate number of characters of a key."""
    if type(key) is tuple:
        return sum(map(_weight, key))
    return len(key) if type(key) in (str, bytes) else 8
