"""Compute the headers, the shards and the index of safetensors files to write, without I/O.

For the same tensors and metadata, the files are byte for byte equal to those of safetensors 0.8, except for the order
of metadata, which safetensors does not define. Shards are cut in the same way as in huggingface_hub.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ckstore.errors import BadInput
from ckstore.model.manifest.dtypes import DTYPES

MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library
METADATA_KEY = "__metadata__"
INDEX_NAME = "model.safetensors.index.json"

_ORDER = {one.safetensors: position for position, one in enumerate(DTYPES)}
_OF_TORCH = {one.torch: one.safetensors for one in DTYPES if one.torch and one.safetensors}
_OF_NUMPY = {one.numpy: one.safetensors for one in DTYPES if one.numpy}


@dataclass(frozen=True, slots=True)
class TensorToWrite:
    """A tensor of a file to be written."""

    name: str  # its name in the file
    # `dtype` and `shape` are those of safetensors (`dtype_and_shape`).
    dtype: str
    shape: tuple[int, ...]
    nbytes: int  # size in bytes of its elements, which are written row-major and little-endian


@dataclass(frozen=True, slots=True)
class FileLayout:
    """The layout of a file to be written."""

    head: bytes  # its first bytes, before the tensors
    starts: tuple[int, ...]  # offset of each tensor in the file, in the order of the arguments
    nbytes: int  # size of the file


def dtype_and_shape(kind: str, dtype: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]] | None:
    """Return the dtype and the shape of a tensor in safetensors, or None if safetensors does not support the tensor.

    Args:
        kind: The kind of the leaf. Only ``torch`` and ``numpy`` are supported.
        dtype: The name of the dtype in torch or NumPy, such as ``float32`` or ``<f4``.
        shape: The sizes of the tensor.
    """
    name = {"torch": _OF_TORCH, "numpy": _OF_NUMPY}.get(kind, {}).get(dtype)
    if name is None:
        return None
    if name != "F4":
        return name, shape
    # A byte contains two numbers. torch counts bytes, and safetensors counts numbers.
    return (name, (*shape[:-1], 2 * shape[-1])) if shape else None


def can_be_name(name: str) -> bool:
    """Whether a tensor in a safetensors file can have this name."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return name != METADATA_KEY


def lay_out(tensors: Sequence[TensorToWrite], metadata: Mapping[str, str]) -> FileLayout:
    """Return the layout of a file with these tensors and this metadata. `metadata` must not be empty."""
    # The tensors are in the order of the safetensors library, so that the files are byte for byte equal to its files.
    order = sorted(range(len(tensors)), key=lambda i: (-_ORDER[tensors[i].dtype], tensors[i].name))
    header: dict[str, object] = {METADATA_KEY: dict(metadata)}
    starts = [0] * len(tensors)
    at = 0
    for i in order:
        tensor = tensors[i]
        starts[i] = at
        at += tensor.nbytes
        header[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": (starts[i], at)}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    # The header is padded to 8 bytes, so that in a mapped file each tensor is aligned to the size of its elements.
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER_BYTES:
        msg = f"the header of {len(tensors)} tensors has {len(text)} bytes, safetensors reads {MAX_HEADER_BYTES}"
        raise BadInput(msg, hint="export smaller shards, or select a part")
    head = len(text).to_bytes(8, "little") + text
    return FileLayout(head, tuple(len(head) + start for start in starts), len(head) + at)


def cut_shards(sizes: Sequence[int], most_bytes: int) -> list[list[int]]:
    """Return the indexes of the tensors in each shard, in ascending order.

    A shard has at most `most_bytes` bytes of tensors, or a single larger tensor.
    """
    shards: list[list[int]] = []
    current: list[int] = []
    current_bytes = 0
    for i, nbytes in enumerate(sizes):
        # As in huggingface_hub, a larger tensor gets its own shard, and the current shard continues.
        if nbytes > most_bytes:
            shards.append([i])
            continue
        if current_bytes + nbytes > most_bytes:
            shards.append(current)
            current, current_bytes = [], 0
        current.append(i)
        current_bytes += nbytes
    if current or not shards:
        shards.append(current)
    return shards


def shard_name(number: int, count: int, stem: str = "model") -> str:
    """Return the name of file `number` of `count` files, numbered from 1."""
    return f"{stem}.safetensors" if count == 1 else f"{stem}-{number:05d}-of-{count:05d}.safetensors"


def render_index(weight_map: Mapping[str, str], total_bytes: int, tied: Mapping[str, str]) -> bytes:
    """Return the content of the index of a model in several files.

    Args:
        weight_map: Name of each tensor -> name of its file.
        total_bytes: The total size of the tensors, in bytes.
        tied: Name of a tensor that was left out -> name of the tensor to which it is tied.
    """
    index = {"metadata": {"total_size": total_bytes, **tied}, "weight_map": dict(weight_map)}
    return (json.dumps(index, indent=2, sort_keys=True) + "\n").encode()
