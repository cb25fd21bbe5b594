"""The result of a check that another package adds to a report."""

from __future__ import annotations

from typing import Literal, NamedTuple

Level = Literal["ok", "note", "warning", "error"]
"""``ok``, ``note`` (useful to know), ``warning`` (a cost or a future failure) or ``error`` (a promise is broken)."""


class CheckResult(NamedTuple):
    """The members of a finding; `ckstore.model.doctor.finding` describes them."""

    level: Level
    what: str
    found: str
    do: str = ""
