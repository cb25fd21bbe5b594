"""Look through the nodes of a state for what is below them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckstore.model.manifest.manifest import LeafRecord, Node
from ckstore.model.manifest.nodes import DICTS, PAIRS, SEQUENCES, decode_key, join
from ckstore.model.names import join_index

__all__ = ["DICTS", "PAIRS", "SEQUENCES", "leaf_numbers", "name_below", "value_names"]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


def leaf_numbers(node: Node) -> Iterator[int]:
    """Give the numbers of the leaves at and below a node."""
    if not isinstance(node, list):
        return
    if node[0] == "leaf":
        yield node[1]
    elif node[0] in SEQUENCES:
        for item in node[1]:
            yield from leaf_numbers(item)
    elif node[0] in PAIRS:
        for _, item in node[1]:
            yield from leaf_numbers(item)


def with_leaves(node: Node, number_of: Callable[[int], int]) -> Node:
    """Return a node whose leaves have other numbers: those that `number_of`, called once for each in order, gives."""
    if not isinstance(node, list):
        return node
    if node[0] == "leaf":
        return ["leaf", number_of(node[1])]
    if node[0] in SEQUENCES:
        return [node[0], [with_leaves(item, number_of) for item in node[1]], *node[2:]]
    if node[0] in PAIRS:
        return [node[0], [[own, with_leaves(item, number_of)] for own, item in node[1]], *node[2:]]
    return node


def name_below(path: str, key: object) -> str:
    """Return the name of what is at `key` of a dict, also of a key that cannot be stored."""
    if key is None or isinstance(key, str | int | float | tuple):
        return join(path, key)
    return f"{path}[{key!r}]"


def value_names(node: Node, path: str, leaves: Sequence[LeafRecord]) -> Iterator[str]:
    """Give the names of the values at and below a node: of leaves, plain values and empty containers."""
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
