"""Delete one checkpoint: rename it to trash; its blobs go when nobody names them any more."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ckstore.catalog import CatalogUnavailable
from ckstore.errors import InUse, NoSuchRef
from ckstore.fs import files, locks
from ckstore.model.digest import is_digest
from ckstore.objects import trash
from ckstore.objects.checkpoints import id_at
from ckstore.objects.layout import BLOBS
from ckstore.ops import reclaim
from ckstore.ops.context import Context, tags_by_checkpoint
from ckstore.ops.save import CATALOG_TIMEOUT_S

if TYPE_CHECKING:
    from ckstore.model.info import CheckpointInfo


def delete(context: Context, info: CheckpointInfo) -> None:
    """Delete a checkpoint durably and free what only it used.

    Raises:
        InUse: A reader has it open, or a tag names it.
        NoSuchRef: It is gone, or another checkpoint has taken its place.
        OSError: The system refused.
    """
    context.check_writable()
    layout = context.layout
    path = layout.checkpoint(info.run, info.step)
    # What is kept must be as durable as what goes is gone (rule F).
    files.sync_directory(path.parent)
    lock = locks.try_exclusive(path)
    if lock is None:
        if not path.is_dir():
            msg = f"{info.name} is not there any more"
            raise NoSuchRef(msg)
        msg = f"{info.name} is open for reading by somebody"
        raise InUse(msg, hint="close it there, then delete again")
    with lock:
        tags = tags_by_checkpoint(layout).get((info.run, info.step))
        if tags:
            msg = f"{info.name} has the tag {', '.join(tags)}"
            raise InUse(msg, hint="remove the tag first")
        if id_at(path) != info.id:
            msg = f"{info.name} with id {info.id} is not there any more"
            raise NoSuchRef(msg)
        digests = [name for name in os.listdir(path / BLOBS) if is_digest(name)]
        trash.move_to_trash(layout, path, lock)
        files.sync_directory(layout.trash)
        files.sync_directory(path.parent)
    try:
        context.catalog.reconcile([(info.run, info.step)], lambda *_: None, timeout_s=CATALOG_TIMEOUT_S)
    except (CatalogUnavailable, InUse):  # the next opener reconciles
        return
    reclaim.give_back(context, digests)
