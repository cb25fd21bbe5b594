"""List checkpoints. The directories are authoritative; the catalog only avoids reading manifests."""

from __future__ import annotations

from contextlib import suppress
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


# A try fails only if a checkpoint is replaced or dropped between two calls.
_LIST_TRIES = 5


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

    For a directory whose stamp is unchanged, the catalog's row is used. Other manifests are read.

    Args:
        context: The store.
        run: The run. If None, all runs.
        newest: Return only this many of the newest, and do not check the others.
        only: Return only those for whose step it is True, and do not check the others.
        at: Return only those in these directories, whose stamps are given. Directories are not listed.
        superseded: Include checkpoints that another one of their step supersedes, marked as such.
        torn: Gets the checked directories without a complete checkpoint.
        tries: How often to list again if checkpoints disappear.
    """
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
        # A checkpoint that disappeared may have been replaced or compacted by one that was not listed yet.
        return infos(context, run, only=only, superseded=superseded, torn=torn, tries=tries - 1)
    listed = with_superseded(found)
    if superseded:  # keep only the latest form of each checkpoint
        newest_form = {info.id: info for info in listed}
        listed = [info for info in listed if newest_form[info.id] is info]
    else:
        listed = [info for info in listed if not info.superseded]
    if newest is not None and (
        len(listed) < min(newest, len(published))  # some disappeared, or are torn or superseded
        or any(info.out_of_order for info in listed)  # other checkpoints are newer
    ):
        return infos(context, run, only=only, superseded=superseded, torn=torn)[-newest:]
    return listed


def with_superseded(found: list[CheckpointInfo]) -> list[CheckpointInfo]:
    """Mark the checkpoints, given in order, that a later one of their step, or a better form, supersedes."""
    if len({(info.run, info.step) for info in found}) == len(found):
        return found
    # Of several forms of one checkpoint, the latest that is not known to be damaged comes last.
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
    """As `infos`, for listed directories; fewer than `newest` if some disappeared. `seek` if they are few."""
    rows, to_read = _from_catalog(context, published, run, None if seek else newest, seek=seek)
    asked = to_read
    if newest is not None:  # those without a manifest, or removed since, are not among the newest
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
    # A row with another hash was written before a change of store.json.
    strangers = {info.key for info in rows if not info.id.startswith(f"{context.layout.hash_prefix}-")}
    if strangers and newest is not None:  # older ones are needed in their place
        return _from_catalog(context, published, run, None, seek=seek)
    return [info for info in rows if info.key not in strangers], unknown | doubted | strangers


def in_order(context: Context, found: list[CheckpointInfo]) -> list[CheckpointInfo]:
    """Return checkpoints in the order of commits; those with an invalid sequence number come first."""
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


def no_such_run(layout: Layout, run: str) -> NoSuchRef:
    """Return the error for a run that the store does not have, with the existing runs."""
    msg = f"there is no run {run!r} in {layout.root}"
    if trash.waits(layout, run):
        by_command = f"its checkpoints were deleted; ckstore undo --run {run} restores them"
        hint = "its checkpoints were deleted; store.undoable() lists those that store.undo(ref) restores"
        return NoSuchRef(msg, hint=hint, command_hint=by_command)
    # The directory of a run remains when its last checkpoint is deleted.
    runs = [name for name in layout.runs() if layout.is_filled(name)]
    return NoSuchRef(msg, hint=f"its runs: {', '.join(runs)}" if runs else "it has no checkpoint yet")


def current_or_named(context: Context, run: str | None = None) -> list[CheckpointInfo]:
    """Return the checkpoints of `infos`, and the superseded ones that a tag or a pin names."""
    from ckstore.objects.documents.pins import read_pins

    found = infos(context, run, superseded=True)
    if not any(info.superseded for info in found):
        return found
    pinned = {pin.id for pin in read_pins(context.layout)}
    return [info for info in found if not info.superseded or info.tags or info.id in pinned]
