"""Read the value of a file, like `torch.load(weights_only=True)` or safetensors, without running code of the file.

Each tensor is a view of a range of the file, and this range is not read. An object of an unknown class in a pickle
becomes an `Unknown` at its place in the value.
"""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ckstore.containers.cut import torch_layout
from ckstore.containers.parsed_values import RandomAccess, refuse
from ckstore.containers.pickle_values import TensorView, Unknown
from ckstore.containers.safetensors_file import looks_like_safetensors, read_entries
from ckstore.containers.torch_legacy import looks_like_legacy, read_legacy
from ckstore.containers.torch_zip import PICKLE, Span, archive_name, read_archive, records_of
from ckstore.containers.zip_directory import looks_like_zip, read_records

_TAR_HEADER_BYTES = 512


@dataclass(frozen=True, slots=True)
class FileValue:
    """The value of a file."""

    value: Any  # as `torch_pickle.read_pickle` returns it
    # Key of a storage, as in the views in `value` -> start and end of the storage in the file.
    spans: Mapping[str, tuple[int, int]]
    pickle_bytes: int  # size of the pickle, or of the safetensors header


def read_value(file: RandomAccess) -> FileValue:
    """Return the value of a safetensors file, or of a file that torch.save wrote."""
    if looks_like_safetensors(file):
        return _of_safetensors(file)
    if looks_like_zip(file):
        return _of_zip(file)
    if looks_like_legacy(file):
        legacy = read_legacy(file)
        return FileValue(legacy.value, legacy.spans, legacy.pickle_bytes)
    found = "a tar archive of an old torch" if _looks_like_tar(file) else "another file, or a plain pickle"
    return refuse("the file", "a safetensors file, or one that torch.save wrote", found)


def _looks_like_tar(file: RandomAccess) -> bool:
    if file.nbytes < _TAR_HEADER_BYTES:
        return False
    try:
        tarfile.TarInfo.frombuf(file.read(0, _TAR_HEADER_BYTES), "ascii", "replace")
    except tarfile.HeaderError:
        return False
    return True


def _of_safetensors(file: RandomAccess) -> FileValue:
    value: dict[str, Any] = {}
    spans = {}
    entries = read_entries(file)
    header_bytes = entries[0].start if entries else file.nbytes
    for entry in entries:
        layout = torch_layout(entry)
        if layout is None:
            value[entry.name] = Unknown(f"a tensor of the dtype {entry.dtype}, which torch does not have,")
            continue
        dtype, shape = layout
        spans[entry.name] = (entry.start, entry.stop)
        value[entry.name] = TensorView(entry.name, dtype, 0, shape, _row_major(shape))
    return FileValue(value, spans, header_bytes)


def _of_zip(file: RandomAccess) -> FileValue:
    records = read_records(file)
    folder = archive_name({record.name for record in records})
    if folder is None:
        refuse("the zip archive", "one that torch.save wrote", "another")
    spans = {record.name: Span(record.start, record.stop, 0) for record in records if record.stored}
    value = read_archive(file, folder, spans)
    found = {key: (span.start, span.stop) for key, span in records_of(folder, spans).items()}
    pickle = spans[folder + PICKLE]
    return FileValue(value, found, pickle.stop - pickle.start)


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        # As in torch, a size of 0 counts as 1 in the strides of the other dimensions.
        step *= max(size, 1)
    return tuple(reversed(strides))
