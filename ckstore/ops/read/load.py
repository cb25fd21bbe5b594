"""Load a state, or read it into memory that exists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from ckstore.errors import BadInput, NoSuchRef
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.names import plain
from ckstore.ops.read.storage_read import map_memories, read_memories, read_storages
from ckstore.ops.refs.find import read_checkpoint, read_checkpoint_into
from ckstore.tensors.memory import StorageMemory
from ckstore.tensors.restore import build, needed_storages

if TYPE_CHECKING:
    from ckstore.objects.checkpoints import CheckpointDirectory
    from ckstore.ops.context import Context
    from ckstore.ops.refs.find import AnyRef

Select = str | Sequence[str] | Callable[[str], bool] | None
"""Which names to load: globs, where a name also selects everything below it; a function of the name; None: all."""


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What `load_into` did.

    Attributes:
        info: The checkpoint.
        missing: Names in the target that the checkpoint lacks; they were left as they were.
        unexpected: Names in the checkpoint that the target lacks; they were not loaded.
    """

    info: CheckpointInfo
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()


def as_filter(select: Select) -> Callable[[str], bool] | None:
    """Return `select` as a function of a name; None if everything is wanted.

    Raises:
        BadInput: It is none of the kinds of `Select`.
    """
    if select is None or callable(select):
        return select
    try:
        given: list[object] = [select] if isinstance(select, str) else list(select)
    except TypeError:
        given = [select]
    globs = [glob for glob in given if isinstance(glob, str)]
    if len(globs) < len(given):
        msg = f"select must be a glob, a list of globs or a function of a name, got {select!r}"
        raise BadInput(msg)
    return lambda name: any(_selects(glob, form) for glob in globs for form in {name, plain(name)})


def _selects(glob: str, name: str) -> bool:
    below = name.startswith(glob) and name[len(glob) : len(glob) + 1] in (".", "[")
    # Brackets stand for themselves: names have them, layers[0].weight.
    return name == glob or below or fnmatchcase(name, glob.replace("[", "[[]"))


def load(context: Context, ref: AnyRef, *, device: object, select: Select, mmap: bool, verify: bool) -> object:
    """Return the state of the checkpoint that `ref` names; see `ckstore.Store.load`."""

    def read(directory: CheckpointDirectory) -> object:
        state = load_open(directory, device=device, select=select, mmap=mmap, verify=verify)
        _continue(context, directory)
        return state

    return read_checkpoint(context, ref, read, verify=verify)


def _continue(context: Context, directory: CheckpointDirectory) -> None:
    """Make a checkpoint that was loaded the parent of what is saved next."""
    context.last_parents[directory.manifest.run] = context.last_parents[""] = directory.manifest_id


def load_open(directory: CheckpointDirectory, *, device: object, select: Select, mmap: bool, verify: bool) -> object:
    """Return the state of an open checkpoint."""
    manifest = directory.manifest
    if manifest.files and not manifest.leaves:
        msg = f"{manifest.run}@{manifest.step} holds files, but no tensors that are known by name"
        raise BadInput(msg, hint="ckstore checkout REF DEST writes the files")
    keep = as_filter(select)
    needed = needed_storages(manifest.state, manifest.leaves, keep)
    if keep is not None and select is not None and not callable(select) and not needed:
        _refuse_nothing(directory, select, keep)
    read = map_memories if mmap else read_memories
    memories = read(directory, needed, verify=verify)
    return build(manifest.state, manifest.leaves, memories.__getitem__, device=device, keep=keep)


def _refuse_nothing(directory: CheckpointDirectory, select: Select, keep: Callable[[str], bool]) -> None:
    """Raise if a selection names no value at all: a misspelt name must not look like an empty checkpoint.

    Raises:
        NoSuchRef: It names nothing.
    """
    state = build(directory.manifest.state, directory.manifest.leaves, _no_memory, keep=keep)
    if state in ({}, [], (), None):
        msg = f"{directory.manifest.run}@{directory.manifest.step} has no name that select={select!r} matches"
        raise NoSuchRef(msg, hint="ckstore ls REF lists the names")


def _no_memory(storage: int) -> StorageMemory:
    msg = f"storage {storage} was not to be read"
    raise LookupError(msg)


def load_into(context: Context, ref: AnyRef, target: object, *, strict: bool, verify: bool) -> LoadReport:
    """Read the state of the checkpoint that `ref` names into `target`; see `ckstore.Store.load_into`."""

    def read(directory: CheckpointDirectory) -> LoadReport:
        report = _load_into_open(directory, target, strict=strict, verify=verify)
        _continue(context, directory)
        return report

    return read_checkpoint_into(context, ref, read, strict=strict, verify=verify)


def _load_into_open(directory: CheckpointDirectory, target: object, *, strict: bool, verify: bool) -> LoadReport:
    from ckstore.tensors.into import plan_into

    manifest = directory.manifest
    plan = plan_into(target, manifest.state, manifest.leaves, [storage.nbytes for storage in manifest.storages])
    if plan.mismatched:
        _refuse("does not fit the target", plan.mismatched, directory)
    if strict and (plan.missing or plan.unexpected):
        problems = [f"{name}: not in the checkpoint" for name in plan.missing]
        problems += [f"{name}: not in the target" for name in plan.unexpected]
        _refuse("and the target differ", tuple(problems), directory)
    read_storages(directory, plan.direct, verify=verify)
    memories = read_memories(directory, sorted(plan.indirect), verify=verify)
    plan.finish(memories.__getitem__)
    info = CheckpointInfo.of(manifest, directory.manifest_id)
    return LoadReport(info, plan.missing, plan.unexpected)


def _refuse(what: str, problems: tuple[str, ...], directory: CheckpointDirectory) -> None:
    shown = "; ".join(problems[:10]) + (f"; and {len(problems) - 10} more" if len(problems) > 10 else "")
    msg = f"{directory.manifest.run}@{directory.manifest.step} {what}, nothing was loaded: {shown}"
    raise BadInput(msg, hint="strict=False leaves out what only one of them has")
