"""Names for the tensors in a zip archive of torch.save, from its pickle, which is read and never run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from ckstore.containers.torch_pickle import MAX_TEXT, read_pickle
from ckstore.containers.torch_values import TensorView
from ckstore.containers.values import MAX_SIZE, MAX_TENSORS, FileTensor, RandomAccess, Refused, elements, refuse
from ckstore.model.document import shown
from ckstore.model.manifest.dtypes import TORCH_ITEMSIZE
from ckstore.model.manifest.manifest import MAX_DEPTH

MAX_PICKLE_BYTES = 64 * 2**20
MAX_NAME_CHARS = 64 * 2**20
"""Of all names together: a key may be in many places, and a pickle says so in a few bytes."""
MAX_STEPS = 5_000_000
"""Values that are looked at: two lists that hold the next one twice, sixty times over, have 2^60 places."""

_PICKLE = b"/data.pkl"
_BYTE_ORDER_MAX_BYTES = 16


@dataclass(frozen=True, slots=True)
class Span:
    """Where a record is: bytes of the file, and the segment that they are."""

    start: int
    stop: int
    segment: int


@dataclass(slots=True)
class Named:
    """The tensors that have a name, and why others have none."""

    tensors: list[FileTensor] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def archive_name(names: AbstractSet[bytes]) -> bytes | None:
    """Return the folder that all records of a torch.save lie in, or None if these are not its records."""
    folders = [name.removesuffix(_PICKLE) for name in names if name.endswith(_PICKLE) and name.count(b"/") == 1]
    if len(folders) != 1 or not {folders[0] + b"/version", folders[0] + b"/byteorder"} & names:
        return None
    return folders[0]


def name_tensors(file: RandomAccess, folder: bytes, spans: Mapping[bytes, Span]) -> Named:
    """Return the tensors of the archive with the records `spans`, those that can be cut, in the folder `folder`."""
    try:
        _check_byte_order(file, spans.get(folder + b"/byteorder"))
        found = read_pickle(_read(file, spans.get(folder + _PICKLE), MAX_PICKLE_BYTES))
    except Refused as error:
        return Named(problems=[f"its tensors are stored without names: {error}"])
    return _Naming(folder + b"/data/", spans).run(found)


def _read(file: RandomAccess, span: Span | None, most_bytes: int) -> bytes:
    if span is None or span.stop - span.start > most_bytes:
        refuse("the record", f"at most {most_bytes} bytes, not compressed", "another")
    return file.read(span.start, span.stop - span.start)


def _check_byte_order(file: RandomAccess, span: Span | None) -> None:
    """Raise `Refused` if the numbers are not little-endian; archives without a word of it are."""
    if span is not None and (found := _read(file, span, _BYTE_ORDER_MAX_BYTES)) != b"little":
        refuse("the record byteorder", "little", shown(found))


class _Naming:
    """One walk through the value of a pickle."""

    def __init__(self, prefix: bytes, spans: Mapping[bytes, Span]) -> None:
        self._prefix = prefix
        self._spans = spans
        self._named: dict[str, FileTensor] = {}
        self._used: set[bytes] = set()
        self._twice = ""
        self._outside = 0

    def run(self, value: Any) -> Named:
        """Return the tensors in `value`, and what is to be said of them."""
        problems = []
        chars = 0
        for name, view in tensors_in(value):
            chars += len(name)
            if len(self._named) >= MAX_TENSORS or chars > MAX_NAME_CHARS:
                problems.append("it has more names than ckstore keeps")
                break
            self._add(name, view)
        else:
            unused = sum(key.startswith(self._prefix) and key not in self._used for key in self._spans)
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
        key = self._prefix + view.key.encode("utf-8", "surrogatepass")
        tensor = _located(name, view, self._spans.get(key))
        if tensor is None:
            self._outside += 1
            return
        self._used.add(key)
        if self._named.setdefault(name, tensor) is not tensor:
            self._twice = self._twice or name


def _located(name: str, view: TensorView, span: Span | None) -> FileTensor | None:
    """Return the tensor, or None if it does not lie in the record."""
    count = elements(view.shape)
    if count is None or max(view.strides, default=0) > MAX_SIZE:
        return None
    if count == 0:
        return FileTensor(name, view.dtype, view.shape, 0)
    item_bytes = TORCH_ITEMSIZE[view.dtype]
    last = view.offset + sum((size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True))
    if span is None or (last + 1) * item_bytes > span.stop - span.start:
        return None
    strides = None if _is_row_major(view.shape, view.strides) else view.strides
    return FileTensor(name, view.dtype, view.shape, span.segment, view.offset * item_bytes, strides)


def _is_row_major(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def tensors_in(value: Any) -> Iterator[tuple[str, TensorView]]:
    """Yield the tensors in nested dicts, lists and tuples with their names, in the order of the state.

    Names are plain, as people write them. What lies deeper than `MAX_DEPTH`, has a name much longer than `MAX_TEXT`
    or comes after `MAX_STEPS` values, is left out. A tensor that is the whole value has the empty name.
    """
    steps = 0
    stack: list[tuple[str, Iterator[tuple[Any, Any]]]] = []
    name = ""
    while True:
        if isinstance(value, TensorView):
            yield name, value
        elif isinstance(value, (dict, list, tuple)) and len(stack) < MAX_DEPTH and len(name) <= MAX_TEXT:
            stack.append((name, iter(value.items() if isinstance(value, dict) else enumerate(value))))
        item = None
        while stack and (item := next(stack[-1][1], None)) is None:
            stack.pop()
        steps += 1
        if item is None or steps > MAX_STEPS:
            return
        key, value = item
        if isinstance(value, (TensorView, dict, list, tuple)):
            name = _joined(stack[-1][0], key)


def _joined(path: str, key: str | int) -> str:
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key
