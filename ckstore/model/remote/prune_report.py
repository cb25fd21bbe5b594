"""The report of a pruned remote."""

from __future__ import annotations

from dataclasses import dataclass

from ckstore.model.brief import brief
from ckstore.model.reports.retention_report import RetentionReport
from ckstore.model.sizes import size_text
from ckstore.model.words import counted, printable


@brief("remote", "dry_run", "removed_bytes", "condemned_bytes")
@dataclass(frozen=True, slots=True)
class RemotePruneReport:
    """The data that was removed from a remote, or that a dry run would have removed.

    Attributes:
        remote: Name of the remote.
        dry_run: Whether this was a dry run that changed nothing.
        removed_count, removed_bytes: Number and size of the unreferenced blobs that were removed.
        condemned_count, condemned_bytes: Number and size of the unreferenced blobs that are now marked for deletion,
            by this or an earlier call. They are removed after the grace period if they are still unreferenced.
        uncondemned_count: Number of unreferenced blobs that were not marked, because one call marks only a limited
            number. Later calls mark them.
        blob_count, blob_bytes: Number and size of the remaining blobs, including those marked for deletion.
        voided_count: Number of stopped pushes whose intent was made void. Such a push must start again from the
            beginning.
        finished_count: Number of checkpoints that this prune published because their pushes had stopped just before the
            last step.
        retention: The plan of `StoreConfig.keep_remote` for the checkpoints on the remote, and the removed checkpoints.
            None if the remote is not the mirror, or if there is no such policy.
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
            parts.append(f"{verb} {counted(len(self.retention.dropped), 'checkpoint')} that keep_remote does not keep")
        parts += [f"{verb} {counted(self.removed_count, 'blob')}, {size_text(self.removed_bytes)}, from {self.remote}"]
        if self.condemned_count:
            blobs = f"{counted(self.condemned_count, 'blob')} of {size_text(self.condemned_bytes)}"
            parts.append(f"{blobs} can be deleted after the grace period")
        if self.uncondemned_count:
            parts.append(f"{counted(self.uncondemned_count, 'more unreferenced blob')} will be marked by later calls")
        if self.voided_count:
            parts.append(f"voided {counted(self.voided_count, 'intent')} of pushes that had stopped")
        if self.finished_count:
            parts.append(f"published {counted(self.finished_count, 'checkpoint')} whose push had stopped at its end")
        return printable("; ".join(parts))
