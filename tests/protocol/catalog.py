"""The transactions of the catalog, each of which is atomic (docs/adr/0002-catalog.md)."""

from __future__ import annotations

from tests.protocol.rules import Rules
from tests.protocol.world import CHECKPOINTS, World


def uses(rules: Rules, world: World) -> int:
    """Return how many checkpoints use D, as the catalog counts."""
    return len(world.rows) if rules.reconcile else world.counted


def reconcile(world: World, x: str) -> World:
    """Make the rows of `x` equal to its directory."""
    there = world.where(x) == "P"
    return world._replace(rows=world.rows | {x} if there else world.rows - {x}, listed=world.listed or there)


def note_published(rules: Rules, world: World, x: str) -> World:
    """Note that `x` was published."""
    if rules.reconcile:
        return reconcile(world, x)
    return world._replace(rows=world.rows | {x}, listed=True, counted=world.counted + 1)


def note_dropped(rules: Rules, world: World, x: str) -> World:
    """Note that `x` was dropped."""
    if rules.reconcile:
        return reconcile(world, x)
    return world._replace(rows=world.rows - {x}, counted=max(0, world.counted - 1))


def catch_up(rules: Rules, world: World) -> World:
    """Make the catalog equal to the directories; one that is lost is rebuilt and learns of all blobs."""
    for x in CHECKPOINTS:
        there = world.where(x) == "P"
        if there != (x in world.rows):  # what is listed as it lies there is not looked at again
            world = note_published(rules, world, x) if there else note_dropped(rules, world, x)
    found = bool(world.at("C"))
    relisted = (world.lost and rules.relist_lost) or (world.unclean and rules.relist_boot)
    return world._replace(listed=world.listed or (relisted and found), lost=False, unclean=False)
