"""The encoded form of a checkpoint for a remote, with the files that the remote lacks."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile
from typing import Self

from ckstore.model.manifest.encoding import Encoding
from ckstore.model.manifest.stored import BlobRecord

_IN_MEMORY_BYTES = 32 * 2**20


class Spool:
    """Keeps encoded files until they are pushed, in memory or, above a total of 32 MiB, in an unnamed file."""

    def __init__(self) -> None:
        self._file = SpooledTemporaryFile(_IN_MEMORY_BYTES)  # noqa: SIM115 - closed with the push
        self._places: dict[str, tuple[int, int]] = {}
        self._end = 0
        self._mutex = threading.Lock()

    def put(self, digest: str, data: bytes) -> None:
        """Store a file under its digest."""
        with self._mutex:
            self._file.seek(self._end)
            self._file.write(data)
            self._places[digest] = self._end, len(data)
            self._end += len(data)

    def get(self, digest: str) -> memoryview:
        """Return the bytes of a file."""
        with self._mutex:
            at, nbytes = self._places[digest]
            self._file.seek(at)
            return memoryview(self._file.read(nbytes))

    def __contains__(self, digest: str) -> bool:
        return digest in self._places

    def close(self) -> None:
        """Delete all files."""
        self._file.close()


@dataclass
class Delta:
    """The encoded form of a checkpoint for a remote."""

    encoding: Encoding  # the stored form of each blob
    spool: Spool  # the files that the remote lacks
    # The contents of ``manifest.json`` and of ``plain.json``.
    text: bytes
    plain: bytes

    @property
    def files(self) -> tuple[BlobRecord, ...]:
        """All files of the checkpoint."""
        return self.encoding.files

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.spool.close()
