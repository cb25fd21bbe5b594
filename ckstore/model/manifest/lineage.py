"""What a process keeps of the tensors of a checkpoint for the save that continues it. Values only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ckstore.model.manifest.health import FINITE, Health, NonFiniteCount

Counts = dict[tuple[str, str], NonFiniteCount]
"""By the digest of a piece, or those of a whole storage together, and the name of the form of its numbers."""


@dataclass(frozen=True, slots=True)
class CountedPieces:
    """What a save has counted."""

    counts: Counts = field(default_factory=dict)
    settled: frozenset[str] = frozenset()  # names of the sources in which nothing was new
    sick: frozenset[str] = frozenset()  # names of the sources that have values that are not finite
    turn: int = 0  # how many saves have counted; each looks at other parts of large pieces

    def to_json(self) -> list[list[Any]]:
        """Return the counts of what is not finite: piece, form, NaN, infinite."""
        return [[*key, *count] for key, count in self.counts.items() if count != FINITE]

    @classmethod
    def of_parts(cls, parts: Iterable[Sequence[Sequence[Any]]]) -> CountedPieces:
        """Return the counts of several parts together, given as `to_json` returns them."""
        return cls({(piece, form): NonFiniteCount(nan, inf) for part in parts for piece, form, nan, inf in part})


@dataclass(frozen=True, slots=True)
class Lineage:
    """What is known of the tensors of a checkpoint, for the save that continues it."""

    id: str
    step: int
    health: Health | None
    counted: CountedPieces
    parts: Mapping[str, int]  # of each part with tensors of floating point numbers what tells that they are the same
    names: frozenset[str]  # of these tensors
