"""List checkpoints, find the newest one (`latest`), and find the run for a ref without a run.

The directories are authoritative, and the catalog only avoids reading manifests. A wrong row of the catalog must not
make another checkpoint the newest, and `latest` without a run must never mean a checkpoint of another training.

A directory in ``checkpoints/RUN/`` that is named like a checkpoint but is incomplete is reported if it may be newer
than the newest complete one. Leftovers of dead saves in ``staging/`` are not reported.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ckstore.errors import AmbiguousRef, CatalogUnavailable, DamagedBlob, NoSuchRef, NoWholeCheckpoint
from ckstore.model.manifest.info import CheckpointInfo, RunSummary, summaries
from ckstore.model.names import WIDEST_GAP, CheckpointKey, check_run, out_of_order, parse_directory
from ckstore.objects import trash
from ckstore.ops.context import Context, read_info, tags_by_checkpoint
from ckstore.ops.index.facts import as_it_is, from_manifests, newest_by_catalog
from ckstore.ops.index.reconcile import write_again
from ckstore.ops.index.sequence import sequence_limit
from ckstore.ops.notices import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from ckstore.model.checkpoint.refs import Ref
    from ckstore.model.manifest.info import Stamp
    from ckstore.objects.layout import Layout, OpenRuns


# The maximum number of times that checkpoints are listed again because one was replaced or dropped during the listing.
_LIST_TRIES = 5
Order = tuple[int, str, str, int]
_PROBLEMS_SHOWN = 5
_RUNS_SHOWN = 4


def infos(
    context: Context,
    run: str | None = None,
    *,
    newest: int | None = None,
    only: Callable[[int], bool] | None = None,
    at: Mapping[CheckpointKey, Stamp] | None = None,
    superseded: bool = False,
    torn: set[CheckpointKey] | None = None,
    tries: int = _LIST_TRIES,
) -> list[CheckpointInfo]:
    """Return all complete checkpoints of one run, or of all runs, in the order of their commits, oldest first.

    If the stamp of a directory is unchanged, the row of the catalog is used. Otherwise, the manifest is read.

    Args:
        context: The store.
        run: The run. If None, all runs.
        newest: Return only this number of the newest checkpoints. Older checkpoints are not checked.
        only: A function that selects checkpoints by step. Other checkpoints are neither returned nor checked.
        at: Directories with their stamps. Only checkpoints in them are returned, and no directory is listed.
        superseded: Whether to include superseded checkpoints, with `CheckpointInfo.superseded` set.
        torn: A set to which the checked directories without a complete checkpoint are added.
        tries: The maximum number of times to list again if checkpoints disappear.
    """
    if run is not None:
        check_run(run)
    with context.layout.open_runs() as runs:
        if at is not None:
            return with_superseded(infos_at(context, runs, at, seek=True, torn=torn))
        directories, few = context.layout.directories_by_run(run), None
        if newest is not None and only is None:
            few = newest_by_catalog(context, runs, run, directories, newest=newest)
        published = runs.stamps(directories, in_full=newest is None) if few is None else few.published
        if only is not None:
            published = {place: stamp for place, stamp in published.items() if only(place.step)}
        missed: set[CheckpointKey] = set()
        found = infos_at(context, runs, published, run, newest=newest, seek=few is not None, torn=missed)
    lacking = missed if tries else ()
    if torn is not None:
        torn |= missed
    if any(context.layout.inode(key) is None for key in lacking):
        # If a checkpoint disappeared, its replacement or next generation may have appeared after the listing.
        again = infos(context, run, only=only, superseded=superseded, torn=torn, tries=tries - 1)
        return again[-newest if newest else 0 :]
    listed = with_superseded(found)
    if superseded:  # keep only the latest generation of each checkpoint
        newest_form = {info.id: info for info in listed}
        listed = [info for info in listed if newest_form[info.id] is info]
    else:
        listed = [info for info in listed if not info.superseded]
    if newest is not None and (
        len(listed) < min(newest, len(published))  # some disappeared, are incomplete or are superseded
        or any(info.out_of_order for info in listed)  # other checkpoints are newer
    ):
        return infos(context, run, only=only, superseded=superseded, torn=torn)[-newest:]
    return listed


def with_superseded(found: list[CheckpointInfo]) -> list[CheckpointInfo]:
    """Return checkpoints, and set `superseded` for those with a newer checkpoint of the same step.

    `found` must be in the order of commits.
    """
    if len({(info.run, info.step) for info in found}) == len(found):
        return found
    # Among the generations of one checkpoint, the latest one that is not known to be damaged is the current one.
    found = sorted(found, key=lambda info: (*info.order[:3], not info.damaged, info.key.generation))
    last = {(info.run, info.step): info for info in found}
    return [info if last[info.run, info.step] is info else replace(info, superseded=True) for info in found]


def infos_at(
    context: Context,
    runs: OpenRuns,
    published: Mapping[CheckpointKey, Stamp | None],
    run: str | None = None,
    *,
    newest: int | None = None,
    seek: bool = False,
    torn: set[CheckpointKey] | None = None,
) -> list[CheckpointInfo]:
    """Return the complete checkpoints in listed directories, like `infos`.

    The result may have fewer than `newest` checkpoints if some disappeared. With `seek`, the catalog is queried for
    each directory, which is fast for a few directories.
    """
    rows, to_read = _from_catalog(context, published, run, None if seek else newest, seek=seek)
    asked = to_read
    if newest is not None:  # directories that were removed or have no manifest are not among the newest
        to_read = {place for place in to_read if published[place] is not None}
        rows = [info for info in rows if runs.stamp(info.key) is not None]
    read = [info for place in sorted(to_read) if (info := read_info(context, place)) is not None]
    if torn is not None:
        torn |= asked - {info.key for info in read}
    found = rows + read
    found = in_order(context, found)
    tags = tags_by_checkpoint(context.layout)
    found = found[-newest if newest else 0 :]
    context.tell_passed_over()
    if not tags:
        return [as_it_is(context, runs, info, ()) for info in found]
    return [as_it_is(context, runs, info, tags.get(info.key.any_generation, ())) for info in found]


def _from_catalog(
    context: Context,
    published: Mapping[CheckpointKey, Stamp | None],
    run: str | None,
    newest: int | None,
    *,
    seek: bool,
) -> tuple[list[CheckpointInfo], set[CheckpointKey]]:
    """Return the rows of the catalog for directories with these stamps, and the directories that must be read."""
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
    # If the id in a row is of another hash algorithm, the row was written before store.json was changed.
    strangers = {info.key for info in rows if not info.id.startswith(f"{context.layout.hash_prefix}-")}
    if strangers and newest is not None:  # query all rows, since older checkpoints are needed instead
        return _from_catalog(context, published, run, None, seek=seek)
    if strangers:
        rows = [info for info in rows if info.key not in strangers]
    return rows, unknown | doubted | strangers


def in_order(context: Context, found: list[CheckpointInfo]) -> list[CheckpointInfo]:
    """Return checkpoints in the order of commits, beginning with those that have an invalid sequence number."""
    if any(info.sequence > WIDEST_GAP for info in found):
        found = [*found]
        for at, info in enumerate(found):
            if info.sequence > WIDEST_GAP:
                # Use the facts in the manifest, if it can be read.
                with suppress(FileNotFoundError, NotADirectoryError, DamagedBlob):
                    found[at] = from_manifests(context, info)
        limit = sequence_limit(context)
        for info in (info for info in found if info.sequence > limit):
            context.notices.problems[order_problem(info)] = out_of_order(info.name, info.sequence, limit)
        found = [replace(info, out_of_order=True) if info.sequence > limit else info for info in found]
    return sorted(found, key=lambda info: info.order)


def order_problem(info: CheckpointInfo) -> str:
    """Return the key in `Notices.problems` for an invalid sequence number."""
    return f"order of {info.name}"


class Problem(NamedTuple):
    """A checkpoint that cannot be used, and the reason."""

    name: str  # ``RUN@STEP``
    problem: str
    order: Order | None  # its place in the order of commits; None if its manifest cannot be read
    key: CheckpointKey


def incomplete(context: Context, run: str | None) -> list[Problem]:
    """Return the directories of a run, or of all runs, that hold no complete checkpoint."""
    torn: set[CheckpointKey] = set()
    infos(context, run, superseded=True, torn=torn)
    return problems_of(context, torn)


def problems_of(context: Context, keys: Iterable[CheckpointKey]) -> list[Problem]:
    """Return the problems of incomplete directories, the newest first."""
    found = [one for key in sorted(keys) if (one := _problem(context, key)) is not None]
    return sorted(found, key=lambda one: (one.order is not None, one.order or (), one.key), reverse=True)


def _problem(context: Context, key: CheckpointKey) -> Problem | None:
    from ckstore.objects.checkpoints import look
    from ckstore.ops.check.validity import glance

    try:
        glanced = glance(context.layout.checkpoint(key), key)
        # `look` also checks the hash of the store.
        problem = glanced.problem or look(context.layout, key).problem
    except (FileNotFoundError, NotADirectoryError):  # it was dropped after it was listed
        return None
    if not problem:  # it was repaired
        return None
    if glanced.manifest is None:
        # Without a manifest, the place of the checkpoint in the order is unknown.
        return Problem(key.name, f"{problem} (so it may be older)", None, key)
    order = (glanced.manifest.sequence, glanced.manifest.created, glanced.manifest_id, key.generation)
    return Problem(key.name, problem, order, key)


def newer_than(info: CheckpointInfo, found: Iterable[Problem]) -> list[Problem]:
    """Return the problems with checkpoints that are or may be newer than a given one."""
    return [one for one in found if one.order is None or one.order > info.order]


def repair_newer(context: Context, newest: CheckpointInfo | None, torn: Collection[CheckpointKey]) -> bool:
    """Repair one incomplete directory that is newer than `newest`, if possible; return whether one was repaired.

    The newest directory is tried first. The data is downloaded from a remote.
    """
    if not torn or context.rescuer is None:
        return False
    found = problems_of(context, torn)
    return any(context.rescuer.checkpoint(one.key) for one in (found if newest is None else newer_than(newest, found)))


def check_newest(
    context: Context,
    run: str | None,
    newest: CheckpointInfo | None,
    torn: Collection[CheckpointKey],
    ref: str = "latest",
) -> None:
    """Raise if all checkpoints are incomplete. Warn once per open store if incomplete ones are newer than `newest`.

    Args:
        context: The store.
        run: The run, or None for all runs.
        newest: The newest complete checkpoint.
        torn: The directories of the run, or of all runs, without a complete checkpoint.
        ref: The requested ref.
    """
    if not torn:
        return
    if newest is None and (found := problems_of(context, torn)):
        raise nothing_whole(ref, run, found)
    tell_torn(context, newest, torn)


def tell_torn(context: Context, newest: CheckpointInfo | None, torn: Collection[CheckpointKey]) -> None:
    """Warn, once per open store, about incomplete checkpoints that are or may be newer than the newest one."""
    found = problems_of(context, torn)
    newer = found if newest is None else newer_than(newest, found)
    told = context.notices.problems
    if any(f"latest {one.name}" not in told for one in newer):
        what = f"{listed_problems(newer)}. ckstore verify --repair repairs what it can"
        said = f"checkpoints are incomplete or damaged: {what}"
        if newest is not None:
            said = f"latest is {newest.name}, since newer checkpoints are incomplete or damaged: {what}"
        told.update((f"latest {one.name}", said) for one in newer)
        warn(said)


def nothing_whole(ref: str, run: str | None, found: Sequence[Problem]) -> NoWholeCheckpoint:
    """Return the error for a ref to the newest checkpoint if all checkpoints are incomplete."""
    of_run = "" if run is None else f" of the run {run!r}"
    again = f"to start over, save to another run, or delete this one: ckstore delete --run {found[0].key.run}"
    return NoWholeCheckpoint(
        f"{ref}: no checkpoint{of_run} is complete. {len(found)} exist: {listed_problems(found)}",
        hint="store.verify(repair=True) repairs from a remote, repair_from= from a copy. Load one of them with "
        f"select= or verify=False to rescue readable data; {again}",
        command_hint="ckstore verify --repair repairs from a remote, --repair-from PLACE from a copy. "
        f"ckstore export REF DEST --select NAME rescues a part; {again}",
    )


def listed_problems(found: Sequence[Problem]) -> str:
    """Return a sentence with the first few problems."""
    more = len(found) - _PROBLEMS_SHOWN
    text = "; ".join(f"{other.name}: {other.problem}" for other in found[:_PROBLEMS_SHOWN])
    return text + (f"; and {more} more" if more > 0 else "")


def newest(context: Context, run: str | None) -> CheckpointInfo | None:
    """Return the newest checkpoint of a run, or of all runs, or None if there are no checkpoints.

    Raises:
        NoWholeCheckpoint: Directories of checkpoints exist, but none holds a complete checkpoint.
    """
    torn: set[CheckpointKey] = set()
    found = _newest(context, run, torn)
    if torn and repair_newer(context, found, torn):
        found = _newest(context, run, torn)
    check_newest(context, run, found, torn)
    return found


def _newest(context: Context, run: str | None, torn: set[CheckpointKey]) -> CheckpointInfo | None:
    """Return the newest checkpoint, like `newest`, and add the directories without a complete checkpoint to `torn`."""
    # Read two manifests: that of the newest checkpoint by its row in the catalog, and the manifest that was written
    # last. They are usually the same. Therefore a row that differs from its manifest cannot make another checkpoint the
    # newest.
    sured: set[str] = set()
    while True:
        torn.clear()
        with context.layout.open_runs() as runs:
            directories = context.layout.directories_by_run(run)
            few = newest_by_catalog(context, runs, run, directories, newest=1)
            published = runs.stamps(directories) if few is None else few.published
            found = infos_at(context, runs, published, run, newest=1, seek=few is not None, torn=torn)
            if any(context.layout.inode(place) is None for place in torn):  # it was replaced after it was listed
                torn.clear()
                found = infos(context, run, torn=torn)[-1:]
            if not found or found[0].out_of_order or found[0].damaged:  # another checkpoint or generation may be better
                found = infos(context, run, torn=torn)[-1:]
            if not found:
                return None
            suspects = {info.id: info for info in (*_written_last(context, published, found[0]), *found)}
            # End the loop if it found no candidate whose manifest has not been read.
            if suspects.keys() <= sured:
                return found[0]
            sured |= suspects.keys()
            try:
                # Do not pass `runs`, whose cached list of small files, such as marks, may be outdated.
                read = [from_manifests(context, info) for info in suspects.values()]
            except DamagedBlob:  # loading the checkpoint reports the damage
                return found[0]
            except (FileNotFoundError, NotADirectoryError):  # it was dropped after it was listed
                continue
        best = in_order(context, read)[-1]
        if best.id == found[0].id and best.sequence == found[0].sequence:
            return best


def _written_last(
    context: Context, published: Mapping[CheckpointKey, Stamp | None], newest: CheckpointInfo
) -> list[CheckpointInfo]:
    """Return the checkpoint whose manifest was written last, unless it is incomplete or is `newest`."""
    written = {place: stamp for place, stamp in published.items() if stamp is not None}
    if not written:
        return []
    # Use the modification time, because a sequence number that rotted to a smaller number would hide the newest
    # checkpoint.
    place = max(written, key=lambda place: written[place].mtime_ns)
    return [] if place == newest.key else infos(context, at={place: written[place]})


def run_meant(context: Context, run: str | None) -> str | None:
    """Return the given run, or the run that the store is bound to."""
    return context.run if run is None else check_run(run)


def in_one_run(context: Context, ref: Ref) -> Ref:
    """Return `ref` with the run to search, unless it is a tag or an id."""
    # A tag or an id names one checkpoint of the whole store, even if the store is bound to a run.
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
    """Raise if several runs of the store have checkpoints."""
    names = context.layout.runs()
    if len(names) > 1:
        names = [*filter(context.layout.is_filled, names)]
    if len(names) < 2:
        return
    found = [latest for name in names if (latest := _newest(context, name, set())) is not None]
    if len(found) < 2:
        return
    found.sort(key=lambda info: info.order, reverse=True)
    more = len(found) - _RUNS_SHOWN
    listed = " or ".join(info.name for info in found[:_RUNS_SHOWN]) + (f" or {more} more" if more > 0 else "")
    msg = f"{ref}: the store has {len(found)} runs, so it may be {listed}"
    example = f"{found[0].run}@{ref.value}"
    raise AmbiguousRef(
        msg,
        hint=f"write {example}, or bind the store to a run: Store.open(path, run={found[0].run!r})",
        command_hint=f"write {example}",
    )


def run_summaries(context: Context) -> list[RunSummary]:
    """Return a summary of each run with a complete checkpoint, in the order of their newest commits, oldest first."""
    found: list[RunSummary] = []
    with context.layout.open_runs() as runs:
        for run in context.layout.runs():
            proposed = _proposed(context, runs, run)
            found += summaries(infos(context, run)) if proposed is None else [proposed]
    if any(one.newest.out_of_order for one in found):
        return summaries(infos(context))
    return sorted(found, key=lambda one: one.newest.order)


def _proposed(context: Context, runs: OpenRuns, run: str) -> RunSummary | None:
    """Return the summary of a run from the catalog, or None if all of its checkpoints must be checked."""
    if not context.view.sees_changes:  # `newest_by_catalog` cannot be used then
        return None
    found = newest_by_catalog(context, runs, run, context.layout.directories_by_run(run), newest=1)
    if found is None or found.unknown:  # it is unknown which checkpoints are complete
        return None
    newest = infos_at(context, runs, found.published, run, newest=1, seek=True)
    if not newest:
        return None
    steps = {name.step for name in map(parse_directory, found.listed[run]) if name is not None}
    return RunSummary(run, len(steps), newest[0], max(steps))


def no_such_run(layout: Layout, run: str) -> NoSuchRef:
    """Return the error for a run that the store does not have. The error names the existing runs."""
    msg = f"there is no run {run!r} in {layout.root}"
    if trash.waits(layout, run):
        by_command = f"its checkpoints were deleted; ckstore undo --run {run} restores them"
        hint = "its checkpoints were deleted; store.undoable() lists those that store.undo(ref) restores"
        return NoSuchRef(msg, hint=hint, command_hint=by_command)
    # The directory of a run remains when its last checkpoint is deleted.
    runs = [name for name in layout.runs() if layout.is_filled(name)]
    return NoSuchRef(msg, hint=f"its runs: {', '.join(runs)}" if runs else "it has no checkpoint yet")


def current_or_named(context: Context, run: str | None = None) -> list[CheckpointInfo]:
    """Return the checkpoints that `infos` returns, and superseded ones with a tag or a pin."""
    from ckstore.objects.documents.pins import read_pins

    found = infos(context, run, superseded=True)
    if not any(info.superseded for info in found):
        return found
    pinned = {pin.id for pin in read_pins(context.layout)}
    return [info for info in found if not info.superseded or info.tags or info.id in pinned]
