"""What deleting checkpoints frees, and why not more."""

from __future__ import annotations

from dataclasses import dataclass

from ckstore.model.brief import brief
from ckstore.model.sizes import size_text


@brief()
@dataclass(frozen=True, slots=True)
class DeletionEffect:
    """What deleting some checkpoints frees; sizes are those of files of blobs.

    Attributes:
        freed_bytes: Blobs that no other checkpoint has. They are freed when the deletion cannot be undone any more,
            unless a process has them open.
        shared_bytes: Data that other checkpoints have as well.
        packed_bytes: Data that only the deleted checkpoints use, in packs that other checkpoints need.
        linked_bytes: Blobs that no other checkpoint needs, and that have other hardlinks: of a save in progress, or
            outside the store.
    """

    freed_bytes: int = 0
    shared_bytes: int = 0
    packed_bytes: int = 0
    linked_bytes: int = 0

    def words(self, *, dry_run: bool = False) -> str:
        """Say what is freed and, if that is not all, why."""
        size = size_text(self.freed_bytes) if self.freed_bytes else "nothing"
        frees = f"this {'would free' if dry_run else 'frees'} {size}"
        reasons = {
            "is in other checkpoints as well": self.shared_bytes,
            "lies in packs of small tensors that other checkpoints need": self.packed_bytes,
            "has other hardlinks, of a save in progress or outside the store": self.linked_bytes,
        }
        kept = [f"{size_text(nbytes)} {reason}" for reason, nbytes in reasons.items() if nbytes]
        if not self.freed_bytes and not kept:
            return f"{frees}: the store has no data of it"
        return f"{frees}: {', '.join(kept)}" if kept else frees

    def __str__(self) -> str:
        return self.words()
