"""The best checkpoint of a run by a metric: ``best:METRIC``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckstore.errors import DamagedBlob
from ckstore.model.checkpoint.refs import resolve
from ckstore.ops.index.facts import sure
from ckstore.ops.refs.listing import infos

if TYPE_CHECKING:
    from ckstore.model.checkpoint.refs import Ref
    from ckstore.model.manifest.info import CheckpointInfo
    from ckstore.ops.context import Context


def best(context: Context, ref: Ref) -> CheckpointInfo:
    """Return the checkpoint that a ref by a metric names.

    Raises:
        NoSuchRef: No checkpoint has a number for that metric.
    """
    listed = {info.name: info for info in infos(context)}
    read: set[str] = set()
    while True:
        found = resolve(ref, list(listed.values()), {})
        if found.name in read:
            return found
        read.add(found.name)
        try:
            # Rule D: a row that says another number makes no checkpoint the best.
            listed[found.name] = sure(context, found)
        except DamagedBlob:  # loading it says so
            return found
        except (FileNotFoundError, NotADirectoryError):  # it went since it was listed
            del listed[found.name]
