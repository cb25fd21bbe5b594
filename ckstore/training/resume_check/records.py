"""What a process of the check records after each step, and where two recordings first differ. Pure values."""

from __future__ import annotations

import fnmatch
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

KINDS = ("batch", "random state", "loss", "metric", "gradient", "model", "optimizer", "scheduler", "part")
"""The kinds of values, in the order in which a difference moves through a step: the first one names its cause."""
STATE = ("random state", "model", "optimizer", "scheduler", "part")
"""The kinds that a checkpoint holds."""
VARIABLE = "variable "
"""Begins the name of an object that a variable of the loop refers to and no part is."""
RESUMED = "resumed"
"""The position of the record that is made right after a restore."""
NUMBER = "number"
"""The kind of plain values of variables. They may differ for good reasons, so they only explain."""
_FLOATING = ("float", "bfloat", "complex")


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far numbers may be apart; with two zeros not at all.

    Attributes:
        rtol: Relative to the number of the uninterrupted run; for a tensor, to its largest element.
        atol: Absolute.
    """

    rtol: float = 0.0
    atol: float = 0.0

    @property
    def is_exact(self) -> bool:
        """Whether numbers must be the same, bit by bit."""
        return self.rtol == self.atol == 0.0

    def covers(self, difference: float, size: float) -> bool:
        """Whether a difference from a number of this size is small enough; a nan never is."""
        return difference <= self.atol + self.rtol * size


_EXACT = Tolerance()


@dataclass(frozen=True, slots=True)
class Observation:
    """What a process saw at one position: after a step, between two epochs, at its begin, or after a restore.

    Attributes:
        position: ``start``, ``step``, ``end of an epoch``, ``saved``, ``resumed`` or ``end``.
        step: The number of steps that were trained until then.
        values: Kind -> name -> what is compared: of a tensor its type, shape and digest, else the value as text.
        left_out: The names of the objects that the loop uses and that are no part.
        far: Name -> how far a tensor is from that of the uninterrupted run, if the tolerance does not cover it.
    """

    position: str
    step: int
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    far: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return this as JSON has it."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Observation:
        """Return what `to_json` gave."""
        return cls(**{**value, "left_out": tuple(value["left_out"])})


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Where a record differs from the one that was expected.

    Attributes:
        index: Its place in the recording.
        kind: The first of `KINDS` that differs, or ``position``: one run ends an epoch where the other one has a step.
        names: The names of that kind that differ.
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
        patterns: As in a shell; each also stands for what is below it.
        unused: The names of random states that no step draws from.
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
    """Return where a record differs from the expected one, or None. Of a restored state what was saved is expected."""
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
    """Return where a recording first differs from the expected one, or None; a shorter one as far as it goes."""
    for index, (one, other) in enumerate(zip(expected, found, strict=False)):
        mismatch = compare(one, other, index, tolerance=tolerance, ignored=ignored)
        if mismatch is not None:
            return mismatch
    return None


def differing(expected: Observation, found: Observation, kind: str, tolerance: Tolerance = _EXACT) -> Iterator[str]:
    """Yield the names of a kind that differ."""
    before, after = expected.values.get(kind, {}), found.values.get(kind, {})
    # In the order of the model: where layers differ together, the first one is where to look.
    for name in [*before, *(name for name in after if name not in before)]:
        old, new = before.get(name), after.get(name)
        if old is None or new is None:
            # A variable of the loop may not exist yet in a process that has just been restored.
            if kind != NUMBER and not (name.startswith(VARIABLE) and _is_without(name, expected, found)):
                yield name
        elif old != new and (tolerance.is_exact or name in found.far or not _is_near(kind, old, new, tolerance)):
            yield name


def _is_without(name: str, *records: Observation) -> bool:
    """Whether one of the records lacks the whole object to which a name belongs."""
    return not all(any(name.startswith(f"{one}.") for one in record.left_out) for record in records)


def _is_near(kind: str, old: str, new: str, tolerance: Tolerance) -> bool:
    if kind in ("batch", "random state"):
        return False
    if kind == "gradient":  # its noise is that of the loss, relative to what may be nothing at all
        return True
    if _is_floating(old) and _is_floating(new):
        # Digests do not show how far elements are apart: the tensors of the last record are compared
        # (`Observation.far`).
        return old.partition("] ")[0] == new.partition("] ")[0]
    numbers = number_of(old), number_of(new)
    if numbers[0] is None or numbers[1] is None:
        return False
    return tolerance.covers(abs(numbers[0] - numbers[1]), abs(numbers[0]))


def _is_floating(text: str) -> bool:
    return text.startswith(_FLOATING) and "[" in text


def number_of(text: str) -> float | None:
    """Return the number that a recorded text is; None if it is another value."""
    try:
        return float(text.partition(" ")[0])
    except ValueError:
        return None


def number_distance(before: str, after: str) -> dict[str, Any]:
    """Return how far two recorded numbers are apart, as `resume_check.tensor_distance.distance` does for tensors."""
    old, new = number_of(before), number_of(after)
    kind, other = before.partition(" ")[2] or "float64", after.partition(" ")[2] or "float64"
    if old is None or new is None:
        return {}
    ulps = abs(_ordered(new, kind) - _ordered(old, kind)) if kind == other and _is_finite(old, new, kind) else None
    return {"largest_absolute": abs(new - old), "ulps": ulps, "size": abs(old)}


_CODES = {"float16": ("<e", "<h"), "float32": ("<f", "<i"), "float64": ("<d", "<q"), "bfloat16": ("<f", "<i")}


def _is_finite(old: float, new: float, kind: str) -> bool:
    return kind in _CODES and math.isfinite(old) and math.isfinite(new)


def _ordered(value: float, kind: str) -> int:
    """Return the place of a number among the representable ones of its type."""
    as_float, as_int = _CODES[kind]
    bits: int = struct.unpack(as_int, struct.pack(as_float, value))[0]
    if kind == "bfloat16":  # the upper half of a float32
        bits >>= 16
    width_bits = 16 if kind == "bfloat16" else 8 * struct.calcsize(as_int)
    return bits if bits >= 0 else -(1 << (width_bits - 1)) - bits
