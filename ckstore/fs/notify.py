"""Wait for new names in a directory with inotify, instead of polling it."""

from __future__ import annotations

import ctypes
import errno
import os
import select
import struct
from typing import Self

from ckstore.fs import files
from ckstore.fs.dirfd_stat import AnyPath

# From sys/inotify.h; Python has no binding for it.
_IN_CREATE, _IN_MOVED_TO = 0x100, 0x80
_IN_Q_OVERFLOW, _IN_IGNORED = 0x4000, 0x8000
_IN_DELETE_SELF, _IN_MOVE_SELF = 0x400, 0x800
# After any of these names may have been missed, so the caller has to list the directory itself.
_LOST = _IN_Q_OVERFLOW | _IN_IGNORED | _IN_DELETE_SELF | _IN_MOVE_SELF
_EVENT = struct.Struct("iIII")
# Room for two hundred events with the longest names, so that a burst takes few reads.
_BUFFER_BYTES = 64 * 1024
_UNAVAILABLE = (errno.ENOSYS, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.ENOMEM, errno.EACCES, errno.EPERM)
"""The kernel has no inotify, or this user has reached the limit of watches."""


class Watch:
    """Watches a directory of this host for new names; a context manager."""

    # It does not see the changes that other hosts make on a shared filesystem.

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def of(cls, directory: AnyPath) -> Watch | None:
        """Return a watch, or None if the kernel provides none."""
        libc = ctypes.CDLL(None, use_errno=True)
        try:
            fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        except AttributeError:  # a C library without it
            return None
        if fd < 0:
            _raise_unless_unavailable(ctypes.get_errno())
            return None
        watch = cls(fd)
        try:
            with files.opened_directory(directory) as opened:
                mask = _IN_CREATE | _IN_MOVED_TO | _IN_DELETE_SELF | _IN_MOVE_SELF
                # By the descriptor's path in /proc: inotify takes paths only, and one below the store could lead
                # elsewhere (rule N).
                added = libc.inotify_add_watch(fd, os.fsencode(f"/proc/self/fd/{opened}"), mask)
                code = ctypes.get_errno()
        except BaseException:
            watch.close()
            raise
        if added < 0:
            watch.close()
            _raise_unless_unavailable(code)
            return None
        return watch

    def wait(self, timeout_s: float) -> set[str] | None:
        """Return the new names, empty after `timeout_s`. None if some were lost or the directory is no longer there."""
        waiting = select.poll()
        waiting.register(self._fd, select.POLLIN)
        # poll, not select: a trainer with many open files has descriptors above 1023.
        waiting.poll(max(timeout_s, 0.0) * 1000)
        names: set[str] = set()
        while True:
            try:
                data = os.read(self._fd, _BUFFER_BYTES)
            except BlockingIOError:
                return names
            at = 0
            while at < len(data):
                _, mask, _, length = _EVENT.unpack_from(data, at)
                at += _EVENT.size
                if mask & _LOST:
                    return None
                names.add(os.fsdecode(data[at : at + length].rstrip(b"\0")))
                at += length

    def close(self) -> None:
        """Stop watching."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _raise_unless_unavailable(code: int) -> None:
    if code not in _UNAVAILABLE:
        raise OSError(code, os.strerror(code), "inotify")
