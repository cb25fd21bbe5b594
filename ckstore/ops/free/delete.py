"""Delete one checkpoint by its ref: drop it, and give back what only it used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckstore.objects import reserve
from ckstore.ops.free import reclaim
from ckstore.ops.free.drop import check_droppable, drop, make_kept_durable
from ckstore.ops.free.exclusive import warn_unfreed
from ckstore.ops.refs.find import AnyRef, find

if TYPE_CHECKING:
    from ckstore.ops.context import Context


def delete(context: Context, ref: AnyRef, *, dry_run: bool = False) -> None:
    """Delete a checkpoint durably and free what only it used; with `dry_run` only raise what would keep it."""
    info = find(context, ref)
    if dry_run:
        check_droppable(context, info)
        return
    context.check_writable()
    with reserve.given_up(context.layout):
        make_kept_durable(context, info.run)
        dropped = drop(context, info)
        if dropped.catalogued:  # else the next opener tells the catalog, and gc finds the blobs
            reclaim.give_back(context, dropped.digests)
    warn_unfreed(context)
