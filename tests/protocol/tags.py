"""A smaller model: one checkpoint, who opens or tags it, retention that drops it, gc.

A lock is had in three steps here, as `fs.locks` has it: open by path, flock, look whether the path still names it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.protocol.search import Explored, Step, explore
from tests.protocol.switches import Switches

_AT = "objects.checkpoints.CheckpointDirectory.at"
_LOCK = "fs.locks.lock_shared"
_NAMES = "fs.locks.DirectoryLock.names"
_HELD = "ops.refs.protection.held"
_TAG = "ops.refs.labels.write_tag"
_PLAN = "ops.free.retain.plan_retention"
_TAKE = "fs.locks.try_exclusive"
_CHECK = "ops.refs.protection.check_unprotected"
_DROP = "ops.free.drop.drop"
_APART = "objects.collector.Collector._take_apart"


@dataclass(frozen=True, slots=True)
class TagRules(Switches):
    """Which rules the modelled code keeps."""

    names_path: bool = True  # locks._lock: after the flock the path still gives that directory
    drop_locks: bool = True  # ops.free.drop.drop: exclusive, without waiting
    tagger_locks: bool = True  # ops.refs.protection.held: a tagger uses the checkpoint
    look_again: bool = True  # ops.refs.protection: tags are read again under the exclusive lock


class Place(NamedTuple):
    """One state.

    Attributes:
        where: The checkpoint is published ``P``, in trash ``X``, gone ``-``.
        names: Whether its blobs have their names.
        reader, tagger, retention, gc: What each does next.
        tag: Whether a tag names the place.
    """

    where: str = "P"
    names: bool = True
    reader: str = "new"
    tagger: str = "new"
    retention: str = "new"
    gc: str = "new"
    tag: bool = False


class TagModel:
    """The model under some rules."""

    def __init__(self, rules: TagRules) -> None:
        self._rules = rules

    def explore(self) -> Explored:
        """Look at every state."""
        return explore(Place(), lambda place: list(self.steps(place)), self.wrong)

    def wrong(self, place: Place) -> str:
        """Return what is bad in this state."""
        if place.reader == "open" and not place.names:
            return "an open checkpoint lost its names"
        if place.tag and place.where != "P":
            return "a tag points at nothing"
        return ""

    def steps(self, place: Place) -> Iterator[Step[Place]]:
        """Yield everything that may happen next."""
        yield from self._reader(place)
        yield from self._tagger(place)
        yield from self._retention(place)
        yield from self._gc(place)

    def _used(self, place: Place) -> bool:
        tagging = self._rules.tagger_locks and place.tagger in ("locked", "named")
        return place.reader in ("locked", "open") or tagging

    def _taken(self, place: Place) -> bool:
        dropping = self._rules.drop_locks and place.retention in ("taken", "looked")
        return dropping or place.gc == "taken"

    def _reader(self, place: Place) -> Iterator[Step[Place]]:
        doing = place.reader
        if doing == "new" and place.where == "P":
            yield Step("reader", _AT, "opens the directory by its path", place._replace(reader="opened"))
        elif doing == "opened" and not self._taken(place):
            yield Step("reader", _LOCK, "locks it for use", place._replace(reader="locked"))
        elif doing == "locked" and self._rules.names_path and place.where != "P":
            yield Step("reader", _NAMES, "the path names something else: again", place._replace(reader="new"))
        elif doing == "locked":
            yield Step("reader", _NAMES, "has it open", place._replace(reader="open"))
        elif doing == "open":
            yield Step("reader", "objects.checkpoints.CheckpointDirectory.close", "", place._replace(reader="end"))

    def _tagger(self, place: Place) -> Iterator[Step[Place]]:
        doing = place.tagger
        if doing == "new" and place.where == "P":
            yield Step("tagger", _HELD, "opens the directory", place._replace(tagger="opened"))
        elif doing == "opened" and not (self._rules.tagger_locks and self._taken(place)):
            yield Step("tagger", _LOCK, "locks it for use", place._replace(tagger="locked"))
        elif doing == "locked":
            there = place.where == "P"
            yield Step("tagger", _HELD, "looks at the path", place._replace(tagger="named" if there else "end"))
        elif doing == "named":
            yield Step("tagger", _TAG, "writes the symlink", place._replace(tagger="end", tag=True))

    def _retention(self, place: Place) -> Iterator[Step[Place]]:
        doing = place.retention
        if doing == "new" and not place.tag:
            yield Step("R", _PLAN, "plans to drop it", place._replace(retention="planned"))
        elif doing == "planned" and self._rules.drop_locks and self._used(place):
            yield Step("R", _TAKE, "a process uses it: skipped", place._replace(retention="end"))
        elif doing == "planned":
            yield Step("R", _TAKE, "takes it", place._replace(retention="taken"))
        elif doing == "taken" and self._rules.look_again and place.tag:
            yield Step("R", _CHECK, "it has a tag now: skipped", place._replace(retention="end"))
        elif doing == "taken":
            yield Step("R", _CHECK, "nothing speaks against it", place._replace(retention="looked"))
        elif doing == "looked" and place.where == "P":
            yield Step("R", _DROP, "renames it to trash", place._replace(retention="end", where="X"))

    def _gc(self, place: Place) -> Iterator[Step[Place]]:
        if place.gc == "new" and place.where == "X" and not self._used(place):
            yield Step("G", _APART, "takes it", place._replace(gc="taken"))
        elif place.gc == "taken":
            yield Step("G", _APART, "unlinks what is in it", place._replace(names=False, where="-", gc="end"))
