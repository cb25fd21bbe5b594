"""Read committed files as bytes or as a file object. Only the pieces of the requested part are read and checked."""

from __future__ import annotations

import io
import os
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any

from ckstore.containers.parsed_values import STATE_SUFFIXES
from ckstore.errors import BadInput, CannotLoad, DamagedBlob, NoSuchFile, NoSuchRef
from ckstore.model.document import shown
from ckstore.model.manifest.committed_files import followed
from ckstore.model.manifest.manifest import FileRecord, Manifest
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.ops.api_calls import api_call
from ckstore.ops.read.regions import RegionReader


class StoredFile:
    """A file of an open checkpoint, with the interface that `containers` needs. It must be used by one thread only."""

    def __init__(self, directory: CheckpointDirectory, record: FileRecord, *, verify: bool = True) -> None:
        self.directory = directory  # the checkpoint
        self._record = record
        self._verify = verify
        sizes = [directory.manifest.storages[number].nbytes for number in record.storages]
        self._starts = list(accumulate(sizes, initial=0))
        self.nbytes = self._starts[-1]  # the length of the file in bytes
        # Start and stop in the file -> the storage that holds these bytes.
        self.storages = dict(zip(pairwise(self._starts), record.storages, strict=True))
        self._last: RegionReader | None = None

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes from `offset`."""
        # The caller computes ranges from the header of the file, so a range beyond the end of the file means damage.
        if offset + length > self.nbytes:
            msg = f"{self._record.path} has {self.nbytes} bytes, wanted those up to {offset + length}"
            raise DamagedBlob(msg, names=(self._record.path,))
        out = bytearray(length)
        self.read_into(offset, memoryview(out))
        return bytes(out)

    def read_into(self, offset: int, out: memoryview) -> None:
        """Fill `out` with the bytes from `offset`. The file must be long enough."""
        done = 0
        while done < len(out):
            at = bisect_right(self._starts, offset + done) - 1
            low, high = self._starts[at], self._starts[at + 1]
            stop = min(offset + len(out), high)
            storage = self._record.storages[at]
            if self._last is None or self._last.storage != storage:
                self._last = RegionReader(self.directory, storage, self._record.path, verify=self._verify)
            self._last.bytes(offset + done - low, stop - low, out[done : stop - offset])
            done = stop - offset


def find_file(manifest: Manifest, path: str) -> FileRecord:
    """Return the committed file at a path.

    Raises:
        NoSuchRef: The checkpoint has no such path.
        CannotLoad: The path is a directory or a symlink.
    """
    name = manifest.name
    found = next((record for record in manifest.files if record.path == path), None)
    if found is None:
        if not manifest.files:
            raise NoSuchRef(f"{name} is a saved state, and has no file {shown(path)}", hint="leave file= out")
        near = loadable(manifest)
        hint = f"it has {', '.join(near)}" if near else "ckstore ls REF lists its files"
        raise NoSuchRef(f"{name} has no file {shown(path)}", hint=hint)
    if found.kind != "file":
        msg = f"{path} of {name} is a {found.kind} and not a file"
        raise CannotLoad(msg, hint="ckstore ls REF lists its files", file=path)
    return found


def loadable(manifest: Manifest, most: int = 10) -> list[str]:
    """Return the paths of the first `most` files of a checkpoint whose names suggest that they hold a state."""
    return [file.path for file in manifest.files if file.kind == "file" and file.path.endswith(STATE_SUFFIXES)][:most]


# The size of the read buffer. Readers of pickles and zips request a few bytes at a time, but a piece is checked as a
# whole.
BUFFER_BYTES = 2**20


def file_record(manifest: Manifest, path: str) -> FileRecord:
    """Return the file at a path of a checkpoint, following symlinks that point into the checkpoint."""
    records = {record.path: record for record in manifest.files}
    # Resolve symlinks in the manifest and not in the filesystem, where the target may be outside the checkpoint.
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
    """A file of an open checkpoint that can be read in any order. It must be used by one thread only."""

    def __init__(self, here: Callable[[], CheckpointDirectory], record: FileRecord) -> None:
        super().__init__()
        self.name = record.path
        self._here = here
        self._record = record
        self._file = StoredFile(here(), record)
        self._at = 0

    @property
    def nbytes(self) -> int:
        """The size of the file in bytes."""
        return self._file.nbytes

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position, like `io.RawIOBase.seek`."""
        self._check_open()
        bases = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.nbytes}
        if whence not in bases or bases[whence] + offset < 0:
            raise BadInput(f"{self.name}: the position {offset} from {whence} does not exist")
        self._at = bases[whence] + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer; read fewer bytes only at the end of the file."""
        self._check_open()
        out = memoryview(buffer).cast("B")
        count = max(0, min(len(out), self.nbytes - self._at))
        if count:
            _read(self, self._at, out[:count])
            self._at += count
        return count

    def readall(self) -> bytes:
        """Read the rest of the file."""
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
        # After a fork, the child opens the checkpoint again. The descriptors of the old directory are closed.
        if directory is not self._file.directory:
            self._file = StoredFile(directory, self._record)
        self._file.read_into(start, out)


@api_call
def _read(file: CommittedFile, start: int, out: memoryview) -> None:
    file._read(start, out)  # noqa: SLF001 - of this module
