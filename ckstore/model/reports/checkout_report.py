"""What a checkout wrote."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ckstore.model.brief import brief
from ckstore.model.sizes import size_text
from ckstore.model.words import LINES_SHOWN, counted, printable, some_of


@brief()
@dataclass(frozen=True, slots=True)
class CheckoutReport:
    """What `ckstore.Store.checkout` wrote.

    Attributes:
        destination: Where.
        paths: The files and symlinks, relative to it.
        nbytes: Sizes of the files.
        shared_bytes: How many of them share blocks or an inode with the store.
        hardlinked: Files that are names of a blob of the store; read-only, and never to be written into.
    """

    destination: Path
    paths: tuple[str, ...]
    nbytes: int
    shared_bytes: int = 0
    hardlinked: tuple[str, ...] = ()

    def __str__(self) -> str:
        shared = f", {size_text(self.shared_bytes)} of them shared with the store" if self.shared_bytes else ""
        wrote = f"wrote {counted(len(self.paths), 'file')}, {size_text(self.nbytes)}{shared}, to {self.destination}"
        if not self.hardlinked:
            return printable(wrote)
        linked = some_of(self.hardlinked, LINES_SHOWN)
        warning = f"hardlinks to the store's own blobs, which you must never write to: {linked}"
        return f"{printable(wrote)}\n{printable(warning)}"
