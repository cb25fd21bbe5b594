"""The file ``elsewhere.json`` of a checkpoint: its blobs were evicted and are at remotes. Source: docs/format/v1.md.

While it is readable, a blob that the directory lacks is remote-only, not missing. It is written before any blob is
freed, and removed after the last one was restored.
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
    """Return the remotes of the blobs that an open checkpoint directory lacks, or None without this file."""
    try:
        data = files.read_file(ELSEWHERE, most_bytes=_MAX_BYTES, dir_fd=dir_fd)
    except FileNotFoundError:
        return None
    return read(data, parse_remote_only, ELSEWHERE)


def holders_at(directory: StorePath) -> tuple[RemoteHolder, ...]:
    """Return the remotes with the blobs that a directory of a checkpoint lacks, empty if it lacks none."""
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
    """Whether the blobs that an open checkpoint directory lacks are at remotes. False if the file is unreadable."""
    try:
        return read_remote_only(dir_fd) is not None
    except CkstoreError:
        return False


def remote_only_bytes(document: RemoteOnly, where: str) -> bytes:
    """Return the content of the file, after parsing it again."""
    return to_write(document, parse_remote_only, most_bytes=_MAX_BYTES, where=where)


def stage_remote_only(document: RemoteOnly, lock: DirectoryLock) -> None:
    """Write the remotes of its blobs to a locked staging, whose publication makes them durable."""
    data = remote_only_bytes(document, str(lock.inside / ELSEWHERE))
    files.create_file(lock.inside / ELSEWHERE, data, mode=files.mode_in(lock.fd))


def write_remote_only(layout: Layout, lock: DirectoryLock, document: RemoteOnly) -> None:
    """Write the remotes of its blobs to a locked checkpoint, durably. The checkpoint still has the blobs."""
    data = remote_only_bytes(document, str(lock.inside / ELSEWHERE))
    with atomic_file.changing(layout) as changing:
        atomic_file.replace_file(layout, changing, lock.fd, ELSEWHERE, data)


def remove_remote_only(lock: DirectoryLock) -> None:
    """Remove the remotes of a locked checkpoint that has all its blobs durably again."""
    with suppress(FileNotFoundError):
        links.unlink(ELSEWHERE, dir_fd=lock.fd)
    files.sync_open_directory(lock.fd)


def touch(lock: DirectoryLock) -> None:
    """Make every catalog read a locked checkpoint again, because its blobs have changed and its manifest has not."""
    status = os.stat(MANIFEST, dir_fd=lock.fd, follow_symlinks=False)
    # The same times: only ctime changes, by which a row of a catalog is known to be older. If the manifest is another
    # member's, the kernel refuses. The rows of the others then stay older, which frees nothing: gc counts links.
    with suppress(PermissionError):
        os.utime(MANIFEST, ns=(status.st_atime_ns, status.st_mtime_ns), dir_fd=lock.fd, follow_symlinks=False)
