"""What a disk may hold after a power cut, from the log of what was written to it; no disk here.

A disk keeps every write that was complete before a flush that it has answered. Of the writes after that it may keep
any, in any order, and of one of them a part of its sectors. So an image is: all writes up to a flush, and some of the
writes between that flush and the next. What had been acknowledged is known from the marks in the log.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

from tests.crash.recorder import Entry
from tests.faults.journal import Fact, Place, Promised, promised_by

SECTOR = 512
"""What the content of a disk is compared by."""
TORN_AT = 4096
"""A disk writes a block of so many bytes whole or not at all.

With half a superblock of ext4, which it writes without its journal, that filesystem cannot be mounted any more (seen).
"""
ALL_SUBSETS_OF = 6
"""Between two flushes with so many writes every subset is tried; of more, some are drawn."""
_TRIES_PER_IMAGE = 20
Read = Callable[[int, int], bytes]
"""Offset and size -> what is there; shorter where the rest is zero."""


@dataclass(frozen=True)
class Image:
    """One state of the disk.

    Attributes:
        writes: The writes that it has, as numbers of entries of the log, in their order.
        torn: Of the last of these only the first so many bytes; None: all.
        known: How many entries of the log were made before the power went.
    """

    writes: tuple[int, ...]
    torn: int | None
    known: int


@dataclass(frozen=True)
class Epoch:
    """The time from one flush to the next.

    Attributes:
        durable: The writes before it.
        writes: Those in it.
        end: Number of the entry that ends it.
    """

    durable: tuple[int, ...]
    writes: tuple[int, ...]
    end: int


class Log:
    """A log and what it allows.

    Attributes:
        entries: Of the disk in userspace.
        before: Lines of the journal that were written before the log begins.
    """

    def __init__(self, entries: Sequence[Entry], before: str = "", base: Read = lambda offset, nbytes: b"") -> None:
        """`base` reads from the disk as it was when the log begins; without it the disk was empty."""
        self.entries = entries
        self.before = before
        self._base = base

    @cached_property
    def epochs(self) -> list[Epoch]:
        """The times between flushes in which something was written."""
        found: list[Epoch] = []
        durable: list[int] = []
        open_writes: list[int] = []
        for number, entry in enumerate([*self.entries, Entry("flush")]):
            if entry.what == "write":
                open_writes.append(number)
            elif entry.what == "flush" and open_writes:
                found.append(Epoch(tuple(durable), tuple(open_writes), number))
                durable += open_writes
                open_writes = []
        return found

    def prefixes(self) -> Iterator[Image]:
        """Every state that the disk has if it keeps the order: the first N writes, for every N.

        The power goes when the next write is about to be made, so that as much as possible was acknowledged.
        """
        writes = [number for number, entry in enumerate(self.entries) if entry.what == "write"]
        for count in range(len(writes) + 1):
            known = writes[count] if count < len(writes) else len(self.entries)
            yield Image(tuple(writes[:count]), None, known)

    def subsets(self) -> Iterator[Image]:
        """Every subset of the writes between two flushes, where these are few. The power goes at the next flush."""
        for epoch in self.epochs:
            if len(epoch.writes) <= ALL_SUBSETS_OF:
                for count in range(len(epoch.writes) + 1):
                    for chosen in combinations(epoch.writes, count):
                        yield Image(epoch.durable + chosen, None, epoch.end)

    def drawn(self, seed: int) -> Iterator[Image]:
        """Subsets of the writes between two flushes, some with a torn write; without end, with repetitions."""
        drawn = random.Random(seed)
        while self.epochs:
            # Where much is written there is more to get wrong.
            epoch = drawn.choices(self.epochs, [1 + len(epoch.writes) for epoch in self.epochs])[0]
            share = drawn.choice((0.1, 0.5, 0.9))
            chosen = [number for number in epoch.writes if drawn.random() < share]
            torn = None
            if chosen and drawn.random() < 0.3:
                last = drawn.choice(chosen)
                chosen = [*(number for number in chosen if number != last), last]
                torn = self._torn(drawn, last)
            yield Image(epoch.durable + tuple(chosen), torn, epoch.end)

    def _torn(self, drawn: random.Random, number: int) -> int | None:
        """Return how many bytes of a write reach the disk: up to the beginning of a block, drawn from all in it."""
        entry = self.entries[number]
        inner = range(entry.offset - entry.offset % TORN_AT + TORN_AT, entry.offset + len(entry.data), TORN_AT)
        return drawn.choice(inner) - entry.offset if inner else None

    def contents(self, image: Image) -> list[tuple[int, int]]:
        """Return the writes of an image as (number of the entry, bytes of it that are kept)."""
        kept = [(number, len(self.entries[number].data)) for number in image.writes]
        if kept and image.torn is not None:
            kept[-1] = (kept[-1][0], image.torn)
        return kept

    def digest(self, image: Image) -> bytes:
        """Return a digest of what the disk holds, the same for two images of this log if and only if that is the same.

        Two images with other writes may hold the same: one write covers another, or writes what was there.
        """
        sectors: dict[int, int] = {}
        for number, nbytes in self.contents(image):
            known = self._sectors[number]
            if nbytes == len(self.entries[number].data):
                sectors.update(known)
            else:
                first = self.entries[number].offset // SECTOR
                sectors.update({at: known[at] for at in range(first, first + nbytes // SECTOR)})
        combined = 0
        for digest in sectors.values():
            combined ^= digest  # it tells its place, so the order does not matter
        return combined.to_bytes(16, "little")

    def promised(self, known: int) -> Promised:
        """Return what had been promised when so many entries were made."""
        marks = [entry.data for entry in self.entries[:known] if entry.what == "mark"]
        return promised_by([*self.before.splitlines(), *b"".join(marks).decode().splitlines()])

    @cached_property
    def _sectors(self) -> list[dict[int, int]]:
        """Of each write: sector -> a digest of its place and content, 0 for what was there when the log begins."""
        found: list[dict[int, int]] = []
        for entry in self.entries:
            first = entry.offset // SECTOR
            here = {}
            if entry.what == "write":
                base = self._base(entry.offset, len(entry.data)).ljust(len(entry.data), b"\0")
                for number in range(len(entry.data) // SECTOR):
                    data = entry.data[number * SECTOR : (number + 1) * SECTOR]
                    same = data == base[number * SECTOR : (number + 1) * SECTOR]
                    here[first + number] = 0 if same else _sector_digest(first + number, data)
            found.append(here)
        return found


def _sector_digest(at: int, data: bytes) -> int:
    digest = hashlib.blake2b(data, digest_size=16, salt=at.to_bytes(8, "little")).digest()
    return int.from_bytes(digest, "little")


@dataclass(frozen=True)
class Case:
    """An image, and all that must hold of it."""

    image: Image
    digest: bytes
    promised: Promised


def choose(log: Log, seed: int, wanted: int, *, sampled: bool = False) -> list[Case]:
    """Return distinct images: every prefix and every subset where they are few, then drawn ones up to `wanted`.

    Of images that hold the same, one is returned, and what was promised for each of them must hold of it.

    Args:
        log: What was written.
        seed: Of what is drawn.
        wanted: At least so many, as far as there are so many within a bounded number of tries.
        sampled: Exactly `wanted` of all these, evenly: for a short run.
    """
    found: dict[bytes, Case] = {}

    def add(image: Image) -> None:
        digest, promised = log.digest(image), log.promised(image.known)
        same = found.get(digest)
        if same is not None:
            promised = _both(same.promised, promised)
            image = same.image
        found[digest] = Case(image, digest, promised)

    for image in (*log.prefixes(), *log.subsets()):
        add(image)
    tries = _TRIES_PER_IMAGE * wanted
    for number, image in enumerate(log.drawn(seed)):
        if len(found) >= wanted or number == tries:
            break
        add(image)
    cases = list(found.values())
    if sampled and len(cases) > wanted:
        return random.Random(seed).sample(cases, wanted)
    return cases


def _both(one: Promised, other: Promised) -> Promised:
    """Return what holds where both hold: the same disk is the end of two stories."""
    options: dict[Place, set[str | None]] = {
        place: one.options.get(place, {None}) & other.options.get(place, {None})
        for place in one.options.keys() | other.options.keys()
    }
    facts: dict[Fact, set[str | None]] = {
        fact: one.facts.get(fact, {None}) & other.facts.get(fact, {None})
        for fact in one.facts.keys() | other.facts.keys()
    }
    return replace(one, options=options, facts=facts, store=one.store or other.store)
