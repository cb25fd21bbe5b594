"""The plan and the report of a gc, and the processes that keep blobs from being freed, without I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ckstore.model.brief import brief
from ckstore.model.manifest.info import CheckpointInfo, is_local
from ckstore.model.reports.held_blobs import HeldBlob, LinkedBlob, PlannedBlob, by_holder, by_reason, held_size, named
from ckstore.model.reports.retention_report import RetentionReport, Skipped
from ckstore.model.sizes import size_text
from ckstore.model.words import counted, first_of, printable, some_of

_CAN = "can be restored (ckstore undo)"
_COULD = "could be restored (ckstore undo)"  # after a dry run: it is not dropped yet
_CANNOT = "cannot be restored (ckstore undo gives the reason), and is kept"
_AT_ONCE = "ckstore gc --now frees that at once"
_NEEDED = "other checkpoints have the same blobs, or were compacted and are decoded with them"
_EVICTED = "their data is only on a remote"
_FREES_NOTHING = f"{_NEEDED}, or the data is only on a remote"


@dataclass(frozen=True, slots=True)
class Leftover:
    """A directory or file in ``staging/`` or ``trash/``."""

    name: str
    age_s: float  # time since an entry was last created or removed in the directory
    nbytes: int = 0  # bytes in files that have no other name
    owner: str = ""  # the user who created the directory or file
    alive: bool = False  # whether a process has the directory or file open


@brief()
@dataclass(frozen=True, slots=True)
class NextToFree:
    """The space that deleting the oldest deletable checkpoint would free.

    Attributes:
        name: The checkpoint, ``RUN@STEP``.
        nbytes: Total size of the blobs that only this checkpoint uses.
    """

    name: str
    nbytes: int = 0

    def __str__(self) -> str:
        size = size_text(self.nbytes) if self.nbytes else "nothing, since other checkpoints use the same bytes"
        return printable(f"deleting the oldest checkpoint {self.name} would free {size}")


@brief("run", "step", "dropped", "until", "nbytes")
@dataclass(frozen=True, slots=True)
class Waiting:
    """A dropped checkpoint that `Store.undo` can restore, or the remains of one.

    Attributes:
        run, step, id: Run, step and id of the checkpoint. The id is empty if its manifest cannot be read.
        dropped, until: When the checkpoint was dropped, and when its waiting time ends.
        nbytes: Bytes on the disk that its deletion would free, after the waiting checkpoints before it are deleted.
        entry: Name of its entry in ``trash/``. Empty in a dry run that would drop it.
        problem: Why it cannot be restored, such as a missing blob. Empty if it can be restored.
    """

    run: str
    step: int
    id: str
    dropped: str
    until: str
    nbytes: int
    entry: str
    problem: str = ""

    @property
    def ref(self) -> str:
        """``RUN@STEP``."""
        return f"{self.run}@{self.step}"

    def __str__(self) -> str:
        why = f": it cannot be restored: {self.problem}" if self.problem else ""
        times = f"dropped {self.dropped[:19]}Z, until {self.until[:19]}Z"
        return printable(f"{self.ref} {times}, {size_text(self.nbytes)}{why}")


@brief()
@dataclass(frozen=True, slots=True)
class GcPlan:
    """The actions that a gc would take now, and their effects.

    Attributes:
        blobs: The blobs that will be freed.
        held, linked_outside: Blobs that will not be freed although the store does not need them.
        dead_stagings: Names of directories in ``staging/`` that killed saves left. The first step moves them to trash.
        trash: Names in ``trash/`` that the second step deletes.
        unused: Digests of blobs that no checkpoint uses after the second step. The third step deletes these blobs.
        superseded: Superseded checkpoints that gc drops first, as in `GcReport`.
        dead_pack_bytes, unseen_processes, next_to_free, waits_for_grace: As in `GcReport`.
    """

    blobs: tuple[PlannedBlob, ...] = ()
    held: tuple[HeldBlob, ...] = ()
    linked_outside: tuple[LinkedBlob, ...] = ()
    dead_stagings: tuple[str, ...] = ()
    trash: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    superseded: tuple[str, ...] = ()
    dead_pack_bytes: int = 0
    unseen_processes: int | None = 0
    next_to_free: NextToFree | None = None
    waits_for_grace: bool = False

    @property
    def freed_bytes(self) -> int:
        """Total size of the blobs that would be freed."""
        return sum(blob.nbytes for blob in self.blobs)

    @property
    def freed_count(self) -> int:
        """Number of blobs that would be freed."""
        return len(self.blobs)

    @property
    def explanation(self) -> str:
        """The `explanation` of `GcReport`."""
        return GcReport.of_plan(self).explanation

    def __str__(self) -> str:
        return str(GcReport.of_plan(self))


@brief()
@dataclass(frozen=True, slots=True)
class GcReport:
    """The result of a gc.

    Attributes:
        freed_bytes, freed_count: Total size and number of the blobs that were freed.
        filesystem_freed_bytes: Growth of the free space of the filesystem during the gc. Other programs also write to
            the filesystem, so this may be less than `freed_bytes`, or negative. It is 0 in a dry run.
        held: Blobs that a process has open. They keep their names, and the next gc tries to free them again.
        linked_outside: Blobs with hardlinks outside the store. The next gc tries to free them again.
        dead_pack_bytes: Upper bound of the bytes in packs that no checkpoint uses. They are freed only when the whole
            pack is freed.
        superseded: Names and first digits of the ids of the superseded checkpoints that gc dropped, or would drop in a
            dry run.
        swept_stagings: Number of directories of killed saves that were moved to trash.
        trash_left: Names that are still in ``trash/``.
        catalog_bytes: Size of the index, ``catalog.db``.
        unseen_processes: Number of processes that could not be checked for open blobs. None if this number is unknown,
            because ``/proc`` is missing or does not list other users' processes. gc also queries the kernel about each
            blob, which works without ``/proc``.
        retention: The retention plan, and the checkpoints that it dropped before the gc. None without a policy. A dry
            run drops no checkpoint.
        dry_run: Whether this was a dry run, which changes nothing and reports the numbers of a real run.
        next_to_free: The space that deleting the oldest deletable checkpoint would free. None if blobs were freed or
            kept, no checkpoint may be deleted, or the catalog cannot be read.
        waits_for_grace: Whether entries wait in ``trash/`` for the grace period, because other hosts may use the store.
        plan: The plan that was carried out, or that a dry run would have carried out. It was made after the retention.
        waiting: Dropped checkpoints that keep their bytes for some time. Those without a `problem` can be restored.
        differences: Differences between the plan and the result with their reasons, one sentence each. Empty if dropped
            data waits for a grace period.
        cached_bytes: Bytes removed from the download cache (`StoreConfig.cache_bytes`).
    """

    freed_bytes: int = 0
    freed_count: int = 0
    filesystem_freed_bytes: int = 0
    held: tuple[HeldBlob, ...] = ()
    linked_outside: tuple[LinkedBlob, ...] = ()
    dead_pack_bytes: int = 0
    swept_stagings: int = 0
    trash_left: tuple[str, ...] = ()
    catalog_bytes: int = 0
    unseen_processes: int | None = 0
    retention: RetentionReport | None = None
    dry_run: bool = False
    next_to_free: NextToFree | None = None
    waits_for_grace: bool = False
    plan: GcPlan = GcPlan()
    waiting: tuple[Waiting, ...] = ()
    differences: tuple[str, ...] = ()
    cached_bytes: int = 0
    superseded: tuple[str, ...] = ()

    @property
    def dropped(self) -> tuple[CheckpointInfo, ...]:
        """The checkpoints that the retention policy dropped before the gc, or would drop in a dry run."""
        return () if self.retention is None else self.retention.dropped

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """The checkpoints that were kept although the policy would drop them."""
        return () if self.retention is None else self.retention.skipped

    @property
    def held_bytes(self) -> int:
        """Total size of the held blobs."""
        return sum(blob.nbytes for blob in self.held)

    @classmethod
    def of_plan(cls, plan: GcPlan) -> GcReport:
        """Return the report of a dry run."""
        return cls(
            freed_bytes=plan.freed_bytes,
            freed_count=plan.freed_count,
            held=plan.held,
            linked_outside=plan.linked_outside,
            dead_pack_bytes=plan.dead_pack_bytes,
            unseen_processes=plan.unseen_processes,
            superseded=plan.superseded,
            swept_stagings=len(plan.dead_stagings),
            dry_run=True,
            next_to_free=plan.next_to_free,
            waits_for_grace=plan.waits_for_grace,
            plan=plan,
        )

    @property
    def explanation(self) -> str:
        """Text on the freed blobs, and on why others were kept.

        If no blob was freed or kept, the text can also name a deletion that would free space.
        """
        sentences = []
        if self.superseded:
            sentences.append(_superseded(self, some_of(self.superseded)))
        if self.freed_count:
            what = f"{counted(self.freed_count, 'blob')}, {size_text(self.freed_bytes)}"
            sentences.append(f"would free {what}" if self.dry_run else f"freed {what}")
        opened, unasked = by_reason(self.held)
        if opened:
            sentences.append(f"{_kept(opened)}: open in {named(opened)}, and gc frees them once they are closed")
        sentences += [f"{_kept(blobs)}: {reason}" for reason, blobs in unasked.items()]
        if self.linked_outside:
            sentences.append(f"{_kept(self.linked_outside)}: hardlinks outside the store share their bytes")
        if sentences:
            if self.dry_run and self.freed_count and self.waits_for_grace:
                sentences.append("all of it at once only with --exclusive")
        elif self.trash_left:
            left = _waiting if self.waits_for_grace else _left
            sentences.append(left(len(self.trash_left)))
        elif self.dry_run and self.dropped and not self.waiting:
            sentences.append(f"would free nothing: {self._why_nothing}")
        elif any("@" in name for name in self.plan.trash):  # RUN@STEP is the name of a checkpoint
            does = "would free" if self.dry_run else "free"
            sentences.append(f"the dropped checkpoints {does} nothing: {self._why_nothing}")
        else:
            sentences.append("no other unused data" if self.waiting else "no unused data")
            sentences += _waiting_lines(self.waiting)
            if self.next_to_free is not None:
                sentences.append(str(self.next_to_free))
        return "; ".join(sentences)

    @property
    def _why_nothing(self) -> str:
        """Why the dropped checkpoints free nothing."""
        return _EVICTED if self.dropped and not any(map(is_local, self.dropped)) else _NEEDED

    def __str__(self) -> str:
        done = [] if self.retention is None else [str(self.retention)]
        return "\n".join([*done, *lines(self)])


def _superseded(report: GcReport, names: str) -> str:
    did = "would drop" if report.dry_run else "dropped"
    return printable(f"{did} {counted(len(report.superseded), 'superseded checkpoint')}: {names}")


def _kept(blobs: Sequence[HeldBlob | LinkedBlob]) -> str:
    return f"{counted(len(blobs), 'blob')}, {size_text(sum(blob.nbytes for blob in blobs))}, kept"


def _waiting(count: int) -> str:
    wait = "1 entry of trash/ waits" if count == 1 else f"{count} entries of trash/ wait"
    return (
        f"{wait} for the grace period (config.grace_s), since other hosts may be using the store; "
        "if none does, ckstore gc --exclusive frees at once"
    )


def _left(count: int) -> str:
    return (
        f"{count} in trash/ left for a later gc: another process is using them, "
        "or on a shared filesystem they wait for the grace period"
    )


def lines(report: GcReport, table: Callable[[Sequence[HeldBlob]], Iterable[str]] | None = None) -> Iterator[str]:
    """Yield lines on the freed and the kept blobs, without the retention.

    Args:
        report: The report.
        table: Formats the blobs that each process has open. If None, each list is shortened to a few lines.
    """
    if report.superseded:
        yield _superseded(report, some_of(report.superseded) if table is None else ", ".join(report.superseded))
    if report.freed_count:
        what = f"{size_text(report.freed_bytes)} in {counted(report.freed_count, 'blob')}"
        grown = 0 if report.dry_run else report.filesystem_freed_bytes
        more = f"; the filesystem has {size_text(grown)} more free" if grown > 0 else ""
        yield f"would free {what}" if report.dry_run else f"freed {what}{more}"
    kept = "would keep" if report.dry_run else "kept"
    opened, unasked = by_reason(report.held)
    if opened:
        yield f"{kept} {_sizes(opened)} that processes have open:"
        yield from first_of(_holder_lines(opened)) if table is None else table(opened)
        yield "gc frees it once they close it"
    for reason, blobs in unasked.items():
        yield printable(f"{kept} {_sizes(blobs)}: {reason}")
    linked = list(map(str, report.linked_outside))
    yield from first_of(linked) if table is None else linked
    # If checkpoints are waiting, a later line says when they are freed, so do not say that there is no unused data.
    is_idle = not (report.superseded or report.freed_count or report.held or report.linked_outside or report.waiting)
    if is_idle:
        yield printable(report.explanation)
    if report.cached_bytes:
        yield f"{'would remove' if report.dry_run else 'removed'} {size_text(report.cached_bytes)} of downloaded data"
    yield from _waiting_lines(report.waiting)
    if report.differences:
        said = [some_of(report.differences, 1)] if table is None else report.differences
        yield from (printable(f"not as planned: {one}") for one in said)
    if report.dead_pack_bytes:
        dead = f"{size_text(report.dead_pack_bytes)} cannot be freed yet"
        yield f"{dead}: it is in packs of small tensors, some of which are still needed"
    if report.unseen_processes is None:
        yield "cannot see which processes have files open: /proc is missing, or hides them"
    if report.trash_left and (report.waits_for_grace or not is_idle):  # otherwise an earlier line says so
        yield _left(len(report.trash_left))


def _waiting_lines(waiting: Sequence[Waiting]) -> Iterator[str]:
    for words in (_COULD, _CAN, _CANNOT):
        if own := [one for one in waiting if words == (_CANNOT if one.problem else _CAN if one.entry else _COULD)]:
            until = printable(max(one.until for one in own)[:16].replace("T", " "))
            then = _AT_ONCE if any(one.nbytes for one in own) else f"deleting it frees nothing: {_FREES_NOTHING}"
            yield f"{amount_of(own, 'dropped checkpoint')} {words} until {until} UTC; {then}"


def amount_of(waiting: Sequence[Waiting], what: str = "checkpoint") -> str:
    """Return the number of waiting checkpoints and the bytes that they keep on the disk."""
    return f"{counted(len(waiting), what)} with {size_text(sum(one.nbytes for one in waiting))}"


def _sizes(held: Sequence[HeldBlob]) -> str:
    return f"{held_size(held)} in {counted(len(held), 'blob')}"


def _holder_lines(held: Sequence[HeldBlob]) -> Iterator[str]:
    for (pid, command), (how, blobs) in by_holder(held).items():
        who = command if pid is None else f"PID {pid} ({command}), {how}"
        yield printable(f"  {who}: {held_size(blobs)}")
