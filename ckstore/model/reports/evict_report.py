"""What an eviction let go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ckstore.model.brief import brief
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.reports.retention_report import Skipped
from ckstore.model.settings.retention_plan import RetentionPlan
from ckstore.model.sizes import size_text
from ckstore.model.words import counted, in_lines, printable


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
        plan: What `StoreConfig.keep_local` says, where it chose them.
    """

    remote: str
    dry_run: bool
    evicted: tuple[CheckpointInfo, ...]
    skipped: tuple[Skipped, ...]
    freed_bytes: int
    read_back_bytes: int
    plan: RetentionPlan | None = None

    def __str__(self) -> str:
        return in_lines(details(self), [summary(self)])


def details(report: EvictReport) -> Iterator[str]:
    """Say of each checkpoint why it goes or keeps its bytes."""
    gone = {info.key for info in report.evicted}
    for entry in () if report.plan is None else report.plan.entries:
        if entry.keep and report.dry_run:
            yield printable(f"keeps {entry.info.name} because {'; '.join(entry.reasons)}")
        elif entry.info.key in gone:
            yield printable(f"{_verb(report)} {entry.info.name} because {'; '.join(entry.reasons)}")
    yield from (printable(f"keeps {one.info.name}: {one.reason}") for one in report.skipped)


def summary(report: EvictReport) -> str:
    """Say how much was let go."""
    freed = "" if report.dry_run else f"; freed {size_text(report.freed_bytes)}"
    checkpoints = counted(len(report.evicted), "checkpoint")
    return printable(f"{_verb(report)} the bytes of {checkpoints}, which {report.remote} has{freed}")


def _verb(report: EvictReport) -> str:
    return "would let go of" if report.dry_run else "let go of"
