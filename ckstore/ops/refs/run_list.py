"""List the runs of a store. The names in the directories say how many checkpoints each has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckstore.model.checkpoint.runs import RunSummary, summaries
from ckstore.model.names import step_of
from ckstore.ops.index.proposal import propose
from ckstore.ops.refs.listing import infos, infos_at, settle

if TYPE_CHECKING:
    from ckstore.objects.layout import OpenRuns
    from ckstore.ops.context import Context


def run_summaries(context: Context) -> list[RunSummary]:
    """Return all runs that have a complete checkpoint, in the order of their newest commits, oldest first."""
    settle(context)
    found: list[RunSummary] = []
    with context.layout.open_runs() as runs:
        for run in context.layout.runs():
            proposed = _proposed(context, runs, run)
            found += summaries(infos(context, run)) if proposed is None else [proposed]
    if any(one.newest.out_of_order for one in found):
        return summaries(infos(context))
    return sorted(found, key=lambda one: one.newest.order)


def _proposed(context: Context, runs: OpenRuns, run: str) -> RunSummary | None:
    """Return what the catalog proposes of a run; None: all of it has to be looked at."""
    found = propose(context, runs, run, newest=1)
    if found is None or found.unknown:  # which of them are complete is not known
        return None
    newest = infos_at(context, runs, found.published, run, newest=1, seek=True)
    if not newest:
        return None
    steps = [step for step in map(step_of, found.listed[run]) if step is not None]
    return RunSummary(run, len(steps), newest[0], max(steps))
