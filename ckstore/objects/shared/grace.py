"""Decide what to free on a filesystem that other hosts use: entries that were in ``trash/`` for a grace.

The locks and open files of other hosts are not visible. So a dropped checkpoint, and a blob without a use, is first
moved to ``trash/``, where no save finds it, and is unlinked only after the grace. After that time, no open reader needs
it, no host has its old name in a cache, and the link count includes a link that another host created. The filesystem's
own clock measures the time, because the clocks of hosts differ.
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
    """Decides which entries have waited long enough."""

    now_ns: int  # what the clock of the filesystem says
    grace_ns: int  # how long a thing waits

    def is_over(self, path: StorePath) -> bool:
        """Whether a file and its ``blobs/`` have been unchanged for the grace. False if it is missing."""
        times = []
        for place in (path, path / BLOBS):
            # The cache of this host may have times from before another host wrote.
            statx.refresh(place)
            found = dirfd_stat.find(place)
            if found is not None:
                times.append(self._touched_ns(place, found))
        return bool(times) and self.now_ns - max(times) >= self.grace_ns

    def _touched_ns(self, path: StorePath, found: os.stat_result) -> int:
        # More than a grace ahead is no change that came after `begin`, and would wait until the clock is there.
        most_ns = self.now_ns + self.grace_ns
        if found.st_ctime_ns > most_ns:  # the clock of the filesystem was set back since
            files.renew_ctime(path)
            return self.now_ns
        # The later of both: a user can set mtime back, or to a time that never comes, but not ctime.
        return max(found.st_ctime_ns, found.st_mtime_ns if found.st_mtime_ns <= most_ns else 0)


def begin(layout: Layout, grace_s: float) -> Grace:
    """Read the filesystem's clock from a file that is created and removed in ``trash/``."""
    path = layout.trash / f".now-{uuid.uuid4().hex[:12]}"
    # A new file gets the time of the server, against which all other times are compared.
    fd = open_at(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
    try:
        now_ns = os.fstat(fd).st_mtime_ns
    finally:
        os.close(fd)
        links.unlink(path)
    return Grace(now_ns, int(grace_s * _SECOND_NS))
