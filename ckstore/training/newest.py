"""Find the newest untried checkpoint, so that a process without write access can skip damaged checkpoints."""

from __future__ import annotations

from collections.abc import Collection

from ckstore.model.checkpoint.refs import is_latest_valid, parse_ref, why_skipped
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.ops.notices import warn
from ckstore.store import RefLike, Store


def untried(store: Store, ref: RefLike, tried: Collection[str]) -> CheckpointInfo:
    """Return the checkpoint that a ref names. For ``latest-valid``, return an untried one if one exists."""
    # A read marks the damage that it detects, and ``latest-valid`` then names the previous checkpoint. A read-only
    # store cannot set marks. In that case, return the newest checkpoint before the tried ones, with a warning. All this
    # also applies to ``latest-healthy``, which names only healthy checkpoints.
    info = store.info(ref)
    # If a writer set a mark, `latest-valid` already names another checkpoint.
    if info.id not in tried or not is_latest_valid(ref):
        return info
    # Compare the order of commits, not the steps. After a rollback, the newest checkpoint may have a smaller step.
    older = [one for one in store.checkpoints(info.run) if one.order < info.order and one.id not in tried]
    kind = parse_ref(str(ref)).kind
    older = [one for one in older if not why_skipped(kind, one)]
    if not older:
        return info
    newest = max(older, key=lambda one: one.order)
    warn(f"restoring {newest.name}, since newer checkpoints are damaged")
    return newest
