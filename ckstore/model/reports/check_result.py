"""The result of a check that another package adds to a report."""

from __future__ import annotations

from typing import Literal, NamedTuple

Level = Literal["ok", "note", "warning", "error"]
"""``ok``, ``note`` (information), ``warning`` (a cost or a possible failure) or ``error`` (a promise is broken)."""


class CheckResult(NamedTuple):
    """The members of a finding, which `ckstore.model.doctor.finding` describes."""

    level: Level
    what: str
    found: str
    do: str = ""
