"""Find values by their names in `torch.distributed.checkpoint` (DCP), and tensors by their names in the state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ckstore.errors import AmbiguousRef, BadInput, NoSuchRef
from ckstore.model.manifest.manifest import LeafRecord, Manifest, Node
from ckstore.model.manifest.nodes import decode_key, join
from ckstore.model.names import join_index, plain, spellings
from ckstore.tensors.walks import DICTS, leaf_numbers, parts_in

Path = tuple[str | int, ...]
"""The keys and list indexes that lead to a value. Keys are texts."""


@dataclass(frozen=True, slots=True)
class StateValue:
    """A value of a checkpoint."""

    path: Path
    name: str  # the name in the state, by which `ckstore.Store.load` selects
    node: Node  # the node in the manifest
    # The leaf, if the value is a tensor that is row-major and begins at the start of its storage; otherwise None.
    tensor: LeafRecord | None


def entries_of(manifest: Manifest, *, with_unnamed: bool = False) -> dict[str, StateValue]:
    """Return the values of a checkpoint by their DCP names.

    The names are those recorded in the manifest, or otherwise the names that result from flattening the state. Empty
    dicts, and containers of only empty dicts, have no name in DCP. If `with_unnamed`, they are named by their keys.
    """
    if manifest.dcp_values is not None:
        items = _DictItems()
        given = [(value.name, value.path, *_at(manifest.state, value.path, items)) for value in manifest.dcp_values]
    else:
        given = list(_flat(manifest, named=True))
    if with_unnamed:
        recorded = {path for _, path, *_ in given}
        given += [
            value
            for value in _flat(manifest, named=False)
            # If the planner did not flatten the state, a recorded value can contain an empty dict.
            if not any(value[1][:i] in recorded for i in range(len(value[1]) + 1))
        ]
    found: dict[str, StateValue] = {}
    for name, path, own_name, node in given:
        # {"a.b": x} and {"a": {"b": y}} flatten to the same name, and one value would silently replace the other.
        if name in found:
            msg = f"{manifest.name} has two values that torch.distributed.checkpoint would name {name!r}"
            raise BadInput(msg, hint="a key that contains a dot looks like two keys: save it under another key")
        found[name] = StateValue(path, own_name, node, _tensor(manifest, node))
    return found


def _tensor(manifest: Manifest, node: Node) -> LeafRecord | None:
    if not isinstance(node, list) or node[0] != "leaf":
        return None
    leaf: LeafRecord = manifest.leaves[node[1]]
    # DCP reads blocks of a tensor, so the tensor must be row-major and begin at the start of its storage.
    plain = leaf.kind == "torch" and leaf.strides is None and leaf.offset == 0
    return leaf if plain else None


class _DictItems(dict[int, dict[Any, tuple[Any, Node]]]):
    """The items of the dicts of a state by `id` of the node, since a search in a list of 20,000 keys is slow."""

    def find(self, node: Any, key: str | int) -> tuple[Any, Node]:
        """Return the key and the node of the item with this key, or with a key of which it is the text."""
        items = self.get(id(node))
        if items is None:
            items = self[id(node)] = {}
            for own, item in node[1]:
                found = decode_key(own)
                items.setdefault(found, (found, item))
                items.setdefault(str(found), (found, item))
        return items[key]


def _at(node: Node, path: Path, items: _DictItems) -> tuple[str, Node]:
    """Return the name that the value at a path has in the state, and the node of the value."""
    name = ""
    for key in path:
        if node[0] in DICTS:
            own, node = items.find(node, key)
            name = join(name, own)
        else:
            name, node = join_index(name, int(key)), node[1][int(key)]
    return name, node


def _flat(manifest: Manifest, *, named: bool) -> Iterator[tuple[str, Path, str, Node]]:
    """Yield the DCP name, path, name and node of each value that has a name in DCP, or of each one that has none."""
    for path, own_name, node in _values(manifest.state, (), "", manifest.leaves):
        if _is_named(node, manifest.leaves) == named:
            yield ".".join(map(str, path)), path, own_name, node


def _values(node: Node, path: Path, name: str, leaves: Sequence[LeafRecord]) -> Iterator[tuple[Path, str, Node]]:
    """Yield the paths, names and nodes of the values at and below a node, including containers without values."""
    if not _is_flattened(node, leaves) or not node[1] or (path and not _is_named(node, leaves)):
        yield path, name, node
    elif node[0] in DICTS:
        for own, value in node[1]:
            key = decode_key(own)
            yield from _values(value, (*path, str(key)), join(name, key), leaves)
    else:
        for i, value in enumerate(node[1]):
            yield from _values(value, (*path, i), join_index(name, i), leaves)


def _is_flattened(node: Node, leaves: Sequence[LeafRecord]) -> bool:
    """Whether torch 2.4 and later flatten a container, according to `traverse_state_dict` of torch.

    They flatten each dict, and each list that contains a tensor or another container that is flattened.
    """
    tag = node[0] if isinstance(node, list) else None
    if tag == "list":
        return any(_is_torch_tensor(item, leaves) or _is_flattened(item, leaves) for item in node[1])
    return tag in DICTS


def _is_named(node: Node, leaves: Sequence[LeafRecord]) -> bool:
    """Whether torch gives a name to a value, or to a value in it."""
    if not _is_flattened(node, leaves):
        return True
    return any(_is_named(item[1] if node[0] in DICTS else item, leaves) for item in node[1])


def _is_torch_tensor(node: Node, leaves: Sequence[LeafRecord]) -> bool:
    tag = node[0] if isinstance(node, list) else None
    return tag == "parts" or (tag == "leaf" and leaves[node[1]].kind == "torch")


_NEAR = 5


class TensorNames:
    """Finds leaves, and tensors that consist of several tensors, by their names in the state.

    The names may be given with or without backslashes.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self.leaves = {leaf.name: leaf for leaf in manifest.leaves}  # name in the state -> leaf

    @cached_property
    def written(self) -> dict[str, str]:
        """The spelling of each name; see `spellings`."""
        return spellings([*self.leaves, *self._parts])

    @cached_property
    def listed(self) -> list[str]:
        """The names in the order of the state. A tensor that consists of several tensors is listed by its own name."""
        wholes = {i: name for name, node in self._parts.items() for i in leaf_numbers(node)}
        names = dict.fromkeys(wholes.get(i, name) for i, name in enumerate(self.leaves))
        return [self.written[name] for name in names]

    def __contains__(self, name: object) -> bool:
        return name in self.leaves or name in self._by_plain

    def find(self, name: str) -> LeafRecord | tuple[str, Node]:
        """Return the leaf of that name, or the name and node of a tensor that consists of several tensors."""
        meant = [name] if name in self.leaves or name in self._parts else self._by_plain.get(name, ())
        if len(meant) == 1:
            return self.leaves.get(meant[0]) or (meant[0], self._parts[meant[0]])
        checkpoint = self._manifest.name
        if meant:
            msg = f"{checkpoint} has several tensors that are spelled {name!r}: {', '.join(meant)}"
            raise AmbiguousRef(msg, hint="give the name with its backslashes")
        near = [key for key in self.listed if name.rpartition(".")[2] in key][:_NEAR]
        msg = f"{checkpoint} has no tensor named {name!r}"
        raise NoSuchRef(msg, hint=f"similar: {', '.join(near)}" if near else "keys() lists them")

    @cached_property
    def _parts(self) -> dict[str, Any]:
        return dict(parts_in(self._manifest.state))

    @cached_property
    def _by_plain(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for key in (*self.leaves, *self._parts):
            found.setdefault(plain(key), []).append(key)
        return found
