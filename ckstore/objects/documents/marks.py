"""The mark of a damaged checkpoint, ``damaged.json`` in its directory, which remains if the catalog is lost.

A process that writes or removes it holds the shared lock on the directory, and uses the descriptor of the lock. The
directory may be renamed meanwhile, and the mark must move with it. The mark protects no bytes, so it is unlinked in
place. Source: docs/format/v1.md, "damaged.json".
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ckstore.errors import DamagedBlob
from ckstore.fs import dirfd_stat, files, links
from ckstore.fs.dirfd_stat import OpenDir, StorePath
from ckstore.fs.locks import DirectoryLock
from ckstore.model.checkpoint.mark import MARK_MAX_BYTES, Mark, parse_mark
from ckstore.model.digest import is_digest
from ckstore.objects.layout import MARK, Layout

# docs/format/v1.md gives this beginning, so other writers know and remove it.
_TEMPORARY = ".damaged-"

Identity = tuple[int, int]
"""Distinguishes one mark from the next: inode number and modification time in ns."""

_unsure: set[tuple[int, int]] = set()
"""Checkpoints, by device and inode, with a right copy from this process whose name it could not make durable.

They are whole until a power cut. Repeating the same fsync proves nothing, so this process leaves their marks to the
next process that reads them.
"""


@contextmanager
def kept_unless_durable(lock: DirectoryLock) -> Iterator[None]:
    """Repair a locked checkpoint in the block. After an error, this process no longer removes its mark."""
    try:
        yield
    except OSError:
        status = os.fstat(lock.fd)
        _unsure.add((status.st_dev, status.st_ino))
        raise


def identity(dir_fd: int) -> Identity | None:
    """Return the identity of the mark in an open directory, or None if there is no mark."""
    try:
        status = os.stat(MARK, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def is_marked(path: StorePath) -> bool:
    """Whether the checkpoint in the directory `path` is marked."""
    return dirfd_stat.find(path / MARK) is not None


def marked(layout: Layout) -> Iterator[StorePath]:
    """Yield the directory of every published checkpoint that is marked, or may be because it is not accessible."""
    # Each save asks this of all of them, so the names are looked up below the open directory of the run, and the few
    # that have a mark are looked at closer.
    for run in layout.runs():
        folder = layout.checkpoints / run
        try:
            with OpenDir(folder) as run_directory:
                names = [name for name in os.listdir(run_directory.fd) if _may_be_marked(run_directory, name)]
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
    """Return the digests in the mark of the checkpoint in the directory `path`, each once."""
    try:
        with files.opened_directory(path) as fd:
            mark = read_mark(fd)
    except (FileNotFoundError, NotADirectoryError):
        return []
    named = () if mark is None else (entry.blob for entry in mark.entries)
    return [digest for digest in dict.fromkeys(named) if is_digest(digest)]


def read_mark(dir_fd: int) -> Mark | None:
    """Return the mark in an open directory, or None if there is no file with its name. Any content is a mark."""
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
    """Mark the locked checkpoint, durably and in one step. Damage that was already recorded is kept."""
    old = read_mark(lock.fd)
    if old is not None:
        joined = old.joined(mark)
        # Nothing new: a reader that meets the same damage again and again must not write each time.
        if joined.entries == old.entries or set(mark.entries) <= set(old.entries):
            return
        mark = joined
    _replace(lock, mark)


def forget_blob(lock: DirectoryLock, digest: str) -> None:
    """Remove a healed blob from the mark. The mark is deleted with its last entry. An error leaves it unchanged."""
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
    """Remove the mark of a whole checkpoint. Return False if there is no mark, or another one than `known`."""
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
