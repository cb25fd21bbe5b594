"""Map the storages of an open checkpoint copy-on-write; those that cannot be mapped as they lie are read."""

from __future__ import annotations

import mmap as _mmap
import os
from contextlib import closing
from typing import TYPE_CHECKING

from ckstore.fs import mapping
from ckstore.ops.read.storage_read import check_memories, names_of, read_memories
from ckstore.tensors.allocation import wrap

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    from ckstore.model.manifest.manifest import BlobRecord, Extent
    from ckstore.objects.checkpoints import CheckpointDirectory
    from ckstore.tensors.memory import StorageMemory


def map_memories(directory: CheckpointDirectory, storages: Iterable[int], *, verify: bool) -> dict[int, StorageMemory]:
    """Map storages copy-on-write; those that cannot be mapped as they lie are read.

    With `verify`, every byte is read and checked now, not when it is used.

    Raises:
        DamagedBlob: Some bytes are damaged or missing.
    """
    with directory.reporting_damage():
        return _map_memories(directory, storages, verify=verify)


def _map_memories(directory: CheckpointDirectory, storages: Iterable[int], *, verify: bool) -> dict[int, StorageMemory]:
    names = names_of(directory)
    records = directory.manifest.storages
    memories: dict[int, StorageMemory] = {}
    alone, to_read = [], []
    for i in storages:
        extents = records[i].extents
        if records[i].tiling is not None:
            to_read.append(i)
        elif len(extents) == 1:
            alone.append((extents[0].blob, extents[0].offset, i))
        elif extents and all(_is_mappable(e, last=e is extents[-1]) for e in extents):
            memories[i] = wrap(names.kind(i), _map_extents(directory, extents, names.name(i)))
        else:
            to_read.append(i)
    parts = _PartsOfBlobs(directory)
    for _, _, i in sorted(alone):
        view = parts.map(records[i].extents[0], names.name(i))
        if view is None:
            to_read.append(i)
        else:
            memories[i] = wrap(names.kind(i), view)
    if verify:
        check_memories(directory, memories)
    if to_read:
        memories.update(read_memories(directory, to_read, verify=verify))
    return memories


def _is_mappable(extent: Extent, *, last: bool) -> bool:
    return extent.offset == 0 and (last or extent.length % _mmap.PAGESIZE == 0)


def _map_extents(directory: CheckpointDirectory, extents: Sequence[Extent], what: str) -> memoryview:
    """Map whole blobs side by side; each is open only while it is mapped, since a tensor may have thousands."""

    def parts() -> Generator[mapping.FilePart]:
        for extent in extents:
            fd = directory.descriptor_of_whole(directory.manifest.blobs[extent.blob], what)
            try:
                yield mapping.FilePart(fd, extent.length)
            finally:
                os.close(fd)

    with closing(parts()) as found:  # also if one cannot be mapped: the error keeps what is suspended
        return mapping.map_side_by_side(found, sum(extent.length for extent in extents))


class _PartsOfBlobs:
    """Maps storages of one extent each, by blob and offset: those of a pack together, and no byte for two of them.

    Storages with the same bytes have one place in the blobs. Who writes to one that is mapped must not change another.
    """

    def __init__(self, directory: CheckpointDirectory) -> None:
        self._directory = directory
        self._blob, self._whole = -1, memoryview(b"")
        self._end = 0

    def map(self, extent: Extent, what: str) -> memoryview | None:
        """Return memory of its own for an extent; None: a part of a blob that is mapped already, to be read instead.

        As many small storages as there are may be equal, and a process may have only so many mappings.
        """
        blob = self._directory.manifest.blobs[extent.blob]
        if extent.blob != self._blob:
            self._blob, self._whole, self._end = extent.blob, _map_blob(self._directory, blob, what), 0
        if extent.offset >= self._end:
            self._end = extent.offset + extent.length
            return self._whole[extent.offset : self._end]
        return _map_blob(self._directory, blob, what) if extent.length == blob.nbytes else None


def _map_blob(directory: CheckpointDirectory, blob: BlobRecord, what: str) -> memoryview:
    fd = directory.descriptor_of_whole(blob, what)
    try:
        return mapping.map_file(fd, blob.nbytes)
    finally:
        os.close(fd)
