"""The download cache for reads of evicted checkpoints, in ``remotes/.cache/``.

Source: docs/format/v1.md. Each file has one range of a blob. Readers verify cached bytes in the same way as bytes from
a remote, and any process may remove files at any time. Only ranges of blobs without a local file are added.
"""

from __future__ import annotations

import os
import re
import threading
from contextlib import suppress
from typing import NamedTuple

from ckstore.errors import CkstoreError
from ckstore.fs import dirfd_stat, files, links
from ckstore.model.digest import is_digest
from ckstore.objects.documents import marks
from ckstore.objects.layout import Layout
from ckstore.ops.config_file import CACHE_BYTES, setting_of
from ckstore.ops.context import Context

_RANGE = re.compile(r"([a-z0-9]+-[0-9a-f]+)\.([0-9]{1,12})\.([0-9]{1,12})\Z")
_DISK_SHARE = 10
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
# The share of the limit to which the cache is trimmed. It is below 1, so that not every new range requires a scan.
_TRIMMED_TO = 0.9

_mutex = threading.RLock()  # a signal handler may load while this thread holds it


def _renew_in_child() -> None:
    global _mutex  # noqa: PLW0603
    _mutex = threading.RLock()  # a thread that does not exist in the child may have held the old mutex


os.register_at_fork(after_in_child=_renew_in_child)


class _Range(NamedTuple):
    start: int
    stop: int
    name: str


def cached_bytes(layout: Layout) -> int:
    """Return how many bytes are cached, or 0 if this user may not read the cache."""
    return sum(status.st_size for _, status in _kept(layout))


def clearable_bytes(layout: Layout) -> int:
    """Return how many cached bytes `clear` removes."""
    return sum(status.st_size for _, status in _clearable(layout))


def _clearable(layout: Layout) -> list[tuple[str, os.stat_result]]:
    """Return the cached ranges, except those of blobs that a mark names as damaged or lost.

    These ranges may be the last copy. If a program loads the checkpoint and saves it again, the save heals it.
    """
    kept = _kept(layout)
    lost = {digest for path in marks.marked(layout) for digest in marks.blobs_of(path)} if kept else set()
    return [(name, status) for name, status in kept if name.partition(".")[0] not in lost]


def _kept(layout: Layout) -> list[tuple[str, os.stat_result]]:
    with suppress(PermissionError):  # gc and listings must not fail if this user may not read the cache
        return dirfd_stat.statuses(layout.downloads)
    return []


