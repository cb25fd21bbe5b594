"""The records that a process of the check makes after each step, and the first difference between two recordings."""

from __future__ import annotations

import fnmatch
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

KINDS = ("batch", "random state", "loss", "metric", "gradient", "model", "optimizer", "scheduler", "part")
"""The kinds of values, in the order in which a difference spreads in a step. The first that differs shows the cause."""
STATE = ("random state", "model", "optimizer", "scheduler", "part")
"""The kinds that a checkpoint stores."""
VARIABLE = "variable "
"""The prefix of the name of an object that a variable of the loop refers to and that is not a part."""
RESUMED = "resumed"
"""The `position` of the record that is made directly after a restore."""
NUMBER = "number"
"""The kind of plain values of variables. They may differ in an exact resume, so they only explain a difference."""
_FLOATING = ("float", "bfloat", "complex", "bcomplex")


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The allowed distance of numbers. If both tolerances are 0, numbers must be equal.

    Attributes:
        rtol: The tolerance relative to the number of the uninterrupted run, or to the largest element of a tensor.
        atol: The absolute tolerance.
    """

    rtol: float = 0.0
    atol: float = 0.0

    @property
    def is_exact(self) -> bool:
        """Whether numbers must have equal bits."""
        return self.rtol == self.atol == 0.0

    def covers(self, difference: float, size: float) -> bool:
        """Whether a difference from a number of this size is small enough. Always False for NaN."""
        return difference <= self.atol + self.rtol * size


_EXACT = Tolerance()


@dataclass(frozen=True, slots=True)
class Observation:
    """The record of a process at one position: after a step, between two epochs, at the start, or after a restore.

    Attributes:
        position: ``start``, ``step``, ``end of an epoch``, ``saved``, ``resumed`` or ``end``.
        step: The number of trained steps.
        values: Kind -> name -> text of the value. For a tensor, the text has its type, shape and digest.
        left_out: The names of the objects that the loop uses and that are not parts.
        far: Name -> distance of a tensor from that of the uninterrupted run, if the tolerance does not cover it.
    """

    position: str
    step: int
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    far: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return this as a JSON document."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Observation:
        """Return the record that `to_json` encoded."""
        return cls(**{**value, "left_out": tuple(value["left_out"])})


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The difference of a record from the expected one.

    Attributes:
        index: The index of the record in the recording.
        kind: The first of `KINDS` that differs. It is ``position`` if one run ends, or ends an epoch, where the other
            run has a step.
        names: The names of the values of that kind that differ.
        also: Other kinds that differ.
    """

    index: int
    kind: str
    names: tuple[str, ...]
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ignored:
    """The names that may differ.

    Attributes:
        patterns: Shell patterns. Names below a matching name also match.
        unused: The names of random states from which no step draws.
    """

    patterns: tuple[str, ...] = ()
    unused: frozenset[str] = frozenset()

    def has(self, kind: str, name: str) -> bool:
        """Whether this name of a kind may differ."""
        bare = name.removeprefix(VARIABLE)
        fits = (fnmatch.fnmatchcase(bare, one) or fnmatch.fnmatchcase(bare, f"{one}.*") for one in self.patterns)
        return any(fits) or (kind == "random state" and name in self.unused)


def unused(records: Sequence[Observation]) -> frozenset[str]:
    """Return the names of the random states that are the same in all records."""
    seen: dict[str, set[str]] = {}
    for record in records:
        for name, text in record.values.get("random state", {}).items():
            seen.setdefault(name, set()).add(text)
    return frozenset(name for name, texts in seen.items() if len(texts) == 1)


def compare(
    expected: Observation,
    found: Observation,
    index: int,
    *,
    tolerance: Tolerance,
    ignored: Ignored = Ignored(),
) -> Mismatch | None:
    """Return the difference of a record from the expected one, or None. After a restore, only `STATE` is compared."""
    kinds = STATE if found.position == RESUMED else KINDS
    if found.position != RESUMED and (expected.position, expected.step) != (found.position, found.step):
        return Mismatch(index, "position", (found.position,))
    names = {
        kind: tuple(name for name in differing(expected, found, kind, tolerance) if not ignored.has(kind, name))
        for kind in kinds
    }
    first, *others = [kind for kind, found_names in names.items() if found_names] or [""]
    return Mismatch(index, first, names[first], tuple(others)) if first else None


