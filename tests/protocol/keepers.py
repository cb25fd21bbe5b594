"""Retention, undo, openers and readers: who drops and restores, who sets right what the dead left, who looks."""

from __future__ import annotations

from collections.abc import Iterator

from tests.protocol.bounds import Scenario
from tests.protocol.catalog import catch_up, note_dropped, note_published
from tests.protocol.locks import locked
from tests.protocol.search import Step
from tests.protocol.world import CHECKPOINTS, SAVERS, World

_PLAN = "ops.free.retain.plan_retention"
_KEPT = "ops.free.drop.make_kept_durable"
_HOLD = "ops.free.retain._hold_newest_valid"
_DROP = "ops.free.drop.drop"
_CHOOSE = "ops.free.undo._chosen"
_UNDELETE = "ops.free.undo.undo"
_DUE = "objects.trash.due"
_RECONCILE = "ops.index.reconcile.update_row"
_SWEEP = "objects.trash.sweep_staging"
_CATCH_UP = "ops.index.catalog_update.catch_up"
_READ = "objects.checkpoints.CheckpointDirectory.at"
_CLOSE = "objects.checkpoints.CheckpointDirectory.close"


def retention(scenario: Scenario, world: World) -> Iterator[Step[World]]:
    """Yield what retention can do now; it runs beside gc, and unlinks nothing."""
    doing, x, planned = (world.does("R") + "  ").split(" ")[:3]
    rules = scenario.rules
    if doing == "idle" and world.left.drops:
        yield from _plans(scenario, world)
    elif doing == "keep":
        synced = world.sync("run", "checkpoints") if rules.sync_kept else world
        yield Step("R", _KEPT, "makes what is kept durable", synced.then("R", f"hold {x} {planned}"))
    elif doing == "hold":
        keeping = planned if planned and world.where(planned) == "P" else ""
        if scenario.relies and not keeping:
            yield Step("R", _HOLD, "nothing that is kept is there any more", _idle(world))
        else:
            held = world._replace(keeping=keeping)
            yield Step("R", _HOLD, f"holds {keeping or 'nothing'}", held.then("R", f"drop {x}"))
    elif doing == "drop":
        if world.where(x) != "P" or (rules.drop_locks and locked(scenario, world, x)):
            yield Step("R", _DROP, f"{x} is gone or in use: skipped", _idle(world))
        else:
            pair = {(x, world.keeping)} if world.keeping else set()
            gone = world.put(**{f"{x}l": "X"})
            gone = gone._replace(dropped=world.dropped | {x}, kept=world.kept | pair, asked=world.asked - {x})
            gone = gone._replace(waits=world.waits | {x} if scenario.undo else world.waits)
            yield Step("R", _DROP, f"renames {x} to trash", gone.then("R", f"sync {x}"))
    elif doing == "sync":
        synced = world.sync("trash", "run") if rules.sync_dropped else world
        yield Step("R", _DROP, "makes that durable", synced.then("R", f"note {x}"))
    elif doing == "note":
        told_gone = world.told_gone | ({x} - world.asked)
        told = note_dropped(rules, world, x)._replace(told_gone=told_gone)
        yield Step("R", _RECONCILE, f"the rows of {x} go", _idle(told))


def undoer(scenario: Scenario, world: World) -> Iterator[Step[World]]:
    """Yield what a process that brings a dropped checkpoint back can do now, and that the time for it may be over."""
    doing, x = (world.does("U") + " ").split(" ")[:2]
    rules = scenario.rules
    if world.waits:
        yield Step("", _DUE, "THE TIME IS OVER, or gc purges", world._replace(waits=frozenset()))
    if doing == "idle" and world.left.undos:
        for there in sorted(world.waits):
            yield Step("U", _CHOOSE, f"chooses {there}", world.spend("undos").then("U", f"lock {there}"))
    elif doing == "lock":
        if world.where(x) != "X" or (rules.undo_locks and _taken_apart(world, x)):
            yield Step("U", _UNDELETE, f"{x} is being freed: refused", world.then("U", "idle"))
        else:
            yield Step("U", _UNDELETE, f"locks {x}", world.then("U", f"look {x}"))
    elif doing == "look":
        if rules.undo_looks and not (world.at(f"{x}b") and world.at(f"{x}m")):
            yield Step("U", _UNDELETE, f"{x} lacks something: refused", world.then("U", "idle"))
        else:
            yield Step("U", _UNDELETE, f"{x} is whole", world.then("U", f"rename {x}"))
    elif doing == "rename":
        if world.where(x) != "X":
            yield Step("U", _UNDELETE, "it is gone: refused", world.then("U", "idle"))
        else:
            back = world.put(**{f"{x}l": "P"})._replace(waits=world.waits - {x}, asked=world.asked | {x})
            # Dropped again it would have another name in trash, which the collector has not listed.
            back = back._replace(told_gone=world.told_gone - {x}, to_empty=world.to_empty - {x})
            yield Step("U", _UNDELETE, f"renames {x} into its place", back.then("U", f"sync {x}"))
    elif doing == "sync":
        synced = world.sync("run", "checkpoints", "staging", "trash") if rules.sync_restored else world
        yield Step("U", _UNDELETE, "makes that durable", synced.then("U", f"note {x}"))
    elif doing == "note":
        told = note_published(rules, world, x)._replace(dropped=world.dropped - {x})
        yield Step("U", _UNDELETE, f"enters {x}, and says that it is back", told.then("U", "idle"))


