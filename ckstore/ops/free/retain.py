"""Apply retention: inspect checkpoints, plan, and drop. The rules are in `model/settings/retention_plan`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime

from ckstore.errors import BadInput, DamagedBlob, InUse, NoSuchRef
from ckstore.fs import dirfd_stat, locks
from ckstore.model.best import metrics_there
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.reports.retention_report import RetentionReport, Skipped
from ckstore.model.settings.retention import Budget, RetentionPolicy
from ckstore.model.settings.retention_plan import LACKS_METRIC, OVER_BUDGET, Candidate, PlanEntry, RetentionPlan, plan
from ckstore.model.words import counted
from ckstore.objects import reserve, trash
from ckstore.objects.checkpoints import key_with_id
from ckstore.objects.last_links import blobs_in
from ckstore.objects.layout import BLOBS, OpenRuns
from ckstore.ops.api_calls import describe_os_error
from ckstore.ops.check.validity import why_not_valid
from ckstore.ops.config_file import BUDGET, StoreRules, rules_of
from ckstore.ops.context import Context, annotation_problem
from ckstore.ops.free.drop import check_droppable, drop, make_kept_durable
from ckstore.ops.free.retained_bytes import with_needed_bytes
from ckstore.ops.index.facts import from_manifests as as_in_manifest
from ckstore.ops.index.reconcile import chosen
from ckstore.ops.mirror_record import kept_for_mirror
from ckstore.ops.refs.evaluations import kept_for_evaluation
from ckstore.ops.refs.listing import in_order, infos, no_such_run, order_problem
from ckstore.ops.refs.protection import check_tags, pins_by_id

# A process with an exclusive lock is dropping the checkpoint. If the lock is not released within this time, the next
# newest checkpoint is locked instead.
_GUARD_TIMEOUT_S = 1.0
_SPARE = 5
"""How many of the newest checkpoints may be damaged before all checkpoints are inspected."""


def plan_retention(
    context: Context,
    policy: RetentionPolicy | None,
    run: str | None = None,
    *,
    sure: bool = True,
    urgent: bool = False,
    own_only: bool = False,
) -> RetentionPlan:
    """Return which checkpoints a policy keeps and drops now, and why.

    This changes nothing in the store, except wrong rows of the catalog.

    Args:
        context: The store.
        policy: The policy. If None, the policy of the store.
        run: The run. If None, all runs.
        sure: Whether to read the manifests. If False, the rows of the catalog are trusted, so the plan is only advice.
        urgent: Whether a save lacks space. If so, nothing is kept for the mirror, because the mirror must not make a
            save fail.
        own_only: Whether to apply `policy` to the checkpoints of this user only, and to ignore all others.
    """
    # Checking every checkpoint would slow down every save. Therefore validity is checked only for the checkpoints that
    # the plan relies on, and reader locks only for those that it would drop. The manifests of both are read, so a
    # wrong row of the catalog never causes a drop. It may only cause a checkpoint to be kept.
    rules: RetentionPolicy | Mapping[str, RetentionPolicy] = policy or {}
    budget: Budget | None = None
    own_budget, own_rules = own_only, StoreRules(policy, {}, None)
    if policy is None:
        stored = rules_of(context.layout)
        found = {name: of_run for name in context.layout.runs() if (of_run := stored.of(name)) is not None}
        rules = stored.default if stored.default and not stored.by_run else found
        budget = stored.budget if run is None else None
        own_budget, own_rules = budget is not None and BUDGET in stored.own_only, stored
        if not stored.by_run and not stored.default and stored.budget is None:
            msg = f"{context.layout.root} has no retention policy"
            raise BadInput(
                msg,
                hint="give one, or set store.config.retention",
                command_hint="give a rule, such as --keep-last 3, or set them: ckstore config retention --keep-last 3",
            )
    now = datetime.now(UTC)
    every = infos(context, run, superseded=True)
    # If a user who is not the owner of the store sets a rule, it applies only to that user's checkpoints.
    own_runs = {run for run in {info.run for info in every} if own_budget or own_rules.is_own_only(run)}
    every = [info for info in every if info.run not in own_runs or _is_own(context, info)]
    looked_at = [info for info in every if not info.superseded]
    history = _history(context, now, looked_at, rules, budget, urgent=urgent)
    beside = _beside(context, now, [info for info in every if info.superseded], rules, budget)
    return _plan(context, rules, now, history, sure=sure, budget=budget, beside=beside)


def _is_own(context: Context, info: CheckpointInfo) -> bool:
    """Whether this user saved a checkpoint; False if it has been removed."""
    found = dirfd_stat.find(context.layout.checkpoint(info.key))
    return found is not None and found.st_uid == dirfd_stat.current_user()


def plan_among(
    context: Context, policy: RetentionPolicy, listed: Iterable[CheckpointInfo], wanted_by: Mapping[str, str]
) -> RetentionPlan:
    """Return which of the listed checkpoints a policy keeps, and why.

    The checkpoints in `wanted_by` (name -> reason) are also kept. No manifest is read, so the plan must not be used to
    drop checkpoints.
    """
    history = _history(context, datetime.now(UTC), listed, policy, urgent=True)
    for name, why in wanted_by.items():
        history[name] = replace(history[name], wanted_by=why)
    return _plan(context, policy, datetime.now(UTC), history, sure=False)


def plan_asked(context: Context, policy: RetentionPolicy | None, run: str | None) -> RetentionPlan:
    """Return the result of `plan_retention` for the policy and run of a user, and refuse misspelled names."""
    if policy is not None and not isinstance(policy, RetentionPolicy):
        raise BadInput(f"policy must be a RetentionPolicy, a RetentionPlan or None, got {policy!r:.80}")
    made = with_needed_bytes(context, plan_retention(context, policy, run))
    if run is not None and not made.entries:
        raise no_such_run(context.layout, run)
    there = [entry.info.metrics for entry in made.entries]
    for best in () if policy is None else policy.bests:
        if there and not any(best.metric in metrics for metrics in there):
            of_run = "" if run is None else f" of the run {run}"
            msg = f"no checkpoint{of_run} has the metric {best.metric}, so the rule keeps none as best"
            raise BadInput(msg, hint=metrics_there(there, best.metric))
    unjudged = sum(any(reason.startswith(LACKS_METRIC) for reason in entry.reasons) for entry in made.dropped)
    if not unjudged:
        return made
    note = f"{counted(unjudged, 'checkpoint')} to be dropped could not be ranked, because a metric is missing"
    return replace(made, notes=(*made.notes, note))


def part_of(context: Context, made: RetentionPlan, run: str | None) -> RetentionPlan:
    """Return the part of an earlier plan that concerns a run, or the whole plan without a run.

    The directory of each checkpoint is updated, because a compaction or an eviction may have changed it after the plan
    was made.
    """
    entries = tuple(entry for entry in made.entries if run in (None, entry.run))
    if not entries and run is not None:
        runs = ", ".join(sorted({entry.run for entry in made.entries})) or "no run"
        raise BadInput(f"the plan has no checkpoint of the run {run}, but of {runs}", hint="make a plan for this run")
    return replace(made, entries=tuple(_with_present_directory(context, entry) for entry in entries))


def _with_present_directory(context: Context, entry: PlanEntry) -> PlanEntry:
    info = entry.info
    key = key_with_id(context.layout, info.run, info.step, info.id, context.of_step)
    return entry if key is None else replace(entry, info=replace(info, directory=key.directory))


def plan_drops(context: Context, policy: RetentionPolicy, run: str, *, own_only: bool = False) -> RetentionPlan:
    """Return the plan for one run, like `plan_retention`, but without most checkpoints that `keep_every` keeps."""
    # Each save makes a plan. With `keep_every`, the number of checkpoints grows during a training, so inspecting all of
    # them would make saves slower and slower. A wrong row can only hide a checkpoint that `keep_every` keeps anyway. In
    # that case, `keep_last` keeps another checkpoint instead.
    every, last = policy.keep_every, policy.keep_last or 1
    # Other rules and budgets also depend on the checkpoints that would not be inspected.
    if own_only or policy.to_json().keys() - {"keep_last", "keep_every", "keep_within"} or every is None:
        return plan_retention(context, policy, run, own_only=own_only)
    looked_at, newest = _looked_at(context, run, last + _SPARE, every)
    now = datetime.now(UTC)
    made = _plan(context, policy, now, _history(context, now, looked_at), sure=True)
    counting = [entry for entry in made.entries if entry.relied_on and not entry.info.unhealthy]
    if sum(entry.info.name in newest for entry in counting) < last:  # some are damaged or unhealthy
        return plan_retention(context, policy, run)
    return made


def plan_commits(context: Context, stored: StoreRules, run: str, coming: Sequence[Candidate]) -> RetentionPlan:
    """Return, as advice, which checkpoints the rules of the store would keep and drop after further commits to a run.

    Rules of other runs are ignored, since only saves of those runs apply them. No manifest is read. Checkpoints that
    are kept only temporarily, such as open ones, count as droppable.
    """
    of_run = stored.of(run)
    rules, now = {} if of_run is None else {run: of_run}, datetime.now(UTC)
    every = infos(context, run if stored.budget is None else None, superseded=True)
    looked_at = [info for info in every if not info.superseded]
    history = _history(context, now, looked_at, rules, stored.budget, urgent=True)
    beside = _beside(context, now, [info for info in every if info.superseded], rules, stored.budget)
    return plan(rules, [*history.values(), *coming], now, stored.budget, beside)


def _looked_at(context: Context, run: str, newest: int, every: int) -> tuple[list[CheckpointInfo], set[str]]:
    """Return the checkpoints of a run to inspect, and the names of its `newest` newest checkpoints.

    The checkpoints to inspect are the newest ones, and all checkpoints whose step is not a multiple of `every`.
    """
    at = chosen(context, run, newest=newest, off_every=every)
    found = [] if at is None else [info for info in infos(context, run, at=at) if not info.superseded]
    if at is not None and len(found) == len(at):  # no skipped checkpoint can then be newer
        return found, {info.name for info in found[-newest:]}
    last = {info.name: info for info in infos(context, run, newest=newest)}
    others = {info.name: info for info in infos(context, run, only=lambda step: step % every != 0)}
    return list((others | last).values()), set(last)


def _plan(
    context: Context,
    policy: RetentionPolicy | Mapping[str, RetentionPolicy],
    now: datetime,
    history: dict[str, Candidate],
    *,
    sure: bool,
    budget: Budget | None = None,
    beside: Mapping[str, Mapping[str, int]] | None = None,
) -> RetentionPlan:
    """Plan repeatedly until every checkpoint that the plan drops or relies on has been inspected once."""
    looked_at: set[tuple[str, bool]] = set()
    while True:
        made = plan(policy, list(history.values()), now, budget, beside)
        unsure = [(entry.info, entry.relied_on) for entry in made.entries if entry.relied_on or not entry.keep]
        unsure = [(info, relied_on) for info, relied_on in unsure if (info.name, relied_on) not in looked_at]
        known_better = False
        with context.layout.open_runs() as runs:
            for info, relied_on in unsure:
                looked_at.add((info.name, relied_on))
                facts = history[info.name]
                if relied_on:
                    if (damage := why_not_valid(context, info)) != facts.damage:
                        facts = replace(facts, damage=damage)
                elif trash.in_use(runs.checkpoint(info.key)):
                    facts = replace(facts, in_use=True)
                if sure:
                    facts = _read(context, facts, runs)
                known_better |= facts is not history[info.name]
                history[info.name] = facts
        if not known_better:
            return made


def _read(context: Context, candidate: Candidate, runs: OpenRuns) -> Candidate:
    """Return a candidate with the facts of its manifest and annotations.

    If these cannot be read, the reason is recorded in the candidate, and the plan keeps the checkpoint.
    """
    info = candidate.info
    try:
        true = as_in_manifest(context, info, runs)
    except (FileNotFoundError, NotADirectoryError):  # another process has dropped it
        return candidate
    except DamagedBlob as error:
        return replace(candidate, damage=error.message, doubt=f"its manifest cannot be read: {error.message}")
    (true,) = in_order(context, [true])
    damage = candidate.damage if true.id == info.id else why_not_valid(context, true)
    damage = _misplaced(context, true) or damage
    return replace(
        candidate, info=true, damage=damage, doubt=context.notices.problems.get(annotation_problem(true), "")
    )


def _misplaced(context: Context, info: CheckpointInfo) -> str:
    return context.notices.problems.get(order_problem(info), "") if info.out_of_order else ""


def _history(
    context: Context,
    now: datetime,
    looked_at: Iterable[CheckpointInfo],
    rules: RetentionPolicy | Mapping[str, RetentionPolicy] | None = None,
    budget: Budget | None = None,
    *,
    urgent: bool = False,
) -> dict[str, Candidate]:
    check_tags(context.layout)
    looked_at = [*looked_at]
    waiting = {} if urgent else kept_for_mirror(context, looked_at)
    evaluated = kept_for_evaluation(context)
    pins = pins_by_id(context, now)
    return {
        info.name: Candidate(
            info=info,
            tags=info.tags,
            pins=tuple(str(pin) for pin in pins.get(info.id, ())),
            damage=_misplaced(context, info),
            doubt=context.notices.problems.get(annotation_problem(info), ""),
            wanted_by=waiting.get(info.name, ""),
            evaluated=evaluated.waited_for.get(info.id, ""),
            overdue=evaluated.overdue.get(info.id, ""),
            blobs=_blobs(context, info) if budget is not None or _has_budget(rules, info.run) else {},
        )
        for info in looked_at
    }


def _beside(
    context: Context,
    now: datetime,
    superseded: Sequence[CheckpointInfo],
    rules: RetentionPolicy | Mapping[str, RetentionPolicy],
    budget: Budget | None,
) -> dict[str, dict[str, int]]:
    """Return the blobs of superseded checkpoints that a tag or a pin keeps, for each run that has a budget."""
    found: dict[str, dict[str, int]] = {}
    pins = pins_by_id(context, now) if superseded else {}
    for info in superseded:
        if (info.tags or info.id in pins) and (budget is not None or _has_budget(rules, info.run)):
            found[info.run] = found.get(info.run, {}) | _blobs(context, info)
    return found


def _has_budget(rules: RetentionPolicy | Mapping[str, RetentionPolicy] | None, run: str) -> bool:
    of_run = rules.get(run) if isinstance(rules, Mapping) else rules
    return of_run is not None and of_run.budget is not None


def bytes_on_disk(context: Context, *, own_only: bool) -> int:
    """Return the size in bytes of the blobs of all checkpoints, or of those that this user saved.

    Superseded checkpoints are included.
    """
    files: dict[str, int] = {}
    for info in infos(context, superseded=True):
        if not own_only or _is_own(context, info):
            files |= _blobs(context, info)
    return sum(files.values())


def _blobs(context: Context, info: CheckpointInfo) -> dict[str, int]:
    """Return the sizes in bytes of the files in the directory of a checkpoint, by device and inode number."""
    # Files are identified by inode and not by digest, since equal blobs of several users are separate files.
    with suppress(FileNotFoundError, NotADirectoryError):  # the checkpoint was deleted after it was listed
        found = blobs_in(context.layout.checkpoint(info.key) / BLOBS)
        return {f"{status.st_dev}:{status.st_ino}": status.st_size for _, status in found}
    return {}


def carry_out(
    context: Context, to_do: RetentionPlan, undo_s: float = 0, *, by_hand: bool = False, dry_run: bool = False
) -> RetentionReport:
    """Drop the checkpoints that a plan drops, unless they must now be kept. Only gc unlinks their files.

    Drops can be undone for `undo_s`. Without `by_hand`, drops by a budget cannot be undone, since the data of the
    checkpoints would exceed the budget until the undo window is over. If this process cannot drop a checkpoint, it is
    skipped, and the report says why. With `dry_run`, nothing is dropped, and the report is the same.
    """
    # The tags, pins and id of each checkpoint are checked again under an exclusive lock. Meanwhile, a valid checkpoint
    # of the run that the plan keeps is locked, so that at least one valid checkpoint remains.
    if not dry_run:
        context.check_writable()
    outcomes: list[Skipped] = []  # for a dropped checkpoint, the reason is empty
    with nullcontext() if dry_run else reserve.given_up(context.layout):
        for run in dict.fromkeys(entry.run for entry in to_do.dropped):
            going = [entry for entry in to_do.dropped if entry.run == run]
            try:
                # Do this before the first drop, so that a power cut cannot remove both old and new checkpoints.
                if not dry_run:
                    make_kept_durable(context, run)
            except OSError as error:  # the other runs must be pruned even if one run has an error
                outcomes += [_refused(entry.info, error) for entry in going]
                continue
            kept = [entry.info for entry in to_do.kept if entry.run == run]
            with ExitStack() as guarded:
                guard = _hold_newest_valid(context, kept, guarded)
                if guard is not None and guard.unhealthy:
                    healthy = [info for info in kept if not info.unhealthy]
                    has_healthy = _hold_newest_valid(context, healthy, guarded) is not None
                    why = f"no healthy checkpoint of the run {run} that the plan keeps still exists and is valid"
                    staying = [entry for entry in going if not (has_healthy or entry.info.unhealthy)]
                    outcomes += [Skipped(entry.info, why) for entry in staying]
                    going = [entry for entry in going if has_healthy or entry.info.unhealthy]
                for entry in going:
                    at_once = not by_hand and any(OVER_BUDGET in why for why in entry.reasons)
                    outcomes.append(_try_drop(context, entry, guard, None if dry_run else 0 if at_once else undo_s))
    return RetentionReport(
        to_do,
        dropped=tuple(one.info for one in outcomes if not one.reason),
        skipped=tuple(one for one in outcomes if one.reason),
        dry_run=dry_run,
    )


def _refused(info: CheckpointInfo, error: OSError) -> Skipped:
    return Skipped(info, f"it could not be dropped: {describe_os_error(error)}", error)


def _hold_newest_valid(context: Context, kept: Iterable[CheckpointInfo], guarded: ExitStack) -> CheckpointInfo | None:
    """Lock the newest kept checkpoint that is valid now, so that no process drops it, and return it."""
    for info in sorted(kept, key=lambda info: info.order, reverse=True):
        try:
            lock = locks.lock_shared(context.layout.checkpoint(info.key), timeout_s=_GUARD_TIMEOUT_S)
        except (FileNotFoundError, PermissionError, InUse):
            continue
        guarded.enter_context(lock)
        if not why_not_valid(context, info):
            return info
        lock.release()
    return None


def _try_drop(context: Context, entry: PlanEntry, guard: CheckpointInfo | None, undo_s: float | None) -> Skipped:
    """Drop one checkpoint. Return it with the reason if it was not dropped, and with an empty reason otherwise.

    Without `undo_s`, nothing is dropped, and the result is the same.
    """
    info = entry.info
    if guard is None:
        return Skipped(info, f"no checkpoint of the run {info.run} that the plan keeps still exists and is valid")
    if info.order > guard.order and not why_not_valid(context, info):
        return Skipped(info, f"it is now the newest valid checkpoint of the run {info.run}")
    try:
        if undo_s is None:
            check_droppable(context, info)
            return Skipped(info, "")
        drop(context, info, "; ".join(entry.reasons), undo_s)
    except (InUse, NoSuchRef) as error:
        return Skipped(info, error.message)
    except PermissionError as error:
        return Skipped(info, f"this user may not drop it: {describe_os_error(error)}")
    except OSError as error:  # the other checkpoints must be dropped even if this one has an error
        return _refused(info, error)
    return Skipped(info, "")
