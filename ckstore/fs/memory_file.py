"""Create files in memory that have no name. They are read like other files, and can be passed to other processes."""

from __future__ import annotations

import errno
import os
import secrets
from contextlib import suppress

from ckstore.errors import CkstoreError
from ckstore.fs.dirfd_stat import close_quietly, open_descriptor
from ckstore.fs.files import write_all

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - no temporary file: it has no name when it is first written to
_FORBIDDEN = frozenset((errno.EPERM, errno.EACCES, errno.ENOSYS))


def open_memory(name: str) -> int:
    """Return a descriptor of a new, empty file in memory, which the caller closes. /proc shows `name` for the file."""
    # If a filter of system calls forbids memfd_create, the file is created in ``/dev/shm``, and its name is removed.
    try:
        return os.memfd_create(name, os.MFD_CLOEXEC)
    except OSError as error:
        if error.errno not in _FORBIDDEN:
            raise
        forbidden = error
    path = f"{SHARED_MEMORY}/{name}-{os.getpid()}-{secrets.token_hex(6)}"
    try:
        fd = open_descriptor(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        msg = (
            f"this process may not make a file in memory: memfd_create failed ({forbidden.strerror}), "
            f"and so did {SHARED_MEMORY} ({error.strerror})"
        )
        hint = "allow memfd_create, or mount a tmpfs at /dev/shm, for this container; save() needs neither"
        raise CkstoreError(msg, hint=hint) from error
    try:
        # The name is removed immediately, so that a process that is killed leaves no file in /dev/shm.
        os.unlink(path)
    except BaseException:
        close_quietly(fd)
        with suppress(OSError):
            os.unlink(path)
        raise
    return fd


def is_memory(link: str, name: str) -> bool:
    """Whether `link`, the target of a descriptor in /proc, is a file that `open_memory` created with this name."""
    return f"{link} ".startswith(f"/memfd:{name} ") or link.startswith(f"{SHARED_MEMORY}/{name}-")


def memory_file(data: memoryview) -> int:
    """Return a descriptor of a file in memory with these bytes. The caller closes the descriptor."""
    fd = open_memory("ckstore")
    try:
        write_all(fd, data)
    except BaseException:
        os.close(fd)
        raise
    return fd
