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

# These values are from sys/inotify.h, because Python has no binding for inotify.
_IN_CREATE, _IN_MOVED_TO = 0x100, 0x80
_IN_Q_OVERFLOW, _IN_IGNORED = 0x4000, 0x8000
_IN_DELETE_SELF, _IN_MOVE_SELF = 0x400, 0x800
# After one of these events, names may have been missed, so the caller must list the directory.
_LOST = _IN_Q_OVERFLOW | _IN_IGNORED | _IN_DELETE_SELF | _IN_MOVE_SELF
_EVENT = struct.Struct("iIII")
# The buffer holds two hundred events with the longest names.
_BUFFER_BYTES = 64 * 1024
_UNAVAILABLE = (errno.ENOSYS, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.ENOMEM, errno.EACCES, errno.EPERM)
"""Errors which show that the kernel has no inotify, or that this user has reached a limit."""


class Watch:
    """A context manager that reports new names in a directory. Changes by other hosts are not reported."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def of(cls, directory: AnyPath) -> Watch | None:
        """Return a watch, or None if the kernel provides none."""
        libc = ctypes.CDLL(None, use_errno=True)
        try:
            fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        except AttributeError:  # the C library has no inotify
            return None
        if fd < 0:
            _raise_unless_unavailable(ctypes.get_errno())
            return None
        watch = cls(fd)
        try:
            with files.opened_directory(directory) as opened:
                mask = _IN_CREATE | _IN_MOVED_TO | _IN_DELETE_SELF | _IN_MOVE_SELF
                # inotify needs a path, and a symlink could redirect a path in the store. A symlink cannot
                # redirect the path of the descriptor in /proc.
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
        """Return the new names, or an empty set after `timeout_s`.

        Return None if names were lost, or if the directory was moved or deleted.
        """
        # `select` does not support descriptors above 1023, and a trainer with many open files has such descriptors.
        waiting = select.poll()
        waiting.register(self._fd, select.POLLIN)
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
