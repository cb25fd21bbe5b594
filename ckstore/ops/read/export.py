"""Write the tensors of a saved state as safetensors files, and its other values as JSON next to them.

`export_files` has the functions that write, check and publish the files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ckstore.containers.safetensors_write import (
    INDEX_NAME,
    FileLayout,
    TensorToWrite,
    cut_shards,
    lay_out,
    render_index,
    shard_name,
)
from ckstore.errors import BadInput
from ckstore.model.manifest.manifest import LeafRecord
from ckstore.model.manifest.state_json import json_of_leaf, json_of_node
from ckstore.model.names import spelled
from ckstore.model.reports.export_report import ExportedFile, ExportReport
from ckstore.model.reports.progress import Progress
from ckstore.model.sizes import parse_size
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.ops.read.export_cast import CastTally, cast_of
from ckstore.ops.read.export_files import (
    MARGIN_BYTES,
    Meter,
    Work,
    building,
    gathered,
    whole_leaf,
    write_bytes,
    write_runs,
)
from ckstore.ops.read.export_plan import ExportPlan, leaf_bytes, plan_export
from ckstore.ops.read.export_sums import ExportSums, FileRegion, Sums
from ckstore.ops.read.load import Select

MAX_SHARD_BYTES = 50 * 10**9  # the default of `save_pretrained` of transformers 5
STATE_NAME = "state.json"
STATE_VERSION = 1

_FLUSH_BYTES = 2**20
_VALUE_BYTES = 100  # the approximate size of a value in ``state.json`` with its name


def check_shard(max_shard_bytes: int | str) -> int:
    """Return the maximum size of the tensors in one file."""
    most_bytes = parse_size(max_shard_bytes) if isinstance(max_shard_bytes, str) else max_shard_bytes
    if type(most_bytes) is not int or most_bytes < 1:
        msg = f"max_shard_bytes must be at least 1 byte, a number or a size such as 5GB, got {max_shard_bytes!r}"
        raise BadInput(msg)
    return most_bytes


@dataclass(frozen=True, slots=True)
class ShardFile:
    """One file of tensors: its name, its tensors, and their places in the file."""

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
    sums: Sums = False,
    progress: Progress | None = None,
) -> ExportReport:
    """Export an open checkpoint; see `ckstore.Store.export_safetensors`."""
    most_bytes = check_shard(max_shard_bytes)
    path = Path(os.path.abspath(destination))
    if path.suffix == ".safetensors":
        msg = f"the destination must be a directory, but {path.name} looks like a file"
        raise BadInput(msg, hint=f"give a directory, such as {path.with_suffix('')}, for model.safetensors")
    plan = plan_export(directory.manifest, select=select, strip_prefix=strip_prefix)
    shards = shards_of(plan, most_bytes)
    index = len(index_of(shards, plan.tied)) if len(shards) > 1 else 0
    unheld = sum(leaf_bytes(directory.manifest, leaf) * 4 // 3 + _VALUE_BYTES for leaf in plan.unheld)
    values = (len(plan.values.values) + len(plan.values.attributes)) * _VALUE_BYTES
    needed_bytes = sum(shard.layout.nbytes for shard in shards) + index + unheld + values + MARGIN_BYTES
    with building(directory, path, needed_bytes) as (tree, reader):
        meter = Meter(sum(shard.layout.nbytes for shard in shards), progress)
        work = TensorWork(directory, tree, reader, meter, ExportSums.asked_for(sums))
        written = [work.shard(shard) for shard in shards]
        if len(shards) > 1:
            written.append(work.small(INDEX_NAME, [index_of(shards, plan.tied)]))
        if plan.has_state:
            written.append(work.small(STATE_NAME, work.state_parts(plan)))
        written += work.write_sums()
        tree.publish()
    # The names are in the order of state.json.
    names = [leaf.name for leaf in plan.unheld] + [name for name, _ in plan.values.values]
    return ExportReport(
        name=directory.manifest.name,
        checkpoint_id=directory.manifest_id,
        destination=path,
        files=tuple(written),
        tied=plan.tied,
        state_names=(*names, *(f"{name} (attribute)" for name, _ in plan.values.attributes)),
        left_out=versions_left_out(plan),
    )


def versions_left_out(plan: ExportPlan) -> tuple[str, ...]:
    """Return a sentence for each attribute with torch's versions of modules. An export cannot hold these attributes."""
    return tuple(
        f"{name or 'the state itself'}: the versions of modules that torch keeps in _metadata"
        for name in spelled(plan.values.torch_versions)
    )


