"""Write the tensors of a saved state as safetensors files, and the rest of it as JSON beside them.

The directory is built beside its destination and renamed, so it is there whole or not at all. Memory is bounded:
tensors go through one buffer, and every piece is checked while it is copied. What was written is made durable, read
back, and compared by digest, before it is published.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ckstore.containers.safetensors_write import (
    INDEX_NAME,
    FileLayout,
    TensorToWrite,
    cut_shards,
    lay_out,
    render_index,
    shard_name,
)
from ckstore.errors import BadInput, CkstoreError, InsufficientSpace
from ckstore.fs import direct, files, peek
from ckstore.fs.new_tree import NewTree
from ckstore.model.digest import ALGORITHMS
from ckstore.model.manifest.dtypes import itemsize
from ckstore.model.manifest.state_json import json_of_leaf, json_of_node
from ckstore.model.names import plain
from ckstore.model.reports.export_report import ExportedFile, ExportReport
from ckstore.model.sizes import parse_size
from ckstore.ops.os_errors import describe_os_error
from ckstore.ops.read.destination import outside_store
from ckstore.ops.read.export_plan import ExportPlan, leaf_bytes, plan_export, strides_of
from ckstore.ops.read.load import Select
from ckstore.ops.read.streaming_read import RANGE_MOST_BYTES, CheckedReader
from ckstore.ops.refs.find import AnyRef, read_checkpoint
from ckstore.tensors.strided import Runs, blocks, gather, runs_of

if TYPE_CHECKING:
    from ckstore.model.manifest.manifest import LeafRecord
    from ckstore.model.reports.progress import Progress
    from ckstore.objects.checkpoints import CheckpointDirectory
    from ckstore.ops.context import Context

MAX_SHARD_BYTES = 50 * 10**9
"""What `save_pretrained` of transformers 5 takes."""
STATE_NAME = "state.json"
STATE_VERSION = 1


_MARGIN_BYTES = 2**20
_BLOCK_BYTES = RANGE_MOST_BYTES
_FLUSH_BYTES = 2**20
_VALUE_BYTES = 100
"""About what a value takes in ``state.json`` with its name."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_DIGEST = ALGORITHMS["xxh3_128"].digest


def export_safetensors(
    context: Context,
    ref: AnyRef,
    destination: str | os.PathLike[str],
    *,
    max_shard_bytes: int | str = MAX_SHARD_BYTES,
    select: Select = None,
    strip_prefix: bool = False,
    progress: Progress | None = None,
) -> ExportReport:
    """Export the checkpoint that `ref` names; see `ckstore.Store.export_safetensors`."""
    path = outside_store(context.layout, destination)
    write = partial(
        export_open,
        destination=path,
        max_shard_bytes=max_shard_bytes,
        select=select,
        strip_prefix=strip_prefix,
        progress=progress,
    )
    return read_checkpoint(context, ref, write)


def _check_shard(max_shard_bytes: int | str) -> int:
    most_bytes = parse_size(max_shard_bytes) if isinstance(max_shard_bytes, str) else max_shard_bytes
    if type(most_bytes) is not int or most_bytes < 1:
        msg = f"max_shard_bytes must be at least 1 byte, a number or a size such as 5GB, got {max_shard_bytes!r}"
        raise BadInput(msg)
    return most_bytes


@dataclass(frozen=True, slots=True)
class _Shard:
    """One file of tensors: its name, what goes into it, and where."""

    name: str
    leaves: tuple[LeafRecord, ...]
    tensors: tuple[TensorToWrite, ...]
    layout: FileLayout


def export_open(
    directory: CheckpointDirectory,
    destination: str | os.PathLike[str],
    *,
    max_shard_bytes: int | str = MAX_SHARD_BYTES,
    select: Select = None,
    strip_prefix: bool = False,
    progress: Progress | None = None,
) -> ExportReport:
    """Export an open checkpoint; see `ckstore.Store.export_safetensors`."""
    most_bytes = _check_shard(max_shard_bytes)
    path = Path(os.path.abspath(destination))
    if path.suffix == ".safetensors":
        msg = f"the destination is a directory, {path.name} looks like a file"
        raise BadInput(msg, hint=f"give a directory: model.safetensors is made in it, as in {path.with_suffix('')}")
    plan = plan_export(directory.manifest, select=select, strip_prefix=strip_prefix)
    shards = _shards(plan, most_bytes)
    needed_bytes = _needed_bytes(directory, plan, shards)
    try:
        with NewTree.beside(path) as tree:
            _check_space(tree, needed_bytes)
            with CheckedReader(directory) as reader, directory.reporting_damage():
                work = _Work(directory, tree, reader, _Meter(shards, progress))
                written = [work.shard(shard) for shard in shards]
                if len(shards) > 1:
                    written.append(work.small(INDEX_NAME, [_index(plan, shards)]))
                if plan.has_state:
                    written.append(work.small(STATE_NAME, work.state_parts(plan)))
            tree.publish()
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        msg = (
            f"the export needs {needed_bytes} bytes, which did not fit ({describe_os_error(error)}); "
            f"{peek.free_space(path.parent).free_bytes} are free on the filesystem of {path}"
        )
        raise InsufficientSpace(msg, hint="make room, then export again; nothing was left behind") from error
    return ExportReport(
        checkpoint=f"{directory.manifest.run}@{directory.manifest.step}",
        checkpoint_id=directory.manifest_id,
        destination=path,
        files=tuple(written),
        tied=plan.tied,
        state_names=_state_names(plan),
        left_out=tuple(
            f"{plain(name) or 'the state itself'}: the versions of modules that torch keeps in _metadata"
            for name in plan.values.torch_versions
        ),
    )


