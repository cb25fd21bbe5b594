"""Find the names of the tensors in a zip archive of torch.save from its pickle, without executing the pickle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from ckstore.containers.parsed_values import MAX_TENSORS, FileTensor, RandomAccess, Refused, refuse
from ckstore.containers.pickle_values import PlainObject, Sparse, TensorView
from ckstore.containers.torch_pickle import MAX_PICKLE_BYTES, read_pickle
from ckstore.model.document import MAX_DEPTH, shown
from ckstore.model.manifest.dtypes import TORCH_ITEMSIZE

MAX_TEXT = 4096  # maximum length in characters of a string that is a part of a name
MAX_NAME_CHARS = 64 * 2**20  # maximum of all names together; a few bytes of a pickle can put a key into many places
MAX_STEPS = 5_000_000
"""The maximum number of visited values. Sixty nested lists that each contain the next one twice have 2^60 values."""

PICKLE = b"/data.pkl"
_BYTE_ORDER_MAX_BYTES = 16


@dataclass(frozen=True, slots=True)
class Span:
    """The location of a record: its bytes in the file, and its segment."""

    start: int
    stop: int
    segment: int


@dataclass(slots=True)
class Named:
    """The tensors with a name, and the reasons why other tensors have no name."""

    tensors: list[FileTensor] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def archive_name(names: AbstractSet[bytes]) -> bytes | None:
    """Return the folder of all records in an archive of torch.save, or None for another archive."""
    # torch names the folder after the file, so the folder can have any name. There must be exactly one folder.
    folders = [name.removesuffix(PICKLE) for name in names if name.endswith(PICKLE) and name.count(b"/") == 1]
    if len(folders) != 1 or not {folders[0] + b"/version", folders[0] + b"/byteorder"} & names:
        return None
    return folders[0]


def name_tensors(file: RandomAccess, folder: bytes, spans: Mapping[bytes, Span]) -> Named:
    """Return the named tensors of an archive whose records are in `folder`. `spans` has its uncompressed records."""
    try:
        # If the pickle is not understood, only the names are lost. The bytes are stored in any case.
        found = read_archive(file, folder, spans)
    except Refused as error:
        return Named(problems=[f"its tensors are stored without names: {error}"])
    return name_views(found, records_of(folder, spans))


def read_archive(file: RandomAccess, folder: bytes, spans: Mapping[bytes, Span]) -> Any:
    """Return the value of the pickle in an archive."""
    span = spans.get(folder + b"/byteorder")
    # In an archive without the record `byteorder`, numbers are little-endian.
    if span is not None and (found := _read(file, span, _BYTE_ORDER_MAX_BYTES)) != b"little":
        refuse("the record byteorder", "little", shown(found))
    return read_pickle(_read(file, spans.get(folder + PICKLE), MAX_PICKLE_BYTES))


def records_of(folder: bytes, spans: Mapping[bytes, Span]) -> dict[str, Span]:
    """Return the records of storages by their keys in the pickle."""
    prefix = folder + b"/data/"
    records = {}
    for name, span in spans.items():
        if name.startswith(prefix):
            try:
                records[str(name.removeprefix(prefix), "utf-8", "surrogatepass")] = span
            except UnicodeDecodeError:  # no pickle can refer to such a record
                continue
    return records


def name_views(value: Any, records: Mapping[str, Span]) -> Named:
    """Return the tensors in the value of a pickle whose storages are in `records`, with their names."""
    return _Naming(records).run(value)


def _read(file: RandomAccess, span: Span | None, most_bytes: int) -> bytes:
    if span is None or span.stop - span.start > most_bytes:
        refuse("the record", f"at most {most_bytes} bytes, not compressed", "another")
    return file.read(span.start, span.stop - span.start)


class _Naming:
    """One walk through the value of a pickle."""

    def __init__(self, records: Mapping[str, Span]) -> None:
        self._records = records
        self._named: dict[str, FileTensor] = {}
        self._used: set[str] = set()
        self._parts: set[str] = set()
        self._twice = ""
        self._outside = 0

    def run(self, value: Any) -> Named:
        """Return the tensors in `value`, and the reasons why other tensors have no name."""
        problems = []
        chars = 0
        for name, view in tensors_in(value, self._parts):
            chars += len(name)
            # A memo entry of two bytes can put a key into many places, so names are counted, not bytes of the pickle.
            if len(self._named) >= MAX_TENSORS or chars > MAX_NAME_CHARS:
                problems.append("it has more names than ckstore keeps")
                break
            self._add(name, view)
        else:
            nameless = self._records.keys() - self._used
            parts = len(nameless & self._parts)
            if parts:
                problems.append(
                    f"{parts} of its tensors' records have no name: they are parts of sparse tensors, "
                    "which load with file= returns"
                )
            unused = len(nameless) - parts
            if unused:
                problems.append(
                    f"{unused} of its tensors' records have no name: they belong to objects that ckstore does not read"
                )
        if self._twice:
            problems.append(f"more than one tensor has the name {shown(self._twice)}, which only the first keeps")
        if self._outside:
            problems.append(f"{self._outside} tensors have no name: they reach beyond their records")
        return Named(list(self._named.values()), problems)

    def _add(self, name: str, view: TensorView) -> None:
        tensor = _located(name, view, self._records.get(view.key))
        if tensor is None:
            self._outside += 1
            return
        self._used.add(view.key)
        # The tensors in {"a": {"b": t}} and {"a.b": t} have the same plain name, which only one tensor can keep.
        if self._named.setdefault(name, tensor) is not tensor:
            self._twice = self._twice or name


def _located(name: str, view: TensorView, span: Span | None) -> FileTensor | None:
    """Return the tensor of a view, or None if the view is not inside its record."""
    reach_bytes = view.reach_bytes()
    if reach_bytes is None:
        return None
    if reach_bytes == 0:
        return FileTensor(name, view.dtype, view.shape, 0)
    # A view that reaches beyond its record would make the manifest invalid.
    if span is None or reach_bytes > span.stop - span.start:
        return None
    strides = None if view.is_row_major else view.strides
    return FileTensor(name, view.dtype, view.shape, span.segment, view.offset * TORCH_ITEMSIZE[view.dtype], strides)


def tensors_in(value: Any, parts: set[str] | None = None) -> Iterator[tuple[str, TensorView]]:
    """Yield the tensors in nested dicts, lists and tuples with their names, in the order of the state.

    Names are plain, as users write them. A tensor that is the whole value has the empty name. Values are left out if
    they are deeper than `MAX_DEPTH`, have names much longer than `MAX_TEXT`, or follow after `MAX_STEPS` other values.
    Parts of sparse tensors and tensors in objects have no names. The keys of their storages are added to `parts`.
    """
    steps = 0
    stack: list[tuple[str, Iterator[tuple[Any, Any]]]] = []
    name = ""
    while True:
        if isinstance(value, TensorView):
            yield name, value
        elif isinstance(value, Sparse) and parts is not None:
            parts.update(part.key for part in value.parts.values())
        elif isinstance(value, PlainObject) and parts is not None:
            parts.update(view.key for _, view in tensors_in(value.fields))
        elif isinstance(value, (dict, list, tuple)) and len(stack) < MAX_DEPTH and len(name) <= MAX_TEXT:
            stack.append((name, iter(value.items() if isinstance(value, dict) else enumerate(value))))
        item = None
        # A stack of iterators is used, because a recursion would crash on a list that contains itself.
        while stack and (item := next(stack[-1][1], None)) is None:
            stack.pop()
        steps += 1
        if item is None or steps > MAX_STEPS:
            return
        key, value = item
        is_named = type(key) is int or (type(key) is str and len(key) <= MAX_TEXT)
        if not is_named:
            value = None
        elif isinstance(value, (TensorView, dict, list, tuple)):
            path = stack[-1][0]
            name = f"{path}[{key}]" if isinstance(key, int) else f"{path}.{key}" if path else key
