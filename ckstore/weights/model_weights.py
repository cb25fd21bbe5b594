"""The weights of a model in an open checkpoint, as tensors with their names in a model directory."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

import xxhash

from ckstore.containers.safetensors_write import TensorToWrite
from ckstore.errors import BadInput
from ckstore.model.manifest.leaf_records import itemsize
from ckstore.model.manifest.manifest import LeafRecord
from ckstore.model.manifest.tensor_cuts import bands
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.ops.read.export_cast import WeightDtype, cast_of, cast_plan, source_dtype
from ckstore.ops.read.export_files import whole_leaf
from ckstore.ops.read.export_plan import plan_export, strides_of
from ckstore.ops.read.file_state import state_of
from ckstore.ops.read.formats.export_pretrained import ABOUT, check_state_dict
from ckstore.ops.read.formats.model_files import PEFT, PRETRAINED, choose
from ckstore.ops.read.load import Select
from ckstore.ops.read.regions import RANGE_BYTES, RangeReader

if TYPE_CHECKING:
    from ckstore.tensors.dtype_cast import DtypeCast


class WeightCut(NamedTuple):
    """A range of the elements of a row-major tensor, and whether the previous version has the same elements."""

    start: int
    stop: int
    is_unchanged: bool


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor in the manifest of a checkpoint, or in the manifest of a view of one of the checkpoint's files."""

    directory: CheckpointDirectory
    leaf: LeafRecord
    tensor: TensorToWrite  # as it is published, perhaps in another dtype

    @property
    def stored(self) -> tuple[object, ...]:
        """A description of how its bytes are stored.

        Weights with equal descriptions have equal bytes. Weights with equal bytes may have different descriptions.
        """
        record = self.directory.manifest.storages[self.leaf.storage]
        pieces = tuple((extent.piece, extent.length) for extent in record.extents)
        found, dtype = self.source_dtype, self.tensor.dtype
        form = dtype if found == dtype else f"{found} to {dtype}"
        return pieces, record.tiling, self.leaf.offset, self.leaf.shape, strides_of(self.leaf), form

    @property
    def source_dtype(self) -> str:
        """Its dtype in the checkpoint, with the name that safetensors uses."""
        return source_dtype(self.leaf, self.tensor)

    @property
    def element_bytes(self) -> int:
        """Bytes of an element in the checkpoint."""
        return itemsize(self.leaf.kind, self.leaf.dtype) or 1

    @property
    def published_element_bytes(self) -> int:
        """Bytes of an element in the published weights."""
        return self.tensor.nbytes // max(1, math.prod(self.leaf.shape))

    def cast(self) -> DtypeCast | None:
        """Return its conversion to the dtype in which it is published, or None if it is not converted."""
        return cast_of(self.leaf, self.tensor)

    def cuts(self, before: Weight) -> list[WeightCut]:
        """Return consecutive ranges of its elements, and whether each range is the same in the previous version.

        A piece is unchanged if both versions have it at the same position. If the pieces are blocks of several ranks,
        the blocks with the same rows form a band, and a band is unchanged if all of its pieces are. The ranges are cut
        at the boundaries of unchanged pieces and bands, so that reading a changed range does not require reading an
        unchanged one.
        """
        count, size = math.prod(self.leaf.shape), self.element_bytes
        # Pieces and bands are compared by their places in the storage, so both tensors must begin at the same byte,
        # have the same dtype, and be row-major.
        is_comparable = (
            before.leaf.offset == self.leaf.offset
            and before.source_dtype == self.source_dtype
            and strides_of(before.leaf) is None
            and strides_of(self.leaf) is None
        )
        old = before._units() if is_comparable else {}
        found: list[WeightCut] = []
        at = 0
        for (start, stop), pieces in self._units().items() if is_comparable else ():
            if old.get((start, stop)) == pieces:
                low = min(max(-(-(start - self.leaf.offset) // size), 0), count)
                # The format allows a piece to end inside an element, whose other bytes may have changed.
                high = min((stop - self.leaf.offset) // size, count)
                if low < high:
                    found += [WeightCut(at, low, False), WeightCut(low, high, True)]
                    at = high
        found.append(WeightCut(at, count, False))
        most = RANGE_BYTES // max(size, before.element_bytes, self.published_element_bytes)
        return [
            WeightCut(start, min(start + most, cut.stop), cut.is_unchanged)
            for cut in found
            for start in range(cut.start, cut.stop, most)
        ]

    def _units(self) -> dict[tuple[int, int], tuple[str, ...]]:
        """Return the pieces of its storage, by their range of row-major bytes; the pieces of a band share a range."""
        record = self.directory.manifest.storages[self.leaf.storage]
        pieces = [extent.piece for extent in record.extents]
        if record.tiling is None:
            starts = accumulate((extent.length for extent in record.extents), initial=0)
            return {place: (piece,) for place, piece in zip(pairwise(starts), pieces, strict=True)}
        row_bytes = math.prod(record.tiling.shape[1:])
        return {
            (band.start * row_bytes, (band.start + band.rows) * row_bytes): tuple(
                f"{pieces[at]} {record.tiling.blocks[at]}" for at in band.blocks
            )
            for band in bands(record.tiling.blocks)
        }

    def parts(
        self, cuts: Iterable[WeightCut], cast: DtypeCast | None, spare: list[memoryview]
    ) -> Generator[memoryview]:
        """Yield its row-major bytes at these cuts, verified and in the dtype in which they are published.

        Each yielded part is valid until the next part is requested or the generator is closed. `spare` has buffers as
        in `RangeReader`.
        """
        # A save writes past the page cache, and filling the cache takes longer than a direct read.
        with RangeReader(self.directory, spare, past_cache=True) as reader, self.directory.reporting_damage():
            reader.begin(self.leaf.storage)
            whole: memoryview | None = None
            for cut in cuts:
                start, stop = (one * self.element_bytes for one in (cut.start, cut.stop))
                if strides_of(self.leaf) is None:
                    part = reader.read(self.leaf.offset + start, self.leaf.offset + stop, self.leaf.name)
                else:
                    # The storage has the elements in another order.
                    whole = memoryview(whole_leaf(self.directory, reader, self.leaf)) if whole is None else whole
                    part = whole[start:stop]
                yield part if cast is None else cast(part)


class ModelWeights:
    """All weights in an open checkpoint, until `close`.

    Attributes:
        directory: The checkpoint. It cannot be removed while this object is open.
        weights: Name -> weight.
        beside: Path and pieces of each other file of the model, for a checkpoint of committed files.
    """

    def __init__(
        self, directory: CheckpointDirectory, select: Select, chunk_bytes: int, dtype: WeightDtype | None
    ) -> None:
        """Collect the weights for publication in `dtype`. From now on, this object owns the open directory.

        Raises:
            BadInput: The checkpoint has no state dict of a model, or a tensor that cannot be converted.
        """
        self.directory = directory
        self.weights: dict[str, Weight] = {}
        self.beside: tuple[object, ...] = ()
        self._views = ExitStack()
        self._views.enter_context(directory)
        try:
            for view, part in self._states(select, chunk_bytes):
                plan = plan_export(view.manifest, select=part, strip_prefix=part is not None and not callable(part))
                check_state_dict(plan, PRETRAINED)
                plan = cast_plan(plan, dtype)
                found = zip(plan.leaves, plan.tensors, strict=True)
                self.weights |= {tensor.name: Weight(view, leaf, tensor) for leaf, tensor in found}
        except BaseException:
            self.close()
            raise

    def _states(self, select: Select, chunk_bytes: int) -> Iterator[tuple[CheckpointDirectory, Select]]:
        manifest = self.directory.manifest
        if not manifest.files:
            yield self.directory, select
            return
        chosen = choose(manifest, PRETRAINED, PEFT)
        self.beside = tuple(
            (file.path, tuple(extent.piece for at in file.storages for extent in manifest.storages[at].extents))
            for file in chosen.beside
            if file.path not in ABOUT
        )
        if sum(file.path.endswith(".bin") for file in chosen.weights) > 1:
            msg = f"{manifest.name} has its weights in several .bin files, to which engines cannot apply differences"
            raise BadInput(msg, hint="save the weights as safetensors")
        for file in chosen.weights:
            if not file.path.endswith(".index.json"):
                yield (
                    self._views.enter_context(
                        state_of(self.directory, file.path, chunk_bytes=chunk_bytes, can_select=False)
                    ),
                    None,
                )

    @property
    def content(self) -> str:
        """Digest of the names and the stored bytes of the weights. Equal digests mean equal weights."""
        stored = sorted((name, weight.stored) for name, weight in self.weights.items())
        return xxhash.xxh3_128_hexdigest(repr(stored).encode())

    def difference_in_form(self, other: ModelWeights) -> str:
        """Return a sentence if the forms of the weights or other files of the model differ, otherwise ""."""
        forms: Sequence[dict[str, TensorToWrite]] = [
            {name: weight.tensor for name, weight in one.weights.items()} for one in (self, other)
        ]
        if forms[0] != forms[1]:
            return "the names, dtypes or shapes of the weights changed"
        return "other files of the model changed" if self.beside != other.beside else ""

    def close(self) -> None:
        """Close the checkpoint."""
        self._views.close()
