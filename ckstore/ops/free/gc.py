"""Free the blobs that the store does not need and that no process has open.

gc makes a plan (`ckstore.ops.free.gc_plan`) and carries it out step by step. Each step checks every item again:

(0) On a full disk, release the reserve. Update the catalog with checkpoints that other processes published or dropped.
    On a shared filesystem, inspect every checkpoint.
(a) Rename directories of dead saves in ``staging/`` to ``trash/``.
(b) Make ``trash/`` and the former parents of its entries durable. Enter the digests of the entries, including leftovers
    of a killed gc, into the catalog, and then remove the entries.
(c) Find unused blobs whose only link is the canonical name. Rename them to ``trash/``, and check them again.
(d) Make ``trash/`` durable, unlink these blobs, and delete their rows if they are still unused.

Saves continue during a gc: each batch locks the catalog for one short transaction, and takes no other lock that saves
need. The cost depends on the amount to free: the catalog lists the candidates, and ``blobs/`` is not walked.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from dataclasses import replace

from ckstore.errors import CatalogUnavailable, CkstoreError, InUse
from ckstore.fs import dirfd_stat, files
from ckstore.fs.dirfd_stat import NotInStore
from ckstore.fs.lock_holders import lock_holders, named_holders
from ckstore.model.digest import short_id
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.names import SHORT_DIGITS, CheckpointKey, parse_directory
from ckstore.model.reports.gc_report import GcPlan, GcReport
from ckstore.model.reports.retention_report import RetentionReport
from ckstore.model.settings.retention import RetentionPolicy
from ckstore.model.settings.retention_plan import RetentionPlan
from ckstore.model.words import counted, some_of
from ckstore.objects import reserve, trash
from ckstore.objects.collector import Collector
from ckstore.objects.documents import evaluations
from ckstore.objects.generations import other_generations
from ckstore.objects.shared import grace as graces
from ckstore.objects.shared.grace import Grace
from ckstore.ops import download_cache, events
from ckstore.ops.api_calls import describe_error, describe_os_error, of_the_system, unsafe
from ckstore.ops.config_file import GRACE_S, UNDO_BY_HAND_S, setting_of
from ckstore.ops.context import Context
from ckstore.ops.free import reclaim, retain
from ckstore.ops.free.gc_plan import differences, linked_outside, plan_gc
from ckstore.ops.free.superseded_checkpoints import drop_superseded, due, is_undone, names_of
from ckstore.ops.free.undo import waiting, would_wait
from ckstore.ops.index.catalog_update import catch_up, mend
from ckstore.ops.index.reconcile import TIMEOUT_S, reconcile_all
from ckstore.ops.index.scan_blobs import list_blobs
from ckstore.ops.notices import warn

_CATALOG_TIMEOUT_S = 30.0
_MENDED = ("missing", "behind", "damaged")
# A failed save or a delete locks the trash for milliseconds, so gc waits for this lock. Another gc holds the lock for
# longer, so this gc does not wait for it.
_START_TIMEOUT_S = 1.0
_START_PAUSE_S = 0.01
# XFS counts freed blocks as free within half a second. While free space still grows, wait a little longer.
_SETTLE_S = 0.5
_QUIET_S = 0.1
_OWN_WRITES_BYTES = 2**20
_NAMES_SHOWN = 10  # the maximum number of names in the warning; the report has all of them, which can be thousands


def prune(
    context: Context,
    policy: RetentionPolicy | RetentionPlan | None,
    run: str | None,
    *,
    dry_run: bool,
    exclusive: bool,
    now: bool = False,
) -> GcReport:
    """Drop the checkpoints that a policy does not keep, then run `collect`. A dry run only reports the effect."""
    if isinstance(policy, RetentionPlan):
        plan = retain.part_of(context, policy, run)
    else:
        plan = retain.plan_asked(context, policy, run)
    if dry_run:
        if isinstance(policy, RetentionPlan):  # the plan was made earlier, so compare it with the store as it is now
            would = retain.carry_out(context, plan, dry_run=True)
        else:
            would = RetentionReport(plan, dropped=tuple(entry.info for entry in plan.dropped), dry_run=True)
        return replace(_gc_dry_after(context, would.dropped, now=now), retention=would)
    # Check the store and the setting before the first drop, so that they cause no error after a drop.
    context.check_writable()
    _grace_for(context, exclusive=exclusive)
    undo_s = 0 if now else setting_of(context.layout, UNDO_BY_HAND_S)
    done = retain.carry_out(context, plan, undo_s, by_hand=True)
    if done.refused and not done.dropped:  # if some were dropped, the report names the refused ones instead
        raise done.refused[0]
    try:
        report = collect(context, exclusive=exclusive)
    except CkstoreError as error:
        if not done.dropped:
            raise
        # The drops are done. An error instead of the report would hide them from the caller.
        names = some_of([info.name for info in done.dropped], _NAMES_SHOWN)
        warn(f"dropped {names}, but their space is not free yet. The next gc frees it: {error}")
        report = GcReport(trash_left=tuple(trash.due(context.layout)), waiting=waiting(context))
    return replace(report, retention=done)


def _gc_dry_after(context: Context, infos: Sequence[CheckpointInfo], *, now: bool) -> GcReport:
    """Return what `collect` would free after a prune by hand dropped these checkpoints."""
    layout = context.layout
    others = [key for info in infos for key in other_generations(layout, info.key, info.id)]
    undo_s = setting_of(layout, UNDO_BY_HAND_S) if context.has_undo and not now else 0
    if not undo_s:
        return gc_dry(context, [*(info.key for info in infos), *others])
    # The checkpoints themselves first wait in trash. Their other generations cannot be restored, and do not wait.
    report = gc_dry(context, others, keeping=[info.key for info in infos])
    would = would_wait(context, report.waiting, infos, undo_s)
    return replace(report, waiting=(*would, *report.waiting), next_to_free=None if would else report.next_to_free)


def gc(context: Context, *, dry_run: bool, exclusive: bool, purge: bool) -> GcReport:
    """Run `collect` and clear the download cache; see `ckstore.Store.gc`."""
    if dry_run:
        report, cached_bytes = gc_dry(context, purge=purge), download_cache.clearable_bytes(context.layout)
    else:
        report = collect(context, exclusive=exclusive, purge=purge)
        cached_bytes = download_cache.clear(context.layout)
    return replace(report, cached_bytes=cached_bytes)


def planned(
    context: Context,
    dropping: Collection[CheckpointKey] = (),
    *,
    keeping: Collection[CheckpointKey] = (),
    purge: bool = False,
) -> GcPlan:
    """Return the plan of `collect`, including the superseded checkpoints that it drops.

    It treats the checkpoints `dropping` as dropped, and those in `keeping` as dropped checkpoints that wait in trash.
    """
    superseded = due(context, purge=purge, without=[*dropping, *keeping])
    # Superseded checkpoints first wait in trash until their undo window is over. Former generations do not.
    waits = not purge and is_undone(context)
    keys = [one.info.key for one in superseded if one.is_former_form or not waits]
    return replace(plan_gc(context, [*dropping, *keys], purge=purge), superseded=names_of(superseded))


def gc_dry(
    context: Context,
    dropping: Collection[CheckpointKey] = (),
    *,
    keeping: Collection[CheckpointKey] = (),
    purge: bool = False,
) -> GcReport:
    """Return what `collect` would free now, or after checkpoints were dropped, as in `planned`."""
    report = GcReport.of_plan(planned(context, dropping, keeping=keeping, purge=purge))
    trashed = context.layout.trash
    return replace(
        report,
        catalog_bytes=catalog_bytes(context),
        waiting=tuple(one for one in waiting(context) if not (purge and trash.may_purge(trashed / one.entry))),
    )


def collect(context: Context, *, settle: bool = True, exclusive: bool = False, purge: bool = False) -> GcReport:
    """Free everything that can be freed now, and report the rest with reasons.

    Args:
        context: The store.
        settle: Whether to forecast the effect of the plan, drop superseded checkpoints, inspect the changes of other
            users and hosts that have their own catalogs, and wait briefly until the filesystem counts the freed blocks
            as free. After a save, it is False, and the report contains only completed actions.
        exclusive: Whether the caller guarantees that no other host uses the store, so that nothing must wait for the
            grace period.
        purge: Whether to also free dropped checkpoints that could still be restored.
    """
    context.check_writable()
    try:
        grace = _grace_for(context, exclusive=exclusive)
        try:
            return _collect(context, settle=settle, grace=grace, purge=purge)
        except CatalogUnavailable as damaged:  # the damage is in rows that `catch_up` does not read
            if damaged.why not in _MENDED:
                raise
            for note in mend(context, damaged):
                warn(note)
            return _collect(context, settle=settle, grace=grace, purge=purge)
    except NotInStore as error:
        raise unsafe("gc stopped", error) from error
    except OSError as error:
        msg = f"gc stopped: {describe_os_error(error)}. No data that is needed was changed"
        raise of_the_system(error, msg, hint="the next gc continues where this one stopped") from error


def _collect(context: Context, *, settle: bool, grace: Grace | None, purge: bool) -> GcReport:
    layout = context.layout
    free_bytes = dirfd_stat.free_space(layout.path).unused_bytes
    with _start(context, grace, purge=purge) as collector, reserve.given_up(layout):
        _make_current(context, settle=settle)
        # This is too expensive after each save, and a save itself drops the checkpoint that it replaces.
        superseded: tuple[str, ...] = ()
        if settle or purge:
            superseded = names_of(drop_superseded(context, purge=purge, grace=grace).dropped)
            seen = context.known.directories.look(layout)
            trash.sweep_hidden(layout, [(run, name) for run, one in seen.items() for name in one.names], grace)
        plan = plan_gc(context, forecast=settle, purge=purge)
        swept = carry_out(context, plan, collector, grace)
        done = collector.collected
        report = GcReport(
            freed_bytes=sum(blob.nbytes for blob in done.freed),
            freed_count=len(done.freed),
            held=tuple(done.held[digest] for digest in sorted(done.held)),
            linked_outside=linked_outside(context, done.linked),
            superseded=superseded,
            swept_stagings=len(swept),
            trash_left=tuple(trash.due(layout)),
            waiting=waiting(context) if settle else (),
            dead_pack_bytes=plan.dead_pack_bytes,
            next_to_free=None if done.freed or done.held else plan.next_to_free,
            unseen_processes=collector.unseen_count,
            waits_for_grace=grace is not None,
            plan=replace(plan, superseded=superseded),
            # With a grace period, most blobs are expected to wait. Without a forecast, there is nothing to compare.
            differences=differences(context, plan, done, swept) if settle and grace is None else (),
        )
    if report.freed_count:
        events.note(context, "freed", nbytes=report.freed_bytes, why=counted(report.freed_count, "blob"))
    context.tell_passed_over()
    if settle:  # measure this before the reserve is filled again, which uses freed space
        grown_bytes = _grown_bytes(context, free_bytes, report.freed_bytes)
        report = replace(report, filesystem_freed_bytes=grown_bytes, catalog_bytes=catalog_bytes(context))
    reserve.fill(layout)
    return report


def _make_current(context: Context, *, settle: bool) -> None:
    """Update the catalog, which lists the candidates to free, with the changes of other processes."""
    thorough = context.catalog_is_private and settle
    catch_up(context, "all" if thorough else "counts")
    if not context.view.sees_changes:
        if settle:  # this is too expensive after each save, and can wait
            # Compare every checkpoint, even if its row seems current: other hosts may have saved, dropped and
            # collected, so an inode number may now belong to another directory.
            keys = {key for key, _ in context.layout.published()} | context.catalog.listing().keys()
            reconcile_all(context, sorted(keys))
            list_blobs(context, timeout_s=TIMEOUT_S)
    elif thorough:  # other users may have unlinked names, so that this user can now free the last link
        list_blobs(context, timeout_s=_CATALOG_TIMEOUT_S)


def carry_out(context: Context, plan: GcPlan, collector: Collector, grace: Grace | None) -> Collection[str]:
    """Carry out a plan, checking each item again, and return the stagings that were moved to trash."""
    # Items that appeared after the plan was made are left to the next gc.
    layout = context.layout
    # (a) Rename the directories to trash, where step (b) removes them, since other processes can see them in staging/.
    all_failed = collector.collected.failed
    swept = trash.sweep_staging(layout, all_failed, grace, plan.dead_stagings)
    trash.sweep_locks(layout, grace)
    # Remove the records of evaluations of checkpoints that no longer exist. Most stores have no records, so their
    # checkpoints need not be listed.
    if evaluations.records(layout):
        published = (parse_directory(key.directory) for key, _ in layout.published())
        digits = {name.digits[:SHORT_DIGITS] for name in published if name is not None}
        # In a draft format, the names of directories have no digits of the id. If such names exist, keep every record.
        evaluations.sweep(layout, lambda id: short_id(id, SHORT_DIGITS) in digits or "" in digits)
    # (b) Empty the trash before freeing blobs, because this removes links to blobs.
    names = [*plan.trash, *swept.values()]
    failed = _empty(collector, names)
    if isinstance(failed, CatalogUnavailable) and failed.why in _MENDED:  # only the write showed the problem
        catch_up(context)
    # (c, d) Query the unused blobs again: a save may use some of them now, and other blobs have lost their last use.
    asked = collector.collected.entered.union(plan.unused)
    asked -= trash.waiting_blobs(layout) if asked else set()  # blobs of dropped checkpoints that can be restored
    unused = [blob for blob in context.catalog.unused() if blob[0] in asked] if asked else []
    reclaim.mark_for_deletion(context, collector, unused, timeout_s=_CATALOG_TIMEOUT_S)
    if failed is not None or all_failed:  # try again, since a full disk may now have room
        collector.empty(names if failed is not None else [path.rpartition("/")[2] for path in all_failed])
    failures = [f"{path}: {describe_error(error)}" for path, error in all_failed.items()]
    if failures:
        warn(f"gc could not remove everything. The rest still uses space: {some_of(failures, 3)}")
    return swept


def _start(context: Context, grace: Grace | None, *, purge: bool) -> Collector:
    """Start the only collector of the store, and return it."""
    # A save that failed or replaced a checkpoint also empties the trash. Wait for it, since it is quick.
    write = reclaim.catalog_writer(context, timeout_s=_CATALOG_TIMEOUT_S)
    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        collector = Collector.try_start(context.layout, write, leases=context.view.sees_locks, grace=grace, purge=purge)
        if collector is not None:
            return collector
        if time.monotonic() > deadline:
            raise _kept_out(context)
        time.sleep(_START_PAUSE_S)


def _kept_out(context: Context) -> InUse:
    """Return the error for a gc that cannot lock ``trash/``. The error names the process that holds the lock."""
    status = dirfd_stat.status(context.layout.trash)
    found, who = lock_holders(status), named_holders(status)
    # A gc holds an exclusive lock. Any user who can read the store can hold a shared lock.
    if found and all(one.is_shared for one in found):
        msg = f"a process that is not a gc has locked trash/ of {context.layout.root}{who}"
        return InUse(msg, hint="end that process, or ask its user to end it; then run gc again")
    msg = f"another gc is running in {context.layout.root}{who}"
    return InUse(msg, hint="wait until it has finished")


def _empty(collector: Collector, names: Sequence[str]) -> CkstoreError | None:
    """Empty the trash. If the catalog cannot be updated, keep the remaining entries, and return the error."""
    try:
        collector.empty(names)
    except (CatalogUnavailable, InUse) as error:
        return error
    return None


def _grown_bytes(context: Context, before_bytes: int, freed_bytes: int) -> int:
    """Return by how many bytes the free space grew.

    XFS frees blocks in the background, so the function waits while the free space still grows.
    """
    # gc itself writes to the catalog, so the growth may be smaller than the freed bytes by `_OWN_WRITES_BYTES`.
    most_bytes = grown_bytes = dirfd_stat.free_space(context.layout.path).unused_bytes - before_bytes
    begun_s = grew_s = time.monotonic()
    while grown_bytes + _OWN_WRITES_BYTES < freed_bytes:
        if time.monotonic() > min(grew_s, begun_s + _SETTLE_S) + _QUIET_S:
            break
        time.sleep(_START_PAUSE_S)
        grown_bytes = dirfd_stat.free_space(context.layout.path).unused_bytes - before_bytes
        if grown_bytes > most_bytes:
            most_bytes, grew_s = grown_bytes, time.monotonic()
    return grown_bytes


def catalog_bytes(context: Context) -> int:
    """Return the size in bytes of the catalog and its log on disk."""
    total = 0
    for suffix in ("", "-wal", "-journal"):
        try:
            total += os.stat(f"{context.catalog.path}{suffix}").st_size
        except FileNotFoundError:
            continue
    return total


def _grace_for(context: Context, *, exclusive: bool) -> Grace | None:
    """Return the grace period to observe, or None if no other host uses the store."""
    if context.view.frees_at_once or exclusive:
        return None
    seconds = setting_of(context.layout, GRACE_S)
    try:
        return graces.begin(context.layout, seconds)
    except OSError as error:
        if error.errno not in files.NO_SPACE:
            raise
    with reserve.given_up(context.layout):
        return graces.begin(context.layout, seconds)
