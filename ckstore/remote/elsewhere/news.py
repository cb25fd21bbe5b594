"""What is new at a remote, brought into a store's list while a run is followed there."""

from __future__ import annotations

import time

from ckstore.errors import RemoteUnavailable
from ckstore.ops.context import Context
from ckstore.ops.notices import warn
from ckstore.remote.elsewhere.clone import list_remote
from ckstore.remote.keys import Place
from ckstore.remote.reach import RemoteLike, reach, source_of

POLL_S = 5.0
"""So often a remote is asked: an evaluation takes longer, and twelve requests a minute cost next to nothing."""


class News:
    """Lists in a store what a remote has of a run, or of all; asking costs one listing, each `poll_s` at most."""

    def __init__(self, context: Context, remote: RemoteLike, run: str | None, poll_s: float) -> None:
        context.check_writable()
        self._context = context
        self._there = reach(context, remote)
        self._source = source_of(self._there)
        self._under = "" if run is None else f"{run}/"
        self._poll_s = poll_s
        self._seen: set[Place] = set()
        self._again_s = 0.0

    def __call__(self) -> None:
        """Ask, if it is time to."""
        if time.monotonic() < self._again_s:
            return
        try:
            places = {*self._source.places(self._under)}
            if new := places - self._seen:
                for text in list_remote(self._context, self._there, sorted(new))[1]:
                    warn(text)
            self._seen = places
        except RemoteUnavailable as error:  # a network that fails for a while must not end an evaluator
            warn(f"{self._source.name} was not asked for new checkpoints: {error.message}")
        self._again_s = time.monotonic() + self._poll_s
