"""Compaction beside a save that replaces, a save that shares a blob, retention, gc, a reader, and a note.

K is a checkpoint, N one of a later step. The compactor C publishes E, the next generation of K: the encoded form of its
blob, and a link to the plain blob of N, with which that is decoded; then it drops K. Saver Q replaces the checkpoint of
that step; saver S saves K's bytes again, and claims the plain blob. Retention R drops N, or the checkpoint of the step.
A reader and a user who writes a note open the newest generation, and lock it for use.

Names reach the disk in order; the bytes of the encoded form do when they are synced. A power cut goes back to any
moment since the last sync.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.protocol.search import Explored, Step, explore
from tests.protocol.switches import Switches

_OPEN = "ops.compact.directory.BaseCheckpoints.open"
_REST = "ops.compact.compact._Compaction._rest"
_LET_GO = "fs.locks.DirectoryLock.let_go"
_STAGE = "ops.compact.encode.stage"
_GATHER = "ops.compact.directory.gather"
_SEAL = "ops.compact.directory.seal"
_PUBLISH = "objects.publish.publish"
_SUPERSEDED = "ops.free.superseded_checkpoints.drop_superseded"
_DROP = "ops.free.drop.drop"
_SWEEP = "objects.trash.sweep_staging"
_APART = "objects.collector.Collector._take_apart"
_CONDEMN = "objects.collector.Collector.mark_for_deletion"
_CLAIM = "objects.staging.Staging.claim"
_AT = "objects.checkpoints.CheckpointDirectory.at"
_NOTE = "objects.documents.annotations.add_annotations"
_HELD = {"K": "k", "E": "en", "N": "n", "S": "k", "Q": "q"}
"""Directory -> what it needs: blobs by their letters."""
_DIRECTORIES = "".join(_HELD)
_OVER = ("end", "failed", "dead")


@dataclass(frozen=True, slots=True)
class CompactRules(Switches):
    """Which rules the modelled code keeps."""

    linked: bool = True  # directory.gather: what a blob is decoded with is linked into the directory
    lacking: bool = True  # directory.gather: a file that is not there is refused
    synced: bool = True  # encode.stage: the bytes are durable before any document names them
    held: bool = True  # compact.compact: K is in use until E is published
    looks: bool = True  # compact.compact: and still has its name
    alone: bool = True  # publish.publish: E is published alone in the run, which who notes has in use
    notes: bool = True  # compact.compact: what was noted of K until then is added to E
    all_generations: bool = True  # drop.drop: every generation goes, the older first, or none while that is in use
    drop_locks: bool = True  # ops.free.drop.drop: what a process uses is not dropped
    empty_locks: bool = True  # Collector._take_apart: nor taken apart


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

    def shown(self) -> str:
        """Return the directory that the step of K shows; empty if there is none."""
        return next((x for x in "QEK" if self.of(x) == "P"), "")


class Store(NamedTuple):
    """One state.

    Attributes:
        names, earlier: What is on the disk, and what a power cut may bring back.
        form: The bytes of the encoded form: absent, volatile, durable or short.
        compactor, replacer, saver, retention, reader, noter: What each does next.
        told: What an actor was told: ``a`` the note is written, ``q`` Q is saved, ``s`` S is saved, ``d`` K was
            dropped, in all generations, ``D`` Q was dropped, ``n`` N was dropped.
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
        if self.compactor in ("opened", "staged", "gathered", "sealed"):
            used += "KN"
        return used + ("E" if self.compactor == "published" else "") + ("Q" if self.replacer == "published" else "")