def first_mismatch(
    expected: Sequence[Observation], found: Sequence[Observation], *, tolerance: Tolerance, ignored: Ignored
) -> Mismatch | None:
    """Return the first difference of a recording from the expected one, or None. The longer recording is cut."""
    for index, (one, other) in enumerate(zip(expected, found, strict=False)):
        mismatch = compare(one, other, index, tolerance=tolerance, ignored=ignored)
        if mismatch is not None:
            return mismatch
    return None


def differing(expected: Observation, found: Observation, kind: str, tolerance: Tolerance = _EXACT) -> Iterator[str]:
    """Yield the names of a kind that differ."""
    before, after = expected.values.get(kind, {}), found.values.get(kind, {})
    # Use the order of the model, so that the first different layer comes first.
    for name in [*before, *(name for name in after if name not in before)]:
        old, new = before.get(name), after.get(name)
        if old is None or new is None:
            # Directly after a restore, a variable of the loop may not exist yet. One record then lacks all names of
            # the variable.
            is_left_out = not all(
                any(name.startswith(f"{one}.") for one in record.left_out) for record in (expected, found)
            )
            if kind != NUMBER and not (name.startswith(VARIABLE) and is_left_out):
                yield name
        elif old != new and (tolerance.is_exact or name in found.far or not _is_near(kind, old, new, tolerance)):
            yield name


def _is_near(kind: str, old: str, new: str, tolerance: Tolerance) -> bool:
    if kind in ("batch", "random state"):
        return False
    if kind == "gradient":  # gradients have the noise of the loss and may be near 0, so no relative tolerance fits
        return True
    if _is_floating(old) and _is_floating(new):
        # Digests do not show the distance of elements. The tensors of the last record are compared instead
        # (`Observation.far`).
        return old.partition("] ")[0] == new.partition("] ")[0]
    numbers = number_of(old), number_of(new)
    if numbers[0] is None or numbers[1] is None:
        return False
    return tolerance.covers(abs(numbers[0] - numbers[1]), abs(numbers[0]))


def _is_floating(text: str) -> bool:
    return text.startswith(_FLOATING) and "[" in text


def number_of(text: str) -> float | None:
    """Return the number in a recorded text, or None for another value."""
    try:
        return float(text.partition(" ")[0])
    except ValueError:
        return None


def number_distance(before: str, after: str) -> dict[str, Any]:
    """Return the distance between two recorded numbers, in the form of `resume_check.tensor_distance.distance`."""
    old, new = number_of(before), number_of(after)
    kind, other = before.partition(" ")[2] or "float64", after.partition(" ")[2] or "float64"
    if old is None or new is None:
        return {}
    comparable = kind == other and kind in _CODES and math.isfinite(old) and math.isfinite(new)
    ulps = abs(_ordered(new, kind) - _ordered(old, kind)) if comparable else None
    return {"largest_absolute": abs(new - old), "ulps": ulps, "size": abs(old)}


_CODES = {"float16": ("<e", "<h"), "float32": ("<f", "<i"), "float64": ("<d", "<q"), "bfloat16": ("<f", "<i")}


def _ordered(value: float, kind: str) -> int:
    """Return the position of a number among the representable numbers of its type."""
    as_float, as_int = _CODES[kind]
    bits: int = struct.unpack(as_int, struct.pack(as_float, value))[0]
    if kind == "bfloat16":  # the upper half of a float32
        bits >>= 16
    width_bits = 16 if kind == "bfloat16" else 8 * struct.calcsize(as_int)
    return bits if bits >= 0 else -(1 << (width_bits - 1)) - bits
