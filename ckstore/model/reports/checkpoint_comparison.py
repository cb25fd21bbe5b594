"""Compare two checkpoints by their manifests (names, dtypes, shapes, pieces), without reading data.

Two tensors are equal if they have the same dtype, shape, strides and pieces. A tensor that is a view of a part of a
larger storage may share pieces with other tensors. Such a tensor counts as changed if one of these tensors changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ckstore.model.manifest.committed_files import file_changes
from ckstore.model.manifest.leaf_records import itemsize
from ckstore.model.manifest.manifest import LeafRecord, Manifest, Node
from ckstore.model.manifest.nodes import PAIRS, SEQUENCES, bytes_of_text, decode_key, join, numpy_number
from ckstore.model.manifest.python_values import TORCH_NAMED, decode_value
from ckstore.model.manifest.tensor_cuts import Block
from ckstore.model.names import join_index, spellings
from ckstore.model.reports.diff import Diff, DiffLeaf, LeafChange, PlainChange

_SHOWN_AS_TEXT = ("datetime", "enum", "global", "numpy.str_", "torch.Size", "torch.device", *TORCH_NAMED)
"""Kinds of values that are shown as text.

Decoding them needs a library, a class of the program, or a time zone that this machine may not know.
"""
_Piece = tuple[int | Block, int, str]


def diff_manifests(before: Manifest, after: Manifest) -> Diff:
    """Return the differences, each list in the order of the state that has the listed values."""
    old = {leaf.name: leaf for leaf in before.leaves}
    new = {leaf.name: leaf for leaf in after.leaves}
    spelling = spellings_of(before, after)
    changed = []
    unchanged_count = 0
    for name, leaf in new.items():
        if name not in old:
            continue
        change = _change(before, old[name], after, leaf, spelling[name])
        if change is None:
            unchanged_count += 1
        else:
            changed.append(change)
    return Diff(
        before=before.name,
        after=after.name,
        added=tuple(_summary(after, leaf, spelling[name]) for name, leaf in new.items() if name not in old),
        removed=tuple(_summary(before, leaf, spelling[name]) for name, leaf in old.items() if name not in new),
        changed=tuple(changed),
        plain=tuple(_plain_changes(before.state, after.state)),
        files=file_changes(before, after),
        unchanged_count=unchanged_count,
        same_content=before.content == after.content,
    )


def spellings_of(before: Manifest, after: Manifest) -> dict[str, str]:
    """Return the spellings for users of the names of all leaves in both checkpoints; see `names.spellings`."""
    return spellings(leaf.name for manifest in (before, after) for leaf in manifest.leaves)


def _summary(manifest: Manifest, leaf: LeafRecord, name: str) -> DiffLeaf:
    item_bytes = itemsize(leaf.kind, leaf.dtype)
    nbytes = manifest.storages[leaf.storage].nbytes if item_bytes is None else item_bytes * math.prod(leaf.shape)
    return DiffLeaf(name, leaf.kind, leaf.dtype, leaf.shape, nbytes)


def _change(before: Manifest, old: LeafRecord, after: Manifest, new: LeafRecord, name: str) -> LeafChange | None:
    one, other = _summary(before, old, name), _summary(after, new, name)
    old_pieces, new_pieces = _pieces(before, old), _pieces(after, new)
    if one == other and old.strides == new.strides and old_pieces == new_pieces:
        return None
    common_bytes = sum(length for _, length, _ in old_pieces & new_pieces)
    changed_bytes = max(one.nbytes, other.nbytes) - common_bytes
    return LeafChange(one, other, max(0, changed_bytes))


def _pieces(manifest: Manifest, leaf: LeafRecord) -> set[_Piece]:
    """Return the start relative to the leaf, the length and the digest of each piece of a leaf.

    Pieces that begin or end outside the leaf are cut at its start or its end.
    """
    if 0 in leaf.shape:
        return set()
    first, last = _span(manifest, leaf)
    pieces = set()
    at = 0
    storage = manifest.storages[leaf.storage]
    for i, extent in enumerate(storage.extents):
        start, stop = max(at, first), min(at + extent.length, last)
        if start < stop:
            # The start of the piece relative to the leaf also counts, because an equal piece with another start means
            # other bytes in the leaf.
            place = at - first if storage.tiling is None else storage.tiling.blocks[i]
            pieces.add((place, stop - start, extent.piece))
        at += extent.length
    return pieces


def _span(manifest: Manifest, leaf: LeafRecord) -> tuple[int, int]:
    """Return the offset of the first byte of a leaf in its storage, and the offset after its last byte."""
    item_bytes = itemsize(leaf.kind, leaf.dtype)
    if item_bytes is None:
        return 0, manifest.storages[leaf.storage].nbytes
    if leaf.strides is None:
        return leaf.offset, leaf.offset + item_bytes * math.prod(leaf.shape)
    ends = [(size - 1) * stride for size, stride in zip(leaf.shape, leaf.strides, strict=True)]
    first = leaf.offset + item_bytes * sum(end for end in ends if end < 0)
    return first, leaf.offset + item_bytes * (1 + sum(end for end in ends if end > 0))


def _plain_changes(before: Node, after: Node) -> Iterator[PlainChange]:
    old, new = dict(_plain(before, "")), dict(_plain(after, ""))
    spelling = spellings([*old, *new])
    for name, node in old.items():
        if name not in new:
            if not _is_full(node):
                yield PlainChange(spelling[name], "removed", _shown(node), None)
        elif _key(node) != _key(new[name]):
            yield PlainChange(spelling[name], "changed", _shown(node), _shown(new[name]))
    for name, node in new.items():
        if name not in old and not _is_full(node):
            yield PlainChange(spelling[name], "added", None, _shown(node))


def _plain(node: Node, path: str) -> Iterator[tuple[str, Node]]:
    """Yield the name and the node of every value that is not a leaf, including containers."""
    tag = node[0] if isinstance(node, list) else None
    if tag == "leaf":
        return
    yield path, node
    if tag in SEQUENCES:
        for i, item in enumerate(node[1]):
            yield from _plain(item, join_index(path, i))
    elif tag in PAIRS:
        for own, item in node[1]:
            yield from _plain(item, join(path, decode_key(own)))
        attributes = node[2] if tag == "odict" else node[3] if tag == "parts" else None
        if attributes is not None:
            yield from _plain(attributes, f"{path} (attributes)")


def _is_container(node: Node) -> bool:
    return isinstance(node, list) and node[0] in (*SEQUENCES, *PAIRS)


def _is_full(node: Node) -> bool:
    """Return whether a node is a non-empty container, so that its items are listed instead."""
    return _is_container(node) and bool(node[1])


def _key(node: Node) -> object:
    """Return a key that is equal for equal values: the type of a container, or the bits of a value."""
    if not _is_container(node):
        return type(node), repr(node)
    return "container", node[0], node[2] if node[0] in ("deque", "defaultdict", "parts", "object") else None


def _shown(node: Node) -> object:
    if _is_container(node):
        return str(node[0])
    if isinstance(node, list) and node[0] == "numpy":
        # Return a number as a Python number, without NumPy, and any other scalar as text.
        dtype, data = node[1], bytes_of_text(node[2])
        value = numpy_number(dtype, data)
        return f"numpy {dtype} {data.hex()}" if value is None else value
    if isinstance(node, list) and node[0] in _SHOWN_AS_TEXT:
        return f"{node[0]} {' '.join(str(part) for part in node[1:] if part is not None)}"
    return decode_value(node)
