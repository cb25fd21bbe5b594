"""Drop checkpoints that a newer checkpoint of the same step, or a later generation of the same checkpoint, supersedes.

A save drops the checkpoint that it replaces. If that checkpoint was open or the process died, gc drops it later.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

from ckstore.errors import CkstoreError, DamagedBlob, InUse, NoSuchRef, Protected
from ckstore.fs import dirfd_stat, locks
from ckstore.model.digest import short_id
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.names import CheckpointKey
from ckstore.model.words import some_of
from ckstore.objects import trash
from ckstore.objects.checkpoints import look
from ckstore.objects.shared.grace import Grace
from ckstore.ops.api_calls import describe_os_error, why_of
from ckstore.ops.check.validity import why_not_valid
from ckstore.ops.config_file import UNDO_BY_HAND_S, UNDO_BY_RULE_S, setting_of
from ckstore.ops.context import Context, tags_by_checkpoint
from ckstore.ops.free.drop import drop, drop_torn, make_kept_durable
from ckstore.ops.index.facts import facts_at
from ckstore.ops.index.reconcile import stamps
from ckstore.ops.notices import warn
from ckstore.ops.refs.evaluations import kept_for_evaluation
from ckstore.ops.refs.listing import infos
from ckstore.ops.refs.protection import check_tags, pins_by_id

# A process with an exclusive lock is dropping the checkpoint, which is quick. If the lock is held for longer, the next
# gc checks again.
_HOLD_TIMEOUT_S = 1.0


def drop_older(
    context: Context, new: CheckpointInfo, keys: Iterable[CheckpointKey], *, newer: bool = False
) -> list[str]:
    """Drop the checkpoints at `keys` that are older than `new`, which has the same step. Return notes for the user.

    With `newer`, also drop newer checkpoints. Afterwards, the caller must update the rows of all these checkpoints, and
    call `reclaim.free_unused` to empty the trash. The blobs that only the dropped checkpoints used are left to gc,
    which scans all processes once instead of after each save. No error is raised: `new` is durable, and gc drops the
    remaining checkpoints later.
    """
    notes: list[str] = []
    which = "another" if newer else "the older"
    # Begin with the latest generations: dropping the latest generation of a checkpoint also drops the others.
    for key in sorted(keys, key=lambda key: key.generation, reverse=True):
        try:
            _drop_one(context, new, key, newer=newer)
        except (FileNotFoundError, NotADirectoryError, NoSuchRef):  # another process dropped it
            continue
        except (Protected, InUse) as error:
            notes.append(f"{which} checkpoint of {new.name} is kept: {error.message}")
        except (CkstoreError, OSError) as error:
            notes.append(f"{which} checkpoint of {new.name} was not dropped: {why_of(error)}")
    return notes


def _drop_one(context: Context, new: CheckpointInfo, key: CheckpointKey, *, newer: bool) -> None:
    try:
        older = facts_at(context, key)
    except (DamagedBlob, FileNotFoundError):
        # If the directory holds a complete checkpoint of another step or with another hash, it is kept.
        found = look(context.layout, key)
        if found.problem and not found.is_another and not found.is_closed:
            drop_torn(context, key, protected=key.any_generation != new.key.any_generation, by_hand=False)
        return
    if older.order >= new.order and not newer:  # another save of the step was newer
        return
    # A drop that cannot be undone need not be durable: if a power cut restores the checkpoint, it is superseded, and gc
    # drops it again.
    undo_s = _undo_s(context)
    why, is_form = f"replaced by {short_id(new.id)}", older.id == new.id
    try:
        drop(context, older, why, undo_s, is_former_form=is_form, durable=undo_s > 0, catalogue=False)
    except Protected:
        # If all pins of the checkpoint are for files of an integration, the checkpoint is kept on purpose, for example
        # when two callbacks save at the same step. In that case, no note is needed.
        pins = pins_by_id(context, datetime.now(UTC)).get(older.id, ())
        if tags_by_checkpoint(context.layout).get(key.any_generation) or not all(pin.is_of_a_file for pin in pins):
            raise


class Due(NamedTuple):
    """A superseded checkpoint that may be dropped, or a former generation of a checkpoint."""

    info: CheckpointInfo
    holder: CheckpointInfo  # the valid checkpoint that supersedes `info`, or a later generation of the same one
    is_former_form: bool


def names_of(dropped: Iterable[Due]) -> tuple[str, ...]:
    """Return the name and the first digits of the id of each checkpoint, without former generations."""
    return tuple(f"{one.info.name} ({short_id(one.info.id)})" for one in dropped if not one.is_former_form)


class Drops(NamedTuple):
    """The superseded checkpoints that were dropped, and the digests of their blobs."""

    dropped: tuple[Due, ...]
    digests: set[str]


def due(
    context: Context,
    *,
    purge: bool = False,
    grace: Grace | None = None,
    without: Collection[CheckpointKey] = (),
    forms_only: bool = False,
) -> list[Due]:
    """Return the checkpoints that `drop_superseded` drops now, or after the checkpoints `without` were dropped.

    These are former generations of checkpoints, even of protected ones, and superseded checkpoints that are not
    protected and whose undo window is over. Open checkpoints are excluded. The undo window also applies to superseded
    checkpoints, because a user may have restored such a checkpoint. A damaged checkpoint supersedes nothing.

    Args:
        context: The store.
        purge: Whether to ignore the undo window.
        grace: The grace period. If given, it replaces the undo window.
        without: Checkpoints to treat as dropped.
        forms_only: Whether to return only former generations.
    """
    gone = {*without}
    by_step: defaultdict[tuple[str, int], list[CheckpointKey]] = defaultdict(list)
    for seen in context.known.directories.look(context.layout).values():
        for key in seen.published:
            if key not in gone:
                by_step[key.run_step].append(key)
    keys = [key for of_step in by_step.values() if len(of_step) > 1 for key in of_step]
    if not keys:
        return []
    complete: defaultdict[tuple[str, int], list[CheckpointInfo]] = defaultdict(list)
    for info in infos(context, at=stamps(context, keys)):
        complete[info.key.run_step].append(info)
    pins = None if forms_only else _pins(context)
    evaluated = kept_for_evaluation(context).waited_for
    found = []
    for key in keys:
        of_step = complete[key.run_step]
        older = next((one for one in of_step if one.key == key), None) or _incomplete(context, key)
        one = None if older is None else _due(context, older, of_step)
        if one is None or trash.in_use(context.layout.checkpoint(key)):
            continue
        is_free = pins is not None and not one.info.tags and one.info.id not in pins and one.info.id not in evaluated
        if one.is_former_form or (is_free and _is_over(context, key, purge=purge, grace=grace)):
            found.append(one)
    return found


def _due(context: Context, info: CheckpointInfo, of_step: Sequence[CheckpointInfo]) -> Due | None:
    """Return a checkpoint together with the valid checkpoint that supersedes it, or None if it is not superseded."""
    newer = [other for other in of_step if other.order > info.order]
    forms = [other for other in newer if other.id == info.id]
    for one in (*reversed(forms), *reversed(newer)):
        if not why_not_valid(context, one):
            return Due(info, one, is_former_form=one.id == info.id)
    return None


def _incomplete(context: Context, key: CheckpointKey) -> CheckpointInfo | None:
    """Return the facts in the manifest of an incomplete checkpoint, or None if the manifest cannot be read."""
    try:
        facts = facts_at(context, key)
    except (CkstoreError, OSError):  # it is unknown whether the checkpoint is older
        return None
    return replace(facts, tags=tags_by_checkpoint(context.layout).get(key.any_generation, ()))


def _pins(context: Context) -> Collection[str] | None:
    """Return the ids that are pinned, or None if tags and pins cannot be read."""
    try:
        check_tags(context.layout)
        return pins_by_id(context, datetime.now(UTC))
    except (CkstoreError, OSError):
        return None


def drop_superseded(
    context: Context, *, purge: bool = False, grace: Grace | None = None, forms_only: bool = False
) -> Drops:
    """Durably drop the checkpoints that `due` returns."""
    # If a checkpoint cannot be dropped, the next gc tries again, and `ckstore log --all` shows it.
    going = due(context, purge=purge, grace=grace, forms_only=forms_only)
    failures: dict[str, OSError] = {}
    for run in {one.info.run for one in going}:
        try:
            make_kept_durable(context, run)
        except OSError as error:
            failures[f"the run {run}"] = error
            going = [one for one in going if one.info.run != run]
    done: list[Due] = []
    digests: set[str] = set()
    for one in going:

        def check(_: locks.DirectoryLock, one: Due = one) -> None:
            if not one.is_former_form and not _is_over(context, one.info.key, purge=purge, grace=grace):
                raise InUse(f"{one.info.name} was restored")  # by a user, after `due` returned it

        try:
            with suppress(CkstoreError, FileNotFoundError, PermissionError), _held(context, one.holder) as is_valid:
                if is_valid:
                    form = one.is_former_form
                    at_once = form or (purge and trash.may_purge(context.layout.checkpoint(one.info.key)))
                    undo_s = 0 if at_once else _undo_s(context)
                    dropped = drop(context, one.info, "superseded", undo_s, check, is_former_form=form)
                    digests.update(dropped.digests)
                    done.append(one)
        except OSError as error:
            failures[one.info.shown] = error
    if failures:
        problems = [f"{what}: {describe_os_error(error)}" for what, error in failures.items()]
        warn(f"superseded checkpoints were not dropped, but everything else was done: {some_of(problems, 3)}")
    return Drops(tuple(done), digests)


@contextmanager
def _held(context: Context, info: CheckpointInfo) -> Iterator[bool]:
    """Hold a shared lock on a checkpoint, so that no process drops it, and yield whether it is valid."""
    with locks.lock_shared(context.layout.checkpoint(info.key), timeout_s=_HOLD_TIMEOUT_S):
        yield not why_not_valid(context, info)


def _is_over(context: Context, key: CheckpointKey, *, purge: bool, grace: Grace | None) -> bool:
    """Whether the undo window of a superseded checkpoint is over."""
    path = context.layout.checkpoint(key)
    if grace is not None:
        return grace.is_over(path)
    # On a shared filesystem, the undo window does not apply. Without `grace`, the caller does not observe the grace
    # period either, for example in a gc with `exclusive` or in a dry run.
    if not context.view.frees_at_once or (purge and trash.may_purge(path)):
        return True
    # The window begins when the directory gets its name, and again with each change of the annotations. It is measured
    # by ctime, which no user can set back.
    found = dirfd_stat.find(path)
    # It is unknown whether a user or a rule dropped the checkpoint, so the longer window applies.
    window_s = max(setting_of(context.layout, UNDO_BY_HAND_S), _undo_s(context))
    return found is None or not trash.left_of(window_s, found.st_ctime)


def is_undone(context: Context) -> bool:
    """Whether the checkpoints that `drop_superseded` drops can be restored from trash for a time."""
    return context.has_undo and _undo_s(context) > 0


def _undo_s(context: Context) -> float:
    """Return for how many seconds a drop by a rule can be undone.

    An error in the settings is raised, because nothing may be dropped while the promised undo window is unknown.
    """
    return setting_of(context.layout, UNDO_BY_RULE_S)
