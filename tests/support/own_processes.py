"""The processes that a test has started: who else runs on this machine cannot have its files open."""

from __future__ import annotations

import os
from pathlib import Path


def own_processes(root: int) -> list[int]:
    """Return the pids of `root`, of all that descend from it, of this process, and of the first, which is always there.

    Stands in for the list of all of ``/proc``, which takes 15 milliseconds to look at on a machine with a hundred
    processes; a gc looks at it once, and tests do thousands.
    """
    found, unseen = {1, os.getpid()}, [root]
    while unseen:
        pid = unseen.pop()
        found.add(pid)
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                unseen += [int(child) for child in task.read_text(encoding="ascii").split()]
            except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
                continue
    return sorted(found)
