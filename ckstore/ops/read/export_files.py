"""Functions for all exports: check space, write files, read them back from the disk, report progress.

Files are built next to the destination and then renamed, so that the export is complete or does not exist. Memory use
is bounded, because tensors are copied through one buffer. Every piece is checked while it is copied. Written data is
made durable, read back, and compared by digest before it is published.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from ckstore.errors import CkstoreError, InsufficientSpace
from ckstore.fs import direct, dirfd_stat, files
from ckstore.fs.new_tree import NewTree
from ckstore.model.digest import ALGORITHMS, RunningDigest
from ckstore.model.manifest.leaf_records import itemsize
from ckstore.model.manifest.manifest import LeafRecord
from ckstore.model.reports.export_report import ExportedFile
from ckstore.model.reports.progress import Progress
from ckstore.model.sizes import needed_and_free, size_text
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.ops.api_calls import describe_os_error
from ckstore.ops.read.export_plan import leaf_bytes, strides_of
from ckstore.ops.read.export_sums import (
    RECORD_NAME,
    STATEMENT_NAME,
    SUMS_NAME,
    DigestSpan,
    ExportSums,
    FileRegion,
    FileSum,
    SpanDigests,
)
from ckstore.ops.read.regions import RANGE_BYTES, RangeReader
from ckstore.tensors.strided import Runs, blocks, gather, runs_of

if TYPE_CHECKING:
    from ckstore.tensors.dtype_cast import DtypeCast

MARGIN_BYTES = 2**20
_READ_BYTES = 2**20  # how many bytes of a file are read at once
_ALGORITHM = ALGORITHMS["xxh3_128"]


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """Bytes that were written together: their place in the file, in one or several runs, and their digest."""

    start: int
    runs: Runs
    nbytes: int
    digest: str


class Meter:
    """Reports the progress of an export: each byte counts once when it is written and once when it is read back."""

    def __init__(self, file_bytes: int, progress: Progress | None) -> None:
        self._all_bytes = 2 * file_bytes
        self._done_bytes = 0
        self._progress = progress

    def add(self, nbytes: int) -> None:
        """Count bytes."""
        # Small files are not included in the total, so the sum could exceed it.
        self._done_bytes = min(self._done_bytes + nbytes, self._all_bytes)
        if self._progress is not None:
            self._progress(self._done_bytes, self._all_bytes)


@contextmanager
def building(
    directory: CheckpointDirectory,
    path: Path,
    needed_bytes: int,
    *,
    one_file: bool = False,
    beside: Sequence[str] = (),
) -> Iterator[tuple[NewTree, RangeReader]]:
    """Create a tree for `path`, or for one file of that name, and yield it with a reader of the checkpoint.

    `beside` has the names of further files next to that one file. None of them may exist yet.
    """
    try:
        with NewTree.beside(path, one_file=one_file, others=beside) as tree:
            _check_space(tree, needed_bytes)
            with RangeReader(directory) as reader, directory.reporting_damage():
                yield tree, reader
    except OSError as error:
        if error.errno not in files.NO_SPACE:
            raise
        msg = (
            f"the export needs {size_text(needed_bytes)}, which did not fit ({describe_os_error(error)}). "
            f"{size_text(dirfd_stat.free_space(path.parent).free_bytes)} are free on the filesystem of {path}"
        )
        raise InsufficientSpace(msg, hint="make room, then export again. Nothing was left behind") from error


def _check_space(tree: NewTree, needed_bytes: int) -> None:
    free_bytes = dirfd_stat.free_space(tree.path).free_bytes
    if needed_bytes > free_bytes:
        wanted = needed_and_free(needed_bytes, free_bytes)
        msg = f"the export needs {wanted} on the filesystem of {tree.destination}"
        raise InsufficientSpace(msg, hint="make room, or export to another filesystem. Nothing was written")


def write_runs(fd: int, start: int, runs: Runs, data: memoryview) -> WrittenPart:
    """Write data to the places of the runs, which are relative to `start` in the file."""
    digest = _ALGORITHM.digest(data)
    for i, run in enumerate(runs):
        files.write_at(fd, start + run, data[i * runs.nbytes : (i + 1) * runs.nbytes])
    return WrittenPart(start, runs, len(data), digest)


def write_bytes(fd: int, start: int, data: bytes | memoryview) -> WrittenPart:
    """Write contiguous bytes."""
    return write_runs(fd, start, Runs((), len(data)), memoryview(data))


def gathered(
    directory: CheckpointDirectory, reader: RangeReader, leaf: LeafRecord, cast: DtypeCast | None = None
) -> Iterator[tuple[Runs, memoryview]]:
    """Yield the elements of a tensor in parts, each with its place in the row-major tensor, converted by `cast`.

    `reader` must be set to the storage of the tensor.
    """
    strides = strides_of(leaf)
    if strides is None:
        at = 0
        for data in reader.parts(leaf.offset, leaf.offset + leaf_bytes(directory.manifest, leaf), leaf.name):
            part = data if cast is None else cast(data)
            yield Runs((range(at, at + 1),), len(part)), part
            at += len(part)
        return
    item_bytes = itemsize(leaf.kind, leaf.dtype) or 1
    for block in blocks(leaf.shape, strides, leaf.offset, item_bytes, RANGE_BYTES):
        data = reader.read(block.low, block.high, leaf.name)
        part = gather(block, strides, item_bytes, data)
        if cast is None:
            yield runs_of(block, leaf.shape, item_bytes), part
        else:
            yield runs_of(block, leaf.shape, cast.item_bytes), cast(part)


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


def file_parts(fd: int, name: str, nbytes: int) -> Iterator[tuple[int, memoryview]]:
    """Yield a file in parts from its beginning, each with its offset. A part is valid until the next is requested."""
    buffer = memoryview(bytearray(min(_READ_BYTES, nbytes)))
    for at in range(0, nbytes, _READ_BYTES):
        out = buffer[: min(_READ_BYTES, nbytes - at)]
        files.read_into(fd, at, out, name)
        yield at, out


def _start(part: WrittenPart) -> int:
    return part.start


def _in_file_order(parts: Iterable[tuple[WrittenPart, RunningDigest]]) -> Iterator[DigestSpan]:
    """Yield the runs of parts in the order of the file.

    The parts must be sorted by start. Runs of parts with equal start may interleave.
    """
    for _, group in groupby(parts, key=lambda pair: pair[0].start):
        yield from heapq.merge(*(_spans(part, digest) for part, digest in group), key=lambda span: span.start)


def _spans(part: WrittenPart, digest: RunningDigest) -> Iterator[DigestSpan]:
    for run in part.runs:
        yield DigestSpan(part.start + run, part.start + run + part.runs.nbytes, digest)


@dataclass
class Work:
    """Writes the files of one export in turn."""

    directory: CheckpointDirectory
    tree: NewTree
    reader: RangeReader
    meter: Meter
    sums: ExportSums | None  # the sums of the files of the export; None if not requested

    def small(
        self, name: str, contents: Iterable[bytes | memoryview], regions: Sequence[FileRegion] = ()
    ) -> ExportedFile:
        """Write a small file from its parts. It is not included in the total of the progress."""
        with self.tree.create_file(name) as fd:
            parts, at = [], 0
            for content in contents:
                parts.append(write_bytes(fd, at, content))
                at += len(content)
            self.read_back(fd, name, at, parts, regions)
        return ExportedFile(name, at)

    def read_back(
        self, fd: int, name: str, nbytes: int, parts: list[WrittenPart], regions: Sequence[FileRegion] = ()
    ) -> None:
        """Make a file durable, read it from the disk, compare it with the written parts, and add it to `sums`.

        `regions` must be in the order of the file.
        """
        os.fsync(fd)
        direct.drop_cached(fd)
        found_bytes = os.fstat(fd).st_size
        if found_bytes != nbytes:
            raise CkstoreError(f"{name} has {found_bytes} bytes after it was written, wanted {nbytes}")
        wanted = [(part, _ALGORITHM.start()) for part in sorted(parts, key=_start)]
        written = SpanDigests(_in_file_order(wanted))
        found = None if self.sums is None else FileSum(regions)
        # Read in the order of the file, which SHA-256 needs. The order of the parts differs from it, since parts of
        # strided tensors interleave.
        for at, data in file_parts(fd, name, nbytes):
            written.add(at, data)
            if found is not None:
                found.add(at, data)
            self.meter.add(len(data))
        for part, digest in wanted:
            if _ALGORITHM.digest_of_parts(digest) != part.digest:
                msg = f"{name} does not read back as it was written, in {part.nbytes} bytes from {part.start}"
                raise CkstoreError(msg, hint="the disk or the memory of this machine is failing")
        if self.sums is not None and found is not None:
            self.sums.add(name, nbytes, found, regions)

    def write_sums(self, names: tuple[str, str] = (RECORD_NAME, SUMS_NAME)) -> tuple[ExportedFile, ...]:
        """If sums were requested, write the record of the export and then the sums of all its files."""
        if self.sums is None:
            return ()
        record, last = names
        directory = self.directory
        written = self.small(record, self.sums.record(directory.manifest.name, directory.manifest_id))
        # The sums file includes the record, which is a file of the export, but not itself.
        about = (written, self.small(last, [self.sums.sums()]))
        if not self.sums.signs:
            return about
        # Write the statement last, since it also covers the sums file.
        return *about, self.small(STATEMENT_NAME, [self.sums.statement(self.tree.destination.name)])

    def metered(self, contents: Iterable[memoryview]) -> Iterator[memoryview]:
        """Yield the given parts, and count each for the progress when the next one is requested."""
        for content in contents:
            yield content
            self.meter.add(len(content))
