"""Directories that have the name of a checkpoint and are not whole: what is said when the newest is asked for.

A directory counts by its name in ``checkpoints/RUN/``. What a dead save left in ``staging/`` was never a checkpoint.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from ckstore.errors import NoWholeCheckpoint
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.names import CheckpointKey
from ckstore.objects.checkpoints import look
from ckstore.ops.check.validity import glance
from ckstore.ops.context import Context
from ckstore.ops.notices import warn
from ckstore.ops.refs.listing import infos

Order = tuple[int, str, str, int]
_SHOWN = 5


class Problem(NamedTuple):
    """A checkpoint that cannot be taken, and why."""

    name: str  # ``RUN@STEP``
    problem: str
    order: Order | None  # its place in the order of commits; None if that cannot be read
    key: CheckpointKey


def incomplete(context: Context, run: str | None) -> list[Problem]:
    """Return the directories of a run, or of all, that hold no complete checkpoint."""
    torn: set[CheckpointKey] = set()
    infos(context, run, superseded=True, torn=torn)
    return problems_of(context, torn)


def problems_of(context: Context, keys: Iterable[CheckpointKey]) -> list[Problem]:
    """Return what is wrong with the directories of incomplete checkpoints, the newest first."""
    found = [one for key in sorted(keys) if (one := _problem(context, key)) is not None]
    return sorted(found, key=lambda one: (one.order is not None, one.order or (), one.key), reverse=True)


def _problem(context: Context, key: CheckpointKey) -> Problem | None:
    try:
        glanced = glance(context.layout.checkpoint(key), key)
        # A look knows the hash of the store.
        problem = glanced.problem or look(context.layout, key).problem
    except (FileNotFoundError, NotADirectoryError):  # dropped since it was listed
        return None
    if not problem:  # repaired since
        return None
    if glanced.manifest is None:
        # Without a manifest nothing says when it was saved.
        return Problem(key.name, f"{problem} (so it may be older)", None, key)
    order = (glanced.manifest.sequence, glanced.manifest.created, glanced.manifest_id, key.generation)
    return Problem(key.name, problem, order, key)


def newer_than(info: CheckpointInfo, found: Iterable[Problem]) -> list[Problem]:
    """Return those that are newer than a checkpoint, or may be: an old one is no news for a training that goes on."""
    return [one for one in found if one.order is None or one.order > info.order]


def repair_newer(context: Context, newest: CheckpointInfo | None, torn: Collection[CheckpointKey]) -> bool:
    """Repair the newest torn directory that is newer than `newest`, if a remote has what it lacks; False: none was."""
    if not torn or context.rescuer is None:
        return False
    found = problems_of(context, torn)
    return any(context.rescuer.checkpoint(one.key) for one in (found if newest is None else newer_than(newest, found)))


def check_newest(
    context: Context,
    run: str | None,
    newest: CheckpointInfo | None,
    torn: Collection[CheckpointKey],
    ref: str = "latest",
) -> None:
    """Raise if there is no whole checkpoint, but torn ones; warn, once for an open store, of those that are newer.

    `torn`: the directories of the run, or of all runs, that hold no complete checkpoint. `ref`: what was asked for.
    """
    if not torn:
        return
    if newest is None and (found := problems_of(context, torn)):
        raise nothing_whole(ref, run, found)
    tell_torn(context, newest, torn)


def tell_torn(context: Context, newest: CheckpointInfo | None, torn: Collection[CheckpointKey]) -> None:
    """Warn, once for an open store, of the torn directories that are newer than the newest checkpoint, or may be."""
    found = problems_of(context, torn)
    newer = found if newest is None else newer_than(newest, found)
    told = context.notices.problems
    if any(f"latest {one.name}" not in told for one in newer):
        what = f"{listed(newer)}; ckstore verify --repair repairs what it can"
        said = f"checkpoints are not whole: {what}"
        if newest is not None:
            said = f"latest is {newest.name}, since newer checkpoints are not whole: {what}"
        told.update((f"latest {one.name}", said) for one in newer)
        warn(said)


def nothing_whole(ref: str, run: str | None, found: Sequence[Problem]) -> NoWholeCheckpoint:
    """Return the error for a ref to the newest checkpoint where none is whole."""
    of_run = "" if run is None else f" of the run {run!r}"
    again = f"to begin again, save to another run, or delete this one: ckstore delete --run {found[0].key.run}"
    return NoWholeCheckpoint(
        f"{ref}: no checkpoint{of_run} is whole, of {len(found)} that exist: {listed(found)}",
        hint="store.verify(repair=True) repairs what a remote has, repair_from= what a copy has; load one of them with "
        f"select= or verify=False to rescue what can be read; {again}",
        command_hint="ckstore verify --repair repairs what a remote has, --repair-from PLACE what a copy has; "
        f"ckstore export REF DEST --select NAME rescues a part; {again}",
    )


def listed(found: Sequence[Problem]) -> str:
    """Return a sentence that names the first few."""
    more = len(found) - _SHOWN
    text = "; ".join(f"{other.name}: {other.problem}" for other in found[:_SHOWN])
    return text + (f"; and {more} more" if more > 0 else "")
