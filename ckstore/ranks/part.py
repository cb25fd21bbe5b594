"""Stage the part of a rank, which is its data for a checkpoint, in a separate staging directory with its own manifest.

The rank holds the lock of this directory until the parts are merged (`ranks/part_merger`) or discarded. The manifest of
a part is validated like every manifest. Its metadata contains data that only the merge needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from ckstore.errors import CannotStore
from ckstore.model.manifest.captured import ByteSource, RangeSource
from ckstore.model.manifest.describe import encode_metadata
from ckstore.model.manifest.dtypes import TORCH_ITEMSIZE
from ckstore.model.manifest.lineage import CountedPieces
from ckstore.model.manifest.manifest import Description, LeafRecord, StateTexts, StorageRecord, render
from ckstore.model.manifest.tensor_cuts import Block, block_of, cut_block, cut_flat, flat_start, in_bytes
from ckstore.model.names import join_index
from ckstore.model.settings.patience import AS_SET, AskedPatience
from ckstore.objects.staging import Staging
from ckstore.ops.config_file import save_checks_or_all
from ckstore.ops.context import Context
from ckstore.ops.free import reclaim
from ckstore.ops.save.admission import check_space
from ckstore.ops.save.continuation import parent_in
from ckstore.ops.save.health import check_of
from ckstore.ops.save.patience import Patience
from ckstore.ops.save.recheck import Recheck
from ckstore.ops.save.recorded_chunks import state_changed
from ckstore.ops.save.save import draft_of
from ckstore.ops.save.write import store_sources
from ckstore.ranks.work import RankWork, WorkWatch
from ckstore.tensors.state_capture import Captured, capture

FACTS = "facts"
"""The key in the metadata of the first part. Its value has the members that subscribers add to the metadata."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A tensor, or the part of a tensor that this rank has."""

    name: str  # the name of the whole tensor
    tensor: Any  # the tensor or part that this rank has
    shape: tuple[int, ...]  # the shape of the whole tensor
    offsets: tuple[int, ...]  # the start of the part in the whole tensor


def pieces_of(
    shape: Sequence[int], offsets: Sequence[int], sizes: Sequence[int], item_bytes: int, chunk_bytes: int
) -> list[Block]:
    """Return the pieces of a shard, in the order of its bytes. A contiguous shard has pieces of one dimension."""
    # Staging and merging both call this function, so that both cut a shard in the same way.
    whole, block = in_bytes(shape, item_bytes), block_of(offsets, sizes, item_bytes)
    start = flat_start(whole, block)
    if start is None:
        return list(cut_block(whole, block, chunk_bytes))
    return [Block((low,), (high - low,)) for low, high in cut_flat(start, start + block.nbytes, chunk_bytes)]


@dataclass(frozen=True, slots=True)
class Content:
    """The values that a rank saves."""

    captured: Captured  # the values
    about: dict[str, Any]  # the facts about the values that the merge needs
    cuts: Sequence[int] | None = None  # the number of sources of each storage; if None, each has one source


def content_of(
    shards: Sequence[Shard], values: dict[str, object], chunk_bytes: int, keys: Sequence[Any] = ()
) -> Content:
    """Return shards and plain values as the content of a rank. `keys` are those of `own_keys`."""
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
    captured = replace(plain, state=state, leaves=tuple(leaves), sources=tuple(sources))
    described = [[shard.name, list(shard.shape), list(shard.offsets)] for shard in shards]
    return Content(captured, {"shards": described, "values": list(values), "keys": list(keys)}, cuts)


def stage_part(context: Context, work: RankWork, content: Content, asked: AskedPatience = AS_SET) -> Staging:
    """Write the content of a rank into a staging directory, seal it, and return it with its lock.

    After an error, no files remain. After a transient failure, the rank stages again as long as the other ranks wait.
    The other ranks only notice that this rank takes longer.
    """
    who = work.who
    patience = Patience(context, (who.run, who.step), asked, WorkWatch(work))
    return patience.run(lambda: _stage_once(context, work, content, patience))


def _stage_once(context: Context, work: RankWork, content: Content, patience: Patience) -> Staging:
    # The lock is held until the parts are merged: a staging directory without a lock is swept as dead.
    who = work.who
    work.doing("began to stage its part")
    checks = save_checks_or_all(context.layout)
    staging = Staging.create(context.layout, who.run, who.step, read_back=checks.read_back)
    try:
        _fill(context, staging, work, content, patience.notes())
    except BaseException as error:
        patience.freed_by_end = reclaim.frees_undo(context, error)
        reclaim.discard(context, staging, error)
        raise
    return staging


def _fill(context: Context, staging: Staging, work: RankWork, content: Content, notes: Sequence[str]) -> None:
    who = work.who
    captured, cuts = content.captured, content.cuts
    check_space(context, staging, captured)
    nbytes = sum(source.nbytes for source in captured.sources)
    checks = save_checks_or_all(context.layout)
    recheck = Recheck(context, staging, who.run, nbytes, checks.recheck_share)
    # The earlier counts of this rank are valid for any parent, because the digest of a piece is the key of its count.
    health = check_of(captured, context.known.counted.get(who.run, CountedPieces()), checks.health_share, cuts)
    stored = store_sources(
        context,
        staging,
        captured,
        recheck,
        compare=bool(captured.files),
        progress=work.staged_bytes,
        health=health,
    )
    if stored.found is not None:
        context.known.counted = {who.run: stored.found}
    # This check follows the writing of the bytes: if the state changed while it was read, the part is inconsistent.
    changed = captured.first_changed()
    if changed is not None:
        raise state_changed(changed)
    if cuts is not None:
        stored = replace(stored, storages=tuple(_joined(stored.storages, cuts)))
    texts = StateTexts.of(captured.leaves, captured.state)
    about = {
        "parent": parent_in(context, who.run),
        **content.about,
        **who.document(world_size=who.world_size, attempt=who.attempt),
        "written": list(staging.written),
        "warnings": [*notes, *recheck.warnings()],
        "nonfinite": None if stored.found is None else stored.found.to_json(),
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

    admitted = torch_leaves.Admission().admit(shard.tensor.detach(), shard.name)
    torch_leaves.wait_for([admitted])
    source, leaf = torch_leaves.place_row_major(admitted, storage)
    source.name = shard.name
    if 0 in leaf.shape:
        return leaf._replace(name=name), []
    pieces = pieces_of(shard.shape, shard.offsets, leaf.shape, TORCH_ITEMSIZE[leaf.dtype], chunk_bytes)
    ends = accumulate(piece.nbytes for piece in pieces)
    return leaf._replace(name=name), [
        RangeSource(source, end - piece.nbytes, piece.nbytes) for piece, end in zip(pieces, ends, strict=True)
    ]
