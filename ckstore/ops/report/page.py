"""Gather the facts that `ckstore report` shows about a store, without changing the store."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, TypeVar

from ckstore.errors import BadInput, CkstoreError
from ckstore.fs import holders
from ckstore.model.doctor.finding import DoctorFinding
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.metric_names import Mode
from ckstore.model.reports.event import Event
from ckstore.model.reports.gc_report import Waiting
from ckstore.model.reports.held_blobs import Holder
from ckstore.model.reports.usage import Usage
from ckstore.model.saver.status import SaverStatus
from ckstore.model.settings.retention_plan import RetentionPlan
from ckstore.model.times import time_of_text
from ckstore.ops.api_calls import why_of
from ckstore.ops.config_file import rules_of
from ckstore.ops.context import Context
from ckstore.ops.events import events
from ckstore.ops.free.retain import plan_retention
from ckstore.ops.free.undo import waiting
from ckstore.ops.read.diff import diff
from ckstore.ops.refs.listing import infos
from ckstore.ops.report.cards import freed_bytes, modes_of
from ckstore.ops.report.doctor import MoreChecks, examine_all
from ckstore.ops.report.usage import usage_of
from ckstore.version import __version__

# Comparing two checkpoints requires reading two manifests. With these limits, the whole report takes a few seconds.
_MAP_STEPS = 12
_MAP_RUNS = 6
_MAP_ROWS = 30
_LARGEST = 20
_EVENTS = 60
_DURATIONS = 3000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ChangeMap:
    """The changes of tensors from each checkpoint of a run to the next checkpoint."""

    run: str
    names: tuple[str, ...]  # the checkpoints, beginning with the oldest, which has no column
    # Name of a tensor -> for each later checkpoint, the share of the tensor's bytes that changed. The share is 0 if the
    # tensor does not exist, and None if the tensor was removed in that checkpoint.
    rows: dict[str, list[float | None]]
    left_out: int  # number of changed tensors that are not in `rows`
    unchanged_count: int  # number of tensors and other values that are equal in the last two checkpoints


@dataclass(frozen=True, slots=True)
class ReportPage:
    """The content of a report."""

    root: str
    made: str
    version: str
    infos: Sequence[CheckpointInfo]
    superseded: Sequence[CheckpointInfo]
    usage: Usage
    plan: RetentionPlan | None
    maps: Sequence[ChangeMap]
    largest: Sequence[tuple[str, str, int]]
    health: Sequence[DoctorFinding]
    happened: Sequence[Event]
    waiting: Sequence[Waiting]
    durations: Sequence[Event]
    holders: Sequence[Holder]
    savers: Sequence[SaverStatus]
    now: datetime  # the time at which the report was made
    modes: Mapping[str, Mode]  # metric in a rule -> whether the least or the greatest value is best
    freed_bytes: int | None  # number of bytes that a prune would free; None without a rule, or if it is unknown
    problems: Sequence[str] = field(default=())

    def data(self) -> dict[str, Any]:
        """Return the data for the charts."""
        alone = {one.id: one.alone_bytes for one in self.usage.checkpoints}
        by_id = {info.id: index for index, info in enumerate(self.infos)}
        return {
            "runs": [one.run for one in self.usage.runs],
            "durations": [
                {"run": one.run, "time": round(time_of_text(one.time).timestamp(), 3), "seconds": one.seconds}
                for one in self.durations
            ],
            "checkpoints": [
                {
                    "run": info.run,
                    "step": info.step,
                    "time": round(time_of_text(info.created).timestamp(), 3),
                    "logical": info.logical_bytes,
                    "new": info.new_bytes,
                    "reused": info.reused_bytes,
                    "alone": alone.get(info.id, 0),
                    "tags": list(info.tags),
                    "damaged": info.damaged,
                    "unhealthy": bool(info.unhealthy),
                    "parent": by_id.get(info.parent or ""),
                    # NaN and infinity are not JSON, and a chart cannot show them.
                    "metrics": {name: value for name, value in info.metrics.items() if abs(value) < float("inf")},
                }
                for info in self.infos
            ],
        }


def page(context: Context, checks: MoreChecks, savers: Sequence[SaverStatus] = ()) -> ReportPage:
    """Gather the content of a report; `savers` are the processes that currently save to the store in the background."""
    every = infos(context, superseded=True)
    listed = [info for info in every if not info.superseded]
    used = usage_of(context, every)
    problems: list[str] = []
    journal: Sequence[Event] = _part("the events", lambda: events(context), (), problems)
    runs = {one.run for one in used.runs}
    now = datetime.now(UTC)
    plan = _plan(context, problems)
    return ReportPage(
        root=str(context.layout.root),
        now=now,
        made=now.strftime("%Y-%m-%d %H:%M UTC"),
        version=__version__,
        infos=listed,
        superseded=[info for info in every if info.superseded],
        usage=used,
        plan=plan,
        modes=_part("the rules", lambda: modes_of(rules_of(context.layout)), {}, problems),
        # This fails if another process is dropping one of the checkpoints.
        freed_bytes=None
        if plan is None
        else _part("what a prune would free", lambda: freed_bytes(context, plan), None, problems),
        maps=_maps(context, listed, [one.run for one in used.runs][:_MAP_RUNS], problems),
        largest=_largest(context, listed, problems),
        health=examine_all(context, checks).findings,
        happened=journal[-_EVENTS:][::-1],
        waiting=waiting(context),
        durations=[one for one in journal if one.seconds is not None and one.run in runs][-_DURATIONS:],
        holders=holders.users_below(str(context.layout.root)),
        savers=savers,
        problems=problems,
    )


def _part(what: str, read: Callable[[], T], default: T, problems: list[str]) -> T:
    """Return the result of `read`, or add a problem and return `default` if `read` fails."""
    try:
        return read()
    except (CkstoreError, OSError) as error:
        problems.append(f"{what}: {why_of(error)}")
        return default


def _plan(context: Context, problems: list[str]) -> RetentionPlan | None:
    try:
        return plan_retention(context, None, sure=False)
    except BadInput:  # the store has no rule
        return None
    except CkstoreError as error:
        problems.append(f"the plan of retention: {error.message}")
        return None


def _maps(
    context: Context, listed: Sequence[CheckpointInfo], runs: Sequence[str], problems: list[str]
) -> list[ChangeMap]:
    found = []
    for run in runs:
        own = [info for info in listed if info.run == run][-_MAP_STEPS - 1 :]
        try:
            found += [_map(context, run, own)] if len(own) > 1 else []
        except CkstoreError as error:  # one damaged manifest must not fail the report
            problems.append(f"what changed in the run {run}: {error.message}")
    return found


def _map(context: Context, run: str, own: Sequence[CheckpointInfo]) -> ChangeMap:
    """Compare each of these checkpoints of a run with the previous one.

    The tensors with the most changed bytes are first.
    """
    columns = len(own) - 1
    rows: dict[str, list[float | None]] = defaultdict(lambda: [0.0] * columns)
    weight: Counter[str] = Counter()
    unchanged = 0
    for column, (before, after) in enumerate(pairwise(own)):
        found = diff(context, before, after, values=False, file=None)
        unchanged = found.unchanged_count
        for change in found.changed:
            nbytes = change.after.nbytes or 1
            rows[change.name][column] = min(1.0, change.changed_bytes / nbytes)
            weight[change.name] += change.changed_bytes
        for leaf in found.added:
            rows[leaf.name][column] = 1.0
            weight[leaf.name] += leaf.nbytes
        for leaf in found.removed:
            rows[leaf.name][column] = None
            weight[leaf.name] += leaf.nbytes
    shown = [name for name, _ in weight.most_common(_MAP_ROWS)]
    names = tuple(info.name for info in own)
    return ChangeMap(run, names, {name: rows[name] for name in shown}, len(rows) - len(shown), unchanged)


def _largest(context: Context, listed: Sequence[CheckpointInfo], problems: list[str]) -> list[tuple[str, str, int]]:
    """Return the largest values of the newest checkpoint of each run: checkpoint, name and size."""
    from ckstore.ops.read.open_checkpoint import open_ref

    newest = {info.run: info for info in listed}
    found: list[tuple[str, str, int]] = []
    for info in newest.values():
        try:
            with open_ref(context, info) as checkpoint:
                found += [(info.name, leaf.name, leaf.nbytes) for leaf in checkpoint.leaves()]
        except CkstoreError as error:
            problems.append(f"{info.name}: {error.message}")
        found = sorted(found, key=lambda one: -one[2])[:_LARGEST]
    return found
