"""Gather facts for the cards at the top of a report: the best checkpoint by each metric, and the effect of a prune."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ckstore.errors import BadInput, NoSuchRef
from ckstore.model.checkpoint.refs import BEST, parse_ref, resolve
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.metric_names import Mode, mode_by_name
from ckstore.model.settings.retention import RetentionPolicy
from ckstore.model.settings.retention_plan import RetentionPlan
from ckstore.ops.config_file import StoreRules
from ckstore.ops.context import Context
from ckstore.ops.free.gc_plan import freed_in_turn


@dataclass(frozen=True, slots=True)
class BestCheckpoint:
    """The best checkpoint of all runs by a metric."""

    metric: str
    mode: Mode
    info: CheckpointInfo
    ref: str  # a ref of the checkpoint

    @property
    def value(self) -> int | float:
        """The value of the metric."""
        return self.info.metrics[self.metric]


def modes_of(rules: StoreRules) -> dict[str, Mode]:
    """Return, for each metric in the rules of a store, whether its least or its greatest value is best."""
    policies: list[RetentionPolicy | None] = [*rules.by_run.values(), rules.default]
    return {best.metric: best.mode for policy in policies if policy for best in policy.bests if best.mode is not None}


def best_by_each(infos: Sequence[CheckpointInfo], modes: Mapping[str, Mode]) -> list[BestCheckpoint]:
    """Return the best checkpoint of all runs by each metric.

    If it is unknown whether the least or the greatest value is best, return both the checkpoint with the least and the
    checkpoint with the greatest value.
    """
    of_runs: dict[str, list[CheckpointInfo]] = {}
    for info in infos:
        of_runs.setdefault(info.run, []).append(info)
    found: list[BestCheckpoint | None] = []
    for metric in sorted({name for info in infos for name in info.metrics}):
        known = modes.get(metric) or mode_by_name(metric)
        wanted: tuple[Mode, ...] = ("min", "max") if known is None else (known,)
        found += [_best(metric, mode, of_runs) for mode in wanted]
    return [best for best in found if best is not None]


def _best(metric: str, mode: Mode, of_runs: Mapping[str, Sequence[CheckpointInfo]]) -> BestCheckpoint | None:
    of_each = [best for run, own in of_runs.items() if (best := _best_of_run(metric, mode, run, own)) is not None]
    sign = 1 if mode == "min" else -1
    # If values are equal, the newest checkpoint is best, as within one run.
    return min(
        of_each, key=lambda best: (sign * best.value, *(-number for number in best.info.order[:1])), default=None
    )


def _best_of_run(metric: str, mode: Mode, run: str, own: Iterable[CheckpointInfo]) -> BestCheckpoint | None:
    """Return the best checkpoint of a run, with the ref that the report shows for loading the checkpoint."""
    plain, whole = f"{run}@{BEST}{metric}", f"{run}@{BEST}{metric}:{mode}"
    try:
        info = resolve(parse_ref(whole), [one for one in own if metric in one.metrics], {})
    except (NoSuchRef, BadInput):  # all values are NaN, or the name cannot be in a ref
        return None
    # A colon in a ref begins the mode, so a metric with a colon needs the mode.
    is_plain = mode_by_name(metric) == mode and ":" not in metric
    return BestCheckpoint(metric, mode, info, plain if is_plain else whole)


def freed_bytes(context: Context, plan: RetentionPlan) -> int:
    """Return how many bytes dropping the checkpoints of a plan would free."""
    folders = (context.layout.checkpoint(entry.info.key) for entry in plan.dropped)
    return sum(nbytes for one in freed_in_turn(context, folders) for _, nbytes in one)
