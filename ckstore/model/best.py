"""Which checkpoint is the best by a metric: a rule of retention, and the ref ``best:METRIC``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from ckstore.errors import BadInput
from ckstore.model.canonical import SAFE_INT
from ckstore.model.document import shown
from ckstore.model.words import printable
from ckstore.tracebacks import short_tracebacks

_MODES = ("min", "max")
_COUNT = re.compile(r"[0-9]{1,16}\Z")


@dataclass(frozen=True, slots=True)
class Best:
    """The `n` checkpoints with the best value of a metric; of equal values the newer is better, nan never counts.

    Attributes:
        metric: Its name, as given to `Store.save` or `Store.annotate`.
        mode: ``min``: the smallest is best; ``max``: the greatest.
        n: How many.

    Raises:
        BadInput: An argument is invalid.
    """

    metric: str
    mode: Literal["min", "max"] = "min"
    n: int = 1

    @short_tracebacks
    def __post_init__(self) -> None:
        _check_metric(self.metric)
        if self.mode not in _MODES:
            raise BadInput(f"Best: mode must be 'min' or 'max', got {shown(self.mode)}")
        check_count(self.n, "Best: n")

    def __str__(self) -> str:
        return printable(f"{f'{self.n} ' if self.n > 1 else ''}best by {self.metric} ({self.mode})")


def best_of(text: str) -> Best:
    """Return the rule that ``METRIC[:min|max[:N]]`` says; a colon in a metric's name needs the mode behind it."""
    # A misspelt mode is never taken for a part of the name.
    # From the right: names of metrics have colons, modes and counts have none.
    metric, *rest = text.rsplit(":", 2)
    if len(rest) == 2 and rest[0] not in _MODES:
        metric, rest = f"{metric}:{rest[0]}", rest[1:]
    count = rest[1] if len(rest) == 2 else "1"
    if not metric or (rest and rest[0] not in _MODES) or not _COUNT.match(count):
        raise BadInput(f"wanted METRIC, METRIC:min, METRIC:max or METRIC:max:3, got {text!r}")
    return Best(metric, "max" if rest and rest[0] == "max" else "min", int(count))


def metrics_there(found: Iterable[Mapping[str, float]], wanted: str) -> str:
    """Say which metrics checkpoints have, and which of them is spelt nearly as the one that was wanted."""
    from difflib import get_close_matches  # for an error alone

    names = sorted({name for metrics in found for name in metrics})
    if wanted in names:
        return f"{wanted} is nan in each that has it"
    near = get_close_matches(wanted, names, n=1)
    if near:
        return f"did you mean {near[0]}?"
    return f"metrics there: {', '.join(names[:5])}" if names else "they have no metrics"


def _check_metric(value: object) -> None:
    if not isinstance(value, str) or not value:
        raise BadInput(f"Best: metric must be the name of a metric, got {shown(value)}")


def check_count(value: object, what: str) -> int:
    """Return a number of things, at least one."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= SAFE_INT:
        raise BadInput(f"{what} must be an integer from 1, got {shown(value)}")
    return value
