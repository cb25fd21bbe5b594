"""The values of a checkpoint by the names that `torch.distributed.checkpoint` has for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckstore.errors import BadInput
from ckstore.model.manifest.nodes import decode_key, join
from ckstore.model.names import join_index
from ckstore.tensors.walks import DICTS, leaf_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckstore.model.manifest.manifest import LeafRecord, Manifest, Node


@dataclass(frozen=True, slots=True)
class Found:
    """A value of a checkpoint."""

    path: tuple[str | int, ...]  # its keys and places in lists
    name: str  # in the state, as `ckstore.Store.load` selects by
    node: Node  # its node
    # Its leaf, if it is a tensor that lies row-major in a storage from its start on; else None.
    tensor: LeafRecord | None


def entries_of(manifest: Manifest) -> dict[str, Found]:
    """Return the values of a checkpoint by name: those that it gives, or what flattening its state would name so."""
    if manifest.ranks is not None and manifest.ranks.entries is not None:
        given = ((entry.name, entry.path, *_at(manifest.state, entry.path)) for entry in manifest.ranks.entries)
    else:
        given = (
            (".".join(map(str, path)), path, *name_and_node) for path, *name_and_node in _values(manifest.state, (), "")
        )
    found: dict[str, Found] = {}
    for name, path, own_name, node in given:
        # {"a.b": x} and {"a": {"b": y}} flatten to one name there: one of them would silently replace the other.
        if name in found:
            msg = f"{manifest.name} has two values that torch.distributed.checkpoint would name {name!r}"
            raise BadInput(msg, hint="a key with a dot in it looks like two: save it under another key")
        found[name] = Found(path, own_name, node, _tensor(manifest, node))
    return found


def _tensor(manifest: Manifest, node: Node) -> LeafRecord | None:
    if not isinstance(node, list) or node[0] != "leaf":
        return None
    leaf: LeafRecord = manifest.leaves[node[1]]
    # DCP reads blocks of a row-major tensor; a view into a larger storage has no such blocks.
    plain = leaf.kind == "torch" and leaf.strides is None and leaf.offset == 0
    return leaf if plain else None


def _at(node: Node, path: tuple[str | int, ...]) -> tuple[str, Node]:
    """Return the name in the state of what is at a path, and its node."""
    name = ""
    for key in path:
        if node[0] in DICTS:
            own, node = next(pair for pair in node[1] if decode_key(pair[0]) == key or str(decode_key(pair[0])) == key)
            name = join(name, decode_key(own))
        else:
            name, node = join_index(name, int(key)), node[1][int(key)]
    return name, node


def _values(node: Node, path: tuple[str | int, ...], name: str) -> Iterator[tuple[tuple[str | int, ...], str, Node]]:
    """Give the paths, names and nodes of the values at and below a node."""
    tag = node[0] if isinstance(node, list) else None
    if tag in DICTS and node[1]:
        for own, value in node[1]:
            key = decode_key(own)
            yield from _values(value, (*path, str(key)), join(name, key))
    elif tag == "list" and node[1] and any(True for _ in leaf_numbers(node)):
        for i, value in enumerate(node[1]):
            yield from _values(value, (*path, i), join_index(name, i))
    else:
        yield path, name, node
