"""What applying a retention plan did, and what pruning a remote removed."""

from __future__ import annotations

from dataclasses import dataclass

from ckstore.model.brief import brief
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.settings.retention_plan import RetentionPlan
from ckstore.model.sizes import size_text
from ckstore.model.words import counted, in_lines, printable


@brief()
@dataclass(frozen=True, slots=True)
class Skipped:
    """A checkpoint that the plan drops and that is still there, and why.

    Attributes:
        info: The checkpoint.
        reason: Why it stays.
        error: The error of the operating system, if that is the reason.
    """

    info: CheckpointInfo
    reason: str
    error: OSError | None = None

    def __str__(self) -> str:
        return printable(f"{self.info.name} stays, since {self.reason}")


@brief()
@dataclass(frozen=True, slots=True)
class RetentionReport:
    """What applying a plan did.

    Attributes:
        plan: The plan.
        dropped: Checkpoints that are gone; gc frees the blobs that only they used.
        skipped: Checkpoints that were to go and were not: something had changed since the plan was made, or the
            operating system refused it.
    """

    plan: RetentionPlan
    dropped: tuple[CheckpointInfo, ...] = ()
    skipped: tuple[Skipped, ...] = ()

    @property
    def refused(self) -> tuple[OSError, ...]:
        """The errors of the operating system for the checkpoints that could not be dropped."""
        return tuple(one.error for one in self.skipped if one.error is not None)

    def __str__(self) -> str:
        dropped_keys = {info.key for info in self.dropped}
        dropped = (entry for entry in self.plan.dropped if entry.info.key in dropped_keys)
        warnings = (printable(f"warning: {one}") for one in (*self.plan.notes, *self.skipped))
        return in_lines((*warnings, *dropped), [outcome(self)])


def outcome(report: RetentionReport) -> str:
    """Say how many checkpoints are gone."""
    return f"dropped {len(report.dropped)} of {counted(len(report.plan.entries), 'checkpoint')}"


@brief("remote", "dry_run", "removed_bytes", "condemned_bytes")
@dataclass(frozen=True, slots=True)
class RemotePruneReport:
    """What was removed from a remote; of a dry run, what would be.

    Attributes:
        remote: Its name.
        dry_run: Nothing was changed.
        removed_count, removed_bytes: Blobs that nothing names.
        condemned_count, condemned_bytes: Blobs that nothing names now, and that are removed after the grace if that
            is still so.
        uncondemned_count: Unreferenced blobs beyond those that one call condemns; the next call goes on with them.
        blob_count, blob_bytes: Blobs that stay, those that are condemned too.
        voided_count: Intents of pushes that stopped; such a push begins again.
        finished_count: Checkpoints whose push had stopped just before its last step, which was done for it.
        retention: What `StoreConfig.keep_remote` says about the checkpoints there, and what was removed; None: it is
            not the mirror, or there is no such policy.
    """

    remote: str
    dry_run: bool = False
    removed_count: int = 0
    removed_bytes: int = 0
    condemned_count: int = 0
    condemned_bytes: int = 0
    uncondemned_count: int = 0
    blob_count: int = 0
    blob_bytes: int = 0
    voided_count: int = 0
    finished_count: int = 0
    retention: RetentionReport | None = None

    def __str__(self) -> str:
        verb = "would remove" if self.dry_run else "removed"
        parts = []
        if self.retention is not None:
            gone = len(self.retention.plan.dropped) if self.dry_run else len(self.retention.dropped)
            parts.append(f"{verb} {counted(gone, 'checkpoint')} that keep_remote does not keep")
        parts += [f"{verb} {counted(self.removed_count, 'blob')}, {size_text(self.removed_bytes)}, from {self.remote}"]
        if self.condemned_count:
            blobs = f"{counted(self.condemned_count, 'blob')} of {size_text(self.condemned_bytes)}"
            parts.append(f"{blobs} that nothing names can go once the grace is over")
        if self.uncondemned_count:
            parts.append(f"{counted(self.uncondemned_count, 'more unreferenced blob')} will be marked by later calls")
        if self.voided_count:
            parts.append(f"voided {counted(self.voided_count, 'intent')} of pushes that had stopped")
        if self.finished_count:
            parts.append(f"published {counted(self.finished_count, 'checkpoint')} whose push had stopped at its end")
        return printable("; ".join(parts))
