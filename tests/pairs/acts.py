"""The acts of the law of pairs: each uses one capability of a small store, as briefly as possible.

An act chooses its checkpoints by what the world knows, so it can follow any other act. It tells the world which saves
were acknowledged, and which checkpoints it may remove.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ckstore import Budget, CheckpointInfo, Ranks, RetentionPolicy, Store
from ckstore.errors import InsufficientSpace, RankFailed
from ckstore.fs import dirfd_stat
from ckstore.fs import files as seam
from ckstore.remote import key_lookup
from ckstore.remote.mirror.mirror_step import Mirror
from ckstore.store import context_of
from tests.pairs.world import REMOTE, Saved, World, copy_of, files, fresh, same, same_files, state
from tests.support.crashing import run_and_kill
from tests.support.damage import flip
from tests.support.look import directory_of
from tests.support.stores import disk_bytes
from tests.weights.weight_engine import WeightEngine, newest_version

Act = Callable[[World, Store], None]
KEPT = 2
"""How many checkpoints of a run the rules of these acts keep."""


def save(world: World, store: Store) -> None:
    """Save the next step."""
    world.save(store)


def save_async(world: World, store: Store) -> None:
    """Save the next step in the background, all but what is unchanged since the last such save, and wait for it."""
    number = world.next_number()
    pending = store.save_async(state(number), step=world.next_step(), run=world.run, unchanged="frozen")
    world.told(pending.result(60), number)


def ranks(world: World, store: Store) -> None:
    """Save the next step as two ranks without a process group."""
    number, step = world.next_number(), world.next_step()

    def save_as(rank: int) -> CheckpointInfo:
        as_rank = Ranks(rank, 2, attempt=f"try-{number}", timeout_s=60)
        return Store.open(world.root).save(state(number), step=step, run=world.run, ranks=as_rank)

    with ThreadPoolExecutor(2) as pool:
        saving = [pool.submit(save_as, rank) for rank in (0, 1)]
    failed = [error for future in saving if (error := future.exception()) is not None]
    if failed:  # the rank that failed says why; the other one says only that it did
        raise next((error for error in failed if not isinstance(error, RankFailed)), failed[0])
    one, two = (future.result() for future in saving)
    assert one.id == two.id
    world.told(one, number)


def commit(world: World, store: Store) -> None:
    """Commit a directory of files."""
    number = world.next_number()
    folder = files(world.folder / f"files-{number}", number)
    world.told(store.commit(folder, step=world.next_step(), run=world.run), number, is_files=True)


def retention(world: World, store: Store) -> None:
    """Drop by a rule by hand; then set the rule and save: it stays in force."""
    may = world.beyond(KEPT)
    store.prune(RetentionPolicy(keep_last=KEPT))
    world.settle("prune", may)
    world.keep_last = KEPT
    store.config.retention = RetentionPolicy(keep_last=KEPT)
    world.save(store)


def budget(world: World, store: Store) -> None:
    """Set a budget that the store is over, and save: it stays in force."""
    world.over_budget = True
    store.config.budget = Budget(max(1, disk_bytes(world.root) - 1))
    world.save(store)


def make_room(world: World, store: Store) -> None:
    """Save where only what a policy gives up makes room."""
    full_bytes, real = _file_bytes(world) + 60_000, dirfd_stat.free_space
    may = world.beyond(1)

    def small(_: object) -> dirfd_stat.FreeSpace:
        left_bytes = full_bytes - _file_bytes(world)
        return real(world.root)._replace(free_bytes=left_bytes, unused_bytes=left_bytes)

    store.config.make_room = RetentionPolicy(keep_last=1)
    with patch.object(dirfd_stat, "free_space", small), suppress(InsufficientSpace):
        world.save(store)
    store.config.make_room = None
    world.purged()
    world.settle("make_room", may, undo=False)


def _file_bytes(world: World) -> int:
    seen = {}
    for folder, _, names in os.walk(world.root):
        for name in names:
            with suppress(FileNotFoundError):  # another thread of the act removed it
                status = os.lstat(os.path.join(folder, name))
                seen[status.st_ino] = status.st_size
    return sum(seen.values())


def quota(world: World, store: Store) -> None:
    """Have the next act meet a quota at the first blob that it writes."""
    world.meets_quota = True


@contextmanager
def as_the_quota_says(world: World) -> Iterator[None]:
    """Do an act; if the one before was `quota`, the first blob that it writes is refused, and a save tries again."""
    real, refusals = seam.create_blob, [OSError(errno.EDQUOT, "Disk quota exceeded")] if world.meets_quota else []

    def limited(*arguments: Any, **options: Any) -> Any:
        if refusals:
            world.purged()  # it may take the space of what could be brought back
            raise refusals.pop()
        return real(*arguments, **options)

    world.meets_quota = False
    with patch.object(seam, "create_blob", limited):
        yield


def undo(world: World, store: Store) -> None:
    """Delete the newest and bring it back; delete the oldest."""
    newest, oldest = world.newest().info, world.oldest().info
    store.delete(newest)
    assert store.undo(newest).id == newest.id
    store.delete(f"{oldest.run}@{oldest.step}")
    world.settle("delete", {oldest.id})


def gc(world: World, store: Store) -> None:
    """Free unreferenced blobs."""
    store.gc()


def purge(world: World, store: Store) -> None:
    """Free also the checkpoints that could be brought back."""
    store.gc(now=True)
    may = {one.info.id for one in world.listed()} - {one.info.id for one in world.current()}
    world.purged()
    world.settle("gc --now", may, undo=False)


def compact(world: World, store: Store) -> None:
    """Keep all but the newest as differences."""
    store.compact(keep_newest=1)


def connected(world: World, store: Store) -> None:
    """Give the store a remote, if it has none."""
    if not any(entry.name == REMOTE for entry in store.remotes):
        store.remotes.add(REMOTE, world.remote)
    if not world.remote_is_judged:
        world.remote_is_judged = True
        world.at_end.append(lambda: _remote_has(world))


def _remote_has(world: World) -> None:
    """Look that a clone of the remote has what was pushed and not removed there."""
    wanted = {id: one for id, one in world.saved.items() if id in world.at_remote}
    with fresh(world.folder / "looked") as path, Store.clone(world.remote, path) as clone:
        there = {info.id for info in clone.checkpoints(superseded=True)}
        for id, one in wanted.items():
            if one not in world.current() and id not in there:  # a newer one of its step hides it
                continue
            assert id in there, f"the remote lost {one.info.name}"
            if not one.is_files:
                assert same(clone.load(id), one.number)


def push(world: World, store: Store) -> None:
    """Push everything."""
    connected(world, store)
    store.push(all=True, remote=REMOTE)
    world.removed[REMOTE].clear()
    world.at_remote |= {one.info.id for one in world.current()}


def pull(world: World, store: Store) -> None:
    """Push the oldest, delete it here, and bring it back."""
    connected(world, store)
    one = world.oldest().info
    store.push(one, REMOTE)
    world.at_remote.add(one.id)
    store.delete(one)
    world.settle("delete", {one.id})
    store.pull(one.id, REMOTE)
    world.settle("pull")


def mirror(world: World, store: Store) -> None:
    """Set a mirror, and push all that it lacks."""
    connected(world, store)
    store.config.mirror = REMOTE
    work = Mirror(context_of(store))
    while work.step():
        pass
    world.at_remote |= {one.info.id for one in world.current()} - world.removed[REMOTE]


def evict(world: World, store: Store) -> None:
    """Free the local bytes of all but the newest checkpoint, which the remote has."""
    push(world, store)
    store.evict([one.info for one in world.current(world.run)[:-1]], REMOTE)
    world.settle("evict")


def clone(world: World, store: Store) -> None:
    """Clone the remote, and go on in the clone in a run of its own."""
    push(world, store)
    wanted = [dataclasses.replace(one) for one in world.current()]
    made = Store.clone(world.remote, world.folder / f"clone-{world.next_number()}")
    number = world.next_number()
    info = made.save(state(number), step=1, run="clone")

    def holds() -> None:
        assert same(made.load(info.id), number)
        for one in wanted:
            if not one.is_files:
                assert same(made.load(one.info.id), one.number), f"{one.info.name} of the clone"
        made.close()

    world.at_end.append(holds)


def remote_prune(world: World, store: Store) -> None:
    """Remove at the mirror what `keep_remote` does not keep; two days later, unreferenced blobs."""
    mirror(world, store)
    world.settle("mirror")
    may = {id for id in world.beyond(KEPT) if not world.saved[id].is_local}
    gone_there = {one.info.id for one in world.saved.values()} - {
        one.info.id for run in {one.info.run for one in world.listed()} for one in world.current(run)[-KEPT:]
    }
    store.config.keep_remote = RetentionPolicy(keep_last=KEPT)
    now = key_lookup.server_time
    for days in (0, 2):
        with patch.object(key_lookup, "server_time", lambda objects, days=days: now(objects) + timedelta(days=days)):
            store.remotes.prune(REMOTE)
    store.config.keep_remote = None
    world.at_remote -= gone_there - {*world.tags.values(), *world.pins}
    world.settle("remote prune", may, undo=False)


def follow(world: World, store: Store) -> None:
    """Follow the run from here: every checkpoint that is saved and stays is given once, in order."""
    run, before = world.run, {*world.saved}
    follower = store.follow(run, after="latest", timeout_s=0)

    def holds() -> None:
        given = [info.id for info in follower]
        later = [one for one in world.current(run) if one.info.id not in before]
        assert [id for id in given if id in {one.info.id for one in later}] == [one.info.id for one in later]
        follower.close()

    world.at_end.append(holds)


def evaluate(world: World, store: Store) -> None:
    """Evaluate the newest checkpoint that lacks a metric, and fail with the next one: what still lacks it is given."""
    metric = f"score {world.next_number()}"
    with store.follow(world.run, lacking=metric, newest_first=True, timeout_s=0) as follower:
        for info in follower:
            store.annotate(info, metrics={metric: 1})
            next(follower, None)
            break

    def holds() -> None:
        lacking = [info.id for info in store.checkpoints(world.run) if metric not in info.metrics]
        assert [info.id for info in store.follow(world.run, lacking=metric, timeout_s=0)] == lacking

    world.at_end.append(holds)


def repair(world: World, store: Store) -> None:
    """Have one blob rot, and heal it from a copy of the store."""
    one = next(one for one in reversed(world.current()) if one.is_local)
    with fresh(world.folder / "right") as copy:
        copy_of(world.root, copy)
        blob = max((directory_of(store, one.info.id) / "blobs").iterdir(), key=lambda path: path.stat().st_size)
        flip(blob, keep_time=True)
        report = store.verify(repair_from=copy)
        if report.unrepaired:  # there was no room for the right copy
            report = store.verify(repair_from=copy)
        assert report.repaired


def reindex(world: World, store: Store) -> None:
    """Make the catalog again."""
    store.reindex()


def touch(world: World, store: Store) -> None:
    """Renew all times, a month after everything was written, where files are deleted after a week."""
    month_ns, week_s = 30 * 86400 * 10**9, 7 * 86400
    # Of the files of another member neither is possible.
    own = [path for path in world.root.rglob("*") if not path.is_dir() and _is_own(path)]
    for path in {found.lstat().st_ino: found for found in own}.values():
        status = path.lstat()
        times_ns = status.st_atime_ns - month_ns, status.st_mtime_ns - month_ns
        os.utime(path, ns=times_ns, follow_symlinks=False)
    refused = store.touch().refused
    assert all(text.endswith("who alone may renew them") for text in refused)
    for path in own:
        with suppress(FileNotFoundError):
            if path.lstat().st_mtime < time.time() - week_s:
                path.unlink()


def _is_own(path: Path) -> bool:
    return os.geteuid() in (0, path.lstat().st_uid)


def rename_run(world: World, store: Store) -> None:
    """Give the run another name."""
    old, new = world.run, f"{world.run}x"
    moving = [one for one in world.listed() if one.info.run == old]
    moved = store.rename_run(old, new)
    assert [info.step for info in moved] == [one.info.step for one in moving]
    world.run = new
    for one, info in zip(moving, moved, strict=True):
        del world.saved[one.info.id]
        world.tags = {name: info.id if id == one.info.id else id for name, id in world.tags.items()}
        world.pins = {info.id if id == one.info.id else id for id in world.pins}
        one.info = info
        world.saved[info.id] = one


def tag(world: World, store: Store) -> None:
    """Give the oldest a tag, and pin the newest; tag and pin it once more, and take that away."""
    oldest, newest = world.oldest().info, world.newest().info
    store.tag("best", oldest)
    world.tags["best"] = oldest.id
    if newest.id not in world.pins:
        store.pin(newest, "mine")
        world.pins.add(newest.id)
    store.tag("other", oldest)
    store.untag("other")
    store.unpin(store.pin(oldest, "for a moment"))


def replace(world: World, store: Store) -> None:
    """Save another state at the step of the newest."""
    one = world.newest().info
    # As a process that resumed: a member replaces only what it continues.
    world.save(store, step=one.step, if_exists="replace", parent=one)
    world.settle("replace", {one.id})


def checkout(world: World, store: Store) -> None:
    """Commit files and write them outside the store, as names of its blobs."""
    commit(world, store)
    one = world.newest()
    out = world.folder / f"checkout-{one.number}"
    store.checkout(one.info, out, link="copy")
    world.at_end.append(lambda: _equal(same_files(out, one.number)))


def export(world: World, store: Store) -> None:
    """Write the newest saved state as a file of torch, which is read at the end."""
    one = next((one for one in reversed(world.current()) if not one.is_files), None)
    if one is None:
        return
    out = world.folder / f"export-{one.info.step}-{world.next_number()}"
    report = store.export(one.info, out, sums=True)
    sizes = {path.name: path.read_bytes() for path in out.iterdir()}
    assert report.files
    world.at_end.append(lambda: _equal(Store.verify_export(out).ok))
    world.at_end.append(lambda: _equal(sizes == {path.name: path.read_bytes() for path in out.iterdir()}))


def publish(world: World, store: Store) -> None:
    """Publish the newest saved state for engines: one that pulls now has it, and so has one that pulls at the end."""
    one = next((one for one in reversed(world.current()) if _is_model(store, one)), None)
    if one is None:
        return
    base = world.folder / f"base-{os.geteuid()}"
    base.mkdir(exist_ok=True)
    (base / "config.json").write_text("{}")
    out = world.folder / f"published-{one.info.run}-{os.geteuid()}"
    options: dict[str, Any] = {"select": lambda name: name != "number", "add": [base], "timeout_s": 0}
    with store.publish(one.info.run, out, ref=one.info.id, **options) as publisher:
        versions = [*publisher]
    assert [version.id for version in versions] in ([one.info.id], [])
    newest, number = newest_version(out), one.number

    def holds() -> None:
        engine = WeightEngine(world.folder / f"engine-{world.next_number()}", base)
        engine.pull(out, newest)
        assert same(engine.weights() | {"number": number}, number)

    holds()
    world.at_end.append(holds)


def _is_model(store: Store, one: Saved) -> bool:
    """Whether it is one state, and not those of several ranks, nor files."""
    if one.is_files:
        return False
    with store.open_checkpoint(one.info) as opened:
        return "weights" in opened


def _equal(equal: bool) -> None:
    assert equal, "what was written outside the store changed"


def shared(world: World, store: Store) -> None:
    """Say that other hosts use the store, and go on as two of them, each with a catalog of its own."""
    store.config.shared = True
    world.shared = True
    world.reopen(catalog_path=lambda hand: world.folder / f"host-{hand}" / "catalog.db")
    world.save(world.hands[1])


def read_only(world: World, store: Store) -> None:
    """Open the store for reading, and read all of it now, and what is left at the end."""
    reader = Store.open(world.root, readonly=True)

    def holds() -> None:
        assert {info.id for info in reader.checkpoints(superseded=True)} == {one.info.id for one in world.listed()}
        for one in world.listed():
            if not one.is_files:
                assert same(reader.load(one.info.id), one.number)

    holds()
    world.at_end.append(holds)


def read(world: World, store: Store) -> None:
    """Have the oldest saved state open from now on; all that lists and shows looks at it as well."""
    one = next(one for one in world.current(world.run) if not one.is_files)
    world.readers.append(store.open_checkpoint(one.info))
    assert store.latest(world.run) is not None
    store.du()
    store.metrics()
    store.diff(one.info, world.newest().info)


def backup(world: World, store: Store) -> None:
    """Copy the store; the copy is looked at in the end."""
    world.keep_copy(world.folder / f"backup-{world.next_number()}")


def restore(world: World, store: Store) -> None:
    """Put a copy without hardlinks in the place of the store."""
    copy = world.folder / f"copy-{world.next_number()}"
    copy_of(world.root, copy)
    for reader in world.readers:
        reader.close()
    world.readers.clear()
    for hand in world.hands:
        hand.close()
    shutil.rmtree(world.root)
    copy.rename(world.root)
    store.reindex(relink=True)


def kill(world: World, store: Store) -> None:
    """Kill a process in a save, and another one in a deletion."""
    number = world.next_number()
    step = world.next_step()
    world.may_be.add(number)
    assert run_and_kill(lambda: Store.open(world.root).save(state(number), step=step, run=world.run), at=6, before=True)
    one = world.oldest().info
    run_and_kill(lambda: Store.open(world.root).delete(one), at=3, before=True)
    world.settle("kill", {one.id})


ACTS: dict[str, Act] = {
    act.__name__: act
    for act in (
        *(save, save_async, ranks, commit, replace, retention, budget, make_room, quota, undo, gc, purge, compact),
        *(push, pull, mirror, evict, clone, follow, evaluate, remote_prune, repair, reindex, rename_run, touch),
        *(tag, checkout, export, publish),
        *(read, shared, read_only, backup, restore, kill),
    )
}
"""Every act by its name; table.toml says of which capability it is."""

BY_MEMBERS = sorted(ACTS.keys() - {"save_async", "repair", "shared", "quota", "kill", "restore", "backup"})
"""Those that several users of a group try: the others start processes, or do to files what only their owner may do."""
