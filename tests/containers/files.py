"""Files in memory, and what must hold for every cut, of whatever bytes."""

from __future__ import annotations

import io
import itertools
import json
import math
import struct
import zipfile
from functools import cache
from typing import Any

import safetensors
import torch

from ckstore.containers.cut import Cut, FileTensor, cut
from ckstore.containers.safetensors_file import DTYPE_BITS
from ckstore.model.manifest.dtypes import TORCH_ITEMSIZE


class Memory:
    """A file of bytes; `claimed_bytes` is the length that it says it has."""

    def __init__(self, data: bytes, claimed_bytes: int | None = None) -> None:
        self.data = data
        self.nbytes = len(data) if claimed_bytes is None else claimed_bytes
        self.longest_read = 0

    def read(self, offset: int, length: int) -> bytes:
        if not (offset >= 0 and length >= 0 and offset + length <= len(self.data)):
            raise EOFError(f"{length} bytes at {offset} of {len(self.data)}")
        self.longest_read = max(self.longest_read, length)
        return self.data[offset : offset + length]


def cut_checked(data: bytes, name: str = "model.bin") -> Cut:
    """Cut `data`, and check everything that a cut promises."""
    found = cut(Memory(data), name)

    assert found.kind in ("safetensors", "torch-zip", "torch-legacy", "zip", "")
    stops = [0, *(stop for _, stop in found.segments)]
    assert [start for start, _ in found.segments] == stops[:-1]
    assert all(start < stop for start, stop in found.segments)
    assert stops[-1] == len(data)
    assert found.kind or len(found.segments) <= 1
    assert len({tensor.name for tensor in found.tensors}) == len(found.tensors)
    for tensor in found.tensors:
        start, stop = found.segments[tensor.segment]
        count = math.prod(tensor.shape)
        last = max(positions(tensor), default=-1) if count < 1000 else 0
        assert tensor.offset + (last + 1) * TORCH_ITEMSIZE[tensor.dtype] <= stop - start or count == 0
    if found.kind == "safetensors":
        check_as_the_library_reads(data, found)
    return found


@cache
def library_reads(dtype: str) -> bool:
    """Whether the installed safetensors knows a dtype of the format: 0.8 knows more than 0.5."""
    nbytes = DTYPE_BITS[dtype]
    data = safetensors_file({"a": {"dtype": dtype, "shape": [8], "data_offsets": [0, nbytes]}}, bytes(nbytes))
    try:
        safetensors.deserialize(data)  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError:
        return False
    return True


def check_as_the_library_reads(data: bytes, found: Cut) -> None:
    """What is cut as safetensors the library reads, with the same bytes."""
    header = header_of(data)
    if not all(library_reads(entry["dtype"]) for name, entry in header.items() if name != "__metadata__"):
        return
    read = dict(safetensors.deserialize(data))  # type: ignore[no-untyped-call]
    for tensor in found.tensors:
        theirs = read[tensor.name]
        if theirs["dtype"] != "F4":
            assert tuple(theirs["shape"]) == tensor.shape
        assert bytes(theirs["data"]) == bytes_of(data, found, tensor)
    assert found.warnings or len(read) == len(found.tensors) == len(header) - ("__metadata__" in header)


def positions(tensor: FileTensor) -> list[int]:
    """Return where each element lies, in elements, in row-major order."""
    strides = tensor.strides
    if strides is None:
        return list(range(math.prod(tensor.shape)))
    indexes = itertools.product(*(range(n) for n in tensor.shape))
    return [sum(i * s for i, s in zip(index, strides, strict=True)) for index in indexes]


def bytes_of(data: bytes, found: Cut, tensor: FileTensor) -> bytes:
    """Return the elements of a tensor in a cut file, in row-major order."""
    size = TORCH_ITEMSIZE[tensor.dtype]
    if not math.prod(tensor.shape):
        return b""
    start = found.segments[tensor.segment][0] + tensor.offset
    return b"".join(data[start + at * size : start + (at + 1) * size] for at in positions(tensor))


def bytes_in_torch(tensor: torch.Tensor) -> bytes:
    """Return the elements of a tensor in row-major order, as they lie in its storage."""
    memory = bytes(tensor.untyped_storage())
    size = tensor.dtype.itemsize
    look = FileTensor("", "", tuple(tensor.shape), 0, 0, tuple(tensor.stride()))
    starts = [(tensor.storage_offset() + at) * size for at in positions(look)]
    return b"".join(memory[start : start + size] for start in starts)


def header_of(data: bytes) -> dict[str, Any]:
    """Return the header of a safetensors file as JSON."""
    header: dict[str, Any] = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return header


def safetensors_file(header: Any, data: bytes = b"") -> bytes:
    """Return a file with any header: bytes, or what becomes JSON."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def torch_file(state: Any, **options: Any) -> bytes:
    """Return what torch.save writes."""
    out = io.BytesIO()
    torch.save(state, out, **options)
    return out.getvalue()


def zip_file(records: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    """Return a zip archive as zipfile writes it."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in records.items():
            archive.writestr(name, data)
    return out.getvalue()


def pickle_file(pickled: bytes, records: dict[str, bytes] | None = None, byteorder: bytes = b"little") -> bytes:
    """Return an archive of torch.save with any pickle; `records` are those below ``data/``."""
    below = {f"a/data/{key}": data for key, data in (records or {}).items()}
    return zip_file({"a/data.pkl": pickled, "a/byteorder": byteorder, **below, "a/version": b"3\n"})
