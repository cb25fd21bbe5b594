"""Where things are in a store. Source: docs/format/v1.md, "The store"."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ckstore.model.digest import fan_out
from ckstore.model.names import MAX_STEP, RUN_PATTERN, STEP_PATTERN, is_tag

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MANIFEST = "manifest.json"
BLOBS = "blobs"
ANNOTATIONS = "annotations.json"


class RunStamp(NamedTuple):
    """What tells whether the names in the directory of a run have changed."""

    inode: int
    link_count: int
    mtime_ns: int
    ctime_ns: int


class RunChange(NamedTuple):
    """A run before and after one of its checkpoints came or went."""

    before: RunStamp | None
    after: RunStamp | None


@dataclass(frozen=True)
class Layout:
    """The paths of the store at `root`.

    Attributes:
        shared: Whether other hosts may be at work in it, whose locks are not seen from here.
    """

    root: Path
    shared: bool = False
    settings: Path = field(init=False)
    config: Path = field(init=False)
    blobs: Path = field(init=False)
    checkpoints: Path = field(init=False)
    refs: Path = field(init=False)
    pins: Path = field(init=False)
    staging: Path = field(init=False)
    trash: Path = field(init=False)

    def __post_init__(self) -> None:
        for name, file in (("settings", "store.json"), ("config", "config.json")):
            object.__setattr__(self, name, self.root / file)
        for name in ("blobs", "checkpoints", "refs", "pins", "staging", "trash"):
            object.__setattr__(self, name, self.root / name)

    @property
    def directories(self) -> tuple[Path, ...]:
        """Every directory that a store has from the start."""
        extra = (self.root / name for name in ("quarantine", "reserve"))
        return (self.blobs, self.checkpoints, self.refs, self.staging, self.trash, self.pins, *extra)

    @property
    def linked(self) -> tuple[Path, ...]:
        """The directories that files are linked and renamed into from ``staging/``, and back."""
        return self.blobs, self.checkpoints, self.trash

    def blob(self, digest: str) -> Path:
        """Return the canonical name of a blob."""
        return self.blobs / fan_out(digest) / digest

    def blob_name(self, digest: str) -> str:
        """As `blob`, as text, which costs less to make."""
        return f"{self.blobs}/{fan_out(digest)}/{digest}"

    def checkpoint(self, run: str, step: int) -> Path:
        """Return the directory of a checkpoint."""
        return self.checkpoints / run / str(step)

    def published(self, run: str | None = None) -> Iterator[tuple[str, int, int]]:
        """Yield run, step and inode number of every directory that is a checkpoint by its name, in no order."""
        for name in self.runs() if run is None else [run]:
            for entry in _entries(self.checkpoints / name):
                step = step_of(entry.name)
                if step is not None and entry.is_dir(follow_symlinks=False):
                    yield name, step, entry.inode()

    def runs(self) -> list[str]:
        """Return the names of all runs, sorted."""
        names = (e.name for e in _entries(self.checkpoints) if e.is_dir(follow_symlinks=False))
        return sorted(name for name in names if RUN_PATTERN.match(name))

    def names(self, run: str) -> dict[str, int]:
        """Return every name in the directory of a run, whatever it is, with its inode number."""
        return {entry.name: entry.inode() for entry in _entries(self.checkpoints / run)}

    def inode(self, run: str, step: int) -> int | None:
        """Return the inode number of the directory of a checkpoint; None: there is none. No symlink is followed."""
        found = None
        for path in (self.checkpoints / run, self.checkpoint(run, step)):
            try:
                found = os.stat(path, follow_symlinks=False)
            except (FileNotFoundError, NotADirectoryError):
                return None
            if not stat.S_ISDIR(found.st_mode):
                return None
        return None if found is None else found.st_ino

    def subdirectory_count(self, run: str) -> int:
        """Return how many subdirectories a run has, by its link count; 0: none, or this filesystem does not say."""
        try:
            return max(0, os.stat(self.checkpoints / run, follow_symlinks=False).st_nlink - 2)
        except (FileNotFoundError, NotADirectoryError):
            return 0

    def run_stamp(self, run: str) -> RunStamp | None:
        """Return when and how a run last changed; None: that is not to be had, or may be old, as from other hosts."""
        if self.shared:
            return None
        try:
            found = os.stat(self.checkpoints / run, follow_symlinks=False)
        except OSError:  # whoever lists it says what is wrong
            return None
        return RunStamp(found.st_ino, found.st_nlink, found.st_mtime_ns, found.st_ctime_ns)

    def tags(self) -> dict[str, tuple[str, int]]:
        """Return what every tag points to; symlinks of another form are left aside."""
        found = {}
        for entry in _entries(self.refs):
            if not entry.is_symlink() or not is_tag(entry.name):
                continue
            try:
                up, _, rest = os.readlink(entry.path).partition("/checkpoints/")
            except FileNotFoundError:  # it was taken away meanwhile
                continue
            run, _, step = rest.partition("/")
            if up == ".." and RUN_PATTERN.match(run) and STEP_PATTERN.match(step):
                found[entry.name] = (run, int(step))
        return found


def step_of(name: str) -> int | None:
    """Return the step whose directory has this name; None if no step can have it."""
    return int(name) if STEP_PATTERN.match(name) and int(name) <= MAX_STEP else None


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []
