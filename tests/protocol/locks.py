"""Who holds which directory locked for use (rule L)."""

from __future__ import annotations

from tests.protocol.bounds import Scenario
from tests.protocol.world import SAVERS, World

FILLING = ("claim", "write", "fsync", "offer", "adopt", "renamed", "seal", "sync", "publish", "judged")
"""What a saver does before its checkpoint is published."""
PUBLISHED = ("check", "sync parents", "catalog", "release")
"""What it does afterwards, still holding its lock."""


def locked(scenario: Scenario, world: World, x: str) -> bool:
    """Whether a process holds the directory of `x` locked for use."""
    if world.reader == f"open {x}" or world.keeping == x:
        return True
    if x not in SAVERS:
        return False
    doing = world.does(x)
    if doing in ("publish", "judged") and not scenario.rules.lock_until_acknowledged:
        return False
    return doing in FILLING or doing in PUBLISHED


def mapped(world: World, inode: str) -> bool:
    """Whether a process has an inode open or mapped, so that a lease on it is refused (rule K)."""
    return world.reader == f"map {inode}"
