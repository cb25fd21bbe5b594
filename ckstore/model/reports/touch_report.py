"""The report of `Store.touch`."""

from __future__ import annotations

from dataclasses import dataclass

from ckstore.model.brief import brief
from ckstore.model.sizes import size_text
from ckstore.model.words import counted, in_lines, printable


@brief()
@dataclass(frozen=True, slots=True)
class TouchReport:
    """The files whose times `Store.touch` renewed, and the files whose times it could not renew.

    Attributes:
        checkpoint_count: Number of checkpoints whose files got new times.
        blob_count: Number of blobs of these checkpoints, counting each blob once.
        blob_bytes: Total size of these blobs.
        refused: Groups of files whose times could not be renewed, each with the reason.
    """

    checkpoint_count: int
    blob_count: int
    blob_bytes: int
    refused: tuple[str, ...] = ()

    def __str__(self) -> str:
        blobs = f"{counted(self.blob_count, 'blob')}, {size_text(self.blob_bytes)}"
        done = f"renewed the times of {counted(self.checkpoint_count, 'checkpoint')} ({blobs})"
        return in_lines((f"not renewed: {printable(text)}" for text in self.refused), [done])
