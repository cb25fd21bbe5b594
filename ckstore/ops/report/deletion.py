"""Predict how much space deleting checkpoints will free, from the links of their blobs and the uses of packs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from ckstore.errors import CatalogUnavailable
from ckstore.fs import dirfd_stat
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.names import CheckpointKey
from ckstore.model.reports.deletion import DeletionEffect
from ckstore.objects.generations import other_generations
from ckstore.objects.last_links import blobs_in
from ckstore.objects.layout import BLOBS
from ckstore.objects.trash import waiting_folders
from ckstore.ops.context import Context
from ckstore.ops.refs.listing import infos
from ckstore.ops.report.pack_uses import PackUses


@dataclass(slots=True)
class _File:
    """A file of a blob, its link count, and the links that a deletion removes."""

    digest: str
    nbytes: int
    link_count: int
    links_of: dict[CheckpointKey, int] = field(default_factory=dict)
    other_links: int = 0  # number of links that are not uses: the canonical link, and links in dropped checkpoints


class Preview:
    """The links to the blobs of some checkpoints, gathered before any of them is deleted."""

    def __init__(self, context: Context, chosen: Iterable[CheckpointInfo]) -> None:
        layout = context.layout
        self._context = context
        self._keys = {info.key: [info.key, *other_generations(layout, info.key, info.id)] for info in chosen}
        self._packs = PackUses(context, infos(context, superseded=True))
        self._files: dict[tuple[int, int], _File] = {}
        for key, generations in self._keys.items():
            for one in generations:
                for digest, status in blobs_in(layout.checkpoint(one) / BLOBS):
                    inode = (status.st_dev, status.st_ino)
                    file = self._files.setdefault(inode, _File(digest, status.st_size, status.st_nlink))
                    file.links_of[key] = file.links_of.get(key, 0) + 1
        for inode, file in self._files.items():
            canonical = dirfd_stat.find(layout.blob(file.digest))
            file.other_links += canonical is not None and (canonical.st_dev, canonical.st_ino) == inode
        for folder in waiting_folders(layout):
            for _, status in blobs_in(folder):
                if found := self._files.get((status.st_dev, status.st_ino)):
                    found.other_links += 1

    def effect(self, deleted: Collection[CheckpointKey]) -> DeletionEffect:
        """Return how much space deleting these checkpoints would free."""
        own = [file for file in self._files.values() if not file.links_of.keys().isdisjoint(deleted)]
        freed_bytes = 0
        kept: dict[str, int] = {}
        for file in own:
            taken = sum(count for key, count in file.links_of.items() if key in deleted)
            if taken + file.other_links >= file.link_count:
                freed_bytes += file.nbytes
            else:
                kept[file.digest] = file.nbytes
        keys = {one for key in deleted for one in self._keys[key]}
        try:
            unused = self._context.catalog.without_use(list(kept), without=keys)
        except CatalogUnavailable:  # in this case, count all blobs with other links as used by other checkpoints
            unused = set()
        packed = self._packs.packed_bytes(lambda key: key in keys).get(True, 0)
        needed_bytes = sum(nbytes for digest, nbytes in kept.items() if digest not in unused)
        return DeletionEffect(
            freed_bytes=freed_bytes,
            shared_bytes=max(0, needed_bytes - packed),
            packed_bytes=packed,
            linked_bytes=sum(kept[digest] for digest in unused),
        )