def limit_bytes(layout: Layout, kept_bytes: int) -> int:
    """Return the limit: the setting or a tenth of the disk, but at most half of the space free without the cache."""
    wanted = setting_of(layout, CACHE_BYTES)
    room = dirfd_stat.free_space(layout.path)
    share = room.total_bytes // _DISK_SHARE if wanted is None else wanted
    return min(share, (room.free_bytes + kept_bytes) // 2)


def clear(layout: Layout) -> int:
    """Remove the ranges of `clearable_bytes` that this process may remove; return how many bytes were freed."""
    gone = 0
    for name, status in _clearable(layout):
        with suppress(OSError):
            links.unlink(layout.downloads / name)
            gone += status.st_size
    return gone


class DownloadCache:
    """The cache of one open store, for several threads; errors are not raised, since bytes can be downloaded again."""

    def __init__(self, context: Context) -> None:
        self._layout = context.layout
        self._is_kept = not context.readonly
        self._folder = context.layout.downloads
        self._ranges: dict[str, list[_Range]] | None = None
        self._nbytes = 0
        self._pending_bytes = 0  # bytes that threads are writing

    def read_into(self, digest: str, offset: int, into: memoryview) -> bool:
        """Fill memory with a range of a blob; return False if it is not cached.

        Nothing is verified.
        """
        with _mutex:
            found = self._find(digest, offset, offset + len(into))
        if found is None:
            return False
        try:
            with files.opened_regular(self._folder / found.name) as fd:
                files.read_into(fd, offset - found.start, into, found.name)
                with suppress(OSError):  # the file belongs to another user, or the mount is read-only
                    os.utime(fd)  # record the use, since the least recently used ranges are removed first
        except (CkstoreError, OSError):  # another process removed the file, or it is damaged
            self.forget(digest, offset, len(into))
            return False
        return True

    def keep(self, digest: str, offset: int, data: memoryview) -> None:
        """Cache a downloaded range; if the limit is exceeded, remove the least recently used ranges."""
        if not self._is_kept or not data:
            return
        with suppress(CkstoreError, OSError):
            with _mutex:
                if self._find(digest, offset, offset + len(data)) is not None or not self._make_room(len(data)):
                    return
                # Count the bytes before they are written, so that several threads together respect the limit.
                self._pending_bytes += len(data)
            try:
                self._write(f"{digest}.{offset}.{len(data)}", data)
            finally:
                with _mutex:
                    self._pending_bytes -= len(data)
            with _mutex:
                if self._find(digest, offset, offset + len(data)) is None:  # a scan may have added the range already
                    self._enter(f"{digest}.{offset}.{len(data)}", len(data))

    def _write(self, name: str, data: memoryview) -> None:
        """Write a range; the caller must not hold the mutex, since threads of other stores would wait for this disk."""
        links.make_directory(self._folder.parent)
        links.make_directory(self._folder)
        # Write to a temporary name and rename the complete file, since another process may read the file immediately.
        # There is no fsync, since the range can be downloaded again.
        half = self._folder / f".{os.getpid()}-{threading.get_ident()}"
        try:
            with files.opened(half, _CREATE) as fd:
                files.write_all(fd, data)
            links.rename(half, self._folder / name)
        except OSError:
            with suppress(OSError):
                links.unlink(half)
            raise

    def forget(self, digest: str, offset: int, nbytes: int) -> None:
        """Remove the cached bytes of a range, because they are wrong."""
        with _mutex:
            ranges = self._index().get(digest, [])
            for one in [one for one in ranges if one.start < offset + nbytes and offset < one.stop]:
                ranges.remove(one)
                self._nbytes -= one.stop - one.start
                with suppress(OSError):
                    links.unlink(self._folder / one.name)

    def _find(self, digest: str, start: int, stop: int) -> _Range | None:
        fits = (one for one in self._index().get(digest, ()) if one.start <= start and stop <= one.stop)
        return next(fits, None)

    def _index(self) -> dict[str, list[_Range]]:
        if self._ranges is None:
            self._look()
        return self._ranges or {}

    def _look(self) -> list[tuple[int, str, int]]:
        """Scan the cache; return the times of last use, names and sizes."""
        self._ranges, self._nbytes = {}, 0
        found = []
        try:
            listed = dirfd_stat.statuses(self._folder)
        except OSError:  # this user may not read the cache, or the disk fails: then the cache counts as empty
            listed = []
        for name, status in listed:
            self._enter(name, status.st_size)
            found.append((status.st_mtime_ns, name, status.st_size))
        return found

    def _enter(self, name: str, nbytes: int) -> None:
        self._nbytes += nbytes
        match = _RANGE.match(name)
        if match is None or not is_digest(match[1]) or int(match[3]) != nbytes:
            return  # a partial file of a killed process, which is removed once it is the oldest file
        ranges = self._ranges if self._ranges is not None else {}
        ranges.setdefault(match[1], []).append(_Range(int(match[2]), int(match[2]) + nbytes, name))
        self._ranges = ranges

    def _make_room(self, nbytes: int) -> bool:
        """Return whether `nbytes` more may be cached, after removing the least recently used ranges if necessary."""
        self._index()
        nbytes += self._pending_bytes
        most = limit_bytes(self._layout, self._nbytes)
        if nbytes > most:
            return False
        if self._nbytes + nbytes <= most:
            return True
        # Scan the cache again, since other processes also add, remove and use ranges.
        for _, name, size in sorted(self._look()):
            if self._nbytes + nbytes <= _TRIMMED_TO * most:
                break
            with suppress(FileNotFoundError):
                links.unlink(self._folder / name)
            self._nbytes -= size
        self._look()
        return self._nbytes + nbytes <= most
