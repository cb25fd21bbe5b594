"""Rules for the best checkpoints by a metric, for retention and the ref ``best:METRIC``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from ckstore.errors import BadInput
from ckstore.model.canonical import SAFE_INT
from ckstore.model.document import shown
from ckstore.model.metric_names import Mode, mode_by_name
from ckstore.model.words import printable

_MODES = ("min", "max")
_COUNT = re.compile(r"[0-9]{1,16}\Z")


@dataclass(frozen=True, slots=True)
class Best:
    """The `n` checkpoints with the best values of a metric.

    If values are equal, the newest checkpoint is the best. A checkpoint with the value NaN is never one of the best.

    Attributes:
        metric: Name of the metric, as given to `Store.save` or `Store.annotate`.
        mode: ``min`` if the smallest value is best, ``max`` if the greatest value is best. If no mode is given, it is
            derived from the name of the metric: ``min`` for a loss or an error, ``max`` for an accuracy or another
            score.
        n: Number of checkpoints.

    Raises:
        BadInput: An argument is invalid, or no mode is given and the name does not clearly imply one.
    """

    metric: str
    mode: Literal["min", "max"] | None = None
    n: int = 1

    def __post_init__(self) -> None:
        metric: object = self.metric  # a caller without a type checker may pass any value
        if not isinstance(metric, str) or not metric:
            raise BadInput(f"Best: metric must be the name of a metric, got {shown(metric)}")
        # Set the mode although the class is frozen, so that `mode` of an instance is never None.
        object.__setattr__(self, "mode", _checked_mode(self.metric, self.mode, lambda mode: f"mode={mode!r}"))
        check_count(self.n, "Best: n")

    def __str__(self) -> str:
        return printable(f"{f'{self.n} ' if self.n > 1 else ''}best by {self.metric} ({self.mode})")


def best_of(text: str, before: str = "") -> Best:
    """Parse a rule ``METRIC[:min|max[:N]]``; the mode is required if the name of the metric has a colon.

    Args:
        text: The rule.
        before: Text that the user writes before the rule, such as ``best:``, for the hint.
    """
    # A misspelt mode is never treated as a part of the name. Split from the right, because names of metrics may have
    # colons, but modes and counts have none.
    metric, *rest = text.rsplit(":", 2)
    if len(rest) == 2 and rest[0] not in _MODES:
        metric, rest = f"{metric}:{rest[0]}", rest[1:]
    count = rest[1] if len(rest) == 2 else "1"
    if not metric or (rest and rest[0] not in _MODES) or not _COUNT.match(count):
        raise BadInput(f"wanted METRIC, METRIC:min, METRIC:max or METRIC:max:3, got {text!r}")
    mode = _checked_mode(metric, rest[0] if rest else None, lambda mode: f"{before}{metric}:{mode}")
    return Best(metric, mode, int(count))


def opposite_mode(best: Best) -> Mode | None:
    """Return the mode that the name of the metric clearly implies if `best` has the opposite mode, otherwise None."""
    said = mode_by_name(best.metric)
    return None if said == best.mode else said


def metrics_there(found: Iterable[Mapping[str, float]], wanted: str) -> str:
    """Return a hint that names the existing metrics, or only the metric whose name is most similar to `wanted`."""
    from difflib import get_close_matches  # only needed for an error

    names = sorted({name for metrics in found for name in metrics})
    if wanted in names:
        return f"{wanted} is nan in all checkpoints that have it"
    near = get_close_matches(wanted, names, n=1)
    if near:
        return f"did you mean {near[0]}?"
    return f"existing metrics: {', '.join(names[:5])}" if names else "the checkpoints have no metrics"


def _checked_mode(metric: str, mode: object, spelling: Callable[[Mode], str]) -> Mode:
    """Return `mode`, or the mode that the name of the metric implies if no mode is given.

    Args:
        metric: The name of the metric.
        mode: The mode from the user, or None.
        spelling: Returns the text that the user writes for a mode, for the hint.

    Raises:
        BadInput: The mode is invalid, or the name does not imply one.
    """
    if mode is None:
        found = mode_by_name(metric)
        if found is None:
            msg = f"the name {shown(metric)} does not say whether the smallest or the greatest number is best"
            raise BadInput(msg, hint=f"write {spelling('min')} or {spelling('max')}")
        return found
    if mode == "min":
        return "min"
    if mode == "max":
        return "max"
    raise BadInput(f"Best: mode must be 'min' or 'max', got {shown(mode)}")


def check_count(value: object, what: str) -> int:
    """Return `value` if it is a count of at least one, otherwise raise an error."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= SAFE_INT:
        raise BadInput(f"{what} must be an integer from 1, got {shown(value)}")
    return value
