"""A neighbour who may write to a store, and swaps one of its directories for a symlink while its owner is at work.

What the symlink points to is a bait: a copy of that directory outside the store, with files of the same names. So a
step that follows it does not fail for lack of a name, and shows: the bait is compared afterwards, bytes, modes, links
and times. The directory itself lies in ``swap/`` beside the store then; who has it open may go on in it.
"""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.states import CHUNK_BYTES
from tests.support.exchange import exchange

HERE = "here"
"""The directory of the call that is hit."""
ABOVE = "above"
"""The directory above that."""
PLACES = {
    "blobs": "blobs",
    "blobs/ab": "blobs/*",
    "checkpoints": "checkpoints",
    "checkpoints/run": "checkpoints/*",
    "checkpoints/run/step": "checkpoints/*/*",
    "checkpoints/run/step/blobs": "checkpoints/*/*/blobs",
    "staging": "staging",
    "staging/x": "staging/*",
    "trash": "trash",
    "trash/x": "trash/*",
    "refs": "refs",
    "pins": "pins",
    "reserve": "reserve",
    "quarantine": "quarantine",
}
"""Directories of a store, by a pattern; of several the first."""
_OF_CHECKPOINTS = ("checkpoints", "staging", "trash")
KINDS = (HERE, ABOVE, *PLACES)

Seen = dict[str, tuple[object, ...]]


@dataclass
class Neighbour:
    """Swaps once, as soon as it can.

    Attributes:
        store: The store.
        kind: Which directory, of `KINDS`.
        back: Whether it swaps back before the next call, so that a look before and one after see nothing.
        swapped: What it swapped; empty: nothing yet.
        error: What went wrong with the neighbour, not with the store.
    """

    store: Path
    kind: str
    back: bool
    swapped: str = ""
    error: str = ""
    _before: Seen = field(default_factory=dict)
    _done: bool = False

    def __post_init__(self) -> None:
        for folder in (self._outside, self._swap):
            folder.mkdir()
        (self._outside / "thesis.txt").write_bytes(bytes(CHUNK_BYTES // 64))
        self._before = seen(self._outside)

    @property
    def _outside(self) -> Path:
        return self.store.parent / "outside"

    @property
    def _swap(self) -> Path:
        return self.store.parent / "swap"

    def hid_a_checkpoint(self) -> bool:
        """Whether what it swapped is a checkpoint, or holds some: listed, dropped or about to be published."""
        below = Path(self.swapped or self.store).relative_to(self.store).parts
        return bool(below) and below[0] in _OF_CHECKPOINTS

    def before_a_call(self, path: str) -> None:
        """Be called before each call from the one that is hit on, with its path."""
        try:
            self._act(path)
        except Exception as error:  # nothing of it gets through the call of C that it is called from
            self.error = f"{type(error).__name__}: {error}"

    def _act(self, path: str) -> None:
        if self.swapped:
            if self.back and not self._done:
                self._done = True
                with suppress(OSError):  # it was renamed meanwhile
                    exchange(Path(self.swapped), self._swap / "it")
            return
        victim = self._victim(Path(path))
        if victim is None:
            return
        bait = self._outside / "bait"
        shutil.copytree(victim, bait, symlinks=True)
        self._before = seen(self._outside)
        (self._swap / "it").symlink_to(bait)
        exchange(victim, self._swap / "it")
        self.swapped = str(victim)

    def _victim(self, path: Path) -> Path | None:
        if self.kind in PLACES:
            found = sorted(there for there in self.store.glob(PLACES[self.kind]) if there.is_dir())
            return found[0] if found else None
        victim = path.parent if self.kind == HERE else path.parent.parent
        below = self.store in victim.parents
        return victim if below and victim.is_dir() and not victim.is_symlink() else None

    def wrong(self) -> list[str]:
        """Return what was touched outside the store."""
        if self.error:
            return [f"the neighbour failed: {self.error}"]
        after = seen(self._outside)
        return [
            f"outside/{name} was touched: {self._before.get(name)} is {after.get(name)}"
            for name in sorted(self._before.keys() | after.keys())
            if self._before.get(name) != after.get(name)
        ]


def seen(folder: Path) -> Seen:
    """Return all that can be told of everything below a directory but when it was read."""
    found: Seen = {}
    for path in [folder, *folder.rglob("*")]:
        status = path.lstat()
        content: object = None
        if stat.S_ISREG(status.st_mode):
            content = hash(path.read_bytes())
        elif stat.S_ISLNK(status.st_mode):
            content = os.readlink(path)
        found[str(path.relative_to(folder))] = (
            status.st_mode,
            status.st_nlink,
            status.st_uid,
            status.st_gid,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
            status.st_ino,
            content,
        )
    return found
