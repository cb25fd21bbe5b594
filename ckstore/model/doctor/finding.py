"""A finding of `Store.doctor`: the subject, its state, and the recommended action."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from ckstore.model.brief import brief
from ckstore.model.reports.check_result import Level
from ckstore.model.reports.held_blobs import DeletedFile
from ckstore.model.words import counted, printable

LEVELS: tuple[Level, ...] = get_args(Level)
MARGIN = max(map(len, LEVELS)) + 2
"""Number of columns for the level before the text of a finding."""


@brief()
@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """The result of one check.

    Attributes:
        level: Severity of the finding.
        what: The subject of the check in stable words, such as ``filesystem`` or ``free space``.
        found: The state of the subject, with numbers.
        do: Recommended action. Empty only if the level is ``ok``.
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
    """The result of `ckstore.Store.doctor`.

    Attributes:
        findings: The results of all checks, in a fixed order.
        leaks: Deleted files of the store that a process of any program still has open, beginning with the largest, and
            these processes. Root sees the processes of all users. Another user sees only their own processes.
    """

    findings: tuple[DoctorFinding, ...]
    leaks: tuple[DeletedFile, ...] = ()

    @property
    def worst(self) -> Level:
        """The worst level of all findings."""
        return max((finding.level for finding in self.findings), key=LEVELS.index, default="ok")

    @property
    def ok(self) -> bool:
        """Whether no finding is an error."""
        return self.worst != "error"

    def __str__(self) -> str:
        return "\n".join([*map(str, self.findings), summary(self)])  # not shortened, because any line may be an error


def summary(report: DoctorReport) -> str:
    """Return the number of findings of each level, beginning with the worst, such as ``2 warnings, 12 ok``."""
    counts = [(level, sum(finding.level == level for finding in report.findings)) for level in reversed(LEVELS)]
    return (
        ", ".join(f"{count} ok" if level == "ok" else counted(count, level) for level, count in counts if count)
        or "nothing was checked"
    )


def ok(what: str, found: str) -> DoctorFinding:
    """Return a finding of the level ``ok``."""
    return DoctorFinding("ok", what, found)


def age_words(age_s: float) -> str:
    """Return an age as text, such as ``40 seconds``, ``3 hours`` or ``12 days``."""
    for unit_s, unit in ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        count = int(age_s // unit_s)
        if count >= 2 or unit_s == 1:
            return counted(max(count, 0), unit)
    return "0 seconds"
