"""Do on a `Tree` what a trace tells, and let a watcher look: before each change of a name, and after it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from tests.faults.straced import Call, Moment
from tests.faults.weakfs import Directory, Ending, Node, NotUnderstoodError, Opening, Tree, sync

Place = tuple[Directory, str]


@dataclass(frozen=True)
class Change:
    """A name that is made, moved or taken away.

    Attributes:
        node: What has or had the name; for a rename what is moved.
        source: Where it was; None if it is made, or linked.
        target: Where it will be; None if the name is taken away.
    """

    what: Literal["make", "link", "rename", "unlink"]
    node: Node
    source: Place | None
    target: Place | None


class Watcher(Protocol):
    """Who looks at what a replay does."""

    def marked(self, said: Any) -> None:
        """The traced program said something."""

    def before(self, change: Change, call: Call) -> None:
        """A name is about to change."""

    def after(self, call: Call) -> None:
        """Something has changed."""

    def syncing(self, opening: Opening) -> None:
        """An fsync begins."""

    def covers(self, node: Node) -> bool:
        """Return whether an fsync of this directory counts."""


_NAMING = {"mkdir", "mkdirat", "open", "openat", "creat", "rename", "renameat", "renameat2", "link", "linkat"}
_WRITING = {"write", "pwrite64", "writev", "pwritev", "pwritev2", "ftruncate", "fallocate", "sendfile"}
_CLONING = ("FICLONE", "FICLONERANGE", "BTRFS_IOC_CLONE", "BTRFS_IOC_CLONE_RANGE")


class Replay:
    """Follows one process after another on one tree."""

    def __init__(self, tree: Tree, watcher: Watcher) -> None:
        self.tree = tree
        self._watcher = watcher
        self._endings: dict[int, Ending] = {}
        self._in_flight: list[Call] = []
        self._done_early: set[int] = set()

    def begin_process(self, act: str) -> None:
        """Forget the descriptors of the process before; those that were open elsewhere do not matter."""
        self.tree.act = act
        self.tree.openings.clear()

    def run(self, moments: Iterable[Moment]) -> None:
        """Follow a trace.

        Raises:
            NotUnderstoodError: It says something impossible.
        """
        for moment in moments:
            if moment.call is None:
                self._marked(moment.mark)
                continue
            if moment.begins:
                self._begin(moment.call)
            if moment.ends:
                self._end(moment.call)

    def _marked(self, said: Any) -> None:
        if "failed_sync" in said and (opening := self.tree.openings.get(said["failed_sync"])):
            self._watcher.syncing(opening)
            opening.node.fail()
        self._watcher.marked(said)

    def _begin(self, call: Call) -> None:
        if call.name == "fsync":
            opening = self.tree.openings.get(call.number(0))
            if opening is not None and self._watcher.covers(opening.node):
                self._watcher.syncing(opening)
                self._endings[id(call)] = sync(opening, call)
        elif call.name == "close":
            self.tree.openings.pop(call.number(0), None)
        elif call.name in _NAMING and not call.failed:
            self._in_flight.append(call)

    def _end(self, call: Call) -> None:
        if call in self._in_flight:
            self._in_flight.remove(call)
        if id(call) in self._done_early:
            self._done_early.remove(id(call))
            return
        if (ending := self._endings.pop(id(call), None)) is not None:
            ending()
            self._watcher.after(call)
        elif not call.failed:
            self._apply_in_time(call)

    def _apply_in_time(self, call: Call) -> None:
        """Apply a call; first others that strace has not seen end, if it needs them."""
        try:
            self._apply(call)
        except NotUnderstoodError:
            earlier = list(self._in_flight)
            self._in_flight.clear()
            for other in earlier:
                self._done_early.add(id(other))
                self._apply(other)
            if not earlier:
                raise
            self._apply(call)

    def _apply(self, call: Call) -> None:
        name = call.name
        if name in ("open", "openat", "creat"):
            self._open(call)
        elif name in ("mkdir", "mkdirat", "symlink", "symlinkat"):
            self._make(call)
        elif name in ("rename", "renameat", "renameat2"):
            self._rename(call)
        elif name in ("link", "linkat"):
            self._link(call)
        elif name in ("unlink", "unlinkat", "rmdir"):
            self._unlink(call)
        elif name in _WRITING or name == "copy_file_range" or (name == "ioctl" and call.arguments[1] in _CLONING):
            self._write(call.number(2 if name == "copy_file_range" else 0))
        elif name in ("fchmod", "chmod", "fchmodat", "utimensat"):
            self._describe(call)
        elif name in ("dup", "dup2", "dup3") or (name == "fcntl" and call.arguments[1].startswith("F_DUPFD")):
            self._copy(call.number(0), call.result)
        elif name == "fcntl" and call.arguments[1:] == ("F_SETLEASE", "F_WRLCK"):
            opening = self.tree.openings.get(call.number(0))
            if opening is not None:
                opening.node.leased.add((self.tree.act, "/".join(opening.path)))
        elif name == "flock" and (opening := self.tree.openings.get(call.number(0))):
            kind = call.arguments[1].split("|")[0]
            opening.lock = "" if kind == "LOCK_UN" else kind

    def _copy(self, fd: int, copied: int) -> None:
        self.tree.openings.pop(copied, None)
        if (opening := self.tree.openings.get(fd)) is not None:
            self.tree.openings[copied] = opening

    def _place(self, call: Call, index: int) -> Place | None:
        """Return what a path in the arguments means; the descriptor of its directory is the argument before."""
        directory = call.arguments[index - 1] if index > 0 and not call.arguments[index - 1].startswith('"') else ""
        return self.tree.parent_of(directory or "AT_FDCWD", call.text(index))

    def _path(self, place: Place) -> tuple[str, ...]:
        return (*self.tree.path_of(place[0]), place[1])

    def _open(self, call: Call) -> None:
        self.tree.openings.pop(call.result, None)
        index = 1 if call.name == "openat" else 0
        place = self._place(call, index)
        if place is None or place == (self.tree.root, ""):  # by its full name, or as "." of itself
            if place is not None or call.text(index) == self.tree.path:
                self.tree.open(call.result, self.tree.root, ())
            return
        flags = "O_CREAT|O_TRUNC" if call.name == "creat" else call.arguments[2 if call.name == "openat" else 1]
        node = place[0].now(place[1])
        if node is None and "O_CREAT" in flags:
            node = self.tree.make("file")
            self._change(Change("make", node, None, place), call)
        if node is None:
            msg = f"{call}: there is no such file"
            raise NotUnderstoodError(msg)
        if node.kind == "symlink":
            return
        opening = self.tree.open(call.result, node, self._path(place))
        if "O_TRUNC" in flags:
            node.writers.add(opening.number)

    def _make(self, call: Call) -> None:
        is_link = call.name.startswith("symlink")
        place = self._place(call, int(is_link) + int(call.name.endswith("at")))
        if place is not None:
            node = self.tree.make("symlink" if is_link else "directory")
            node.text = call.text(0) if is_link else ""
            self._change(Change("make", node, None, place), call)

    def _two(self, call: Call) -> tuple[Place, Place, Node] | None:
        far = 1 if call.name in ("rename", "link") else 3
        source, target = self._place(call, far // 2), self._place(call, far)
        if source is None or target is None:
            if source is not target:
                msg = f"{call} goes into the tree, or out of it"
                raise NotUnderstoodError(msg)
            return None
        node = source[0].now(source[1])
        if node is None:
            msg = f"{call}: there is no source"
            raise NotUnderstoodError(msg)
        return source, target, node

    def _rename(self, call: Call) -> None:
        found = self._two(call)
        if found is None:
            return
        source, target, node = found
        if call.name == "renameat2" and "RENAME_EXCHANGE" in call.arguments[4]:
            msg = f"{call}: no step of the protocol exchanges two names"
            raise NotUnderstoodError(msg)
        if target[0].now(target[1]) is node:  # two names of one file: nothing happens
            return
        self._change(Change("rename", node, source, target), call)

    def _link(self, call: Call) -> None:
        found = self._two(call)
        if found is not None:
            self._change(Change("link", found[2], None, found[1]), call)

    def _unlink(self, call: Call) -> None:
        place = self._place(call, int(call.name == "unlinkat"))
        if place is None:
            return
        node = place[0].now(place[1])
        if node is None:
            msg = f"{call}: there is no such name"
            raise NotUnderstoodError(msg)
        self._change(Change("unlink", node, place, None), call)

    def _change(self, change: Change, call: Call) -> None:
        self._watcher.before(change, call)
        if change.source is not None:
            change.source[0].put(change.source[1], None)
        if change.target is not None:
            change.target[0].put(change.target[1], change.node)
        self._watcher.after(call)

    def _write(self, fd: int) -> None:
        if (opening := self.tree.openings.get(fd)) is not None:
            opening.node.writers.add(opening.number)

    def _describe(self, call: Call) -> None:
        if call.name == "chmod":
            place = self._place(call, 0)
        elif call.name == "fchmod" or (call.name == "utimensat" and call.arguments[1] == "NULL"):
            if (opening := self.tree.openings.get(call.number(0))) is not None:
                opening.node.described = True
            return
        else:
            place = self._place(call, 1)
        node = place[0].now(place[1]) if place else None
        if node is not None:
            node.described = True
