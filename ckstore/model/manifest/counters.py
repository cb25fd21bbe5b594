"""What one save did, in numbers."""

from __future__ import annotations

from dataclasses import dataclass

from ckstore.model.brief import brief
from ckstore.model.sizes import size_text
from ckstore.model.words import counted


@brief()
@dataclass(frozen=True, slots=True)
class SaveCounters:
    """What one save did. Its parts come one after another; hashing and writing go on side by side.

    Attributes:
        hashed_bytes: So many bytes of the state were read and hashed.
        kept_bytes: So many were taken from the checkpoint before, unread but for a sample (``unchanged=``).
        written_count: Blobs that were written; their bytes are `CheckpointInfo.new_bytes`.
        reused_count: Blobs that the store had.
        copied_s: Seconds that `save_async` took to copy the state, with what it waited for other saves; 0 for `save`.
        queued_s: From then until a saver had it; 0 for `save`.
        staging_s: To make a staging directory.
        storing_s: To look up, hash, link and write blobs, each of them durable.
        sealing_s: To write the manifest, and make the directory durable.
        publishing_s: To rename it into place, durably; in the background with the question whether it may be.
        finishing_s: For tags, the catalog, retention and gc, after the checkpoint was durable.
    """

    hashed_bytes: int
    kept_bytes: int
    written_count: int
    reused_count: int
    copied_s: float = 0.0
    queued_s: float = 0.0
    staging_s: float = 0.0
    storing_s: float = 0.0
    sealing_s: float = 0.0
    publishing_s: float = 0.0
    finishing_s: float = 0.0

    def __str__(self) -> str:
        kept = f", {size_text(self.kept_bytes)} taken over unread" if self.kept_bytes else ""
        took_s = self.staging_s + self.storing_s + self.sealing_s + self.publishing_s + self.finishing_s
        blobs = f"{counted(self.written_count, 'blob')} written, {self.reused_count} reused"
        return f"{size_text(self.hashed_bytes)} hashed{kept}, {blobs}, in {took_s:.2f} s"
