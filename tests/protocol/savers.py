"""What a saver does: steps 1 to 6 of the save protocol, each step as one call of the code has it."""

from __future__ import annotations

from collections.abc import Iterator

from tests.protocol.bounds import Scenario
from tests.protocol.catalog import note_dropped, note_published
from tests.protocol.locks import FILLING
from tests.protocol.search import Step
from tests.protocol.world import CHECKPOINTS, INODES, World

_CREATE = "objects.staging.Staging.create"
_CLAIM = "objects.staging.Staging.claim"
_PUT = "objects.staging.Staging.put"
_BLOB = "fs.files.create_blob"
_OFFER = "objects.staging.Staging._offer"
_LINK = "objects.staging.Staging._link_of"
_ADOPT = "objects.staging.Staging._adopt"
_TAKE_OVER = "objects.staging.Staging._take_over"
_SEAL = "objects.staging.Staging.seal"
_TRY = "objects.publish._publish"
_RENAMED = "objects.publish._renamed"
_REPLACE = "objects.publish._replace"
_STAYS = "objects.publish.existing_to_keep"
_SYNC = "objects.publish._sync"
_CATALOGUE = "ops.save.save._catalogue"
_DISCARD = "ops.free.reclaim.discard"
_LOCK = "fs.locks.lock_shared"
_RELEASE = "fs.locks.DirectoryLock.release"
_MAY_FAIL = ("write", "fsync", "offer", "adopt", "seal", "sync")


def steps(scenario: Scenario, world: World, x: str) -> Iterator[Step[World]]:
    """Yield what saver `x` can do now."""
    doing = world.does(x)
    if doing in FILLING and world.where(x) != x:
        yield Step(x, _OFFER, "staging was taken away: the save fails", world.then(x, "failed"))
        return
    if doing in ("new", "made", "claim"):
        yield from _begin(scenario, world, x, doing)
    elif doing in ("write", "fsync", "offer", "adopt", "renamed", "seal", "sync"):
        yield from _fill(scenario, world, x, doing)
    elif doing in ("publish", "judged", "check"):
        yield from _publish(scenario, world, x, doing)
    elif doing in ("sync parents", "sync existing", "catalog", "release"):
        yield from _finish(scenario, world, x, doing)
    if doing in _MAY_FAIL and world.left.failures:
        yield _failed(scenario, world.spend("failures"), x)


def _begin(scenario: Scenario, world: World, x: str, doing: str) -> Iterator[Step[World]]:
    here, canonical = f"{x}b", world.at("C")
    if doing == "new":
        yield Step(x, _CREATE, "makes its directory", world.put(**{f"{x}l": x}).then(x, "made"))
    elif doing == "made":
        if world.where(x) == x or not scenario.rules.lock_names_path:
            yield Step(x, _LOCK, "locks it for use", world.then(x, "claim"))
        else:
            yield Step(x, _LOCK, "it is gone: another one is made", world.then(x, "end"))
    elif not canonical:
        yield Step(x, _CLAIM, "finds no blob: a miss", world.then(x, "write"))
    elif world.state_of(canonical) == "s" and scenario.rules.heal:
        yield Step(x, _CLAIM, "finds a short blob: a miss", world.then(x, "write"))
    else:
        yield Step(x, _CLAIM, "links the blob: a hit", world.put(**{here: canonical}).then(x, "seal"))


def _fill(scenario: Scenario, world: World, x: str, doing: str) -> Iterator[Step[World]]:
    here, beside, canonical = f"{x}b", f"{x}t", world.at("C")
    short = bool(canonical) and world.state_of(canonical) == "s" and scenario.rules.heal
    if doing == "write":
        written = world.put(**{here: INODES[x]}).set_data(INODES[x], "v")
        yield Step(x, _BLOB, "writes its copy", written.then(x, "fsync"))
    elif doing == "fsync":
        synced = world.set_data(INODES[x], "d") if scenario.rules.sync_blob else world
        yield Step(x, _BLOB, "makes it durable", synced.then(x, "offer"))
    elif doing == "offer":
        if not canonical:
            yield Step(x, _OFFER, "links it to its canonical name", world.put(C=world.at(here)).then(x, "seal"))
        elif short:
            yield Step(x, _TAKE_OVER, "replaces the short blob", world.put(C=world.at(here)).then(x, "seal"))
        else:
            yield Step(x, _OFFER, "another was faster", world.then(x, "adopt"))
    elif doing == "adopt":
        if not canonical or short:
            yield Step(x, _LINK, "theirs is gone or short: again", world.then(x, "offer"))
        else:
            yield Step(x, _LINK, "links theirs beside", world.put(**{beside: canonical}).then(x, "renamed"))
    elif doing == "renamed":
        names = {here: world.at(beside), beside: ""}
        yield Step(x, _ADOPT, "renames theirs over its own", world.put(**names).then(x, "seal"))
    elif doing == "seal":
        yield Step(x, _SEAL, "writes the manifest", world.put(**{f"{x}m": "m"}).then(x, "sync"))
    else:
        synced = world.sync(x) if scenario.rules.sync_staging else world
        yield Step(x, _SEAL, "makes its names durable", synced.then(x, "publish"))