def _shards(plan: ExportPlan, most_bytes: int) -> list[_Shard]:
    cut = cut_shards([tensor.nbytes for tensor in plan.tensors], most_bytes)
    dropped: dict[str, list[str]] = {}
    for name, kept in plan.tied.items():
        dropped.setdefault(kept, []).append(name)
    shards = []
    for number, indexes in enumerate(cut, 1):
        tensors = tuple(plan.tensors[i] for i in indexes)
        tied = {name: tensor.name for tensor in tensors for name in dropped.get(tensor.name, ())}
        layout = lay_out(tensors, {"format": "pt", **tied})
        leaves = tuple(plan.leaves[i] for i in indexes)
        shards.append(_Shard(shard_name(number, len(cut)), leaves, tensors, layout))
    return shards


def _index(plan: ExportPlan, shards: list[_Shard]) -> bytes:
    weight_map = {tensor.name: shard.name for shard in shards for tensor in shard.tensors}
    return render_index(weight_map, sum(tensor.nbytes for tensor in plan.tensors), plan.tied)


def _needed_bytes(directory: CheckpointDirectory, plan: ExportPlan, shards: list[_Shard]) -> int:
    index = len(_index(plan, shards)) if len(shards) > 1 else 0
    unheld = sum(leaf_bytes(directory.manifest, leaf) * 4 // 3 + _VALUE_BYTES for leaf in plan.unheld)
    values = (len(plan.values.values) + len(plan.values.attributes)) * _VALUE_BYTES
    return sum(shard.layout.nbytes for shard in shards) + index + unheld + values + _MARGIN_BYTES


def _check_space(tree: NewTree, needed_bytes: int) -> None:
    free_bytes = peek.free_space(tree.path).free_bytes
    if needed_bytes > free_bytes:
        msg = f"the export needs {needed_bytes} bytes, {free_bytes} are free on the filesystem of {tree.destination}"
        raise InsufficientSpace(msg, hint="make room, or export to another filesystem; nothing was written")


def _state_names(plan: ExportPlan) -> tuple[str, ...]:
    """Return the names of what is in ``state.json``, in its order."""
    names = [leaf.name for leaf in plan.unheld] + [name for name, _ in plan.values.values]
    return (*names, *(f"{name} (attribute)" for name, _ in plan.values.attributes))


class _Meter:
    """Tells how far an export is."""

    def __init__(self, shards: list[_Shard], progress: Progress | None) -> None:
        self._all_bytes = 2 * sum(shard.layout.nbytes for shard in shards)
        self._done_bytes = 0
        self._progress = progress

    def add(self, nbytes: int) -> None:
        self._done_bytes = min(self._done_bytes + nbytes, self._all_bytes)  # small files are not counted before
        if self._progress is not None:
            self._progress(self._done_bytes, self._all_bytes)


@dataclass(frozen=True, slots=True)
class _Part:
    """Bytes that were written at once: where, in one or several runs, and the digest of what they were."""

    start: int
    runs: Runs
    nbytes: int
    digest: str


class _Work:
    """Writes the files of one export, one after another."""

    def __init__(self, directory: CheckpointDirectory, tree: NewTree, reader: CheckedReader, meter: _Meter) -> None:
        self._directory = directory
        self._tree = tree
        self._reader = reader
        self._meter = meter

    def shard(self, shard: _Shard) -> ExportedFile:
        """Write a file of tensors."""
        with self._tree.create_file(shard.name) as fd:
            parts = [_write(fd, 0, Runs((), len(shard.layout.head)), memoryview(shard.layout.head))]
            self._meter.add(len(shard.layout.head))
            for i in self._by_place(shard.leaves):
                for part in self._tensor(fd, shard.layout.starts[i], shard.leaves[i]):
                    parts.append(part)
                    self._meter.add(part.nbytes)
            self._reader.finish()
            self._read_back(fd, shard.name, shard.layout.nbytes, parts)
        return ExportedFile(shard.name, shard.layout.nbytes, len(shard.tensors))

    def small(self, name: str, contents: Iterator[bytes] | list[bytes]) -> ExportedFile:
        """Write a file that arrives in parts, one after another."""
        with self._tree.create_file(name) as fd:
            parts = []
            at = 0
            for content in contents:
                parts.append(_write(fd, at, Runs((), len(content)), memoryview(content)))
                at += len(content)
            self._read_back(fd, name, at, parts)
        return ExportedFile(name, at)

    def state_parts(self, plan: ExportPlan) -> Iterator[bytes]:
        """Give ``state.json`` in parts: a line for each value, to be read and searched as text."""
        manifest = self._directory.manifest
        head = {
            "format": "ckstore-state",
            "version": STATE_VERSION,
            "checkpoint": f"{manifest.run}@{manifest.step}",
            "id": self._directory.manifest_id,
        }
        values = ((leaf.name, json_of_leaf(leaf, self._whole(leaf))) for leaf in plan.unheld)
        others = ((name, json_of_node(node)) for name, node in plan.values.values)
        attributes = ((name, json_of_node(node)) for name, node in plan.values.attributes)
        text = json.dumps(head)[:-1]
        for member, pairs in (("values", [values, others]), ("attributes", [attributes])):
            text += f',\n"{member}": {{'
            comma = ""
            for name, value in (pair for some in pairs for pair in some):
                text += f"{comma}\n  {json.dumps(name)}: {json.dumps(value, allow_nan=False)}"
                comma = ","
                if len(text) > _FLUSH_BYTES:
                    yield text.encode("ascii")
                    text = ""
            text += "\n}" if comma else "}"
        yield (text + "\n}\n").encode("ascii")

    def _whole(self, leaf: LeafRecord) -> bytes:
        """Return the elements of a small leaf, row-major."""
        if 0 in leaf.shape:
            return b""
        self._reader.begin(leaf.storage)
        if not leaf.dtype:
            nbytes = leaf_bytes(self._directory.manifest, leaf)
            spans = [(at, min(at + RANGE_MOST_BYTES, nbytes)) for at in range(0, nbytes, RANGE_MOST_BYTES)]
            data = b"".join(bytes(self._reader.read(start, stop, leaf.name)) for start, stop in spans)
        else:
            whole = bytearray(leaf_bytes(self._directory.manifest, leaf))
            for runs, piece in self._gathered(leaf):
                for i, start in enumerate(runs):
                    whole[start : start + runs.nbytes] = piece[i * runs.nbytes : (i + 1) * runs.nbytes]
            data = bytes(whole)
        self._reader.finish()
        return data

    def _by_place(self, leaves: tuple[LeafRecord, ...]) -> Iterator[int]:
        """Give the indexes of tensors with elements by storage and place in it; the reader is at that storage."""
        storage = -1
        for i in sorted(range(len(leaves)), key=lambda i: (leaves[i].storage, leaves[i].offset)):
            if 0 in leaves[i].shape:
                continue
            if leaves[i].storage != storage:
                self._reader.finish()
                storage = leaves[i].storage
                self._reader.begin(storage)
            yield i

    def _tensor(self, fd: int, start: int, leaf: LeafRecord) -> Iterator[_Part]:
        for runs, data in self._gathered(leaf):
            yield _write(fd, start, runs, data)

    def _gathered(self, leaf: LeafRecord) -> Iterator[tuple[Runs, memoryview]]:
        """Give the elements of a tensor in parts, each with where it goes in the row-major tensor."""
        strides = strides_of(leaf)
        if strides is None:
            nbytes = leaf_bytes(self._directory.manifest, leaf)
            for at in range(0, nbytes, _BLOCK_BYTES):
                count = min(_BLOCK_BYTES, nbytes - at)
                data = self._reader.read(leaf.offset + at, leaf.offset + at + count, leaf.name)
                yield Runs((range(at, at + 1),), count), data
            return
        item_bytes = itemsize(leaf.kind, leaf.dtype) or 1
        for block in blocks(leaf.shape, strides, leaf.offset, item_bytes, _BLOCK_BYTES):
            data = self._reader.read(block.low, block.high, leaf.name)
            yield runs_of(block, leaf.shape, item_bytes), gather(block, strides, item_bytes, data)

    def _read_back(self, fd: int, name: str, nbytes: int, parts: list[_Part]) -> None:
        """Make the file durable, read it from the disk, and compare it with what was to be written.

        Raises:
            CkstoreError: It differs.
        """
        os.fsync(fd)
        direct.drop_cached(fd)
        found_bytes = os.fstat(fd).st_size
        if found_bytes != nbytes:
            raise CkstoreError(f"{name} has {found_bytes} bytes after it was written, wanted {nbytes}")
        buffer = memoryview(bytearray(max((part.nbytes for part in parts), default=0)))
        for part in sorted(parts, key=lambda part: part.start):
            out = buffer[: part.nbytes]
            for i, start in enumerate(part.runs):
                run = out[i * part.runs.nbytes : (i + 1) * part.runs.nbytes]
                files.read_into(fd, part.start + start, run, name)
            if _DIGEST(out) != part.digest:
                msg = f"{name} does not read back as it was written, in {part.nbytes} bytes from {part.start}"
                raise CkstoreError(msg, hint="the disk or the memory of this machine is failing")
            self._meter.add(part.nbytes)


def _write(fd: int, start: int, runs: Runs, data: memoryview) -> _Part:
    """Write what belongs into the runs, which begin at `start` in the file."""
    digest = _DIGEST(data)
    for i, run in enumerate(runs):
        files.write_at(fd, start + run, data[i * runs.nbytes : (i + 1) * runs.nbytes])
    return _Part(start, runs, len(data), digest)
