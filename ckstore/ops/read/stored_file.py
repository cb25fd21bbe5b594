"""A committed file as its bytes, read and checked piece by piece."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from ckstore.containers.values import STATE_SUFFIXES
from ckstore.errors import CannotLoad, DamagedBlob, NoSuchRef
from ckstore.model.document import shown
from ckstore.ops.read.regions import RegionReader

if TYPE_CHECKING:
    from ckstore.model.manifest.manifest import FileRecord, Manifest
    from ckstore.objects.checkpoints import CheckpointDirectory


class StoredFile:
    """A file of an open checkpoint, as `containers` reads it. Not for several threads."""

    def __init__(self, directory: CheckpointDirectory, record: FileRecord, *, verify: bool = True) -> None:
        self.directory = directory  # the checkpoint
        self._record = record
        self._verify = verify
        sizes = [directory.manifest.storages[number].nbytes for number in record.storages]
        self._starts = list(accumulate(sizes, initial=0))
        self.nbytes = self._starts[-1]  # its length
        # The storage that is the stretch of the file from its first byte to the one after its last.
        self.storages = dict(zip(pairwise(self._starts), record.storages, strict=True))
        self._last: RegionReader | None = None

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly these bytes."""
        # A container's header says where to read: one that points behind the end is damage, and no shorter answer.
        if offset + length > self.nbytes:
            msg = f"{self._record.path} has {self.nbytes} bytes, wanted those up to {offset + length}"
            raise DamagedBlob(msg, names=(self._record.path,))
        out = bytearray(length)
        self.read_into(offset, memoryview(out))
        return bytes(out)

    def read_into(self, offset: int, out: memoryview) -> None:
        """Fill `out` with the bytes from `offset`; the file has as many."""
        done = 0
        while done < len(out):
            at = bisect_right(self._starts, offset + done) - 1
            low, high = self._starts[at], self._starts[at + 1]
            stop = min(offset + len(out), high)
            self._reader_of(self._record.storages[at]).bytes(offset + done - low, stop - low, out[done : stop - offset])
            done = stop - offset

    def _reader_of(self, storage: int) -> RegionReader:
        """Return a reader of a part; the last one keeps its last piece."""
        if self._last is None or self._last.storage != storage:
            self._last = RegionReader(self.directory, storage, self._record.path, verify=self._verify)
        return self._last


def find_file(manifest: Manifest, path: str) -> FileRecord:
    """Return the committed file of that path. Raises CannotLoad: it is a directory or a symlink."""
    name = manifest.name
    found = next((record for record in manifest.files if record.path == path), None)
    if found is None:
        if not manifest.files:
            raise NoSuchRef(f"{name} is a saved state, and has no file {shown(path)}", hint="leave file= out")
        near = loadable(manifest)
        hint = f"it has {', '.join(near)}" if near else "ckstore ls REF lists its files"
        raise NoSuchRef(f"{name} has no file {shown(path)}", hint=hint)
    if found.kind != "file":
        msg = f"{path} of {name} is a {found.kind}, and no file"
        raise CannotLoad(msg, hint="ckstore ls REF lists its files", file=path)
    return found


def loadable(manifest: Manifest, most: int = 10) -> list[str]:
    """Return the files of a checkpoint that have the name of one that holds a state, the first few."""
    return [file.path for file in manifest.files if file.kind == "file" and file.path.endswith(STATE_SUFFIXES)][:most]
