"""Find checkpoints by ref. The directories are the truth; the catalog only saves reading manifests."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ckstore.catalog import CatalogUnavailable
from ckstore.errors import BadInput, NoSuchRef
from ckstore.model.info import CheckpointInfo
from ckstore.model.names import check_run
from ckstore.model.refs import DEFAULT_RUN, parse_ref, resolve
from ckstore.objects.layout import ANNOTATIONS, MANIFEST
from ckstore.ops.context import Context, annotated, annotation_problem, read_info, tags_by_checkpoint, tell_unavailable
from ckstore.ops.in_step import inodes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ckstore.model.refs import Ref
    from ckstore.objects.checkpoints import CheckpointDirectory
    from ckstore.objects.layout import OpenRuns

_OPEN_TRIES = 5
Place = tuple[str, int]
"""Run and step."""


def infos(
    context: Context,
    run: str | None = None,
    *,
    newest: int | None = None,
    only: Callable[[int], bool] | None = None,
    at: Mapping[Place, int] | None = None,
) -> list[CheckpointInfo]:
    """Return all complete checkpoints of one run, or of all, in the order of their commits, oldest first.

    What the catalog knows of a directory with the same inode number is taken from there; other manifests are read.

    Args:
        context: The store.
        run: None: all runs.
        newest: Only so many, the newest; what the others are is not looked at.
        only: Only those whose step it is true of; the others are not looked at either.
        at: Only those at these places, whose inode numbers are given; the directories are not listed.

    Raises:
        BadInput: `run` is not a run name.
    """
    if run is not None:
        check_run(run)
    published = at
    if published is None:
        published = {
            (name, step): inode for name, step, inode in context.layout.published(run) if only is None or only(step)
        }
    with context.layout.open_runs() as runs:
        rows, to_read = _from_catalog(context, runs, published, run, newest, seek=at is not None)
        found = rows + [info for place in sorted(to_read) if (info := read_info(context, *place)) is not None]
        if newest is not None and len(found) < min(newest, len(published)):  # some went meanwhile, or are torn
            return infos(context, run, only=only)[-newest:]
        found.sort(key=lambda info: info.order)
        tags = tags_by_checkpoint(context.layout)
        return [_as_it_is(context, runs, info, tags) for info in found[-newest if newest else 0 :]]


def _from_catalog(
    context: Context,
    runs: OpenRuns,
    published: Mapping[Place, int],
    run: str | None,
    newest: int | None,
    *,
    seek: bool,
) -> tuple[list[CheckpointInfo], set[Place]]:
    """Return what the catalog knows of directories with these inode numbers, and those that have to be read."""
    try:
        rows, unknown = context.catalog.current(published, run, newest=newest, seek=seek, durable=context.durable)
    except CatalogUnavailable as error:
        if published:
            tell_unavailable(context, error)
        return [], set(published)
    # An interrupted `rm -r` takes the manifest of a directory that the catalog knows.
    # A row of another hash is older than a store.json that somebody changed.
    ours = f"{context.layout.hash_prefix}-"
    torn = {
        (info.run, info.step)
        for info in rows
        if not info.id.startswith(ours) or not runs.has(info.run, info.step, MANIFEST)
    }
    if torn and newest is not None:  # as many older ones are wanted in their place
        return _from_catalog(context, runs, published, run, None, seek=seek)
    return [info for info in rows if (info.run, info.step) not in torn], unknown | torn


def _as_it_is(
    context: Context, runs: OpenRuns, info: CheckpointInfo, all_tags: Mapping[Place, tuple[str, ...]]
) -> CheckpointInfo:
    """Return `info` with its tags, and with what was added to the checkpoint since it was saved."""
    tags = all_tags.get((info.run, info.step), ())
    if info.durable != context.durable or info.tags != tags:
        info = replace(info, durable=context.durable, tags=tags)
    if runs.has(info.run, info.step, ANNOTATIONS):
        return annotated(context, info)
    if context.problems:  # what was wrong with them is gone with them
        context.problems.pop(annotation_problem(info), None)
    return info


def find(context: Context, ref: str | int | CheckpointInfo) -> CheckpointInfo:
    """Return the checkpoint that `ref` names.

    Raises:
        NoSuchRef: There is none; the message says what there is.
        AmbiguousRef: There are several.
        BadInput: It has no form of a ref.
    """
    if isinstance(ref, CheckpointInfo):
        return _same(context, ref)
    if isinstance(ref, bool) or not isinstance(ref, (str, int)):
        msg = f"a ref is a string, a step number or a CheckpointInfo, got {type(ref).__name__}"
        raise BadInput(msg)
    parsed = parse_ref(str(ref))
    if parsed.kind == "latest-valid":
        from ckstore.ops.latest_valid import newest_valid

        return newest_valid(context, str(parsed))
    if parsed.kind == "latest" and (newest := infos(context, parsed.run, newest=1)):
        return newest[0]
    tags = context.layout.tags()
    place = _place(context, parsed, tags)
    if place is not None and (there := infos(context, at=inodes(context, [place]))):
        return there[0]
    return resolve(parsed, infos(context), tags)


def _place(context: Context, ref: Ref, tags: Mapping[str, Place]) -> Place | None:
    """Return the place that is meant if a checkpoint is there, which `resolve` would say, too; else it decides."""
    if ref.kind == "tag":
        place = tags.get(ref.value)
        return place if place is not None and ref.run in (None, place[0]) else None
    if ref.kind != "step":
        return None
    runs = [DEFAULT_RUN] if ref.run is None else [ref.run]
    if ref.run is None and len(there := context.layout.runs()) == 1:
        runs = there
    return runs[0], int(ref.value)


def _same(context: Context, wanted: CheckpointInfo) -> CheckpointInfo:
    from ckstore.objects.checkpoints import id_at

    if id_at(context.layout.checkpoint(wanted.run, wanted.step)) != wanted.id:
        msg = f"checkpoint {wanted.name} with id {wanted.id} is not in the store any more"
        raise NoSuchRef(msg, hint="it was deleted or replaced; ckstore log shows what there is")
    return replace(
        annotated(context, wanted), tags=tags_by_checkpoint(context.layout).get((wanted.run, wanted.step), ())
    )


def open_directory(context: Context, ref: str | int | CheckpointInfo) -> CheckpointDirectory:
    """Open the checkpoint that `ref` names for reading: locked, with a checked manifest.

    Raises:
        NoSuchRef, AmbiguousRef, BadInput: As `find`.
        DamagedBlob: Its manifest is damaged.
    """
    from ckstore.ops.marking import open_checked

    for _ in range(_OPEN_TRIES):
        info = find(context, ref)
        try:
            directory = open_checked(context, context.layout.checkpoint(info.run, info.step))
        except FileNotFoundError:  # dropped between finding and locking: look again
            continue
        if directory.manifest_id == info.id:
            return directory
        directory.close()  # replaced between finding and locking
    msg = f"{ref} came and went {_OPEN_TRIES} times while it was being opened"
    raise NoSuchRef(msg)
