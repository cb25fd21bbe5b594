"""Acts and faults where a store meets another party: its remotes, another store there, and an older copy of itself.

They are for the histories. `tells_the_truth` judges the tools after each act.
"""

from __future__ import annotations

import copy
import random
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest.mock import patch

from ckstore import CheckpointInfo, RetentionPolicy, Store
from ckstore.errors import CkstoreError, StepExists
from ckstore.model.reports.gc_report import GcReport
from ckstore.objects.publish import IfExists
from ckstore.ops import mirror_record
from ckstore.remote import key_lookup, keys
from ckstore.remote.mirror import mirror_step
from ckstore.remote.mirror.mirror_step import Mirror
from ckstore.remote.service.remote_entries import open_objects
from ckstore.remote.service.target import parse_target
from ckstore.store import context_of
from tests.pairs.acts import ACTS, KEPT, Act, connected
from tests.pairs.world import REMOTE, Saved, World, copy_of, fresh, same, state
from tests.support.damage import flip
from tests.support.look import directory_of
from tests.support.stores import check_store

SECOND = "second"
_DAYS = 2.0
_JUDGED = 0.6  # part of the acts after which the tools are judged; at the end they always are


@contextmanager
def days_pass(world: World) -> Iterator[None]:
    """Have the mirror see the days of the world, and wait for nothing between two prunes."""
    now = mirror_record.now

    def later() -> Any:
        return now() + timedelta(days=world.days)

    with (
        patch.object(mirror_record, "now", later),
        patch.object(mirror_step, "now", later),
        patch.object(mirror_step, "_PRUNE_PAUSE_S", 0.0),
    ):
        yield


def _mirror_name(store: Store) -> str:
    return store.config.mirror or REMOTE


def _address(world: World, name: str) -> str:
    return world.remote if name == REMOTE else f"{world.remote}-{name}"


def _carry_out(world: World, store: Store, work: Mirror) -> None:
    """Do all steps of a mirror process, and note what it may drop and what it listed."""
    name, before = _mirror_name(store), store.mirror_status()
    try:
        work.try_again()
        while work.step():
            pass
        work.tidy()
    finally:
        _may_drop(world, "mirror")
    if work.problem:
        raise work.problem
    if (after := store.mirror_status()) and before and after.looked != before.looked:
        world.unlisted.discard(name)


def _may_drop(world: World, by: str) -> None:
    may = set()
    if world.keep_remote is not None:
        may = world.beyond(world.keep_remote)
        world.at_remote -= may
    world.settle(by, may, undo=False)


def mirror_for_days(world: World, store: Store) -> None:
    """Let a mirror process that lives on do all that is due, two days later."""
    connected(world, store)
    store.config.mirror = _mirror_name(store)
    world.days += _DAYS
    if world.work is None:
        world.work = Mirror(context_of(store))
    _carry_out(world, store, world.work)


def other_mirror(world: World, store: Store) -> None:
    """Change the mirror to the other remote, and mirror."""
    connected(world, store)
    if not any(entry.name == SECOND for entry in store.remotes):
        store.remotes.add(SECOND, _address(world, SECOND))
    store.config.mirror = REMOTE if store.config.mirror == SECOND else SECOND
    _carry_out(world, store, Mirror(context_of(store)))


def _hurt(world: World, name: str, *, unread: bool = False) -> None:
    world.hurt |= {one.info.id for one in world.saved.values() if not one.is_local}
    world.unlisted.add(name)
    if unread:
        world.unread.add(name)
    if name == REMOTE:
        world.at_remote.clear()


def _objects(world: World, name: str) -> Any:
    return open_objects(parse_target(_address(world, name)))


def _any(world: World, store: Store, prefixes: tuple[str, ...]) -> tuple[str, Any, str]:
    """Choose an object of the mirror; StopIteration if there is none."""
    name = _mirror_name(store)
    connected(world, store)
    objects = _objects(world, name)
    listed = sorted(one.key for prefix in prefixes for one in objects.list(prefix))
    if not listed:
        raise StopIteration
    return name, objects, world.draw.choice(listed)


def lose_object(world: World, store: Store) -> None:
    """Have another program delete an object of the mirror."""
    which = world.draw.choice([(keys.BLOBS,), (keys.CHECKPOINTS,), ("",)])
    name, objects, key = _any(world, store, which)
    world.notes.append(f"loses {key} of {name}")
    objects.delete([key])
    _hurt(world, name)


