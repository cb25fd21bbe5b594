"""After a save: apply the policy of the store to the run, and free what it dropped."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ckstore.errors import CatalogUnavailable, CkstoreError, CkstoreWarning, InUse
from ckstore.fs.lock_files import service_failed
from ckstore.model.reports.held import HeldBlob, by_reason, held_size
from ckstore.model.words import counted
from ckstore.ops.config_file import UNDO_BY_RULE_S, read_config, rules_of
from ckstore.ops.context import Context
from ckstore.ops.free.drop import tell_unfreed
from ckstore.ops.free.gc import collect
from ckstore.ops.free.retain import carry_out, plan_drops, plan_retention
from ckstore.ops.os_errors import describe_os_error

PROBLEM = "retention"
_UNASKED = "unasked"


def after_save(context: Context, run: str, settings: Callable[[], Mapping[str, Any]] | None = None) -> tuple[str, ...]:
    """Apply the policy of the store to a run and collect; return what the user should know, since the save is done.

    `settings` gives what ``config.json`` says; None: it is read.
    """
    try:
        problems = _keep_policy(context, run, read_config(context.layout) if settings is None else settings())
    except (CkstoreError, CkstoreWarning, OSError) as error:  # the warning where warnings are errors
        why = describe_os_error(error) if isinstance(error, OSError) else str(error)
        problems = (f"the checkpoint is saved, but retention of the run {run} failed afterwards: {why}",)
    if not problems:
        context.notices.problems.pop(PROBLEM, None)
        return ()
    context.notices.problems[PROBLEM] = "; ".join(problems)
    return problems


def _keep_policy(context: Context, run: str, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Apply and collect; return what the user should know."""
    rules = rules_of(context.layout, config)
    policy = rules.of(run)
    if policy is None and rules.budget is None:
        return ()
    undo_s = UNDO_BY_RULE_S.of(config, str(context.layout.config))
    plans = [] if policy is None else [plan_drops(context, policy, run)]
    dropped = [info for plan in plans for info in carry_out(context, plan, undo_s).dropped]
    if rules.budget is not None and _used_bytes(context) > rules.budget.most:
        plans.append(plan_retention(context, None))
        dropped += carry_out(context, plans[-1], undo_s).dropped
    unfreed = _collect(context, dropped=bool(dropped)) if policy is not None or dropped else ""
    notes = dict.fromkeys(note for plan in plans for note in plan.notes)
    return (*notes, *([unfreed] if unfreed else ()))


def _used_bytes(context: Context) -> int:
    """Return what the blobs of all checkpoints take, as the catalog has it: it decides only whether to look."""
    try:
        return context.catalog.used_bytes()
    except CatalogUnavailable:  # then the directories are looked at
        return sys.maxsize


def _collect(context: Context, *, dropped: bool) -> str:
    """Free what was dropped; return what was not freed and why, or an empty string."""
    if context.shared and not dropped:
        return ""
    try:
        held = collect(context, settle=False).held
        if context.shared:
            return tell_unfreed(context)
    except InUse as error:  # another gc is at work, or the next one does it
        if service_failed(error):
            raise
        return ""
    opened, unasked = by_reason(held)
    if opened:
        return f"retention left {_blobs(opened)} that processes have open; ckstore gc names them"
    if not unasked or _UNASKED in context.notices.problems:
        return ""
    why, blobs = next(iter(unasked.items()))
    context.notices.problems[_UNASKED] = f"retention left {_blobs(blobs)}: {why}"
    return context.notices.problems[_UNASKED]


def _blobs(blobs: Sequence[HeldBlob]) -> str:
    return f"{held_size(blobs)} in {counted(len(blobs), 'blob')}"
