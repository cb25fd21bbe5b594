"""Present a committed file as a saved state, so that all code that reads a saved state can also read the file.

The manifest of this state is the same as if the value of the file had been saved. The tensors remain in the blobs of
the checkpoint. Long strings, bytes and NumPy arrays are copied from the pickle of the file to a file in memory, which
serves as an additional blob.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from ckstore.containers.file_value import read_value
from ckstore.containers.parsed_values import Refused
from ckstore.errors import BadInput, CannotLoad, CannotStore
from ckstore.fs.memory_file import memory_file
from ckstore.model.digest import Algorithm, algorithm_of
from ckstore.model.manifest.captured import ByteSource, Captured
from ckstore.model.manifest.manifest import BlobRecord, Extent, StateTexts, StorageRecord, content_digest
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.ops.read.committed_file import StoredFile, find_file
from ckstore.ops.read.described_values import StoredSource, places_of
from ckstore.tensors.described import Most, TooMuchDescribed, capture_described

# A pickle of a few kilobytes can describe billions of values. These limits keep a hostile file from filling the memory.
_VALUES_MOST, _CHARS_MOST = 5_000_000, 2**28
_CHARS_LEAST = 2**24
_TIMES = 64  # the maximum number of values for each byte of the pickle; two bytes can repeat a container of values
_ALIGN_BYTES = 64
_SHOWN_MOST = 20
_NAME_CHARS_SHOWN = 300
_HINT = "ckstore checkout REF DEST writes the file; use torch.load on it only if you trust its author"


@contextmanager
def state_of(
    directory: CheckpointDirectory,
    file: object,
    *,
    chunk_bytes: int,
    keep: Callable[[str], bool] | None = None,
    verify: bool = True,
    can_select: bool = True,
) -> Iterator[CheckpointDirectory]:
    """Yield a view of the state in a file of an open checkpoint. Without `file`, yield the checkpoint itself.

    Args:
        directory: The checkpoint.
        file: The path of a committed file.
        chunk_bytes: The chunk size for the values that are copied to memory.
        keep: A filter for the names that the caller needs. If another value cannot be loaded, no error is raised.
        verify: Whether to check the bytes that are read from the file.
        can_select: Whether the user can exclude values with `select=`. If so, the error advises to do this.

    Raises:
        CannotLoad: The file holds no state, or a value that the caller needs cannot be loaded.
    """
    if file is None:
        yield directory
        return
    if not isinstance(file, str):
        raise BadInput(f"file must be the path of a committed file, got {file!r}")
    try:
        view = _view(directory, file, chunk_bytes=chunk_bytes, keep=keep, verify=verify)
    except CannotLoad as error:
        # The name "" means the state itself. If it cannot be loaded, no part of it can be selected.
        if can_select and error.refused and "" not in error.refused:
            error.hint = f"select= loads the other values; {error.hint}"
        raise
    try:
        yield view
    finally:
        view.close()


class _FileView(CheckpointDirectory):
    """An open checkpoint whose manifest describes the state in one of its files, with one additional blob in memory."""

    def __init__(self, directory: CheckpointDirectory) -> None:
        # The lock belongs to the caller's checkpoint, which must remain open when the view is closed.
        super().__init__(directory.path, directory.lock, directory.stamp, directory.manifest, directory.manifest_id)
        self.threads = directory.threads
        self._in_memory: dict[str, int] = {}
        # Pass the checkpoint and not the view, whose manifest has other storages: for example, the mark of damage must
        # name tensors of the checkpoint.
        report_damage, fetch, rescue = directory.on_damage, directory.fetch, directory.rescue
        if report_damage is not None:
            self.on_damage = lambda _, error: report_damage(directory, error)
        if fetch is not None:
            self.fetch = lambda _, *asked: fetch(directory, *asked)
        if rescue is not None:
            self.rescue = lambda _, error, blob, *, first: rescue(directory, error, blob, first=first)

    def add_blob(self, data: bytearray, algorithm: Algorithm) -> BlobRecord:
        """Add a blob in memory."""
        digest = algorithm.digest(data)
        self._in_memory[digest] = memory_file(memoryview(data))
        return BlobRecord(digest, len(data))

    def _opened(self, digest: str) -> tuple[int, os.stat_result]:
        fd = self._in_memory.get(digest)
        if fd is None:
            return super()._opened(digest)
        # Return a duplicate, since the reader closes its descriptor, but the blob must exist until the view is closed.
        again = os.dup(fd)
        return again, os.fstat(again)

    def close(self) -> None:
        """Free the blob in memory."""
        while self._in_memory:
            os.close(self._in_memory.popitem()[1])


def _view(
    directory: CheckpointDirectory, path: str, *, chunk_bytes: int, keep: Callable[[str], bool] | None, verify: bool
) -> _FileView:
    name = directory.manifest.name
    with directory.reporting_damage():
        stored = StoredFile(directory, find_file(directory.manifest, path), verify=verify)
        try:
            found = read_value(stored)
            n = found.pickle_bytes
            most = Most(min(_VALUES_MOST, 2**12 + _TIMES * n), _CHARS_MOST, min(_CHARS_MOST, _CHARS_LEAST + _TIMES * n))
            captured, refused = capture_described(found.value, places_of(found, stored.storages), most)
        except (Refused, TooMuchDescribed) as error:
            raise CannotLoad(f"{path} of {name} cannot be loaded as a state: {error}", hint=_HINT, file=path) from error
    # The rest of the state is usable even if some objects cannot be loaded. Therefore an object causes an error only if
    # the caller needs it.
    wanted = [error for error in refused if keep is None or keep(error.path)]
    if wanted:
        raise _cannot_load(path, name, wanted)
    view = _FileView(directory)
    try:
        _take(view, captured, chunk_bytes)
    except BaseException:
        view.close()
        raise
    return view


def _cannot_load(path: str, name: str, refused: Sequence[CannotStore]) -> CannotLoad:
    reasons = {}
    for error in refused:
        reason = error.message.removeprefix(f"{error.path or 'the state itself'}: ")
        reasons[error.path] = reason.replace("cannot be stored", "cannot be loaded")
    lines = []
    for where, reason in list(reasons.items())[:_SHOWN_MOST]:
        shown = where if len(where) <= _NAME_CHARS_SHOWN else f"{where[:_NAME_CHARS_SHOWN]}..."
        lines.append(f"  {shown or 'the state itself'}: {reason}")
    more = [f"  and {len(reasons) - _SHOWN_MOST} more"] if len(reasons) > _SHOWN_MOST else []
    message = "\n".join([f"{path} of {name} cannot be loaded as a state:", *lines, *more])
    return CannotLoad(message, hint=_HINT, file=path, refused=reasons)


def _take(view: _FileView, captured: Captured, chunk_bytes: int) -> None:
    """Set the manifest of the view to the manifest of the captured state."""
    manifest = view.manifest
    algorithm = algorithm_of(view.manifest_id)
    own = len(manifest.blobs)
    data = bytearray()
    storages = []
    for source in captured.sources:
        if isinstance(source, StoredSource):
            storages.append(manifest.storages[source.storage])
        else:
            storages.append(_packed(source, data, own, chunk_bytes, algorithm))
    blobs = (*manifest.blobs, view.add_blob(data, algorithm)) if data else manifest.blobs
    view.manifest = replace(
        manifest,
        content=content_digest(StateTexts.of(captured.leaves, captured.state), storages, algorithm),
        blobs=blobs,
        storages=tuple(storages),
        leaves=captured.leaves,
        state=captured.state,
        files=(),
    )


def _packed(source: ByteSource, data: bytearray, blob: int, chunk_bytes: int, algorithm: Algorithm) -> StorageRecord:
    """Append the bytes of a value to `data`, and return its storage, cut into the chunks that a save would make."""
    extents = []
    for start in range(0, source.nbytes, chunk_bytes):
        part = source.view(start, min(start + chunk_bytes, source.nbytes))
        if part is None:
            raise TypeError(f"wanted the bytes of {source.name}, found none")
        data += bytes(-len(data) % _ALIGN_BYTES)
        extents.append(Extent(algorithm.digest(part), blob, len(data), len(part)))
        data += part
    return StorageRecord(source.nbytes, tuple(extents))
