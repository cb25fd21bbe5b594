"""Plans and reports of pushes, pulls and evictions, and the status of mirrors."""

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
    """The data that a push or a pull will move.

    Attributes:
        direction: ``push`` (from this store to the remote) or ``pull`` (from the remote to this store).
        remote: The name or the location of the remote.
        checkpoints: All requested checkpoints.
        new: The requested checkpoints that the destination lacks.
        missing: Digest and size of each blob that the destination lacks.
        all_bytes: Size of all blobs of the checkpoints, counting each blob once.
        warnings: A sentence for each checkpoint that cannot be moved, with the reason.
    """

    direction: Literal["push", "pull"]
    remote: str
    checkpoints: tuple[CheckpointInfo, ...]
    new: tuple[CheckpointInfo, ...]
    missing: tuple[tuple[str, int], ...]
    all_bytes: int
    warnings: tuple[str, ...] = ()

    @property
    def missing_bytes(self) -> int:
        """Number of bytes to move."""
        return sum(nbytes for _, nbytes in self.missing)

    def report(self) -> TransferReport:
        """Return the report of a dry run."""
        return TransferReport(
            self.direction,
            self.remote,
            self.checkpoints,
            self.new,
            len(self.missing),
            self.missing_bytes,
            self.all_bytes - self.missing_bytes,
            0.0,
            self.warnings,
            dry_run=True,
        )


@brief("direction", "remote", "checkpoints", "moved_bytes")
@dataclass(frozen=True, slots=True)
class TransferReport:
    """The result of a push or a pull, or of a dry run, which only reports the data that would be moved.

    Attributes:
        direction: ``push`` (from this store to the remote) or ``pull`` (from the remote to this store).
        remote: The name or the location of the remote.
        checkpoints: All requested checkpoints. Unless this is a dry run, each is now complete at the destination.
        new: The requested checkpoints that the destination lacked before.
        moved_count, moved_bytes: Number and size of the blobs that were moved.
        reused_bytes: Size of the blobs that the destination already had.
        duration_s: Duration in seconds, 0 for a dry run.
        warnings: Warnings for the user, one sentence each.
        dry_run: Whether nothing was moved.
    """

    direction: Literal["push", "pull"]
    remote: str
    checkpoints: tuple[CheckpointInfo, ...]
    new: tuple[CheckpointInfo, ...]
    moved_count: int
    moved_bytes: int
    reused_bytes: int
    duration_s: float
    warnings: tuple[str, ...] = ()
    dry_run: bool = False

    @property
    def new_count(self) -> int:
        """Number of checkpoints in `new`."""
        return len(self.new)

    def __str__(self) -> str:
        if self.dry_run:
            verb, way = ("push", "to") if self.direction == "push" else ("pull", "from")
            blobs = f"{counted(self.moved_count, 'blob')} of {size_text(self.moved_bytes)}"
            return printable(f"would {verb} {counted(self.new_count, 'new checkpoint')}, {blobs} {way} {self.remote}")
        verb, way = ("pushed", "to") if self.direction == "push" else ("pulled", "from")
        what = counted(len(self.checkpoints), "checkpoint")
        # A pull that only restores evicted bytes moves data, but adds no checkpoint.
        nothing = "no new checkpoint" if self.moved_bytes else "nothing new"
        new = f"{self.new_count} new" if self.new_count else nothing
        rate = f", {size_text(self.moved_bytes / self.duration_s)}/s" if self.moved_bytes and self.duration_s else ""
        moved = f"{size_text(self.moved_bytes)} in {counted(self.moved_count, 'blob')}"
        return printable(f"{verb} {what} {way} {self.remote}: {new}, {moved}{rate}")


