"""A finding: what was looked at, what is so, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ckstore.model.brief import brief
from ckstore.model.reports.held_blobs import DeletedFile
from ckstore.model.words import counted, printable

Level = Literal["ok", "note", "warning", "error"]
"""``ok``; ``note``: good to know; ``warning``: something costs, or will go wrong; ``error``: a promise is not kept."""

LEVELS: tuple[Level, ...] = get_args(Level)
MARGIN = max(map(len, LEVELS)) + 2
"""Columns before what a finding says: its level stands there."""


@brief()
@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One thing that was looked at.

    Attributes:
        level: How bad it is.
        what: What was looked at, in stable words: ``filesystem``, ``free space`` …
        found: What is so, with numbers.
        do: What to do about it; empty only where all is well.
    """

    level: Level
    what: str
    found: str
    do: str = ""

    def __post_init__(self) -> None:
        if self.level != "ok" and not self.do:
            raise ValueError(f"{self.what}: a finding of the level {self.level} must say what to do")

    def __str__(self) -> str:
        margin = " " * MARGIN
        do = f"\n{margin}do: {printable(self.do)}" if self.do else ""
        return f"{self.level:{MARGIN}}{printable(f'{self.what}: {self.found}')}{do}"


@brief()
@dataclass(frozen=True, slots=True)
class DoctorReport:
    """What `ckstore.Store.doctor` found.

    Attributes:
        findings: Everything that was looked at, in a fixed order.
        leaks: Deleted files of the store that still take space, largest first, with their holders.
            Files of other programs are among them. As root all processes are seen, otherwise your own.
    """

    findings: tuple[DoctorFinding, ...]
    leaks: tuple[DeletedFile, ...] = ()

    @property
    def worst(self) -> Level:
        """The worst level of all findings."""
        return max((finding.level for finding in self.findings), key=LEVELS.index, default="ok")

    @property
    def ok(self) -> bool:
        """Whether nothing is an error."""
        return self.worst != "error"

    def __str__(self) -> str:
        return "\n".join([*map(str, self.findings), summary(self)])  # whole: an error may be the last


def summary(report: DoctorReport) -> str:
    """Return how many findings there are of each level, the worst first: ``2 warnings, 12 ok``."""
    counts = [(level, sum(finding.level == level for finding in report.findings)) for level in reversed(LEVELS)]
    return (
        ", ".join(f"{count} ok" if level == "ok" else counted(count, level) for level, count in counts if count)
        or "nothing was looked at"
    )


def ok(what: str, found: str) -> DoctorFinding:
    """Return the finding that all is well."""
    return DoctorFinding("ok", what, found)


def age_words(age_s: float) -> str:
    """Return an age as a sentence has it: ``40 seconds``, ``3 hours``, ``12 days``."""
    for unit_s, unit in ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        count = int(age_s // unit_s)
        if count >= 2 or unit_s == 1:
            return counted(max(count, 0), unit)
    return "0 seconds"
