"""Drop what a newer checkpoint of the same step, or a later form of the same checkpoint, supersedes.

A save that replaces does it at once; what it could not drop, since it was open or the process died, gc drops.
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

# Who has it alone is dropping it, which takes a moment; then the next gc looks again.
_HOLD_TIMEOUT_S = 1.0


def drop_older(
    context: Context, new: CheckpointInfo, keys: Iterable[CheckpointKey], *, newer: bool = False
) -> list[str]:
    """Drop the checkpoints at `keys`, of the step of `new`, that come before it; return what the user should know.

    With `newer` also those that come after it. The caller reconciles the rows of all, then calls `reclaim.free_unused`:
    blobs that only they used are left for gc, which looks at all processes once and not with each save. Raises nothing:
    `new` is durable, and gc drops the others later.
    """
    notes: list[str] = []
    which = "another" if newer else "the older"
    # The later generations first: the others of a checkpoint go with its latest.
    for key in sorted(keys, key=lambda key: key.generation, reverse=True):
        try:
            _drop_one(context, new, key, newer=newer)
        except (FileNotFoundError, NotADirectoryError, NoSuchRef):  # another process dropped it
            continue
        except (Protected, InUse) as error:
            notes.append(f"{which} checkpoint of {new.name} stays: {error.message}")
        except (CkstoreError, OSError) as error:
            notes.append(f"{which} checkpoint of {new.name} was not dropped: {why_of(error)}")
    return notes


def _drop_one(context: Context, new: CheckpointInfo, key: CheckpointKey, *, newer: bool) -> None:
    try:
        older = facts_at(context, key)
    except (DamagedBlob, FileNotFoundError):
        _discard_unreadable(context, new, key)
        return
    if older.order >= new.order and not newer:  # another save of the step came after this one
        return
    # Nothing is promised of what cannot be undone, so a power cut may bring it back, superseded; gc drops it again.
    undo_s = _undo_s(context)
    why, is_form = f"replaced by {short_id(new.id)}", older.id == new.id
    try:
        drop(context, older, why, undo_s, is_former_form=is_form, durable=undo_s > 0, catalogue=False)
    except Protected:
        # What files of an integration name is meant to stay, as with two callbacks that save at one step: no news.
        pins = pins_by_id(context, datetime.now(UTC)).get(older.id, ())
        if tags_by_checkpoint(context.layout).get(key.any_generation) or not all(pin.is_of_a_file for pin in pins):
            raise


def _discard_unreadable(context: Context, new: CheckpointInfo, key: CheckpointKey) -> None:
    """Move a directory without a readable manifest to trash, unless a tag or a pin names it, or a process has it open.

    A whole checkpoint that was put there stays: it is one of another step, or of another hash.
    """
    found = look(context.layout, key)
    if found.problem and not found.is_another and not found.is_closed:
        drop_torn(context, key, protected=key.any_generation != new.key.any_generation, by_hand=False)


class Due(NamedTuple):
    """A superseded checkpoint that may go, or a former generation of one."""

    info: CheckpointInfo
    holder: CheckpointInfo  # the valid one that supersedes it, or a later generation of it
    is_former_form: bool


def due(
    context: Context,
    *,
    purge: bool = False,
    grace: Grace | None = None,
    without: Collection[CheckpointKey] = (),
    forms_only: bool = False,
) -> list[Due]:
    """Return what `drop_superseded` drops now, or after the checkpoints `without` were dropped.

    These are the superseded checkpoints that are neither protected nor open and whose undo window is over, or all with
    `purge`, and, whatever protects them, the former generations of other checkpoints; with `forms_only` these alone.
    With `grace` that is the window. The window is that of what a person drops, since it may be one that came back.
    Nothing is due for the sake of a checkpoint that is damaged.
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
    """Return a checkpoint with the valid one that supersedes it; None: there is none."""
    newer = [other for other in of_step if other.order > info.order]
    forms = [other for other in newer if other.id == info.id]
    for one in (*reversed(forms), *reversed(newer)):
        if not why_not_valid(context, one):
            return Due(info, one, is_former_form=one.id == info.id)
    return None


