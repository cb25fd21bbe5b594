"""Compaction beside a save that replaces, a save that shares a blob, retention, gc, a reader, and a note.

K is a checkpoint, N a newer one. The compactor C makes a directory E, which holds the same as K: the encoded form of
its blob, and a link to the plain blob of N, with which that is decoded. Saver Q puts another checkpoint at the place of
K; saver S saves K's bytes again, and claims the plain blob. Retention R drops N, or what is at the place of K. A reader
and a user who writes a note open what is at the place, and lock it for use.

Names reach the disk in order; the bytes of the encoded form do when they are synced. A power cut goes back to any
moment since the last sync.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from tests.protocol.search import Explored, Step, explore

_OPEN = "ops.compact.directory.Bases.open"
_REST = "ops.compact.compact._Compaction._rest"
_LET_GO = "fs.locks.DirectoryLock.let_go"
_STAGE = "ops.compact.encode.stage"
_GATHER = "ops.compact.directory.gather"
_SEAL = "ops.compact.directory.seal"
_SWAP = "objects.swap.swap"
_CHECK = "objects.swap._check"
_DISCARD = "ops.free.reclaim.discard"
_TRASH = "objects.trash.move_to_trash"
_DROP = "ops.free.drop.drop"
_SWEEP = "objects.trash.sweep_staging"
_APART = "objects.collector.Collector._take_apart"
_CONDEMN = "objects.collector.Collector.condemn"
_REPLACE = "objects.publish._replace"
_CLAIM = "objects.staging.Staging.claim"
_AT = "objects.checkpoints.CheckpointDirectory.at"
_NOTE = "objects.documents.annotations.add_annotations"
_HELD = {"K": "k", "E": "en", "N": "n", "S": "k", "Q": "q"}
"""Directory -> what it needs: blobs by their letters."""
_DIRECTORIES = "".join(_HELD)
_OVER = ("end", "failed", "dead")


@dataclass(frozen=True, slots=True)
class CompactRules:
    """Which rules the modelled code keeps."""

    linked: bool = True  # directory.gather: what a blob is decoded with is linked into the directory
    lacking: bool = True  # directory.gather: a file that is not there is refused
    synced: bool = True  # encode.stage: the bytes are durable before any document names them
    same: bool = True  # swap._check: what is at the place is the checkpoint that was encoded
    alone: bool = True  # swap.swap: no other process uses the old directory
    notes: bool = True  # swap.take_annotations: what was noted goes along
    drop_locks: bool = True  # ops.free.drop.drop: what a process uses is not dropped
    empty_locks: bool = True  # Collector._take_apart: nor taken apart
    reads: bool = True  # whether there is a reader

    def without(self, *names: str) -> CompactRules:
        """Return the same rules but these."""
        return replace(self, **dict.fromkeys(names, False))


class Names(NamedTuple):
    """What is on the disk.

    Attributes:
        where: For K, E, N, S and Q: published ``P``, in staging ``S``, in trash ``X``, nowhere ``-``.
        inside: The names in each directory.
        canonical: The blobs that have their canonical name.
        noted: The directories with the note.
    """

    where: str = "P-PSS"
    inside: tuple[str, ...] = ("k", "", "n", "", "q")
    canonical: str = "kn"
    noted: str = ""

    def of(self, x: str) -> str:
        """Return where a directory is."""
        return self.where[_DIRECTORIES.index(x)]

    def has(self, x: str) -> str:
        """Return the names in it."""
        return self.inside[_DIRECTORIES.index(x)]

    def move(self, x: str, place: str) -> Names:
        """Return the names after a rename."""
        i = _DIRECTORIES.index(x)
        return self._replace(where=self.where[:i] + place + self.where[i + 1 :])

    def fill(self, x: str, names: str) -> Names:
        """Return them with other names in a directory."""
        i = _DIRECTORIES.index(x)
        return self._replace(inside=(*self.inside[:i], names, *self.inside[i + 1 :]))

    def at_place(self) -> str:
        """Return what is at the place of K; empty: nothing."""
        return next((x for x in "KEQ" if self.of(x) == "P"), "")


class Store(NamedTuple):
    """One state.

    Attributes:
        names, earlier: What is on the disk, and what a power cut may bring back.
        form: The bytes of the encoded form: absent, volatile, durable or short.
        compactor, replacer, saver, retention, reader, noter: What each does next.
        told: What an actor was told: a note is written, Q or S is saved, N or the place was dropped.
        kills, cuts: How often these may still happen.
    """

    names: Names = Names()
    earlier: frozenset[Names] = frozenset()
    form: str = "-"
    compactor: str = "new"
    replacer: str = "new"
    saver: str = "new"
    retention: str = "new"
    reader: str = ""
    noter: str = "new"
    told: str = ""
    kills: int = 1
    cuts: int = 1

    def on_disk(self, names: Names) -> Store:
        """Return the state with other names, which are not durable yet."""
        earlier = self.earlier | {self.names} if self.cuts else self.earlier
        return self._replace(names=names, earlier=earlier)

    def synced(self) -> Store:
        """Return the state in which all names are durable."""
        return self._replace(earlier=frozenset())

    def users(self) -> str:
        """Return the directories that are locked for use."""
        used = self.reader + (self.noter[-1] if self.noter.startswith("locked") else "")
        if self.compactor in ("opened", "staged", "gathered"):
            used += "KN"
        if self.compactor == "sealed":
            used += "N"
        return used


class CompactModel:
    """The model under some rules."""

    def __init__(self, rules: CompactRules) -> None:
        self._rules = rules
        self._quiet: dict[tuple[Names, str, str], str] = {}

    def explore(self) -> Explored:
        """Look at every state."""
        return explore(Store(), lambda store: list(self.steps(store)), self.wrong)

    def wrong(self, store: Store) -> str:
        """Return what is bad in this state, or is left when all have died and gc was run."""
        if problem := self._bad(store):
            return problem
        left = store.names, store.form, store.told
        if left not in self._quiet:  # what gc leaves depends on no more
            self._quiet[left] = self._left(*left)
        return self._quiet[left]

    def _bad(self, store: Store) -> str:
        names = store.names
        for x in _DIRECTORIES:
            if names.of(x) == "P" and not set(_HELD[x]) <= set(names.has(x)):
                return f"{x} is visible without what it is decoded with"
        if names.of("E") == "P" and store.form == "s":
            return "E is visible and its encoded form is short"
        if store.reader and not set(_HELD[store.reader]) <= set(names.has(store.reader)):
            return "an open checkpoint lost its names"
        there = names.at_place()
        if "d" not in store.told and not there:
            return "what was at the place is lost"
        if "q" in store.told and "d" not in store.told and there != "Q":
            return "a save was acknowledged and is lost"
        if "a" in store.told and there in ("K", "E") and there not in names.noted:
            return "a note was acknowledged and is lost"
        if "s" in store.told and names.of("S") != "P":
            return "a save was acknowledged and is lost"
        return "N is lost" if "n" not in store.told and names.of("N") != "P" else ""

    def _left(self, names: Names, form: str, told: str) -> str:
        """Let gc work alone; return the first thing that it leaves and nothing needs."""
        quiet = Store(names, form=form, told=told, compactor="dead", replacer="dead", saver="dead", kills=0, cuts=0)
        quiet = quiet._replace(retention="end", noter="end")
        for _ in range(20):
            step = next(self._collector(quiet), None)
            if step is None:
                break
            quiet = step.state
        names = quiet.names
        left = [x for x in _DIRECTORIES if names.of(x) in "SX"]
        if left:
            return f"{left[0]} stays in staging/ or trash/ for ever"
        needed = {blob for x in _DIRECTORIES if names.of(x) == "P" for blob in names.has(x)}
        return f"nothing needs {names.canonical}" if set(names.canonical) - needed else self._bad(quiet)

    def steps(self, store: Store) -> Iterator[Step[Store]]:
        """Yield everything that may happen next."""
        yield from self._compactor(store)
        yield from self._savers(store)
        yield from self._retention(store)
        yield from self._users(store)
        yield from self._collector(store)
        if store.kills and store.compactor not in ("new", *_OVER):
            yield Step("", "", "KILL C", store._replace(compactor="dead", kills=0))
        if store.cuts:
            dead = store._replace(compactor="dead", replacer="dead", saver="dead", retention="end", reader="", cuts=0)
            dead = dead._replace(noter="end", kills=0, earlier=frozenset())
            for names in sorted({store.names, *store.earlier}):
                for form in "sd" if store.form == "v" else store.form:
                    yield Step("", "", f"POWER CUT: {names}", dead._replace(names=names, form=form))

    def _compactor(self, store: Store) -> Iterator[Step[Store]]:
        doing, names, rules = store.compactor, store.names, self._rules
        if doing == "staged":
            yield Step("C", _REST, "lets go of K and N", store._replace(compactor="rests"))
        if doing == "new" and names.of("K") == names.of("N") == "P":
            yield Step("C", _OPEN, "opens K and N", store._replace(compactor="opened"))
        elif doing == "opened":
            made = store.on_disk(names.move("E", "S").fill("E", "e")._replace(canonical=names.canonical + "e"))
            made = made._replace(form="d" if rules.synced else "v", compactor="staged")
            yield Step("C", _STAGE, "writes e, decodes it", made)
        elif doing == "staged":
            there = "n" in names.canonical + names.has("N")
            if rules.linked and there:
                yield Step("C", _GATHER, "links n", store.on_disk(names.fill("E", "en"))._replace(compactor="gathered"))
            elif rules.lacking and rules.linked:
                yield Step("C", _GATHER, "n is not there", self._discarded(store))
            else:
                yield Step("C", _GATHER, "relies on N", store._replace(compactor="gathered"))
        elif doing == "gathered":
            yield Step("C", _SEAL, "syncs E, lets go of K", store.synced()._replace(compactor="sealed"))
        elif doing == "rests":
            if names.of("K") == names.of("N") == "P":
                yield Step("C", _LET_GO, "has K and N again", store._replace(compactor="staged"))
            else:
                yield Step("C", _LET_GO, "one of them is gone", self._discarded(store))
        elif doing == "sealed":
            yield from self._swap(store)
        elif doing == "swapped":
            gone = store.on_disk(names.move("K", "X"))
            yield Step("C", _TRASH, "the old one goes", gone._replace(compactor="end"))

    def _discarded(self, store: Store) -> Store:
        return store.on_disk(store.names.move("E", "X"))._replace(compactor="failed")

    def _swap(self, store: Store) -> Iterator[Step[Store]]:
        names, rules = store.names, self._rules
        there = names.at_place()
        if not there or (rules.same and there != "K"):
            yield Step("C", _CHECK, "it was replaced or dropped", self._discarded(store))
        elif rules.alone and there in store.users():
            yield Step("C", _SWAP, "a process uses it", self._discarded(store))
        else:
            noted = names.noted + ("E" if rules.notes and there in names.noted else "")
            after = names.move(there, "S").move("E", "P")._replace(noted=noted)
            yield Step("C", _SWAP, "exchanges and syncs", store.on_disk(after).synced()._replace(compactor="swapped"))

    def _savers(self, store: Store) -> Iterator[Step[Store]]:
        names = store.names
        there = names.at_place()
        if store.replacer == "new" and there and there != "Q":
            # No lock on the old one is asked for: it stays in staging/ as long as a process uses it.
            after = names.move(there, "S").move("Q", "P")
            told = store.told.replace("a", "") + "q"
            yield Step("Q", _REPLACE, "replaces it", store.on_disk(after).synced()._replace(replacer="end", told=told))
        if store.saver == "new" and "k" in names.canonical:
            yield Step("S", _CLAIM, "links k", store.on_disk(names.fill("S", "k"))._replace(saver="claimed"))
        elif store.saver == "claimed":
            done = store.on_disk(names.move("S", "P")).synced()._replace(saver="end", told=store.told + "s")
            yield Step("S", "objects.publish.publish", "is published", done)

    def _retention(self, store: Store) -> Iterator[Step[Store]]:
        names = store.names
        if store.retention != "new":
            return
        for x, letter in ((names.at_place(), "d"), ("N", "n")):
            if x and not (self._rules.drop_locks and x in store.users()):
                gone = store.on_disk(names.move(x, "X")).synced()
                yield Step("R", _DROP, f"drops {x}", gone._replace(retention="end", told=store.told + letter))

    def _users(self, store: Store) -> Iterator[Step[Store]]:
        there = store.names.at_place()
        if not store.reader and there and self._rules.reads:
            yield Step("reader", _AT, f"opens {there}", store._replace(reader=there))
        elif store.reader:
            yield Step("reader", "objects.checkpoints.CheckpointDirectory.close", "", store._replace(reader=""))
        if store.noter == "new" and there in ("K", "E"):
            yield Step("noter", _AT, f"locks {there}", store._replace(noter=f"locked {there}"))
        elif store.noter.startswith("locked"):
            x = store.noter[-1]
            noted = store.on_disk(store.names._replace(noted=store.names.noted + x)).synced()
            told = store.told + ("a" if store.names.of(x) == "P" or self._rules.alone is False else "")
            yield Step("noter", _NOTE, "writes its note", noted._replace(noter="end", told=told))

    def _collector(self, store: Store) -> Iterator[Step[Store]]:
        names = store.names
        alive = {
            "E": store.compactor not in ("new", *_OVER),
            "K": store.compactor == "swapped",
            "S": store.saver in ("new", "claimed"),
            "Q": store.replacer == "new",
        }
        users = store.users()
        for x, place in zip(_DIRECTORIES, names.where, strict=True):
            if place == "S" and not alive.get(x) and x not in users:
                yield Step("G", _SWEEP, f"{x} is dead", store.on_disk(names.move(x, "X")).synced())
            elif place == "X" and not (self._rules.empty_locks and x in users):
                yield Step("G", _APART, f"takes {x} apart", store.on_disk(names.fill(x, "").move(x, "-")))
        for blob in names.canonical:
            if not any(blob in inside for inside in names.inside):
                freed = names._replace(canonical=names.canonical.replace(blob, ""))
                yield Step("G", _CONDEMN, f"frees {blob}", store.on_disk(freed))
