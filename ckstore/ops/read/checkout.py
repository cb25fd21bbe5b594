"""Check out a checkpoint: write its files to a hidden directory next to the destination, then rename that directory.

Every byte is checked, even if data is shared with the store by reflink. Memory use is one chunk for each thread.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Literal

from ckstore.errors import BadInput, InsufficientSpace, NoSuchRef, UnsafePlace
from ckstore.fs import dirfd_stat, files, links
from ckstore.fs.new_tree import NewTree
from ckstore.model.manifest.manifest import Extent, FileRecord
from ckstore.model.names import check_path, differing_in_case, parents_of
from ckstore.model.reports.export_report import CheckoutReport
from ckstore.model.reports.progress import Progress
from ckstore.model.sizes import sizes_apart
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.objects.pieces import Part, PieceReader, blob_of
from ckstore.ops.call_threads import for_each
from ckstore.ops.context import Context
from ckstore.ops.refs.find import AnyRef, read_checkpoint

LinkMode = Literal["auto", "reflink", "hardlink", "copy"]

# The maximum number of open blobs for each thread. A file with thousands of small tensors can have thousands of blobs,
# but a process can often have only 1,024 open descriptors.
_OPEN_BLOBS = 16
_MARGIN_BYTES = 2**20
_WILDCARD = re.compile(r"[*?[]")
# The size of the parts in which data is written. Between two parts, Ctrl-C or an error of another thread can end the
# call.
_PART_BYTES = 2**20


def checkout(
    context: Context,
    ref: AnyRef,
    destination: str | os.PathLike[str],
    *,
    link: LinkMode = "auto",
    only: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> CheckoutReport:
    """Write the files of the checkpoint that `ref` names; see `ckstore.Store.checkout`."""
    if link not in ("auto", "reflink", "hardlink", "copy"):
        raise BadInput(f"link must be 'auto', 'reflink', 'hardlink' or 'copy', got {link!r}")
    # Refuse a destination inside the store before the checkpoint is opened, since the checkout could overwrite files
    # that it reads.
    path = context.layout.outside(destination)
    write = partial(_checkout_open, destination=path, link=link, only=only, progress=progress)
    return read_checkpoint(context, ref, write)


def _checkout_open(
    directory: CheckpointDirectory,
    *,
    destination: Path,
    link: LinkMode,
    only: Sequence[str] | None,
    progress: Progress | None,
) -> CheckoutReport:
    if not directory.manifest.files:
        if link == "reflink":
            name = directory.manifest.name
            msg = f"{name} is a saved state: its export is computed, so it cannot share blocks with the store (reflink)"
            raise BadInput(msg, hint="export it with link='auto' or link='copy'")
        return _export(directory, destination, only=only, progress=progress)
    records = _chosen(directory, only)
    with _explaining_errors(destination, str(directory.path)), NewTree.beside(destination) as tree:
        storages = directory.manifest.storages
        sizes = {record.path: sum(storages[index].nbytes for index in record.storages) for record in records}
        # Check the space on the filesystem of the hidden directory before the first file is written, so that a checkout
        # that is too large does not fill the disk.
        _check_space(tree, sum(sizes.values()), len(records))
        writer = _Writer(directory, tree, link)
        for record in records:
            # Create the directories first, with their modes, since the threads create files in any order.
            if record.kind == "directory":
                tree.make_directory(record.path, record.mode)
        with directory.reporting_damage():
            writer.write_all([record for record in records if record.kind == "file"], sizes, progress)
        if link == "reflink" and not writer.shared_bytes and any(sizes.values()):
            msg = f"{directory.manifest.name} has no blocks that a file can share with the store (reflink)"
            raise UnsafePlace(msg, hint="small files and compacted data cannot be shared; link='auto' copies them")
        for record in records:  # create symlinks last, so that no file is written through a symlink
            if record.kind == "symlink":
                tree.make_symlink(record.path, record.target)
        # Set the times after all files were created, since creating a file changes the time of its directory.
        for record in reversed(records):
            # A hardlink is the blob itself. If its time changed, every later save would treat the blob as damaged.
            if record.mtime_ns is not None and record.path not in writer.hardlinked:
                tree.set_mtime(record.path, record.mtime_ns)
        # Every file and directory in the tree is fsynced, then one rename makes the whole tree visible (laws N1, N2).
        tree.publish()
    return CheckoutReport(
        destination=tree.destination,
        paths=tuple(record.path for record in records if record.kind != "directory"),
        nbytes=sum(sizes.values()),
        shared_bytes=writer.shared_bytes,
        hardlinked=tuple(sorted(writer.hardlinked)),
    )


def _export(
    directory: CheckpointDirectory, destination: Path, *, only: Sequence[str] | None, progress: Progress | None
) -> CheckoutReport:
    """Export a saved state as safetensors, since it has no files to check out."""
    from ckstore.ops.read.export import export_open

    if only is not None:
        run, step = directory.manifest.run, directory.manifest.step
        msg = f"{run}@{step} is a saved state and has no files to choose from"
        raise BadInput(msg, hint="export_safetensors(ref, destination, select=name) exports some of its tensors")
    report = export_open(directory, destination, progress=progress)
    paths = tuple(sorted(file.name for file in report.files))
    return CheckoutReport(report.destination, paths, sum(file.nbytes for file in report.files))


def _chosen(directory: CheckpointDirectory, only: Sequence[str] | None) -> list[FileRecord]:
    """Return the records to write, each directory before its entries, after checking their paths again."""
    manifest = directory.manifest
    records = list(manifest.files)
    if only is not None:
        # Compare each path only with the patterns that have wildcards, since both may be lists of 20,000 files.
        patterns = [glob for glob in only if _WILDCARD.search(glob)]
        directories = {glob.rstrip("/") for glob in only}
        named = {*only}

        def is_wanted(path: str) -> bool:
            name = path.rpartition("/")[2]
            return (
                not named.isdisjoint((path, name))
                or not directories.isdisjoint(parents_of(path))
                or any(fnmatchcase(path, glob) or fnmatchcase(name, glob) for glob in patterns)
            )

        wanted = {record.path for record in records if is_wanted(record.path)}
        if not wanted:
            msg = f"{manifest.name} has no file that matches {', '.join(only)}"
            hint = "store.open_checkpoint(ref).files() lists the files; * in a pattern also stands for slashes"
            raise NoSuchRef(msg, hint=hint)
        wanted.update(parent for path in [*wanted] for parent in parents_of(path))
        records = [record for record in records if record.path in wanted]
    for record in records:
        # The commit has checked the paths, but a manifest that was tampered with must not cause a write outside the
        # destination.
        check_path(record.path, "the name of a committed file")
    return sorted(records, key=lambda record: record.path.split("/"))


def _check_space(tree: NewTree, nbytes: int, count: int) -> None:
    room = dirfd_stat.free_space(tree.path)
    needed = nbytes + count * room.block_bytes + _MARGIN_BYTES
    if needed > room.free_bytes or not room.has_inodes(count):
        inodes = "" if room.free_inodes is None else f" and {room.free_inodes} inodes"
        needed_text, free_text = sizes_apart(needed, room.free_bytes)
        msg = (
            f"the checkout needs {needed_text} and {count} inodes, {free_text}{inodes} are free "
            f"on the filesystem of {tree.destination.parent}"
        )
        raise InsufficientSpace(msg, hint="make room there, or choose files with only=. Nothing was written")


@contextmanager
def _explaining_errors(destination: Path, checkpoint: str) -> Iterator[None]:
    """Convert system errors to errors about the destination, except errors about files of the checkpoint."""
    try:
        yield
    except OSError as error:
        if str(error.filename).startswith(checkpoint):
            raise
        if error.errno in files.NO_SPACE:
            msg = f"the filesystem of {destination} is full, and nothing was left behind"
            raise InsufficientSpace(msg, hint="make room, then check out again") from error
        where = f" ({error.filename})" if error.filename else ""
        raise BadInput(f"{destination} cannot be written: {error.strerror or error}{where}") from error


class _StoppedError(Exception):
    """Raised in a writing thread to leave its file unfinished, because the checkout is being aborted."""


class _Writer:
    """Writes files in several threads."""

    def __init__(self, directory: CheckpointDirectory, tree: NewTree, link: LinkMode) -> None:
        self.shared_bytes = 0
        self.hardlinked: set[str] = set()
        self._stopped = False
        self._done_bytes = 0
        self._directory = directory
        self._tree = tree
        self._link = link
        self._mutex = threading.Lock()
        self._local = threading.local()

    def write_all(self, records: Sequence[FileRecord], sizes: Mapping[str, int], progress: Progress | None) -> None:
        """Write the files. After an error or an exception of a signal handler, threads stop before the next part."""
        total_bytes = sum(sizes.values())
        say = None if progress is None else lambda: progress(self._done_bytes, total_bytes)
        for_each(self._write, records, threads=self._directory.threads, say=say, stopping=self._stop)

    def _stop(self) -> None:
        self._stopped = True

    def _write(self, record: FileRecord) -> None:
        extents = [e for storage in record.storages for e in self._directory.manifest.storages[storage].extents]
        try:
            # Each file has its own reader, since several threads must not share the buffers of a reader.
            with PieceReader(self._directory, open_blobs=_OPEN_BLOBS, before_each=self._check_going_on) as pieces:
                # Hardlink only on request, since writing to the file would then change the blob in every checkpoint.
                if self._link == "hardlink" and self._hardlinked(record, extents, pieces):
                    return
                with self._tree.create_file(record.path, record.mode) as fd:
                    at = 0
                    for extent in extents:
                        self._check_going_on()
                        out = self._buffer(extent.length)
                        self._copy(Part(extent, out, record.path), out, pieces, fd, at)
                        at += extent.length
                        self._done(extent.length)
        except _StoppedError:
            return
        except FileExistsError as error:
            raise self._in_the_way(record.path) from error

    def _copy(self, part: Part, out: memoryview, pieces: PieceReader, fd: int, at: int) -> None:
        pieces.read(part)  # this also checks data that will be shared by reflink
        if self._link in ("auto", "reflink"):
            is_linked = pieces.share(part, fd, at)
            if is_linked:
                with self._mutex:
                    self.shared_bytes += len(part.out)
                # A reflink does not move the offset of the descriptor, at which the next piece is written.
                os.lseek(fd, at + len(part.out), os.SEEK_SET)
                return
            # `None` means that the piece is encoded or not aligned to blocks, and must be copied on any filesystem.
            # `False` means that the filesystem refused, which is an error if the caller requires a reflink.
            if is_linked is False and self._link == "reflink":
                msg = f"{self._tree.destination.parent} cannot share blocks with the store (reflink)"
                raise UnsafePlace(
                    msg, hint="XFS and btrfs can, within one filesystem; link='auto' copies where they cannot"
                )
        for start in range(0, len(out), _PART_BYTES):
            self._check_going_on()
            files.write_all(fd, out[start : start + _PART_BYTES])

    def _hardlinked(self, record: FileRecord, extents: Sequence[Extent], pieces: PieceReader) -> bool:
        """Link the file to its blob; return False if the file is not exactly one blob, or cannot be linked."""
        digest = blob_of(self._directory, extents)
        if not digest:
            return False
        (extent,) = extents
        # Read the blob first, since a damaged blob must not be linked into the user's files.
        pieces.read(Part(extent, self._buffer(extent.length), record.path))
        try:
            self._tree.link_file(record.path, digest, dir_fd=self._directory.blobs.fd)
        except (FileNotFoundError, NotADirectoryError):  # the blob is only on a remote, so downloaded bytes are written
            return False
        except OSError as error:
            # If the destination is on another filesystem, or the blob has too many links, the file is copied.
            if error.errno in links.CANNOT_LINK:
                return False
            raise
        with self._mutex:
            self.hardlinked.add(record.path)
            self.shared_bytes += extent.length
        self._done(extent.length)
        return True

    def _check_going_on(self) -> None:
        if self._stopped:
            raise _StoppedError

    def _done(self, nbytes: int) -> None:
        with self._mutex:
            self._done_bytes += nbytes

    def _buffer(self, nbytes: int) -> memoryview:
        if len(getattr(self._local, "buffer", b"")) < nbytes:
            self._local.buffer = bytearray(nbytes)
        return memoryview(self._local.buffer)[:nbytes]

    def _in_the_way(self, path: str) -> BadInput:
        pair = differing_in_case(record.path for record in self._directory.manifest.files)
        if pair is None:
            return BadInput(f"another program is creating files in {self._tree.path}: {path} exists already")
        msg = (
            f"{pair[0]} and {pair[1]} differ in case only, which the filesystem of the destination does not distinguish"
        )
        return BadInput(msg, hint="choose a destination on another filesystem, or choose files with only=")
