"""The result of applying a retention plan."""

from __future__ import annotations

from dataclasses import dataclass

from ckstore.model.brief import brief
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.settings.retention_plan import RetentionPlan
from ckstore.model.words import counted, in_lines, printable


@brief()
@dataclass(frozen=True, slots=True)
class Skipped:
    """A checkpoint that was kept although the plan drops it, and the reason.

    Attributes:
        info: The checkpoint.
        reason: Why it was kept.
        error: The error of the operating system, if it is the reason.
    """

    info: CheckpointInfo
    reason: str
    error: OSError | None = None

    def __str__(self) -> str:
        return printable(f"{self.info.name} is kept, since {self.reason}")


@brief()
@dataclass(frozen=True, slots=True)
class RetentionReport:
    """The result of applying a retention plan.

    Attributes:
        plan: The plan.
        dropped: Checkpoints that were dropped, or would be dropped in a dry run. A gc frees the blobs that only these
            checkpoints used.
        skipped: Checkpoints that the plan drops but that were kept, because the store had changed since the plan was
            made, or because the operating system returned an error.
        dry_run: Whether this was a dry run that changed nothing.
    """

    plan: RetentionPlan
    dropped: tuple[CheckpointInfo, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    dry_run: bool = False

    @property
    def refused(self) -> tuple[OSError, ...]:
        """The errors of the operating system for the checkpoints that could not be dropped."""
        return tuple(one.error for one in self.skipped if one.error is not None)

    def __str__(self) -> str:
        if self.dry_run and not self.skipped:  # the plan also has the reasons for keeping checkpoints
            return str(self.plan)
        dropped_keys = {info.key for info in self.dropped}
        dropped = (entry for entry in self.plan.dropped if entry.info.key in dropped_keys)
        warnings = (printable(f"warning: {one}") for one in (*self.plan.notes, *self.skipped))
        return in_lines((*warnings, *dropped), [outcome(self)])


def outcome(report: RetentionReport) -> str:
    """Return a sentence on the number of dropped checkpoints."""
    did = "would drop" if report.dry_run else "dropped"
    return f"{did} {len(report.dropped)} of {counted(len(report.plan.entries), 'checkpoint')}"
