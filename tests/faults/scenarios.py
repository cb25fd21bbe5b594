"""What is killed and made to fail: a preparation without faults, then one act with them.

Each runs by itself too: ``python -m tests.faults.scenarios SCENARIO STORE JOURNAL``, with the fault
library preloaded or without.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckstore import Budget, CheckpointInfo, RetentionPolicy, Store
from ckstore.errors import DamagedBlob, InUse
from ckstore.fs import files
from ckstore.ops.free import reclaim
from ckstore.ops.index import reconcile
from ckstore.ops.save import save as saving
from tests.faults.journal import Journal
from tests.faults.migrating import become_next, wrong_in_catalog
from tests.faults.states import CHUNK_BYTES, expected, fingerprint, read_files, state, write_files
from tests.support.checkpoint_dirs import blobs_dir, checkpoint_dir, checkpoint_dirs, step_names
from tests.support.damage import flip
from tests.support.draft_stores import draft_names, is_converted, make_draft

RUN = "main"
_DAY_S = 86400.0


class Unkept(RuntimeError):
    """An act did not keep its word; a scenario judges that by the names in checkpoints/."""


@dataclass(frozen=True)
class Scenario:
    """One act of the store.

    Attributes:
        prepare: Makes the store as the act finds it; runs in a process of its own, without faults.
        open: Opens the store, or makes it; the first that happens with faults. May be called again.
        act: What is tried. May be called again after it failed, and then has to succeed.
        uncertain: After an error of the act it is unknown whether it happened. A save does know.
        hit: Below which directory calls fail, given that of the store.
        inspect: Says what is wrong beside the store; its second argument tells whether the act reported success.
        begins_damaged: The store that the act finds is damaged, so after an error of the act it may still be.
        settle: Called before the store is looked at, as `inspect`; may end what the act left.
    """

    name: str
    prepare: Callable[[Path, Journal], None]
    open: Callable[[Path, Journal], Store]
    act: Callable[[Store, Journal], None]
    uncertain: bool = False
    hit: Callable[[Path], Path] = lambda store: store
    inspect: Callable[[Path, bool], list[str]] = lambda store, done: []
    begins_damaged: bool = False
    settle: Callable[[Path, bool], list[str]] = lambda store, done: []


def _init(path: Path, journal: Journal) -> Store:
    if _is_there(unseen(path) / "store.json"):  # made by an attempt that failed after that
        return Store.open(path)
    store = Store.init(path, chunk_bytes=CHUNK_BYTES)
    journal.store_made()
    return store


def unseen(path: Path) -> Path:
    """Return another path of the same place: what a scenario itself does there is neither counted nor hit."""
    return Path(f"/proc/self/root{path}")


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # on a disk that is gone the store has to find its words
        return False


def _open(path: Path, journal: Journal) -> Store:
    return Store.open(path)


def _open_as_found(path: Path, journal: Journal) -> Store:
    """Open a store without emptying its trash, which is left for the act."""
    give_back, reclaim.free_unused = reclaim.free_unused, lambda *_: None
    try:
        return Store.open(path)
    finally:
        reclaim.free_unused = give_back


def _no_store(path: Path, journal: Journal) -> None:
    pass


def _nothing_more(store: Store, journal: Journal) -> None:
    pass


def save(store: Store, journal: Journal, step: int, name: str, **options: Any) -> None:
    """Save the state `name` as that step of `RUN`, and journal it."""
    content = state(name)
    journal.begin((RUN, step), name)
    store.save(content, step=step, run=RUN, **options)
    journal.done((RUN, step), name)


def _saved(*names: str) -> Callable[[Path, Journal], None]:
    """A store with these states as its steps 1, 2, …"""

    def prepare(path: Path, journal: Journal) -> None:
        with _init(path, journal) as store:
            for step, name in enumerate(names, 1):
                save(store, journal, step, name)

    return prepare


def _saving(step: int, *names: str, **options: Any) -> Callable[[Store, Journal], None]:
    def act(store: Store, journal: Journal) -> None:
        for further, name in enumerate(names):
            save(store, journal, step + further, name, **options)

    return act


def _deleting(step: int) -> Callable[[Store, Journal], None]:
    def act(store: Store, journal: Journal) -> None:
        journal.begin((RUN, step), None)
        if not _is_gone(checkpoint_dir(unseen(store.path), RUN, step)):  # an attempt may have failed after that
            store.delete(f"{RUN}@{step}")
        journal.done((RUN, step), None)

    return act


def _is_gone(path: Path) -> bool:
    try:
        os.lstat(path)
    except OSError as error:  # on a disk that is gone the store has to find its words
        return error.errno == errno.ENOENT
    return False


def _dropped(path: Path, journal: Journal) -> None:
    """A store in which a checkpoint was dropped, by a process that died before it freed anything."""
    _saved("first", "second", "other")(path, journal)
    with _open(path, journal) as store:
        reclaim.free_unused = lambda *_: None  # this process does nothing else
        _deleting(2)(store, journal)


def _undoable(path: Path, journal: Journal) -> None:
    """A store that keeps what is deleted, and in it a checkpoint that waits to be brought back."""
    _keeping(path, journal)
    with _open(path, journal) as store:
        _deleting(2)(store, journal)


def _keeping(path: Path, journal: Journal) -> None:
    _saved("first", "second", "other")(path, journal)
    with _open(path, journal) as store:
        store.config.undo_by_hand_s = _DAY_S


def _keeping_with_a_tag(path: Path, journal: Journal) -> None:
    """A store that keeps what is dropped; the first of its three checkpoints has a tag."""
    _with_a_tag(path, journal)
    with _open(path, journal) as store:
        store.config.undo_by_hand_s = _DAY_S


def _with_a_tag(path: Path, journal: Journal) -> None:
    _saved("first", "second", "other")(path, journal)
    with _open(path, journal) as store:
        journal.begin(("tag", "kept"), f"{RUN}@1")
        store.tag("kept", f"{RUN}@1")
        journal.done(("tag", "kept"), f"{RUN}@1")


def _pruning(store: Store, journal: Journal) -> None:
    """Drop all but the newest by a rule, and so the one without a tag."""
    journal.begin((RUN, 2), None)
    if not _is_gone(checkpoint_dir(unseen(store.path), RUN, 2)):  # an attempt may have failed after that
        for skipped in store.prune(RetentionPolicy(keep_last=1)).skipped:
            raise InUse(skipped.reason)
    journal.done((RUN, 2), None)


def inspect_steps(path: Path, done: bool) -> list[str]:
    """A gc that waits for nothing leaves one checkpoint of each step, in one form: nothing protects the others."""
    with Store.open(path) as store:
        store.gc(now=True)
    found = {step: checkpoint_dirs(path, RUN, step) for step in step_names(path, RUN)}
    return [f"gc left {[place.name for place in places]}" for places in found.values() if len(places) > 1]


def _replacing(store: Store, journal: Journal) -> None:
    # As a process that resumed: only what is continued is replaced.
    save(store, journal, 1, "second", if_exists="replace", parent=f"{RUN}@1")


def _keeping_what_is_replaced(path: Path, journal: Journal) -> None:
    _saved("first", "other")(path, journal)
    with _open(path, journal) as store:
        store.config.undo_by_rule_s = _DAY_S


def _with_a_replaced_one(path: Path, journal: Journal) -> None:
    """A store in which a replaced checkpoint waits to be brought back."""
    _keeping_what_is_replaced(path, journal)
    with _open(path, journal) as store:
        _replacing(store, journal)


def _with_a_superseded_one(path: Path, journal: Journal) -> None:
    """A store in which a save that replaced died before it dropped the older checkpoint."""
    _saved("first", "other")(path, journal)
    saving.drop_older = lambda *_, **__: []  # type: ignore[attr-defined]  # this process does nothing else
    with _open(path, journal) as store:
        _replacing(store, journal)


def _bringing_the_replaced_one_back(store: Store, journal: Journal) -> None:
    if waiting := store.undoable():  # else an attempt failed after that
        store.undo(waiting[0].id)


def _settle_replacement(path: Path, done: bool) -> list[str]:
    """What was replaced is in the store or can be brought back, bit by bit, until it is purged."""
    with Store.open(path) as store:
        older = _older_of_step_1(store)
        if older is None:
            waiting = [one for one in store.undoable() if not one.problem and (one.run, one.step) == (RUN, 1)]
            older = store.undo(waiting[0].id) if waiting else None
        if older is None:
            return [f"what was replaced at {RUN}@1 is lost"]
        wrong = [] if fingerprint(store.load(older)) == expected("first") else ["something else was replaced"]
        store.gc()
        if _older_of_step_1(store) is None:
            wrong.append("gc dropped what was brought back a moment ago")
        store.gc(now=True)  # an attempt with an unknown outcome may have been replaced as well, and waits
        return wrong


def _older_of_step_1(store: Store) -> CheckpointInfo | None:
    of_step = [info for info in store.checkpoints(RUN, superseded=True) if info.step == 1]
    return next((info for info in of_step if fingerprint(store.load(info)) == expected("first")), None)


def _settle_return(path: Path, done: bool) -> list[str]:
    wrong = []
    with Store.open(path) as store:
        if done and (_older_of_step_1(store) is None or store.undoable()):
            wrong.append("it was acknowledged, and what was replaced is not back")
    return [*wrong, *_settle_replacement(path, done)]


def _beside_damage(path: Path, journal: Journal) -> None:
    """A store whose step 1 lacks a blob."""
    _saved("first", "other")(path, journal)
    journal.begin((RUN, 1), None)
    journal.done((RUN, 1), None)
    largest = max(blobs_dir(path, RUN, 1).iterdir(), key=lambda blob: blob.stat().st_size)
    for name in path.rglob(largest.name):
        name.unlink()
    # By the act, or by `_settle_damage`; an act that fails before it begins must not take this back.
    journal.begin((RUN, 1), "first")
    journal.failed(unknown=True)


def _settle_damage(path: Path, done: bool) -> list[str]:
    """The next save publishes what one that died has not, and gc drops the damaged checkpoint that it superseded."""
    with Store.open(path) as store:
        if not done:
            store.save(state("first"), run=RUN, step=1)
        store.gc(now=True)
        return [f"{found.name}: {found.what}" for found in store.verify().damage]


def _draft(path: Path, journal: Journal) -> None:
    """A store of a draft: a checkpoint with a tag, and one that a dead process was replacing."""
    _with_a_tag(path, journal)
    make_draft(path)
    (path / "checkpoints" / RUN / "2").rename(path / "staging" / f"{RUN}@2.0123456789ab.old")
    settings = (path / "store.json").read_bytes()
    (path / "store.json").unlink()
    files.create_file(path / "store.json", settings, mode=0o444)
    for folder in (path / "checkpoints" / RUN, path / "staging", path / "refs", path):
        files.sync_directory(folder)


def _inspect_conversion(path: Path, done: bool) -> list[str]:
    wrong = [f"{name} still has the name of a draft" for name in draft_names(path)]
    if not is_converted(path):
        wrong.append("store.json does not say that checkpoints are named after their ids")
    text = os.readlink(path / "refs" / "kept")
    return wrong if text.endswith(checkpoint_dir(path, RUN, 1).name) else [*wrong, f"the tag says {text}"]


def _budgeted(path: Path, journal: Journal) -> None:
    """A store that is as large as its budget allows; of its three checkpoints one may go."""
    _with_a_tag(path, journal)
    with _open(path, journal) as store:
        store.config.budget = Budget(_blob_bytes(path))


def _blob_bytes(path: Path) -> int:
    return sum(blob.stat().st_size for blob in path.glob("blobs/*/*"))


def _saving_within_a_budget(store: Store, journal: Journal) -> None:
    journal.begin((RUN, 2), None)
    journal.begin((RUN, 4), "small-0")
    info = store.save(state("small-0"), step=4, run=RUN)
    journal.done((RUN, 4), "small-0")
    if info.warnings:  # what had to go may be there yet, or come back after a power cut: nothing is said to be gone
        return
    try:
        os.listdir(unseen(store.path) / "checkpoints" / RUN)
    except OSError:  # the disk died with the event, which comes last and is allowed to be lost: nothing can be seen
        return
    if not _is_gone(checkpoint_dir(unseen(store.path), RUN, 2)):
        raise Unkept("the save was acknowledged without a warning, and the store is above its budget")
    journal.done((RUN, 2), None)


def _settle_budget(path: Path, done: bool) -> list[str]:
    """The rules of the store bring it below its budget, and only what may go went."""
    with Store.open(path) as store:
        store.prune()
        used, most = _blob_bytes(path), store.config.budget
        store.config.budget = None  # who looks at the store saves more
        there = {info.step for info in store.checkpoints()}
        wrong = [] if most is not None and used <= most.most else [f"{used} bytes are used, and the budget is {most}"]
        return (
            wrong if there >= {1, 3} else [*wrong, f"a protected one or the newest is gone: {sorted(there)} are there"]
        )


def _bringing_back(store: Store, journal: Journal) -> None:
    journal.begin((RUN, 2), "second")
    if _is_there(checkpoint_dir(unseen(store.path), RUN, 2)):  # by an attempt that failed after that
        return
    store.undo(f"{RUN}@2")
    journal.done((RUN, 2), "second")


def _purging(store: Store, journal: Journal) -> None:
    report = store.gc(now=True)
    left = {one.ref for one in store.undoable()} - {one.ref for one in report.waiting}
    if left:  # where the settings cannot be read other hosts may be there: then it waits for the grace, and is named
        raise Unkept(f"purged, and {left} can be brought back")


def _settle_undo(is_kept: bool) -> Callable[[Path, bool], list[str]]:
    """What was deleted is in its place or comes back bit by bit, and nothing of it is left after the next purge.

    `is_kept`: the act purges nothing, so it is in one of the two.
    """

    def settle(path: Path, done: bool) -> list[str]:
        wrong = []
        with Store.open(path) as store:
            is_there = any(info.key.run_step == (RUN, 2) for info in store.checkpoints())
            waiting = [one.ref for one in store.undoable() if not one.problem]
            if is_there == bool(waiting) and (is_kept or is_there):
                wrong.append(f"{RUN}@2 is {'in two places' if is_there else 'lost'}: {waiting} can be brought back")
            if waiting:
                if fingerprint(store.load(store.undo(f"{RUN}@2"))) != expected("second"):
                    wrong.append("something else was brought back")
                store.delete(f"{RUN}@2")
            store.config.undo_by_hand_s = 0
            store.gc(now=True)
            wrong += [f"purged, and {one.ref} can be brought back" for one in store.undoable()]
        return wrong

    return settle


_RENAMED = "renamed"


def _renaming(store: Store, journal: Journal) -> None:
    for step, name in enumerate(("first", "second"), 1):
        journal.begin((RUN, step), None)
        journal.begin((_RENAMED, step), name)
    if not _is_gone(checkpoint_dir(unseen(store.path), RUN, 2)):  # an attempt may have failed after that
        store.rename_run(RUN, _RENAMED)
    for step, name in enumerate(("first", "second"), 1):
        journal.done((RUN, step), None)
        journal.done((_RENAMED, step), name)


def _settle_rename(path: Path, done: bool) -> list[str]:
    """Each checkpoint is whole under one name at least, and another try ends it."""
    with Store.open(path) as store:
        found = {(info.run, info.step): fingerprint(store.load(info)) for info in store.checkpoints()}
        wrong = [
            f"step {step} is lost"
            for step, name in enumerate(("first", "second"), 1)
            if expected(name) not in (found.get((RUN, step)), found.get((_RENAMED, step)))
        ]
        if {run for run, _ in found} == {RUN, _RENAMED}:  # else it was not begun, or is done
            store.rename_run(RUN, _RENAMED)
        return wrong


def _collecting(store: Store, journal: Journal) -> None:
    store.gc()


def _compacting(store: Store, journal: Journal) -> None:
    store.compact(keep_newest=1)


def _collecting_beside_a_reader(store: Store, journal: Journal) -> None:
    unused: list[Path] = []
    with suppress(OSError):
        used = {path.name for path in unseen(store.path).glob("checkpoints/*/*/blobs/*")}
        unused = sorted(path for path in unseen(store.path).glob("blobs/*/*") if path.name not in used)
    with suppress(OSError), ExitStack() as closing:  # these faults are not those of the store
        held = os.open(unused[0], os.O_RDONLY) if unused else None
        if held is not None:
            closing.callback(os.close, held)
        store.gc()
        if held is not None and os.fstat(held).st_nlink == 0:
            raise RuntimeError("gc freed what was open")
        return
    store.gc()


def _with_files(path: Path, journal: Journal) -> None:
    """A store with a commit, and beside it the files of another one, and the place for checkouts."""
    with _init(path, journal) as store:
        write_files("files-1", path.parent / "files-1")
        write_files("files-2", path.parent / "files-2")
        (path.parent / "place").mkdir()
        _committing(1, "files-1")(store, journal)


def _committing(step: int, name: str) -> Callable[[Store, Journal], None]:
    def act(store: Store, journal: Journal) -> None:
        journal.begin((RUN, step), name)
        store.commit(store.path.parent / name, step=step, run=RUN)
        journal.done((RUN, step), name)

    return act


def _prepared_export(path: Path, journal: Journal) -> None:
    (path.parent / "place").mkdir()
    _saved("first")(path, journal)


def _place(store: Path) -> Path:
    return store.parent / "place"


def _writing(write: str) -> Callable[[Store, Journal], None]:
    """Check out, or export, step 1; an attempt that failed after its rename left a whole tree."""

    def act(store: Store, journal: Journal) -> None:
        out = _place(store.path) / "out"
        if out.exists():
            shutil.rmtree(out)
        getattr(store, write)(f"{RUN}@1", out)

    return act


def _to_reindex(path: Path, journal: Journal) -> None:
    """A store with as many old catalogs as are kept, and a blob that has lost its canonical name."""
    _saved("first", "second")(path, journal)
    with _open(path, journal) as store:
        for _ in range(3):
            store.reindex()
    _used_blobs(path)[0].unlink()


def _copied(path: Path, journal: Journal) -> None:
    """A store that was copied with times and without hardlinks; one blob has lost its canonical name."""
    _saved("first", "second")(path, journal)
    for file in sorted(path.glob("checkpoints/*/*/blobs/*")):
        status, data, copy = file.stat(), file.read_bytes(), path.parent / "copy"
        with copy.open("xb", buffering=0) as out:
            out.write(data)
            os.fchmod(out.fileno(), status.st_mode)
            os.utime(out.fileno(), ns=(status.st_mtime_ns, status.st_mtime_ns))
            os.fsync(out.fileno())
        os.replace(copy, file)
    _used_blobs(path)[0].unlink()


def _used_blobs(path: Path) -> list[Path]:
    used = {file.name for file in path.glob("checkpoints/*/*/blobs/*")}
    return sorted(file for file in path.glob("blobs/*/*") if file.name in used)


def _open_unrecovered(path: Path, journal: Journal) -> Store:
    return Store.open(path, recover=False)


def _open_to_reindex(path: Path, journal: Journal) -> Store:
    reconcile._BATCH_MOST = 1  # a transaction for each checkpoint; this process does nothing else
    return _open_unrecovered(path, journal)


def _reindexing(store: Store, journal: Journal) -> None:
    store.reindex()


def _relinking(store: Store, journal: Journal) -> None:
    report = store.reindex(relink=True)
    if report.relinked is not None and report.relinked.damaged:  # a blob that could not be read: it says so
        raise DamagedBlob(f"{report.relinked.damaged} could not be relinked")


def _inspect_reindex(store: Path, done: bool) -> list[str]:
    wrong = []
    used = {name.name for name in store.glob("checkpoints/*/*/blobs/*")}
    lost = used - {name.name for name in _used_blobs(store)}
    if done and lost:
        wrong.append(f"it was acknowledged, and these have no canonical name: {sorted(lost)}")
    Store.open(store).reindex()
    old = sorted(path.name for path in store.glob("catalog.db.old-*") if path.name.rpartition("-")[2].isdigit())
    if len(old) > 3:
        wrong.append(f"old catalogs are not bounded: {old}")
    return wrong


def _inspect_relink(store: Path, done: bool) -> list[str]:
    inodes: dict[str, set[int]] = {}
    for name in (*store.glob("blobs/*/*"), *store.glob("checkpoints/*/*/blobs/*")):
        inodes.setdefault(name.name, set()).add(name.stat().st_ino)
    apart = sorted(digest for digest, found in inodes.items() if len(found) > 1)
    wrong = _inspect_reindex(store, done)
    return [*wrong, f"it was acknowledged, and these are several files: {apart}"] if done and apart else wrong


def _open_as_next(path: Path, journal: Journal) -> Store:
    become_next()
    return Store.open(path)


def _settle_as_next(path: Path, done: bool) -> list[str]:
    become_next()  # a ckstore of today refuses what the next one migrated
    return []


def _inspect_migration(path: Path, done: bool) -> list[str]:
    return wrong_in_catalog(path / "catalog.db")


def _inspect_checkout(store: Path, done: bool) -> list[str]:
    return _inspect(store, done, "checkout", lambda found: fingerprint(found) == expected("files-1"))


def _inspect_export(store: Path, done: bool) -> list[str]:
    return _inspect(store, done, "export_safetensors", lambda found: set(found) == {"model.safetensors", "state.json"})


def _inspect(store: Path, done: bool, write: str, is_whole: Callable[[dict[str, bytes]], bool]) -> list[str]:
    """Return what is wrong at the destination: it is all there or not at all, and the next one works and cleans up."""
    out, wrong = _place(store) / "out", []
    before = read_files(out) if out.exists() else None
    if before is not None:
        if not is_whole(before):
            wrong.append(f"the destination is there, not as it should be: {sorted(before)}")
        shutil.rmtree(out)
    elif done:
        wrong.append("it was acknowledged, and there is no destination")
    getattr(Store.open(store), write)(f"{RUN}@1", out)
    again = read_files(out)
    if not is_whole(again) or (before is not None and again != before):
        wrong.append(f"the next one wrote something else: {sorted(again)}")
    if os.listdir(_place(store)) != ["out"]:
        wrong.append(f"the next one left {os.listdir(_place(store))}")
    return wrong


def _damaged(path: Path, journal: Journal) -> None:
    """A store with every kind of damage, and beside it copies of its checkpoints with which it can be repaired."""
    with _init(path, journal) as store:
        for step, name in enumerate(("first", "second", "small-0"), 1):
            save(store, journal, step, name)
        for step in (1, 2, 3):
            shutil.copytree(checkpoint_dir(path, RUN, step), _backup(path) / str(step))
        chunks = sorted(blobs_dir(path, RUN, 1).iterdir(), key=lambda blob: blob.stat().st_size)
        flip(chunks[-1], keep_time=True)  # another checkpoint may share it
        flip(chunks[0])
        (pack,) = blobs_dir(path, RUN, 3).iterdir()
        os.truncate(pack, 1000)
        largest = max(blobs_dir(path, RUN, 2).iterdir(), key=lambda blob: blob.stat().st_size)
        largest.unlink()
        for blob in (chunks[-2], chunks[-1]):  # lost canonical names: of a good and of a damaged blob
            (path / "blobs" / blob.name.partition("-")[2][:2] / blob.name).unlink(missing_ok=True)


def _backup(path: Path) -> Path:
    return path.parent / "backup"


def _repairing(store: Store, journal: Journal) -> None:
    report = store.verify(repair_from=_backup(store.path))
    if not report.ok:  # it says so, and an error of the system among the reasons; here that is what a fault ends in
        raise DamagedBlob("; ".join(lost.why for lost in report.unrepaired) or "something is damaged")


def _settle_repair(path: Path, done: bool) -> list[str]:
    """What was not repaired by a process that died is repaired by the next; what was done needs no more."""
    with Store.open(path) as store:
        report = store.verify() if done else store.verify(repair_from=_backup(path))
        wrong = [f"{found.name}: {found.what}" for found in report.damage]
        wrong += [found.what for found in report.findings if found.harmful and not found.mended]
        return [f"{'repaired' if done else 'repaired again'}, and there is still {what}" for what in wrong]


def _damaged_compacted(path: Path, journal: Journal) -> None:
    """A compacted store with damage of both forms; of each damaged piece there is a copy in the other form only."""
    names = ("first", "small-0", "small-moved")
    with Store.init(path.parent / "other", chunk_bytes=CHUNK_BYTES) as other:
        for step, name in enumerate(names, 1):
            other.save(state(name), step=step, run=RUN)
        other.compact([f"{RUN}@2"], keep_newest=1)
    shutil.copytree(path.parent / "other" / "checkpoints" / RUN, _backup(path))
    shutil.rmtree(path.parent / "other")
    _saved("first", "small-moved", "small-0")(path, journal)
    with Store.open(path) as store:
        store.compact(keep_newest=1)
        store.gc()
    chunks, (pack,) = _encoded_files(path, 1), _encoded_files(path, 2)
    flip(chunks[-1], keep_time=True)
    for file in path.rglob(chunks[0].name):
        file.unlink()
    flip(pack, keep_time=True)
    (plain,) = blobs_dir(path, RUN, 3).iterdir()
    flip(plain, 0)


def _encoded_files(path: Path, step: int) -> list[Path]:
    """Return the encoded files of a checkpoint without those that they are decoded with, the smallest first."""
    folder = checkpoint_dir(path, RUN, step)
    document = json.loads((folder / "manifest.json").read_bytes())["manifest"]
    files = (folder / "blobs" / document["files"][form[2]][0] for form in document["encoded"])
    return sorted(files, key=lambda file: file.stat().st_size)


def _rotten(path: Path, journal: Journal) -> None:
    """Rot in a chunk and in a pack, with size and time kept, in a store whose saves read all of it again."""
    _saved("first", "first")(path, journal)
    with Store.open(path) as store:
        store.config.recheck_share = 1
    blobs = sorted(blobs_dir(path, RUN, 1).iterdir(), key=lambda blob: blob.stat().st_size)
    for blob in (blobs[0], blobs[-1]):
        flip(blob, keep_time=True)


def _settle_rot(path: Path, done: bool) -> list[str]:
    """What a save that died has not healed the next one heals."""
    with Store.open(path) as store:
        if not done:
            store.save(state("first"), run=RUN, step=1)
        return [f"{found.name}: {found.what}" for found in store.verify().damage]


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("init", _no_store, _init, _nothing_more),
        Scenario("first_save", _saved(), _open, _saving(1, "first")),
        Scenario("deduplicated_save", _saved("first"), _open, _saving(2, "second")),
        Scenario("small_tensor_save", _saved("small-0"), _open, _saving(2, "small-1", "small-sparse")),
        Scenario("replace", _saved("first", "other"), _open, _replacing, inspect=inspect_steps),
        Scenario(
            "replace_with_undo",
            _keeping_what_is_replaced,
            _open,
            _replacing,
            settle=_settle_replacement,
            inspect=inspect_steps,
        ),
        Scenario(
            "save_beside_damage",
            _beside_damage,
            _open,
            _saving(1, "first"),
            begins_damaged=True,
            settle=_settle_damage,
            inspect=inspect_steps,
        ),
        Scenario("gc_superseded", _with_a_superseded_one, _open_as_found, _purging, inspect=inspect_steps),
        Scenario(
            "undo_replaced",
            _with_a_replaced_one,
            _open,
            _bringing_the_replaced_one_back,
            settle=_settle_return,
            inspect=inspect_steps,
        ),
        Scenario("convert", _draft, _open, _nothing_more, inspect=_inspect_conversion),
        Scenario("gc", _dropped, _open_as_found, _collecting),
        Scenario("gc_held", _dropped, _open_as_found, _collecting_beside_a_reader),
        Scenario("delete", _saved("first", "second", "other"), _open, _deleting(2), uncertain=True),
        Scenario("delete_with_undo", _keeping, _open, _deleting(2), uncertain=True, settle=_settle_undo(is_kept=True)),
        Scenario("undo", _undoable, _open, _bringing_back, uncertain=True, settle=_settle_undo(is_kept=True)),
        Scenario("purge", _undoable, _open, _purging, settle=_settle_undo(is_kept=False)),
        Scenario(
            "prune_with_undo", _keeping_with_a_tag, _open, _pruning, uncertain=True, settle=_settle_undo(is_kept=True)
        ),
        Scenario("save_with_budget", _budgeted, _open, _saving_within_a_budget, settle=_settle_budget),
        Scenario("rename_run", _saved("first", "second"), _open, _renaming, uncertain=True, settle=_settle_rename),
        Scenario("verify_repair", _damaged, _open, _repairing, begins_damaged=True, settle=_settle_repair),
        Scenario(
            "repair_across_forms",
            _damaged_compacted,
            _open,
            _repairing,
            begins_damaged=True,
            settle=_settle_repair,
        ),
        Scenario("save_over_rot", _rotten, _open, _saving(3, "first"), begins_damaged=True, settle=_settle_rot),
        Scenario("commit", _with_files, _open, _committing(2, "files-2")),
        Scenario("checkout", _with_files, _open, _writing("checkout"), hit=_place, inspect=_inspect_checkout),
        Scenario(
            "export", _prepared_export, _open, _writing("export_safetensors"), hit=_place, inspect=_inspect_export
        ),
        Scenario(
            "migration",
            _saved("first", "small-0"),
            _open_as_next,
            _nothing_more,
            settle=_settle_as_next,
            inspect=_inspect_migration,
        ),
        Scenario("compact", _saved("first", "second", "small-0"), _open, _compacting, inspect=inspect_steps),
        Scenario("reindex", _to_reindex, _open_to_reindex, _reindexing, inspect=_inspect_reindex),
        Scenario("relink", _copied, _open_unrecovered, _relinking, inspect=_inspect_relink),
    )
}


def main() -> None:
    """Prepare and run one scenario in this process."""
    name, path, journal_path = sys.argv[1:]
    scenario, journal = SCENARIOS[name], Journal(Path(journal_path))
    if not Path(path).exists():
        scenario.prepare(Path(path), journal)
    with scenario.open(Path(path), journal) as store:
        scenario.act(store, journal)


if __name__ == "__main__":
    main()
