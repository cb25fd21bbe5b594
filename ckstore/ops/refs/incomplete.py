"""Directories that are named like a checkpoint but are incomplete, and the reports about them for the newest one.

A directory counts by its name in ``checkpoints/RUN/``. Leftovers of a dead save in ``staging/`` never were checkpoints.
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
    """A checkpoint that cannot be used, and the reason."""

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
    """Return the problems of incomplete directories, the newest first."""
    found = [one for key in sorted(keys) if (one := _problem(context, key)) is not None]
    return sorted(found, key=lambda one: (one.order is not None, one.order or (), one.key), reverse=True)


def _problem(context: Context, key: CheckpointKey) -> Problem | None:
    try:
        glanced = glance(context.layout.checkpoint(key), key)
        # `look` also checks the hash of the store.
        problem = glanced.problem or look(context.layout, key).problem
    except (FileNotFoundError, NotADirectoryError):  # dropped since it was listed
        return None
    if not problem:  # repaired since
        return None
    if glanced.manifest is None:
        # Without a manifest its time is not known.
        return Problem(key.name, f"{problem} (so it may be older)", None, key)
    order = (glanced.manifest.sequence, glanced.manifest.created, glanced.manifest_id, key.generation)
    return Problem(key.name, problem, order, key)


def newer_than(info: CheckpointInfo, found: Iterable[Problem]) -> list[Problem]:
    """Return the problems that are or may be newer than a checkpoint: older ones do not concern a running training."""
    return [one for one in found if one.order is None or one.order > info.order]


def repair_newer(context: Context, newest: CheckpointInfo | None, torn: Collection[CheckpointKey]) -> bool:
    """Repair the newest torn directory that is newer than `newest` from a remote; return whether one was repaired."""
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
    """Raise if there are only incomplete checkpoints; warn once per open store if incomplete ones are newer.

    Args:
        context: The store.
        run: The run, or None for all runs.
        newest: The newest complete checkpoint.
        torn: The directories of the run, or of all runs, without a complete checkpoint.
        ref: The requested ref.
    """
    if not torn:
        return
    if newest is None and (found := problems_of(context, torn)):
        raise nothing_whole(ref, run, found)
    tell_torn(context, newest, torn)


def tell_torn(context: Context, newest: CheckpointInfo | None, torn: Collection[CheckpointKey]) -> None:
    """Warn, once per open store, about incomplete checkpoints that are or may be newer than the newest one."""
    found = problems_of(context, torn)
    newer = found if newest is None else newer_than(newest, found)
    told = context.notices.problems
    if any(f"latest {one.name}" not in told for one in newer):
        what = f"{listed(newer)}. ckstore verify --repair repairs what it can"
        said = f"checkpoints are incomplete or damaged: {what}"
        if newest is not None:
            said = f"latest is {newest.name}, since newer checkpoints are incomplete or damaged: {what}"
        told.update((f"latest {one.name}", said) for one in newer)
        warn(said)


def nothing_whole(ref: str, run: str | None, found: Sequence[Problem]) -> NoWholeCheckpoint:
    """Return the error for a ref to the newest checkpoint if all are incomplete."""
    of_run = "" if run is None else f" of the run {run!r}"
    again = f"to start over, save to another run, or delete this one: ckstore delete --run {found[0].key.run}"
    return NoWholeCheckpoint(
        f"{ref}: no checkpoint{of_run} is complete. {len(found)} exist: {listed(found)}",
        hint="store.verify(repair=True) repairs from a remote, repair_from= from a copy. Load one of them with "
        f"select= or verify=False to rescue readable data; {again}",
        command_hint="ckstore verify --repair repairs from a remote, --repair-from PLACE from a copy. "
        f"ckstore export REF DEST --select NAME rescues a part; {again}",
    )


def listed(found: Sequence[Problem]) -> str:
    """Return a sentence with the first few problems."""
    more = len(found) - _SHOWN
    text = "; ".join(f"{other.name}: {other.problem}" for other in found[:_SHOWN])
    return text + (f"; and {more} more" if more > 0 else "")