def _taken_apart(world: World, x: str) -> bool:
    """Whether the collector, or the process that dropped it, has an entry of trash locked."""
    return world.does("G") in (f"enter {x}", f"others {x}") or world.does("R") == f"sync {x}"


def _plans(scenario: Scenario, world: World) -> Iterator[Step[World]]:
    for x in scenario.drop:
        if world.where(x) == "P" and not locked(scenario, world, x) and (_newest_kept(world, x) or not scenario.relies):
            yield Step("R", _PLAN, f"drops {x}", world.spend("drops").then("R", f"keep {x} {_newest_kept(world, x)}"))


def _newest_kept(world: World, x: str) -> str:
    newer = [y for y in reversed(CHECKPOINTS) if y != x and world.where(y) == "P"]
    return newer[0] if newer else ""


def _idle(world: World) -> World:
    return world._replace(keeping="").then("R", "idle")


def dead(scenario: Scenario, world: World) -> list[str]:
    """Return the unlocked directories in staging, or all there if locks are not asked."""
    staged = [x for x in CHECKPOINTS if world.where(x) in SAVERS]
    return [x for x in staged if not (scenario.rules.sweep_locks and locked(scenario, world, x))]


def swept(scenario: Scenario, world: World, who: str) -> Iterator[Step[World]]:
    """Yield the steps of a sweep: each dead directory to trash."""
    found = dead(scenario, world)
    if not found:
        yield Step(who, _SWEEP, "makes its renames durable", world.sync("trash", "staging").then(who, "swept"))
    elif scenario.rules.sweep_renames:
        yield Step(who, _SWEEP, f"renames the dead {found[0]} to trash", world.put(**{f"{found[0]}l": "X"}))
    else:
        yield Step(who, _SWEEP, f"takes the dead {found[0]} apart in place", world.then(who, f"unlink {found[0]}"))


def unlinked_in_place(world: World, who: str, x: str) -> Step[World]:
    """Return the step that goes on without a rename: by its descriptor, wherever the directory is by now."""
    now = world.emptied(x) if world.where(x) in SAVERS else world.put(**{f"{x}b": ""})
    if now.where(x) in SAVERS:
        now = now.put(**{f"{x}l": "-"})
    return Step(who, _SWEEP, f"unlinks inside {x}", now.then(who, "sweep"))


def opener(scenario: Scenario, world: World) -> Iterator[Step[World]]:
    """Yield what a process that opens the store can do now; what it empties is the collector's work."""
    doing, x = (world.does("O") + " ").split(" ")[:2]
    if doing == "idle" and world.left.opens:
        yield Step("O", "", "opens the store", world.spend("opens").then("O", "sweep"))
    elif doing == "sweep":
        yield from swept(scenario, world, "O")
    elif doing == "unlink":
        yield unlinked_in_place(world, "O", x)
    elif doing == "swept":
        yield Step("O", _CATCH_UP, "reconciles", catch_up(scenario.rules, world).then("O", "idle"))


def reader(scenario: Scenario, world: World) -> Iterator[Step[World]]:
    """Yield what a reader can do now: it keeps K open, or maps D and closes K."""
    if not world.reader:
        if scenario.reader and not world.has_read and world.where("K") == "P":
            what = "open K" if scenario.reader == "open" else f"map {world.at('Kb')}"
            yield Step("reader", _READ, what, world._replace(reader=what, has_read=True))
        return
    yield Step("reader", _CLOSE, "lets go", world._replace(reader=""))
