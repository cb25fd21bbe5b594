"""The weights of a model in an open checkpoint: tensors by the names that a model directory gives them."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import xxhash

from ckstore.containers.safetensors_write import TensorToWrite
from ckstore.errors import BadInput
from ckstore.model.manifest.manifest import LeafRecord
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.ops.read.export_files import whole_leaf
from ckstore.ops.read.export_plan import plan_export, strides_of
from ckstore.ops.read.file_state import state_of
from ckstore.ops.read.formats.export_pretrained import ABOUT, check_state_dict
from ckstore.ops.read.formats.model_files import PEFT, PRETRAINED, choose
from ckstore.ops.read.load import Select
from ckstore.ops.read.regions import RangeReader


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

    def parts(self, *, whole: bool) -> Generator[memoryview]:
        """Yield its row-major bytes, checked, in parts that depend on its size only, or as one part if `whole`."""
        if not self.tensor.nbytes:
            return
        with RangeReader(self.directory) as reader, self.directory.reporting_damage():
            if whole:
                yield memoryview(whole_leaf(self.directory, reader, self.leaf))
                return
            reader.begin(self.leaf.storage)
            yield from reader.parts(self.leaf.offset, self.leaf.offset + self.tensor.nbytes, self.leaf.name)

    @property
    def is_row_major(self) -> bool:
        """Whether its bytes can be read in parts."""
        return strides_of(self.leaf) is None


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