class CompactModel:
    """The model under some rules, with some of Q, S, R, the reader ``r`` and who notes ``n``."""

    def __init__(self, rules: CompactRules, actors: str) -> None:
        self._rules = rules
        self._actors = actors
        self._quiet: dict[tuple[Names, str, str], str] = {}

    def explore(self) -> Explored:
        """Look at every state."""
        actors = self._actors
        replacer, saver, retention, noter = ("new" if who in actors else "end" for who in "QSRn")
        names = Names(where="P-P" + "".join("S" if who in actors else "-" for who in "SQ"))
        start = Store(names, replacer=replacer, saver=saver, retention=retention, noter=noter)
        return explore(start, lambda store: list(self.steps(store)), self.wrong)

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
        there = names.shown()
        if not there and not set("dD") & set(store.told):
            return "the checkpoint of the step is lost"
        if "d" in store.told and "P" in (names.of("K"), names.of("E")):
            return "what was dropped is back"
        if "q" in store.told and "D" not in store.told and there != "Q":
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
            yield Step("C", _SEAL, "syncs E", store.synced()._replace(compactor="sealed"))
        elif doing == "rests":
            if names.of("K") == names.of("N") == "P":
                yield Step("C", _LET_GO, "has K and N again", store._replace(compactor="staged"))
            else:
                yield Step("C", _LET_GO, "one of them is gone", self._discarded(store))
        elif doing == "sealed":
            yield from self._publish(store)
        elif doing == "published":
            dropped = self._dropped(store, "K", "C")
            yield Step("C", _DROP, "drops K unless it is in use", dropped._replace(compactor="end"))

    def _discarded(self, store: Store) -> Store:
        return store.on_disk(store.names.move("E", "X"))._replace(compactor="failed")

    def _publish(self, store: Store) -> Iterator[Step[Store]]:
        names, rules = store.names, self._rules
        if rules.looks and names.of("K") != "P":
            yield Step("C", _PUBLISH, "K was dropped", self._discarded(store))
        elif not (rules.alone and store.noter.startswith("locked")):
            noted = names.noted + ("E" if rules.notes and "K" in names.noted else "")
            published = store.on_disk(names.move("E", "P")._replace(noted=noted)).synced()
            yield Step("C", _PUBLISH, "publishes E, with what was noted", published._replace(compactor="published"))

    def _dropped(self, store: Store, x: str, by: str) -> Store:
        """Return the state without a published directory, unless a process uses it."""
        used = self._rules.drop_locks and x in self._used(store, by)
        return store if used or store.names.of(x) != "P" else store.on_disk(store.names.move(x, "X")).synced()

    def _used(self, store: Store, by: str) -> str:
        """Return the directories that others have in use."""
        if by == "C":
            store = store._replace(compactor="end")
        elif not self._rules.held and store.compactor == "sealed":
            return store._replace(compactor="end").users() + "N"
        return store.users()

    def _savers(self, store: Store) -> Iterator[Step[Store]]:
        names = store.names
        if store.replacer == "new":
            told = store.told.replace("a", "")
            published = store.on_disk(names.move("Q", "P")).synced()._replace(replacer="published", told=told)
            yield Step("Q", _PUBLISH, "is published", published)
        elif store.replacer == "published":
            done = self._dropped(store, "K", "Q")
            if done.names.of("K") != "P" or not self._rules.all_generations:
                done = self._dropped(done, "E", "Q")
            yield Step("Q", _DROP, "drops K and E unless in use", done._replace(replacer="end", told=store.told + "q"))
        if store.saver == "new" and "k" in names.canonical:
            yield Step("S", _CLAIM, "links k", store.on_disk(names.fill("S", "k"))._replace(saver="claimed"))
        elif store.saver == "claimed":
            done = store.on_disk(names.move("S", "P")).synced()._replace(saver="end", told=store.told + "s")
            yield Step("S", "objects.publish.publish", "is published", done)

    def _retention(self, store: Store) -> Iterator[Step[Store]]:
        names = store.names
        if store.retention != "new":
            return
        there = names.shown()
        every = "KE" if there == "E" and self._rules.all_generations else there
        for going, letter in ((every, "D" if there == "Q" else "d"), ("N", "n")):
            gone = store
            for x in going:
                gone = self._dropped(gone, x, "R")
            if going and not any(gone.names.of(x) == "P" for x in going):
                told = gone._replace(retention="end", told=store.told + letter)
                yield Step("R", _DROP, f"drops {going}", told)

    def _users(self, store: Store) -> Iterator[Step[Store]]:
        there = store.names.shown()
        if not store.reader and there and "r" in self._actors:
            yield Step("reader", _AT, f"opens {there}", store._replace(reader=there))
        elif store.reader:
            yield Step("reader", "objects.checkpoints.CheckpointDirectory.close", "", store._replace(reader=""))
        if store.noter == "new" and there in ("K", "E"):
            yield Step("noter", _AT, f"locks {there}", store._replace(noter=f"locked {there}"))
        elif store.noter.startswith("locked"):
            x = store.noter[-1]
            noted = store.on_disk(store.names._replace(noted=store.names.noted + x)).synced()
            told = store.told + ("a" if store.names.of(x) == "P" else "")
            yield Step("noter", _NOTE, "writes its note", noted._replace(noter="end", told=told))

    def _collector(self, store: Store) -> Iterator[Step[Store]]:
        names = store.names
        alive = {
            "E": store.compactor not in ("new", *_OVER),
            "S": store.saver in ("new", "claimed"),
            "Q": store.replacer == "new",
        }
        users = store.users()
        for x in "KE":
            first = x == "K" or names.of("K") != "P" or not self._rules.all_generations
            if first and names.of(x) == "P" and names.shown() != x and x not in users:
                dropped = self._dropped(store.synced(), x, "G")
                yield Step("G", _SUPERSEDED, f"{names.shown()} supersedes {x}", dropped)
        for x, place in zip(_DIRECTORIES, names.where, strict=True):
            if place == "S" and not alive.get(x) and x not in users:
                yield Step("G", _SWEEP, f"{x} is dead", store.on_disk(names.move(x, "X")).synced())
            elif place == "X" and not (self._rules.empty_locks and x in users):
                yield Step("G", _APART, f"takes {x} apart", store.on_disk(names.fill(x, "").move(x, "-")))
        for blob in names.canonical:
            if not any(blob in inside for inside in names.inside):
                freed = names._replace(canonical=names.canonical.replace(blob, ""))
                yield Step("G", _CONDEMN, f"frees {blob}", store.on_disk(freed))
