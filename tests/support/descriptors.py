"""Which regular files and directories this process holds open below a folder."""

import os
import stat
from pathlib import Path


def open_below(folder: Path) -> dict[int, str]:
    """Return descriptor -> path of every open regular file or directory below `folder`.

    Files that were unlinked while open count too; pipes, sockets and devices do not.
    """
    prefix = f"{folder}{os.sep}"
    found: dict[int, str] = {}
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        try:
            path = os.readlink(f"/proc/self/fd/{name}")
            mode = os.fstat(fd).st_mode
        except OSError:  # the one that listed, or closed meanwhile by another thread
            continue
        below = path.startswith(prefix) or path.removesuffix(" (deleted)") == str(folder)
        if below and (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            found[fd] = path
    return found
