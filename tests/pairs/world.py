"""A small store, and an oracle that knows what each act acknowledged, removed, and had the right to remove.

Two handles are open from the beginning: the second act meets what the first one did behind an open handle, as it would
meet the act of another process.
"""

from __future__ import annotations

import random
import shutil
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ckstore import CheckpointInfo, OpenCheckpoint, Store
from tests.support.stores import check_store

DAY_S = 86_400.0
REMOTE = "far"
_BASE = np.random.default_rng(1).integers(0, 2**31, 12_000, dtype=np.int32)


def state(number: int) -> dict[str, Any]:
    """Return a state that shares a frozen tensor with all others, and has one that differs a little from each."""
    weights = _BASE.copy()
    weights[number * 10 : number * 10 + 10] = number
    return {"frozen": np.full(9_000, 7, np.int16), "weights": weights.view(np.float32), "number": number}


def files(folder: Path, number: int) -> Path:
    """Write a directory of files with the weights of a state and a note."""
    folder.mkdir(parents=True)
    (folder / "weights.bin").write_bytes(state(number)["weights"].tobytes())
    (folder / "note.txt").write_text(f"{number}\n" * 100)
    return folder


def same(found: Any, number: int) -> bool:
    """Whether a loaded value is the state of that number, bit for bit; also where two ranks saved it."""
    if set(found) == {0, 1}:
        return all(same(found[rank], number) for rank in found)
    wanted = state(number)
    return found.keys() == wanted.keys() and all(_bytes(found[name]) == _bytes(wanted[name]) for name in wanted)


def _bytes(value: Any) -> bytes:
    return np.asarray(value).tobytes()


def same_files(folder: Path, number: int) -> bool:
    """Whether a directory holds the files of that number."""
    data = state(number)["weights"].tobytes()
    return (folder / "weights.bin").read_bytes() == data and (folder / "note.txt").read_text() == f"{number}\n" * 100


@dataclass
class Saved:
    """A checkpoint that was acknowledged.

    Attributes:
        order: Its place in the order of acknowledgements.
        is_files: It was committed, not saved.
        gone: The act that removed it, with the right to do so; "": none did.
        undo: It was removed so that `undo` brings it back.
        is_local: Its bytes are in this store.
    """

    info: CheckpointInfo
    number: int
    order: int
    is_files: bool = False
    gone: str = ""
    undo: bool = False
    is_local: bool = True

    @property
    def place(self) -> tuple[str, int]:
        """Its run and step."""
        return self.info.run, self.info.step


@dataclass
class Copy:
    """A backup, and what it must hold: id -> the checkpoint as it was then."""

    path: Path
    holds: dict[str, Saved]


