"""What every export does with its files: room for them, writing, reading back from the disk, progress.

They are built beside the destination and renamed, so they are there whole or not at all. Memory is bounded: tensors go
through one buffer, and every piece is checked while it is copied. What was written is made durable, read back, and
compared by digest, before it is published.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ckstore.errors import CkstoreError, InsufficientSpace
from ckstore.fs import direct, files, peek
from ckstore.fs.new_tree import NewTree
from ckstore.model.digest import ALGORITHMS
from ckstore.model.manifest.leaf_records import itemsize
from ckstore.model.manifest.manifest import LeafRecord
from ckstore.model.reports.export_report import ExportedFile
from ckstore.model.reports.progress import Progress
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.ops.acts import describe_os_error
from ckstore.ops.read.export_plan import leaf_bytes, strides_of
from ckstore.ops.read.regions import RANGE_BYTES, RangeReader
from ckstore.tensors.strided import Runs, blocks, gather, runs_of

MARGIN_BYTES = 2**20
_DIGEST = ALGORITHMS["xxh3_128"].digest


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """Bytes that were written at once: where, in one or several runs, and the digest of what they were."""

    start: int
    runs: Runs
    nbytes: int
    digest: str


class Meter:
    """Tells how far an export is: each byte counts when it is written, and when it is read back."""

    def __init__(self, file_bytes: int, progress: Progress | None) -> None:
        self._all_bytes = 2 * file_bytes
        self._done_bytes = 0
        self._progress = progress

    def add(self, nbytes: int) -> None:
        """Count bytes."""
        self._done_bytes = min(self._done_bytes + nbytes, self._all_bytes)  # small files are not counted before
        if self._progress is not None:
            self._progress(self._done_bytes, self._all_bytes)


@contextmanager
def building(
    directory: CheckpointDirectory, path: Path, needed_bytes: int, *, one_file: bool = False
) -> Iterator[tuple[NewTree, RangeReader]]:
    """Begin a tree for `path`, or for one file of that name, and give what reads the checkpoint for it."""
    try:
        with NewTree.beside(path, one_file=one_file) as tree:
            _check_space(tree, needed_bytes)
            with RangeReader(directory) as reader, directory.reporting_damage():
                yield tree, reader
    except OSError as error:
        if error.errno not in files.NO_SPACE:
            raise
        msg = (
            f"the export needs {needed_bytes} bytes, which did not fit ({describe_os_error(error)}); "
            f"{peek.free_space(path.parent).free_bytes} are free on the filesystem of {path}"
        )
        raise InsufficientSpace(msg, hint="make room, then export again; nothing was left behind") from error


def _check_space(tree: NewTree, needed_bytes: int) -> None:
    free_bytes = peek.free_space(tree.path).free_bytes
    if needed_bytes > free_bytes:
        msg = f"the export needs {needed_bytes} bytes, {free_bytes} are free on the filesystem of {tree.destination}"
        raise InsufficientSpace(msg, hint="make room, or export to another filesystem; nothing was written")


def write_runs(fd: int, start: int, runs: Runs, data: memoryview) -> WrittenPart:
    """Write what belongs into the runs, which begin at `start` in the file."""
    digest = _DIGEST(data)
    for i, run in enumerate(runs):
        files.write_at(fd, start + run, data[i * runs.nbytes : (i + 1) * runs.nbytes])
    return WrittenPart(start, runs, len(data), digest)


def write_bytes(fd: int, start: int, data: bytes | memoryview) -> WrittenPart:
    """Write bytes that lie together."""
    return write_runs(fd, start, Runs((), len(data)), memoryview(data))


def gathered(
    directory: CheckpointDirectory, reader: RangeReader, leaf: LeafRecord
) -> Iterator[tuple[Runs, memoryview]]:
    """Give the elements of a tensor in parts, each with where it goes in the row-major tensor."""
    # `reader` is at its storage.
    strides = strides_of(leaf)
    if strides is None:
        at = 0
        for data in reader.parts(leaf.offset, leaf.offset + leaf_bytes(directory.manifest, leaf), leaf.name):
            yield Runs((range(at, at + 1),), len(data)), data
            at += len(data)
        return
    item_bytes = itemsize(leaf.kind, leaf.dtype) or 1
    for block in blocks(leaf.shape, strides, leaf.offset, item_bytes, RANGE_BYTES):
        data = reader.read(block.low, block.high, leaf.name)
        yield runs_of(block, leaf.shape, item_bytes), gather(block, strides, item_bytes, data)


def whole_leaf(directory: CheckpointDirectory, reader: RangeReader, leaf: LeafRecord) -> bytes:
    """Return the elements of a small leaf, row-major."""
    if 0 in leaf.shape:
        return b""
    reader.begin(leaf.storage)
    nbytes = leaf_bytes(directory.manifest, leaf)
    if not leaf.dtype:
        return b"".join(map(bytes, reader.parts(0, nbytes, leaf.name)))
    whole = bytearray(nbytes)
    for runs, piece in gathered(directory, reader, leaf):
        for i, start in enumerate(runs):
            whole[start : start + runs.nbytes] = piece[i * runs.nbytes : (i + 1) * runs.nbytes]
    return bytes(whole)


def read_back(fd: int, name: str, nbytes: int, parts: list[WrittenPart], meter: Meter) -> None:
    """Make a file durable, read it from the disk, and compare it with what was to be written."""
    os.fsync(fd)
    direct.drop_cached(fd)
    found_bytes = os.fstat(fd).st_size
    if found_bytes != nbytes:
        raise CkstoreError(f"{name} has {found_bytes} bytes after it was written, wanted {nbytes}")
    buffer = memoryview(bytearray(max((part.nbytes for part in parts), default=0)))
    for part in sorted(parts, key=lambda part: part.start):
        out = buffer[: part.nbytes]
        for i, start in enumerate(part.runs):
            run = out[i * part.runs.nbytes : (i + 1) * part.runs.nbytes]
            files.read_into(fd, part.start + start, run, name)
        if _DIGEST(out) != part.digest:
            msg = f"{name} does not read back as it was written, in {part.nbytes} bytes from {part.start}"
            raise CkstoreError(msg, hint="the disk or the memory of this machine is failing")
        meter.add(part.nbytes)


class Work:
    """Writes the files of one export, one after another."""

    def __init__(self, directory: CheckpointDirectory, tree: NewTree, reader: RangeReader, meter: Meter) -> None:
        self._directory = directory
        self._tree = tree
        self._reader = reader
        self._meter = meter

    def small(self, name: str, contents: Iterable[bytes | memoryview]) -> ExportedFile:
        """Write a file that arrives in parts, one after another; the progress does not count it before."""
        with self._tree.create_file(name) as fd:
            parts, at = [], 0
            for content in contents:
                parts.append(write_bytes(fd, at, content))
                at += len(content)
            read_back(fd, name, at, parts, self._meter)
        return ExportedFile(name, at)

    def metered(self, contents: Iterable[memoryview]) -> Iterator[memoryview]:
        """Give the same parts, and count each when the next one is asked for."""
        for content in contents:
            yield content
            self._meter.add(len(content))
