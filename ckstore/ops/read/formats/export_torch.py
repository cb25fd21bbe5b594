"""Write a saved state as one file that `torch.load` reads, preserving tied and strided tensors.

The state is pickled with storages that have no memory. Their bytes are then streamed into the archive after the pickle.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ckstore.containers.torch_zip_write import VERSION_RECORD, ArchiveLayout, lay_out, small_records
from ckstore.errors import BadInput
from ckstore.model.manifest.manifest import LeafRecord, Manifest, Node
from ckstore.model.manifest.nodes import SPARSE_KINDS
from ckstore.model.names import plain
from ckstore.model.reports.export_report import ExportedFile, ExportReport
from ckstore.model.reports.progress import Progress
from ckstore.model.sizes import size_text, sizes_apart
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.ops.read.export_files import MARGIN_BYTES, Meter, Work, WrittenPart, building, write_bytes
from ckstore.ops.read.export_plan import leaf_bytes, refuse_files
from ckstore.ops.read.export_sums import ExportSums, FileRegion, Sums, beside_file
from ckstore.ops.read.load import Select, as_filter, check_selection
from ckstore.ops.read.regions import RangeReader
from ckstore.ops.read.storage_read import names_of, read_memories
from ckstore.tensors.files.pickled import PickledState
from ckstore.tensors.memory_layout import StorageMemory
from ckstore.tensors.state_restore import build, is_empty
from ckstore.tensors.walks import leaf_numbers, parts_in


@dataclass(frozen=True, slots=True)
class LeafRows:
    """Consecutive bytes of the storage of a tensor."""

    leaf: LeafRecord  # the tensor
    # `start` and `stop` are the byte range, relative to the first element of the tensor.
    start: int
    stop: int


Source = int | bytes | LeafRows
"""The content of a record in an archive: a storage of the checkpoint, bytes, or a part of a storage."""


class Archive:
    """One archive to write."""

    def __init__(self, directory: CheckpointDirectory, pickled: bytes, storages: Sequence[Source]) -> None:
        self._directory = directory
        self._names = names_of(directory)
        self._records: list[tuple[str, Source]] = [
            *small_records(pickled),
            *((f"data/{i}", source) for i, source in enumerate(storages)),
            VERSION_RECORD,
        ]
        sizes = [self._size(source) for _, source in self._records]
        # The place of every record, relative to the beginning of the archive.
        self.layout: ArchiveLayout = lay_out([name for name, _ in self._records], sizes)

    def write(self, fd: int, start: int, reader: RangeReader, meter: Meter) -> Iterator[WrittenPart]:
        """Write the archive at byte `start` of a file."""
        crcs = []
        for i, (_, source) in enumerate(self._records):
            crc = 0
            at = start + self.layout.starts[i]
            for data in self._data(reader, source):
                crc = zlib.crc32(data, crc)
                yield write_bytes(fd, at, data)
                at += len(data)
                meter.add(len(data))
            crcs.append(crc)
            head = self.layout.head(i, crc)
            yield write_bytes(fd, start + self.layout.heads[i], head)
            meter.add(len(head))
        tail = self.layout.tail(crcs)
        yield write_bytes(fd, start + self.layout.end, tail)
        meter.add(len(tail))

    def regions(self) -> list[FileRegion]:
        """Return the regions of the tensors."""
        return [
            FileRegion(
                self._names.name(source) if isinstance(source, int) else source.leaf.name,
                start,
                start + self._size(source),
            )
            for (_, source), start in zip(self._records, self.layout.starts, strict=True)
            if not isinstance(source, bytes)
        ]

    def _size(self, source: Source) -> int:
        if isinstance(source, bytes):
            return len(source)
        if isinstance(source, int):
            return self._directory.manifest.storages[source].nbytes
        return source.stop - source.start

    def _data(self, reader: RangeReader, source: Source) -> Iterator[bytes | memoryview]:
        if isinstance(source, bytes):
            yield source
            return
        if isinstance(source, int):
            storage, low, high, name = source, 0, self._size(source), self._names.name(source)
        else:
            storage, name = source.leaf.storage, source.leaf.name
            low, high = source.leaf.offset + source.start, source.leaf.offset + source.stop
        if low == high:
            return
        reader.begin(storage)
        yield from reader.parts(low, high, name)


VALUES_MOST_BYTES = 32 * 2**20
"""The maximum size of values that are read into memory: NumPy arrays in the pickle, and parts of sparse tensors."""
_NUMBERS_TIMES = 5  # how many times more memory a number in a list takes than in the store
_SHOWN = 5


def export_torch(
    directory: CheckpointDirectory,
    path: Path,
    *,
    select: Select = None,
    sums: Sums = False,
    progress: Progress | None = None,
) -> ExportReport:
    """Export an open checkpoint as the file `path`; see `ckstore.Store.export`."""
    manifest = directory.manifest
    refuse_files(manifest)
    check_selection(directory, select)
    keep = as_filter(select)
    chosen = [leaf for leaf in manifest.leaves if keep is None or keep(leaf.name)]
    _refuse_two_types(chosen)
    refuse_unpicklable(manifest, keep)
    pickled = pickled_node(directory, manifest.state, chosen, keep)
    archive = Archive(directory, pickled.data, pickled.storages)
    nbytes = archive.layout.nbytes
    beside = beside_file(path.name) if sums else ()
    with building(directory, path, nbytes + MARGIN_BYTES, one_file=True, beside=beside) as (tree, reader):
        work = Work(directory, tree, reader, Meter(nbytes, progress), ExportSums.asked_for(sums))
        with tree.create_file(path.name) as fd:
            parts = list(archive.write(fd, 0, reader, work.meter))
            work.read_back(fd, path.name, nbytes, parts, archive.regions())
        about = work.write_sums(beside_file(path.name))
        tree.publish_file(path.name, beside=[file.name for file in about])
    tensors = len({leaf._replace(name="") for leaf in chosen if leaf.kind == "torch"})
    return ExportReport(
        name=manifest.name,
        checkpoint_id=directory.manifest_id,
        destination=path,
        files=(ExportedFile(path.name, nbytes, tensors), *about),
        unsafe_globals=pickled.unsafe_globals,
    )


def pickled_node(
    directory: CheckpointDirectory, state: Node, chosen: Sequence[LeafRecord], keep: Callable[[str], bool] | None
) -> PickledState:
    """Pickle the value of a node, with the leaves that are `chosen`. If possible, no bytes of tensors are read."""
    leaves = directory.manifest.leaves
    parts = {leaves[i].name: node[2] for _, node in parts_in(state) for i in leaf_numbers(node)}
    # The parts of a sparse tensor must be read, since its indices are checked when it is created. Other tensor
    # subclasses usually only hold their parts.
    read = [leaf for leaf in chosen if leaf.kind != "torch" or parts.get(leaf.name) in SPARSE_KINDS]
    pickled = _pickled(directory, state, read, keep)
    streamed = {leaf.storage for leaf in chosen if not is_empty(leaf)} - {leaf.storage for leaf in read}
    copied = sum(bool(one) for one in pickled.storages if isinstance(one, bytes))
    if streamed <= set(pickled.storages) and copied <= len({leaf.storage for leaf in read if leaf.kind == "torch"}):
        return pickled
    # If a class creates other tensors from its parts, the values of the parts must be read.
    return _pickled(directory, state, [leaf for leaf in chosen if leaf.kind != "torch" or leaf.name in parts], keep)


def _pickled(
    directory: CheckpointDirectory, state: Node, in_memory: Sequence[LeafRecord], keep: Callable[[str], bool] | None
) -> PickledState:
    from ckstore.tensors.files.pickled import Placeholders, pickle_state

    manifest = directory.manifest
    refuse_large(manifest, in_memory)
    read = {leaf.storage for leaf in in_memory if not is_empty(leaf)}
    memories = read_memories(directory, sorted(read), verify=True)
    stand_in = Placeholders(manifest.storages)

    def memory(storage: int) -> StorageMemory:
        return memories[storage] if storage in memories else stand_in.memory(storage)

    return pickle_state(build(state, manifest.leaves, memory, keep=keep), stand_in.number)


def refuse_unpicklable(manifest: Manifest, keep: Callable[[str], bool] | None) -> None:
    """Raise if a value that `keep` selects cannot be pickled.

    Raises:
        BadInput: There is such a value. The message has its name.
    """
    for name, node in parts_in(manifest.state, tag="torch.memory_format"):
        if keep is None or keep(name):
            place = plain(name) or "the state itself"
            raise BadInput(
                f"{place}: torch.{node[1]} cannot be pickled, so torch files cannot hold it",
                hint="leave it out with select=, or export with another format",
                command_hint="leave it out with --select, or export with another --format",
            )


def refuse_large(manifest: Manifest, leaves: Sequence[LeafRecord]) -> None:
    """Raise if values that must be read into memory are too large.

    Raises:
        BadInput: The values are too large. The message names the largest ones.
    """
    sizes = {
        leaf.name: leaf_bytes(manifest, leaf) * (_NUMBERS_TIMES if leaf.kind == "numbers" else 1) for leaf in leaves
    }
    if sum(sizes.values()) <= VALUES_MOST_BYTES:
        return
    largest = sorted(sizes, key=sizes.__getitem__, reverse=True)[:_SHOWN]
    listed = "; ".join(f"{plain(name) or 'the state itself'}: {size_text(sizes[name])}" for name in largest)
    total, most = sizes_apart(sum(sizes.values()), VALUES_MOST_BYTES)
    msg = (
        f"values that are not plain tensors are stored in the pickle, and would take {total} of memory, "
        f"at most {most} are allowed: {listed}"
    )
    raise BadInput(
        msg,
        hint="leave them out with select=, such as select='model'; or torch.save the result of load",
        command_hint="leave them out with --select, such as --select model",
    )


def _refuse_two_types(chosen: Sequence[LeafRecord]) -> None:
    by_storage: dict[int, list[LeafRecord]] = defaultdict(list)
    for leaf in chosen:
        if leaf.kind == "torch" and not is_empty(leaf):
            by_storage[leaf.storage].append(leaf)
    for leaves in by_storage.values():
        other = next((leaf for leaf in leaves if leaf.dtype != leaves[0].dtype), None)
        if other is not None:
            first = leaves[0]
            msg = f"{first.name} ({first.dtype}) and {other.name} ({other.dtype}) are the same memory"
            raise BadInput(f"{msg}, which torch files cannot hold", hint="select one of them")
