"""What applying a retention plan did."""

from __future__ import annotations

from dataclasses import dataclass

from ckstore.model.brief import brief
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.settings.retention_plan import RetentionPlan
from ckstore.model.words import counted, in_lines, printable


@brief()
@dataclass(frozen=True, slots=True)
class Skipped:
    """A checkpoint that the plan drops and that is still there, and why."""

    info: CheckpointInfo
    reason: str

    def __str__(self) -> str:
        return printable(f"{self.info.name} stays, since {self.reason}")


@brief()
@dataclass(frozen=True, slots=True)
class RetentionReport:
    """What applying a plan did.

    Attributes:
        plan: The plan.
        dropped: Checkpoints that are gone; gc frees the blobs that only they used.
        skipped: Checkpoints that were to go and were not: something had changed since the plan was made.
    """

    plan: RetentionPlan
    dropped: tuple[CheckpointInfo, ...] = ()
    skipped: tuple[Skipped, ...] = ()

    def __str__(self) -> str:
        dropped_keys = {info.key for info in self.dropped}
        dropped = (entry for entry in self.plan.dropped if entry.info.key in dropped_keys)
        warnings = (printable(f"warning: {one}") for one in (*self.plan.notes, *self.skipped))
        return in_lines((*warnings, *dropped), [outcome(self)])


def outcome(report: RetentionReport) -> str:
    """Say how many checkpoints are gone."""
    return f"dropped {len(report.dropped)} of {counted(len(report.plan.entries), 'checkpoint')}"
