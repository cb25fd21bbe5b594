"""Look through targets, states and nodes for what is below them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckstore.errors import BadInput
from ckstore.model.manifest.manifest import MAX_DEPTH, LeafRecord, Node
from ckstore.model.manifest.nodes import decode_key
from ckstore.model.names import join_index, join_key
from ckstore.tensors.kinds import is_array, is_tensor
from ckstore.tensors.stateful import is_stateful, state_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def holds_live(target: object, path: str, depth: int = 1) -> bool:
    """Whether there is a tensor, an array or a `Stateful` object in `target`, at any depth.

    Raises:
        BadInput: `target` contains itself, or is nested deeper than any checkpoint.
    """
    if is_tensor(target) or is_array(target) or is_stateful(target):
        return True
    if isinstance(target, dict | list | tuple):
        if depth > MAX_DEPTH:
            raise BadInput(f"{path}: the target contains itself or is nested deeper than {MAX_DEPTH}")
        items = target.values() if isinstance(target, dict) else target
        return any(holds_live(item, path, depth + 1) for item in items)
    return False


def tensors_in(state: object, path: str, depth: int = 1) -> Iterator[tuple[str, Any]]:
    """Give name and tensor of each plain tensor in the state of an object, named as `capture` does."""
    if is_tensor(state):
        from ckstore.tensors import torch_targets

        if torch_targets.can_be_filled(state):  # type: ignore[arg-type]
            yield path, state
    elif depth > MAX_DEPTH:
        raise BadInput(f"{path}: the state of an object contains itself or is nested deeper than {MAX_DEPTH}")
    elif is_stateful(state):
        yield from tensors_in(state_of(state, path), path, depth + 1)
    elif isinstance(state, dict):
        for key, item in state.items():
            yield from tensors_in(item, name_below(path, key), depth + 1)
    elif isinstance(state, list | tuple):
        for i, item in enumerate(state):
            yield from tensors_in(item, join_index(path, i), depth + 1)


def leaf_numbers(node: Node) -> Iterator[int]:
    """Give the numbers of the leaves at and below a node."""
    if not isinstance(node, list):
        return
    if node[0] == "leaf":
        yield node[1]
    elif node[0] in ("list", "tuple"):
        for item in node[1]:
            yield from leaf_numbers(item)
    elif node[0] in ("dict", "odict", "counter"):
        for _, item in node[1]:
            yield from leaf_numbers(item)


def name_below(path: str, key: object) -> str:
    """Return the name of what is at `key` of a dict, also of a key that cannot be stored."""
    if isinstance(key, str):
        return join_key(path, key)
    return join_index(path, key) if isinstance(key, int) else f"{path}[{key!r}]"


def value_names(node: Node, path: str, leaves: Sequence[LeafRecord]) -> Iterator[str]:
    """Give the names of the values at and below a node: of leaves, plain values and empty containers."""
    tag = node[0] if isinstance(node, list) else None
    if tag == "leaf":
        yield leaves[node[1]].name
    elif tag in ("list", "tuple") and node[1]:
        for i, item in enumerate(node[1]):
            yield from value_names(item, join_index(path, i), leaves)
    elif tag in ("dict", "odict", "counter") and node[1]:
        for own, item in node[1]:
            yield from value_names(item, name_below(path, decode_key(own)), leaves)
    else:
        yield path
