"""Which place a caller means by the name of a remote."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckstore.errors import RemoteError

if TYPE_CHECKING:
    from ckstore.ops.context import Context
    from ckstore.remote.objects import Objects


@dataclass(frozen=True, slots=True)
class Remote:
    """A remote on object storage, as a transfer needs it.

    Attributes:
        name: What users call it.
        objects: Its objects.
        cas: Whether its compare-and-swap was seen to work.
        checks_bodies: Whether it was seen to refuse a body that was damaged on the way.
    """

    name: str
    objects: Objects
    cas: bool = True
    checks_bodies: bool = False


RemoteLike = str | os.PathLike[str]
"""Name of a remote, or the directory of another store."""


def reach(context: Context, remote: RemoteLike | None) -> Remote:
    """Return the remote that a caller names; None: the only one that the store has.

    Raises:
        RemoteError: There is none of that name.
    """
    return open_remote(context, "" if remote is None else os.fspath(remote))


def open_remote(context: Context, name: str) -> Remote:
    """Return the remote that the settings of the store have under a name."""
    raise RemoteError(f"the store {context.layout.path} has no remote {name!r}")
