"""Facts about the tensors of a checkpoint, which a process keeps in memory for the next save."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ckstore.model.manifest.health import FINITE, Health, NonFiniteCount

Counts = dict[tuple[str, str], NonFiniteCount]
"""Counts of values that are not finite.

A key consists of the digest of a piece, or the joined digests of a whole storage, followed by the name of the number
format.
"""


@dataclass(frozen=True, slots=True)
class CountedPieces:
    """The counts of values that are not finite, from one save."""

    counts: Counts = field(default_factory=dict)
    settled: frozenset[str] = frozenset()  # names of the sources without new data
    sick: frozenset[str] = frozenset()  # names of the sources with values that are not finite
    turn: int = 0  # number of saves that have counted values; each save examines other parts of large pieces

    def to_json(self) -> list[list[Any]]:
        """Return the counts that are not zero, each as a list of piece, number format, NaN and infinite values."""
        return [[*key, *count] for key, count in self.counts.items() if count != FINITE]

    @classmethod
    def of_parts(cls, parts: Iterable[Sequence[Sequence[Any]]]) -> CountedPieces:
        """Combine the counts of several parts, which are given in the form of `to_json`."""
        return cls({(piece, form): NonFiniteCount(nan, inf) for part in parts for piece, form, nan, inf in part})


@dataclass(frozen=True, slots=True)
class Lineage:
    """The known facts about the tensors of a checkpoint, for the save that continues the checkpoint."""

    id: str
    step: int
    health: Health | None
    counted: CountedPieces
    # Each part with tensors of floating-point numbers -> a value that is equal if these tensors are equal.
    parts: Mapping[str, int]
    names: frozenset[str]  # names of these tensors
