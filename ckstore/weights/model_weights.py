"""The weights of a model in an open checkpoint: tensors by the names that a model directory gives them."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import xxhash

from ckstore.containers.safetensors_write import TensorToWrite
from ckstore.errors import BadInput
from ckstore.model.manifest.manifest import LeafRecord
from ckstore.model.manifest.tensor_cuts import bands
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.ops.read.export_files import whole_leaf
from ckstore.ops.read.export_plan import plan_export, strides_of
from ckstore.ops.read.file_state import state_of
from ckstore.ops.read.formats.export_pretrained import ABOUT, check_state_dict
from ckstore.ops.read.formats.model_files import PEFT, PRETRAINED, choose
from ckstore.ops.read.load import Select
from ckstore.ops.read.regions import RANGE_BYTES, RangeReader


class WeightCut(NamedTuple):
    """A range of the row-major bytes of a tensor, and whether the previous version has the same bytes there."""

    start: int
    stop: int
    is_unchanged: bool


@dataclass(frozen=True, slots=True)
class Weight:
    """One tensor: its record in the manifest of a checkpoint, or of a view of one of its files."""

    directory: CheckpointDirectory
    leaf: LeafRecord
    tensor: TensorToWrite

    @property
    def stored(self) -> tuple[object, ...]:
        """Equal for two weights with the same bytes; the bytes are not read. Unequal ones may have the same bytes."""
        record = self.directory.manifest.storages[self.leaf.storage]
        pieces = tuple((extent.piece, extent.length) for extent in record.extents)
        return pieces, record.tiling, self.leaf.offset, self.leaf.shape, strides_of(self.leaf), self.tensor.dtype

    def cuts(self, before: Weight) -> list[WeightCut]:
        """Return how its row-major bytes are compared with those of the previous version, in ascending order.

        A piece that both have at the same place, or a band of such pieces of several ranks, is unchanged. Cuts are at
        the boundaries of unchanged pieces, so that no changed part makes a reader read an unchanged piece.
        """
        nbytes = self.tensor.nbytes
        if strides_of(self.leaf) is not None or strides_of(before.leaf) is not None:
            return [WeightCut(0, nbytes, False)] if nbytes else []
        # Units are compared by their places in the storage, which say nothing of another part of it.
        old, new = before._units() if before.leaf.offset == self.leaf.offset else {}, self._units()
        found: list[WeightCut] = []
        at = 0
        for (start, stop), pieces in new.items():
            if old.get((start, stop)) == pieces:
                low, high = (min(max(one - self.leaf.offset, 0), nbytes) for one in (start, stop))
                found += [WeightCut(at, low, False), WeightCut(low, high, True)]
                at = high
        found.append(WeightCut(at, nbytes, False))
        return [
            WeightCut(start, min(start + RANGE_BYTES, cut.stop), cut.is_unchanged)
            for cut in found
            for start in range(cut.start, cut.stop, RANGE_BYTES)
        ]

    def _units(self) -> dict[tuple[int, int], tuple[str, ...]]:
        """Return the pieces of its storage that are read together, by their range of row-major bytes."""
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

    def parts(self, cuts: Iterable[WeightCut]) -> Generator[memoryview]:
        """Yield its row-major bytes at these cuts, checked. A part is valid until the next one is requested."""
        with RangeReader(self.directory) as reader, self.directory.reporting_damage():
            reader.begin(self.leaf.storage)
            for cut in cuts:
                if strides_of(self.leaf) is not None:
                    yield memoryview(whole_leaf(self.directory, reader, self.leaf))
                else:
                    yield reader.read(self.leaf.offset + cut.start, self.leaf.offset + cut.stop, self.leaf.name)


class ModelWeights:
    """All weights in an open checkpoint, until `close`.

    Attributes:
        directory: The checkpoint. It cannot be removed while this is open.
        weights: Name -> weight.
        beside: Path and pieces of each other file of the model, for a checkpoint of committed files.
    """

    def __init__(self, directory: CheckpointDirectory, select: Select, chunk_bytes: int) -> None:
        """Collect the weights. From now on this object owns the open directory.

        Raises:
            BadInput: The checkpoint has no state dict of a model.
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
        """Digest of the names and the stored bytes of the weights; equal digests mean equal weights."""
        stored = sorted((name, weight.stored) for name, weight in self.weights.items())
        return xxhash.xxh3_128_hexdigest(repr(stored).encode())

    def difference_in_form(self, other: ModelWeights) -> str:
        """Return what differs besides the bytes of the weights: their forms, or other files of the model."""
        forms: Sequence[dict[str, TensorToWrite]] = [
            {name: weight.tensor for name, weight in one.weights.items()} for one in (self, other)
        ]
        if forms[0] != forms[1]:
            return "the names, dtypes or shapes of the weights changed"
        return "other files of the model changed" if self.beside != other.beside else ""

    def close(self) -> None:
        """Close the checkpoint."""
        self._views.close()
