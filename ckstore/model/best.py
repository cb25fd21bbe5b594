"""Which checkpoint is the best by a metric: a rule of retention, and the ref ``best:METRIC``."""

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
from ckstore.tracebacks import short_init

_MODES = ("min", "max")
_COUNT = re.compile(r"[0-9]{1,16}\Z")


@short_init
@dataclass(frozen=True, slots=True)
class Best:
    """The `n` checkpoints with the best value of a metric; of equal values the newer is better, nan never counts.

    Attributes:
        metric: Its name, as given to `Store.save` or `Store.annotate`.
        mode: With ``min`` the smallest number is best, with ``max`` the greatest. If None is given, it is what the name
            plainly says: ``min`` for a loss or an error, ``max`` for an accuracy or another score.
        n: How many.

    Raises:
        BadInput: An argument is invalid, or no mode is given and the name does not plainly say one.
    """

    metric: str
    mode: Literal["min", "max"] | None = None
    n: int = 1

    def __post_init__(self) -> None:
        _check_metric(self.metric)
        # Frozen for callers; its readers find a mode here whether one was given or not.
        object.__setattr__(self, "mode", _checked_mode(self.metric, self.mode, lambda mode: f"mode={mode!r}"))
        check_count(self.n, "Best: n")

    def __str__(self) -> str:
        return printable(f"{f'{self.n} ' if self.n > 1 else ''}best by {self.metric} ({self.mode})")


def best_of(text: str, before: str = "") -> Best:
    """Return the rule that ``METRIC[:min|max[:N]]`` says; a colon in a metric's name needs the mode behind it.

    Args:
        text: The rule.
        before: What the user writes before the rule, such as ``best:``, for the hint.
    """
    # A misspelt mode is never taken for a part of the name.
    # From the right: names of metrics have colons, modes and counts have none.
    metric, *rest = text.rsplit(":", 2)
    if len(rest) == 2 and rest[0] not in _MODES:
        metric, rest = f"{metric}:{rest[0]}", rest[1:]
    count = rest[1] if len(rest) == 2 else "1"
    if not metric or (rest and rest[0] not in _MODES) or not _COUNT.match(count):
        raise BadInput(f"wanted METRIC, METRIC:min, METRIC:max or METRIC:max:3, got {text!r}")
    mode = _checked_mode(metric, rest[0] if rest else None, lambda mode: f"{before}{metric}:{mode}")
    return Best(metric, mode, int(count))


def opposite_mode(best: Best) -> Mode | None:
    """Return the mode that the name of a metric plainly says, if the rule has the other one; None otherwise."""
    said = mode_by_name(best.metric)
    return None if said == best.mode else said


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


def _checked_mode(metric: str, mode: object, spelling: Callable[[Mode], str]) -> Mode:
    """Return `mode`, or the mode that the name of the metric says if it is None.

    Args:
        metric: The name.
        mode: What the caller was given.
        spelling: Returns how the user writes a mode, for the hint.

    Raises:
        BadInput: There is no such mode, or the name does not say one.
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


def _check_metric(value: object) -> None:
    if not isinstance(value, str) or not value:
        raise BadInput(f"Best: metric must be the name of a metric, got {shown(value)}")


def check_count(value: object, what: str) -> int:
    """Return a number of things, at least one."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= SAFE_INT:
        raise BadInput(f"{what} must be an integer from 1, got {shown(value)}")
    return value
