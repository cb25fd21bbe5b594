"""A committed file that keeps its checkpoint open, for frameworks that open files by paths."""

from __future__ import annotations

import io
from typing import cast

from ckstore.ops.read.committed_file import BUFFER_BYTES, CommittedFile
from ckstore.ops.read.open_checkpoint import OpenCheckpoint


class OpenedFile(io.BufferedReader):
    """A file of a checkpoint. The checkpoint remains open until the file is closed."""

    def __init__(self, raw: CommittedFile, checkpoint: OpenCheckpoint) -> None:
        self._checkpoint = checkpoint
        self.size = raw.nbytes  # other files of fsspec also have this attribute
        super().__init__(raw, BUFFER_BYTES)

    def close(self) -> None:
        """Close the file and its checkpoint."""
        try:
            super().close()
        finally:
            self._checkpoint.close()


def opened(checkpoint: OpenCheckpoint, path: str) -> OpenedFile:
    """Open a file of a checkpoint. The checkpoint is closed with the file, or now if it has no such file."""
    try:
        return OpenedFile(cast("CommittedFile", checkpoint.open_file(path).detach()), checkpoint)
    except BaseException:
        checkpoint.close()
        raise
