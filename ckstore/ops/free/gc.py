"""Gc: free what nothing in the store needs and no process has open ("Delete and gc" of the design).

It makes a plan (`ckstore.ops.free.gc_plan`) and carries it out step by step, looking at each thing again:

(0) on a full disk the reserve is given up; the catalog catches up with what others published or dropped; where other
    hosts may have done so, every checkpoint is looked at
(a) directories of dead saves in ``staging/`` are renamed to ``trash/``
(b) ``trash/``, and where it came from, is made durable; what is in it, also what a gc left that was killed, is taken
    apart; its digests are entered into the catalog
(c) blobs without a use whose canonical name is the last one are renamed to ``trash/``, and looked at again
(d) ``trash/`` is made durable, they are unlinked, and their rows deleted where they still have no use

Savers go on meanwhile: each batch holds the catalog for one short transaction, and no other lock that they wait for.
What it costs follows what there is to free: candidates are listed by the catalog, ``blobs/`` is not walked.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from dataclasses import replace

from ckstore.errors import CatalogUnavailable, CkstoreError, InUse
from ckstore.fs import dirfd_stat, files
from ckstore.fs.lock_holders import lock_holders, named_holders
from ckstore.fs.store_path import NotInStore
from ckstore.model.digest import short_id
from ckstore.model.names import SHORT_DIGITS, CheckpointKey, parse_directory
from ckstore.model.reports.gc_report import GcPlan, GcReport, Waiting
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
from ckstore.ops import events, fetched
from ckstore.ops.api_calls import describe_error, describe_os_error, of_the_system, unsafe
from ckstore.ops.config_file import GRACE_S, UNDO_BY_HAND_S, setting_of
from ckstore.ops.context import Context
from ckstore.ops.free import reclaim, retain
from ckstore.ops.free.gc_plan import differences, linked_elsewhere, plan_gc
from ckstore.ops.free.superseded import drop_superseded, due, is_undone
from ckstore.ops.free.waiting import waiting
from ckstore.ops.index.catch_up import catch_up, mend
from ckstore.ops.index.reconcile import TIMEOUT_S, reconcile_all
from ckstore.ops.index.scan_blobs import list_blobs
from ckstore.ops.notices import warn

_CATALOG_TIMEOUT_S = 30.0
_MENDED = ("missing", "behind", "damaged")
# A failed save or a delete has the trash for milliseconds; another gc has it for longer, and is not waited for.
_START_TIMEOUT_S = 1.0
_START_PAUSE_S = 0.01
# XFS counts freed blocks as free within half a second; while free space still grows it is waited for a little longer.
_SETTLE_S = 0.5
_QUIET_S = 0.1
_OWN_WRITES_BYTES = 2**20
_NAMES_SHOWN = 10  # a run may drop thousands; the report names all


def prune(
    context: Context,
    policy: RetentionPolicy | RetentionPlan | None,
    run: str | None,
    *,
    dry_run: bool,
    exclusive: bool,
    now: bool = False,
) -> GcReport:
    """Drop what a policy does not keep, then `collect`; in a dry run say what both would do."""
    # What is only shown may go by the rows of the catalog (rule D): to read 20,000 manifests takes seconds.
    plan = policy if isinstance(policy, RetentionPlan) else retain.plan_asked(context, policy, run, sure=not dry_run)
    if dry_run:
        going = [entry.info for entry in plan.dropped]
        keys = [key for info in going for key in (info.key, *other_generations(context.layout, info.key, info.id))]
        return replace(gc_dry(context, keys), retention=RetentionReport(plan))
    # Before the first drop: a store or settings that cannot be used must not be found out after it.
    context.check_writable()
    _grace_for(context, exclusive=exclusive)
    done = retain.carry_out(context, plan, 0 if now else setting_of(context.layout, UNDO_BY_HAND_S))
    if done.refused and not done.dropped:  # else the report names them
        raise done.refused[0]
    try:
        report = collect(context, exclusive=exclusive)
    except CkstoreError as error:
        if not done.dropped:
            raise
        # What was dropped is dropped: an error instead of the report would hide it from the caller.
        names = some_of([info.name for info in done.dropped], _NAMES_SHOWN)
        warn(f"dropped {names}; the space is not free yet, and the next gc frees it: {error}")
        report = GcReport(trash_left=tuple(trash.due(context.layout)), waiting=waiting(context))
    return replace(report, retention=done)


def gc(context: Context, *, dry_run: bool, exclusive: bool, purge: bool) -> GcReport:
    """See `ckstore.Store.gc`: `collect`, and the end of what was fetched."""
    if dry_run:
        report, cached_bytes = gc_dry(context, purge=purge), fetched.cached_bytes(context.layout)
    else:
        report = collect(context, exclusive=exclusive, purge=purge)
        cached_bytes = fetched.clear(context.layout)
    return replace(report, cached_bytes=cached_bytes)


def planned(context: Context, dropping: Collection[CheckpointKey] = (), *, purge: bool = False) -> GcPlan:
    """Return the plan of `collect`, with the superseded checkpoints that it drops, as `plan_gc`."""
    superseded = due(context, purge=purge, without=dropping)
    waits = not purge and is_undone(context)  # what is no former generation waits in trash then
    return plan_gc(
        context,
        [*dropping, *(one.info.key for one in superseded if one.is_former_form or not waits)],
        purge=purge,
    )


def gc_dry(context: Context, dropping: Collection[CheckpointKey] = (), *, purge: bool = False) -> GcReport:
    """Say what `collect` would free now, or when some checkpoints are dropped."""
    report = GcReport.of_plan(planned(context, dropping, purge=purge))
    return replace(report, catalog_bytes=catalog_bytes(context), waiting=_left_waiting(context, purge=purge))


def _left_waiting(context: Context, *, purge: bool) -> tuple[Waiting, ...]:
    """Return what waits to be brought back after a gc: with `purge` what other users saved."""
    trashed = context.layout.trash
    return tuple(one for one in waiting(context) if not (purge and trash.may_purge(trashed / one.entry)))


def collect(context: Context, *, settle: bool = True, exclusive: bool = False, purge: bool = False) -> GcReport:
    """Free what can be freed now, and say what could not be and why.

    With `settle` it is foreseen what comes of the plan, the filesystem has a moment to count what was freed as free,
    and where the catalog is this user's alone, it looks at what others did; after a save the report has only what was
    done. `exclusive`: no other host is at work, so nothing waits for the grace. `purge`: what could be brought back
    goes, too.
    """
    context.check_writable()
    try:
        grace = _grace_for(context, exclusive=exclusive)
        try:
            return _collect(context, settle=settle, grace=grace, purge=purge)
        except CatalogUnavailable as damaged:  # in rows that catching up does not look at
            if damaged.why not in _MENDED:
                raise
            for note in mend(context, damaged):
                warn(note)
            return _collect(context, settle=settle, grace=grace, purge=purge)
    except NotInStore as error:
        raise unsafe("gc stopped", error) from error
    except OSError as error:
        msg = f"gc stopped: {describe_os_error(error)}; nothing that is needed was touched"
        raise of_the_system(error, msg, hint="the next gc continues where this one stopped") from error


def _collect(context: Context, *, settle: bool, grace: Grace | None, purge: bool) -> GcReport:
    layout = context.layout
    free_bytes = dirfd_stat.free_space(layout.path).unused_bytes
    with _start(context, grace, purge=purge) as collector, reserve.given_up(layout):
        _make_current(context, settle=settle)
        if settle or purge:  # after each save it would cost too much, and the save drops what it replaces itself
            drop_superseded(context, purge=purge, grace=grace)
            seen = context.known.directories.look(layout)
            trash.sweep_hidden(layout, [(run, name) for run, one in seen.items() for name in one.names], grace)
        plan = plan_gc(context, forecast=settle, purge=purge)
        swept = carry_out(context, plan, collector, grace)
        done = collector.collected
        report = GcReport(
            freed_bytes=sum(blob.nbytes for blob in done.freed),
            freed_count=len(done.freed),
            held=tuple(done.held[digest] for digest in sorted(done.held)),
            linked_elsewhere=linked_elsewhere(context, done.linked),
            swept_stagings=len(swept),
            trash_left=tuple(trash.due(layout)),
            waiting=waiting(context) if settle else (),
            dead_pack_bytes=plan.dead_pack_bytes,
            next_to_free=None if done.freed or done.held else plan.next_to_free,
            unseen_processes=collector.unseen_count,
            waits_for_grace=grace is not None,
            plan=plan,
            # With a grace most of it waits, which is no news; and without a forecast there is nothing to compare.
            differences=differences(context, plan, done, swept) if settle and grace is None else (),
        )
    if report.freed_count:
        events.note(context, "freed", nbytes=report.freed_bytes, why=counted(report.freed_count, "blob"))
    context.tell_passed_over()
    if settle:  # before the reserve is filled again, which takes what was freed
        grown_bytes = _grown_bytes(context, free_bytes, report.freed_bytes)
        report = replace(report, filesystem_freed_bytes=grown_bytes, catalog_bytes=catalog_bytes(context))
    reserve.fill(layout)
    return report


def _make_current(context: Context, *, settle: bool) -> None:
    """Let the catalog, which proposes what goes, catch up with what others published, dropped and unlinked."""
    thorough = context.catalog_is_private and settle
    catch_up(context, "all" if thorough else "counts")
    if context.shared:
        if settle:  # after each save it would cost too much, and all that it finds can wait
            _look_at_everything(context)
    elif thorough:  # others may have unlinked what this user alone can free the last name of
        list_blobs(context, timeout_s=_CATALOG_TIMEOUT_S)


def carry_out(context: Context, plan: GcPlan, collector: Collector, grace: Grace | None) -> Collection[str]:
    """Do the steps of a plan, and look at each thing again; return the stagings that went to trash."""
    # What appeared since the plan was made is left to the next gc.
    layout = context.layout
    # (a) A rename, as from all places that savers look at; in trash they are taken apart like all else.
    all_failed = collector.collected.failed
    swept = trash.sweep_staging(layout, all_failed, grace, plan.dead_stagings)
    trash.sweep_locks(layout, grace)
    _sweep_evaluations(context)
    # (b) Before the blobs, which lose names by this.
    names = [*plan.trash, *swept.values()]
    failed = _empty(collector, names)
    if isinstance(failed, CatalogUnavailable) and failed.why in _MENDED:  # it could be read, and not be written
        catch_up(context)
    # (c, d) Asked again: a save may use some by now, and others have lost their last use.
    asked = collector.collected.entered.union(plan.unused)
    asked -= trash.waiting_blobs(layout) if asked else set()  # what waits was not taken apart, unless it was purged
    unused = [blob for blob in context.catalog.unused() if blob[0] in asked] if asked else []
    reclaim.mark_for_deletion(context, collector, unused, timeout_s=_CATALOG_TIMEOUT_S)
    if failed is not None or all_failed:  # on a full disk there may be room now
        collector.empty(names if failed is not None else [path.rpartition("/")[2] for path in all_failed])
    failures = [f"{path}: {describe_error(error)}" for path, error in all_failed.items()]
    if failures:
        warn(f"could not be removed, and still uses space: {some_of(failures, 3)}; gc did the rest")
    return swept


def _sweep_evaluations(context: Context) -> None:
    """Remove the records of evaluations of checkpoints that are gone."""
    if evaluations.records(context.layout):  # most stores have none, and are not listed for it
        names = (parse_directory(key.directory) for key, _ in context.layout.published())
        digits = {name.digits[:SHORT_DIGITS] for name in names if name is not None}
        # The directories of a draft have no digits; then every record stays.
        evaluations.sweep(context.layout, lambda id: short_id(id, SHORT_DIGITS) in digits or "" in digits)


def _start(context: Context, grace: Grace | None, *, purge: bool) -> Collector:
    """Return the one collector of the store."""
    # A save that failed or replaced something empties the trash itself, which takes a moment: that is waited for.
    write = reclaim.catalog_writer(context, timeout_s=_CATALOG_TIMEOUT_S)
    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        collector = Collector.try_start(context.layout, write, leases=not context.shared, grace=grace, purge=purge)
        if collector is not None:
            return collector
        if time.monotonic() > deadline:
            raise _kept_out(context)
        time.sleep(_START_PAUSE_S)


def _kept_out(context: Context) -> InUse:
    """Return the error of a gc whose lock another process has, which it names."""
    status = dirfd_stat.status(context.layout.trash)
    found, who = lock_holders(status), named_holders(status)
    # A gc has it alone. Any user who can read the store can have it shared.
    if found and all(one.is_shared for one in found):
        msg = f"a process that is no gc has trash/ of {context.layout.root} locked{who}"
        return InUse(msg, hint="end that process, or ask its user to end it; then gc frees the space")
    msg = f"another gc is running in {context.layout.root}{who}"
    return InUse(msg, hint="wait until it is done; its lock ends with it")


def _empty(collector: Collector, names: Sequence[str]) -> CkstoreError | None:
    """Empty the trash; return the error if the catalog could take no note, so that nothing more could go."""
    try:
        collector.empty(names)
    except (CatalogUnavailable, InUse) as error:
        return error
    return None


def _grown_bytes(context: Context, before_bytes: int, freed_bytes: int) -> int:
    """Return by how much free space grew. XFS frees in the background: wait until it grew, or no more for a moment."""
    # What gc itself writes to the catalog meanwhile is not waited for, since it never comes back.
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
    """Return the size of the catalog and its log on disk."""
    total = 0
    for suffix in ("", "-wal", "-journal"):
        try:
            total += os.stat(f"{context.catalog.path}{suffix}").st_size
        except FileNotFoundError:
            continue
    return total


def _grace_for(context: Context, *, exclusive: bool) -> Grace | None:
    """Return what may go while other hosts may be at work; None: nothing waits, since there are none."""
    if not context.shared or exclusive:
        return None
    seconds = setting_of(context.layout, GRACE_S)
    try:
        return graces.begin(context.layout, seconds)
    except OSError as error:
        if error.errno not in files.NO_SPACE:
            raise
    with reserve.given_up(context.layout):
        return graces.begin(context.layout, seconds)


def _look_at_everything(context: Context) -> None:
    """Make the catalog of this host equal to all directories, whatever it believes of them, and list all blobs."""
    # Other hosts saved, dropped and collected meanwhile, and an inode number may belong to another directory by now.
    keys = {key for key, _ in context.layout.published()} | context.catalog.listing().keys()
    reconcile_all(context, sorted(keys))
    list_blobs(context, timeout_s=TIMEOUT_S)
