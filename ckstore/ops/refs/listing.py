"""List checkpoints. The directories are the truth; the catalog only saves reading manifests.

Before that, gaps are waited for: places that are empty for a moment, since a filesystem without an exchange of names
replaces in two steps. A process that meets one completes it if no living process has it open, else waits at most
`DEADLINE_S`.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from ckstore.errors import CatalogUnavailable, CkstoreError, DamagedBlob, InUse, NoSuchRef
from ckstore.fs import peek
from ckstore.model.names import WIDEST_GAP, CheckpointKey, check_run, out_of_order
from ckstore.objects import trash
from ckstore.objects.shared import two_renames
from ckstore.ops.acts import why_of
from ckstore.ops.context import Context, read_info, tags_by_checkpoint
from ckstore.ops.index.facts import as_it_is, propose, sure
from ckstore.ops.index.reconcile import write_again
from ckstore.ops.index.sequence import sequence_limit
from ckstore.ops.notices import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ckstore.model.manifest.info import CheckpointInfo, Stamp
    from ckstore.objects.layout import Layout, OpenRuns
    from ckstore.objects.shared.grace import Grace
    from ckstore.objects.shared.two_renames import Gap


def infos(
    context: Context,
    run: str | None = None,  # None: all runs
    *,
    newest: int | None = None,  # only so many, the newest; what the others are is not looked at
    only: Callable[[int], bool] | None = None,
    at: Mapping[CheckpointKey, Stamp] | None = None,
) -> list[CheckpointInfo]:
    """Return all complete checkpoints of one run, or of all, in the order of their commits, oldest first."""
    # What the catalog knows of a directory with the same stamp is taken from there; other manifests are read. `only`:
    # only those whose step it is true of; the others are not looked at either. `at`: only those at these places, whose
    # stamps are given; the directories are not listed.
    if run is not None:
        check_run(run)
    with context.layout.open_runs() as runs:
        if at is not None:
            return infos_at(context, runs, at, seek=True)
        settle(context)
        few = None if newest is None or only is not None else propose(context, runs, run, newest=newest)
        published = runs.stamps(run, in_full=newest is None) if few is None else few.published
        if only is not None:
            published = {place: stamp for place, stamp in published.items() if only(place[1])}
        found = infos_at(context, runs, published, run, newest=newest, seek=few is not None)
    if newest is not None and (
        len(found) < min(newest, len(published))  # some went meanwhile, or are torn
        or any(info.out_of_order for info in found)  # others are newer
    ):
        return infos(context, run, only=only)[-newest:]
    return found


def infos_at(
    context: Context,
    runs: OpenRuns,
    published: Mapping[CheckpointKey, Stamp | None],
    run: str | None = None,
    *,
    newest: int | None = None,
    seek: bool = False,
) -> list[CheckpointInfo]:
    """As `infos`, of places that were listed; fewer than `newest` where some went since. `seek`: they are few."""
    rows, to_read = _from_catalog(context, published, run, None if seek else newest, seek=seek)
    if newest is not None:  # without a manifest, or gone since it was listed: not of the newest
        to_read = {place for place in to_read if published[place] is not None}
        rows = [info for info in rows if context.layout.stamp(info.run, info.step) is not None]
    found = rows + [info for place in sorted(to_read) if (info := read_info(context, *place)) is not None]
    found = in_order(context, found)
    tags = tags_by_checkpoint(context.layout)
    found = found[-newest if newest else 0 :]
    context.tell_passed_over()
    return [as_it_is(context, runs, info, tags.get(info.key, ())) for info in found]


def _from_catalog(
    context: Context,
    published: Mapping[CheckpointKey, Stamp | None],
    run: str | None,
    newest: int | None,
    *,
    seek: bool,
) -> tuple[list[CheckpointInfo], set[CheckpointKey]]:
    """Return what the catalog knows of directories with these stamps, and those that have to be read."""
    doubted = {
        place for place, stamp in context.known.distrusted.items() if place in published and published[place] == stamp
    }
    asked = {place: published[place] for place in published.keys() - doubted} if doubted else published
    try:
        rows, unknown, wrong_count = context.catalog.current(
            asked, run, newest=newest, seek=seek, durable=context.durable
        )
    except CatalogUnavailable as error:
        if published:
            context.notices.tell_unavailable(error, is_private=context.catalog_is_private)
        return [], set(published)
    if wrong_count:
        write_again(context, unknown, damaged_count=wrong_count)
    # A row of another hash is older than a change of store.json.
    strangers = {info.key for info in rows if not info.id.startswith(f"{context.layout.hash_prefix}-")}
    if strangers and newest is not None:  # as many older ones are wanted in their place
        return _from_catalog(context, published, run, None, seek=seek)
    return [info for info in rows if info.key not in strangers], unknown | doubted | strangers


def in_order(context: Context, found: list[CheckpointInfo]) -> list[CheckpointInfo]:
    """Return checkpoints in the order of commits; one whose sequence number does not count comes before the others."""
    if any(info.sequence > WIDEST_GAP for info in found):
        found = [_read(context, info) if info.sequence > WIDEST_GAP else info for info in found]
        limit = sequence_limit(context)
        found = [_told_out_of_order(context, info, limit) if info.sequence > limit else info for info in found]
    return sorted(found, key=lambda info: info.order)


def _read(context: Context, info: CheckpointInfo) -> CheckpointInfo:
    """Return what the manifest says, as long as there is one to be read."""
    try:
        return sure(context, info)
    except (FileNotFoundError, NotADirectoryError, DamagedBlob):
        return info


def _told_out_of_order(context: Context, info: CheckpointInfo, limit: int) -> CheckpointInfo:
    context.notices.problems[order_problem(info)] = out_of_order(info.name, info.sequence, limit)
    return replace(info, out_of_order=True)


def order_problem(info: CheckpointInfo) -> str:
    """Return the key in `Notices.problems` of a sequence number that does not count."""
    return f"order of {info.name}"


def misplaced(context: Context) -> list[CheckpointInfo]:
    """Return the checkpoints whose sequence numbers do not count; `order_problem` is the key of what to say of each."""
    return [info for info in infos(context) if info.out_of_order]


# A living save fills its gap within milliseconds; one that takes longer was stopped.
DEADLINE_S = 10.0
_PAUSE_S = 0.005


def no_such_run(layout: Layout, run: str) -> NoSuchRef:
    """Return the error for a run that the store does not have, with those that it has."""
    msg = f"there is no run {run!r} in {layout.root}"
    if trash.waits(layout, run):
        by_command = f"its checkpoints were deleted; ckstore undo --run {run} brings them back"
        hint = "its checkpoints were deleted; store.dropped() lists what store.undelete(ref) brings back"
        return NoSuchRef(msg, hint=hint, command_hint=by_command)
    # The directory of a run stays when its last checkpoint goes.
    runs = [name for name in layout.runs() if layout.steps(name)]
    return NoSuchRef(msg, hint=f"its runs: {', '.join(runs)}" if runs else "it has no checkpoint yet")


def settle(context: Context) -> None:
    """Wait until no place is empty because of a replacement, and complete those that no living process has open."""
    # What cannot be completed, or is still open after the deadline, is named in a warning and waited for no more.
    waiting = _unsaid(context)
    deadline = time.monotonic() + DEADLINE_S
    while waiting:
        if _may_fill(context):
            _fill(context, waiting)
        known = {gap.old.name for gap in waiting}
        # Only those of the beginning: a training that replaces all the time must not hold a list for ever.
        waiting = [gap for gap in _unsaid(context) if gap.old.name in known]
        if time.monotonic() > deadline:
            for gap in waiting:
                _say(context, gap, f"{_stopped(gap)}; {_what_completes(context)}")
            return
        if waiting:
            time.sleep(_PAUSE_S)


def _unsaid(context: Context) -> list[Gap]:
    return [gap for gap in two_renames.gaps(context.layout) if gap.old.name not in context.notices.problems]


def _stopped(gap: Gap) -> str:
    run, step = gap.key
    return f"{run}@{step} is not there, since a save that replaces it has not finished: the old one is {gap.old}"


def _what_completes(context: Context) -> str:
    if context.shared:
        return (
            "saving that step again completes it, and so does gc after the grace (config.grace_s), "
            "or at once with --exclusive, if no other host is at work"
        )
    return "opening the store for writing completes it"


def _say(context: Context, gap: Gap, message: str) -> None:
    context.notices.problems[gap.old.name] = message
    warn(message)


def refuse_unfinished(context: Context, run: str | None, is_meant: Callable[[Gap], bool] = lambda _: True) -> None:
    """Raise if something is not there only because a save that replaces it has not finished."""
    # So that a training does not take a run whose one checkpoint is in a gap for one that has none, and begin again.
    # `run`: what is asked for is in this run; None: in any. `is_meant`: whether it is what was at the place of a gap.
    for gap in two_renames.gaps(context.layout):
        if run in (None, gap.key[0]) and is_meant(gap) and peek.exists(gap.old):  # else both went since it was listed
            raise InUse(_stopped(gap), hint=_what_completes(context))


def fill_dead(context: Context, grace: Grace | None = None) -> None:
    """Complete every gap that no living process has open, as far as that works now."""
    # With a grace, where other hosts may be at work, only those for which it is over.
    _fill(context, [gap for gap in two_renames.gaps(context.layout) if grace is None or grace.is_over(gap.old)])


def _may_fill(context: Context) -> bool:
    """Whether this process sees the locks of all who may be replacing, and may write."""
    return not (context.readonly or context.shared or context.writes_disabled_because)


def _fill(context: Context, gaps: list[Gap]) -> None:
    for gap in gaps:
        try:
            two_renames.try_complete(context.layout, gap)
        except (CkstoreError, OSError) as error:
            name = f"{gap.key[0]}@{gap.key[1]}"
            _say(context, gap, f"the replacement of {name} was not completed: {why_of(error)}")