@dataclass
class World:
    """A store and what is known of it.

    Attributes:
        hands: The handles that acts use by turns.
        saved: Id -> what was acknowledged.
        run: The run that acts save to.
        tags, pins: Name -> id of the checkpoint, of those that were made and not removed.
        keep_last: The rule in force after each save; None: there is none.
        over_budget: A budget is in force.
        may_be: Numbers of states whose save was killed: they may be in the store or not.
        at_remote: Ids that the remote was seen to have and no act removed there.
        removed: Name of a remote -> ids that another store removed there; a mirror does not bring them back, a push by
            hand does.
        remote: Address of the remote; in memory it lives as long as the process.
        remote_is_judged: What it has is compared at the end.
        at_end: What else must hold at the end, such as that a reader still reads.
        shared: Several hosts use the store.
        meets_quota: The next act meets a quota.
        keep_remote: How many checkpoints of a run the rule of the mirror keeps; None: there is none.
        hurt: Ids that were only on remotes when a fault was injected there, and may be lost.
        unlisted: Names of remotes with a fault that the mirror process has not listed since.
        unread: Names of remotes with damage that was not read back and mended since.
        days: How many days later the mirror process is.
        work: A mirror process that lives on.
        before: What was known when the backup was made that is put back later.
        draw: What decides where an act has a choice.
        notes: What the faults did.
    """

    folder: Path
    hands: list[Store] = field(default_factory=list)
    saved: dict[str, Saved] = field(default_factory=dict)
    run: str = "main"
    tags: dict[str, str] = field(default_factory=dict)
    pins: set[str] = field(default_factory=set)
    keep_last: int | None = None
    over_budget: bool = False
    may_be: set[int] = field(default_factory=set)
    at_remote: set[str] = field(default_factory=set)
    removed: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    remote: str = ""
    remote_is_judged: bool = False
    at_end: list[Callable[[], None]] = field(default_factory=list)
    readers: list[OpenCheckpoint] = field(default_factory=list)
    shared: bool = False
    meets_quota: bool = False
    keep_remote: int | None = None
    hurt: set[str] = field(default_factory=set)
    unlisted: set[str] = field(default_factory=set)
    unread: set[str] = field(default_factory=set)
    days: float = 0.0
    work: Any = None
    before: dict[str, Any] | None = None
    draw: random.Random = field(default_factory=lambda: random.Random(0))
    notes: list[str] = field(default_factory=list)
    _numbers: int = 0
    _copies: list[Copy] = field(default_factory=list)

    @classmethod
    def of(cls, folder: Path) -> World:
        """Make a store with three checkpoints of one run; what is dropped or replaced can be brought back for a day."""
        # Every other one has a remote in a directory.
        is_directory = zlib.crc32(folder.name.encode()) % 2
        remote = str(folder / "objects") if is_directory else f"memory://{abs(hash(folder))}/run"
        world = cls(folder, remote=remote)
        store = Store.init(world.root, chunk_bytes=2**20)
        store.config.undo_by_hand_s = store.config.undo_by_rule_s = DAY_S
        for _ in range(3):
            world.save(store)
        world.hands = [store, Store.open(world.root)]
        return world

    @property
    def root(self) -> Path:
        """The store."""
        return self.folder / "store"

    def next_number(self) -> int:
        """Return the number of a state that no save had before."""
        self._numbers += 1
        return self._numbers

    def next_step(self) -> int:
        """Return a step that no checkpoint of the run has."""
        return 1 + max((one.info.step for one in self.saved.values()), default=0)

    def save(self, store: Store, **options: Any) -> CheckpointInfo:
        """Save the next state."""
        number = self.next_number()
        info = store.save(state(number), **{"step": self.next_step(), "run": self.run, **options})
        return self.told(info, number)

    def told(self, info: CheckpointInfo, number: int, *, is_files: bool = False) -> CheckpointInfo:
        """Note that a save was acknowledged."""
        assert info.id not in self.saved or not self.saved[info.id].gone, "an id was given again"
        self.saved[info.id] = Saved(info, number, len(self.saved), is_files)
        return info

    def listed(self) -> list[Saved]:
        """Return what is in the store, the oldest first."""
        return sorted((one for one in self.saved.values() if not one.gone), key=lambda one: one.order)

    def current(self, run: str | None = None) -> list[Saved]:
        """Return the newest checkpoint of each step, the oldest first."""
        newest = {one.place: one for one in self.listed() if run in (None, one.info.run)}
        return sorted(newest.values(), key=lambda one: one.order)

    def free(self) -> list[Saved]:
        """Return those that no tag, pin or reader protects, the oldest first."""
        held = {*self.tags.values(), *self.pins, *(reader.info.id for reader in self.readers)}
        return [one for one in self.listed() if one.info.id not in held]

    def oldest(self) -> Saved:
        """Return the oldest of the run; StopIteration if none is left."""
        return next(iter(self.current(self.run)))

    def newest(self) -> Saved:
        """Return the newest of the run; StopIteration if none is left."""
        return next(reversed(self.current(self.run)))

    def beyond(self, keep_last: int) -> set[str]:
        """Return the ids that a rule may drop: those that are not among the newest of their run."""
        kept: set[str] = set()
        for run in {one.info.run for one in self.listed()}:
            kept |= {one.info.id for one in self.current(run)[-keep_last:]}
        return {one.info.id for one in self.free()} - kept

    def settle(self, by: str, may: set[str] = frozenset(), *, undo: bool = True) -> None:  # type: ignore[assignment]
        """Compare the store with what is known; `may` has what the act had a right to remove.

        Raises:
            AssertionError: A checkpoint is gone that the act had no right to remove, or there is one that no act saved.
        """
        there = {info.id: info for info in self.hands[1].checkpoints(superseded=True)}
        ruled = self.beyond(self.keep_last) if self.keep_last is not None else set()
        budgeted = self.beyond(1) if self.over_budget else set()
        for one in self.listed():
            if one.info.id not in there:
                assert one.info.id in {*may, *ruled, *budgeted}, f"{one.info.name} is lost after {by}"
                one.gone, one.undo = by, undo and one.info.id not in budgeted - ruled - may
        for id, info in there.items():
            if id not in self.saved:
                number = int(self.hands[1].load(id)["number"])
                assert number in self.may_be, f"no act saved {info.name}"
                self.told(info, number)
            self.saved[id].gone = ""
            self.saved[id].is_local = not info.elsewhere

    def purged(self) -> None:
        """Note that nothing more can be brought back."""
        for one in self.saved.values():
            one.undo = False

    def reopen(self, **options: Any) -> None:
        """Open both handles again."""
        for store in self.hands:
            store.close()
        self.hands = [
            Store.open(self.root, **{name: value(hand) for name, value in options.items()}) for hand in range(2)
        ]

    def keep_copy(self, path: Path) -> None:
        """Copy the store without its hardlinks, as most backups do, and remember what the copy must hold."""
        copy_of(self.root, path)
        self._copies.append(Copy(path, {id: replace(one) for id, one in self.saved.items() if not one.gone}))

    def check(self) -> None:
        """Look that everything acknowledged and not removed is there bit for bit, and that the store is whole.

        Raises:
            AssertionError: It is not.
        """
        for holds in self.at_end:
            holds()
        for reader in self.readers:
            assert same(reader.load(), self.saved[reader.info.id].number), f"{reader.info.name} read otherwise"
            reader.close()
        self.check_contents()
        for hand in self.hands:
            hand.close()
        self._check_whole()
        for copy in self._copies:
            self._check_copy(copy)

    def check_contents(self) -> None:
        """Look that everything acknowledged and not removed loads, and that what was removed comes back."""
        store = self.hands[0]
        self._check_loads(store, self.listed())
        assert {tag.name: tag.id for tag in store.tags()} == self.tags
        assert {pin.id for pin in store.pins()} == self.pins
        self._check_order(store)
        self._check_undo(store)
        self._check_order(store)
        assert store.verify(quick=True).ok

    def _check_loads(self, store: Store, wanted: list[Saved]) -> None:
        there = {info.id for info in store.checkpoints(superseded=True)}
        assert there == {one.info.id for one in wanted}, "the list is another one"
        for one in wanted:
            self.check_load(store, one)
        places = [one.place for one in wanted]
        for one in self.current():
            if places.count(one.place) > 1:
                assert store.info(f"{one.info.run}@{one.info.step}").id == one.info.id

    def _check_order(self, store: Store) -> None:
        for run in {one.info.run for one in self.listed()}:
            latest = store.latest(run)
            assert latest is not None
            assert latest.id == self.current(run)[-1].info.id, f"{latest.name} is the latest"

    def check_load(self, store: Store, one: Saved) -> None:
        """Look that a checkpoint of a store is what was saved."""
        if one.is_files:
            with fresh(self.folder / "out") as out:
                store.checkout(one.info, out)
                assert same_files(out, one.number), f"{one.info.name} was checked out otherwise"
        else:
            assert same(store.load(one.info), one.number), f"{one.info.name} loads otherwise"

    def _check_undo(self, store: Store) -> None:
        offered = {one.id: one for one in store.undoable() if not one.problem}
        promised = {one.info.id for one in self.saved.values() if one.gone and one.undo}
        assert promised <= offered.keys(), "what was removed cannot be brought back"
        for id, waiting in offered.items():
            if id in self.saved:
                assert store.undo(self.saved[id].info).id == id, waiting.ref
                self.check_load(store, self.saved[id])
                self.saved[id].gone = ""

    def _check_whole(self) -> None:
        if self.shared:
            with Store.open(self.root) as store:
                store.config.shared = None
        with Store.open(self.root) as store:
            if elsewhere := [info.id for info in store.checkpoints(superseded=True) if info.elsewhere]:
                store.pull(elsewhere, REMOTE)
            store.gc(now=True)
        # It compares every byte of every blob with its name, and the blobs of each checkpoint with its manifest.
        check_store(self.root)

    def _check_copy(self, copy: Copy) -> None:
        with Store.open(copy.path) as store:
            store.reindex(relink=True)
            for one in copy.holds.values():
                if one.is_local:
                    self.check_load(store, one)


def copy_of(source: Path, target: Path) -> None:
    """Copy a store without its hardlinks."""
    shutil.copytree(source, target, symlinks=True)


@contextmanager
def fresh(path: Path) -> Iterator[Path]:
    """Give a path at which nothing is, and remove what was put there."""
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