def _incomplete(context: Context, key: CheckpointKey) -> CheckpointInfo | None:
    """Return what the manifest of a checkpoint says that is not complete; None if it cannot be read."""
    try:
        facts = facts_at(context, key)
    except (CkstoreError, OSError):  # nothing tells that it is older
        return None
    return replace(facts, tags=tags_by_checkpoint(context.layout).get(key.any_generation, ()))


def _pins(context: Context) -> Collection[str] | None:
    """Return the ids that are pinned; None: it is not known what tags and pins protect."""
    try:
        check_tags(context.layout)
        return pins_by_id(context, datetime.now(UTC))
    except (CkstoreError, OSError):
        return None


def drop_superseded(
    context: Context, *, purge: bool = False, grace: Grace | None = None, forms_only: bool = False
) -> set[str]:
    """Drop what is `due`, durably; return the digests of what was dropped."""
    # The next gc asks again for the checkpoints that stay, and `ckstore log --all` shows them.
    going = due(context, purge=purge, grace=grace, forms_only=forms_only)
    failures: dict[str, OSError] = {}
    for run in {one.info.run for one in going}:
        try:
            make_kept_durable(context, run)
        except OSError as error:
            failures[f"the run {run}"] = error
            going = [one for one in going if one.info.run != run]
    undo_s = _undo_s(context)
    digests: set[str] = set()
    for one in going:

        def check(_: locks.DirectoryLock, one: Due = one) -> None:
            if not one.is_former_form and not _is_over(context, one.info.key, purge=purge, grace=grace):
                raise InUse(f"{one.info.name} was brought back")  # since it was found due

        try:
            with suppress(CkstoreError, FileNotFoundError, PermissionError), _held(context, one.holder) as is_valid:
                if is_valid:
                    form = one.is_former_form
                    at_once = form or (purge and trash.may_purge(context.layout.checkpoint(one.info.key)))
                    dropped = drop(
                        context, one.info, "superseded", 0 if at_once else undo_s, check, is_former_form=form
                    )
                    digests.update(dropped.digests)
        except OSError as error:
            failures[one.info.shown] = error
    if failures:
        problems = [f"{what}: {describe_os_error(error)}" for what, error in failures.items()]
        warn(f"superseded checkpoints were not dropped, and everything else was done: {some_of(problems, 3)}")
    return digests


@contextmanager
def _held(context: Context, info: CheckpointInfo) -> Iterator[bool]:
    """Lock a checkpoint for use, so that no process drops it meanwhile; give whether it is valid."""
    with locks.lock_shared(context.layout.checkpoint(info.key), timeout_s=_HOLD_TIMEOUT_S):
        yield not why_not_valid(context, info)


def _is_over(context: Context, key: CheckpointKey, *, purge: bool, grace: Grace | None) -> bool:
    """Whether a checkpoint has had its name for longer than the window."""
    path = context.layout.checkpoint(key)
    if grace is not None:
        return grace.is_over(path)
    # No other host is at work, or a dry run says what goes after the grace.
    if context.shared or (purge and trash.may_purge(path)):
        return True
    # Its rename to its name set ctime, which no user can set back.
    found = dirfd_stat.find(path)
    window_s = max(setting_of(context.layout, UNDO_BY_HAND_S), _undo_s(context))  # a person or a rule dropped it
    return found is None or not trash.left_of(window_s, found.st_ctime)


def is_undone(context: Context) -> bool:
    """Whether what `drop_superseded` drops waits in trash to be brought back."""
    return context.has_undo and _undo_s(context) > 0


def _undo_s(context: Context) -> float:
    try:
        return setting_of(context.layout, UNDO_BY_RULE_S)
    except (CkstoreError, OSError):  # the checkpoint is saved; what it replaced goes as if nothing was set
        return 0
