"""Retention policies: the rules by which checkpoints are kept. What they say of a history: `retention_plan`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ckstore.errors import BadInput
from ckstore.model.canonical import SAFE_INT
from ckstore.model.document import refuse, shown
from ckstore.model.times import duration_s
from ckstore.model.words import printable
from ckstore.tracebacks import short_tracebacks

_RULES = ("keep_last", "keep_every", "keep_best", "keep_within")
_BEST_MEMBERS = ("metric", "mode", "n")
_MODES = ("min", "max")


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
        _count(self.n, "Best: n")

    def __str__(self) -> str:
        return printable(f"{f'{self.n} ' if self.n > 1 else ''}best by {self.metric} ({self.mode})")


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Which checkpoints of each run to keep: those that any of the rules keeps.

    Attributes:
        keep_last: The newest so many, by order of commits.
        keep_every: Those whose step is a multiple of this.
        keep_best: `Best`, or its text ``METRIC[:min|max[:N]]``, or several; kept as a tuple, empty for none.
        keep_within: Those saved in the last ``7d``, ``36h``, ``90m`` or so many seconds.

    Raises:
        BadInput: An argument is invalid, or there is no rule at all: an empty policy deletes nothing.
    """

    keep_last: int | None = None
    keep_every: int | None = None
    keep_best: Best | str | Sequence[Best | str] | None = None
    keep_within: str | float | None = None

    @short_tracebacks
    def __post_init__(self) -> None:
        if self.keep_last is not None:
            _count(self.keep_last, "keep_last")
        if self.keep_every is not None:
            _count(self.keep_every, "keep_every")
        # Frozen for callers; one form of it for all readers.
        object.__setattr__(self, "keep_best", _bests(self.keep_best))
        if self.keep_within is not None:
            duration_s(self.keep_within, "keep_within")
        if self.keep_last is None and self.keep_every is None and not self.keep_best and self.keep_within is None:
            raise BadInput(
                "a retention policy must have a rule, got none: it would keep nothing",
                hint=f"give one of {', '.join(_RULES)}",
            )

    @property
    def bests(self) -> tuple[Best, ...]:
        """The rules in `keep_best`."""
        return _bests(self.keep_best)

    def to_json(self) -> dict[str, Any]:
        """Return the policy as plain JSON, for ``config.json``; rules that it does not have are left out."""
        found = {
            "keep_last": self.keep_last,
            "keep_every": self.keep_every,
            "keep_best": [{"metric": b.metric, "mode": b.mode, "n": b.n} for b in self.bests] or None,
            "keep_within": self.keep_within,
        }
        return {name: value for name, value in found.items() if value is not None}

    @classmethod
    def from_json(cls, value: object, where: str) -> RetentionPolicy:
        """Return the policy that `to_json` gave.

        Raises:
            BadInput: It is not a policy, or has a rule that this ckstore does not know: without that rule too much
                would be deleted.
        """
        members = _members(value, where, "a retention policy", _RULES)
        bests = members.get("keep_best", [])
        if not isinstance(bests, list):
            refuse(where, "keep_best", "an array", bests)
        try:
            made = [Best(**_members(best, where, "keep_best", _BEST_MEMBERS)) for best in bests]
            return cls(**{**members, "keep_best": made})
        except (BadInput, TypeError) as error:
            raise BadInput(f"{where}: {error}") from error


def best_of(text: str) -> Best:
    """Return the rule that ``METRIC[:min|max[:N]]`` says; a colon in a metric's name needs the mode behind it.

    Raises:
        BadInput: It cannot be read. A misspelt mode is never taken for a part of the name.
    """
    # From the right: names of metrics have colons, modes and counts have none.
    metric, *rest = text.rsplit(":", 2)
    if len(rest) == 2 and rest[0] not in _MODES:
        metric, rest = f"{metric}:{rest[0]}", rest[1:]
    count = rest[1] if len(rest) == 2 else "1"
    if not metric or (rest and rest[0] not in _MODES) or not count.isascii() or not count.isdigit():
        raise BadInput(f"wanted METRIC, METRIC:min, METRIC:max or METRIC:max:3, got {text!r}")
    return Best(metric, "max" if rest and rest[0] == "max" else "min", int(count))


def metrics_there(found: Iterable[Mapping[str, float]], wanted: str) -> str:
    """Say which metrics checkpoints have, and which of them is spelt nearly as the one that was wanted."""
    from difflib import get_close_matches  # for an error alone

    names = sorted({name for metrics in found for name in metrics})
    near = get_close_matches(wanted, names, n=1)
    if near:
        return f"did you mean {near[0]}?"
    return f"metrics there: {', '.join(names[:5])}" if names else "they have no metrics"


def _check_metric(value: object) -> None:
    if not isinstance(value, str) or not value:
        raise BadInput(f"Best: metric must be the name of a metric, got {shown(value)}")


def _count(value: object, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= SAFE_INT:
        raise BadInput(f"{what} must be an integer from 1, got {shown(value)}")
    return value


def _bests(value: object) -> tuple[Best, ...]:
    if value is None:
        return ()
    single = isinstance(value, Best | str)
    given = (value,) if single else tuple(value) if isinstance(value, Iterable) else (None,)
    bests = tuple(best_of(best) if isinstance(best, str) else best for best in given if isinstance(best, Best | str))
    if len(bests) != len(given):
        raise BadInput(f"keep_best must be a Best or several, got {shown(value)}", hint='Best("loss", mode="min")')
    return bests


def _members(value: object, where: str, what: str, known: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        refuse(where, what, "an object", value)
    unknown = sorted(str(name) for name in value if name not in known)
    if unknown:
        refuse(where, what, f"no members but {', '.join(known)}", ", ".join(unknown), words=True)
    return dict(value)
