"""Mark damaged checkpoints with a file ``damaged.json`` in their directory. Source: docs/format/v1.md, "damaged.json".

Marks are not lost with the catalog. A process that writes or removes a mark holds the shared lock on the directory. It
uses the descriptor of the lock, so that a rename of the directory has no effect. A mark protects no data, so it is
unlinked directly instead of being moved to trash.
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

# The beginning of temporary names. It is defined in docs/format/v1.md, so other writers can recognize and remove them.
_TEMPORARY = ".damaged-"

Identity = tuple[int, int]
"""The inode number and modification time in ns of a mark, which distinguish it from later marks."""

_unsure: set[tuple[int, int]] = set()
"""Checkpoints, by device and inode, that this process has repaired but could not make durable.

A power cut may undo their repair. Repeating a failed fsync proves nothing, so this process does not remove their marks.
Another process removes the mark after it has read the whole checkpoint.
"""


@contextmanager
def kept_unless_durable(lock: DirectoryLock) -> Iterator[None]:
    """Run a block that repairs a locked checkpoint. If it fails, this process never removes the checkpoint's mark."""
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
    """Yield the directory of every published checkpoint that is marked, or for which this cannot be determined."""
    # Each save calls this function for all checkpoints, so it must be fast. It uses the open directory of each run, and
    # makes further checks only for the few checkpoints with a mark.
    for run in layout.runs():
        folder = layout.checkpoints / run
        try:
            with OpenDir(folder) as run_directory:
                names = _may_be_marked(run_directory)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue
        if names:
            published = {key.directory for key, _ in layout.published(run)}
            yield from (folder / name for name in names if name in published)


def _may_be_marked(run_directory: OpenDir) -> list[str]:
    names = os.listdir(run_directory.fd)
    try:
        found = run_directory.look_into(names, MARK)
    except OSError:  # the disk fails, and it is not known for which of them
        return names
    return [name for name, (mark, _) in found.items() if mark is not None]


def blobs_of(path: StorePath) -> list[str]:
    """Return the digests in the mark of the checkpoint in the directory `path`, without duplicates."""
    try:
        with files.opened_directory(path) as fd:
            mark = read_mark(fd)
    except (FileNotFoundError, NotADirectoryError):
        return []
    named = () if mark is None else (entry.blob for entry in mark.entries)
    return [digest for digest in dict.fromkeys(named) if is_digest(digest)]


def read_mark(dir_fd: int) -> Mark | None:
    """Return the mark in an open directory, or None if the file does not exist. A file with any content is a mark."""
    try:
        data = files.read_file(MARK, most_bytes=MARK_MAX_BYTES, dir_fd=dir_fd)
    except FileNotFoundError:
        return None
    # An unreadable mark also counts: damage to the mark itself must not make the checkpoint seem intact.
    except DamagedBlob:
        return Mark("", ())
    except OSError as error:
        if error.errno in files.NOT_OF_THE_FILE:
            raise
        return Mark("", ())
    return parse_mark(data, MARK)


def write_mark(lock: DirectoryLock, mark: Mark) -> None:
    """Mark a locked checkpoint as damaged, durably and atomically. Damage that was already recorded is kept."""
    old = read_mark(lock.fd)
    if old is not None:
        joined = old.joined(mark)
        # Write nothing if the damage is already recorded, because a reader may find the same damage many times.
        if joined.entries == old.entries or set(mark.entries) <= set(old.entries):
            return
        mark = joined
    _replace(lock, mark)


def forget_blob(lock: DirectoryLock, digest: str) -> None:
    """Remove a healed blob from the mark, and delete the mark if it names no other blob."""
    old = read_mark(lock.fd)
    if old is None:
        return
    left = old.without(digest)
    # An unreadable mark may have named other blobs, so it is removed only after a check of the whole checkpoint.
    if not old.entries or left.entries == old.entries:
        return
    if left.entries:
        _replace(lock, left)
    else:
        _unlink(lock, MARK)


def remove_mark(lock: DirectoryLock, known: Identity | None) -> bool:
    """Remove the mark of an intact checkpoint. Return False if there is no mark, or it is not the mark `known`."""
    # A mark that was written during the check of the checkpoint may be about damage that the check did not find.
    if known is None or identity(lock.fd) != known:
        return False
    status = os.fstat(lock.fd)
    # Remove the mark only if the names of repaired files are durable (law H1).
    if (status.st_dev, status.st_ino) in _unsure:
        return False
    _unlink(lock, MARK)
    return True


def _replace(lock: DirectoryLock, mark: Mark) -> None:
    temporary = f"{_TEMPORARY}{uuid.uuid4().hex[:12]}"
    try:
        files.create_file(temporary, mark.render(), mode=0o444, dir_fd=lock.fd)
        # Rename the file over the old mark, so that a damaged checkpoint always has a mark.
        links.rename(temporary, MARK, dir_fd=lock.fd)
    except OSError:
        with suppress(OSError):  # this must not hide the first error; `_unlink` removes the file later
            links.unlink(temporary, dir_fd=lock.fd)
        raise
    files.sync_open_directory(lock.fd)


def _unlink(lock: DirectoryLock, name: str) -> None:
    # Remove leftovers of killed processes first: without a mark, no process would search for them again.
    for left in os.listdir(lock.fd):
        if left.startswith(_TEMPORARY):
            links.unlink(left, dir_fd=lock.fd)
    links.unlink(name, dir_fd=lock.fd)
    files.sync_open_directory(lock.fd)
