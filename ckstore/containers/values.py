"""What the modules of this room hand to each other; no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn, Protocol

MAX_TENSORS = 1_000_000
"""Entries of a header, records of an archive, names of tensors; each takes some hundred bytes of memory."""
MAX_DIMENSIONS = 64
"""What manifests end at: elements of a tensor, and each size or stride of it."""


class Refused(ValueError):
    """The file is not what it looked like. Never leaves this room."""


def refuse(part: str, wanted: str, found: object) -> NoReturn:
    """Raise the error for content that is not as its format says."""
    raise Refused(f"{part}: wanted {wanted}, found {found}")


class RandomAccess(Protocol):
    """A file that does not change while it is read."""

    @property
    def nbytes(self) -> int:
        """Its length."""

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes; raise if they are not there."""


@dataclass(frozen=True, slots=True)
class FileTensor:
    """A tensor in a file.

    Attributes:
        name: Its name in the container; in a nest of dicts and lists ``model.layers.0.weight``, ``state[0].exp_avg``.
        dtype: A torch dtype of `model/manifest/leaf_records`.
        shape: Sizes, outermost first.
        segment: Index into `Cut.segments`; any, if there are no elements.
        offset: Bytes from the start of the segment to the first element.
        strides: Elements, one for each dimension; None: row-major contiguous.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    segment: int
    offset: int = 0
    strides: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a file is cut, and which tensors lie there.

    Attributes:
        kind: ``safetensors``, ``torch-zip``, ``torch-legacy``, ``zip``, or empty for opaque bytes.
        segments: ``(start, stop)`` of each, in order: not empty, without gap or overlap, from the first byte to the
            last. Those of tensors and records hold nothing else; the bytes between them are segments as well.
        tensors: The tensors that have a name, no name twice.
        warnings: One sentence each: why a file that looked like a container is opaque, or tensors have no names.
    """

    kind: str
    segments: tuple[tuple[int, int], ...]
    tensors: tuple[FileTensor, ...]
    warnings: tuple[str, ...]
