"""Find similar bytes for each blob of a checkpoint, in a newer checkpoint or in the checkpoint itself.

Tensors of two checkpoints are matched by their names. In the checkpoint itself, a half-precision copy is matched with
its float32 tensor by the values. A wrong match costs space, but never makes a result wrong.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from math import prod
from typing import NamedTuple

from ckstore.codecs.casts import Prediction, base_bytes, predicted
from ckstore.codecs.tiles import WIDTHS
from ckstore.errors import BadInput
from ckstore.model.manifest.leaf_records import itemsize
from ckstore.model.manifest.manifest import LeafRecord, Manifest

ReadRange = Callable[[str, int, int], bytes | bytearray | memoryview]


_SAMPLE = 256
_COPIES: Mapping[str, Prediction] = {"bfloat16": "bf16", "float16": "fp16"}


class Segment(NamedTuple):
    """A range of bytes of a blob, and the range of another blob, the base, that predicts these bytes."""

    nbytes: int
    width: int  # size of an element in bytes
    prediction: Prediction = "same"  # how the bytes of the base predict the bytes of the blob
    base: str = ""  # digest of the plain base; empty if there is no base
    offset: int = 0  # start of the range in the base, in bytes


class _Place(NamedTuple):
    offset: int
    nbytes: int
    storage: int
    storage_offset: int


class StorageLayout:
    """The names of a manifest's storages, and the places of these storages in the blobs."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.leaves: dict[int, LeafRecord] = {}
        self.by_name: dict[object, int] = {}
        self._name_of: dict[int, object] = {}
        for leaf in manifest.leaves:
            if leaf.storage not in self.leaves:
                self.leaves[leaf.storage] = leaf
                self._call(leaf.storage, (leaf.name, leaf.kind, leaf.dtype, leaf.offset))
        for file in manifest.files:
            for i, storage in enumerate(file.storages):
                if storage not in self._name_of:
                    self._call(storage, (file.path, i))
        self._starts: dict[int, list[int]] = {}

    def _call(self, storage: int, name: object) -> None:
        record = self.manifest.storages[storage]
        # The key includes the size and the tiling. Equal offsets refer to the same elements only if both are equal.
        key = (name, record.nbytes, record.tiling)
        self._name_of[storage] = key
        self.by_name.setdefault(key, storage)

    def like(self, other: StorageLayout, storage: int) -> int | None:
        """Return the storage of this manifest with the same name as a storage of another manifest, or None."""
        name = other._name_of.get(storage)
        return None if name is None else self.by_name.get(name)

    def places(self) -> dict[int, list[_Place]]:
        """Return the places of storages in each blob, sorted by offset, with only one place for each offset."""
        found: dict[int, dict[int, _Place]] = defaultdict(dict)
        for i, storage in enumerate(self.manifest.storages):
            at = 0
            for extent in storage.extents:
                found[extent.blob].setdefault(extent.offset, _Place(extent.offset, extent.length, i, at))
                at += extent.length
        return {blob: [by_offset[offset] for offset in sorted(by_offset)] for blob, by_offset in found.items()}

    def within(self, storage: int, start: int, stop: int) -> Iterator[tuple[int, str, int]]:
        """Yield the length, the blob and the offset of each part of the bytes `start` to `stop` of a storage."""
        extents = self.manifest.storages[storage].extents
        if storage not in self._starts:
            self._starts[storage] = list(accumulate((extent.length for extent in extents), initial=0))
        for extent, at in zip(extents, self._starts[storage], strict=False):
            low, high = max(start, at), min(stop, at + extent.length)
            if low < high:
                yield high - low, self.manifest.blobs[extent.blob].digest, extent.offset + low - at

    def is_one_leaf(self, storage: int) -> bool:
        """Whether a storage holds exactly one torch tensor, which is contiguous."""
        leaf, record = self.leaves.get(storage), self.manifest.storages[storage]
        if leaf is None or leaf.kind != "torch" or leaf.strides is not None or record.tiling is not None:
            return False
        return not leaf.offset and prod(leaf.shape) * (itemsize(leaf.kind, leaf.dtype) or 0) == record.nbytes

    def width(self, storage: int) -> int:
        """Return the size of the elements of a storage, or 1 if it is not known."""
        leaf = self.leaves.get(storage)
        if leaf is None or leaf.kind not in ("torch", "numpy", "numbers"):
            return 1
        width = itemsize(leaf.kind, leaf.dtype) or 1
        if leaf.dtype.startswith(("complex", "bcomplex")) or leaf.dtype[1:2] == "c":
            width //= 2
        return width if width in WIDTHS else 1


