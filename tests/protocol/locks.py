"""Who holds which directory locked for use (laws L1 to L3 of docs/protocol.md)."""

from __future__ import annotations

from tests.protocol.bounds import Scenario
from tests.protocol.world import SAVERS, World

FILLING = ("claim", "write", "fsync", "offer", "adopt", "renamed", "seal", "sync", "publish")
"""What a saver does before its checkpoint is published."""
PUBLISHED = ("sync parents", "catalog", "release")
"""What it does afterwards, still holding its lock."""


def locked(scenario: Scenario, world: World, x: str) -> bool:
    """Whether a process holds the directory of `x` locked for use."""
    if world.reader == f"open {x}" or world.keeping == x or (scenario.rules.undo_locks and undoing(world, x)):
        return True
    if x not in SAVERS:
        return False
    doing = world.does(x)
    if doing == "publish" and not scenario.rules.lock_until_acknowledged:
        return False
    return doing in FILLING or doing in PUBLISHED


def undoing(world: World, x: str) -> bool:
    """Whether `x` is being brought back by a process that has its entry of trash in hand."""
    return world.does("U") in (f"look {x}", f"rename {x}", f"sync {x}", f"note {x}")


def mapped(world: World, inode: str) -> bool:
    """Whether a process has an inode open or mapped, so that a lease on it is refused (law K1)."""
    return world.reader == f"map {inode}"
