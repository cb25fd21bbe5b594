"""What a push or a pull is going to move, and what it moved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ckstore.model.brief import brief
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.sizes import size_text
from ckstore.model.words import counted, printable


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
        new = f"{self.new_count} new" if self.new_count else "nothing new"
        rate = f", {size_text(self.moved_bytes / self.duration_s)}/s" if self.moved_bytes and self.duration_s else ""
        moved = f"{size_text(self.moved_bytes)} in {counted(self.moved_count, 'blob')}"
        return printable(f"{verb} {what} {way} {self.remote}: {new}, {moved}{rate}")
