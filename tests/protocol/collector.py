"""What the one collector of the store does: a gc, or a save or an opener that gives back what is in trash.

The lock on trash/ makes it one; so the model has one, and every gc is it.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.protocol.bounds import Scenario
from tests.protocol.catalog import catch_up, note_dropped, uses
from tests.protocol.keepers import swept, unlinked_in_place
from tests.protocol.locks import locked, mapped
from tests.protocol.rules import Rules
from tests.protocol.search import Step
from tests.protocol.world import CHECKPOINTS, World

_START = "objects.collector.Collector.try_start"
_CATCH_UP = "ops.index.catalog_update.catch_up"
_EMPTY = "objects.collector.Collector.empty"
_APART = "objects.collector.Collector._take_apart"
_ENTER = "objects.collector.Collector._enter_all"
_UNLINK = "objects.collector.Collector._unlink_unless_open"
_FINISH = "objects.collector.Collector._finish"
_PUT_BACK = "objects.trash.put_back"
_UNUSED = "catalog.catalog.Catalog.unused"
_CONDEMN = "objects.collector.Collector.mark_for_deletion"
_FREE = "objects.collector.Collector._free"
_FORGET = "catalog.catalog.Catalog.forget"


def collector(scenario: Scenario, world: World) -> Iterator[Step[World]]:
    """Yield what the collector can do now."""
    doing, x = (world.does("G") + " ").split(" ", 1)
    x = x.strip()
    if doing == "unlink":
        yield unlinked_in_place(world, "G", x)
    elif doing in ("idle", "catch", "sweep", "swept", "empty"):
        yield from _sweep(scenario, world, doing)
    elif doing in ("list", "enter", "others"):
        yield from _take_apart(scenario, world, doing, x)
    elif doing in ("leftover", "back"):
        yield from _finish_leftover(scenario, world, doing, x)
    else:
        yield from _condemn(scenario, world, doing)


def _sweep(scenario: Scenario, world: World, doing: str) -> Iterator[Step[World]]:
    if doing == "idle":
        if world.left.gcs:
            yield Step("G", _START, "locks trash/", world.spend("gcs").then("G", "catch"))
    elif doing == "catch":
        yield Step("G", _CATCH_UP, "reconciles", catch_up(scenario.rules, world).then("G", "sweep"))
    elif doing == "sweep":
        yield from swept(scenario, world, "G")
    elif doing == "swept":
        waits = world.waits if scenario.rules.undo_waits else frozenset[str]()
        found = frozenset(x for x in CHECKPOINTS if world.where(x) == "X" and x not in waits)
        yield Step("G", _EMPTY, "lists trash/", world._replace(to_empty=found).then("G", "empty"))
    else:
        synced = world.sync("trash") if scenario.rules.sync_trash else world
        yield Step("G", _EMPTY, "makes what it listed durable", synced.then("G", "list"))


def _take_apart(scenario: Scenario, world: World, doing: str, x: str) -> Iterator[Step[World]]:
    rules = scenario.rules
    if doing == "list":
        todo = [y for y in sorted(world.to_empty) if not (rules.empty_locks and locked(scenario, world, y))]
        if not todo:
            through = world._replace(to_empty=frozenset()).then("G", "leftover")
            yield Step("G", _EMPTY, "is through with directories", through)
            return
        inode = world.at(f"{todo[0]}b")
        last = bool(inode) and world.links(inode) == 1
        if last and _held(rules, world, inode, last=True):
            kept = world._replace(to_empty=world.to_empty - {todo[0]})
            yield Step("G", _FREE, f"the last link, in {todo[0]}, is held: it stays", kept)
        elif last:
            yield Step("G", _FREE, f"unlinks the last link, in {todo[0]}", world.put(**{f"{todo[0]}b": ""}))
        else:
            yield Step("G", _APART, f"lists {todo[0]}", world.then("G", f"enter {todo[0]}"))
    elif doing == "enter":
        noted = note_dropped(rules, world, x) if rules.reconcile or x in world.rows else world
        noted = noted._replace(listed=noted.listed or (rules.enter and bool(world.at(f"{x}b"))))
        yield Step("G", _ENTER, f"enters the digests in {x}", noted.then("G", f"others {x}"))
    else:
        inode = world.at(f"{x}b")
        if inode and world.links(inode) == 1 and _held(rules, world, inode, last=True):
            kept = world._replace(to_empty=world.to_empty - {x})
            yield Step("G", _UNLINK, f"what was not the last link, in {x}, is now, and held", kept.then("G", "list"))
        else:
            gone = world.emptied(x).put(**{f"{x}l": "-"})._replace(to_empty=world.to_empty - {x})
            yield Step("G", _UNLINK, f"unlinks what is in {x}, and {x}", gone.then("G", "list"))


def _held(rules: Rules, world: World, inode: str, *, last: bool = False) -> bool:
    return rules.lease and (rules.lease_last or not last) and mapped(world, inode)


def _finish_leftover(scenario: Scenario, world: World, doing: str, x: str) -> Iterator[Step[World]]:
    """Go on with the blob in trash/ that a collector left when it died; `back x`: its name is given back, then x."""
    inode, canonical = world.at("T"), world.at("C")
    if doing == "back":
        if not canonical:
            yield Step("G", _PUT_BACK, "gives the blob its name back", world.put(C=inode))
        elif canonical == inode:
            yield Step("G", _PUT_BACK, "unlinks the name in trash/", world.put(T="").then("G", x))
        elif world.links(inode) > 1:
            yield Step("G", _PUT_BACK, "another copy has the name: unlinks", world.put(T="").then("G", x))
        else:
            yield Step("G", _PUT_BACK, "another copy has the name: stays in trash/", world.then("G", x))
    elif not inode:
        yield Step("G", _FINISH, "no blob was left in trash/", world.then("G", "candidates"))
    elif world.links(inode) == 1 and not _held(scenario.rules, world, inode):
        gone = world._replace(listed=True).put(T="")
        yield Step("G", _FINISH, "frees the blob that was left", gone.then("G", "candidates"))
    else:
        noted = world._replace(listed=True)
        yield Step("G", _FINISH, "enters the blob that was left", noted.then("G", "back candidates"))


def _condemn(scenario: Scenario, world: World, doing: str) -> Iterator[Step[World]]:
    rules, canonical = scenario.rules, world.at("C")
    if doing == "candidates":
        unused = world.listed and uses(rules, world) == 0
        yield Step("G", _UNUSED, "lists candidates", world.then("G", "look" if unused else "idle"))
    elif doing == "look":
        if not canonical:
            yield Step("G", _CONDEMN, "the blob is gone", world.then("G", "forget"))
        elif rules.link_count and world.links(canonical) > 1:
            yield Step("G", _CONDEMN, "it has further links", world.then("G", "idle"))
        elif _held(rules, world, canonical):
            yield Step("G", _CONDEMN, "the lease is refused", world.then("G", "idle"))
        else:
            yield Step("G", _CONDEMN, "one link, lease granted", world.then("G", "rename"))
    elif doing == "rename":
        if not canonical:
            yield Step("G", _CONDEMN, "the name vanished", world.then("G", "forget"))
        elif rules.condemn_renames:
            yield Step("G", _CONDEMN, "renames it to trash/", world.put(C="", T=canonical).then("G", "sync"))
        else:
            freed = world._replace(lied=world.lied or world.links(canonical) > 1)
            yield Step("G", _CONDEMN, "unlinks it in place", freed.put(C="").then("G", "forget"))
    elif doing == "sync":
        synced = world.sync("trash") if rules.sync_condemned else world
        yield Step("G", _CONDEMN, "makes that durable", synced.then("G", "free"))
    elif doing == "free":
        inode = world.at("T")
        if rules.link_count_again and world.links(inode) > 1:
            yield Step("G", _FREE, "a save claimed it", world.then("G", "back idle"))
        elif _held(rules, world, inode):
            yield Step("G", _FREE, "it is held after all", world.then("G", "back idle"))
        else:
            freed = world._replace(lied=world.lied or world.links(inode) > 1)
            yield Step("G", _FREE, "unlinks it", freed.put(T="").then("G", "forget"))
    elif rules.forget_unused and uses(rules, world):
        yield Step("G", _FORGET, "it has a use again: its row stays", world.then("G", "idle"))
    else:
        forgotten = world._replace(listed=False, counted=0)
        yield Step("G", _FORGET, "deletes its row", forgotten.then("G", "idle"))
