"""Values that the modules of this package exchange."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn, Protocol

STATE_SUFFIXES = (".bin", ".ckpt", ".pt", ".pth", ".safetensors")
"""The usual suffixes of files with a state. The first bytes of a file decide its format."""
MAX_TENSORS = 1_000_000
"""The maximum number of header entries, archive records or tensor names. Each takes a few hundred bytes of memory."""
MAX_DIMENSIONS = 64
"""The maximum number of dimensions of a tensor."""


class Refused(ValueError):
    """The file does not follow its apparent format. `cut` catches this error, and returns the file as opaque bytes."""


def refuse(part: str, wanted: str, found: object) -> NoReturn:
    """Raise the error for content that does not follow its format."""
    raise Refused(f"{part}: wanted {wanted}, found {found}")


class RandomAccess(Protocol):
    """A file that does not change while it is read."""

    @property
    def nbytes(self) -> int:
        """The length in bytes."""

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes. Raise if the file is shorter."""


@dataclass(frozen=True, slots=True)
class FileTensor:
    """A tensor in a file."""

    # Its name in the container. In nested dicts and lists, it is a path such as ``state[0].exp_avg``.
    name: str
    dtype: str  # a torch dtype of `model/manifest/leaf_records`
    shape: tuple[int, ...]  # sizes, outermost first
    segment: int  # index into `Cut.segments`; without meaning if the tensor has no elements
    offset: int = 0  # bytes from the start of the segment to the first element
    strides: tuple[int, ...] | None = None  # in elements, one for each dimension; None if row-major contiguous


@dataclass(frozen=True, slots=True)
class Cut:
    """The boundaries in a file, and its tensors."""

    kind: str  # ``safetensors``, ``torch-zip``, ``torch-legacy``, ``zip``, or empty for opaque bytes
    # ``(start, stop)`` of each segment, in order. Segments are not empty, and cover the file without gaps or overlaps.
    # Each tensor or record is a separate segment, and so are the bytes between two tensors or records.
    segments: tuple[tuple[int, int], ...]
    tensors: tuple[FileTensor, ...]  # the tensors with a name; each name occurs once
    # One sentence for each reason why a file that looked like a container is opaque, or why tensors have no names.
    warnings: tuple[str, ...]
