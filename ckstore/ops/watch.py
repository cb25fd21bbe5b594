"""What a save tells an observer as it goes on; a background saver passes it to its trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckstore.model.manifest.info import CheckpointInfo


class SaveWatch:
    """Called as a save goes on, from several threads; this one does nothing."""

    def staged(self) -> None:
        """The staging directory is there; what the store has is looked up and hashed next."""

    def hashed(self, nbytes: int) -> None:
        """The digest of so many more bytes is known."""

    def writing(self) -> None:
        """A blob is about to be written."""

    def written(self) -> None:
        """A blob is durable."""

    def syncing(self) -> None:
        """All blobs are there; the manifest is about to be written, and all made durable."""

    def publishing(self, step: int) -> None:
        """The next rename may publish the save at this step; raises if it must not."""

    def committed(self, info: CheckpointInfo) -> None:
        """The checkpoint is durable; its tags, the catalog and retention follow."""


NO_WATCH = SaveWatch()
