"""Walks over the nodes of a state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ckstore.model.manifest.manifest import LeafRecord, Node
from ckstore.model.manifest.nodes import DICTS, PAIRS, SEQUENCES, decode_key, join
from ckstore.model.names import join_index

__all__ = ["DICTS", "PAIRS", "SEQUENCES", "leaf_numbers", "name_below", "value_names"]


def leaf_numbers(node: Node) -> Iterator[int]:
    """Yield the numbers of the leaves at and below a node."""
    if not isinstance(node, list):
        return
    if node[0] == "leaf":
        yield node[1]
    elif node[0] in SEQUENCES or node[0] in PAIRS:
        for item in node[1] if node[0] in SEQUENCES else (item for _, item in node[1]):
            if isinstance(item, list):
                if item[0] == "leaf":  # most values of a large state are leaves, and a generator for each takes longer
                    yield item[1]
                else:
                    yield from leaf_numbers(item)


def with_leaves(node: Node, number_of: Callable[[int], int]) -> Node:
    """Return a node with new leaf numbers. `number_of` is called once for each leaf, in order."""
    return with_others(node, "leaf", lambda leaf: ["leaf", number_of(leaf[1])])


def with_others(node: Node, tag: str, other: Callable[[Node], Node]) -> Node:
    """Return a copy of a node in which each node with this tag is replaced by the result of `other`.

    `other` is called in the order of the nodes.
    """
    if not isinstance(node, list):
        return node
    if node[0] == tag:
        return other(node)
    if node[0] in SEQUENCES:
        return [node[0], [with_others(item, tag, other) for item in node[1]], *node[2:]]
    if node[0] in PAIRS:
        return [node[0], [[own, with_others(item, tag, other)] for own, item in node[1]], *node[2:]]
    return node


def parts_in(node: Node, path: str = "", tag: str = "parts") -> Iterator[tuple[str, Node]]:
    """Yield the name and the node of each tensor that consists of other tensors, at and below a node.

    The parts of such a tensor are not searched. With another `tag`, the nodes with that tag are yielded instead.
    """
    if not isinstance(node, list):
        return
    if node[0] == tag:
        yield path, node
    elif node[0] in SEQUENCES:
        for i, item in enumerate(node[1]):
            yield from parts_in(item, join_index(path, i), tag)
    elif node[0] in PAIRS:
        for own, item in node[1]:
            yield from parts_in(item, join(path, decode_key(own)), tag)


def shape_of_parts(node: Node) -> tuple[int, ...] | None:
    """Return the shape of a tensor that consists of other tensors, or None if its node has no valid shape."""
    extra = node[3]
    if node[2] != "sparse_csr":  # (shape, coalesced) or (context, shape, strides)
        items = extra[1] if isinstance(extra, list) and extra[0] == "tuple" else []
        at = 0 if node[2] == "sparse_coo" else 1
        extra = items[at] if len(items) > at else None
    if not isinstance(extra, list) or extra[0] not in ("torch.Size", "tuple"):
        return None
    return tuple(extra[1]) if all(type(size) is int for size in extra[1]) else None


def name_below(path: str, key: object) -> str:
    """Return the name of the value for `key` in a dict at `path`, even if the key cannot be stored."""
    if type(key) is str or key is None or isinstance(key, (str, int, float, tuple)):
        return join(path, key)
    return f"{path}[{key!r}]"


def value_names(node: Node, path: str, leaves: Sequence[LeafRecord]) -> Iterator[str]:
    """Yield the names of the values at and below a node: leaves, plain values and empty containers."""
    tag = node[0] if isinstance(node, list) else None
    if tag == "leaf":
        yield leaves[node[1]].name
    elif tag in SEQUENCES and node[1]:
        for i, item in enumerate(node[1]):
            yield from value_names(item, join_index(path, i), leaves)
    elif tag in PAIRS and node[1]:
        for own, item in node[1]:
            yield from value_names(item, name_below(path, decode_key(own)), leaves)
    else:
        yield path
