"""Write a saved state as a directory in the format of `torch.distributed.checkpoint`.

Tensors are stored row-major in chunks of rows, because the reader of torch loads a whole chunk into memory. Each chunk
is an archive in the format of torch.save. Values have the names that torch gives them when it flattens a state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from ckstore.containers.safetensors_write import cut_shards
from ckstore.errors import BadInput
from ckstore.model.manifest.dtypes import TORCH_ITEMSIZE
from ckstore.model.manifest.manifest import LeafRecord, Node
from ckstore.model.manifest.nodes import SPARSE_KINDS, decode_key, join
from ckstore.model.names import plain
from ckstore.model.reports.export_report import ExportedFile, ExportReport
from ckstore.model.reports.progress import Progress
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.ops.read.dcp_entries import StateValue, entries_of
from ckstore.ops.read.export import MAX_SHARD_BYTES, check_shard
from ckstore.ops.read.export_files import MARGIN_BYTES, Meter, Work, building, write_bytes
from ckstore.ops.read.export_plan import leaf_bytes, refuse_files, strides_of
from ckstore.ops.read.export_sums import ExportSums, FileRegion, Sums
from ckstore.ops.read.formats.export_torch import Archive, LeafRows, pickled_node, refuse_large, refuse_unpicklable
from ckstore.ops.read.load import Select, as_filter, check_selection
from ckstore.ops.read.storage_read import read_memories
from ckstore.tensors.files.dcp_metadata import WrittenChunk
from ckstore.tensors.memory_layout import span_elements
from ckstore.tensors.state_restore import allocate, build_with, is_empty, make_leaf
from ckstore.tensors.walks import DICTS, leaf_numbers, value_names

CHUNK_MOST_BYTES = 256 * 2**20
_ARCHIVE_BYTES = 2**10  # the approximate size of an archive without its tensor


@dataclass(frozen=True, slots=True)
class _Item:
    """A unit of writing: a chunk of a tensor, or a value."""

    name: str  # the name of the tensor or the value
    content: StateValue | LeafRows  # the value, or the bytes of the chunk
    shape: tuple[int, ...] = ()  # the shape of the chunk
    offsets: tuple[int, ...] = ()  # the offsets of the chunk in the tensor
    held_bytes: int = 0  # the size of the parts, for a value that is a tensor of several parts

    @property
    def nbytes(self) -> int:
        """The approximate size on disk in bytes."""
        return (
            _ARCHIVE_BYTES
            + self.held_bytes
            + (self.content.stop - self.content.start if isinstance(self.content, LeafRows) else 0)
        )


@dataclass(slots=True)
class _Plan:
    """The content of an export."""

    items: list[_Item] = field(default_factory=list)
    paths: dict[str, tuple[str | int, ...]] = field(default_factory=dict)
    tensors: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)


def export_dcp(
    directory: CheckpointDirectory,
    path: Path,
    *,
    max_shard_bytes: int | str = MAX_SHARD_BYTES,
    select: Select = None,
    sums: Sums = False,
    progress: Progress | None = None,
) -> ExportReport:
    """Export an open checkpoint as the directory `path`; see `ckstore.Store.export`."""
    from ckstore.tensors.files.dcp_metadata import METADATA_NAME, render_metadata

    most_bytes = check_shard(max_shard_bytes)
    manifest = directory.manifest
    refuse_files(manifest)
    check_selection(directory, select)
    keep = as_filter(select)
    refuse_unpicklable(manifest, keep)
    plan = _plan(directory, select)
    cut = cut_shards([item.nbytes for item in plan.items], most_bytes)
    all_bytes = sum(item.nbytes for item in plan.items)
    with building(directory, path, all_bytes + MARGIN_BYTES) as (tree, reader):
        work = _Work(directory, tree, reader, Meter(all_bytes, progress), ExportSums.asked_for(sums), keep)
        written = [work.file(f"__0_{i}.distcp", [plan.items[at] for at in shard]) for i, shard in enumerate(cut)]
        written.append(work.small(METADATA_NAME, [render_metadata(plan.paths, plan.tensors, work.placed)]))
        written += work.write_sums()
        tree.publish()
    return ExportReport(
        name=manifest.name,
        checkpoint_id=directory.manifest_id,
        destination=path,
        files=tuple(written),
        left_out=tuple(
            f"{plain(name) or 'the state itself'}: {what}"
            for name, what in _lost(manifest.state, "")
            if keep is None or keep(name)
        ),
    )


def _plan(directory: CheckpointDirectory, select: Select) -> _Plan:
    manifest = directory.manifest
    keep = as_filter(select)
    plan = _Plan()
    values: list[LeafRecord] = []
    entries = entries_of(manifest, with_unnamed=True)  # a load of torch ignores names that its target lacks
    wanted = {
        name: found
        for name, found in entries.items()
        if keep is None or any(map(keep, value_names(found.node, found.name, manifest.leaves)))
    }
    _refuse_parts_of_lists(entries, wanted)
    for name, found in wanted.items():
        is_leaf = isinstance(found.node, list) and found.node[0] == "leaf"
        leaf = manifest.leaves[found.node[1]] if is_leaf else None
        plan.paths[name] = found.path
        if leaf is None or leaf.kind != "torch":
            held = [manifest.leaves[i] for i in leaf_numbers(found.node)]
            # A tensor subclass that only holds other tensors may be large, so it is streamed.
            if (
                isinstance(found.node, list)
                and found.node[0] == "parts"
                and found.node[2] not in SPARSE_KINDS
                and all(keep is None or keep(one.name) for one in held)
            ):
                plan.items.append(_Item(name, found, held_bytes=sum(leaf_bytes(manifest, one) for one in held)))
                continue
            values += [one for one in held if keep is None or keep(one.name)]
            plan.items.append(_Item(name, found))
            continue
        plan.tensors[name] = leaf.dtype, leaf.shape
        plan.items += _chunks(name, leaf)
    refuse_large(manifest, values)
    return plan


def _refuse_parts_of_lists(entries: Mapping[str, StateValue], wanted: Mapping[str, StateValue]) -> None:
    """Raise if only some elements of a list are selected, since torch cannot load a list with gaps."""
    elements = {found.path[: i + 1] for found in wanted.values() for i in _places_in_lists(found.path)}
    lists = {path[:-1] for path in elements}
    for found in entries.values():
        for i in _places_in_lists(found.path):
            if found.path[:i] in lists and found.path[: i + 1] not in elements:
                where = ".".join(map(str, found.path[:i])) or "the state itself"
                msg = f"{where} is a list, and a directory of torch.distributed.checkpoint has all of it or nothing"
                raise BadInput(msg, hint=f"select all of it, or export as torch: {found.name} was not selected")


def _places_in_lists(path: tuple[str | int, ...]) -> list[int]:
    return [i for i, key in enumerate(path) if isinstance(key, int)]


def _lost(node: Node, path: str) -> Iterator[tuple[str, str]]:
    """Yield the name of each dict that cannot be flattened to names without loss, and a text about the loss."""
    tag = node[0] if isinstance(node, list) else None
    if tag == "odict" and node[2] is not None:
        yield path, "the attributes of this dict"
    if tag in DICTS:
        keys = [decode_key(own) for own, _ in node[1]]
        if not all(isinstance(key, str) for key in keys):
            yield path, "the keys of this dict that are not strings: torch reads them as text"
        for key, (_, item) in zip(keys, node[1], strict=True):
            yield from _lost(item, join(path, key))


def _chunks(name: str, leaf: LeafRecord) -> Iterator[_Item]:
    """Cut a tensor into chunks of rows. A tensor with strides is one chunk."""
    item_bytes = TORCH_ITEMSIZE[leaf.dtype]
    strides = strides_of(leaf)
    nothing = (0,) * len(leaf.shape)
    row_bytes = item_bytes * prod(leaf.shape[1:])
    if strides is not None:
        nbytes = item_bytes * span_elements(leaf.shape, strides)
        yield _Item(name, LeafRows(leaf, 0, nbytes), leaf.shape, nothing)
        return
    leaf = leaf._replace(strides=None)
    if is_empty(leaf) or not leaf.shape:
        nbytes = item_bytes * prod(leaf.shape)
        yield _Item(name, LeafRows(leaf, 0, nbytes), leaf.shape, nothing)
        return
    at_once = max(1, CHUNK_MOST_BYTES // row_bytes)
    for first in range(0, leaf.shape[0], at_once):
        stop = min(first + at_once, leaf.shape[0])
        rows = LeafRows(leaf, first * row_bytes, stop * row_bytes)
        yield _Item(name, rows, (stop - first, *leaf.shape[1:]), (first, *nothing[1:]))


@dataclass
class _Work(Work):
    """Writes the files of one export in turn."""

    keep: Callable[[str], bool] | None  # which names were selected; None for all
    placed: dict[str, list[WrittenChunk]] = field(default_factory=dict)  # the place of every item, by name

    def file(self, name: str, items: list[_Item]) -> ExportedFile:
        """Write a file that contains values and tensors, one after another."""
        from ckstore.tensors.files.dcp_metadata import WrittenChunk

        with self.tree.create_file(name) as fd:
            parts, regions, at = [], [], 0
            for item in items:
                if isinstance(item.content, StateValue) and not item.held_bytes:
                    data = self._value(item.content)
                    parts.append(write_bytes(fd, at, data))
                    nbytes = len(data)
                    where = WrittenChunk(name, at, nbytes)
                else:
                    archive = self._archive(item)
                    parts += archive.write(fd, at, self.reader, self.meter)
                    nbytes = archive.layout.nbytes
                    whole = isinstance(item.content, StateValue)
                    where = (
                        WrittenChunk(name, at, nbytes)
                        if whole
                        else WrittenChunk(name, at, nbytes, item.offsets, item.shape)
                    )
                self.placed.setdefault(item.name, []).append(where)
                regions.append(FileRegion(item.name, at, at + nbytes))
                at += nbytes
            self.read_back(fd, name, at, parts, regions)
        begun = sum(isinstance(item.content, LeafRows) and not any(item.offsets) for item in items)
        return ExportedFile(name, at, begun)  # a tensor is counted in the file with its first chunk

    def _archive(self, item: _Item) -> Archive:
        from ckstore.tensors.files.pickled import pickle_tensor

        rows = item.content
        if isinstance(rows, StateValue):
            held = [self.directory.manifest.leaves[i] for i in leaf_numbers(rows.node)]
            pickled = pickled_node(self.directory, rows.node, held, None)
            return Archive(self.directory, pickled.data, pickled.storages)
        nbytes = rows.stop - rows.start
        return Archive(self.directory, pickle_tensor(rows.leaf._replace(shape=item.shape), nbytes), [rows])

    def _value(self, found: StateValue) -> bytes:
        from ckstore.tensors.files.pickled import saved

        def leaf(number: int) -> object:
            record = self.directory.manifest.leaves[number]
            memories = {} if is_empty(record) else read_memories(self.directory, [record.storage], verify=True)
            return make_leaf(record, memories.get(record.storage) or allocate(record.kind, 0))

        return saved(build_with(found.node, leaf, self.directory.manifest.leaves, self.keep, path=found.name))
