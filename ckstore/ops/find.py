"""Find checkpoints by ref. The directories are the truth; the catalog only saves reading manifests."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from ckstore.catalog import CatalogUnavailable
from ckstore.errors import BadInput, NoSuchRef
from ckstore.model.info import CheckpointInfo
from ckstore.model.names import check_run
from ckstore.model.refs import parse_ref, resolve
from ckstore.objects.layout import ANNOTATIONS, MANIFEST
from ckstore.ops.context import Context, annotated, annotation_problem, read_info, tags_by_checkpoint, tell_unavailable

if TYPE_CHECKING:
    from ckstore.objects.checkpoints import CheckpointDirectory

_OPEN_TRIES = 5


def infos(context: Context, run: str | None = None) -> list[CheckpointInfo]:
    """Return all complete checkpoints of one run, or of all, in the order of their commits, oldest first.

    What the catalog knows of a directory with the same inode number is taken from there; other manifests are read.

    Raises:
        BadInput: `run` is not a run name.
    """
    if run is not None:
        check_run(run)
    published = list(context.layout.published(run))
    tags = tags_by_checkpoint(context.layout)
    try:
        listing = context.catalog.listing()
        rows = {(info.run, info.step): info for info in context.catalog.infos(run, durable=context.durable)}
    except CatalogUnavailable as error:
        listing, rows = {}, {}
        if published:
            tell_unavailable(context, error)
    found = []
    root = str(context.layout.checkpoints)
    for name, step, inode in published:
        key = (name, step)
        folder = f"{root}/{name}/{step}"  # a thousand paths are built here: as text, in a tenth of the time
        # An interrupted `rm -r` takes the manifest of a directory that the catalog knows.
        if key in rows and listing.get(key) == inode and os.access(f"{folder}/{MANIFEST}", os.F_OK):
            info: CheckpointInfo | None = rows[key]
        else:
            info = read_info(context, name, step)
        if info is None:
            continue
        if info.durable != context.durable or info.tags != tags.get(key, ()):
            info = replace(info, durable=context.durable, tags=tags.get(key, ()))
        if os.access(f"{folder}/{ANNOTATIONS}", os.F_OK, follow_symlinks=False):
            info = annotated(context, info)
        elif context.problems:  # what was wrong with them is gone with them
            context.problems.pop(annotation_problem(info), None)
        found.append(info)
    return sorted(found, key=lambda info: info.order)


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
    return resolve(parsed, infos(context), context.layout.tags())


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
