"""What differs between two checkpoints; on request by how much."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ckstore.model.reports.diff import Diff, LeafChange, diff_manifests
from ckstore.ops.read.storage_read import read_memories
from ckstore.ops.refs.find import AnyRef, open_directory

if TYPE_CHECKING:
    from ckstore.model.manifest.manifest import LeafRecord
    from ckstore.objects.checkpoints import CheckpointDirectory
    from ckstore.ops.context import Context


def diff(context: Context, before: AnyRef, after: AnyRef, *, values: bool) -> Diff:
    """Return what differs; see `ckstore.Store.diff`."""
    with open_directory(context, before) as one, open_directory(context, after) as other:
        found = diff_manifests(one.manifest, other.manifest)
        if not values:
            return found
        old = {leaf.name: leaf for leaf in one.manifest.leaves}
        new = {leaf.name: leaf for leaf in other.manifest.leaves}
        changed = [_measured(change, one, old[change.name], other, new[change.name]) for change in found.changed]
        return replace(found, changed=tuple(changed))


def _measured(
    change: LeafChange, one: CheckpointDirectory, old: LeafRecord, other: CheckpointDirectory, new: LeafRecord
) -> LeafChange:
    """Read a tensor of both checkpoints and compare them; one tensor at a time is in memory."""
    from ckstore.tensors.compare import largest_difference
    from ckstore.tensors.restore import make_leaf

    if (old.kind, old.shape) != (new.kind, new.shape) or old.kind not in ("torch", "numpy") or 0 in new.shape:
        return change
    values = []
    for directory, leaf in ((one, old), (other, new)):
        memories = read_memories(directory, [leaf.storage], verify=True)
        values.append(make_leaf(leaf, memories[leaf.storage]))
    return replace(change, difference=largest_difference(*values))
