"""Add metrics and notes to a checkpoint after it was saved; and see them wherever a checkpoint is described."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ckstore.errors import CkstoreError
from ckstore.model.checkpoint.annotations import to_add
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.times import text_of_time
from ckstore.objects.documents.annotations import add_annotations
from ckstore.ops.context import Context, annotated
from ckstore.ops.refs.find import AnyRef, find
from ckstore.ops.refs.protection import gone, held


def annotate(context: Context, ref: AnyRef, metrics: Mapping[str, Any] | None, note: str | None) -> CheckpointInfo:
    """Add metrics and a note to a checkpoint, durably; return what the store says about it now."""
    # Raises CkstoreError: what was added before is damaged; nothing was changed.
    info = find(context, ref)
    more = to_add(metrics, note, text_of_time(datetime.now(UTC)))
    path = context.layout.checkpoint(info.run, info.step)
    with held(context, info) as lock:
        try:
            add_annotations(context.layout, lock, more)
        except CkstoreError as error:
            if not error.hint:
                error.hint = "repair or remove that file, then annotate again"
            raise
        if not lock.names(path):  # a saver replaced it, and what was added went with it
            raise gone(info)
    return annotated(context, info)