class Matcher:
    """Finds the bases of the blobs of one checkpoint.

    Args:
        own: The checkpoint.
        base: The newer checkpoint against which `own` is encoded.
        read: Returns bytes of a blob of the checkpoint, given the digest, the offset and the length.
        may_be_base: Returns whether the first blob may be a base of the second.
    """

    def __init__(
        self, own: StorageLayout, base: StorageLayout, read: ReadRange, may_be_base: Callable[[str, str], bool]
    ) -> None:
        self._may_be_base = may_be_base
        self._own = own
        self._base = base
        self._places = own.places()
        self._masters = self._pairs(read)
        self._asked: dict[tuple[str, str], bool] = {}

    def is_copy(self, blob: int) -> bool:
        """Whether a part of a blob is a half-precision copy, whose float32 tensor must be settled first."""
        return any(place.storage in self._masters for place in self._places.get(blob, ()))

    def segments(self, blob: int, *, alone: bool) -> list[Segment]:
        """Return the segments that cover a blob, in order; with `alone`, no segment has a base."""
        nbytes = self._own.manifest.blobs[blob].nbytes
        found: list[Segment] = []
        at = 0
        for place in self._places.get(blob, ()):
            if place.offset < at:  # it overlaps the previous place
                continue
            if place.offset > at:
                found.append(Segment(place.offset - at, 1))
            found += self._of_place(place, self._own.manifest.blobs[blob].digest, alone=alone)
            at = place.offset + place.nbytes
        if at < nbytes:
            found.append(Segment(nbytes - at, 1))
        return found

    def _of_place(self, place: _Place, blob: str, *, alone: bool) -> list[Segment]:
        width = self._own.width(place.storage)
        width = width if place.nbytes % width == 0 and place.storage_offset % width == 0 else 1
        like: list[tuple[StorageLayout, int | None, Prediction]] = []
        if width == 2 and place.storage in self._masters:
            master = self._masters[place.storage]
            like.append((self._own, master, _COPIES[self._own.leaves[place.storage].dtype]))
        like.append((self._base, self._base.like(self._own, place.storage), "same"))
        for layout, storage, prediction in () if alone else like:
            if storage is None:
                continue
            ratio = base_bytes(prediction, 1)
            start = ratio * place.storage_offset
            parts = list(layout.within(storage, start, start + ratio * place.nbytes))
            # A blob must not be its own base, and no part in the base may end inside an element.
            if all(n % (ratio * width) == 0 and self._usable(digest, blob) for n, digest, _ in parts):
                return [Segment(n // ratio, width, prediction, digest, offset) for n, digest, offset in parts]
        return [Segment(place.nbytes, width)]

    def _usable(self, digest: str, blob: str) -> bool:
        """Whether the first blob may be a base of the second, computed once for each pair."""
        if (digest, blob) not in self._asked:
            self._asked[digest, blob] = digest != blob and self._may_be_base(digest, blob)
        return self._asked[digest, blob]

    def _pairs(self, read: ReadRange) -> dict[int, int]:
        """Map each half-precision copy to its float32 storage, by comparing the first values of both."""
        own = self._own
        copies = [i for i, leaf in own.leaves.items() if leaf.dtype in _COPIES and own.is_one_leaf(i)]
        if not copies:
            return {}
        masters: dict[tuple[tuple[int, ...], Prediction, bytes], int] = {}
        shapes = {own.leaves[i].shape for i in copies}
        for i, leaf in own.leaves.items():
            if leaf.dtype == "float32" and leaf.shape in shapes and own.is_one_leaf(i):
                sample = self._sample(i, 4, read)
                for prediction in _COPIES.values():
                    masters.setdefault((leaf.shape, prediction, bytes(predicted(prediction, sample))), i)
        pairs = {}
        for i in copies:
            leaf, sample = own.leaves[i], self._sample(i, 2, read)
            master = masters.get((leaf.shape, _COPIES[leaf.dtype], sample))
            if master is not None and any(sample):  # a sample of zeros matches every tensor that begins with zeros
                pairs[i] = master
        return pairs

    def _sample(self, storage: int, width: int, read: ReadRange) -> bytes:
        found = next(self._own.within(storage, 0, _SAMPLE * width), None)
        if found is None:
            return b""
        nbytes, digest, offset = found
        # Return only whole elements, since a forged piece may end in the middle of an element.
        return bytes(read(digest, offset, nbytes - nbytes % width))


def check_covers(segments: list[Segment], nbytes: int) -> None:
    """Raise an error if segments do not cover a whole blob, so that a bug here cannot create a damaged file."""
    total = sum(segment.nbytes for segment in segments)
    if total != nbytes:
        raise BadInput(f"the parts of a blob have {total} bytes, wanted {nbytes}")
