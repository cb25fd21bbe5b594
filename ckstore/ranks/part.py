"""A part: what one rank stages of a checkpoint. It lies in a staging directory of its own, with a manifest of its own.

The rank holds that directory's lock until the parts were joined (`ranks/join`) or given up. The manifest of a part is
checked as every manifest is; what only the join needs is in its metadata.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ckstore.errors import CannotStore
from ckstore.model.manifest.describe import encode_metadata
from ckstore.model.manifest.dtypes import TORCH_ITEMSIZE
from ckstore.model.manifest.manifest import (
    Description,
    LeafRecord,
    StateTexts,
    StorageRecord,
    render,
)
from ckstore.model.manifest.tiles import Block, block_of, cut_block, cut_flat, flat_start, in_bytes
from ckstore.model.names import join_index
from ckstore.ops.config_file import save_checks_or_all
from ckstore.ops.save.admission import check_space
from ckstore.ops.save.packing import state_changed
from ckstore.ops.save.recheck import Recheck
from ckstore.ops.save.save import draft_of
from ckstore.ops.save.write import store_sources
from ckstore.tensors.capture import Captured, capture

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ckstore.model.manifest.captured import ByteSource
    from ckstore.model.reports.progress import Progress
    from ckstore.objects.staging import Staging
    from ckstore.ops.context import Context


@dataclass(frozen=True, slots=True)
class Who:
    """A rank, and what it takes part in.

    Attributes:
        run, step: What is saved.
        rank, world_size: Its number, and how many there are.
        attempt: Names the try; the same on all ranks.
        host, pid: Where it runs.
    """

    run: str
    step: int
    rank: int
    world_size: int
    attempt: str
    host: str
    pid: int

    @classmethod
    def here(cls, run: str, step: int, rank: int, *, world_size: int = 0, attempt: str = "") -> Who:
        """Return this process as a rank."""
        return cls(run, step, rank, world_size, attempt, socket.gethostname(), os.getpid())

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.host}, process {self.pid})"


@dataclass(frozen=True, slots=True)
class Shard:
    """A tensor, or the part of it that this rank has.

    Attributes:
        name: Of the whole tensor.
        tensor: What this rank has.
        shape: Of the whole tensor.
        offsets: Where the part begins in it.
    """

    name: str
    tensor: Any
    shape: tuple[int, ...]
    offsets: tuple[int, ...]


def pieces_of(
    shape: Sequence[int], offsets: Sequence[int], sizes: Sequence[int], item_bytes: int, chunk_bytes: int
) -> list[Block]:
    """Return the pieces of a shard, in the order of its bytes; where it lies in one row, they have one dimension.

    Both who stages a part and who joins the parts ask this.
    """
    whole, block = in_bytes(shape, item_bytes), block_of(offsets, sizes, item_bytes)
    start = flat_start(whole, block)
    if start is None:
        return list(cut_block(whole, block, chunk_bytes))
    return [Block((low,), (high - low,)) for low, high in cut_flat(start, start + block.nbytes, chunk_bytes)]


@dataclass(frozen=True, slots=True)
class Content:
    """What a rank saves.

    Attributes:
        captured: Its values.
        about: What the join is to know of them.
        cuts: Of how many sources each storage is made; None: of one.
        progress: Called with the bytes of the part that are stored and those to be stored.
    """

    captured: Captured
    about: dict[str, Any]
    cuts: Sequence[int] | None = None
    progress: Progress | None = None


def content_of(shards: Sequence[Shard], values: dict[str, object], chunk_bytes: int) -> Content:
    """Return shards and plain values as what a rank saves.

    Raises:
        CannotStore: A value is of a type that the format does not hold; it is named.
    """
    captured, cuts = _captured(shards, values, chunk_bytes)
    described = [[shard.name, list(shard.shape), list(shard.offsets)] for shard in shards]
    return Content(captured, {"shards": described, "values": list(values)}, cuts)


def stage_part(context: Context, staging: Staging, who: Who, content: Content) -> None:
    """Put what a rank saves into `staging` and seal it."""
    captured, cuts = content.captured, content.cuts
    check_space(context, staging, captured.sources)
    nbytes = sum(source.nbytes for source in captured.sources)
    recheck = Recheck(context, staging, who.run, nbytes, save_checks_or_all(context.layout).recheck_share)
    stored = store_sources(
        context, staging, captured.sources, recheck, compare=bool(captured.files), progress=content.progress
    )
    changed = captured.first_changed()
    if changed is not None:
        raise state_changed(changed)
    if cuts is not None:
        stored = replace(stored, storages=tuple(_joined(stored.storages, cuts)))
    texts = StateTexts.of(captured.leaves, captured.state)
    about = {
        **content.about,
        "rank": who.rank,
        "world_size": who.world_size,
        "attempt": who.attempt,
        "host": who.host,
        "pid": who.pid,
        "written": list(staging.written),
        "warnings": recheck.warnings(),
    }
    draft = draft_of(context, captured, stored, texts, who.run, Description(metadata=encode_metadata(about)))
    manifest = replace(draft, step=who.step, sequence=1)
    staging.seal(render(manifest, context.algorithm, texts)[1])


def _joined(storages: Sequence[StorageRecord], cuts: Sequence[int]) -> Iterator[StorageRecord]:
    at = 0
    for count in cuts:
        some = storages[at : at + count]
        yield StorageRecord(sum(one.nbytes for one in some), tuple(extent for one in some for extent in one.extents))
        at += count


def _captured(shards: Sequence[Shard], values: dict[str, object], chunk_bytes: int) -> tuple[Captured, list[int]]:
    plain = _capture_values(values)
    leaves, sources = list(plain.leaves), list(plain.sources)
    cuts = [1] * len(sources)
    nodes = []
    for i, shard in enumerate(shards):
        leaf, pieces = _place(shard, join_index("shards", i), len(cuts), chunk_bytes)
        nodes.append(["leaf", len(leaves)])
        leaves.append(leaf)
        sources += pieces
        cuts.append(len(pieces))
    state = ["dict", [*plain.state[1], ["shards", ["list", nodes]]]]
    return replace(plain, state=state, leaves=tuple(leaves), sources=tuple(sources)), cuts


def _capture_values(values: dict[str, object]) -> Captured:
    try:
        return capture({"values": list(values.values())})
    except CannotStore as error:
        number, _, rest = error.path.removeprefix("values[").partition("]")
        if number.isdigit() and int(number) < len(values):
            why = str(error.message).removeprefix(f"{error.path}: ")
            raise CannotStore(f"{list(values)[int(number)]}{rest}", why, hint=error.hint) from error
        raise


def _place(shard: Shard, name: str, storage: int, chunk_bytes: int) -> tuple[LeafRecord, list[ByteSource]]:
    from ckstore.tensors import torch_leaves

    tensor = shard.tensor.detach()
    admitted = torch_leaves.Admission().admit(tensor if tensor.is_contiguous() else tensor.contiguous(), shard.name)
    torch_leaves.wait_for_devices([admitted])
    source, (leaf,) = torch_leaves.place([admitted], storage)
    source.name = shard.name
    if 0 in leaf.shape:
        return leaf._replace(name=name), []
    pieces = pieces_of(shard.shape, shard.offsets, leaf.shape, TORCH_ITEMSIZE[leaf.dtype], chunk_bytes)
    sources: list[ByteSource] = []
    at = 0
    for piece in pieces:
        sources.append(RangeSource(source, at, piece.nbytes))
        at += piece.nbytes
    return leaf._replace(name=name), sources


class RangeSource:
    """Some of the bytes of a source."""

    __slots__ = ("_source", "_start", "name", "nbytes")

    def __init__(self, source: ByteSource, start: int, nbytes: int) -> None:
        self.name = source.name
        self.nbytes = nbytes
        self._source = source
        self._start = start

    def view(self, start: int, stop: int) -> memoryview | None:
        """Return these bytes, uncopied; None as the source."""
        return self._source.view(self._start + start, self._start + stop)

    def read_into(self, start: int, stop: int, out: memoryview) -> None:
        """Copy these bytes into `out`."""
        self._source.read_into(self._start + start, self._start + stop, out)

    def changed(self) -> bool:
        """Whether the source was seen to be modified."""
        return self._source.changed()
