"""Retention policies, which decide which checkpoints to keep when `retention_plan` applies them to a history."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ckstore.errors import BadInput
from ckstore.model.best import Best, best_of, check_count
from ckstore.model.document import refuse, shown
from ckstore.model.sizes import exact_size, parse_size, size_text
from ckstore.model.times import duration_s

_COUNTS = ("keep_last", "keep_every", "keep_nearest", "keep_hourly", "keep_daily", "keep_weekly")
_RULES = (*_COUNTS, "keep_best", "keep_within", "max_bytes")
_MEMBERS = (*_RULES, "low_bytes")
_BEST_MEMBERS = ("metric", "mode", "n")


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """The rules that decide which checkpoints of each run to keep.

    A checkpoint is kept if any rule keeps it, unless it must be dropped because of `max_bytes`.

    Attributes:
        keep_last: Number of the newest checkpoints to keep, in the order of commits.
        keep_every: Keep checkpoints whose step is a multiple of this number.
        keep_best: A `Best`, its text ``METRIC[:min|max[:N]]``, or several of them. It is stored as a tuple, which is
            empty if there is no such rule.
        keep_within: Keep checkpoints saved within this time, such as ``7d``, ``36h``, ``90m`` or a number of seconds.
        keep_nearest: Keep the checkpoint whose step is nearest to each multiple of this number, for runs that do not
            save exactly at multiples.
        keep_hourly, keep_daily, keep_weekly: Keep the newest checkpoint of each hour, day or week (UTC, weeks start on
            Monday), for this number of the newest hours, days or weeks that have a checkpoint.
        max_bytes: Maximum size of the blobs of a run on disk, counting each blob once. It is a number, or a size such
            as ``500GB``. If the blobs exceed this size, the oldest checkpoints are dropped, even if a rule keeps them.
            The best checkpoints by `keep_best` are dropped last. If there is no other rule, all checkpoints are kept up
            to this size.
        low_bytes: Size down to which checkpoints are dropped once `max_bytes` is exceeded. If None, this is
            `max_bytes`.

    Raises:
        BadInput: An argument is invalid, or the policy has no rule.
    """

    keep_last: int | None = None
    keep_every: int | None = None
    keep_best: Best | str | Sequence[Best | str] | None = None
    keep_within: str | float | None = None
    keep_nearest: int | None = None
    keep_hourly: int | None = None
    keep_daily: int | None = None
    keep_weekly: int | None = None
    max_bytes: int | str | None = None
    low_bytes: int | str | None = None

    def __post_init__(self) -> None:
        for name in _COUNTS:
            if getattr(self, name) is not None:
                check_count(getattr(self, name), name)
        # Set the attribute although the class is frozen, so that all readers find one form of this value.
        object.__setattr__(self, "keep_best", _bests(self.keep_best))
        if self.keep_within is not None:
            duration_s(self.keep_within, "keep_within")
        if (budget := self.budget) is not None:
            object.__setattr__(self, "max_bytes", budget.max_bytes)
            object.__setattr__(self, "low_bytes", budget.low_bytes)
        elif self.low_bytes is not None:
            raise BadInput(f"low_bytes needs a max_bytes, got only low_bytes={shown(self.low_bytes)}")
        if not self.to_json():
            raise BadInput(
                "a retention policy must have a rule, got none: it would keep nothing",
                hint=f"give one of {', '.join(_RULES)}",
            )

    def __repr__(self) -> str:
        given = (f"{name}={getattr(self, name)!r}" for name in _MEMBERS if getattr(self, name) not in (None, ()))
        return f"RetentionPolicy({', '.join(given)})"

    @property
    def bests(self) -> tuple[Best, ...]:
        """The rules in `keep_best`."""
        return _bests(self.keep_best)

    @property
    def budget(self) -> Budget | None:
        """The budget of `max_bytes` and `low_bytes`, or None if the size of a run is not limited."""
        return None if self.max_bytes is None else Budget(self.max_bytes, self.low_bytes)

    @property
    def has_keep_rule(self) -> bool:
        """Whether a rule selects checkpoints to keep; otherwise, all are kept up to the budget."""
        return any(name not in ("max_bytes", "low_bytes") for name in self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Return the policy as plain JSON for ``config.json``, without rules that are not set."""
        bests = [{"metric": b.metric, "mode": b.mode, "n": b.n} for b in self.bests] or None
        found = {name: bests if name == "keep_best" else getattr(self, name) for name in _MEMBERS}
        return {name: value for name, value in found.items() if value is not None}

    @classmethod
    def from_json(cls, value: object, where: str) -> RetentionPolicy:
        """Return the policy from the result of `to_json`.

        Raises:
            BadInput: The value is not a policy, or has a rule that this ckstore does not know. Ignoring the rule would
                drop too many checkpoints.
        """
        members = _members(value, where, "a retention policy", _MEMBERS)
        bests = members.get("keep_best", [])
        if not isinstance(bests, list):
            refuse(where, "keep_best", "an array", bests)
        try:
            made = []
            for best in bests:
                # A rule without a mode has always meant "min". Keep this meaning, whatever the name of the metric
                # suggests.
                rule = {"mode": "min", **_members(best, where, "keep_best", _BEST_MEMBERS)}
                if rule["mode"] is None:
                    refuse(where, "keep_best: mode", "'min' or 'max'", None)
                made.append(Best(**rule))
            return cls(**{**members, "keep_best": made})
        except (BadInput, TypeError) as error:
            raise BadInput(f"{where}: {error}") from error


@dataclass(frozen=True, slots=True)
class Budget:
    """The disk space that the blobs of all checkpoints of a store, or of a run, may take.

    Attributes:
        max_bytes: Size above which checkpoints are dropped, as a number or a text such as ``500GB``.
        low_bytes: Size down to which checkpoints are dropped, so that not every save has to drop one. If None, this is
            `max_bytes`.

    Raises:
        BadInput: A value is not a size, or `low_bytes` is above `max_bytes`.
    """

    max_bytes: int | str
    low_bytes: int | str | None = None

    def __post_init__(self) -> None:
        for name in ("max_bytes", "low_bytes"):
            value = getattr(self, name)
            if value is not None or name == "max_bytes":
                value = parse_size(value) if isinstance(value, str) else value
                object.__setattr__(self, name, check_count(value, name))
        if self.low > self.most:
            got = f"{exact_size(self.low)} and {exact_size(self.most)}"
            raise BadInput(f"low_bytes must be at most max_bytes, got {got}")

    @property
    def most(self) -> int:
        """`max_bytes` as a number."""
        return _number(self.max_bytes)

    @property
    def low(self) -> int:
        """`low_bytes` as a number."""
        return self.most if self.low_bytes is None else _number(self.low_bytes)

    def __str__(self) -> str:
        return f"{size_text(self.most)}{f', down to {size_text(self.low)}' if self.low < self.most else ''}"

    def to_json(self) -> dict[str, Any]:
        """Return the budget as plain JSON, for ``config.json``."""
        low = {} if self.low_bytes is None else {"low_bytes": self.low_bytes}
        return {"max_bytes": self.max_bytes, **low}

    @classmethod
    def from_json(cls, value: object, where: str) -> Budget:
        """Return the budget from the result of `to_json`.

        Raises:
            BadInput: The value is not a budget, or has a member that this ckstore does not know.
        """
        members = _members(value, where, "a budget", ("max_bytes", "low_bytes"))
        try:
            return cls(**members)
        except (BadInput, TypeError) as error:
            raise BadInput(f"{where}: {error}") from error


def _number(size: int | str) -> int:
    return size if isinstance(size, int) else parse_size(size)


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
