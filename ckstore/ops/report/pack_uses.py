"""Determine how much of each pack each checkpoint uses, from current rows of the catalog, otherwise from manifests."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Hashable
from operator import itemgetter
from typing import TypeVar

from ckstore.errors import CatalogUnavailable
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.names import CheckpointKey
from ckstore.model.reports.usage import blob_uses
from ckstore.objects.checkpoints import look
from ckstore.ops.context import Context

Group = TypeVar("Group", bound=Hashable)


class PackUses:
    """The number of bytes in each pack that each checkpoint uses."""

    def __init__(self, context: Context, listed: list[CheckpointInfo]) -> None:
        self._by_key: dict[CheckpointKey, list[str]] = defaultdict(list)
        self._nbytes: dict[str, int] = {}
        self._best: dict[str, int] = defaultdict(int)
        self._users: dict[str, list[tuple[CheckpointKey, int]]] = defaultdict(list)
        published = context.layout.stamps()
        try:
            known, rows = context.catalog.listing(), context.catalog.pack_uses()
        except CatalogUnavailable:
            known, rows = {}, []
        # Ignore rows of directories that have changed, since they may name packs that are no longer used.
        current = {key for key, stamp in known.items() if published.get(key) == stamp}
        others = [info.key for info in listed if info.key not in current]
        for key, digest, nbytes, used_bytes in rows:
            if key in current:
                self._add(key, digest, nbytes, used_bytes)
        self._add_from_manifests(context, others)

    def _add(self, key: CheckpointKey, digest: str, nbytes: int, used_bytes: int) -> None:
        self._by_key[key].append(digest)
        self._nbytes[digest] = nbytes
        self._best[digest] = max(self._best[digest], used_bytes)
        self._users[digest].append((key, used_bytes))

    def _add_from_manifests(self, context: Context, keys: list[CheckpointKey]) -> None:
        for key in keys:
            found = look(context.layout, key).published
            if found is None:  # another process has dropped it
                continue
            uses = blob_uses(found.manifest)
            for blob in found.manifest.stored:
                if uses[blob.digest].is_pack:
                    self._add(key, blob.digest, blob.nbytes, uses[blob.digest].used_bytes)

    def dead_bytes(self, key: CheckpointKey) -> int:
        """Return an upper bound for the bytes in a checkpoint's packs that no checkpoint uses."""
        return sum(self._nbytes[digest] - self._best[digest] for digest in self._by_key.get(key, ()))

    def total_dead_bytes(self) -> int:
        """Return an upper bound for the bytes in all packs that no checkpoint uses, counting each pack once."""
        return sum(nbytes - self._best[digest] for digest, nbytes in self._nbytes.items())

    def packed_bytes(self, group_of: Callable[[CheckpointKey], Group]) -> dict[Group, int]:
        """Return, for each group of checkpoints, how many more bytes in packs would be dead if the group were deleted.

        A pack is one file. A part that only the group uses is therefore kept while other checkpoints use other parts.
        """
        packed: dict[Group, int] = defaultdict(int)
        for users in self._users.values():
            most: dict[Group, int] = defaultdict(int)
            for key, used_bytes in users:
                group = group_of(key)
                most[group] = max(most[group], used_bytes)
            if len(most) > 1:
                (group, largest), (_, second) = heapq.nlargest(2, most.items(), key=itemgetter(1))
                packed[group] += largest - second
        return packed
