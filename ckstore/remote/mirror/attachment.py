"""Attaches the mirror to an open store. The modules of the mirror are imported only if the store has a mirror."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from ckstore.ops.config_file import setting_of, setting_or_none
from ckstore.ops.context import Context, Evictor, Publication, Subscriber
from ckstore.ops.mirror_settings import MIRROR

if TYPE_CHECKING:
    from ckstore.remote.mirror.mirror_process import Why


def attach(context: Context) -> None:
    """Make saves start the mirror process, and let a save that lacks space evict checkpoints that the mirror has."""
    context.subscribers = (Subscriber("mirroring", _mirror), *context.subscribers)
    context.evictor = partial(_evictor, context)
    context.attached = (*context.attached, __name__)


def wake_mirror(context: Context, why: Why) -> None:
    """Start the mirror process if the store has a mirror that may be incomplete. Raise no errors."""
    remote = setting_or_none(context.layout, MIRROR)
    if remote is not None:
        from ckstore.remote.mirror import mirror_process

        mirror_process.wake(context, remote, why)


def _mirror(publication: Publication) -> Sequence[str]:
    if publication.asks_for(MIRROR):
        wake_mirror(publication.context, "saved")
    return ()


def _evictor(context: Context) -> Evictor | None:
    mirror = setting_of(context.layout, MIRROR)
    if mirror is None:
        return None
    from ckstore.remote.remote_only.evict import MirrorEvictor

    return MirrorEvictor(context, mirror)
