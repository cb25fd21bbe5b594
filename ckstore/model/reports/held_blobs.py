"""Blobs and files that take space although nothing needs them, and who keeps them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ckstore.model.brief import brief
from ckstore.model.sizes import size_text
from ckstore.model.words import counted, printable, some_of

_NAMED_HOLDERS = 3
_UNSEEN = "a process that is not visible from here"


@brief()
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

    def __str__(self) -> str:
        return printable(f"PID {self.pid} ({self.command})")


@brief()
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

    def __str__(self) -> str:
        return f"deleted file {self.inode}: {size_text(self.nbytes)}, open in {named([self])}"


@brief()
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

    @property
    def reason(self) -> str:
        """Why it stays: who has it open, or why that could not be asked."""
        return self.why if self.why and not self.holders else f"open in {named([self])}"

    def __str__(self) -> str:
        return printable(f"{self.digest}: {size_text(self.nbytes)}, kept: {self.reason}")


@brief()
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

    def __str__(self) -> str:
        names = f"{counted(self.name_count, 'name')} outside the store"
        return printable(f"{size_text(self.nbytes)} stay: {self.digest} has {names}")


@brief()
@dataclass(frozen=True, slots=True)
class PlannedBlob:
    """A blob that gc is about to free: its digest and size."""

    digest: str
    nbytes: int

    def __str__(self) -> str:
        return printable(f"{self.digest}: {size_text(self.nbytes)}")


def named(held: Sequence[HeldBlob | DeletedFile]) -> str:
    """Return who has blobs or files open: some of those that could be seen."""
    seen = some_of(list(dict.fromkeys(str(one) for blob in held for one in blob.holders)), _NAMED_HOLDERS)
    if all(blob.holders for blob in held):
        return seen
    return f"{seen} and {_UNSEEN}" if seen else _UNSEEN


def by_reason(held: tuple[HeldBlob, ...]) -> tuple[tuple[HeldBlob, ...], dict[str, tuple[HeldBlob, ...]]]:
    """Return the blobs that are known to be open, and for each reason why that could not be asked the others."""
    unasked: dict[str, list[HeldBlob]] = {}
    for blob in held:
        if blob.why and not blob.holders:
            unasked.setdefault(blob.why, []).append(blob)
    asked = tuple(blob for blob in held if blob.holders or not blob.why)
    return asked, {why: tuple(blobs) for why, blobs in unasked.items()}


def held_size(held: Sequence[HeldBlob]) -> str:
    """Return the size of all of them."""
    return size_text(sum(blob.nbytes for blob in held))


def by_holder(held: Sequence[HeldBlob]) -> dict[tuple[int | None, str], tuple[str, list[HeldBlob]]]:
    """Return for each process, the greatest first, one way in which it has files, and the blobs that it has."""
    found: dict[tuple[int | None, str], tuple[dict[str, None], dict[str, HeldBlob]]] = {}
    for blob in held:
        for key, how in _holders(blob):
            hows, blobs = found.setdefault(key, ({}, {}))
            hows[how] = None
            blobs[blob.digest] = blob
    ordered = sorted(found.items(), key=lambda item: -sum(blob.nbytes for blob in item[1][1].values()))
    return {key: (some_of([*hows], 1), [*blobs.values()]) for key, (hows, blobs) in ordered}


def _holders(blob: HeldBlob) -> Iterator[tuple[tuple[int | None, str], str]]:
    for holder in blob.holders:
        yield (holder.pid, holder.command), holder.how
    if not blob.holders:
        yield (None, _UNSEEN), "open"
