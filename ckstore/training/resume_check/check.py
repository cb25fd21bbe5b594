"""Check that a training continues exactly after a save and a resume in a fresh process, by comparing the steps."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from ckstore.errors import BadInput
from ckstore.fs.host.own_folders import forget
from ckstore.model.names import expanded
from ckstore.training.provenance import provenance
from ckstore.training.resume_check.certificate import (
    CHANGED,
    EXACT,
    FAULT,
    LEFT_OUT,
    NOT_DETERMINISTIC,
    NOT_EXACT,
    NUMBERS,
    OWN,
    PART,
    REPORTED,
    TOLERANT,
    CheckedPoint,
    CheckReport,
    FirstDifference,
)
from ckstore.training.resume_check.factory import Factory
from ckstore.training.resume_check.fresh_process import IN_CHECK, run
from ckstore.training.resume_check.loop import EPOCH_END
from ckstore.training.resume_check.records import (
    KINDS,
    NUMBER,
    RESUMED,
    STATE,
    VARIABLE,
    Ignored,
    Mismatch,
    Observation,
    Tolerance,
    compare,
    differing,
    first_mismatch,
    number_distance,
    number_of,
    unused,
)
from ckstore.training.resume_check.task import RESULT, Task

PROFILES = ("exact", "tolerant")
POINTS = ("step", "epoch")
RTOL, ATOL = 1e-3, 1e-6
_TIMEOUT_MOST_S = 1e6
_TENSOR_KINDS = frozenset(KINDS) - {"batch", "random state", "loss", "metric"}


def check(
    make_loop: str | Callable[[], Any],
    *,
    profile: Literal["exact", "tolerant"] = "exact",
    steps: int = 3,
    compare: int = 5,
    points: Collection[Literal["step", "epoch"]] | None = None,
    rtol: float = RTOL,
    atol: float = ATOL,
    ignore: Collection[str] = (),
    seed: int = 0,
    timeout_s: float = 600.0,
    directory: str | os.PathLike[str] | None = None,
    arguments: Sequence[str] = (),
    progress: Callable[[str], object] | None = None,
) -> CheckReport:
    """Return whether a training continues exactly after a resume, and the first difference if it does not.

    The check runs the uninterrupted training twice, the training with saves once, and a resumed training for each saved
    point. Each training runs in a fresh Python process. After each step, the check compares batches, random states,
    loss, gradients, the states of all parts, and the states of other objects that the loop uses. Checkpoints are saved
    to temporary stores. A training on several ranks cannot be checked.

    Args:
        make_loop: A function of a module that returns a `Loop`, or its name, ``module:function`` or
            ``file.py:function``. In a script, call `check` below ``if __name__ == "__main__":``.
        profile: ``exact`` requires equal bits. ``tolerant`` allows losses and tensors to differ by the tolerance, for
            kernels that are not deterministic. Batches, random states and the restored state must still be equal.
        steps: The number of steps before the save.
        compare: The number of compared steps after the save.
        points: The points at which to save. ``step`` saves after `steps`, and ``epoch`` at the first end of an epoch.
            If None, save after `steps`, and also at the first end of an epoch if it precedes the last compared step.
        rtol: For ``tolerant``, the tolerance relative to the number in the uninterrupted training, or to the largest
            element of a tensor.
        atol: For ``tolerant``, the absolute tolerance.
        ignore: Names that may differ, such as ``meter``, or shell patterns of such names. All names below them may also
            differ.
        seed: The random generators of Python, NumPy and torch get this seed before the loop is made. The resumed
            process gets another seed, because a real resumed process has drawn other numbers.
        timeout_s: Maximum duration of one process, in seconds.
        directory: A directory for the temporary stores. It must have free space for two checkpoints. If None, the
            default directory of `tempfile`.
        arguments: The arguments that `make_loop` finds in ``sys.argv``, after the name of the program.
        progress: Called with a sentence before each process.

    Raises:
        BadInput: An argument is invalid, a fresh process cannot import `make_loop`, or `make_loop` returns no `Loop`.
            It is also raised if the loop yields no loss or ends too early.
        LoopFailed: The loop raised an error, its process died, or it did not end in time. The message contains the
            traceback.
    """
    if IN_CHECK in os.environ:
        hint = 'call it below if __name__ == "__main__":'
        raise BadInput("check was called while one of its processes imported the module", hint=hint)
    if profile not in PROFILES:
        raise BadInput(f"profile must be one of {', '.join(PROFILES)}, got {profile!r}")
    if not (rtol >= 0 and atol >= 0):
        raise BadInput(f"rtol and atol must be at least 0, got {rtol!r} and {atol!r}")
    _check_length(steps, compare, points, timeout_s)
    for name, words in (("ignore", ignore), ("arguments", arguments)):
        if isinstance(words, str):
            raise BadInput(f"{name} must be a list of texts, got {words!r}", hint=f"{name}=[{words!r}]")
    factory = Factory.of(make_loop)
    tolerance = Tolerance() if profile == "exact" else Tolerance(rtol, atol)
    task = Task(
        factory,
        (factory.module, *arguments),
        seed,
        timeout_s,
        rtol=tolerance.rtol,
        atol=tolerance.atol,
        ignored=tuple(ignore),
    )
    begin_s = time.monotonic()
    within = None if directory is None else expanded(directory)
    if within is not None and not within.is_dir():
        hint, command_hint = "create it, or omit directory=", "create it, or omit --directory"
        raise BadInput(f"{within} is not a directory", hint=hint, command_hint=command_hint)
    with tempfile.TemporaryDirectory(prefix="ckstore-check-", dir=within) as folder:
        judged = _Check(task, Path(folder).resolve(), tolerance, progress or (lambda _: None))
        try:
            points_found, verdict, difference = judged.judge(steps, compare, points)
        finally:
            # Delete the notes and catalogs of the temporary stores from the user's cache.
            for file in Path(folder).glob("*/store.json"):
                forget(json.loads(file.read_text(encoding="utf-8"))["uuid"])
    reference = judged.reference
    origin = provenance(directory=Path(factory.module).parent if factory.is_file else Path.cwd())["provenance"]
    return CheckReport(
        factory=str(factory),
        profile=profile,
        verdict=verdict,
        points=points_found,
        difference=difference,
        rtol=tolerance.rtol,
        atol=tolerance.atol,
        ignored=tuple(ignore),
        losses=_losses(reference),
        rates=tuple(map(_rates, (one for one in reference if one.position == "step"))),
        sees_batches=any("batch" in one.values for one in reference),
        provenance={name: origin[name] for name in ("python", "packages", "git")},
        duration_s=time.monotonic() - begin_s,
    )


def _check_length(steps: int, compare: int, points: Collection[str] | None, timeout_s: float) -> None:
    for name, count in (("steps", steps), ("compare", compare)):
        if count < 1:
            raise BadInput(f"{name} must be at least 1, got {count}")
    if points is not None and (isinstance(points, str) or not points or not {*points} <= {*POINTS}):
        msg = f"points must be a list of {' and '.join(POINTS)}, got {points!r}"
        raise BadInput(msg, hint='points=["step"]', command_hint="--point step")
    if not 0 < timeout_s <= _TIMEOUT_MOST_S:
        raise BadInput(f"timeout_s must be above 0 and at most {_TIMEOUT_MOST_S:g}, got {timeout_s!r}")


class _Check:
    """Runs the processes of one check, and compares their records.

    Attributes:
        reference: The records of the uninterrupted training.
    """

    def __init__(self, task: Task, folder: Path, tolerance: Tolerance, progress: Callable[[str], object]) -> None:
        self.reference: list[Observation] = []
        self._task = task
        self._folder = folder
        self._tolerance = tolerance
        self._ignored = Ignored()
        self._progress = progress

    def judge(
        self, steps: int, compared: int, points: Collection[str] | None
    ) -> tuple[tuple[CheckedPoint, ...], str, FirstDifference | None]:
        """Return the result at each point, the verdict, and the first difference."""
        needs_epoch = points is not None and "epoch" in points
        wants_step = points is None or "step" in points
        last_step = steps + compared if wants_step else 1
        final = "" if self._tolerance.is_exact else str(self._folder / "final")
        whole = replace(
            self._task,
            steps=last_step,
            epoch_steps=compared if points is None or needs_epoch else None,
            needs_epoch=needs_epoch,
            keeps=final,
        )
        self.reference = self._run(whole, "reference", "the uninterrupted training")[0]
        self._ignored = Ignored(self._task.ignored, unused(self.reference))
        chosen = _chosen(self.reference, steps, points)
        task = replace(
            self._task,
            last=len(self.reference) - 1,
            expected=str(self._folder / "reference" / RESULT),
            tensors=final,
        )
        again, _ = self._run(self._keeping(task, "again"), "again", "the second uninterrupted training")
        found = self._first_mismatch(again)
        if found is not None:
            return (), NOT_DETERMINISTIC, self._explained(found, self.reference, again, "again")
        saves = {str(index): str(self._folder / f"saved-{point}") for point, index in chosen.items()}
        saving = self._keeping(replace(task, saves=saves), "saving")
        saved_run, result = self._run(saving, "saving", "the training that is saved")
        found = self._first_mismatch(saved_run)
        if found is not None:
            verdict = CHANGED if found.index > min(chosen.values()) else NOT_DETERMINISTIC
            return (), verdict, self._explained(found, self.reference, saved_run, "saving")
        checked = tuple(
            self._resume(point, index, task, result["saved"][str(index)], saves[str(index)])
            for point, index in chosen.items()
        )
        difference = next((one.difference for one in checked if one.difference is not None), None)
        if difference is not None:
            return checked, NOT_EXACT, difference
        return checked, EXACT if self._tolerance.is_exact else TOLERANT, None

    def _resume(self, point: str, index: int, task: Task, saved: Mapping[str, Any], store: str) -> CheckedPoint:
        name = f"resumed-{point}"
        # Use another seed, because a real new process has drawn other random numbers than the saved process.
        resuming = replace(task, seed=task.seed + 1, restores=store, saved=saved, first=index)
        what = "the training that is resumed" + (" at the end of an epoch" if point == "epoch" else "")
        records, result = self._run(self._keeping(resuming, name), name, what)
        before = Observation.from_json(saved)
        expected = [before, *self.reference[index + 1 :]]
        found = compare(before, records[0], 0, tolerance=Tolerance(), ignored=self._ignored)
        found = found or self._first_mismatch(records, expected)
        inexact = None if result["inexact"] is None else tuple(result["inexact"])
        trained = [one for one in records[1:] if one.position == "step"]
        checked = CheckedPoint(point, before.step, len(trained), inexact, losses=_losses(trained))
        if found is None:
            return checked
        difference = self._explained(found, expected, records, name, index)
        cause, suspects = _cause(found, inexact, expected, records, self._ignored)
        return replace(checked, difference=difference, cause=cause, suspects=suspects)

    def _first_mismatch(
        self, records: Sequence[Observation], expected: Sequence[Observation] | None = None
    ) -> Mismatch | None:
        rules: dict[str, Any] = {"tolerance": self._tolerance, "ignored": self._ignored}
        if expected is None:
            return first_mismatch(self.reference, records, **rules)
        found = first_mismatch(expected[1:], records[1:], **rules)  # the first record is the saved state
        return None if found is None else replace(found, index=found.index + 1)

    def _run(self, task: Task, name: str, what: str) -> tuple[list[Observation], dict[str, Any]]:
        self._progress(what)
        result = run(task, self._folder / name, what)
        return [Observation.from_json(one) for one in result["records"]], result

    def _keeping(self, task: Task, name: str) -> Task:
        return replace(task, keeps=str(self._folder / f"tensors-{name}"))

    def _explained(
        self,
        found: Mismatch,
        expected: Sequence[Observation],
        records: Sequence[Observation],
        name: str,
        first: int = 0,
    ) -> FirstDifference:
        """Return a mismatch as a `FirstDifference`, which includes the distance if tensors differ."""
        before, after = expected[found.index], records[found.index]
        kept = self._folder / f"tensors-{name}"
        numbers: Mapping[str, Any] = {one: after.far[one] for one in found.names if one in after.far}
        if not numbers and found.kind in _TENSOR_KINDS and kept.exists():
            # The tensors of the uninterrupted training at this record were not kept, so repeat it up to this record.
            task = replace(self._task, last=first + found.index, tensors=str(kept), names=found.names)
            _, result = self._run(task, f"explaining-{name}", "the uninterrupted training, to compare tensors")
            numbers = result["numbers"]
        if found.kind == "position":
            texts = before.position, after.position
        else:
            of_kind = before.values.get(found.kind, {}), after.values.get(found.kind, {})
            texts = of_kind[0].get(found.names[0], "nothing"), of_kind[1].get(found.names[0], "nothing")
            if found.kind in ("loss", "metric"):
                numbers = {found.names[0]: number_distance(*texts)}
        is_restored = after.position == RESUMED
        return FirstDifference(after.step, is_restored, found.kind, found.names, *texts, numbers, found.also)


def _chosen(reference: Sequence[Observation], steps: int, points: Collection[str] | None) -> dict[str, int]:
    """Return the index of the record of each point at which to save."""
    of = {
        "step": next((at for at, one in enumerate(reference) if one.position == "step" and one.step == steps), None),
        "epoch": next((at for at, one in enumerate(reference) if one.position == EPOCH_END), None),
    }
    # A save that no step follows cannot be checked.
    usable = {
        point: at
        for point, at in of.items()
        if at is not None and any(one.position == "step" for one in reference[at + 1 :])
    }
    trained = reference[-1].step
    for point in points or ("step",):
        if point not in usable and point == "epoch" and of["epoch"] is None:
            msg = f"the loop ended after {trained} steps and yielded no EPOCH_END"
            raise BadInput(msg, hint="yield ckstore.training.EPOCH_END after each epoch")
        if point not in usable:
            msg = f"the loop ended after {trained} steps, so no step after the save can be compared"
            hint = "let it train longer, or give a smaller steps="
            raise BadInput(msg, hint=hint, command_hint="let it train longer, or give a smaller --steps")
    return {point: at for point, at in usable.items() if points is None or point in points}


def _cause(
    found: Mismatch,
    inexact: tuple[str, ...] | None,
    expected: Sequence[Observation],
    records: Sequence[Observation],
    ignored: Ignored,
) -> tuple[str, tuple[str, ...]]:
    """Return the cause of an inexact resume, and the names of suspected variables."""
    left_out = tuple(dict.fromkeys(_left_out(expected, records, found.index, ignored)))
    if left_out:
        return LEFT_OUT, left_out
    if inexact:
        return REPORTED, ()
    if inexact is None:
        return OWN, ()
    if found.index == 0:
        return (FAULT if found.kind == "random state" else PART), ()
    # At the end of a training, the variables no longer exist.
    at = found.index - (found.kind == "position")
    numbers = tuple(differing(expected[at], records[at], NUMBER))
    return (NUMBERS, numbers) if numbers else (FAULT, ())


def _left_out(
    expected: Sequence[Observation], records: Sequence[Observation], index: int, ignored: Ignored
) -> Iterator[str]:
    """Yield the name of each variable whose object is not a part and differs, up to the record `index`."""
    for before, after in zip(expected[: index + 1], records[: index + 1], strict=True):
        for kind in STATE:
            for name in differing(before, after, kind):
                if name.startswith(VARIABLE) and not ignored.has(kind, name):
                    owner = (one for one in before.left_out if name.startswith(f"{one}."))
                    yield next(owner, name).removeprefix(VARIABLE)


def _losses(records: Sequence[Observation]) -> tuple[float, ...]:
    numbers = (number_of(one.values["loss"]["loss"]) for one in records if "loss" in one.values)
    return tuple(one for one in numbers if one is not None)


def _rates(record: Observation) -> tuple[float, ...]:
    texts = [text for name, text in record.values.get("optimizer", {}).items() if name.endswith(".lr")]
    numbers = map(number_of, texts)
    return tuple(one for one in numbers if one is not None)
