"""Find the newest checkpoint, `latest`, and its run if none is named.

A wrong row of the catalog must not make another checkpoint the newest, and `latest` without a run never means a
checkpoint of another training.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ckstore.errors import AmbiguousRef, DamagedBlob
from ckstore.model.manifest.info import RunSummary, summaries
from ckstore.model.names import CheckpointKey, parse_directory
from ckstore.ops.context import Context
from ckstore.ops.index.facts import from_manifests, newest_by_catalog
from ckstore.ops.refs.incomplete import check_newest, repair_newer
from ckstore.ops.refs.listing import in_order, infos, infos_at

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckstore.model.checkpoint.refs import Ref
    from ckstore.model.manifest.info import CheckpointInfo, Stamp
    from ckstore.objects.layout import OpenRuns


def newest(context: Context, run: str | None) -> CheckpointInfo | None:
    """Return the newest checkpoint of a run, or of all runs; None without checkpoints.

    Raises:
        NoWholeCheckpoint: Directories of checkpoints exist, but no complete checkpoint.
    """
    torn: set[CheckpointKey] = set()
    found = _newest(context, run, torn)
    if repair_newer(context, found, torn):
        found = _newest(context, run, torn)
    check_newest(context, run, found, torn)
    return found


def _newest(context: Context, run: str | None, torn: set[CheckpointKey]) -> CheckpointInfo | None:
    """As `newest`; adds the directories without a complete checkpoint to `torn`."""
    # Two manifests are read: that of the checkpoint, and the one that was written last, usually the same. A row that
    # differs from its manifest thus makes no other checkpoint the newest.
    sured: set[str] = set()
    while True:
        torn.clear()
        with context.layout.open_runs() as runs:
            few = newest_by_catalog(context, runs, run, newest=1)
            published = runs.stamps(run) if few is None else few.published
            found = infos_at(context, runs, published, run, newest=1, seek=few is not None, torn=torn)
        if not found or found[0].out_of_order or found[0].damaged:  # another form of it may be complete
            found = infos(context, run, torn=torn)[-1:]
        if not found:
            return None
        suspects = {info.id: info for info in (*_written_last(context, published, found[0]), *found)}
        # If all candidates were read and the newest is still the same one, the loop ends.
        if suspects.keys() <= sured:
            return found[0]
        sured |= suspects.keys()
        try:
            read = [from_manifests(context, info) for info in suspects.values()]
        except DamagedBlob:  # loading it reports the damage
            return found[0]
        except (FileNotFoundError, NotADirectoryError):  # dropped since it was listed
            continue
        best = in_order(context, read)[-1]
        if best.id == found[0].id and best.sequence == found[0].sequence:
            return best


def _written_last(
    context: Context, published: Mapping[CheckpointKey, Stamp | None], newest: CheckpointInfo
) -> list[CheckpointInfo]:
    """Return the checkpoint whose manifest was written last, if it is another one and complete."""
    written = {place: stamp for place, stamp in published.items() if stamp is not None}
    if not written:
        return []
    # By time in addition to the number: a row whose number rotted to a small one would hide the newest checkpoint.
    place = max(written, key=lambda place: written[place].mtime_ns)
    return [] if place == newest.key else infos(context, at={place: written[place]})


_SHOWN = 4


def run_meant(context: Context, run: str | None) -> str | None:
    """Return the run of a call: the given one, or the one that the store is bound to."""
    return context.run if run is None else run


def in_one_run(context: Context, ref: Ref) -> Ref:
    """Return `ref` with the run to search, if its kind depends on the run."""
    # Tags and ids name one checkpoint of the whole store, even if the store is bound to a run.
    context.notices.run_was_open = False
    if ref.run is not None or ref.kind in ("tag", "id"):
        return ref
    if context.run is not None:
        return replace(ref, run=context.run)
    context.notices.run_was_open = True
    if ref.kind != "step":
        _refuse_several(context, ref)
    return ref


def _refuse_several(context: Context, ref: Ref) -> None:
    """Raise if the store has checkpoints of several runs."""
    names = [*filter(context.layout.is_filled, context.layout.runs())]
    if len(names) < 2:
        return
    found = [latest for name in names if (latest := _newest(context, name, set())) is not None]
    if len(found) < 2:
        return
    found.sort(key=lambda info: info.order, reverse=True)
    more = len(found) - _SHOWN
    listed = " or ".join(info.name for info in found[:_SHOWN]) + (f" or {more} more" if more > 0 else "")
    msg = f"{ref}: the store has {len(found)} runs, so it may be {listed}"
    example = f"{found[0].run}@{ref.value}"
    raise AmbiguousRef(
        msg,
        hint=f"write {example}, or bind the store to a run: Store.open(path, run={found[0].run!r})",
        command_hint=f"write {example}",
    )


def run_summaries(context: Context) -> list[RunSummary]:
    """Return all runs with a complete checkpoint, in the order of their newest commits, oldest first."""
    found: list[RunSummary] = []
    with context.layout.open_runs() as runs:
        for run in context.layout.runs():
            proposed = _proposed(context, runs, run)
            found += summaries(infos(context, run)) if proposed is None else [proposed]
    if any(one.newest.out_of_order for one in found):
        return summaries(infos(context))
    return sorted(found, key=lambda one: one.newest.order)


def _proposed(context: Context, runs: OpenRuns, run: str) -> RunSummary | None:
    """Return the summary of a run by the catalog, or None if all of its checkpoints must be checked."""
    found = newest_by_catalog(context, runs, run, newest=1)
    if found is None or found.unknown:  # it is not known which of them are complete
        return None
    newest = infos_at(context, runs, found.published, run, newest=1, seek=True)
    if not newest:
        return None
    steps = {name.step for name in map(parse_directory, found.listed[run]) if name is not None}
    return RunSummary(run, len(steps), newest[0], max(steps))
