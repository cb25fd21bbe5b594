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
        unseen += _children(pid)
    return sorted(found)


def _children(pid: int) -> list[int]:
    """Return the pids of the children of `pid` that are there; none once it has ended."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")  # Path.glob() raises for a folder that goes while it lists it
    except (FileNotFoundError, ProcessLookupError):
        return []
    children: list[int] = []
    for task in tasks:
        try:
            text = Path(f"/proc/{pid}/task/{task}/children").read_text(encoding="ascii")
        except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            continue
        children += [int(child) for child in text.split()]
    return children