def _publish(scenario: Scenario, world: World, x: str, doing: str) -> Iterator[Step[World]]:
    there = scenario.at_the_place_of(world, x)
    judged = world.judged["AB".index(x)]
    if doing == "check":
        yield _check(world, x, judged)
    elif doing == "judged" and not there:
        yield Step(x, _TRY, f"{judged} is gone: again", _judge(world, x, "").then(x, "publish"))
    elif doing == "judged":
        yield Step(x, _TRY, f"changes places with {there}", _exchanged(world, x, there).then(x, "check"))
    elif not there:
        made = world if world.at("run") else world.put(run="run")
        yield Step(x, _RENAMED, "renames staging into place", made.put(**{f"{x}l": "P"}).then(x, "sync parents"))
    elif x in scenario.may_replace or (scenario.damaged and there == "K"):
        if not scenario.rules.exchange:
            yield Step(x, _REPLACE, f"moves {there} to trash first", world.put(**{f"{there}l": "X"}))
        elif scenario.rules.run_locks:
            yield Step(x, _REPLACE, f"changes places with {there}", _exchanged(world, x, there).then(x, "sync parents"))
        else:
            yield Step(x, _STAYS, f"{there} is to be replaced", _judge(world, x, there).then(x, "judged"))
    elif scenario.damaged:
        yield _failed(scenario, world, x)
    else:
        yield Step(x, _STAYS, f"{there} holds the same and stays", world.then(x, "sync existing"))


def _check(world: World, x: str, judged: str) -> Step[World]:
    """Without a lock on the run: look whether what came out is what was judged."""
    out = [y for y in CHECKPOINTS if y != x and world.where(y) == x]
    if not out:
        return Step(x, _TRY, f"cannot find {judged}, which was swept: the save fails", world.then(x, "failed"))
    if out[0] == judged:
        return Step(x, _TRY, f"took out {judged}, as meant", _judge(world, x, "").then(x, "sync parents"))
    back = _judge(_exchanged(world, out[0], x), x, "")
    return Step(x, _TRY, f"puts {out[0]} back, since it meant {judged}", back.then(x, "publish"))


def _judge(world: World, x: str, there: str) -> World:
    first, second = world.judged
    return world._replace(judged=(there, second) if x == "A" else (first, there))


def _exchanged(world: World, into: str, out: str) -> World:
    return world.put(**{f"{into}l": "P", f"{out}l": world.where(into)})


def _finish(scenario: Scenario, world: World, x: str, doing: str) -> Iterator[Step[World]]:
    rules = scenario.rules
    if doing == "sync parents":
        synced = world.sync("run", "staging") if rules.sync_published else world
        synced = synced.sync("checkpoints") if rules.sync_published and rules.sync_new_run else synced
        yield Step(x, _SYNC, "makes the rename durable", synced.then(x, "catalog"))
    elif doing == "sync existing":
        there = scenario.at_the_place_of(world, x)
        synced = world.sync("run", "checkpoints", "staging") if rules.sync_existing else world
        told = synced._replace(acknowledged=synced.acknowledged | frozenset(there))
        gone = told.put(**{f"{x}l": "X"})
        yield Step(x, _DISCARD, "acknowledges the one that is there", gone.then(x, "end"))
    elif doing == "catalog":
        noted = note_published(rules, world, x)
        if x in scenario.may_replace or scenario.damaged:
            for other in scenario.same_place:
                if other != x and noted.where(other) != "P" and other in noted.rows:
                    noted = note_dropped(rules, noted, other)
        told = noted._replace(acknowledged=noted.acknowledged | {x})
        yield Step(x, _CATALOGUE, "reconciles, and acknowledges", told.then(x, "release"))
    else:
        yield Step(x, _RELEASE, "lets go", world.then(x, "end"))


def _failed(scenario: Scenario, world: World, x: str) -> Step[World]:
    if scenario.rules.fail_renames:
        return Step(x, _DISCARD, "fails; moves its directory to trash", world.put(**{f"{x}l": "X"}).then(x, "failed"))
    removed = world.emptied(x).put(**{f"{x}l": "-"})
    return Step(x, _DISCARD, "fails; removes its directory", removed.then(x, "failed"))
