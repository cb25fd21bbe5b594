"""What a push or a pull is going to move, what it moved, how far a mirror is, and what an eviction let go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ckstore.model.brief import brief
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.reports.retention_report import Skipped
from ckstore.model.settings.retention_plan import RetentionPlan
from ckstore.model.sizes import size_text
from ckstore.model.words import counted, in_lines, printable


@brief("direction", "remote", "checkpoints", "new", "all_bytes")
@dataclass(frozen=True, slots=True)
class TransferPlan:
    """What a push or a pull would move now; nothing was changed.

    Attributes:
        direction: ``push``: from this store to the remote; ``pull``: from there.
        remote: Its name, or where it is.
        checkpoints: All that were asked for.
        new: Those of them that are not at the other end.
        missing: Digest and size of each blob that is not at the other end.
        all_bytes: Size of all blobs of the checkpoints, each once.
    """

    direction: Literal["push", "pull"]
    remote: str
    checkpoints: tuple[CheckpointInfo, ...]
    new: tuple[CheckpointInfo, ...]
    missing: tuple[tuple[str, int], ...]
    all_bytes: int

    @property
    def missing_bytes(self) -> int:
        """Bytes that are to be moved."""
        return sum(nbytes for _, nbytes in self.missing)

    def __str__(self) -> str:
        verb, way = ("push", "to") if self.direction == "push" else ("pull", "from")
        blobs = counted(len(self.missing), "blob")
        what = f"{counted(len(self.new), 'new checkpoint')}, {blobs} of {size_text(self.missing_bytes)}"
        return printable(f"would {verb} {what} {way} {self.remote}")


@brief("direction", "remote", "checkpoints", "moved_bytes")
@dataclass(frozen=True, slots=True)
class TransferReport:
    """What a push or a pull moved.

    Attributes:
        direction: As in `TransferPlan`.
        remote: As in `TransferPlan`.
        checkpoints: All that were asked for; each is whole at the other end now.
        new_count: How many of them were not there before.
        moved_count, moved_bytes: Blobs that were moved.
        reused_bytes: Size of the blobs that were there already.
        duration_s: How long it took.
        warnings: What the user should know; one sentence each.
    """

    direction: Literal["push", "pull"]
    remote: str
    checkpoints: tuple[CheckpointInfo, ...]
    new_count: int
    moved_count: int
    moved_bytes: int
    reused_bytes: int
    duration_s: float
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        verb, way = ("pushed", "to") if self.direction == "push" else ("pulled", "from")
        what = counted(len(self.checkpoints), "checkpoint")
        nothing = "no new checkpoint" if self.moved_bytes else "nothing new"  # bytes that were let go come back
        new = f"{self.new_count} new" if self.new_count else nothing
        rate = f", {size_text(self.moved_bytes / self.duration_s)}/s" if self.moved_bytes and self.duration_s else ""
        moved = f"{size_text(self.moved_bytes)} in {counted(self.moved_count, 'blob')}"
        return printable(f"{verb} {what} {way} {self.remote}: {new}, {moved}{rate}")


@brief()
@dataclass(frozen=True, slots=True)
class MirrorStatus:
    """How far a mirror is behind its store.

    Attributes:
        remote: Name of the remote.
        behind: The checkpoints that are only here, the newest first.
        oldest_s: For how many seconds the oldest of them has been there; 0 if there is none.
        age_s: For how many seconds one may be, as the setting `mirror_age_s` says.
        problem: Why the last try to push failed; empty if it did not.
        failing_since: When the first try failed since one worked, as `CheckpointInfo.created`; empty if `problem` is.
        looked: When the mirror last listed all that it has, as `CheckpointInfo.created`; empty: not yet.
        missing: Checkpoints without bytes here of which it lacked some then; they cannot be fetched from it.
    """

    remote: str
    behind: tuple[CheckpointInfo, ...]
    oldest_s: float
    age_s: float
    problem: str
    failing_since: str = ""
    looked: str = ""
    missing: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the last push worked, nothing has been only here for longer than allowed, and nothing is missing."""
        return not self.problem and not self.missed and not self.missing

    @property
    def missed(self) -> bool:
        """Whether something has been only here for longer than the setting allows."""
        return self.oldest_s > self.age_s

    def __str__(self) -> str:
        why = f"; the last push failed: {self.problem}" if self.problem else ""
        if self.failing_since:
            why += f"; none has worked since {self.failing_since[:19].replace('T', ' ')} UTC"
        seen = f" (it listed them as of {self.looked[:16].replace('T', ' ')} UTC)" if self.looked else ""
        lost = f"{counted(len(self.missing), 'checkpoint')} whose bytes this store let go of" if self.missing else ""
        such_as = f", such as {self.missing[0]}{seen}" if self.missing else ""
        if not self.behind:
            found = f"lacks bytes of {lost}{such_as}" if lost else f"has every checkpoint{seen}"
            return printable(f"{mirror_named(self.remote)} {found}{why}")
        if lost:
            why += f"; it lacks bytes of {lost}{such_as}"
        verb = "is" if len(self.behind) == 1 else "are"
        oldest = f"the oldest for {self.oldest_s:.0f} s of {self.age_s:.0f} s allowed"
        count = counted(len(self.behind), "checkpoint")
        return printable(f"{count} {verb} not at {mirror_named(self.remote)} yet, {oldest}{why}")


def mirror_named(remote: str) -> str:
    """Return what a message calls a mirror: it has a name of its own only if the user gave it one."""
    return "the mirror" if remote == "mirror" else f"the mirror {remote}"


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


@brief("store", "host", "path")
@dataclass(frozen=True, slots=True)
class StoreClaims:
    """The checkpoints that one store evicted, and whose copies at a remote it relies on.

    Attributes:
        store: uuid of that store.
        host, path: Where the store was at its last eviction; empty if the claim cannot be read.
        is_own: It is the store that was asked.
        checkpoints: ``RUN@STEP.ID`` of each, with the first ten digits of the id.
    """

    store: str
    host: str
    path: str
    is_own: bool
    checkpoints: tuple[str, ...]

    def __str__(self) -> str:
        where = (
            "this store"
            if self.is_own
            else f"the store {self.path or 'at an unknown path'} on {self.host or 'an unknown host'}"
        )
        return printable(f"{where} ({self.store}) relies on {counted(len(self.checkpoints), 'checkpoint')}")


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
