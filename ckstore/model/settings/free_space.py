"""The space that a save needs, the free space, and advice on how to free more, without I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ckstore.model.sizes import needed_and_free, size_text


@dataclass(frozen=True, slots=True)
class Amount:
    """A number of bytes and of inodes, which are added and compared together."""

    nbytes: int = 0
    inodes: int = 0  # files and directories

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.nbytes + other.nbytes, self.inodes + other.inodes)

    def covers(self, other: Amount) -> bool:
        """Return whether this amount has at least the bytes and the inodes of `other`."""
        return self.nbytes >= other.nbytes and self.inodes >= other.inodes


@dataclass(frozen=True, slots=True)
class Need:
    """The additional space that a save takes, and the free space."""

    new: Amount
    free_bytes: int
    free_inodes: int | None  # None if the filesystem counts no inodes

    @property
    def missing(self) -> Amount:
        """The amount that must be freed for the save to fit."""
        # btrfs and some network filesystems count no inodes and cannot run out of them.
        inodes = 0 if self.free_inodes is None else max(0, self.new.inodes - self.free_inodes)
        return Amount(max(0, self.new.nbytes - self.free_bytes), inodes)

    @property
    def fits(self) -> bool:
        """Whether the save fits without freeing any space."""
        return self.missing == Amount()

    def __str__(self) -> str:
        parts = []
        if self.missing.nbytes:
            parts.append(needed_and_free(self.new.nbytes, self.free_bytes))
        if self.missing.inodes:
            parts.append(f"{self.new.inodes} inodes, {self.free_inodes} are free")
        return " and ".join(parts)


@dataclass(frozen=True, slots=True)
class Way:
    """An action that would free space."""

    action: str  # a command
    frees: Amount  # the amount that it would free


def shortest(freed: Sequence[Amount], missing: Amount) -> int | None:
    """Return how many amounts from the start of `freed` cover `missing` together, or None if all do not cover it."""
    total = Amount()
    for count, amount in enumerate([Amount(), *freed]):
        total += amount
        if total.covers(missing):
            return count
    return None


def advice(ways: Sequence[Way], missing: Amount | None) -> str:
    """Return a text on the amount that each way would free.

    If `missing` is given, the text ends with the first way that covers it.
    """
    useful: list[Way] = []
    for way in ways:
        if _in_words(way.frees, missing) != _in_words(useful[-1].frees if useful else Amount(), missing):
            useful.append(way)
        if missing is not None and useful and useful[-1].frees.covers(missing):
            break
    if not useful:
        return "nothing in the store can be dropped or freed: free space on the filesystem, then save again"
    said = ", ".join(f"{way.action} would free {_in_words(way.frees, missing)}" for way in useful)
    enough = missing is None or useful[-1].frees.covers(missing)
    return said if enough else f"{said}. That is not enough, so also free space on the filesystem"


def _in_words(amount: Amount, missing: Amount | None) -> str:
    words = []
    if missing is None or missing.nbytes or not missing.inodes:
        words.append(size_text(amount.nbytes))
    if missing is not None and missing.inodes:
        words.append(f"{amount.inodes} inodes")
    return " and ".join(words)
