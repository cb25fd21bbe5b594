"""Make room for a save that would not fit, by the policy that the store keeps for that; else say what would.

Nothing is dropped unless it is enough, and no more than is enough, the oldest first; the rules of retention hold as
ever: tags, pins, readers and the newest valid checkpoint of each run stay.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from ckstore.errors import CkstoreError, InUse
from ckstore.model.settings.free_space import Amount, Way, advice, shortest
from ckstore.model.settings.retention import RetentionPolicy
from ckstore.model.settings.retention_plan import PlanEntry
from ckstore.objects import trash
from ckstore.ops.config_file import MAKE_ROOM, UNDO_BY_HAND_S, policy_of, setting_of
from ckstore.ops.free.gc import collect
from ckstore.ops.free.gc_plan import freed_in_turn, plan_gc
from ckstore.ops.free.retain import carry_out, plan_retention

if TYPE_CHECKING:
    from ckstore.ops.context import Context

_KEEP_LAST = (10, 3, 1)
"""What the advice plays through, the gentlest first."""
# Its directory, blobs/ in it, and the manifest.
_CHECKPOINT_INODES = 3
_ROUNDS = 3
_SHOWN = 5


def make_room(context: Context, new: Amount, claimed: Collection[str]) -> tuple[str, ...]:
    """Free what a save lacks, where the policy of the store for that allows it; on a shared filesystem drop nothing.

    To drop checkpoints with the blobs that it has `claimed` would not free those. Returned is what was dropped, in a
    sentence.

    Raises:
        CkstoreError: The policy or a pin cannot be read, or the catalog cannot be used; what was dropped is dropped.
    """
    # First what was dropped before: to be able to bring it back is worth less than this save, and than what is there.
    purge(context)
    policy = policy_of(context.layout, MAKE_ROOM)
    if policy is None or context.measure(new).fits:
        return ()
    if context.shared:  # what is dropped now would be freed after the grace; what was dropped before may go
        collect(context, settle=False)
        return ()
    dropped: list[str] = []
    for _ in range(_ROUNDS):  # a process may have opened what was to go
        missing = context.measure(new).missing
        chosen = None if missing == Amount() else _choose(context, policy, missing, claimed)
        if chosen is None:
            break
        made = plan_retention(context, policy, urgent=True)
        entries = tuple(entry for entry in made.entries if entry.keep or entry.info.name in chosen)
        report = carry_out(context, replace(made, entries=entries))
        dropped += [info.name for info in report.dropped]
        collect(context)
    if not dropped:
        return ()
    more = f" and {len(dropped) - _SHOWN} more" if len(dropped) > _SHOWN else ""
    return (f"dropped {', '.join(dropped[:_SHOWN])}{more} to make room for this save",)


def purge(context: Context) -> bool:
    """Free what waits to be brought back, as far as that works; False if nothing waits.

    Where other hosts may be at work the grace holds.
    """
    if context.shared or not trash.has_waiting(context.layout):
        return False
    with suppress(InUse):  # another collector is at work
        collect(context, settle=False, purge=True)
    return True


def _choose(context: Context, policy: RetentionPolicy, missing: Amount, claimed: Collection[str]) -> set[str] | None:
    """Return which checkpoints to drop, oldest first, so that gc frees what is missing; None: it cannot be enough."""
    by_gc = _freed_by_gc(context)
    oldest_first = sorted(plan_retention(context, policy, urgent=True).dropped, key=lambda entry: entry.info.order)
    count = shortest([by_gc, *_freed_by_each(context, oldest_first, claimed)], missing)
    return None if count is None else {entry.info.name for entry in oldest_first[: max(0, count - 1)]}


def _freed_by_gc(context: Context) -> Amount:
    planned = plan_gc(context, purge=True)
    return Amount(planned.freed_bytes, planned.freed_count)


def _freed_by_each(context: Context, entries: Sequence[PlanEntry], claimed: Collection[str] = ()) -> list[Amount]:
    freed = []
    for blobs in freed_in_turn(context, ((entry.run, entry.step) for entry in entries)):
        sizes = [nbytes for digest, nbytes in blobs if digest not in claimed]
        freed.append(Amount(sum(sizes), _CHECKPOINT_INODES + len(sizes)))
    return freed


def how_to_free(context: Context, missing: Amount | None = None) -> str:
    """Return in words what would free how much of what is missing, if that is known.

    Nothing is raised, since it is only advice.
    """
    try:
        by_gc = _freed_by_gc(context)
        gc = "gc --exclusive" if context.shared else "gc"
        if not context.shared and (setting_of(context.layout, UNDO_BY_HAND_S) or trash.has_waiting(context.layout)):
            gc = "gc --now"
        ways = [Way(f"ckstore {gc}", by_gc)]
        for count in _KEEP_LAST:
            plan = plan_retention(context, RetentionPolicy(keep_last=count), sure=False)  # it is only advice
            frees = sum(_freed_by_each(context, plan.dropped), by_gc)
            ways.append(Way(f"ckstore prune --keep-last {count} and then {gc}", frees))
            if missing is not None and frees.covers(missing):
                break
    except (CkstoreError, OSError):  # the refusal itself is the news
        return "drop old checkpoints (ckstore prune), then ckstore gc, or free space on the filesystem"
    return advice(ways, missing)
