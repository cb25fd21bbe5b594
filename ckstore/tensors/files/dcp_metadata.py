"""The file ``.metadata`` of a directory of `torch.distributed.checkpoint`."""

from __future__ import annotations

import pickle  # the file is a pickle by definition; this module only writes it
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from ckstore.tensors.torch_leaves import DTYPES

METADATA_NAME = ".metadata"


@dataclass(frozen=True, slots=True)
class WrittenChunk:
    """The location of a value, or of a chunk of a tensor."""

    file: str  # name of its file
    start: int  # offset in the file, in bytes
    nbytes: int
    # `offsets` and `sizes` are the position and the size of the chunk in its tensor. For other values, both are None.
    offsets: tuple[int, ...] | None = None
    sizes: tuple[int, ...] | None = None


def render_metadata(
    paths: Mapping[str, tuple[str | int, ...]],  # name of each value -> its keys in the state
    tensors: Mapping[str, tuple[str, tuple[int, ...]]],  # name of each tensor -> its dtype and shape
    placed: Mapping[str, Sequence[WrittenChunk]],  # name of each value -> its chunks, or the value as one chunk
) -> bytes:
    """Return the content of ``.metadata``."""
    described: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
    where: dict[MetadataIndex, _StorageInfo] = {}
    for name, chunks in placed.items():
        for i, chunk in enumerate(chunks):
            index = MetadataIndex(name) if chunk.offsets is None else MetadataIndex(name, chunk.offsets, i)
            where[index] = _StorageInfo(chunk.file, chunk.start, chunk.nbytes)
        if name not in tensors:
            described[name] = BytesStorageMetadata()
            continue
        dtype, shape = tensors[name]
        boxes = [ChunkStorageMetadata(torch.Size(c.offsets or ()), torch.Size(c.sizes or ())) for c in chunks]
        properties = TensorProperties(dtype=DTYPES[dtype])
        described[name] = TensorStorageMetadata(properties, torch.Size(shape), boxes)
    metadata = Metadata(
        state_dict_metadata=described, planner_data=dict(paths), storage_data=where, storage_meta=StorageMeta()
    )
    return pickle.dumps(metadata)
