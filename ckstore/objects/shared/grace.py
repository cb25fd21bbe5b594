"""Decide which entries of ``trash/`` have waited for the grace period, on a filesystem that other hosts use.

The locks and open files of other hosts are not visible. Therefore a dropped checkpoint or an unused blob is first moved
to ``trash/``, where no save finds it, and is unlinked only after the grace period. After this time, no open reader
needs the entry, no host has its old name in a cache, and its link counts include links that other hosts created. The
time is measured with the clock of the filesystem, because the clocks of hosts differ.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass

from ckstore.fs import dirfd_stat, files, links, statx
from ckstore.fs.dirfd_stat import StorePath, open_at
from ckstore.objects.layout import BLOBS, Layout

_SECOND_NS = 10**9


@dataclass(frozen=True, slots=True)
class Grace:
    """Decides which entries have waited for the grace period."""

    now_ns: int  # the current time according to the clock of the filesystem
    grace_ns: int  # the grace period

    def is_over(self, path: StorePath) -> bool:
        """Whether a file, or a directory and its ``blobs/``, have been unchanged for the grace period.

        False if the file or directory is missing.
        """
        times = []
        for place in (path, path / BLOBS):
            # Refresh the cache of this host, because its times may be older than a change by another host.
            statx.refresh(place)
            found = dirfd_stat.find(place)
            if found is not None:
                times.append(self._touched_ns(place, found))
        return bool(times) and self.now_ns - max(times) >= self.grace_ns

    def _touched_ns(self, path: StorePath, found: os.stat_result) -> int:
        # A change that happened after the call of `begin` may have a slightly later time than `now_ns`. A time that is
        # later by more than the grace period means that the clock of the filesystem was set back. The entry would then
        # wait for too long.
        most_ns = self.now_ns + self.grace_ns
        if found.st_ctime_ns > most_ns:
            files.renew_ctime(path)
            return self.now_ns
        # Use the later time: a user can set mtime to any time, but not ctime. Ignore an mtime in the far future.
        return max(found.st_ctime_ns, found.st_mtime_ns if found.st_mtime_ns <= most_ns else 0)


def begin(layout: Layout, grace_s: float) -> Grace:
    """Read the clock of the filesystem from a file that is created and removed in ``trash/``."""
    path = layout.trash / f".now-{uuid.uuid4().hex[:12]}"
    # A new file gets the time of the file server. All other times are compared with this time.
    fd = open_at(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
    try:
        now_ns = os.fstat(fd).st_mtime_ns
    finally:
        os.close(fd)
        links.unlink(path)
    return Grace(now_ns, int(grace_s * _SECOND_NS))
