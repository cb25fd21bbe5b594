"""The newest checkpoint that was not tried: how a process that may only read goes back past damage."""

from __future__ import annotations

from collections.abc import Collection

from ckstore.model.checkpoint.refs import is_latest_healthy, is_latest_valid
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.ops.notices import warn
from ckstore.store import RefLike, Store


def untried(store: Store, ref: RefLike, tried: Collection[str]) -> CheckpointInfo:
    """Return the checkpoint that a ref names; for ``latest-valid`` one that was not tried, if there is one."""
    # For ``latest-healthy`` as well, which only names healthy ones.
    # Damage that a read finds is marked, and ``latest-valid`` names the checkpoint before. A store that is open for
    # reading only has no marks made: there it is the newest before those that were tried, with a warning.
    info = store.info(ref)
    # A writer's damage mark has moved `latest-valid` on by itself: only a reader without marks has to go back.
    if info.id not in tried or not is_latest_valid(ref):
        return info
    # By order of commits, not by step: after a rollback the newest may have a smaller step.
    older = [one for one in store.checkpoints(info.run) if one.order < info.order and one.id not in tried]
    if is_latest_healthy(ref):
        older = [one for one in older if not one.unhealthy]
    if not older:
        return info
    newest = max(older, key=lambda one: one.order)
    warn(f"restoring {newest.name}, since newer checkpoints are damaged")
    return newest
