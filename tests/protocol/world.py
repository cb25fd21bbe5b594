"""The small world of the model: one blob D, an old checkpoint K, those of two savers A and B, and names for all.

Names   ``C`` blobs/ab/D · ``T`` the same in trash/ · ``Xb`` D in the directory of X · ``Xt`` a temporary name there
        ``Xm`` its manifest · ``Xl`` where that directory is · ``run`` the directory of the run
Places  ``A``, ``B`` staging/ of that saver · ``P`` published · ``X`` trash/ · ``-`` nowhere
Inodes  ``o`` the old copy of D, ``a`` and ``b`` those that A and B write; each is ``-`` not there, ``v`` written,
        ``d`` durable, ``s`` short

After a power cut names are as they were at some moment since the last fsync. *Ordered*: all at one moment, and any
fsync makes all durable (the journals of ext4 and XFS). *Weak*: each name for itself, and only the fsync of its own
directory counts; a rename happens as a whole or not.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Literal, NamedTuple

CHECKPOINTS = "KAB"
SAVERS = "AB"
ACTORS = "ABRGOU"
"""Savers A and B, retention R, the collector G (gc, or a save that gives back), an opener O, U who undoes a drop."""

CELLS = ("C", "T", "Kb", "Ab", "Bb", "At", "Bt", "Km", "Am", "Bm", "Kl", "Al", "Bl", "run")
_INDEX = {cell: i for i, cell in enumerate(CELLS)}
_BLOB_CELLS = ("C", "T", "Kb", "Ab", "Bb", "At", "Bt")
_INSIDE = {x: tuple(c for c in (f"{x}b", f"{x}t", f"{x}m") if c in _INDEX) for x in CHECKPOINTS}
INODES = {"K": "o", "A": "a", "B": "b"}
Mode = Literal["ordered", "weak"]
Names = tuple[str, ...]
History = tuple[str, ...]


class Left(NamedTuple):
    """How often something may still happen."""

    kills: int = 0
    cuts: int = 0
    losses: int = 0
    opens: int = 0
    gcs: int = 0
    drops: int = 0
    failures: int = 0
    undos: int = 0


class World(NamedTuple):
    """One state.

    Attributes:
        names: The value of each of `CELLS` now.
        earlier: Ordered: the other states of all names that a power cut may bring back. Weak: for each name the
            values since it was durable. Empty when no power cut can come any more.
        data: The state of the inodes o, a, b.
        doing: What each of `ACTORS` does next.
        rows: Checkpoints with rows in the catalog.
        listed: Whether the catalog knows D.
        counted: Uses of D as a catalog counts that does not reconcile.
        lost, unclean: The catalog is gone; the machine was cut off since the blobs were listed.
        acknowledged, dropped: Checkpoints whose saver, or whose remover, was told that it is done.
        told_gone: Checkpoints of which retention said that they are gone.
        lied: Whether bytes were reported as freed that a process still has.
        kept: Pairs: the first was dropped for the second.
        keeping: The checkpoint that retention relies on now.
        reader: ``""``, ``open K`` or ``map o``.
        has_read: A reader was there.
        to_empty: What the collector found in trash/ and has not been through.
        waits: What was dropped and can be brought back, until its time is over.
        asked: What was asked back since it was dropped.
        left: What may still happen.
    """

    names: Names
    earlier: frozenset[Names] | tuple[History, ...]
    data: str
    doing: tuple[str, ...]
    left: Left
    rows: frozenset[str] = frozenset()
    listed: bool = False
    counted: int = 0
    lost: bool = False
    unclean: bool = False
    acknowledged: frozenset[str] = frozenset()
    dropped: frozenset[str] = frozenset()
    told_gone: frozenset[str] = frozenset()
    lied: bool = False
    kept: frozenset[tuple[str, str]] = frozenset()
    keeping: str = ""
    reader: str = ""
    has_read: bool = False
    to_empty: frozenset[str] = frozenset()
    waits: frozenset[str] = frozenset()
    asked: frozenset[str] = frozenset()

    def at(self, cell: str) -> str:
        """Return the value of a name."""
        return self.names[_INDEX[cell]]

    def where(self, x: str) -> str:
        """Return where the directory of `x` is."""
        return self.names[_INDEX[f"{x}l"]]

    def does(self, actor: str) -> str:
        """Return what an actor does next."""
        return self.doing[ACTORS.index(actor)]

    def then(self, actor: str, what: str) -> World:
        """Return this world, in which the actor does something else next."""
        at = ACTORS.index(actor)
        return self._replace(doing=(*self.doing[:at], what, *self.doing[at + 1 :]))

    def put(self, **names: str) -> World:
        """Return this world with other names; a power cut may bring back the present ones."""
        changed = list(self.names)
        for cell, value in names.items():
            changed[_INDEX[cell]] = value
        now = tuple(changed)
        if now == self.names or not self.left.cuts:
            return self._replace(names=now)
        if isinstance(self.earlier, frozenset):
            return self._replace(names=now, earlier=self.earlier | {self.names})
        histories = list(self.earlier)
        for cell, value in names.items():
            history = histories[_INDEX[cell]]
            if history[-1] != value:
                histories[_INDEX[cell]] = (*history, value)
        return self._replace(names=now, earlier=tuple(histories))

    def sync(self, *directories: str) -> World:
        """Fsync directories: ``trash``, ``staging``, ``run``, ``checkpoints``, or all inside one: ``A``."""
        if not self.left.cuts:
            return self
        if isinstance(self.earlier, frozenset):
            return self._replace(earlier=frozenset())
        histories = list(self.earlier)
        for directory in directories:
            for i, cell in enumerate(CELLS):
                histories[i] = _after_sync(histories[i], cell, directory)
        return self._replace(earlier=tuple(histories))

    def links(self, inode: str) -> int:
        """Return the link count of an inode."""
        return sum(self.names[_INDEX[cell]] == inode for cell in _BLOB_CELLS)

    def state_of(self, inode: str) -> str:
        """Return the state of the bytes of an inode."""
        return self.data["oab".index(inode)]

    def set_data(self, inode: str, state: str) -> World:
        """Return this world with other bytes in an inode."""
        at = "oab".index(inode)
        return self._replace(data=self.data[:at] + state + self.data[at + 1 :])

    def emptied(self, x: str) -> World:
        """Return this world without what is in the directory of `x`."""
        return self.put(**dict.fromkeys(_INSIDE[x], ""))

    def spend(self, what: str) -> World:
        """Return this world, in which `what` may happen one time less."""
        left = self.left._replace(**{what: getattr(self.left, what) - 1})
        return self._replace(left=left, earlier=self.earlier if left.cuts else _nothing(self.earlier))

    def __str__(self) -> str:
        named = [f"{cell}={value}" for cell, value in zip(CELLS, self.names, strict=True) if value not in ("", "-")]
        return " ".join([*named, f"data={self.data}"])


def _nothing(earlier: frozenset[Names] | tuple[History, ...]) -> frozenset[Names] | tuple[History, ...]:
    return frozenset() if isinstance(earlier, frozenset) else ()


def _after_sync(history: History, cell: str, directory: str) -> History:
    if len(history) == 1:
        return history
    if cell.endswith("l"):
        places = {"trash": "X", "staging": SAVERS, "run": "P"}.get(directory, "")
        for i in range(len(history) - 1, 0, -1):  # the last rename into or out of that directory, and all before
            if history[i] in places or history[i - 1] in places:
                return history[i:]
        return history
    own = {"C": "blobs", "T": "trash", "run": "checkpoints"}.get(cell, cell[0])
    return history[-1:] if own == directory else history


def start_world(mode: Mode, names: dict[str, str], data: str, left: Left) -> World:
    """Return a world in which no actor has begun anything; all names are durable."""
    filled = {cell: "-" if cell.endswith("l") else "" for cell in CELLS} | names
    now = tuple(filled[cell] for cell in CELLS)
    earlier: frozenset[Names] | tuple[History, ...]
    earlier = frozenset() if mode == "ordered" else tuple((value,) for value in now) if left.cuts else ()
    return World(names=now, earlier=earlier, data=data, doing=("new", "new", *["idle"] * 4), left=left)


def after_power_cut(world: World) -> Iterator[World]:
    """Yield every world that the machine may find when it starts again."""
    doing = tuple("dead" if what not in ("new", "end", "failed", "idle") else what for what in world.doing[:2])
    base = world.spend("cuts")._replace(
        doing=(*doing, *["idle"] * 4),
        reader="",
        keeping="",
        to_empty=frozenset(),
    )
    base = base._replace(unclean=True)
    found = {_without_lost_directories(names) for names in _choices(world)}
    for names in sorted(found):
        kept = frozenset(pair for pair in world.kept if names[_INDEX[f"{pair[0]}l"]] != "P")
        written = [i for i, state in enumerate(world.data) if state == "v"]
        for picked in itertools.product("ds", repeat=len(written)):
            data = list(world.data)
            for i, state in zip(written, picked, strict=True):
                data[i] = state
            now = base._replace(names=names, kept=kept, data="".join(data))
            if base.left.cuts:
                weak = tuple((value,) for value in names)
                now = now._replace(earlier=frozenset() if isinstance(world.earlier, frozenset) else weak)
            yield now


def _choices(world: World) -> Iterator[Names]:
    if isinstance(world.earlier, frozenset):
        yield world.names
        yield from world.earlier
        return
    yield from itertools.product(*map(dict.fromkeys, world.earlier))


def _without_lost_directories(names: Names) -> Names:
    """A directory whose own name is lost takes the names in it along; so does the directory of a run."""
    found = list(names)
    for x in CHECKPOINTS:
        at = _INDEX[f"{x}l"]
        if found[at] == "P" and not found[_INDEX["run"]]:
            found[at] = "-"
        if found[at] == "-":
            for cell in _INSIDE[x]:
                found[_INDEX[cell]] = ""
    return tuple(found)
