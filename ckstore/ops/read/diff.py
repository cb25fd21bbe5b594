"""Compare two checkpoints by their manifests, and on request also by their values."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from ckstore.errors import BadInput
from ckstore.model.digest import short_id
from ckstore.model.manifest.manifest import LeafRecord
from ckstore.model.reports.checkpoint_comparison import diff_manifests, spellings_of
from ckstore.model.reports.diff import Diff, LeafChange
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.ops.context import Context
from ckstore.ops.read.file_state import state_of
from ckstore.ops.read.storage_read import read_memories
from ckstore.ops.refs.find import AnyRef, open_directory

Files = str | tuple[str | None, str | None] | None


def diff(context: Context, before: AnyRef, after: AnyRef, *, values: bool, file: Files) -> Diff:
    """Return the differences between two checkpoints; see `ckstore.Store.diff`."""
    chunk_bytes = context.settings.chunk_bytes
    with ExitStack() as stack:
        first, second = (stack.enter_context(open_directory(context, ref)) for ref in (before, after))
        paths = _paths(file, (first, second))
        one, other = (
            stack.enter_context(state_of(directory, path, chunk_bytes=chunk_bytes, can_select=False))
            for directory, path in zip((first, second), paths, strict=True)
        )
        found = diff_manifests(one.manifest, other.manifest)
        names = [found.before, found.after]
        ids = [short_id(each.manifest_id) for each in (first, second)]
        if names[0] == names[1] and ids[0] != ids[1]:
            names = [f"{name} ({id})" for name, id in zip(names, ids, strict=True)]
        found = replace(found, before=_named(names[0], paths[0]), after=_named(names[1], paths[1]))
        # Digests show which tensors differ. Values are read only to measure the size of a difference.
        if not values:
            return found
        spelling = spellings_of(one.manifest, other.manifest)
        old = {spelling[leaf.name]: leaf for leaf in one.manifest.leaves}
        new = {spelling[leaf.name]: leaf for leaf in other.manifest.leaves}
        changed = [_measured(change, one, old[change.name], other, new[change.name]) for change in found.changed]
        return replace(found, changed=tuple(changed))


def _paths(file: Files, directories: Sequence[CheckpointDirectory]) -> tuple[str | None, ...]:
    """Return, for each checkpoint, the path of the file to compare, or None to compare the whole checkpoint."""
    if isinstance(file, tuple):
        if len(file) == len(directories):
            return file
        raise BadInput(f"file must be one path, or one for each of two checkpoints, got {len(file)}")
    if file is not None and not any(directory.manifest.files for directory in directories):
        raise BadInput("both checkpoints are saved states, without files", hint="leave file= out")
    return tuple(file if directory.manifest.files else None for directory in directories)


def _named(name: str, path: str | None) -> str:
    return name if path is None else f"{path} of {name}"


def _measured(
    change: LeafChange, one: CheckpointDirectory, old: LeafRecord, other: CheckpointDirectory, new: LeafRecord
) -> LeafChange:
    """Read a tensor from both checkpoints, and add the largest difference of its values to the change."""
    from ckstore.tensors.compare import largest_difference
    from ckstore.tensors.state_restore import make_leaf

    if (old.kind, old.shape) != (new.kind, new.shape) or old.kind not in ("torch", "numpy") or 0 in new.shape:
        return change
    values = []
    for directory, leaf in ((one, old), (other, new)):
        memories = read_memories(directory, [leaf.storage], verify=True)
        values.append(make_leaf(leaf, memories[leaf.storage]))
    return replace(change, difference=largest_difference(*values))
