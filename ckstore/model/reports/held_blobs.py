"""Unneeded blobs and files that still take space, and the processes that keep them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ckstore.model.brief import brief
from ckstore.model.sizes import size_text
from ckstore.model.words import counted, printable, some_of

_NAMED_HOLDERS = 3
_UNSEEN = "a process that is not visible to this one"


@brief()
@dataclass(frozen=True, slots=True)
class Holder:
    """A process that has a file open or mapped, according to ``/proc``.

    Attributes:
        pid: Process id, as seen by the calling process.
        command: Its shortened command line, or its name in brackets if its command line is empty.
        how: How it has the file open, such as ``descriptor 5``, ``mapping`` or ``io_uring file 0``.
        target: The path by which the process opened the file, followed by ``(deleted)`` if that path was deleted.
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
    """A deleted file whose space is not freed because processes have it open or mapped.

    Attributes:
        inode: Inode number of the file.
        nbytes: Bytes that the file takes on the filesystem. 0 if the file is mapped but not open, because only root can
            then see its size.
        holders: The processes that have the file open or mapped.
    """

    inode: int
    nbytes: int
    holders: tuple[Holder, ...]

    def __str__(self) -> str:
        return f"deleted file {self.inode}: {size_text(self.nbytes)}, open in {named([self])}"


@brief()
@dataclass(frozen=True, slots=True)
class HeldBlob:
    """An unneeded blob that was not freed because a process has it open or mapped, or may have it open or mapped.

    Attributes:
        digest: Digest of the blob, which is also its name.
        nbytes: Size of the blob.
        holders: The visible processes that have the blob open. If empty, the holder is a process of another user or PID
            namespace, a descriptor in flight in a socket, or the kernel itself (a loop device, io_uring).
        why: Why the kernel could not be queried, for example because another user owns the file. Empty if the kernel
            was queried.
    """

    digest: str
    nbytes: int
    holders: tuple[Holder, ...] = ()
    why: str = ""

    @property
    def reason(self) -> str:
        """Why the blob was kept: the processes that have it open, or the reason why the kernel could not be queried."""
        return self.why if self.why and not self.holders else f"open in {named([self])}"

    def __str__(self) -> str:
        return printable(f"{self.digest}: {size_text(self.nbytes)}, kept: {self.reason}")


@brief()
@dataclass(frozen=True, slots=True)
class LinkedBlob:
    """An unneeded blob with hardlinks outside the store.

    Attributes:
        digest: Digest of the blob, which is also its name.
        nbytes: Size of the blob. Removing its name in the store would not free these bytes.
        name_count: Number of names outside the store.
    """

    digest: str
    nbytes: int
    name_count: int

    def __str__(self) -> str:
        names = f"{counted(self.name_count, 'name')} outside the store"
        return printable(f"{size_text(self.nbytes)} are not freed: {self.digest} has {names}")


@brief()
@dataclass(frozen=True, slots=True)
class PlannedBlob:
    """Digest and size of a blob that gc is about to free."""

    digest: str
    nbytes: int

    def __str__(self) -> str:
        return printable(f"{self.digest}: {size_text(self.nbytes)}")


def named(held: Sequence[HeldBlob | DeletedFile]) -> str:
    """Return a text that names some of the visible processes with blobs or files open."""
    seen = some_of(list(dict.fromkeys(str(one) for blob in held for one in blob.holders)), _NAMED_HOLDERS)
    if all(blob.holders for blob in held):
        return seen
    return f"{seen} and {_UNSEEN}" if seen else _UNSEEN


def by_reason(held: tuple[HeldBlob, ...]) -> tuple[tuple[HeldBlob, ...], dict[str, tuple[HeldBlob, ...]]]:
    """Return the blobs that are known to be open, and the remaining blobs by the reason why this is unknown."""
    unasked: dict[str, list[HeldBlob]] = {}
    for blob in held:
        if blob.why and not blob.holders:
            unasked.setdefault(blob.why, []).append(blob)
    asked = tuple(blob for blob in held if blob.holders or not blob.why)
    return asked, {why: tuple(blobs) for why, blobs in unasked.items()}


def held_size(held: Sequence[HeldBlob]) -> str:
    """Return the total size of the blobs as text."""
    return size_text(sum(blob.nbytes for blob in held))


def by_holder(held: Sequence[HeldBlob]) -> dict[tuple[int | None, str], tuple[str, list[HeldBlob]]]:
    """Return the open blobs of each process, and one of the ways in which it has them open.

    The process whose blobs have the greatest total size is first.
    """
    found: dict[tuple[int | None, str], tuple[dict[str, None], dict[str, HeldBlob]]] = {}
    for blob in held:
        ways: list[tuple[tuple[int | None, str], str]] = [((one.pid, one.command), one.how) for one in blob.holders]
        for key, how in ways or [((None, _UNSEEN), "open")]:
            hows, blobs = found.setdefault(key, ({}, {}))
            hows[how] = None
            blobs[blob.digest] = blob
    ordered = sorted(found.items(), key=lambda item: -sum(blob.nbytes for blob in item[1][1].values()))
    return {key: (some_of([*hows], 1), [*blobs.values()]) for key, (hows, blobs) in ordered}
