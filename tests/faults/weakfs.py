"""A filesystem that promises less than any real one: nothing is durable without its own fsync.

- The bytes of a file are durable after an fsync on the descriptor that wrote them, if it succeeded. After one that
  failed they are lost, whatever a later one says.
- Each name in a directory is a matter of its own. After a power cut it gives what it gave when the directory was last
  fsynced, or anything that it gave since. So a rename may be half there: under both names, or under none.
- What a symlink holds is durable with its name.

`Replay` does on it what a trace tells; what may be there after a power cut is what `Directory.survivors` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from tests.faults.straced import Call

Kind = Literal["file", "directory", "symlink"]


@dataclass(eq=False)
class Node:
    """A file, symlink or directory.

    Attributes:
        number: Tells it from others in messages.
        act: Name of the act in which it was made.
        writers: Openings that wrote bytes which they have not fsynced.
        lost: An fsync of it failed: its bytes are what they happen to be.
        described: Its mode or times were set and it was not fsynced since.
        leased: The act, and the path in the store, under which the kernel granted a lease: no process had it open.
        links: How many names it has.
        text: What a symlink holds.
    """

    kind: Kind
    number: int
    act: str
    writers: set[int] = field(default_factory=set)
    lost: bool = False
    described: bool = False
    leased: set[tuple[str, str]] = field(default_factory=set)
    links: int = 0
    text: str = ""

    def fail(self) -> None:
        """Let an fsync fail: what was not durable is lost."""
        self.lost = self.lost or bool(self.writers)

    @property
    def is_durable(self) -> bool:
        """Whether its bytes survive a power cut, if a name of it does."""
        return not self.writers and not self.lost


@dataclass(eq=False)
class Directory(Node):
    """A directory.

    Attributes:
        past: For each name what it may give after a power cut, and last what it gives now.
        place: Its own parent and name now.
        required: The names below ``blobs`` in it that its document may name, since it was first published as a
            checkpoint.
        document: Its document when that was last looked at.
        rewritten: A repair gave it another document after it was published.
    """

    past: dict[str, list[Node | None]] = field(default_factory=dict)
    place: tuple[Directory, str] | None = None
    required: frozenset[str] | None = None
    document: Node | None = None
    rewritten: bool = False

    def now(self, name: str) -> Node | None:
        """Return what the name gives."""
        return self.past[name][-1] if name in self.past else None

    def survivors(self, name: str) -> list[Node | None]:
        """Return all that the name may give after a power cut."""
        return list(dict.fromkeys(self.past.get(name, [None])))

    def is_certain(self, name: str) -> bool:
        """Whether the name gives after a power cut what it gives now."""
        return len(self.survivors(name)) == 1

    def names(self) -> Iterator[tuple[str, Node]]:
        """Yield the names that there are, and what they give."""
        for name in list(self.past):
            node = self.now(name)
            if node is not None:
                yield name, node

    def put(self, name: str, node: Node | None) -> None:
        """Make the name give something else from now on."""
        before = self.now(name)
        if before is not None:
            before.links -= 1
        if node is not None:
            node.links += 1
        if isinstance(node, Directory):
            node.place = self, name
        self.past.setdefault(name, [None]).append(node)

    def begin_sync(self) -> dict[str, int]:
        """Return what an fsync that begins now will cover."""
        return {name: len(past) for name, past in self.past.items()}

    def end_sync(self, covered: dict[str, int]) -> None:
        """Make durable what was covered."""
        for name, count in covered.items():
            self.past[name] = self.past[name][count - 1 :]
            if self.past[name] == [None]:
                del self.past[name]


@dataclass
class Opening:
    """What a descriptor stands for.

    Attributes:
        number: Two openings of one file have different ones.
        path: Under which it was opened, below the root.
        lock: ``LOCK_SH``, ``LOCK_EX`` or nothing.
    """

    node: Node
    number: int
    path: tuple[str, ...] = ()
    lock: str = ""


class NotUnderstoodError(Exception):
    """The trace says something that cannot be after what it said before."""


class Tree:
    """The tree below one directory, whose absolute path is `root`; what is elsewhere is not there."""

    def __init__(self, root: str) -> None:
        self.root = Directory("directory", 0, "")
        self.openings: dict[int, Opening] = {}
        self.act = ""
        self.path = root.rstrip("/")
        self._made = 0

    def make(self, kind: Kind) -> Node:
        """Return a new file, directory or symlink that has no name yet."""
        self._made += 1
        made = Directory if kind == "directory" else Node
        return made(kind, self._made, self.act)

    def open(self, fd: int, node: Node, path: tuple[str, ...]) -> Opening:
        """Give a descriptor."""
        self._made += 1
        self.openings[fd] = Opening(node, self._made, path)
        return self.openings[fd]

    def locks_on(self, node: Node | None) -> set[str]:
        """Return the kinds of locks that the process has on a directory."""
        return {opening.lock for opening in self.openings.values() if opening.node is node and opening.lock}

    def base(self, directory: str) -> Directory | None:
        """Return the directory of a descriptor in an argument; None if it is elsewhere."""
        if directory == "AT_FDCWD":
            return None
        opening = self.openings.get(int(directory))
        return opening.node if opening and isinstance(opening.node, Directory) else None

    def parent_of(self, directory: str, path: str) -> tuple[Directory, str] | None:
        """Return the directory in which a path is a name, and that name; None if it is not below the root.

        Raises:
            NotUnderstoodError: The directory is not there.
        """
        if path.startswith("/"):
            if not path.startswith(f"{self.path}/"):
                return None
            at, path = self.root, path.removeprefix(f"{self.path}/")
        else:
            base = self.base(directory)
            if base is None:
                return None
            at = base
        *above, name = [part for part in path.split("/") if part not in ("", ".")] or [""]
        for part in above:
            below = at.now(part)
            if not isinstance(below, Directory):
                msg = f"there is no directory {part} in /{'/'.join(self.path_of(at))}, of {path}"
                raise NotUnderstoodError(msg)
            at = below
        if not name and at.place:
            return at.place
        return at, name

    def path_of(self, node: Directory) -> tuple[str, ...]:
        """Return where a directory is now."""
        parts: list[str] = []
        while node.place is not None:
            node, name = node.place
            parts.append(name)
        return tuple(reversed(parts))

    def lookup(self, *path: str) -> Node | None:
        """Return what is at a path below the root now."""
        at: Node | None = self.root
        for part in path:
            at = at.now(part) if isinstance(at, Directory) else None
        return at

    def listing(self, at: Directory | None = None, above: str = "") -> dict[str, tuple[str, int]]:
        """Return for every path its kind and the number of its node."""
        found: dict[str, tuple[str, int]] = {}
        for name, node in (at or self.root).names():
            found[f"{above}{name}"] = node.kind, node.number
            if isinstance(node, Directory):
                found.update(self.listing(node, f"{above}{name}/"))
        return found


Ending = Callable[[], None]


def sync(opening: Opening, call: Call) -> Ending:
    """Begin an fsync; return what happens when it ends."""
    node = opening.node
    if isinstance(node, Directory):
        covered, directory = node.begin_sync(), node
        return lambda: None if call.failed else directory.end_sync(covered)

    def end() -> None:
        if call.failed:
            node.fail()
            return
        node.writers.discard(opening.number)
        node.described = False

    return end
