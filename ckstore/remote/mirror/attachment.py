"""Attaches the mirror to an open store. The modules of the mirror are imported only if the store has one."""

from __future__ import annotations

from ckstore.ops.config_file import setting_of
from ckstore.ops.context import Context, Evictor
from ckstore.ops.mirror_settings import MIRROR


def evictor_of(context: Context) -> Evictor | None:
    """Return the evictor of a store, or None if it has no mirror."""
    mirror = setting_of(context.layout, MIRROR)
    if mirror is None:
        return None
    from ckstore.remote.remote_only.evict import MirrorEvictor

    return MirrorEvictor(context, mirror)
