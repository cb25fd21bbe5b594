"""What a saver does: steps 1 to 6 of the save protocol, each step as one call of the code has it."""

from __future__ import annotations

from collections.abc import Iterator

from tests.protocol.bounds import Scenario
from tests.protocol.catalog import note_published
from tests.protocol.locks import FILLING
from tests.protocol.search import Step
from tests.protocol.world import INODES, World

_CREATE = "objects.staging.Staging.create"
_CLAIM = "objects.staging.Staging.claim"
_PUT = "objects.staging.Staging.put"
_BLOB = "fs.files.create_blob"
_OFFER = "objects.staging.Staging._offer"
_LINK = "objects.staging.Staging._link_of"
_ADOPT = "objects.staging.Staging._adopt"
_TAKE_OVER = "objects.staging.Staging._take_over"
_SEAL = "objects.staging.Staging.seal"
_RENAMED = "objects.publish.give_name"
_PUBLISH = "objects.publish.publish"
_SYNC = "objects.publish.sync_parents"
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
    elif doing == "publish":
        yield _publish(scenario, world, x)
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


def _publish(scenario: Scenario, world: World, x: str) -> Step[World]:
    """List the step and rename, in one step: no other saver of the step publishes meanwhile (`one_step`)."""
    there = scenario.same_as(world, x)
    if there:
        return Step(x, _PUBLISH, f"{there} holds the same and stays", world.then(x, "sync existing"))
    made = world if world.at("run") else world.put(run="run")
    return Step(x, _RENAMED, "renames staging into place", made.put(**{f"{x}l": "P"}).then(x, "sync parents"))


def _finish(scenario: Scenario, world: World, x: str, doing: str) -> Iterator[Step[World]]:
    rules = scenario.rules
    if doing == "sync parents":
        synced = world.sync("run", "staging") if rules.sync_published else world
        synced = synced.sync("checkpoints") if rules.sync_published and rules.sync_new_run else synced
        yield Step(x, _SYNC, "makes the rename durable", synced.then(x, "catalog"))
    elif doing == "sync existing":
        there = scenario.same_as(world, x)
        synced = world.sync("run", "checkpoints", "staging") if rules.sync_existing else world
        told = synced._replace(acknowledged=synced.acknowledged | frozenset(there))
        gone = told.put(**{f"{x}l": "X"})
        yield Step(x, _DISCARD, "acknowledges the one that is there", gone.then(x, "end"))
    elif doing == "catalog":
        noted = note_published(rules, world, x)
        told = noted._replace(acknowledged=noted.acknowledged | {x})
        yield Step(x, _CATALOGUE, "reconciles, and acknowledges", told.then(x, "release"))
    else:
        yield Step(x, _RELEASE, "lets go", world.then(x, "end"))


def _failed(scenario: Scenario, world: World, x: str) -> Step[World]:
    if scenario.rules.fail_renames:
        return Step(x, _DISCARD, "fails; moves its directory to trash", world.put(**{f"{x}l": "X"}).then(x, "failed"))
    removed = world.emptied(x).put(**{f"{x}l": "-"})
    return Step(x, _DISCARD, "fails; removes its directory", removed.then(x, "failed"))
