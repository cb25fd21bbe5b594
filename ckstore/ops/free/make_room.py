"""Make room for a save that would not fit, and apply the retention policy after a save.

A save that would not fit first evicts checkpoints that a remote or another store also has. Then it drops checkpoints by
the policy `make_room`. Checkpoints are removed only if this frees enough, the oldest first, and no more than necessary.
Checkpoints that are tagged, pinned or open, and the newest valid checkpoint of each run, are protected as always. If
the save still does not fit, its error contains advice on how to free space.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from ckstore.errors import CatalogUnavailable, CkstoreError, InUse
from ckstore.fs.lock_files import service_failed
from ckstore.model.manifest.info import CheckpointInfo, is_local
from ckstore.model.reports.held_blobs import HeldBlob, by_reason, held_size
from ckstore.model.settings.free_space import Amount, Way, advice, shortest
from ckstore.model.settings.retention import RetentionPolicy
from ckstore.model.settings.retention_plan import PlanEntry, RetentionPlan
from ckstore.model.words import counted, some_of
from ckstore.objects import reserve, trash
from ckstore.ops import download_cache
from ckstore.ops.api_calls import describe_os_error
from ckstore.ops.config_file import (
    BUDGET,
    KEEP_LOCAL,
    UNDO_BY_HAND_S,
    UNDO_BY_RULE_S,
    make_room_of,
    policy_of,
    rules_of,
    setting_of,
)
from ckstore.ops.context import Context, Publication
from ckstore.ops.free.drop import tell_unfreed
from ckstore.ops.free.gc import collect
from ckstore.ops.free.gc_plan import freed_in_turn, plan_gc
from ckstore.ops.free.retain import bytes_on_disk, carry_out, plan_drops, plan_retention
from ckstore.ops.free.superseded_checkpoints import drop_superseded, due
from ckstore.ops.index.catalog_place import why_of_several_users

_KEEP_LAST = (10, 3, 1)
"""The values of `keep_last` that the advice tries, the largest first."""
# The inodes of a checkpoint apart from its blobs: its directory, the directory blobs/ in it, and the manifest.
_CHECKPOINT_INODES = 3
_ROUNDS = 3
_SHOWN = 5


def make_room(context: Context, new: Amount, claimed: Collection[str]) -> tuple[str, ...]:
    """Free the space that a save lacks, and return one sentence for each action.

    On a shared filesystem, nothing is dropped. The blobs in `claimed` do not count as freed by dropping checkpoints,
    because the save uses them.
    """
    # Clear the download cache first, since its content can be downloaded again.
    download_cache.clear(context.layout)
    # Then free dropped and superseded checkpoints, which are worth less than current ones.
    purge(context)
    policy, own_only = make_room_of(context.layout)
    planned = partial(plan_retention, context, policy, urgent=True, own_only=own_only)
    if context.measure(new).fits:
        return ()
    # Checkpoints dropped now would be freed only after the grace period. Only free those that were dropped earlier.
    if not context.view.frees_at_once:
        if policy is not None:
            collect(context, settle=False)
        return ()
    evicted = _let_go(context, policy, planned, new, claimed)
    if policy is None or context.measure(new).fits:
        return evicted
    dropped: list[str] = []
    for _ in range(_ROUNDS):  # try again, since a process may have opened a chosen checkpoint
        missing = context.measure(new).missing
        chosen = None if missing == Amount() else _choose(context, planned, missing, claimed)
        if chosen is None:
            break
        made = planned()
        going = [entry for entry in made.dropped if entry.info.name in chosen]
        told = [replace(entry, reasons=("a save needed its space", *entry.reasons)) for entry in going]
        report = carry_out(context, replace(made, entries=(*made.kept, *told)))
        dropped += [info.name for info in report.dropped]
        collect(context)
    if not dropped:
        return evicted
    return (*evicted, f"dropped {some_of(dropped, _SHOWN)} to make room for this save")


def _let_go(
    context: Context,
    policy: RetentionPolicy | None,
    planned: Callable[[], RetentionPlan],
    new: Amount,
    claimed: Collection[str],
) -> tuple[str, ...]:
    """Evict checkpoints that another place has, if evictions and drops can free enough.

    Return a sentence about the eviction, or an empty tuple.
    """
    evictor = None if context.evictor is None else context.evictor()
    if evictor is None:
        return ()
    stays = policy_of(context.layout, KEEP_LOCAL) or policy or RetentionPolicy(keep_last=1)
    able = _oldest_first(evictor.plan(stays).dropped)
    names = {entry.info.name for entry in able}
    # If evictions are not enough, the caller also drops checkpoints that were not evicted.
    others = [] if policy is None else _droppable(planned)
    ways = [*able, *(entry for entry in others if entry.info.name not in names)]
    freed = [_freed_by_gc(context), *_freed_by_each(context, ways, claimed)]
    count = shortest(freed, context.measure(new).missing)
    going = [entry.info for entry in able[: max(0, count - 1)]] if count is not None else []
    if not going:
        return ()
    try:
        # An eviction records where the data is. On a full disk, this record needs the space of the reserve.
        with reserve.given_up(context.layout):
            evicted = evictor.evict(going)
    except CkstoreError as error:  # if the place is unreachable, the policy must still be able to make room
        return (f"no checkpoint on {evictor.name} was evicted locally: {error.message}",)
    collect(context)
    if not evicted:
        return ()
    told = some_of([info.name for info in evicted], _SHOWN)
    return (f"evicted the local data of {told}, which {evictor.name} has, to make room for this save",)


def _oldest_first(entries: Sequence[PlanEntry]) -> list[PlanEntry]:
    return sorted(entries, key=lambda entry: entry.info.order)


def _droppable(planned: Callable[[], RetentionPlan]) -> list[PlanEntry]:
    """Return the checkpoints that the policy drops, the oldest first, without those that have no local data."""
    return _oldest_first([entry for entry in planned().dropped if is_local(entry.info)])


def purge(context: Context) -> bool:
    """Free superseded checkpoints, and dropped ones that could still be restored. Return whether there were any.

    Nothing is freed if another collector is running, or on a shared filesystem, where the grace period applies.
    """
    if not context.view.frees_at_once or not (trash.has_waiting(context.layout) or due(context, purge=True)):
        return False
    with suppress(InUse):  # another collector is running
        collect(context, settle=False, purge=True)
    return True


def _choose(
    context: Context, planned: Callable[[], RetentionPlan], missing: Amount, claimed: Collection[str]
) -> set[str] | None:
    """Return the names of the checkpoints to drop so that gc frees enough, or None if dropping all is not enough.

    The oldest checkpoints are chosen first.
    """
    by_gc = _freed_by_gc(context)
    oldest_first = _droppable(planned)
    count = shortest([by_gc, *_freed_by_each(context, oldest_first, claimed)], missing)
    return None if count is None else {entry.info.name for entry in oldest_first[: max(0, count - 1)]}


def _freed_by_gc(context: Context) -> Amount:
    planned = plan_gc(context, [one.info.key for one in due(context, purge=True)], purge=True)
    return Amount(planned.freed_bytes + download_cache.clearable_bytes(context.layout), planned.freed_count)


def _freed_by_each(
    context: Context, entries: Sequence[PlanEntry] | Sequence[CheckpointInfo], claimed: Collection[str] = ()
) -> list[Amount]:
    freed = []
    infos = (one.info if isinstance(one, PlanEntry) else one for one in entries)
    for blobs in freed_in_turn(context, (context.layout.checkpoint(info.key) for info in infos)):
        sizes = [nbytes for digest, nbytes in blobs if digest not in claimed]
        freed.append(Amount(sum(sizes), _CHECKPOINT_INODES + len(sizes)))
    return freed


def how_to_free(context: Context, missing: Amount | None = None) -> str:
    """Return advice on how to free space: commands, how much each frees, and whether that covers `missing`.

    No error is raised, since the result is only advice.
    """
    try:
        by_gc = _freed_by_gc(context)
        frees_at_once = context.view.frees_at_once
        gc = "gc" if frees_at_once else "gc --exclusive"
        if frees_at_once and (setting_of(context.layout, UNDO_BY_HAND_S) or trash.has_waiting(context.layout)):
            gc = "gc --now"
        ways = [Way(f"ckstore {gc}", by_gc)]
        if frees_at_once and context.evictor is not None and (evictor := context.evictor()) is not None:
            evicts = sum(_freed_by_each(context, evictor.evictable()), by_gc)
            ways.append(Way(f"ckstore evict --all --remote {evictor.name}", evicts))
        for count in _KEEP_LAST:
            plan = plan_retention(context, RetentionPolicy(keep_last=count), sure=False)
            frees = sum(_freed_by_each(context, plan.dropped), by_gc)
            ways.append(Way(f"ckstore prune --keep-last {count} and then {gc}", frees))
            if missing is not None and frees.covers(missing):
                break
    except (CkstoreError, OSError):  # an error here must not hide the error that needs the advice
        return "drop old checkpoints (ckstore prune), then ckstore gc --now, or free space on the filesystem"
    return advice(ways, missing)


_UNASKED = "unasked"


def keep_policy(publication: Publication) -> Sequence[str]:
    """Apply the policy of the store to the run of a new checkpoint, run gc, and return notes for the user."""
    context, config, run = publication.context, publication.settings, publication.checkpoint.run
    rules = rules_of(context.layout, config)
    policy = rules.of(run)
    if policy is None and rules.budget is None:
        return ()
    undo_s = UNDO_BY_RULE_S.of(config, str(context.layout.config))
    plans = [] if policy is None else [plan_drops(context, policy, run, own_only=rules.is_own_only(run))]
    done = [carry_out(context, plan, undo_s) for plan in plans]
    if rules.budget is not None and _used_bytes(context, own_only=BUDGET in rules.own_only) > rules.budget.most:
        drop_superseded(context, purge=True)  # superseded checkpoints are worth less than all others
        plans.append(plan_retention(context, None))
        done.append(carry_out(context, plans[-1], undo_s))
    dropped = any(report.dropped for report in done)
    refused = [one for report in done for one in report.skipped if one.error is not None]
    unfreed = ""
    try:
        if policy is not None or dropped:
            unfreed = _collect(context, dropped=dropped)
    except (CkstoreError, OSError):
        if not refused:  # if a drop failed, its error is probably the cause and is reported below
            raise
    notes = [*dict.fromkeys(note for plan in plans for note in plan.notes)]
    notes += [unfreed] if unfreed else []
    if refused:
        names = some_of([one.info.name for one in refused], _SHOWN)
        why = describe_os_error(refused[0].error) if refused[0].error else ""
        notes.insert(0, failed_afterwards("retention", run, f"{why}; not dropped: {names}"))
    return notes


def failed_afterwards(what: str, run: str, why: str) -> str:
    """Return the message for an action that failed after a commit."""
    return f"the checkpoint is saved, but {what} of the run {run} failed afterwards: {why}"


def _used_bytes(context: Context, *, own_only: bool) -> int:
    """Return the size in bytes of the blobs of all checkpoints, or of those that this user saved.

    The result only decides whether the budget must be checked exactly.
    """
    # The catalog counts equal blobs of several users only once, and does not record who saved a checkpoint.
    if own_only or why_of_several_users(context.layout.path):
        return bytes_on_disk(context, own_only=own_only)
    try:
        return context.catalog.used_bytes()
    except CatalogUnavailable:  # the exact check then reads the directories
        return sys.maxsize


def _collect(context: Context, *, dropped: bool) -> str:
    """Free the dropped checkpoints; return a note about blobs that were not freed and why, or an empty string."""
    frees_at_once = context.view.frees_at_once
    if not frees_at_once and not dropped:
        return ""
    try:
        held = collect(context, settle=False).held
        if not frees_at_once:
            return tell_unfreed(context)
    except InUse as error:  # another gc is running; it or the next gc frees the space
        if service_failed(error):
            raise
        return ""
    opened, unasked = by_reason(held)
    if opened:
        return f"retention left {_blobs(opened)} because processes have them open; ckstore gc names the processes"
    if not unasked or _UNASKED in context.notices.problems:
        return ""
    why, blobs = next(iter(unasked.items()))
    context.notices.problems[_UNASKED] = f"retention left {_blobs(blobs)}: {why}"
    return context.notices.problems[_UNASKED]


def _blobs(blobs: Sequence[HeldBlob]) -> str:
    return f"{held_size(blobs)} in {counted(len(blobs), 'blob')}"
