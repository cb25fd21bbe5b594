"""Starts the processes that work on a store during a training: the one that mirrors, and the one that compacts.

Subscribers of an open store start them after a save. The modules that start them are imported only if the settings
require it, since few stores use mirroring or compaction, and the import takes 20 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ckstore.errors import CkstoreError
from ckstore.ops.config_file import COMPACT_AFTER, Setting, setting_or_none
from ckstore.ops.context import NEW, Context, Publication, Subscriber
from ckstore.ops.mirror_settings import MIRROR

if TYPE_CHECKING:
    from ckstore.saver.mirror import Why


def wake_mirror(context: Context, why: Why) -> None:
    """Start the process that mirrors if the store has a mirror that may be incomplete. Raises no errors."""
    remote = setting_or_none(context.layout, MIRROR)
    if remote is not None:
        from ckstore.saver import mirror

        mirror.wake(context, remote, why)


def _mirror(publication: Publication) -> Sequence[str]:
    if _asks_for(publication, MIRROR):
        wake_mirror(publication.context, "saved")
    return ()


def _compact(publication: Publication) -> Sequence[str]:
    if _asks_for(publication, COMPACT_AFTER):
        from ckstore.saver import compactor

        compactor.wake(publication.context)
    return ()


def _asks_for(publication: Publication, setting: Setting[Any]) -> bool:
    """Whether the checkpoint is new in the store, and the setting is set."""
    try:
        return publication.origin in NEW and publication.settings.get(setting.name) is not None
    except (CkstoreError, OSError):  # retention also reads the settings, and has reported the error
        return False


SUBSCRIBERS = Subscriber("mirroring", _mirror), Subscriber("compaction", _compact)
