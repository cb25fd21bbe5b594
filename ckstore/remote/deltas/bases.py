"""Which checkpoints one may be encoded against."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckstore.ops.refs.listing import infos

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ckstore.model.manifest.info import CheckpointInfo
    from ckstore.objects.checkpoints import CheckpointDirectory
    from ckstore.ops.context import Context
    from ckstore.remote.keys import Place

# A plain blob that paths end at was pushed at most so many checkpoints ago, or is no longer worth a look.
_LOOKED_AT = 128


class Bases:
    """The checkpoints of the run that are here and at the remote."""

    def __init__(self, context: Context, directory: CheckpointDirectory, there: Collection[Place]) -> None:
        manifest = directory.manifest
        of_run = infos(context, manifest.run)
        at = next((i for i, info in enumerate(of_run) if info.id == directory.manifest_id), len(of_run))
        order = [of_run[i] for i in sorted(range(len(of_run)), key=lambda i: (abs(i - at), i))]
        known = {place.id for place in there}
        parent = manifest.description.parent
        # Of those with the same distance the older one first: readers have that.
        self._order = [info for info in order if info.id in known and info.id != directory.manifest_id]
        self._order.sort(key=lambda info: info.id != parent)

    def nearest(self) -> Iterator[CheckpointInfo]:
        """Give them, the nearest first."""
        yield from self._order

    def others(self) -> Iterator[CheckpointInfo]:
        """Give those behind the first."""
        yield from self._order[1:_LOOKED_AT]
