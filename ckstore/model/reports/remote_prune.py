"""What pruning a remote removed, and what it will remove next time."""

from __future__ import annotations

from dataclasses import dataclass

from ckstore.model.brief import brief
from ckstore.model.reports.retention_report import RetentionReport
from ckstore.model.sizes import size_text
from ckstore.model.words import counted, printable


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
        if self.voided_count:
            parts.append(f"voided {counted(self.voided_count, 'intent')} of pushes that had stopped")
        if self.finished_count:
            parts.append(f"published {counted(self.finished_count, 'checkpoint')} whose push had stopped at its end")
        return printable("; ".join(parts))