@brief()
@dataclass(frozen=True, slots=True)
class MirrorStatus:
    """The status of a mirror, and the checkpoints that it lacks.

    Attributes:
        remote: Name of the remote.
        behind: The checkpoints that the mirror does not have yet, beginning with the newest.
        oldest_s: Age of the oldest of these checkpoints, in seconds. 0 if the mirror has all checkpoints.
        age_s: Number of seconds for which a checkpoint may be only local, from the setting `mirror_age_s`.
        problem: Why the last push failed. Empty if it succeeded.
        failing_since: Time of the first failed push since the last success, in the format of `CheckpointInfo.created`.
            Empty if `problem` is empty.
        looked: When the content of the mirror was last listed completely, in the format of `CheckpointInfo.created`.
            Empty if it was never listed completely.
        missing: Evicted checkpoints with blobs that were not in this listing. The mirror cannot provide these blobs.
        refused_since: Time since which the mirror has refused the credentials, in the format of
            `CheckpointInfo.created`. Empty if the last push succeeded, or failed for another reason.
        on_other_remotes: Evicted checkpoints whose data only other remotes have, for example because the store had
            another mirror before. After a pull, the mirror process pushes them.
        removed: Checkpoints that another store or a user removed from the mirror, according to the last lookups. They
            are not pushed again, except by `ckstore.Store.push`.
    """

    remote: str
    behind: tuple[CheckpointInfo, ...]
    oldest_s: float
    age_s: float
    problem: str
    failing_since: str = ""
    looked: str = ""
    missing: tuple[str, ...] = ()
    refused_since: str = ""
    on_other_remotes: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the last push succeeded, no checkpoint was only local for too long, and no bytes are missing."""
        return not self.problem and not self.missed and not self.missing and not self.on_other_remotes

    @property
    def missed(self) -> bool:
        """Whether a checkpoint has been only local for longer than the setting allows."""
        return self.oldest_s > self.age_s

    def __str__(self) -> str:
        why = f"; the last push failed: {self.problem}" if self.problem else ""
        if self.failing_since:
            why += f"; none has worked since {self.failing_since[:19].replace('T', ' ')} UTC"
        if self.refused_since:
            why += f"; the credentials are refused since {self.refused_since[:19].replace('T', ' ')} UTC"
        seen = f" (it listed them as of {self.looked[:16].replace('T', ' ')} UTC)" if self.looked else ""
        lost = f"{counted(len(self.missing), 'checkpoint')} that this store evicted" if self.missing else ""
        such_as = f", such as {self.missing[0]}{seen}" if self.missing else ""
        if self.on_other_remotes:
            count = counted(len(self.on_other_remotes), "checkpoint")
            why += f"; it lacks {count} that only other remotes have, such as {self.on_other_remotes[0]}"
        if self.removed:
            count = counted(len(self.removed), "checkpoint")
            why += f"; another store or a user removed {count} from it, such as {self.removed[0]}"
        if not self.behind:
            if (self.on_other_remotes or self.removed) and not lost:
                return printable(f"{mirror_named(self.remote)} has every other checkpoint{seen}{why}")
            found = f"lacks bytes of {lost}{such_as}" if lost else f"has every checkpoint{seen}"
            return printable(f"{mirror_named(self.remote)} {found}{why}")
        if lost:
            why += f"; it lacks bytes of {lost}{such_as}"
        verb = "is" if len(self.behind) == 1 else "are"
        oldest = f"the oldest for {self.oldest_s:.0f} s of {self.age_s:.0f} s allowed"
        count = counted(len(self.behind), "checkpoint")
        return printable(f"{count} {verb} not at {mirror_named(self.remote)} yet, {oldest}{why}")


def mirror_named(remote: str) -> str:
    """Return the text for a mirror in messages, with the name only if the user chose one."""
    return "the mirror" if remote == "mirror" else f"the mirror {remote}"


@brief("remote", "dry_run", "evicted", "skipped", "freed_bytes")
@dataclass(frozen=True, slots=True)
class EvictReport:
    """The result of `ckstore.Store.evict`.

    Attributes:
        remote: The remote that has the evicted data.
        dry_run: Whether this was a dry run that changed nothing.
        evicted: The checkpoints whose local blobs were freed, or would be freed in a dry run.
        skipped: The checkpoints that keep their local blobs, and the reasons.
        freed_bytes: Size of the blobs that were removed locally, or would be removed in a dry run. A blob of an evicted
            checkpoint is kept if a process has it open, or if a remaining checkpoint uses it.
        read_back_bytes: Bytes that were read from the remote for comparison.
        plan: The plan of `StoreConfig.keep_local`, if this setting chose the checkpoints.
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
    """The checkpoints that one store evicted. The store relies on their copies on a remote.

    Attributes:
        store: The uuid of that store.
        host, path: Host and path of that store at its last eviction. Empty if the claim cannot be read.
        is_own: Whether that store is the store that was queried.
        checkpoints: ``RUN@STEP.ID`` of each checkpoint, with the first ten digits of the id.
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
    """Yield a line for each checkpoint, with the reason why its bytes are evicted or kept."""
    gone = {info.key for info in report.evicted}
    for entry in () if report.plan is None else report.plan.entries:
        if entry.keep and report.dry_run:
            yield printable(f"keeps {entry.info.name} because {'; '.join(entry.reasons)}")
        elif entry.info.key in gone:
            yield printable(f"{_verb(report)} {entry.info.name} because {'; '.join(entry.reasons)}")
    yield from (printable(f"keeps {one.info.name}: {one.reason}") for one in report.skipped)


def summary(report: EvictReport) -> str:
    """Return a sentence on the amount of evicted data."""
    freed = f"{'would free' if report.dry_run else 'freed'} {size_text(report.freed_bytes)}"
    checkpoints = counted(len(report.evicted), "checkpoint")
    return printable(f"{_verb(report)} the local data of {checkpoints} stored on {report.remote}; {freed}")


def _verb(report: EvictReport) -> str:
    return "would evict" if report.dry_run else "evicted"
