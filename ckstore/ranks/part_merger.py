"""Merge the parts of all ranks into one state, whose storages use the blobs of the parts.

Source: docs/format/v1.md, "Shards".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from ckstore.errors import CannotStore, RankMismatch, SaveFailed
from ckstore.model.manifest.dtypes import TORCH_ITEMSIZE
from ckstore.model.manifest.manifest import (
    BlobRecord,
    Extent,
    FileRecord,
    LeafRecord,
    Manifest,
    Node,
    StorageRecord,
    Tiling,
)
from ckstore.model.manifest.nodes import decode_key
from ckstore.model.manifest.ranks import DcpValue
from ckstore.model.manifest.tensor_cuts import Block, fill_exactly, in_bytes
from ckstore.model.names import join_index
from ckstore.ranks.part import pieces_of
from ckstore.tensors.walks import name_below, with_leaves


@dataclass
class _Tensor:
    """A tensor that is assembled from shards."""

    dtype: str
    shape: tuple[int, ...]
    pieces: list[tuple[Block, Extent]] = field(default_factory=list)
    seen: set[tuple[int, ...]] = field(default_factory=set)


class PartMerger:
    """Collects parts, and returns the state and the storages of the whole checkpoint."""

    def __init__(self, chunk_bytes: int) -> None:
        self.blobs: list[BlobRecord] = []
        self._place: dict[str, int] = {}
        self.storages: list[StorageRecord] = []
        self.leaves: list[LeafRecord] = []
        self.files: dict[str, FileRecord] = {}
        self._file_pieces: dict[str, tuple[int, list[str]]] = {}
        self._chunk_bytes = chunk_bytes
        self._tensors: dict[str, _Tensor] = {}
        self._values: dict[str, tuple[Manifest, Node, str, list[int]]] = {}
        self._keys: dict[tuple[str | int, ...], dict[str, Node]] = {}

    def add(self, part: Manifest) -> None:
        """Add the shards and values of a part."""
        about = part.description.metadata
        blobs = self._take_blobs(part)
        members: dict[str, Node] = dict(part.state[1])
        for (name, shape, offsets), node in zip(about["shards"], members["shards"][1], strict=True):
            self._add_shard(part, part.leaves[node[1]], name, tuple(shape), tuple(offsets), blobs)
        for i, (name, node) in enumerate(zip(about["values"], members["values"][1], strict=True)):
            self._values.setdefault(name, (part, node, join_index("values", i), blobs))
        for path, keys in about["keys"]:
            self._keys.setdefault(tuple(path), {}).update(keys)

    def _add_shard(  # noqa: PLR0917
        self,
        part: Manifest,
        leaf: LeafRecord,
        name: str,
        shape: tuple[int, ...],
        offsets: tuple[int, ...],
        blobs: list[int],
    ) -> None:
        tensor = self._tensors.setdefault(name, _Tensor(leaf.dtype, shape))
        if (tensor.dtype, tensor.shape) != (leaf.dtype, shape):
            rank = part.description.metadata["rank"]
            found = f"shape {list(shape)} {leaf.dtype} at rank {rank}, {list(tensor.shape)} {tensor.dtype} before"
            raise RankMismatch(f"{name} is not the same tensor on all ranks: {found}")
        if offsets in tensor.seen or 0 in leaf.shape:  # a replica of a shard that was added, or an empty shard
            return
        tensor.seen.add(offsets)
        pieces = pieces_of(shape, offsets, leaf.shape, TORCH_ITEMSIZE[leaf.dtype], self._chunk_bytes)
        extents = part.storages[leaf.storage].extents
        if [piece.nbytes for piece in pieces] != [extent.length for extent in extents]:
            msg = f"{name} of rank {part.description.metadata['rank']} is cut into other chunks than this ckstore cuts"
            raise RankMismatch(msg, hint="use one version of ckstore on all ranks")
        tensor.pieces += [
            (piece, extent._replace(blob=blobs[extent.blob])) for piece, extent in zip(pieces, extents, strict=True)
        ]

    def whole(self, part: Manifest) -> Node:
        """Add a whole part unchanged, and return the node of its state."""
        place = self._take_storages(part, range(len(part.storages)))
        return self._take_leaves(part, part.state, place)

    def files_of(self, part: Manifest) -> Node:
        """Add the files of a part that no earlier part has. Return the node of the named tensors of these files."""
        rank = part.description.metadata["rank"]
        new = []
        for file in part.files:
            pieces = [extent.piece for i in file.storages for extent in part.storages[i].extents]
            if file.path not in self.files:
                new.append(file)
                self._file_pieces[file.path] = rank, pieces
                continue
            there, (other, same) = self.files[file.path], self._file_pieces[file.path]
            if (there.kind, there.target) != (file.kind, file.target) or pieces != same:
                msg = f"{file.path} of rank {rank} differs from the file of rank {other} at the same path"
                raise RankMismatch(msg, hint="give each rank paths of its own below the directory")
        place = self._take_storages(part, (i for file in new for i in file.storages))
        for file in new:
            self.files[file.path] = replace(file, storages=tuple(place[i] for i in file.storages))
        paths = {file.path for file in new}
        pairs = [pair for pair in part.state[1] if pair[0] in paths]
        return self._take_leaves(part, ["dict", pairs], place)

    def _take_blobs(self, part: Manifest) -> list[int]:
        """Add the blobs of a part, without duplicates. Return their numbers in the merged checkpoint."""
        for blob in part.blobs:
            if blob.digest not in self._place:
                self._place[blob.digest] = len(self.blobs)
                self.blobs.append(blob)
        return [self._place[blob.digest] for blob in part.blobs]

    def _take_storages(self, part: Manifest, storages: Iterable[int]) -> dict[int, int]:
        """Add storages of a part. Return number in the part -> number in the merged checkpoint for each storage."""
        blobs = self._take_blobs(part)
        place: dict[int, int] = {}
        for old in storages:
            place[old] = len(self.storages)
            self.storages.append(_in_whole(part.storages[old], blobs))
        return place

    def _take_leaves(self, part: Manifest, state: Node, place: dict[int, int]) -> Node:
        """Add the leaves of a state whose storages were added. Return the state with the new numbers."""

        def add(number: int) -> int:
            leaf = part.leaves[number]
            return self._add_leaf(leaf._replace(storage=place[leaf.storage]))

        return with_leaves(state, add)

    def keep_used(self) -> None:
        """Remove the blobs that no storage uses, such as those of a file that several ranks have."""
        used = sorted({extent.blob for storage in self.storages for extent in storage.extents})
        place = {old: new for new, old in enumerate(used)}
        self.blobs = [self.blobs[i] for i in used]
        self.storages = [_in_whole(storage, place) for storage in self.storages]

    def has(self, name: str) -> bool:
        """Whether the parts have a tensor or a value of this name."""
        return name in self._tensors or name in self._values

    def key(self, path: tuple[str | int, ...], text: str) -> Node:
        """Return the original key of the dict at a path. `torch.distributed.checkpoint` converts all keys to text."""
        return self._keys.get(path, {}).get(text, text)

    def empty_dicts(self) -> list[tuple[str | int, ...]]:
        """Return the paths of dicts that are empty on each rank that has them."""
        return [path for path, keys in self._keys.items() if not keys]

    def value(self, name: str, path: str) -> Node:
        """Add a tensor or a value to the state under the name `path`, and return its node."""
        if name in self._values:
            part, node, before, blobs = self._values[name]

            def add(number: int) -> int:
                leaf = part.leaves[number]
                self.storages.append(_in_whole(part.storages[leaf.storage], blobs))
                moved = leaf._replace(name=path + leaf.name.removeprefix(before), storage=len(self.storages) - 1)
                return self._add_leaf(moved)

            return with_leaves(node, add)
        tensor = self._tensors[name]
        self.storages.append(_whole(name, tensor))
        leaf = LeafRecord(path, "torch", tensor.dtype, tensor.shape, len(self.storages) - 1)
        return ["leaf", self._add_leaf(leaf)]

    def _add_leaf(self, leaf: LeafRecord) -> int:
        self.leaves.append(leaf)
        return len(self.leaves) - 1


def _in_whole(storage: StorageRecord, blobs: Sequence[int] | dict[int, int]) -> StorageRecord:
    """Return a storage with the blob numbers of the merged checkpoint. `blobs` maps old numbers to new numbers."""
    return storage._replace(extents=tuple(extent._replace(blob=blobs[extent.blob]) for extent in storage.extents))


def _whole(name: str, tensor: _Tensor) -> StorageRecord:
    """Return the storage of a tensor, whose pieces from all ranks have been added."""
    shape = in_bytes(tensor.shape, TORCH_ITEMSIZE[tensor.dtype])
    nbytes = math.prod(shape)
    if not nbytes:
        return StorageRecord(0, ())
    kinds = {len(piece.offsets) for piece, _ in tensor.pieces}
    pieces = sorted(tensor.pieces, key=lambda pair: pair[0].offsets)
    blocks = [block for block, _ in pieces]
    if len(kinds) > 1:
        raise CannotStore(name, "some of its shards are flat ranges of the tensor, and others are blocks of it")
    if len(shape) > 1 and kinds == {1}:
        shape = (nbytes,)
    if not fill_exactly(shape, blocks):
        covered = sum(block.nbytes for block in blocks)
        msg = f"{name}: the shards of all ranks have {covered} bytes of {nbytes}, or some bytes twice"
        raise SaveFailed(f"{msg}; nothing was published", hint="each rank must save its shard, with its own offsets")
    tiling = Tiling(shape, tuple(blocks)) if len(shape) > 1 else None
    return StorageRecord(nbytes, tuple(extent for _, extent in pieces), tiling)


def shards_of(entries: Sequence[DcpValue], join: PartMerger, parts: Sequence[Manifest]) -> Node:
    """Merge the shards of all ranks. Return the tree of a state dict, built from the paths of its values."""
    for part in parts:
        join.add(part)
    missing = [entry.name for entry in entries if not join.has(entry.name)]
    if missing:
        msg = f"no rank saved {', '.join(missing[:5])}{' …' if len(missing) > 5 else ''}; nothing was published"
        raise SaveFailed(msg)
    root: dict[str | int, Any] = {}
    for entry in entries:
        *above, last = entry.path
        if _tree_at(root, above).setdefault(last, entry) is not entry:
            _refuse_kinds(entry.path)
    paths = {entry.path for entry in entries}
    for path in join.empty_dicts():
        # If another rank has a value of this name, keep the value, as for all values that differ between ranks.
        if path not in paths and any(isinstance(key, int) for key in _tree_at(root, path)):
            _refuse_kinds(path)
    return _node(join, root, "", ())


def _tree_at(root: dict[str | int, Any], path: Sequence[str | int]) -> dict[str | int, Any]:
    """Return the dict or list at a path, and create it if it does not exist."""
    tree = root
    for i, key in enumerate(path):
        tree = tree.setdefault(key, {})
        if isinstance(tree, DcpValue):
            _refuse_kinds(path[: i + 1])
    return tree


def _refuse_kinds(path: Sequence[str | int]) -> NoReturn:
    name = ".".join(map(str, path))
    why = "two ranks, or two keys with the same text, have values of different kinds under this name: a value, a dict"
    raise CannotStore(name, f"{why} or a list; nothing was published", hint="give each of the values a name of its own")


def _node(join: PartMerger, tree: Any, name: str, path: tuple[str | int, ...]) -> Node:
    if isinstance(tree, DcpValue):
        return join.value(tree.name, name)
    if any(isinstance(key, int) for key in tree):
        if not all(isinstance(key, int) for key in tree):
            _refuse_kinds(path)
        if len(tree) <= max(tree):
            missing = next(i for i in range(max(tree)) if i not in tree)
            why = "no rank saved this element of the list; nothing was published"
            raise CannotStore(join_index(name, missing), why, hint="ckstore.integrations.dcp.save saves empty dicts")
        return ["list", [_node(join, tree[i], join_index(name, i), (*path, i)) for i in range(len(tree))]]
    pairs = []
    for text, item in ((str(step), item) for step, item in tree.items()):
        key = join.key(path, text)
        pairs.append([key, _node(join, item, name_below(name, decode_key(key)), (*path, text))])
    return ["dict", pairs]


def beside(join: PartMerger, parts: Sequence[Manifest]) -> Node:
    """Merge the states of all ranks, by rank, or their files. A file that several ranks have must be equal."""
    with_files = any(part.files for part in parts)
    if with_files:
        with_state = [rank for rank, part in enumerate(parts) if not part.files]
        if with_state:
            ranks = ", ".join(map(str, with_state))
            msg = f"some ranks commit files, but others save a state: rank {ranks}"
            raise RankMismatch(msg, hint="let all ranks do the same")
    take = join.files_of if with_files else join.whole
    return ["dict", [pair for part in parts for pair in take(part)[1]]]
