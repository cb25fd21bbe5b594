"""The mark that a checkpoint is damaged: ``damaged.json`` in its directory, so that it outlives the catalog.

It is written and removed by holders of the shared lock on the directory and reached through the descriptor of the
lock: the directory may be renamed meanwhile, and then the mark must go with it. It protects no bytes, so it is
unlinked where it lies. Source: docs/format/v1.md, "damaged.json".
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ckstore.errors import DamagedBlob
from ckstore.fs import dirfd_stat, files, links
from ckstore.fs.locks import DirectoryLock
from ckstore.fs.open_dir import OpenDir
from ckstore.fs.store_path import StorePath
from ckstore.model.checkpoint.mark import MARK_MAX_BYTES, Mark, parse_mark
from ckstore.model.digest import is_digest
from ckstore.model.names import parse_directory
from ckstore.objects.layout import MARK, Layout

# docs/format/v1.md gives this beginning, so other writers know and remove it.
_TEMPORARY = ".damaged-"

Identity = tuple[int, int]
"""Tells one mark from the next: inode number and modification time in ns."""

_unsure: set[tuple[int, int]] = set()
"""Checkpoints, by device and inode, in which this process put a right copy, but could not make its name durable.

They read whole until the power goes. Asking for the same fsync again proves nothing, so this process leaves their marks
to the next that reads them.
"""


@contextmanager
def kept_unless_durable(lock: DirectoryLock) -> Iterator[None]:
    """Put right what is in a locked checkpoint: after an error its mark is not removed by this process any more."""
    try:
        yield
    except OSError:
        status = os.fstat(lock.fd)
        _unsure.add((status.st_dev, status.st_ino))
        raise


def identity(dir_fd: int) -> Identity | None:
    """Return what tells the mark in an open directory from others; None if there is no mark."""
    try:
        status = os.stat(MARK, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def is_marked(path: StorePath) -> bool:
    """Whether the checkpoint in the directory `path` is marked."""
    return dirfd_stat.find(path / MARK) is not None


def marked(layout: Layout) -> Iterator[StorePath]:
    """Yield the directory of every published checkpoint that is marked, or may be, since it cannot be looked at."""
    # Each save asks this of all of them, so the names are looked up below the open directory of the run, and the few
    # that have a mark are looked at closer.
    for run in layout.runs():
        folder = layout.checkpoints / run
        try:
            with OpenDir(folder) as run_directory:
                listed = [name for name in os.listdir(run_directory.fd) if parse_directory(name) is not None]
                names = [name for name in listed if _may_be_marked(run_directory, name)]
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue
        if names:
            published = {key.directory for key, _ in layout.published(run)}
            yield from (folder / name for name in names if name in published)


def _may_be_marked(run_directory: OpenDir, step: str) -> bool:
    try:
        # By the name alone: each save asks this of every checkpoint, so no mark is opened.
        return bool(run_directory.having(step, (MARK,)))
    except OSError:
        return True


def blobs_of(path: StorePath) -> list[str]:
    """Return the digests of the blobs that the mark of the checkpoint in the directory `path` names, each once."""
    try:
        with files.opened_directory(path) as fd:
            mark = read_mark(fd)
    except (FileNotFoundError, NotADirectoryError):
        return []
    named = () if mark is None else (entry.blob for entry in mark.entries)
    return [digest for digest in dict.fromkeys(named) if is_digest(digest)]


def read_mark(dir_fd: int) -> Mark | None:
    """Return the mark in an open directory; None if there is none. Whatever is at its name is a mark."""
    try:
        data = files.read_file(MARK, most_bytes=MARK_MAX_BYTES, dir_fd=dir_fd)
    except FileNotFoundError:
        return None
    # A mark counts by its presence: damage that hit the mark itself must not clear the checkpoint.
    except DamagedBlob:  # it cannot be read, but it is there
        return Mark("", ())
    except OSError as error:
        if error.errno in files.NOT_OF_THE_FILE:
            raise
        return Mark("", ())
    return parse_mark(data, MARK)


def write_mark(lock: DirectoryLock, mark: Mark) -> None:
    """Mark the checkpoint whose directory is locked, durably, in one step; what was known before is kept."""
    old = read_mark(lock.fd)
    if old is not None:
        joined = old.joined(mark)
        # Nothing new: a reader that meets the same damage again and again must not write each time.
        if joined.entries == old.entries or set(mark.entries) <= set(old.entries):
            return
        mark = joined
    _replace(lock, mark)


def forget_blob(lock: DirectoryLock, digest: str) -> None:
    """Take note that a blob was healed; the mark goes with the last thing that it says, and an error leaves it."""
    old = read_mark(lock.fd)
    if old is None:
        return
    left = old.without(digest)
    # An unreadable mark may name other blobs too; only a read of the whole checkpoint removes it.
    if not old.entries or left.entries == old.entries:
        return
    if left.entries:
        _replace(lock, left)
    else:
        _unlink(lock, MARK)


def remove_mark(lock: DirectoryLock, known: Identity | None) -> bool:
    """Remove the mark of a checkpoint that was found whole; False if there is none, or another than the one `known`."""
    # A mark that came while the checkpoint was being read is of damage that this reading may have missed.
    if known is None or identity(lock.fd) != known:
        return False
    status = os.fstat(lock.fd)
    # Law H1: the mark goes only when the names of what was put right are durable.
    if (status.st_dev, status.st_ino) in _unsure:
        return False
    _unlink(lock, MARK)
    return True


def _replace(lock: DirectoryLock, mark: Mark) -> None:
    temporary = f"{_TEMPORARY}{uuid.uuid4().hex[:12]}"
    try:
        files.create_file(temporary, mark.render(), mode=0o444, dir_fd=lock.fd)
        # Renamed over: at no moment is a damaged checkpoint without its mark.
        links.rename(temporary, MARK, dir_fd=lock.fd)
    except OSError:
        with suppress(OSError):  # the first error says what is wrong; the next marker removes it
            links.unlink(temporary, dir_fd=lock.fd)
        raise
    files.sync_open_directory(lock.fd)


def _unlink(lock: DirectoryLock, name: str) -> None:
    for left in os.listdir(lock.fd):  # of processes that were killed while they marked
        if left.startswith(_TEMPORARY):
            # Leftovers first: with the mark gone no process would look here again.
            links.unlink(left, dir_fd=lock.fd)
    links.unlink(name, dir_fd=lock.fd)
    files.sync_open_directory(lock.fd)
