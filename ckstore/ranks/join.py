"""Join parts: one manifest over the blobs of all, and a link to each of them. Source: docs/format/v1.md, "Shards"."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ckstore.errors import CannotStore, RankMismatch, SaveFailed
from ckstore.model.manifest.dtypes import TORCH_ITEMSIZE
from ckstore.model.manifest.manifest import (
    BlobRecord,
    Entry,
    Extent,
    FileRecord,
    LeafRecord,
    Manifest,
    Node,
    Ranks,
    StateTexts,
    StorageRecord,
    Tiling,
    content_digest,
)
from ckstore.model.manifest.tiles import Block, fill_exactly, in_bytes
from ckstore.model.names import join_index, join_key
from ckstore.model.times import text_of_time
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.objects.layout import BLOBS
from ckstore.ops.save.save import Staged, with_parent
from ckstore.ranks.part import pieces_of
from ckstore.tensors.walks import with_leaves
from ckstore.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ckstore.fs.inside import Inside
    from ckstore.objects.staging import Staging
    from ckstore.ops.context import Context
    from ckstore.ops.save.save import Request


@dataclass
class _Blobs:
    """The blobs of all parts, each once."""

    index: dict[str, int] = field(default_factory=dict)
    records: list[BlobRecord] = field(default_factory=list)

    def add(self, blob: BlobRecord) -> int:
        """Return the index of a blob."""
        if blob.digest not in self.index:
            self.index[blob.digest] = len(self.records)
            self.records.append(blob)
        return self.index[blob.digest]


@dataclass
class _Tensor:
    """A tensor that is being put together."""

    dtype: str
    shape: tuple[int, ...]
    pieces: list[tuple[Block, Extent]] = field(default_factory=list)
    seen: set[tuple[int, ...]] = field(default_factory=set)


class Join:
    """Collects parts, and gives the state and the storages of the whole."""

    def __init__(self, chunk_bytes: int) -> None:
        self.blobs = _Blobs()
        self.storages: list[StorageRecord] = []
        self.leaves: list[LeafRecord] = []
        self.files: dict[str, FileRecord] = {}
        self._file_pieces: dict[str, tuple[int, list[str]]] = {}
        self._chunk_bytes = chunk_bytes
        self._tensors: dict[str, _Tensor] = {}
        self._values: dict[str, tuple[Manifest, Node, str, list[int]]] = {}

    def add(self, part: Manifest) -> None:
        """Take the shards and values of a part."""
        about = part.description.metadata
        blobs = [self.blobs.add(blob) for blob in part.blobs]
        members: dict[str, Node] = dict(part.state[1])
        for (name, shape, offsets), node in zip(about["shards"], members["shards"][1], strict=True):
            self._add_shard(part, part.leaves[node[1]], name, tuple(shape), tuple(offsets), blobs)
        for i, (name, node) in enumerate(zip(about["values"], members["values"][1], strict=True)):
            self._values.setdefault(name, (part, node, join_index("values", i), blobs))

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
        if offsets in tensor.seen or 0 in leaf.shape:
            return
        tensor.seen.add(offsets)
        pieces = pieces_of(shape, offsets, leaf.shape, TORCH_ITEMSIZE[leaf.dtype], self._chunk_bytes)
        extents = part.storages[leaf.storage].extents
        if [piece.nbytes for piece in pieces] != [extent.length for extent in extents]:
            msg = f"{name} of rank {part.description.metadata['rank']} is cut otherwise than this ckstore cuts it"
            raise RankMismatch(msg, hint="use one version of ckstore on all ranks")
        tensor.pieces += [
            (piece, extent._replace(blob=blobs[extent.blob])) for piece, extent in zip(pieces, extents, strict=True)
        ]

    def whole(self, part: Manifest) -> Node:
        """Take all of a part as it is; return the node of its state."""
        place = self._take_storages(part, range(len(part.storages)))
        return self._take_leaves(part, part.state, place)

    def files_of(self, part: Manifest) -> Node:
        """Take the files of a part that are not there yet; return the node of what is known by name in them.

        Raises:
            RankMismatch: A file is there, with another content.
        """
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
                msg = f"{file.path} of rank {rank} is not the file that rank {other} has there"
                raise RankMismatch(msg, hint="give each rank paths of its own below the directory")
        place = self._take_storages(part, (i for file in new for i in file.storages))
        for file in new:
            self.files[file.path] = replace(file, storages=tuple(place[i] for i in file.storages))
        paths = {file.path for file in new}
        pairs = [pair for pair in part.state[1] if pair[0] in paths]
        return self._take_leaves(part, ["dict", pairs], place)

    def _take_storages(self, part: Manifest, storages: Iterable[int]) -> dict[int, int]:
        """Add storages of a part; return their numbers there -> here."""
        blobs = [self.blobs.add(blob) for blob in part.blobs]
        place: dict[int, int] = {}
        for old in storages:
            place[old] = len(self.storages)
            self.storages.append(_in_whole(part.storages[old], blobs))
        return place

    def _take_leaves(self, part: Manifest, state: Node, place: dict[int, int]) -> Node:
        """Add the leaves of a state whose storages were added; return it with their numbers here."""

        def add(number: int) -> int:
            leaf = part.leaves[number]
            return self._add_leaf(leaf._replace(storage=place[leaf.storage]))

        return with_leaves(state, add)

    def names(self) -> set[str]:
        """Return what the parts have."""
        return {*self._tensors, *self._values}

    def drop_blobs(self, used: set[int]) -> None:
        """Forget the blobs that no storage uses."""
        kept = sorted(used)
        place = {old: new for new, old in enumerate(kept)}
        self.blobs.records = [self.blobs.records[i] for i in kept]
        self.storages = [_in_whole(storage, place) for storage in self.storages]

    def value(self, name: str, path: str) -> Node:
        """Return the node of a tensor or a value, which gets its place in the state."""
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
    """Return a storage whose extents lie in other blobs: number there -> number here."""
    return storage._replace(extents=tuple(extent._replace(blob=blobs[extent.blob]) for extent in storage.extents))


def _whole(name: str, tensor: _Tensor) -> StorageRecord:
    """Return the storage of a tensor whose pieces are all there.

    Raises:
        SaveFailed: They are not, or lie over one another.
        CannotStore: Its shards are of several kinds.
    """
    shape = in_bytes(tensor.shape, TORCH_ITEMSIZE[tensor.dtype])
    nbytes = math.prod(shape)
    if not nbytes:
        return StorageRecord(0, ())
    kinds = {len(piece.offsets) for piece, _ in tensor.pieces}
    pieces = sorted(tensor.pieces, key=lambda pair: pair[0].offsets)
    blocks = [block for block, _ in pieces]
    if len(kinds) > 1:
        raise CannotStore(name, "some of its shards are rows of bytes of the whole, and some are not")
    if len(shape) > 1 and kinds == {1}:
        shape = (nbytes,)
    if not fill_exactly(shape, blocks):
        covered = sum(block.nbytes for block in blocks)
        msg = f"{name}: the shards of all ranks have {covered} of its {nbytes} bytes, or not each of them once"
        raise SaveFailed(f"{msg}; nothing was published", hint="each rank must save its shard, with its own offsets")
    tiling = Tiling(shape, tuple(blocks)) if len(shape) > 1 else None
    return StorageRecord(nbytes, tuple(extent for _, extent in pieces), tiling)


def state_of(join: Join, entries: Sequence[Entry]) -> Node:
    """Return the tree of a state dict, from the places of its values in it."""
    root: dict[str | int, Any] = {}
    for entry in entries:
        below = root
        for key in entry.path[:-1]:
            below = below.setdefault(key, {})
        below[entry.path[-1]] = entry
    return _node(join, root, "")


def _node(join: Join, tree: Any, path: str) -> Node:
    if isinstance(tree, Entry):
        return join.value(tree.name, path)
    if tree and all(isinstance(key, int) for key in tree):
        items = [tree.get(i) for i in range(max(tree) + 1)]
        return [
            "list",
            [None if item is None else _node(join, item, join_index(path, i)) for i, item in enumerate(items)],
        ]
    return ["dict", [[str(key), _node(join, item, join_key(path, str(key)))] for key, item in tree.items()]]


def link_parts(context: Context, staging: Staging, paths: Sequence[Inside], opened: ExitStack) -> list[Manifest]:
    """Link the blobs of all parts into `staging`, and return their manifests by rank.

    Raises:
        DamagedBlob: A part has no valid manifest.
        FileNotFoundError: A part, or a blob of it, is gone.
    """
    parts: dict[int, Manifest] = {}
    there: set[str] = set()
    for path in paths:
        directory = opened.enter_context(CheckpointDirectory.at(path, context.layout.hash_prefix))
        part = directory.manifest
        rank = part.description.metadata["rank"]
        if rank in parts:
            msg = f"two processes say that they are rank {rank}"
            raise RankMismatch(msg, hint="give each process a rank of its own")
        parts[rank] = part
        for blob in part.blobs:
            if blob.digest not in there:
                staging.take(blob.digest, directory.lock.inside / BLOBS / blob.digest)
                there.add(blob.digest)
    return [parts[rank] for rank in sorted(parts)]


@dataclass(frozen=True, slots=True)
class Parts:
    """What is to be joined.

    Attributes:
        paths: Where the parts lie.
        entries: What the whole must have.
        attempt: Names the try.
    """

    paths: Sequence[Inside]
    entries: Sequence[Entry]
    attempt: str


def stage_shards_of(context: Context, staging: Staging, request: Request, given: Parts) -> Staged:
    """Join parts into `staging`.

    Raises:
        SaveFailed: Something of it is in no part.
        RankMismatch: Parts do not belong together.
    """
    with ExitStack() as opened:
        parts = link_parts(context, staging, given.paths, opened)
        join = Join(context.settings.chunk_bytes)
        for part in parts:
            join.add(part)
        there = join.names()
        missing = [entry.name for entry in given.entries if entry.name not in there]
        if missing:
            msg = f"no rank saved {', '.join(missing[:5])}{' …' if len(missing) > 5 else ''}; nothing was published"
            raise SaveFailed(msg)
        state = state_of(join, given.entries)
        hosts = tuple(str(part.description.metadata["host"]) for part in parts)
        ranks = Ranks(len(parts), given.attempt, hosts, tuple(given.entries))
        return staged_of(context, staging, request, parts, Joined(join, state, ranks))


@dataclass(frozen=True, slots=True)
class Joined:
    """What parts make together."""

    join: Join
    state: Node
    ranks: Ranks


def staged_of(
    context: Context, staging: Staging, request: Request, parts: Sequence[Manifest], joined: Joined
) -> Staged:
    """Return what is to be published, whose blobs are in `staging`."""
    join = joined.join
    used = {extent.blob for storage in join.storages for extent in storage.extents}
    if len(used) < len(join.blobs.records):  # of a file that several ranks have
        join.drop_blobs(used)
    wanted = {blob.digest: blob.nbytes for blob in join.blobs.records}
    lacking = staging.keep_exactly(wanted)
    if lacking:
        msg = f"{len(lacking)} blobs of the parts are missing or changed, such as {lacking[0]}; nothing was published"
        raise SaveFailed(msg, hint="did another program change the store? save again")
    texts = StateTexts.of(join.leaves, joined.state)
    storages = tuple(join.storages)
    files = tuple(join.files[path] for path in sorted(join.files))
    written = {digest for part in parts for digest in part.description.metadata["written"]}
    logical_bytes = sum(storage.nbytes for storage in storages)
    new_bytes = sum(nbytes for digest, nbytes in wanted.items() if digest in written)
    draft = Manifest(
        run=request.run,
        step=0,
        sequence=0,
        created=text_of_time(datetime.now(UTC)),
        writer=f"ckstore {__version__}",
        description=with_parent(context, request),
        logical_bytes=logical_bytes,
        new_bytes=new_bytes,
        reused_bytes=max(0, logical_bytes - new_bytes),
        content=content_digest(texts, storages, context.algorithm, files),
        blobs=tuple(join.blobs.records),
        storages=storages,
        leaves=tuple(join.leaves),
        state=joined.state,
        files=files,
        ranks=joined.ranks,
    )
    now_ns = time.time_ns()
    warnings = [warning for part in parts for warning in part.description.metadata["warnings"]]
    return Staged(
        draft,
        texts,
        lambda: dict.fromkeys(written & wanted.keys(), (now_ns, 0)),
        lambda: warnings,
        True,
    )
