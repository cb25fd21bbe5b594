"""The differences between two checkpoints, as values and as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from ckstore.model.brief import brief
from ckstore.model.manifest.committed_files import FileChange
from ckstore.model.sizes import size_text
from ckstore.model.words import in_lines, named, number_text, printable

PlainKind = Literal["added", "removed", "changed"]


@brief()
@dataclass(frozen=True, slots=True)
class DiffLeaf:
    """One tensor, array, long string or byte string.

    Attributes:
        name: Path in the state.
        kind: The kind of leaf in the manifest, such as ``torch``, ``numpy``, ``bytes`` or ``str``.
        dtype, shape: Type of the elements, and sizes. Empty for bytes and strings.
        nbytes: Total size of the elements, in bytes.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int

    def __str__(self) -> str:
        return f"{named(self.name)}: {type_text(self.kind, self.dtype, self.shape)}, {size_text(self.nbytes)}"


@brief()
@dataclass(frozen=True, slots=True)
class Difference:
    """The largest differences between the values of a tensor.

    Attributes:
        largest_absolute: Greatest ``|after - before|``. Infinite if only one of two elements is a number.
        largest_relative: Greatest ``|after - before| / max(|after|, |before|)``, from 0 to 2.
    """

    largest_absolute: float
    largest_relative: float

    def __str__(self) -> str:
        absolute, relative = number_text(self.largest_absolute), number_text(self.largest_relative)
        return f"at most {absolute} apart ({relative} relative)"


@brief()
@dataclass(frozen=True, slots=True)
class LeafChange:
    """One tensor that differs.

    Attributes:
        before, after: The tensor in the first and in the second checkpoint.
        changed_bytes: Bytes of the tensor in pieces that differ, at most its size. A small tensor is one piece. A large
            tensor is cut into pieces of `chunk_bytes`.
        difference: Differences of the values. None if they were not requested, or if the dtypes or shapes prevent a
            comparison.
    """

    before: DiffLeaf
    after: DiffLeaf
    changed_bytes: int
    difference: Difference | None = None

    @property
    def name(self) -> str:
        """Path in the state."""
        return self.after.name

    def __str__(self) -> str:
        size = f"{types_text(self)}, {size_text(self.after.nbytes)}"
        apart = f", {self.difference}" if self.difference else ""
        return f"{named(self.name)}: {size}, {size_text(self.changed_bytes)} changed{apart}"


@brief()
@dataclass(frozen=True, slots=True)
class PlainChange:
    """A value that is not a tensor, such as a learning rate, or the type of a container.

    Attributes:
        name: Path in the state.
        kind: ``added`` (only in the second checkpoint), ``removed`` (only in the first) or ``changed``.
        before, after: The values, or None for a missing value. A container is shown as ``list``, ``dict`` …
    """

    name: str
    kind: PlainKind
    before: object
    after: object

    def __str__(self) -> str:
        values = {"added": [self.after], "removed": [self.before]}.get(self.kind, [self.before, self.after])
        return printable(f"{named(self.name)} = {' -> '.join(map(repr, values))}")


@brief()
@dataclass(frozen=True, slots=True)
class Diff:
    """The differences from checkpoint `before` to checkpoint `after`.

    Attributes:
        before, after: Names of the checkpoints, ``RUN@STEP``.
        added, removed: Tensors that only `after` has, and tensors that only `before` has.
        changed: Tensors that differ.
        plain: Other values that differ.
        files: Committed files that differ.
        unchanged_count: Number of tensors that are the same in both.
        same_content: Whether both have bit-identical content in the same structure and order.
    """

    before: str
    after: str
    added: tuple[DiffLeaf, ...] = ()
    removed: tuple[DiffLeaf, ...] = ()
    changed: tuple[LeafChange, ...] = ()
    plain: tuple[PlainChange, ...] = ()
    files: tuple[FileChange, ...] = ()
    unchanged_count: int = 0
    same_content: bool = field(default=False)

    @property
    def changed_bytes(self) -> int:
        """Bytes of the changed tensors in pieces that differ."""
        return sum(change.changed_bytes for change in self.changed)

    def __bool__(self) -> bool:
        """Return whether any difference is listed."""
        return bool(self.added or self.removed or self.changed or self.plain or self.files)

    def __str__(self) -> str:
        return in_lines(details(self), [summary(self)])


def details(found: Diff) -> Iterator[str]:
    """Yield a line for each difference of files, tensors and other values, in this order."""
    yield from map(with_kind, found.files)
    for word, leaves in (("added", found.added), ("removed", found.removed), ("changed", found.changed)):
        yield from (f"{word:9}{leaf}" for leaf in leaves)
    yield from map(with_kind, found.plain)


def with_kind(change: FileChange | PlainChange) -> str:
    """Return the kind and the text of a change."""
    return f"{change.kind:9}{change}"


def type_text(kind: str, dtype: str, shape: tuple[int, ...]) -> str:
    """Return dtype and shape, such as ``float32 [1000, 8]``, or the kind for bytes and strings without a dtype."""
    return printable(f"{dtype} [{', '.join(map(str, shape))}]" if dtype else kind)


def types_text(change: LeafChange) -> str:
    """Return the type, or both types if it changed."""
    old, new = (type_text(leaf.kind, leaf.dtype, leaf.shape) for leaf in (change.before, change.after))
    return new if old == new else f"{old} -> {new}"


def summary(found: Diff) -> str:
    """Return a sentence on the number of files and tensors that differ."""
    pair = f"{found.before} and {found.after}"
    if found.same_content:
        return printable(f"{pair} have the same content")
    if not found:
        return printable(f"{pair} have the same values in another order or with other strides")
    tensors = _counts(len(found.changed), len(found.added), len(found.removed))
    same = f"{found.unchanged_count} unchanged"
    counts = f"{tensors}, {same}" if tensors else f"all {same}" if found.unchanged_count else "none"
    size = f", {size_text(found.changed_bytes)} changed" if found.changed else ""
    kinds = [file.kind for file in found.files]
    files = f"files: {_counts(kinds.count('changed'), kinds.count('added'), kinds.count('removed'))}; " if kinds else ""
    kinds = [change.kind for change in found.plain]
    plain = _counts(kinds.count("changed"), kinds.count("added"), kinds.count("removed"))
    others = f"; other values: {plain}" if kinds else ""
    return printable(f"from {found.before} to {found.after}: {files}tensors: {counts}{size}{others}")


def _counts(changed: int, added: int, removed: int) -> str:
    counts = [(changed, "changed"), (added, "added"), (removed, "removed")]
    return ", ".join(f"{count} {word}" for count, word in counts if count)