def shards_of(plan: ExportPlan, most_bytes: int | None, stem: str = "model") -> list[ShardFile]:
    """Return the files for the tensors.

    Each file has at most `most_bytes` of tensors, or a single larger tensor. Without `most_bytes`, there is one file.
    """
    if most_bytes is None:
        most_bytes = sum(tensor.nbytes for tensor in plan.tensors)
    cut = cut_shards([tensor.nbytes for tensor in plan.tensors], most_bytes)
    dropped: dict[str, list[str]] = {}
    for name, kept in plan.tied.items():
        dropped.setdefault(kept, []).append(name)
    shards = []
    for number, indexes in enumerate(cut, 1):
        tensors = tuple(plan.tensors[i] for i in indexes)
        tied = {name: tensor.name for tensor in tensors for name in dropped.get(tensor.name, ())}
        layout = lay_out(tensors, {"format": "pt", **plan.metadata, **tied})
        leaves = tuple(plan.leaves[i] for i in indexes)
        shards.append(ShardFile(shard_name(number, len(cut), stem), leaves, tensors, layout))
    return shards


def index_of(shards: Sequence[ShardFile], tied: Mapping[str, str]) -> bytes:
    """Return the index of several files.

    `tied` maps the name of each tensor that is not written to the name of the tensor that it is tied to.
    """
    weight_map = {tensor.name: shard.name for shard in shards for tensor in shard.tensors}
    return render_index(weight_map, sum(tensor.nbytes for shard in shards for tensor in shard.tensors), tied)


@dataclass
class TensorWork(Work):
    """Writes files of tensors, and ``state.json``."""

    casts: CastTally | None = None  # counts the values that are out of range of the written dtype

    def shard(self, shard: ShardFile) -> ExportedFile:
        """Write a file of tensors."""
        with self.tree.create_file(shard.name) as fd:
            parts = [write_bytes(fd, 0, shard.layout.head)]
            self.meter.add(len(shard.layout.head))
            for i in self._by_place(shard.leaves):
                cast = cast_of(shard.leaves[i], shard.tensors[i])
                for runs, data in gathered(self.directory, self.reader, shard.leaves[i], cast):
                    parts.append(write_runs(fd, shard.layout.starts[i], runs, data))
                    self.meter.add(len(data))
                if self.casts is not None:
                    self.casts.add(shard.tensors[i].name, cast)
            placed = zip(shard.layout.starts, shard.tensors, strict=True)
            regions = (FileRegion(one.name, start, start + one.nbytes) for start, one in placed if one.nbytes)
            self.read_back(fd, shard.name, shard.layout.nbytes, parts, sorted(regions, key=lambda region: region.start))
        return ExportedFile(shard.name, shard.layout.nbytes, len(shard.tensors))

    def state_parts(self, plan: ExportPlan) -> Iterator[bytes]:
        """Yield ``state.json`` in parts. It has one line for each value, which allows text searches."""
        manifest = self.directory.manifest
        head = {
            "format": "ckstore-state",
            "version": STATE_VERSION,
            "checkpoint": manifest.name,
            "id": self.directory.manifest_id,
        }
        values = (
            (leaf.name, json_of_leaf(leaf, whole_leaf(self.directory, self.reader, leaf))) for leaf in plan.unheld
        )
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

    def _by_place(self, leaves: tuple[LeafRecord, ...]) -> Iterator[int]:
        """Yield the indexes of nonempty tensors, sorted by storage and offset.

        Before an index is yielded, the reader is set to the storage of the tensor.
        """
        storage = -1
        for i in sorted(range(len(leaves)), key=lambda i: (leaves[i].storage, leaves[i].offset)):
            if 0 in leaves[i].shape:
                continue
            if leaves[i].storage != storage:
                storage = leaves[i].storage
                self.reader.begin(storage)
            yield i
