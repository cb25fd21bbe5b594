"""The file ``elsewhere.json`` of a checkpoint: its blobs were let go, and remotes have them. Source: docs/format/v1.md.

While it can be read, a blob that the directory lacks is elsewhere, not missing. It is written before any blob goes, and
removed after the last one is back.
"""

from __future__ import annotations

import os
from contextlib import suppress

from ckstore.errors import CkstoreError
from ckstore.fs import files, links
from ckstore.fs.locks import DirectoryLock
from ckstore.fs.store_path import StorePath
from ckstore.model.checkpoint.remote_only import RemoteHolder, RemoteOnly, parse_remote_only
from ckstore.model.seal import read, to_write
from ckstore.objects.documents import atomic_file
from ckstore.objects.layout import ELSEWHERE, MANIFEST, Layout

_MAX_BYTES = 2**20


def read_remote_only(dir_fd: int) -> RemoteOnly | None:
    """Return where the blobs are that a checkpoint lacks, by its open directory; None: nowhere else."""
    try:
        data = files.read_file(ELSEWHERE, most_bytes=_MAX_BYTES, dir_fd=dir_fd)
    except FileNotFoundError:
        return None
    return read(data, parse_remote_only, ELSEWHERE)


def holders_at(directory: StorePath) -> tuple[RemoteHolder, ...]:
    """Return the remotes that have what a directory of a checkpoint lacks; none: it lacks nothing."""
    try:
        data = files.read_file(directory / ELSEWHERE, most_bytes=_MAX_BYTES)
        return read(data, parse_remote_only, ELSEWHERE).remotes
    except (FileNotFoundError, NotADirectoryError, PermissionError, CkstoreError):
        return ()


def holder_names_at(directory: StorePath) -> tuple[str, ...]:
    """As `holders_at`, by their names."""
    return tuple(holder.name for holder in holders_at(directory))


def may_lack(dir_fd: int) -> bool:
    """Whether what an open directory of a checkpoint lacks is elsewhere; not if the file cannot be read."""
    try:
        return read_remote_only(dir_fd) is not None
    except CkstoreError:
        return False


def remote_only_bytes(document: RemoteOnly, where: str) -> bytes:
    """Return the content of the file, after it was read back."""
    return to_write(document, parse_remote_only, most_bytes=_MAX_BYTES, where=where)


def write_remote_only(layout: Layout, lock: DirectoryLock, document: RemoteOnly) -> None:
    """Say in a locked checkpoint where its blobs are, durably. It holds them still."""
    data = remote_only_bytes(document, str(lock.inside / ELSEWHERE))
    with atomic_file.changing(layout) as changing:
        atomic_file.replace_file(layout, changing, lock.fd, ELSEWHERE, data)


def remove_remote_only(lock: DirectoryLock) -> None:
    """Say no more that blobs of a locked checkpoint are elsewhere: all of them are here, durably."""
    with suppress(FileNotFoundError):
        links.unlink(ELSEWHERE, dir_fd=lock.fd)
    files.sync_open_directory(lock.fd)


def touch(lock: DirectoryLock) -> None:
    """Let every catalog look at a locked checkpoint again: which blobs it holds has changed, its manifest has not."""
    status = os.stat(MANIFEST, dir_fd=lock.fd, follow_symlinks=False)
    # The same times: only ctime changes, by which a row of a catalog is known to be older. If the manifest is another
    # member's, the kernel refuses. The rows of the others then stay older, which frees nothing: gc counts links.
    with suppress(PermissionError):
        os.utime(MANIFEST, ns=(status.st_atime_ns, status.st_mtime_ns), dir_fd=lock.fd, follow_symlinks=False)
