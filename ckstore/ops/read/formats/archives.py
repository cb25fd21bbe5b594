"""Write archives of torch.save into a file, their storages streamed from the checkpoint."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ckstore.containers.torch_zip_write import VERSION_RECORD, ArchiveLayout, lay_out, small_records
from ckstore.model.manifest.manifest import LeafRecord
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.ops.read.export_files import Meter, WrittenPart, write_bytes
from ckstore.ops.read.regions import RangeReader
from ckstore.ops.read.storage_read import names_of


@dataclass(frozen=True, slots=True)
class LeafRows:
    """Consecutive bytes of the storage of a tensor."""

    leaf: LeafRecord  # the tensor
    # `start` and `stop`: Which, from its first element on.
    start: int
    stop: int


Source = int | bytes | LeafRows
"""What a record of an archive is: a storage of the checkpoint, bytes, or a part of a storage."""


class Archive:
    """One archive that is to be written."""

    def __init__(self, directory: CheckpointDirectory, pickled: bytes, storages: Sequence[Source]) -> None:
        self._directory = directory
        self._names = names_of(directory)
        self._records: list[tuple[str, Source]] = [
            *small_records(pickled),
            *((f"data/{i}", source) for i, source in enumerate(storages)),
            VERSION_RECORD,
        ]
        sizes = [self._size(source) for _, source in self._records]
        # Where everything goes, from its beginning.
        self.layout: ArchiveLayout = lay_out([name for name, _ in self._records], sizes)

    def write(self, fd: int, start: int, reader: RangeReader, meter: Meter) -> Iterator[WrittenPart]:
        """Write it from byte `start` of a file on."""
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
