"""Delete one checkpoint that somebody names: drop it, and give back what only it used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckstore.objects import reserve
from ckstore.ops.free import reclaim
from ckstore.ops.free.drop import drop, make_kept_durable
from ckstore.ops.free.exclusive import warn_unfreed

if TYPE_CHECKING:
    from ckstore.model.manifest.info import CheckpointInfo
    from ckstore.ops.context import Context


def delete(context: Context, info: CheckpointInfo) -> None:
    """Delete a checkpoint durably and free what only it used.

    Raises:
        InUse: A reader has it open, a tag names it, or it is pinned.
        NoSuchRef: It is gone, or another checkpoint has taken its place.
        CkstoreError: A tag or a pin cannot be read.
        OSError: The system refused.
    """
    context.check_writable()
    with reserve.given_up(context.layout):
        make_kept_durable(context, info.run)
        dropped = drop(context, info)
        if dropped.catalogued:  # else the next opener tells the catalog, and gc finds the blobs
            reclaim.give_back(context, dropped.digests)
    warn_unfreed(context)