def damage_object(world: World, store: Store) -> None:
    """Have a blob of the mirror rot."""
    name, objects, key = _any(world, store, (keys.BLOBS,))
    data = bytearray(objects.get(key, 2**30) or b"")
    data[len(data) // 2] ^= 1
    world.notes.append(f"damages {key} of {name}")
    objects.send(key, bytes(data))
    _hurt(world, name, unread=True)


def empty_remote(world: World, store: Store) -> None:
    """Have another program delete all objects of the mirror."""
    name, objects, _ = _any(world, store, ("",))
    objects.delete([one.key for one in objects.list("")])
    world.notes.append(f"empties {name}")
    _hurt(world, name)


def create_again(world: World, store: Store) -> None:
    """Add the mirror again with its name and address, and mirror."""
    name = _mirror_name(store)
    connected(world, store)
    store.remotes.add(name, _address(world, name))
    store.config.mirror = name
    _carry_out(world, store, Mirror(context_of(store)))


def empty_and_create_again(world: World, store: Store) -> None:
    """Have the mirror emptied, and add it again."""
    empty_remote(world, store)
    create_again(world, store)


def verify_remote(world: World, store: Store) -> None:
    """Read the mirror back; then mirror again what is missing or damaged there."""
    name = _mirror_name(store)
    connected(world, store)
    report = store.remotes.verify(name)
    store.config.mirror = name
    _carry_out(world, store, Mirror(context_of(store)))
    if report.damage:
        report = store.remotes.verify(name)
    if not report.damage:
        world.unread.discard(name)


def rules(world: World, store: Store) -> None:
    """Set the rules of the mirror: they stay in force."""
    world.keep_remote = KEPT + 1
    store.config.keep_local = RetentionPolicy(keep_last=1)
    store.config.keep_remote = RetentionPolicy(keep_last=KEPT + 1)


def no_rules(world: World, store: Store) -> None:
    """Unset them."""
    store.config.keep_local = store.config.keep_remote = None
    world.keep_remote = None


def rival_marks(world: World, store: Store) -> None:
    """Have another store mark the unreferenced blobs of the mirror, and delete the due ones two days later."""
    name = _mirror_name(store)
    connected(world, store)
    path = world.folder / f"marker-{name}"
    with Store.open(path) if path.exists() else Store.init(path, chunk_bytes=2**20) as other:
        if not other.remotes.list():
            other.remotes.add(name, _address(world, name))
        now, days = key_lookup.server_time, world.draw.choice([0, 2])
        with patch.object(key_lookup, "server_time", lambda objects: now(objects) + timedelta(days=days)):
            would = other.remotes.prune(name, dry_run=True) if days == 0 else None
            done = other.remotes.prune(name)
        if would is not None:
            assert (would.removed_count, would.condemned_count) == (done.removed_count, done.condemned_count)


def heir(world: World, store: Store) -> None:
    """Have a clone of the mirror take the run over, mirror to it, and keep few checkpoints there."""
    name = _mirror_name(store)
    connected(world, store)
    path = world.folder / f"heir-{world.next_number()}"
    with Store.clone(_address(world, name), path) as other:
        other.config.mirror = other.remotes.list()[0].name
        other.remotes.take_over(other.config.mirror, world.run)
        number = world.next_number()
        other.save(state(number), step=10_000 + number, run=world.run)
        other.config.keep_remote = RetentionPolicy(keep_last=1)
        stay = {id for id in world.saved if not world.saved[id].is_local}
        world.removed[name] |= world.saved.keys() - stay
        world.unlisted.add(name)  # until a listing, the mirror cannot know what was removed
        world.at_remote &= stay
        work = Mirror(context_of(other))
        while work.step():
            pass
        work.tidy()
        now = key_lookup.server_time
        with patch.object(key_lookup, "server_time", lambda objects: now(objects) + timedelta(days=2)):
            other.remotes.prune(other.config.mirror)


def take_over(world: World, store: Store) -> None:
    """Take the run over."""
    connected(world, store)
    store.remotes.take_over(_mirror_name(store), world.run)


def old_backup(world: World, store: Store) -> None:
    """Copy the store; the next time, put the copy in its place, and lose what the store had since."""
    path = world.folder / "old"
    if world.before is None:
        copy_of(world.root, path)
        kept = {"saved", "tags", "pins", "run", "keep_last", "over_budget", "keep_remote"}
        world.before = copy.deepcopy({name: getattr(world, name) for name in kept})
        return
    for reader in world.readers:
        reader.close()
    world.readers.clear()
    for hand in world.hands:
        hand.close()
    shutil.rmtree(world.root)
    path.rename(world.root)
    world.may_be |= {one.number for one in world.saved.values()}
    for name, value in world.before.items():
        setattr(world, name, value)
    world.before = None
    world.work = world.work if world.draw.random() < 0.5 else None  # it may live on
    # Its remotes may have lost since then what it lists, by rules of the store itself.
    for name in (REMOTE, SECOND):
        _hurt(world, name)
    world.reopen()
    world.hands[0].reindex(relink=True)


def evict_and_pull(world: World, store: Store) -> None:
    """Free the local bytes of all but the newest, as a dry run says, and pull them, as a dry run says."""
    name = _mirror_name(store)
    connected(world, store)
    infos = [one.info for one in world.current(world.run)[:-1]]
    would = store.evict(infos, name, dry_run=True)
    done = store.evict(infos, name)
    if name in world.unread:  # a dry run reads nothing back
        return
    assert [info.id for info in would.evicted] == [info.id for info in done.evicted], (str(would), str(done))
    assert would.freed_bytes == done.freed_bytes, (would.freed_bytes, done.freed_bytes)
    world.settle("evict")
    if not done.evicted or world.draw.random() < 0.5:
        return
    refs = [info.id for info in done.evicted]
    planned = store.pull(refs, name, dry_run=True)
    pulled = store.pull(refs, name)
    assert (planned.moved_count, planned.moved_bytes) == (pulled.moved_count, pulled.moved_bytes)
    assert not any(store.info(ref).elsewhere for ref in refs)


def gc_as_planned(world: World, store: Store) -> None:
    """Free what a dry run says."""
    _same_numbers(store.gc(dry_run=True), store.gc())


def purge_as_planned(world: World, store: Store) -> None:
    """Free also the checkpoints that could be restored, as a dry run says."""
    may = {one.info.id for one in world.listed()} - {one.info.id for one in world.current()}
    would, done = store.gc(now=True, dry_run=True), store.gc(now=True)
    world.purged()
    world.settle("gc --now", may, undo=False)
    _same_numbers(would, done)


def prune_as_planned(world: World, store: Store) -> None:
    """Drop what a dry run says."""
    may, now = world.beyond(KEPT), world.draw.random() < 0.3
    policy = RetentionPolicy(keep_last=KEPT)
    would, done = store.prune(policy, dry_run=True, now=now), store.prune(policy, now=now)
    world.settle("prune", may, undo=not now)
    assert _ids(would.dropped) == _ids(done.dropped)
    _same_numbers(would, done)


def _same_numbers(would: GcReport, done: GcReport) -> None:
    def numbers(report: GcReport) -> tuple[object, ...]:
        waiting = {(one.ref, one.id, one.nbytes, one.problem) for one in report.waiting}
        return report.freed_bytes, report.freed_count, report.superseded, report.cached_bytes, waiting

    assert numbers(would) == numbers(done), f"{would}\n{done}"


def evict_by_rule_as_planned(world: World, store: Store) -> None:
    """Free the local bytes that the rule does not keep, as a dry run says."""
    connected(world, store)
    store.config.mirror = _mirror_name(store)
    store.config.keep_local = RetentionPolicy(keep_last=1)
    would, done = store.evict(rule=True, dry_run=True), store.evict(rule=True)
    if store.config.mirror not in world.unread:  # a dry run reads nothing back
        assert _ids(would.evicted) == _ids(done.evicted)
        assert would.freed_bytes == done.freed_bytes, (would.freed_bytes, done.freed_bytes)
    if world.keep_remote is None:
        store.config.keep_local = None


def _ids(infos: Sequence[CheckpointInfo]) -> list[str]:
    return [info.id for info in infos]


def remote_prune_as_planned(world: World, store: Store) -> None:
    """Remove from the mirror what a dry run says."""
    name = _mirror_name(store)
    connected(world, store)
    would = store.remotes.prune(name, dry_run=True)
    try:
        done = store.remotes.prune(name)
    finally:
        _may_drop(world, "remote prune")
    if would.retention is not None:
        assert done.retention is not None
        assert _ids(would.retention.dropped) == _ids(done.retention.dropped)
    else:
        assert would.removed_count == done.removed_count


def push_as_planned(world: World, store: Store) -> None:
    """Push to the mirror what a dry run says."""
    name = _mirror_name(store)
    connected(world, store)
    would = store.push(all=True, remote=name, dry_run=True)
    done = store.push(all=True, remote=name)
    world.removed[name].clear()
    assert not would.warnings
    if store.config.push_deltas:  # a dry run encodes nothing, and counts plain data
        return
    assert (would.moved_count, would.moved_bytes, would.new_count) == (
        done.moved_count,
        done.moved_bytes,
        done.new_count,
    )


def pull_all(world: World, store: Store) -> None:
    """Pull everything that the mirror has."""
    connected(world, store)
    foreign = {info.id for info in store.checkpoints(superseded=True)}
    store.pull([info.id for info in store.checkpoints() if info.elsewhere and info.id in foreign], _mirror_name(store))


def lost_catalog(world: World, store: Store) -> None:
    """Delete the catalog."""
    for hand in world.hands:
        hand.close()
    for path in world.root.glob("catalog.db*"):
        path.unlink()
    world.reopen()


def verify_and_repair(world: World, store: Store) -> None:
    """Have a local blob rot that a remote may have, and repair it from there; or lose it."""
    one = next(one for one in reversed(world.current()) if one.is_local)
    blob = max((directory_of(store, one.info.id) / "blobs").iterdir(), key=lambda path: path.stat().st_size)
    with fresh(world.folder / "right") as right:
        copy_of(world.root, right)
        flip(blob, keep_time=True)
        report = store.verify(repair=True)
        if not report.ok:
            store.verify(repair_from=right)
    assert store.verify(one.info.id).ok


def undo_what_is_offered(world: World, store: Store) -> None:
    """Delete the oldest; undo it if the store offers that."""
    one = world.oldest()
    store.delete(one.info)
    world.settle("delete", {one.info.id})
    offered = {waiting.id for waiting in store.undoable() if not waiting.problem}
    if one.info.id not in offered:
        assert one.info.id in world.hurt, "what was deleted cannot be restored"
        return
    if world.draw.random() < 0.5:
        assert store.undo(one.info).id == one.info.id
        one.gone = ""


def deltas(world: World, store: Store) -> None:
    """Push differences from now on."""
    store.config.push_deltas = True
    world.save(store)


def other_run(world: World, store: Store) -> None:
    """Go on in another run, or in the first one again."""
    runs = {one.info.run for one in world.listed()} - {world.run}
    world.run = min(runs) if runs else "beside"
    world.save(store)


def remove_and_add(world: World, store: Store) -> None:
    """Remove the mirror from the settings, and add it again."""
    name = _mirror_name(store)
    connected(world, store)
    mirror, store.config.mirror = store.config.mirror, None
    store.remotes.remove(name)
    try:
        store.remotes.add(name, _address(world, name))
    finally:
        store.config.mirror = mirror
    _carry_out(world, store, Mirror(context_of(store)))


def compact_as_planned(world: World, store: Store) -> None:
    """Keep all but the newest as differences, as a dry run says."""
    would, done = store.compact(keep_newest=1, dry_run=True), store.compact(keep_newest=1)
    assert {one.info.id for one in done.compacted} <= {one.info.id for one in would.plan.compacted}


def lose_description(world: World, store: Store) -> None:
    """Have another program delete the description of the mirror, and add it again: nothing is lost by that."""
    name = _mirror_name(store)
    connected(world, store)
    objects, loading = _objects(world, name), [one for one in world.listed() if not _failure_of_load(world, store, one)]
    entry = store.remotes.get(name)
    # If it was emptied, or is another one by now, there is nothing to recognize.
    if next(iter(objects.list(keys.CHECKPOINTS)), None) is None or store.remotes.probe(name).uuid != entry.uuid:
        raise StopIteration
    objects.delete([keys.INFO])
    mirror, store.config.mirror = store.config.mirror, None
    if world.draw.random() < 0.5:
        store.verify(quick=True)
    elif any(one.is_local for one in world.listed() if one in loading) and world.draw.random() < 0.5:
        store.remotes.remove(name)
    store.remotes.add(name, _address(world, name))
    store.config.mirror = mirror
    for one in loading:
        world.check_load(store, one)


def pull_from_a_clone(world: World, store: Store) -> None:
    """Have a clone of the store replace a step, and pull that from it by each rule, as a dry run says."""
    ways: tuple[IfExists, ...] = ("error", "keep", "replace")
    one, rule = world.draw.choice(world.current(world.run)), world.draw.choice(ways)
    path, number = world.folder / f"clone-{world.next_number()}", world.next_number()
    with Store.clone(world.root, path) as other:
        for local in (each for each in world.current() if each.is_local):
            world.check_load(other, local)
        theirs = other.save(state(number), one.info.step, world.run, if_exists="replace", parent=one.info)
        check_store(path)
    would, before = store.pull(theirs.id, path, if_exists=rule, dry_run=True), store.checkpoints(superseded=True)
    try:
        done = store.pull(theirs.id, path, if_exists=rule)
    except StepExists:
        assert rule == "error", str(would)
        assert (would.moved_count, _ids(would.new)) == (0, []), would
        assert _ids(store.checkpoints(superseded=True)) == _ids(before)
        return
    numbers = [(each.moved_count, each.moved_bytes, _ids(each.new)) for each in (would, done)]
    assert numbers[0] == numbers[1], f"{would}\n{done}"
    if done.new:
        world.told(done.new[0], number)
        world.settle("pull", {one.info.id})


def label(world: World, store: Store) -> None:
    """Give a checkpoint a metric, a note and a tag: the mirror gets them."""
    name, number = _mirror_name(store), world.next_number()
    connected(world, store)
    one, tag = world.draw.choice(world.current(world.run)), f"t{number % 3}"
    store.annotate(one.info, metrics={"loss": number}, note=f"note {number}")
    store.tag(tag, one.info)
    world.tags[tag] = one.info.id
    store.config.mirror = name
    _carry_out(world, store, Mirror(context_of(store)))
    status = store.mirror_status()
    if status is None or not status.ok or status.removed or one.info.id in world.hurt or name in world.unlisted:
        return
    with fresh(world.folder / "looked") as path, Store.clone(_address(world, name), path) as clone:
        info = clone.info(tag)
        assert (info.id, info.metrics["loss"]) == (one.info.id, number), info
        assert f"note {number}" in {note.text for note in info.notes}


def look(world: World, store: Store) -> None:
    """Ask every tool that only reports."""
    store.doctor()
    store.metrics()
    store.events()
    store.du()
    store.report(world.folder / f"report-{world.next_number()}.html")
    for name in (entry.name for entry in store.remotes):
        assert all(one.is_own for one in store.remotes.claims(name))
    blob = world.draw.choice(sorted((directory_of(store, world.newest().info.id) / "blobs").iterdir()))
    assert store.why(blob.name)


PARTIES: dict[str, Act] = {
    act.__name__: act
    for act in (
        *(mirror_for_days, mirror_for_days, other_mirror, lose_object, damage_object, empty_remote, create_again),
        *(empty_and_create_again, verify_remote, rules, no_rules, rival_marks, heir, take_over, old_backup),
        *(evict_and_pull, gc_as_planned, prune_as_planned, remote_prune_as_planned, push_as_planned, pull_all),
        *(lost_catalog, verify_and_repair, undo_what_is_offered, deltas, deltas, other_run, remove_and_add),
        *(compact_as_planned, purge_as_planned, evict_by_rule_as_planned, lose_description, pull_from_a_clone),
        *(label, look),
    )
}
FAULTS = {"lose_object", "damage_object", "empty_remote", "empty_and_create_again"}
PLAIN = (
    *("save", "commit", "replace", "retention", "undo", "gc", "purge", "compact", "push", "mirror", "evict"),
    *("remote_prune", "reindex", "rename_run", "tag", "touch", "read", "restore", "publish"),
)
"""The acts of acts.py that are in these histories."""


def tells_the_truth(world: World, store: Store) -> None:
    """Look that each checkpoint loads, or is named as damaged or lost because of a fault, and that the mirror has it.

    Raises:
        AssertionError: A checkpoint is lost, or a tool does not say so.
    """
    report = store.verify(quick=True)
    named = {(one.run, one.directory) for one in report.damage if one.affects}
    named |= {(one.run, one.directory) for one in report.elsewhere if one.missing or one.unasked}
    infos = {info.id: info for info in store.checkpoints(superseded=True)}
    for one in world.listed():
        info = infos[one.info.id]
        is_named = (info.run, info.key.directory) in named
        failure = _failure_of_load(world, store, one)
        if failure is not None:
            assert one.info.id in world.hurt, f"{info.name} does not load: {failure}"
            assert is_named or world.unread, f"verify does not name {info.name}: {failure}"
            continue
        assert not is_named or one.info.id in world.hurt, f"verify names {info.name}"
        if one.is_local:
            assert not is_named, f"verify names {info.name}, which is local"
            world.hurt.discard(one.info.id)
    _mirror_tells_the_truth(world, store, infos)


def _failure_of_load(world: World, store: Store, one: Saved) -> CkstoreError | None:
    try:
        world.check_load(store, one)
    except CkstoreError as error:
        return error
    return None


def _mirror_tells_the_truth(world: World, store: Store, infos: dict[str, CheckpointInfo]) -> None:
    status = store.mirror_status()
    if status is None or status.problem or status.behind:
        return
    if status.remote in world.unlisted | world.unread:
        return
    named = {*status.missing, *status.on_other_remotes, *status.removed}
    # A reader of the local checkpoint keeps nothing on the mirror.
    opened = {reader.info.id for reader in world.readers}
    ruled = world.beyond(world.keep_remote) | opened if world.keep_remote is not None else set()
    with fresh(world.folder / "looked") as path, Store.clone(_address(world, status.remote), path) as clone:
        there = {info.id for info in clone.checkpoints(superseded=True)}
        for one in world.current():
            info = infos[one.info.id]
            if info.superseded or info.name in named or one.info.id in ruled:
                continue
            assert one.info.id in there, f"the mirror {status.remote} lacks {info.name} and says: {status}"
            world.check_load(clone, replace(one))
            world.hurt.discard(one.info.id)  # the listing restored its claim, so it may not be lost any more


def check(world: World) -> None:
    """Look at the store at the end; what a fault hurt may be lost."""
    for reader in world.readers:
        assert reader.info.id in world.hurt or same(reader.load(), world.saved[reader.info.id].number)
        reader.close()
    tells_the_truth(world, world.hands[0])
    store = world.hands[0]
    offered = {one.id: one for one in store.undoable() if not one.problem}
    promised = {one.info.id for one in world.saved.values() if one.gone and one.undo} - world.hurt
    assert promised <= offered.keys(), "what was removed cannot be brought back"
    for id, waiting in offered.items():
        if id in world.saved and world.saved[id].gone:
            assert store.undo(world.saved[id].info).id == id, waiting.ref
            world.saved[id].gone = ""
    tells_the_truth(world, store)
    for hand in world.hands:
        hand.close()


def live(world: World, acts: list[str], seed: int) -> int:
    """Do the acts by two handles in turn; return how many were refused.

    Raises:
        AssertionError: Something that was acknowledged is lost, or a tool does not say so.
    """
    world.draw, refused = random.Random(seed), 0
    with days_pass(world):
        for number, name in enumerate(acts):
            try:
                (PARTIES.get(name) or ACTS[name])(world, world.hands[number % 2])
            except (CkstoreError, StopIteration):  # or no checkpoint or object is left that the act needs
                refused += 1
                world.at_remote.clear()
            if name == "remote_prune" and world.keep_remote is None:  # it was refused before it unset its rule
                world.hands[0].config.keep_remote = None
            world.settle(name)
            if world.draw.random() < _JUDGED:
                tells_the_truth(world, world.hands[(number + 1) % 2])
        check(world)
    return refused


def history(draw: random.Random, most: int) -> list[str]:
    """Return the acts of a history: of few kinds, so that each meets what others did."""
    kinds = ["save", "mirror_for_days", *draw.sample([*PLAIN, *PARTIES], 6)]
    return ["mirror_for_days", *(draw.choice(kinds) for _ in range(draw.randint(4, most)))]
