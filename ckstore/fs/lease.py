"""Ask the kernel whether any process has a file open: rule K of the design.

`fcntl(F_SETLEASE, F_WRLCK)` is refused while any other open file description or mapping of the inode exists, through
whatever name, in whatever process, user or PID namespace. It does not see O_PATH descriptors, nor mappings alone on
overlayfs.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from enum import Enum

from ckstore.fs.inside import Where, open_at


class Holding(Enum):
    """What the kernel says about an inode."""

    FREE = "free"
    HELD = "held"
    UNKNOWN = "unknown"  # not the owner, or no leases here: to be treated as held


def ask(path: Where) -> Holding:
    """Return whether a process has the regular file `path` open or mapped at this moment.

    A saver's blocking open of the file waits while the lease exists, that is for some microseconds.

    Raises:
        FileNotFoundError: There is no such file.
    """
    try:
        fd = open_at(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except BlockingIOError:  # another process is asking at this moment
        return Holding.HELD
    except PermissionError:
        return Holding.UNKNOWN
    try:
        # The default signal of a broken lease, SIGIO, would kill this process; SIGURG is ignored by default.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        try:
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError as error:
            return Holding.HELD if error.errno in (errno.EAGAIN, errno.EBUSY) else Holding.UNKNOWN
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return Holding.FREE
    finally:
        os.close(fd)
