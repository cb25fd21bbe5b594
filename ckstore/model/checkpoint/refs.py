"""Refs, the names by which users refer to checkpoints.

The form is ``[RUN@](STEP | latest | latest-valid | latest-healthy | best:METRIC[:min|max] | TAG | ID-PREFIX)``. A ref
of digits is resolved first as a step, then as an id. This module does no I/O. Its functions receive the existing
checkpoints as values, so that a ref is resolved the same way from directories and from the catalog. docs/format/v1.md
defines the form of runs, steps and tags.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn, cast

from ckstore.errors import AmbiguousRef, BadInput, NoSuchRef
from ckstore.model.best import best_of, metrics_there
from ckstore.model.digest import short_id
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.names import COMPUTED, DEFAULT_RUN, MAX_STEP, STEP_PATTERN, CheckpointKey, check_run, check_tag
from ckstore.model.words import some_of

ID_MIN_DIGITS = 6

RefKind = Literal["step", "latest", "latest-valid", "latest-healthy", "best", "tag", "id"]

BEST = "best:"
"""The prefix of a ref by a metric. No tag begins with it, because a tag has no colon."""
_GRAMMAR = (
    "a ref is [RUN@] followed by a step, latest, latest-valid, latest-healthy, best:METRIC, a tag, or six or more "
    "digits of an id"
)
_ID_PATTERN = re.compile(r"(?:(?:xxh3-)?[0-9a-f]{6,32}|(?:blake3-)?[0-9a-f]{6,64})\Z")
_SHOWN = 4
"""The number of alternatives that a message lists."""


@dataclass(frozen=True, slots=True)
class Ref:
    """A parsed ref."""

    run: str | None
    # The kind of `value`. A step of six or more digits may also be an id. `resolve` tries both.
    kind: RefKind
    # The step in decimal, the tag, or the first digits of the id in lower case, with the prefix of the algorithm if the
    # user gave it. For ``latest*``, the value is the kind itself. For ``best:``, the value is the whole text.
    value: str

    def __str__(self) -> str:
        return self.value if self.run is None else f"{self.run}@{self.value}"


VERIFIED_KINDS = ("latest-valid", "latest-healthy")
"""Kinds of refs that are resolved by reading checkpoints, because damaged ones are skipped."""


def is_latest_valid(ref: object) -> bool:
    """Return whether a ref names the newest valid checkpoint, or the newest valid and healthy checkpoint."""
    return isinstance(ref, str) and ref.rpartition("@")[2] in VERIFIED_KINDS


def why_skipped(kind: str, info: CheckpointInfo) -> str:
    """Return the reason why a ref of this kind skips a valid checkpoint, or an empty string."""
    return f"unhealthy, since {info.unhealthy}" if kind == "latest-healthy" and info.unhealthy else ""


def parse_ref(text: str) -> Ref:
    """Parse a ref, without checking that the checkpoint exists."""
    if not isinstance(text, str):
        raise BadInput(f"a ref is a str, got {type(text).__name__} {text!r}", hint=_GRAMMAR)
    before, at, after = text.partition("@")
    try:
        run = check_run(before) if at else None
        kind, value = _classify(after if at else before)
    except BadInput as error:
        raise BadInput(f"not a ref: {text!r}: {error.message}", hint=error.hint or _GRAMMAR) from error
    return Ref(run, kind, value)


def _classify(value: str) -> tuple[RefKind, str]:
    if value == "latest" or value in VERIFIED_KINDS:
        return cast("RefKind", value), value
    if value.startswith(BEST):
        if best_of(value.removeprefix(BEST), BEST).n != 1:
            raise BadInput(
                f"a ref names one checkpoint, got {value!r}",
                hint="write best:METRIC, best:METRIC:min or best:METRIC:max",
            )
        return "best", value
    # Try a step before an id, because a user who types only digits usually means a step.
    if STEP_PATTERN.match(value) and int(value) <= MAX_STEP:
        return "step", value
    lower = value.lower()
    if _ID_PATTERN.match(lower):
        return "id", lower
    if value.isascii() and value.isdigit():
        raise BadInput(
            f"a step is a decimal number up to 2^53 without leading zeros, got {value!r}",
            hint=f"write {int(value)}" if len(value) < ID_MIN_DIGITS else _GRAMMAR,
        )
    return "tag", check_tag(value)


def newest_first(candidates: Iterable[CheckpointInfo], run: str | None = None) -> list[CheckpointInfo]:
    """Return the checkpoints of `run` (or of all runs if `run` is not given), the latest commit first.

    ``latest-valid`` is the first of these checkpoints that verifies.
    """
    chosen = (c for c in candidates if run is None or c.run == run)
    return sorted(chosen, key=lambda c: c.order, reverse=True)


def resolve(
    ref: Ref,
    candidates: Sequence[CheckpointInfo],
    tags: Mapping[str, CheckpointKey],
    incomplete: Collection[CheckpointKey] = (),
) -> CheckpointInfo:
    """Return the checkpoint that `ref` names.

    If `ref` has no run, a step belongs to the only run of the store, or to the run ``main`` if the store has several.
    A ref of another kind without a run is resolved among the checkpoints of all runs.

    Args:
        ref: The ref.
        candidates: The complete checkpoints of the store, in any order. Only an id or a tag names a superseded one.
        tags: Tag -> key of the checkpoint that it names.
        incomplete: Directories without a complete checkpoint. If `ref` names one of these directories, the error says
            so, and no checkpoint of another run is used instead.
    """
    torn: list[CheckpointKey] = []
    if ref.kind == "step":
        torn = sorted(key for key in incomplete if key.step == int(ref.value))
    elif ref.kind == "tag":
        torn = sorted(key for key in incomplete if key.any_generation == tags.get(ref.value))
    try:
        return _resolve(ref, candidates, tags, {key.run for key in torn})
    except NoSuchRef as error:
        missed = error
    run = ref.run
    if run is None and ref.kind == "step":
        run = _default_run({c.run for c in candidates} | {key.run for key in torn})
    # Raise outside the `except` block, so that the context of the error is the exception that the caller was handling.
    for key in torn:
        if run in (None, key.run):
            place = f"checkpoints/{key.run}/{key.directory}"
            message = f"{missed.message}; but {place} exists and is incomplete"
            raise NoSuchRef(message, hint="ckstore verify names the missing parts")
    raise missed


def _resolve(
    ref: Ref, candidates: Sequence[CheckpointInfo], tags: Mapping[str, CheckpointKey], torn_runs: Collection[str]
) -> CheckpointInfo:
    # Resolving these kinds requires reading the data. Callers use `newest_first` instead.
    if ref.kind in VERIFIED_KINDS:
        raise BadInput(f"{ref.kind} cannot be resolved without reading", hint="use newest_first")
    runs = {c.run for c in candidates}
    if not runs:
        message = f"{ref}: the store has no checkpoints"
        raise nothing_saved(message, ref.run) if ref.kind == "latest" else NoSuchRef(message, hint="save one first")
    if ref.run is not None and ref.run not in runs:
        message = f"{ref}: there is no run {ref.run!r}, only {_some(_near(ref.run, runs))}"
        raise NoSuchRef(
            message,
            hint="the run is the part before @, or the run= of the store. "
            f"At the first start of a run, store.latest({ref.run!r}) returns None; do not load then",
            command_hint="the part before @ is the run",
        )
    current = [c for c in candidates if not c.superseded]
    if ref.kind == "latest":
        return newest_first(current, ref.run)[0]
    if ref.kind == "best":
        return _by_metric(ref, newest_first(current, ref.run))
    if ref.kind == "step":
        return _by_step(ref, candidates, runs.union(torn_runs))
    if ref.kind == "tag":
        return _by_tag(ref, candidates, tags)
    if found := _by_id(ref, candidates):
        return found
    newest = [f"{short_id(c.id)} ({c.name})" for c in newest_first(candidates, ref.run)]
    message = f"{ref}: no id begins with these digits, the newest are {_some(newest)}"
    raise NoSuchRef(message, hint=_latest_hint(candidates))


def nothing_saved(message: str, run: str | None) -> NoSuchRef:
    """Return the error for a store or a run without checkpoints, with a hint for the first start of a program."""
    asked = "store.latest()" if run is None else f"store.latest({run!r})"
    return NoSuchRef(
        message,
        hint=f"save one first. At the first start of a run, {asked} returns None; do not load then",
        command_hint="save one first",
    )


def _by_metric(ref: Ref, newest_first: Sequence[CheckpointInfo]) -> CheckpointInfo:
    """Return the best checkpoint by a metric, and a damaged one only if no undamaged one has the metric.

    If values are equal, the newest checkpoint is the best. An unhealthy checkpoint is never the best, whatever its
    metric, so that a load of the best checkpoint returns no NaN.
    """
    best = best_of(ref.value.removeprefix(BEST))
    ranked = [c for c in newest_first if not math.isnan(c.metrics.get(best.metric, math.nan))]
    if not ranked:
        of_run = "" if ref.run is None else f" of the run {ref.run}"
        message = f"{ref}: no checkpoint{of_run} has a number for the metric {best.metric}"
        raise NoSuchRef(message, hint=metrics_there((c.metrics for c in newest_first), best.metric))
    if all(c.unhealthy for c in ranked):
        message = f"{ref}: each checkpoint with a number for the metric {best.metric} is unhealthy, such as "
        raise NoSuchRef(f"{message}{ranked[0].name}: {ranked[0].unhealthy}", hint="load one of them by its step")
    ranked = [c for c in ranked if not c.unhealthy]
    sign = 1 if best.mode == "min" else -1
    return min(ranked, key=lambda c: (c.damaged, sign * c.metrics[best.metric]))  # the first if several are equal


def _by_step(ref: Ref, candidates: Sequence[CheckpointInfo], runs: Collection[str]) -> CheckpointInfo:
    step = int(ref.value)
    holders = [c for c in candidates if c.step == step and not c.superseded]
    run = ref.run or _default_run(runs)
    for holder in holders:
        if holder.run == run:
            return holder
    # Do not guess, because the weights of a wrong run load without any error.
    if holders and run is None:
        message = f"{ref}: the store has several runs and none is called {DEFAULT_RUN!r}, so it may be "
        hint = f"write {holders[0].name}"
        raise AmbiguousRef(message + _some(sorted(c.name for c in holders), " or "), hint=hint)
    # An id may also begin with decimal digits only, so try an id next.
    return _by_id(ref, candidates) or _no_step(ref, run, step, candidates, holders)


def _default_run(runs: Collection[str]) -> str | None:
    if len(runs) == 1:
        return next(iter(runs))
    return DEFAULT_RUN if DEFAULT_RUN in runs else None


def has_id(ref: Ref, id: str) -> bool:
    """Return whether an id begins with `ref`, which needs `ID_MIN_DIGITS` digits and may omit the hash name."""
    return len(ref.value) >= ID_MIN_DIGITS and (id if "-" in ref.value else id.partition("-")[2]).startswith(ref.value)


def _by_id(ref: Ref, candidates: Sequence[CheckpointInfo]) -> CheckpointInfo | None:
    found = [c for c in candidates if has_id(ref, c.id) and ref.run in (None, c.run)]
    if len(found) > 1:
        listed = [f"{short_id(c.id, 16)} ({c.name})" for c in newest_first(found)]
        message = f"{ref}: {len(found)} ids begin with these digits, such as {_some(listed)}"
        raise AmbiguousRef(message, hint="give more digits, or RUN@STEP")
    return found[0] if found else None


def _by_tag(ref: Ref, candidates: Sequence[CheckpointInfo], tags: Mapping[str, CheckpointKey]) -> CheckpointInfo:
    if ref.value not in tags:
        if re.fullmatch("-[0-9]+", ref.value):
            message = f"{ref}: a step is an integer from 0, and there is no tag {ref.value!r}"
            raise NoSuchRef(message, hint=_latest_hint(candidates))
        if ref.run is None and any(c.run == ref.value for c in candidates):
            hint = f"write {ref}@latest or {ref}@STEP"
            more = f"{hint}; commands that take several refs have the option --run {ref}"
            raise NoSuchRef(f"{ref} is a run, not a tag", hint=hint, command_hint=more)
        near = _near(ref.value, tags)
        known = f", only {_some(near)}" if near else ", and no other tag exists"
        raise NoSuchRef(f"{ref}: there is no tag {ref.value!r}{known}", hint=_meant(ref) or _latest_hint(candidates))
    key = tags[ref.value]
    if ref.run not in (None, key.run):
        message = f"{ref}: the tag {ref.value!r} names {key.name}, which is in another run"
        raise NoSuchRef(message, hint=f"write {ref.value}")
    for candidate in candidates:
        if candidate.key.any_generation == key:
            return candidate
    message = f"{ref}: the tag {ref.value!r} names {key.name}, which is missing or incomplete"
    raise NoSuchRef(message, hint=_latest_hint(candidates))


def _meant(ref: Ref) -> str:
    """Return a suggestion for a ref that matches no tag, or an empty string."""
    import difflib

    if re.fullmatch("[0-9]+-[0-9]+", ref.value):
        return f"where several refs are allowed, a range is {Ref(ref.run, 'tag', ref.value.replace('-', '..'))}"
    near = difflib.get_close_matches(ref.value, COMPUTED, n=1, cutoff=0.8)
    return f"did you mean {Ref(ref.run, 'tag', near[0])}?" if near else ""


def _no_step(
    ref: Ref, run: str | None, step: int, candidates: Sequence[CheckpointInfo], in_other_runs: Sequence[CheckpointInfo]
) -> NoReturn:
    own = [c for c in candidates if run in (None, c.run)]
    nearest = sorted(own, key=lambda c: (abs(c.step - step), c.name))[:_SHOWN]
    known = _some([c.name for c in sorted(nearest, key=lambda c: (c.step, c.run))])
    hint = f"write {in_other_runs[0].name} for the one in another run" if in_other_runs else _latest_hint(candidates)
    of_run = f" of the run {run!r}" if run is not None else ""
    raise NoSuchRef(f"{ref}: there is no step {step}{of_run}, the nearest being {known}", hint=hint)


def _latest_hint(candidates: Sequence[CheckpointInfo]) -> str:
    what = "latest" if len({candidate.run for candidate in candidates}) == 1 else "the newest"
    return f"{what} is {newest_first(candidates)[0].name}"


def _near(name: str, names: Iterable[str]) -> list[str]:
    """Return `names`, beginning with those that are similar to `name`."""
    import difflib

    ordered = sorted(names)
    similar = difflib.get_close_matches(name, ordered, n=_SHOWN)
    return similar + [n for n in ordered if n not in similar]


def _some(names: Sequence[str], separator: str = ", ") -> str:
    return some_of(names, _SHOWN, separator)
