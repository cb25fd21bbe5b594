"""A committed file, read as a file: only the pieces of the part that is read, each of them checked."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

from ckstore.errors import BadInput, NoSuchFile
from ckstore.model.manifest.files import followed
from ckstore.ops.acts import act
from ckstore.ops.read.stored_file import StoredFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckstore.model.manifest.manifest import FileRecord, Manifest
    from ckstore.objects.checkpoints import CheckpointDirectory

# Readers of pickles and zips ask for a few bytes at a time, and each piece below is checked whole.
BUFFER_BYTES = 2**20


def file_record(manifest: Manifest, path: str) -> FileRecord:
    """Return the file at a path of a checkpoint; symlinks that stay in it are followed."""
    records = {record.path: record for record in manifest.files}
    # Resolved by the manifest, never by the filesystem: the link's target may be outside the checkpoint.
    where = followed(records, path)
    record = None if where is None else records.get(where)
    if record is not None and record.kind == "file":
        return record
    name = manifest.name
    if not records:
        raise NoSuchFile(f"{name} is a saved state and has no files", hint="load or export it: store.load(ref)")
    problem = "is a directory" if record is not None else "is not in it" if where is not None else "leads out of it"
    raise NoSuchFile(f"{name} has no file {path}: it {problem}", hint="files() lists the files")


class CommittedFile(io.RawIOBase):
    """A file of an open checkpoint, to be read in any order. Not for several threads."""

    def __init__(self, here: Callable[[], CheckpointDirectory], record: FileRecord) -> None:
        super().__init__()
        self.name = record.path
        self._here = here
        self._record = record
        self._file = StoredFile(here(), record)
        self._at = 0

    @property
    def nbytes(self) -> int:
        """Size of the file."""
        return self._file.nbytes

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place, as `io.RawIOBase.seek`."""
        self._check_open()
        bases = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.nbytes}
        if whence not in bases or bases[whence] + offset < 0:
            raise BadInput(f"{self.name}: there is no place {offset} from {whence}")
        self._at = bases[whence] + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read as much as there is room for; fewer bytes only at the end of the file."""
        self._check_open()
        out = memoryview(buffer).cast("B")
        count = max(0, min(len(out), self.nbytes - self._at))
        if count:
            _read(self, self._at, out[:count])
            self._at += count
        return count

    def readall(self) -> bytes:
        """Read what is left."""
        data = bytearray(max(0, self.nbytes - self._at))
        del data[self.readinto(data) :]
        return bytes(data)

    def _check_open(self) -> None:
        if self.closed:
            raise BadInput(f"{self.name} was closed")

    def _act_places(self) -> tuple[object, ...]:
        return (self,)

    def _read(self, start: int, out: memoryview) -> None:
        directory = self._here()
        # The kept piece is of the old directory, whose descriptors a forked child has closed.
        if directory is not self._file.directory:  # it was opened again, as after a fork
            self._file = StoredFile(directory, self._record)
        self._file.read_into(start, out)


@act
def _read(file: CommittedFile, start: int, out: memoryview) -> None:
    file._read(start, out)  # noqa: SLF001 - of this module
