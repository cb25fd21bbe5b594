"""Cut a file at the boundaries of its tensors and records, so that equal tensors are equal segments in any file.

The file is not trusted. Nothing in the file is unpickled, decompressed or called, and only a limited amount of data is
read and kept. A file that does not follow its apparent format is one segment of opaque bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

from ckstore.containers.parsed_values import Cut, FileTensor, RandomAccess, Refused
from ckstore.containers.safetensors_file import TensorEntry, looks_like_safetensors, read_entries
from ckstore.containers.torch_legacy import looks_like_legacy, read_legacy
from ckstore.containers.torch_zip import Span, archive_name, name_tensors, name_views
from ckstore.containers.zip_directory import looks_like_zip, read_records
from ckstore.model.document import shown
from ckstore.model.manifest.dtypes import DTYPES

__all__ = ["Cut", "FileTensor", "RandomAccess", "cut"]

_SUFFIXES = {
    "safetensors": (".safetensors",),
    "zip": (".pt", ".pth", ".ckpt", ".bin", ".npz", ".zip"),
    "torch": (".pt", ".pth", ".ckpt", ".bin"),
}
# Names of safetensors -> names of torch. Tensors of dtypes that torch lacks (F6) are stored without names.
_TORCH_DTYPES = {one.safetensors: one.torch for one in DTYPES if one.safetensors and one.torch}


def cut(file: RandomAccess, name: str) -> Cut:
    """Return the boundaries and the tensors in `file`. Only errors of `file.read` are raised.

    Args:
        file: The file, which must not change during the call.
        name: The name of the file. If a file with this name should be a container but is not valid, the result has a
            warning.
    """
    # The first bytes decide the kind of container, because a .bin file may be of any kind.
    if looks_like_safetensors(file):
        kind, read = "safetensors", _cut_safetensors
    elif looks_like_zip(file):
        kind, read = "zip", _cut_zip
    elif looks_like_legacy(file):
        kind, read = "torch", _cut_legacy
    else:
        return _opaque(file, name, "safetensors", "it does not begin like one")
    try:
        return read(file, name)
    except Refused as error:
        return _opaque(file, name, kind, str(error))


def _opaque(file: RandomAccess, name: str, kind: str, reason: str) -> Cut:
    """Return the whole file as one segment, with a warning if its name has a suffix of `kind`."""
    claims = name.lower().endswith(_SUFFIXES[kind])
    warnings = (
        (f"{shown(name)} is not a valid {kind} file, so it is stored as opaque bytes: {reason}",) if claims else ()
    )
    return Cut("", _segments((), file.nbytes)[0], (), warnings)


def _segments(
    spans: Iterable[tuple[int, int]], nbytes: int
) -> tuple[tuple[tuple[int, int], ...], dict[tuple[int, int], int]]:
    """Return the segments made of `spans` and the gaps between them, and the index of each span.

    `spans` must be ascending, without overlaps, and inside the file. Empty spans are left out.
    """
    segments: list[tuple[int, int]] = []
    index: dict[tuple[int, int], int] = {}
    end = 0
    for start, stop in spans:
        # A tensor without elements has no bytes, and a segment must not be empty.
        if start == stop:
            continue
        if end < start:
            segments.append((end, start))
        index[start, stop] = len(segments)
        segments.append((start, stop))
        end = stop
    if end < nbytes:
        segments.append((end, nbytes))
    return tuple(segments), index


def _cut_safetensors(file: RandomAccess, name: str) -> Cut:
    entries = read_entries(file)
    segments, index = _segments(((entry.start, entry.stop) for entry in entries), file.nbytes)
    tensors: list[FileTensor] = []
    nameless: set[str] = set()
    for entry in entries:
        named = torch_layout(entry)
        if named is None:
            nameless.add(entry.dtype)
        else:
            tensors.append(FileTensor(entry.name, *named, index.get((entry.start, entry.stop), 0)))
    warnings: tuple[str, ...] = ()
    if nameless:
        dtypes, count = ", ".join(sorted(nameless)), len(entries) - len(tensors)
        warnings = (f"{count} tensors of {shown(name)} are stored without their names: torch does not have {dtypes}",)
    return Cut("safetensors", segments, tuple(tensors), warnings)


def _cut_zip(file: RandomAccess, name: str) -> Cut:
    records = read_records(file)
    # Compressed records are not cut, because equal tensors need not have equal compressed bytes.
    cuts = [record for record in records if record.stored and record.start < record.stop]
    segments, index = _segments(((record.start, record.stop) for record in cuts), file.nbytes)
    spans = {record.name: Span(record.start, record.stop, index[record.start, record.stop]) for record in cuts}
    folder = archive_name({record.name for record in records}) if spans else None
    if folder is None:
        return Cut("zip" if spans else "", segments, (), ())
    named = name_tensors(file, folder, spans)
    return Cut("torch-zip", segments, tuple(named.tensors), _warnings(name, named.problems))


def _cut_legacy(file: RandomAccess, name: str) -> Cut:
    found = read_legacy(file)
    spans = {key: span for key, span in found.spans.items() if span[0] < span[1]}
    segments, index = _segments(sorted(spans.values()), file.nbytes)
    named = name_views(found.value, {key: Span(*span, index[span]) for key, span in spans.items()})
    return Cut("torch-legacy", segments, tuple(named.tensors), _warnings(name, named.problems))


def _warnings(name: str, problems: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{shown(name)}: {problem}" for problem in problems)


def torch_layout(entry: TensorEntry) -> tuple[str, tuple[int, ...]] | None:
    """Return the dtype and the shape of a tensor in torch, or None if torch has no such tensor."""
    if entry.dtype == "F4":  # torch packs two elements along the last dimension
        if not entry.shape or entry.shape[-1] % 2:
            return None
        return "float4_e2m1fn_x2", (*entry.shape[:-1], entry.shape[-1] // 2)
    dtype = _TORCH_DTYPES.get(entry.dtype)
    return None if dtype is None else (dtype, entry.shape)
