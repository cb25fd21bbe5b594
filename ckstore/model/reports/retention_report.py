"""What applying a retention plan did."""

from __future__ import annotations

from dataclasses import dataclass

from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.settings.retention_plan import RetentionPlan


@dataclass(frozen=True, slots=True)
class Skipped:
    """A checkpoint that the plan drops and that is still there, and why."""

    info: CheckpointInfo
    reason: str


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
