"""A file of a checkpoint, opened through the door."""

from __future__ import annotations

import io
from typing import cast

from ckstore.integrations.fsspec.places import StoreLocation
from ckstore.ops.read.committed_file import BUFFER_BYTES, CommittedFile
from ckstore.ops.read.open_checkpoint import OpenCheckpoint


class OpenedFile(io.BufferedReader):
    """A file of a checkpoint that is kept open until it is closed."""

    def __init__(self, raw: CommittedFile, checkpoint: OpenCheckpoint) -> None:
        self._checkpoint = checkpoint
        self.size = raw.nbytes  # as other files of fsspec have it
        super().__init__(raw, BUFFER_BYTES)

    def close(self) -> None:
        """Close it and its checkpoint."""
        try:
            super().close()
        finally:
            self._checkpoint.close()


def opened(checkpoint: OpenCheckpoint, place: StoreLocation) -> OpenedFile:
    """Open a file of a checkpoint, which is closed with it, or at once if there is no such file."""
    try:
        return OpenedFile(cast("CommittedFile", checkpoint.open_file(place.path).detach()), checkpoint)
    except BaseException:
        checkpoint.close()
        raise
