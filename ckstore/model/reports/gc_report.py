"""What gc will do, what it did, and who keeps it from doing more: values without I/O."""

from __future__ import annotations

from dataclasses import dataclass

from ckstore.model.reports.retention_report import RetentionReport
from ckstore.model.sizes import size_text

_NAMED_HOLDERS = 3


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that has a file open or mapped, as ``/proc`` shows it.

    Attributes:
        pid: Process id, as seen by the one who asked.
        command: Its command line, shortened; its name in brackets if it shows none.
        how: ``descriptor 5``, ``mapping``, ``io_uring file 0``.
        target: The path by which the process has the file; ``… (deleted)`` if that name is gone.
    """

    pid: int
    command: str
    how: str
    target: str


@dataclass(frozen=True, slots=True)
class DeletedFile:
    """A file without a name whose space is kept by processes that have it open or mapped.

    Attributes:
        inode: Its inode number.
        nbytes: Bytes that it takes on the filesystem; 0 where only root may see it: mapped, and open nowhere.
        holders: Who has it.
    """

    inode: int
    nbytes: int
    holders: tuple[Holder, ...]


@dataclass(frozen=True, slots=True)
class HeldBlob:
    """A blob that nothing in the store needs and that was not freed, since a process has it open or mapped.

    Attributes:
        digest: Its name.
        nbytes: Its size.
        holders: The processes that could be seen. None: a process of another user or PID namespace, a descriptor
            in flight in a socket, or the kernel itself (a loop device, io_uring).
        why: Empty, or why the kernel could not be asked, as of the file of another user.
    """

    digest: str
    nbytes: int
    holders: tuple[Holder, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class LinkedBlob:
    """A blob that nothing in the store needs and that has further names outside it.

    Attributes:
        digest: Its name.
        nbytes: Its size; removing the store's own name would not free them.
        name_count: How many names it has outside the store.
    """

    digest: str
    nbytes: int
    name_count: int


@dataclass(frozen=True, slots=True)
class PlannedBlob:
    """A blob that gc is about to free: its digest and size."""

    digest: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class GcPlan:
    """What gc would do at this moment; nothing was changed to find it out.

    Attributes:
        blobs: What would be freed.
        held, linked_elsewhere: What nothing in the store needs and would not be freed.
        dead_stagings: Names of the directories in ``staging/`` that killed saves left.
        trash: Names in ``trash/`` that would go on their way out.
        dead_pack_bytes, unseen_processes, explanation: As in `GcReport`.
    """

    blobs: tuple[PlannedBlob, ...] = ()
    held: tuple[HeldBlob, ...] = ()
    linked_elsewhere: tuple[LinkedBlob, ...] = ()
    dead_stagings: tuple[str, ...] = ()
    trash: tuple[str, ...] = ()
    dead_pack_bytes: int = 0
    unseen_processes: int | None = 0
    explanation: str = ""

    @property
    def freed_bytes(self) -> int:
        """Sizes of the blobs that would be freed."""
        return sum(blob.nbytes for blob in self.blobs)

    @property
    def freed_count(self) -> int:
        """How many blobs would be freed."""
        return len(self.blobs)


@dataclass(frozen=True, slots=True)
class GcReport:
    """What gc did.

    Attributes:
        freed_bytes, freed_count: Sizes and number of the blobs that were freed.
        filesystem_freed_bytes: By how much the free space of the filesystem grew meanwhile. Others write to it
            too, so it may be less, or below 0; 0 in a dry run.
        held: Blobs that a process has open; they keep their name and the next gc tries again.
        linked_elsewhere: Blobs with hardlinks outside the store; the next gc tries again.
        dead_pack_bytes: Bytes in shared blobs that no checkpoint uses, at most; they go with the whole pack.
        swept_stagings: Directories of killed saves that were moved to trash.
        trash_left: Names that are still in ``trash/``.
        catalog_bytes: Size of the index, ``catalog.db``.
        unseen_processes: How many processes could not be looked at for holders; None: unknown, since ``/proc`` is not
            there or does not list other users' processes. The kernel's own answer about a
            blob does not depend on it.
        retention: The retention plan, and which checkpoints it dropped before; None without a policy. In a dry run
            it dropped none.
        dry_run: Nothing was changed; the numbers say what would have been.
        explanation: What happened, in words; when nothing was freed, what would.
    """

    freed_bytes: int = 0
    freed_count: int = 0
    filesystem_freed_bytes: int = 0
    held: tuple[HeldBlob, ...] = ()
    linked_elsewhere: tuple[LinkedBlob, ...] = ()
    dead_pack_bytes: int = 0
    swept_stagings: int = 0
    trash_left: tuple[str, ...] = ()
    catalog_bytes: int = 0
    unseen_processes: int | None = 0
    retention: RetentionReport | None = None
    dry_run: bool = False
    explanation: str = ""

    @property
    def held_bytes(self) -> int:
        """Sizes of the blobs that are held."""
        return sum(blob.nbytes for blob in self.held)

    @classmethod
    def of_plan(cls, plan: GcPlan) -> GcReport:
        """Return the report of a dry run."""
        return cls(
            freed_bytes=plan.freed_bytes,
            freed_count=plan.freed_count,
            held=plan.held,
            linked_elsewhere=plan.linked_elsewhere,
            dead_pack_bytes=plan.dead_pack_bytes,
            unseen_processes=plan.unseen_processes,
            swept_stagings=len(plan.dead_stagings),
            dry_run=True,
            explanation=plan.explanation,
        )


@dataclass(frozen=True, slots=True)
class NextToFree:
    """What deleting one checkpoint would free.

    Attributes:
        name: ``RUN@STEP``; empty if no checkpoint may go.
        nbytes: Sizes of the blobs that only it uses.
    """

    name: str = ""
    nbytes: int = 0


def explain(
    freed: tuple[int, int],
    held: tuple[HeldBlob, ...],
    linked: tuple[LinkedBlob, ...],
    next_to_free: NextToFree | None = None,
    *,
    dry_run: bool = False,
    waiting_count: int = 0,
) -> str:
    """Say in words what gc freed and why not more.

    Args:
        freed: Number and sizes of the blobs.
        held: What processes have open.
        linked: What has names elsewhere.
        next_to_free: What would free something; said when there is nothing else to say.
        dry_run: Say what would happen instead.
        waiting_count: Entries of trash that wait for the grace; said when there is nothing else to say.
    """
    count, nbytes = freed
    sentences = []
    if count:
        sentences.append(f"{'would free' if dry_run else 'freed'} {_blobs(count)}, {size_text(nbytes)}")
    opened, unasked = by_reason(held)
    if opened:
        who = _named(opened)
        size = size_text(sum(blob.nbytes for blob in opened))
        sentences.append(f"{_blobs(len(opened))}, {size}, kept: open in {who}; gc frees them once they are closed")
    for why, blobs in unasked.items():
        size = size_text(sum(blob.nbytes for blob in blobs))
        sentences.append(f"{_blobs(len(blobs))}, {size}, kept: {why}")
    if linked:
        size = size_text(sum(blob.nbytes for blob in linked))
        sentences.append(f"{_blobs(len(linked))}, {size}, kept: hardlinks outside the store share their bytes")
    if not sentences:
        sentences.append(_waiting(waiting_count) if waiting_count else _nothing(next_to_free or NextToFree()))
    return "; ".join(sentences)


def by_reason(held: tuple[HeldBlob, ...]) -> tuple[tuple[HeldBlob, ...], dict[str, tuple[HeldBlob, ...]]]:
    """Return the blobs that are known to be open, and for each reason why that could not be asked the others."""
    unasked: dict[str, list[HeldBlob]] = {}
    for blob in held:
        if blob.why and not blob.holders:
            unasked.setdefault(blob.why, []).append(blob)
    asked = tuple(blob for blob in held if blob.holders or not blob.why)
    return asked, {why: tuple(blobs) for why, blobs in unasked.items()}


def _waiting(count: int) -> str:
    wait = "1 entry of trash/ waits" if count == 1 else f"{count} entries of trash/ wait"
    return (
        f"{wait} for the grace (config.grace_s), since other hosts may be using the store; "
        "when none does, ckstore gc --exclusive frees at once"
    )


def _nothing(next_to_free: NextToFree) -> str:
    if not next_to_free.name:
        return "nothing is unused"
    would = f"deleting the oldest checkpoint {next_to_free.name} would free"
    if next_to_free.nbytes:
        return f"nothing is unused; {would} {size_text(next_to_free.nbytes)}"
    return f"nothing is unused; {would} nothing, since other checkpoints use the same bytes"


def _named(held: tuple[HeldBlob, ...]) -> str:
    seen = list(dict.fromkeys(f"PID {one.pid} ({one.command})" for blob in held for one in blob.holders))
    more = len(seen) - _NAMED_HOLDERS
    named = ", ".join(seen[:_NAMED_HOLDERS]) + (f" and {more} more" if more > 0 else "")
    if all(blob.holders for blob in held):
        return named
    unseen = "a process that is not visible from here"
    return f"{named} and {unseen}" if named else unseen


def _blobs(count: int) -> str:
    return "1 blob" if count == 1 else f"{count} blobs"
