"""An fsync that fails as the kernel lets one fail: what was written back in vain is said once, and then forgotten."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable

FOR_GOOD = 10**6


class FailingSync:
    """Fails one fsync in each of some tries as the kernel does; holds what failed, so that its inode stays taken."""

    def __init__(self, counts: Callable[[str], bool] = lambda _: True) -> None:
        self.at, self.tries, self.code = 0, 0, errno.EIO
        self.counts: dict[str, int] = {}
        self.failed: list[int] = []
        self._real = os.fsync
        self._counts = counts  # of a path below ``staging/``
        self._mutex = threading.Lock()

    def arm(self, at: int, tries: int = 1, code: int = errno.EIO) -> None:
        """Let the `at`-th fsync of each of so many tries fail."""
        self.at, self.tries, self.code, self.counts = at, tries, code, {}

    def inodes(self) -> set[int]:
        return {os.fstat(fd).st_ino for fd in self.failed}

    def let_go(self) -> None:
        """Close what failed: gc leaves alone what a process has open."""
        while self.failed:
            os.close(self.failed.pop())

    def __call__(self, fd: int) -> None:
        _, found, rest = os.readlink(f"/proc/self/fd/{fd}").partition("/staging/")
        if found and self._counts(rest):
            own = rest.partition("/")[0]  # each try has a directory of its own
            with self._mutex:
                count = self.counts[own] = self.counts.get(own, 0) + 1
                fails = count == self.at and [*self.counts].index(own) < self.tries
                if fails:
                    self.failed.append(os.dup(fd))
            if fails:
                raise OSError(self.code, os.strerror(self.code))
        self._real(fd)
