"""The space that deleting checkpoints frees, and the reasons why the remaining data is kept."""

from __future__ import annotations

from dataclasses import dataclass

from ckstore.model.brief import brief
from ckstore.model.sizes import size_text


@brief()
@dataclass(frozen=True, slots=True)
class DeletionEffect:
    """The space that deleting some checkpoints frees, in bytes of blob files.

    Attributes:
        freed_bytes: Blobs that no other checkpoint has. They are freed once the deletion can no longer be undone,
            unless a process has them open.
        shared_bytes: Data that other checkpoints also have.
        packed_bytes: Data that only the deleted checkpoints use, in packs that other checkpoints need.
        linked_bytes: Blobs that no other checkpoint needs but that have other hardlinks, in a save in progress or
            outside the store.
    """

    freed_bytes: int = 0
    shared_bytes: int = 0
    packed_bytes: int = 0
    linked_bytes: int = 0

    def words(self, *, dry_run: bool = False) -> str:
        """Return a sentence on the freed space and, if some data is kept, the reasons."""
        size = size_text(self.freed_bytes) if self.freed_bytes else "nothing"
        frees = f"this {'would free' if dry_run else 'frees'} {size}"
        reasons = {
            "is also in other checkpoints": self.shared_bytes,
            "is in packs of small tensors that other checkpoints need": self.packed_bytes,
            "has other hardlinks, of a save in progress or outside the store": self.linked_bytes,
        }
        kept = [f"{size_text(nbytes)} {reason}" for reason, nbytes in reasons.items() if nbytes]
        if not self.freed_bytes and not kept:
            return f"{frees}: the store has no data of it"
        return f"{frees}: {', '.join(kept)}" if kept else frees

    def __str__(self) -> str:
        return self.words()
