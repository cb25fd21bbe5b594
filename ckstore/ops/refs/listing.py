"""List checkpoints. The directories are the truth; the catalog only saves reading manifests."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ckstore.errors import CatalogUnavailable, DamagedBlob, NoSuchRef
from ckstore.model.names import WIDEST_GAP, CheckpointKey, check_run, out_of_order
from ckstore.objects import trash
from ckstore.ops.context import Context, read_info, tags_by_checkpoint
from ckstore.ops.index.facts import as_it_is, from_manifests, newest_by_catalog
from ckstore.ops.index.reconcile import write_again
from ckstore.ops.index.sequence import sequence_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ckstore.model.manifest.info import CheckpointInfo, Stamp
    from ckstore.objects.layout import Layout, OpenRuns


# Each loses only to a replacement or a drop between two calls.
_LIST_TRIES = 5


def infos(
    context: Context,
    run: str | None = None,  # None: all runs
    *,
    newest: int | None = None,  # only so many, the newest; what the others are is not looked at
    only: Callable[[int], bool] | None = None,
    at: Mapping[CheckpointKey, Stamp] | None = None,
    superseded: bool = False,
    torn: set[CheckpointKey] | None = None,
    tries: int = _LIST_TRIES,
) -> list[CheckpointInfo]:
    """Return all complete checkpoints of one run, or of all, in the order of their commits, oldest first."""
    # What the catalog knows of a directory with the same stamp is taken from there; other manifests are read. `only`:
    # only those whose step it is true of; the others are not looked at either. `at`: only those at these places, whose
    # stamps are given; the directories are not listed. `superseded`: also those that another one of their step
    # supersedes; they say so. `torn`: gets the places that were looked at and hold no complete checkpoint. `tries`: how
    # often it is listed again where some went meanwhile.
    if run is not None:
        check_run(run)
    with context.layout.open_runs() as runs:
        if at is not None:
            return with_superseded(infos_at(context, runs, at, seek=True, torn=torn))
        few = None if newest is None or only is not None else newest_by_catalog(context, runs, run, newest=newest)
        published = runs.stamps(run, in_full=newest is None) if few is None else few.published
        if only is not None:
            published = {place: stamp for place, stamp in published.items() if only(place.step)}
        found = infos_at(context, runs, published, run, newest=newest, seek=few is not None, torn=torn)
    lacking = published.keys() - {info.key for info in found} if newest is None and tries else ()
    if any(context.layout.inode(key) is None for key in lacking):
        # One that went since it was listed may have been replaced or compacted by one that was not there yet.
        return infos(context, run, only=only, superseded=superseded, torn=torn, tries=tries - 1)
    listed = with_superseded(found)
    if superseded:  # of one checkpoint the latest form
        newest_form = {info.id: info for info in listed}
        listed = [info for info in listed if newest_form[info.id] is info]
    else:
        listed = [info for info in listed if not info.superseded]
    if newest is not None and (
        len(listed) < min(newest, len(published))  # some went meanwhile, or are torn or superseded
        or any(info.out_of_order for info in listed)  # others are newer
    ):
        return infos(context, run, only=only, superseded=superseded, torn=torn)[-newest:]
    return listed


def with_superseded(found: list[CheckpointInfo]) -> list[CheckpointInfo]:
    """Mark the checkpoints, given in order, of whose step a later one is among them, or a better form of them."""
    if len({(info.run, info.step) for info in found}) == len(found):
        return found
    # Of one checkpoint the latest form that is not known to be damaged comes last.
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
    """As `infos`, of places that were listed; fewer than `newest` where some went since. `seek`: they are few."""
    rows, to_read = _from_catalog(context, published, run, None if seek else newest, seek=seek)
    asked = to_read
    if newest is not None:  # without a manifest, or gone since it was listed: not of the newest
        to_read = {place for place in to_read if published[place] is not None}
        rows = [info for info in rows if context.layout.stamp(info.key) is not None]
    read = [info for place in sorted(to_read) if (info := read_info(context, place)) is not None]
    if torn is not None:
        torn |= asked - {info.key for info in read}
    found = rows + read
    found = in_order(context, found)
    tags = tags_by_checkpoint(context.layout)
    found = found[-newest if newest else 0 :]
    context.tell_passed_over()
    return [as_it_is(context, runs, info, tags.get(info.key.any_generation, ())) for info in found]


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
        return from_manifests(context, info)
    except (FileNotFoundError, NotADirectoryError, DamagedBlob):
        return info


def _told_out_of_order(context: Context, info: CheckpointInfo, limit: int) -> CheckpointInfo:
    context.notices.problems[order_problem(info)] = out_of_order(info.name, info.sequence, limit)
    return replace(info, out_of_order=True)


def order_problem(info: CheckpointInfo) -> str:
    """Return the key in `Notices.problems` of a sequence number that does not count."""
    return f"order of {info.name}"


def no_such_run(layout: Layout, run: str) -> NoSuchRef:
    """Return the error for a run that the store does not have, with those that it has."""
    msg = f"there is no run {run!r} in {layout.root}"
    if trash.waits(layout, run):
        by_command = f"its checkpoints were deleted; ckstore undo --run {run} brings them back"
        hint = "its checkpoints were deleted; store.dropped() lists what store.undelete(ref) brings back"
        return NoSuchRef(msg, hint=hint, command_hint=by_command)
    # The directory of a run stays when its last checkpoint goes.
    runs = [name for name in layout.runs() if layout.is_filled(name)]
    return NoSuchRef(msg, hint=f"its runs: {', '.join(runs)}" if runs else "it has no checkpoint yet")


def current_or_named(context: Context, run: str | None = None) -> list[CheckpointInfo]:
    """Return the checkpoints of `infos`, and of the superseded ones those that a tag or a pin names."""
    from ckstore.objects.documents.pins import read_pins

    found = infos(context, run, superseded=True)
    if not any(info.superseded for info in found):
        return found
    pinned = {pin.id for pin in read_pins(context.layout)}
    return [info for info in found if not info.superseded or info.tags or info.id in pinned]
