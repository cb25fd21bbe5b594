"""One order: the snapshot is mapped, and saved as a state is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from ckstore.errors import StepExists
from ckstore.fs.mapping import map_shared
from ckstore.model.manifest.captured import BytesSource
from ckstore.ops.save.recorded import manifest_of, recorded_sources
from ckstore.ops.save.save import Request, save_captured

if TYPE_CHECKING:
    from ckstore.model.manifest.captured import ByteSource
    from ckstore.model.manifest.info import CheckpointInfo
    from ckstore.model.saver.messages import Order
    from ckstore.objects.publish import IfExists
    from ckstore.ops.context import Context


def carry_out(context: Context, order: Order, snapshot: int) -> CheckpointInfo:
    """Save what lies in the snapshot."""
    # Before the parent is resolved: the trainer may have loaded another checkpoint since the last order.
    context.known.last_parents.update(order.last_parents)
    about = order.about
    if order.parent:
        from ckstore.ops.refs.find import find

        about = replace(about, parent=find(context, order.parent).id)
    request = Request(
        run=order.run,
        # The saver before this one may have published there: the same content at the same step is that success.
        step=order.step if order.tried_step is None else order.tried_step,
        about=about,
        tags=order.tags,
        if_exists=cast("IfExists", order.if_exists),
        force=order.force,
    )
    captured = replace(order.captured, sources=_sources(context, order, snapshot))
    try:
        return save_captured(context, captured, request)
    except StepExists:
        if order.step is not None or order.tried_step is None:
            raise
    # Another process has that step: the earlier saver did not publish there.
    return save_captured(context, captured, replace(request, step=None))


def _sources(context: Context, order: Order, snapshot: int) -> tuple[ByteSource, ...]:
    """Return where the bytes of each storage are: in the snapshot, or in an earlier checkpoint."""
    kept = order.kept
    samples = () if kept is None else kept.samples
    ends = [place.offset + place.nbytes for place in order.places if place.offset >= 0]
    # Only as far as the state goes: the snapshot is kept from an earlier save and may be larger.
    end = max((*ends, *(sample.offset + sample.nbytes for sample in samples)), default=0)
    # Unmapped when nothing looks at it any more: a thread of a save that failed may still be reading.
    whole = map_shared(snapshot, end, writable=False) if end else memoryview(b"")
    sources: dict[int, ByteSource] = {
        index: BytesSource(place.name, whole[place.offset : place.offset + place.nbytes])
        for index, place in enumerate(order.places)
        if place.offset >= 0
    }
    if kept is not None:
        in_hand: dict[int, dict[int, memoryview]] = {}
        for sample in samples:
            data = whole[sample.offset : sample.offset + sample.nbytes]
            in_hand.setdefault(sample.storage, {})[sample.start] = data
        manifest = manifest_of(context, order.run, kept.step, kept.id)
        sources |= recorded_sources(manifest, order, kept, in_hand)
    return tuple(sources[index] for index in range(len(order.places)))
