"""The health of a training according to its checkpoints: values that are not finite, and parts that do not change.

Source: docs/format/v1.md, "Health". docs/adr/0033-health.md explains the rules. `codecs/nonfinite` counts the values.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ckstore.model.brief import brief
from ckstore.model.canonical import SAFE_INT
from ckstore.model.document import refuse
from ckstore.model.words import counted, named, some_of

_STILL_LEAST = 2  # one unchanged checkpoint at the end of a training is normal, but two in a row may be a fault
_NAME_MOST = 200
_PARTS_SHOWN = 3


class NonFiniteCount(NamedTuple):
    """Number of values that are not finite."""

    nan: int = 0
    inf: int = 0

    def plus(self, other: NonFiniteCount) -> NonFiniteCount:
        """Return the sum of both counts."""
        return NonFiniteCount(self.nan + other.nan, self.inf + other.inf)


FINITE = NonFiniteCount()


@brief()
@dataclass(frozen=True, slots=True)
class NonFinite:
    """A tensor with values that are not finite.

    Attributes:
        name: Name of the tensor in the state. Tensors that share memory are counted together, under the name of the
            first.
        nan: Number of NaN values. A complex number counts as two values.
        inf: Number of infinite values.
        usual_inf: Number of infinite values when the tensor was first saved, in this checkpoint or in an ancestor. A
            mask, for example, has infinite values from the start.
    """

    name: str
    nan: int
    inf: int
    usual_inf: int

    @property
    def is_sick(self) -> bool:
        """Whether the values indicate that the training has diverged."""
        return self.nan > 0 or self.inf > self.usual_inf

    def __str__(self) -> str:
        counts = [f"{self.nan} NaN"] * (self.nan > 0) + [f"{self.inf} infinite"] * (self.inf > 0)
        many = "value" if self.nan + self.inf == 1 else "values"
        return f"{named(self.name)[:_NAME_MOST]} has {' and '.join(counts)} {many}"


@brief()
@dataclass(frozen=True, slots=True)
class Stillness:
    """The changes of a part of a state (a value at the top level) from the first ancestor to this checkpoint.

    Attributes:
        now: Number of latest checkpoints in a row whose tensors equal those of the parent, although the step advanced.
        longest: Number of checkpoints in the longest such row that ended with a change, or -1 if the part has never
            changed.
    """

    now: int = 0
    longest: int = -1

    def then(self, *, equal: bool, advanced: bool) -> Stillness:
        """Return the stillness of a child checkpoint.

        Args:
            equal: Whether the tensors of the part in the child are equal to the tensors in the parent.
            advanced: Whether the step of the child is greater than the step of the parent.
        """
        if not equal:
            return Stillness(0, max(self.longest, self.now))
        return replace(self, now=self.now + advanced)

    def __str__(self) -> str:
        return f"equal to its parent's for {counted(self.now, 'checkpoint')} in a row"


@brief()
@dataclass(frozen=True, slots=True)
class Health:
    """The health of a checkpoint, from its tensors of floating-point numbers.

    Attributes:
        nonfinite: The tensors with values that are not finite, in the order of the state.
        parts: Key -> the changes of the part with this key, for each part with tensors of floating-point numbers.
            Tensors at the top level of the state have the key "".
    """

    nonfinite: tuple[NonFinite, ...] = ()
    parts: Mapping[str, Stillness] = field(default_factory=dict)

    @property
    def sick(self) -> tuple[NonFinite, ...]:
        """The tensors that make the checkpoint unhealthy."""
        return tuple(one for one in self.nonfinite if one.is_sick)

    @property
    def unhealthy(self) -> str:
        """A sentence on why the checkpoint is unhealthy, or an empty string."""
        sick = self.sick
        if not sick:
            return ""
        more = f", and {counted(len(sick) - 1, 'more tensor')}" if len(sick) > 1 else ""
        return f"{sick[0]}{more}"

    @property
    def unchanged(self) -> tuple[str, ...]:
        """The parts that no longer change although they should, sorted.

        A frozen part may never change, and a rarely updated average may pause, so neither is reported. If no part of
        the state changes any more, these are not the reasons, so all parts are returned.
        """
        if self.parts and all(part.now >= _STILL_LEAST for part in self.parts.values()):
            return tuple(sorted(self.parts))
        stuck = (
            key
            for key, part in self.parts.items()
            if part.longest >= 0 and part.now >= max(_STILL_LEAST, part.longest + 1)
        )
        return tuple(sorted(stuck))

    def __str__(self) -> str:
        unhealthy = f"unhealthy: {self.unhealthy}" if self.unhealthy else "healthy"
        return f"{unhealthy}; unchanged: {unchanged_text(self.unchanged)}" if self.unchanged else unhealthy

    def to_json(self) -> dict[str, Any]:
        """Return the member ``health`` of a manifest."""
        parts = {key: [part.now, part.longest] for key, part in self.parts.items()}
        found = [[one.name, one.nan, one.inf, one.usual_inf] for one in self.nonfinite]
        return {"nonfinite": found, "parts": parts}


def unchanged_text(parts: Collection[str]) -> str:
    """Return a text with the parts that no longer change."""
    shown = [named(key)[:_NAME_MOST] for key in parts]
    return " and ".join(shown) if len(shown) < _PARTS_SHOWN else some_of(shown, _PARTS_SHOWN)


def read_health(value: object, where: str) -> Health:
    """Return the health in a manifest."""
    if type(value) is not dict or type(value.get("nonfinite")) is not list or type(value.get("parts")) is not dict:
        refuse(where, "health", "an object with nonfinite and parts", value)
    found = []
    for item in value["nonfinite"]:
        if type(item) is not list or len(item) != 4 or type(item[0]) is not str or not all(map(_is_count, item[1:])):
            refuse(where, "health: nonfinite", "[name, NaN, infinite, usually infinite]", item)
        found.append(NonFinite(*item))
    parts = {}
    for key, item in value["parts"].items():
        if (
            type(item) is not list
            or len(item) != 2
            or not _is_count(item[0])
            or not (item[1] == -1 or _is_count(item[1]))
        ):
            refuse(where, "health: parts", "[number, number or -1]", item)
        parts[key] = Stillness(*item)
    return Health(tuple(found), parts)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= SAFE_INT
