"""What an eviction let go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckstore.model.brief import brief
from ckstore.model.sizes import size_text
from ckstore.model.words import counted, in_lines, printable

if TYPE_CHECKING:
    from ckstore.model.manifest.info import CheckpointInfo
    from ckstore.model.reports.retention_report import Skipped


@brief("remote", "dry_run", "evicted", "skipped", "freed_bytes")
@dataclass(frozen=True, slots=True)
class EvictReport:
    """What `ckstore.Store.evict` let go.

    Attributes:
        remote: Which remote has it.
        dry_run: Whether nothing was changed: `evicted` would have been.
        evicted: The checkpoints whose blobs were let go here.
        skipped: Those that keep theirs, and why.
        freed_bytes: Size of the blobs that are not here any more; others are open, or used by checkpoints that stay.
        read_back_bytes: Bytes that were read from the remote to compare them.
    """

    remote: str
    dry_run: bool
    evicted: tuple[CheckpointInfo, ...]
    skipped: tuple[Skipped, ...]
    freed_bytes: int
    read_back_bytes: int

    def __str__(self) -> str:
        would = "would let go of" if self.dry_run else "let go of"
        checkpoints = counted(len(self.evicted), "checkpoint")
        what = f"{would} the bytes of {checkpoints}, which {self.remote} has"
        freed = "" if self.dry_run else f"; freed {size_text(self.freed_bytes)}"
        kept = [printable(f"keeps {one.info.name}: {one.reason}") for one in self.skipped]
        return in_lines(kept, [printable(f"{what}{freed}")])
