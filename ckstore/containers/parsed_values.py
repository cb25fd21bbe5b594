"""Values that the modules of this package exchange; no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn, Protocol

STATE_SUFFIXES = (".bin", ".ckpt", ".pt", ".pth", ".safetensors")
"""The usual suffixes of files with a state. The first bytes of a file decide its format."""
MAX_TENSORS = 1_000_000
"""The maximum number of header entries, archive records or tensor names. Each takes some hundred bytes of memory."""
MAX_DIMENSIONS = 64  # what manifests end at: elements of a tensor, and each size or stride of it


class Refused(ValueError):
    """The file does not follow its apparent format. Never leaves this package."""


def refuse(part: str, wanted: str, found: object) -> NoReturn:
    """Raise the error for content that does not follow its format."""
    raise Refused(f"{part}: wanted {wanted}, found {found}")


class RandomAccess(Protocol):
    """A file that does not change while it is read."""

    @property
    def nbytes(self) -> int:
        """The length in bytes."""

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes; raise if the file is shorter."""


@dataclass(frozen=True, slots=True)
class FileTensor:
    """A tensor in a file."""

    name: str  # its name in the container; in a nest of dicts and lists ``model.layers.0.weight``, ``state[0].exp_avg``
    dtype: str  # A torch dtype of `model/manifest/leaf_records`
    shape: tuple[int, ...]  # sizes, outermost first
    segment: int  # index into `Cut.segments`; any, if there are no elements
    offset: int = 0  # bytes from the start of the segment to the first element
    strides: tuple[int, ...] | None = None  # elements, one for each dimension; None: row-major contiguous


@dataclass(frozen=True, slots=True)
class Cut:
    """The boundaries in a file, and its tensors."""

    kind: str  # ``safetensors``, ``torch-zip``, ``torch-legacy``, ``zip``, or empty for opaque bytes
    # ``(start, stop)`` of each, in order: not empty, without gap or overlap, from the first byte to the last. Those of
    # tensors and records hold nothing else; the bytes between them are segments as well.
    segments: tuple[tuple[int, int], ...]
    tensors: tuple[FileTensor, ...]  # the tensors that have a name, no name twice
    # One sentence each: why a file that looked like a container is opaque, or tensors have no names.
    warnings: tuple[str, ...]
