"""Compact checkpoints automatically when they reach the age in the settings."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from ckstore.model.reports.compaction import CompactionReport
from ckstore.model.times import duration_s, text_of_time
from ckstore.objects.layout import Layout
from ckstore.ops.compact.compact import compact
from ckstore.ops.compact.plan import plan
from ckstore.ops.config_file import COMPACT_AFTER, COMPACT_KEEP, COMPACT_SHARE, read_config
from ckstore.ops.context import Context
from ckstore.ops.pace import Share
from ckstore.ops.refs.listing import infos


class Rule(NamedTuple):
    """The settings of automatic compaction."""

    after_s: float  # the age in seconds at which a checkpoint is compacted
    share: float  # the maximum share of one processor that compaction uses
    keep_newest: int  # the number of newest checkpoints of each run that remain plain

    @property
    def created_before(self) -> datetime:
        """The time before which a checkpoint must have been saved to be old enough now."""
        return datetime.now(UTC) - timedelta(seconds=self.after_s)


def rule_of(layout: Layout) -> Rule | None:
    """Return the rule in the settings, or None if automatic compaction is off."""
    config, where = read_config(layout), str(layout.config)
    after = COMPACT_AFTER.of(config, where)
    if after is None:
        return None
    share, keep = COMPACT_SHARE.of(config, where), COMPACT_KEEP.of(config, where)
    return Rule(duration_s(after, COMPACT_AFTER.name), share, keep)


def is_any_due(context: Context, rule: Rule) -> bool:
    """Whether any checkpoint is old enough, apart from the newest of each run.

    Compacted checkpoints also count, so that no directory needs to be opened.
    """
    before = text_of_time(rule.created_before)
    by_run: dict[str, list[str]] = {}
    for info in infos(context):
        by_run.setdefault(info.run, []).append(info.created)
    return any(created < before for of_run in by_run.values() for created in of_run[: -rule.keep_newest])


def compact_due(context: Context, rule: Rule) -> CompactionReport:
    """Compact the checkpoints that are old enough, using at most the share of a processor that `rule` allows."""
    found = plan(context, (), None, keep_newest=rule.keep_newest, created_before=rule.created_before)
    return compact(context, found, Share(rule.share))
