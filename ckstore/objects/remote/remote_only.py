"""Keep the file ``elsewhere.json`` in checkpoints whose blobs were evicted. Source: docs/format/v1.md.

The file lists the remotes that have the blobs. While the file exists and is readable, a blob that the directory lacks
counts as remote-only instead of missing. The file is written before any blob is freed, and removed after all blobs were
restored.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace

from ckstore.errors import CkstoreError
from ckstore.fs import files, links
from ckstore.fs.dirfd_stat import StorePath
from ckstore.fs.locks import DirectoryLock
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.remote.remote_only import RemoteHolder, RemoteOnly, parse_remote_only
from ckstore.model.seal import read, to_write
from ckstore.objects.documents import atomic_file
from ckstore.objects.layout import ELSEWHERE, MANIFEST, Layout

_MAX_BYTES = 2**20


def read_remote_only(dir_fd: int) -> RemoteOnly | None:
    """Return the record of the remotes in an open checkpoint directory, or None if the file does not exist."""
    try:
        data = files.read_file(ELSEWHERE, most_bytes=_MAX_BYTES, dir_fd=dir_fd)
    except FileNotFoundError:
        return None
    return read(data, parse_remote_only, ELSEWHERE)


def holders_at(directory: StorePath) -> tuple[RemoteHolder, ...]:
    """Return the remotes that have the evicted blobs of a checkpoint, or nothing if there is no valid file."""
    try:
        data = files.read_file(directory / ELSEWHERE, most_bytes=_MAX_BYTES)
        return read(data, parse_remote_only, ELSEWHERE).remotes
    except (FileNotFoundError, NotADirectoryError, PermissionError, CkstoreError):
        return ()


def with_remotes(layout: Layout, info: CheckpointInfo) -> CheckpointInfo:
    """Return `info` with the names of the remotes that have the checkpoint's remote data."""
    if not info.elsewhere:
        return info
    return replace(info, remotes=tuple(holder.name for holder in holders_at(layout.checkpoint(info.key))))


def may_lack(dir_fd: int) -> bool:
    """Whether blobs that an open checkpoint directory lacks are on remotes. False if the file is unreadable."""
    try:
        return read_remote_only(dir_fd) is not None
    except CkstoreError:
        return False


def remote_only_bytes(document: RemoteOnly, where: str) -> bytes:
    """Return the content of the file. It is parsed as a check."""
    return to_write(document, parse_remote_only, most_bytes=_MAX_BYTES, where=where)


def stage_remote_only(document: RemoteOnly, lock: DirectoryLock) -> None:
    """Write the file into a locked staging directory, whose publication makes it durable."""
    data = remote_only_bytes(document, str(lock.inside / ELSEWHERE))
    files.create_file(lock.inside / ELSEWHERE, data, mode=files.mode_in(lock.fd))


def write_remote_only(layout: Layout, lock: DirectoryLock, document: RemoteOnly) -> None:
    """Write the file into a locked checkpoint durably. The checkpoint must still have its blobs."""
    data = remote_only_bytes(document, str(lock.inside / ELSEWHERE))
    with atomic_file.changing(layout) as changing:
        atomic_file.replace_file(layout, changing, lock.fd, ELSEWHERE, data)


def remove_remote_only(lock: DirectoryLock) -> None:
    """Remove the file from a locked checkpoint, which must have all its blobs durably again."""
    with suppress(FileNotFoundError):
        links.unlink(ELSEWHERE, dir_fd=lock.fd)
    files.sync_open_directory(lock.fd)


def touch(lock: DirectoryLock) -> None:
    """Make every catalog read a locked checkpoint again after its blobs, but not its manifest, have changed."""
    status = os.stat(MANIFEST, dir_fd=lock.fd, follow_symlinks=False)
    # Setting the same times again changes only ctime, which shows that rows in catalogs are outdated. If the manifest
    # belongs to another user, the kernel refuses this call, and outdated rows remain. This is safe, because gc counts
    # links.
    with suppress(PermissionError):
        os.utime(MANIFEST, ns=(status.st_atime_ns, status.st_mtime_ns), dir_fd=lock.fd, follow_symlinks=False)
