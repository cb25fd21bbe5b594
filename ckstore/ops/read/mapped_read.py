"""Map the storages of an open checkpoint copy-on-write; those that cannot be mapped as they lie are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckstore.objects.pieces import PieceMaps
from ckstore.ops.read.storage_read import check_memories, names_of, read_memories
from ckstore.tensors.allocation import wrap

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckstore.objects.checkpoints import CheckpointDirectory
    from ckstore.tensors.memory import StorageMemory


def map_memories(directory: CheckpointDirectory, storages: Iterable[int], *, verify: bool) -> dict[int, StorageMemory]:
    """Map storages copy-on-write; those that cannot be mapped as they lie are read.

    With `verify`, every byte is read and checked now, not when it is used.
    """
    # A mapping is checked now or never: later a damaged page is read by a plain memory access.
    with directory.reporting_damage():
        return _map_memories(directory, storages, verify=verify)


def _map_memories(directory: CheckpointDirectory, storages: Iterable[int], *, verify: bool) -> dict[int, StorageMemory]:
    names = names_of(directory)
    records = directory.manifest.storages
    memories: dict[int, StorageMemory] = {}
    to_read = []
    maps = PieceMaps(directory)
    for i in sorted(storages, key=lambda i: (maps.place(records[i].extents), i)):
        view = None if records[i].tiling is not None else maps.map(records[i].extents, names.name(i))
        # It does not lie where pages begin, or is mapped already: a process may have only so many mappings.
        if view is None:
            to_read.append(i)
        else:
            memories[i] = wrap(names.kind(i), view)
    if verify:
        check_memories(directory, memories)
    # After the check: a mapped load of damaged bytes fails before memory is taken for the rest.
    if to_read:
        memories.update(read_memories(directory, to_read, verify=verify))
    return memories
