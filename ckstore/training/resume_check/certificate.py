"""The result of a check: the certificate, or the first difference of a resumed training."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ckstore.model.brief import brief
from ckstore.model.canonical import SAFE_INT
from ckstore.model.words import counted, printable
from ckstore.training.resume_check.records import VARIABLE

EXACT, TOLERANT = "exact", "within tolerance"
NOT_DETERMINISTIC, CHANGED, NOT_EXACT = "not deterministic", "changed by the save", "not exact"
REPORTED, LEFT_OUT, PART, NUMBERS, OWN, FAULT = "reported", "left out", "part", "variable", "own load", "ckstore"
"""The causes of an inexact resume. See `CheckedPoint`."""
_NAMES_SHOWN = 3
_POSITIONS = {"step": "a step", "end of an epoch": "the end of an epoch", "end": "the end of the training"}
_OF_TENSORS = ("gradient", "model", "optimizer", "scheduler", "part")


@brief()
@dataclass(frozen=True, slots=True)
class FirstDifference:
    """The first difference of a training from the uninterrupted one.

    Attributes:
        step: The step in which the trainings differ. With `after_restore`, the step after which the training was saved.
        after_restore: Whether the restored state differs from the saved one before any step.
        kind: The first kind of values that differs, in the order ``batch``, ``random state``, ``loss``, ``metric``,
            ``gradient``, ``model``, ``optimizer``, ``scheduler`` and ``part``. It is ``position`` if one training ends,
            or ends an epoch, where the other training has a step.
        names: The names of the values that differ, such as ``model.0.weight``, in the order of the parts.
        expected: The value of the first name in the uninterrupted training. For a tensor, its type, shape and digest.
        found: The value of the first name in this training.
        numbers: Name of a tensor or a loss -> its distance. ``largest_absolute`` is the largest absolute difference of
            two elements. ``ulps`` is the largest number of representable values between two elements, or None.
            ``size`` is the largest element.
        also: The other kinds that differ.
    """

    step: int
    after_restore: bool
    kind: str
    names: tuple[str, ...]
    expected: str = ""
    found: str = ""
    numbers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    also: tuple[str, ...] = ()

    def __str__(self) -> str:
        when = "right after the restore" if self.after_restore else f"in step {self.step}"
        if self.kind == "position":
            found, expected = _POSITIONS[self.found], _POSITIONS[self.expected]
            return f"step {self.step} is followed by {found}, and in the uninterrupted training by {expected}"
        names = ", ".join(map(_named, self.names[:_NAMES_SHOWN]))
        more = len(self.names) - _NAMES_SHOWN
        listed = f"{names} and {more} more" if more > 0 else names
        what = self.kind if self.kind in ("batch", "loss") else f"{self.kind} {listed}"
        also = f"; also {', '.join(self.also)}" if self.also else ""
        return printable(f"{when}: {what}{self._how_far()}{also}")

    def _how_far(self) -> str:
        name = self.names[0]
        found = self.numbers.get(name)
        if found:
            ulps = "" if found["ulps"] is None else f" or {counted(found['ulps'], 'ulp')}"
            if self.kind in ("loss", "metric"):
                texts = f"{self.found.partition(' ')[0]}, and {self.expected.partition(' ')[0]} uninterrupted: "
                return f" ({texts}{found['largest_absolute']:.3g}{ulps} apart)"
            whose = "the first " if len(self.names) > 1 else ""
            return f" ({whose}by up to {found['largest_absolute']:.3g}{ulps})"
        is_short = self.kind in _OF_TENSORS and "xxh3-" not in self.expected
        return f" ({self.found}, and {self.expected} uninterrupted)" if is_short else ""


def _named(name: str) -> str:
    """Return a name in the form for users, with a remark if the object belongs to no part."""
    return f"{name.removeprefix(VARIABLE)} (not a part)" if name.startswith(VARIABLE) else name


@brief()
@dataclass(frozen=True, slots=True)
class CheckedPoint:
    """The result of a training that was saved at one point and resumed.

    Attributes:
        point: ``step``, after some steps, or ``epoch``, at the first end of an epoch.
        step: The number of trained steps before the save.
        compared: The number of compared steps after the resume.
        inexact: `ResumeReport.inexact` of `restore`, or None if `Loop.load` returned no report.
        difference: The first difference, or None if the trainings are equal.
        cause: The cause of an inexact resume. It is empty for an exact one. The causes are

            - ``reported``, if `restore` reported the difference,
            - ``left out``, if an object that the loop uses is not a part,
            - ``part``, if the restored state of a part differs from the saved one,
            - ``variable``, if a number that the loop uses differs,
            - ``own load``, if the loop restores with its own function, and
            - ``ckstore``, if `restore` reported the resume as exact. This is a bug in ckstore, unless the training has
              a state that the check does not see.
        suspects: For ``left out`` and ``variable``, the names of the objects or variables.
        losses: The losses of the resumed training.
    """

    point: str
    step: int
    compared: int
    inexact: tuple[str, ...] | None
    difference: FirstDifference | None = None
    cause: str = ""
    suspects: tuple[str, ...] = ()
    losses: tuple[float, ...] = ()

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """Yield the lines of the text."""
        where = "after step" if self.point == "step" else "at the end of an epoch, after step"
        if self.difference is None:
            yield f"saved {where} {self.step}: the {counted(self.compared, 'step')} after the resume are the same"
        else:
            yield f"saved {where} {self.step}: differs first {self.difference}"
        for sentence in self.inexact or ():
            yield f"  restore reported: {sentence}"
        yield from (f"  {sentence}" for sentence in self._advice())

    def _advice(self) -> Iterator[str]:
        names = ", ".join(self.suspects)
        if self.cause == LEFT_OUT:
            yield f"{names}: used by the loop, but not a part, so it was not saved. Add it to the parts"
        elif self.cause == PART:
            yield "the restored state differs from the saved one. load_state_dict() of your own class may drop a value."
            yield "If it is a class of torch, this is a bug in ckstore. Please report it with the JSON of this check"
        elif self.cause == NUMBERS:
            yield f"these variables of the loop differ: {names}. Keep those that the training depends on in extra"
        elif self.cause == OWN:
            yield "the loop has its own save and load, which do not keep this. capture and restore may keep it"
        elif self.cause == FAULT:
            yield "restore reported this resume as exact, but it is not. If the parts hold the whole state, this is"
            yield "a bug in ckstore. Please report it with the JSON of this check"


@brief("verdict", "factory", "points", "difference")
@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of `check`. Its text is a summary of a few lines.

    Attributes:
        factory: The function that made the loop.
        profile: ``exact`` or ``tolerant``.
        verdict: ``exact``, ``within tolerance`` or ``not exact``. It is ``not deterministic`` if two uninterrupted
            trainings differ, so a resume cannot be judged. It is ``changed by the save`` if a training that was saved
            and not resumed differs from one that was not saved.
        points: The points at which the training was saved and resumed.
        difference: The first difference, or None if the trainings are equal.
        rtol: The relative tolerance. It is 0 if the profile is exact.
        atol: The absolute tolerance. It is 0 if the profile is exact.
        ignored: The patterns of names that may differ.
        losses: The losses of the uninterrupted training, from the first step on.
        rates: For each step of the uninterrupted training, the learning rates of all groups of all optimizers after it.
        sees_batches: Whether batches were compared.
        provenance: The versions of Python and of packages, and the revision of the code.
        duration_s: The duration of the check in seconds.
    """

    factory: str
    profile: str
    verdict: str
    points: tuple[CheckedPoint, ...]
    difference: FirstDifference | None
    rtol: float
    atol: float
    ignored: tuple[str, ...]
    losses: tuple[float, ...]
    rates: tuple[tuple[float, ...], ...]
    sees_batches: bool
    provenance: Mapping[str, Any]
    duration_s: float

    @property
    def ok(self) -> bool:
        """Whether the resume is exact, or within the tolerance."""
        return self.verdict in (EXACT, TOLERANT)

    def to_json(self) -> dict[str, Any]:
        """Return this as a JSON document, with ``ok``. Numbers that JSON cannot represent are text."""
        return {"ok": self.ok, **_as_json(asdict(self))}

    def __str__(self) -> str:
        return "\n".join(map(printable, self.lines()))

    def lines(self) -> Iterator[str]:
        """Yield the lines of the text. The first line is the verdict."""
        yield f"{self.verdict}: {_SENTENCES[self.verdict].format(self.factory)}"
        if self.verdict == NOT_DETERMINISTIC:
            yield f"  differs first {self.difference}"
            yield "  a resume cannot be judged. Seed the random generators of the loop, and use"
            yield "  torch.use_deterministic_algorithms(True), or the profile tolerant"
        elif self.verdict == CHANGED:
            yield f"  differs first {self.difference}"
            yield "  state_dict() of a part, or a fault of ckstore, changes the state or draws random numbers"
        for point in self.points:
            yield from (f"  {line}" for line in point.lines())
        wrong = [point.point for point in self.points if point.difference is not None]
        if wrong == ["step"] and len(self.points) > 1:
            yield '  to check only saves at the end of an epoch, use points=["epoch"] (--point epoch)'
        if not self.sees_batches:
            yield "  batches were not compared. To compare them, yield dict(loss=loss, batch=batch)"


def _as_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _as_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [*map(_as_json, value)]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return str(value) if isinstance(value, int) and abs(value) > SAFE_INT else value


_SENTENCES = {
    EXACT: "{} continues after a resume as if it had not stopped",
    TOLERANT: "{} continues after a resume as if it had not stopped, up to the tolerance",
    NOT_EXACT: "{} does not continue after a resume as if it had not stopped",
    NOT_DETERMINISTIC: "{} differs from itself when it is run twice without a stop",
    CHANGED: "{} continues differently after a save, without a resume",
}
