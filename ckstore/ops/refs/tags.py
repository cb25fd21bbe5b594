"""Tags: relative symlinks in ``refs/``. Source: docs/format/v1.md, "Tags"."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Sequence

from ckstore.errors import BadInput, CatalogUnavailable, InUse, NoSuchRef
from ckstore.fs import files, links
from ckstore.model.checkpoint.tag import Tag, tag_text
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.names import check_tag
from ckstore.objects.layout import Layout
from ckstore.ops.context import Context
from ckstore.ops.notices import warn
from ckstore.ops.refs.find import AnyRef, find
from ckstore.ops.refs.protection import doubtful_tags, held, way_out

# The tag is durable already; its row can wait for the next opening.
_CATALOG_TIMEOUT_S = 5.0


def write_tag(layout: Layout, tag: str, run: str, step: int) -> None:
    """Point `tag` to a checkpoint, durably; an older meaning is replaced in one step."""
    _point(layout, tag, run, step)
    files.sync_directory(layout.refs)


def _point(layout: Layout, tag: str, run: str, step: int) -> None:
    # The caller holds the checkpoint's directory locked for use, so that no process drops it meanwhile.
    fresh = layout.refs / f".{tag}.{uuid.uuid4().hex[:12]}"
    try:
        links.symlink(tag_text(run, step), fresh)
        # Renamed over the old one: at no moment does the tag name nothing, which would leave its checkpoint
        # unprotected.
        links.rename(fresh, layout.refs / tag)
    except BaseException:  # what a signal handler raised, too
        with contextlib.suppress(OSError):  # the first error says what is wrong
            links.unlink(fresh)
        raise


def tag_all(context: Context, wanted: Iterable[tuple[CheckpointInfo, Sequence[str]]]) -> None:
    """Point tags to checkpoints, as `tag` does each; those of one take one fsync, and all of them one look at all."""
    for info, names in wanted:
        for name in names:
            check_tag(name)
        with held(context, info):
            for name in names:
                _point(context.layout, name, *info.key)
            files.sync_directory(context.layout.refs)
    _tell_catalog(context)


def tag(context: Context, name: str, ref: AnyRef) -> CheckpointInfo:
    """Point the tag `name` to a checkpoint, durably, also if it exists. Return what the store says about it now."""
    info = find(context, ref)
    tag_all(context, [(info, [name])])
    return find(context, info)


def untag(context: Context, name: str) -> None:
    """Remove a tag durably; also one that dangles, and any other file or symlink in ``refs/``."""
    context.check_writable()
    if name not in context.layout.tag_texts():
        raise _no_tag(context, name)
    try:
        links.unlink(context.layout.refs / name)
    except FileNotFoundError:
        raise _no_tag(context, name) from None
    except IsADirectoryError as error:
        msg = f"refs/{name} is a directory, not a tag"
        raise BadInput(msg, hint=f"move it out of {context.layout.refs} by hand") from error
    files.sync_directory(context.layout.refs)
    _tell_catalog(context)


def tags(context: Context) -> list[Tag]:
    """Return every tag by name, with what it names; warn of those that cannot be read."""
    from ckstore.ops.refs.listing import infos

    ids = {info.key: info.id for info in infos(context)}
    found = context.layout.tags()
    for name, problem in doubtful_tags(context.layout).items():
        if name not in found:
            warn(f"{problem}, so that nothing is dropped; {way_out(name)}")
    return [Tag(name, *target, ids.get(target)) for name, target in sorted(found.items())]


def _no_tag(context: Context, name: str) -> NoSuchRef:
    known = sorted(context.layout.tags())[:5]
    msg = f"there is no tag {name!r}"
    return NoSuchRef(msg, hint=f"the tags are {', '.join(known)}" if known else "the store has no tags")


def _tell_catalog(context: Context) -> None:
    try:
        context.catalog.replace_tags(context.layout.tags, timeout_s=_CATALOG_TIMEOUT_S)
    except (CatalogUnavailable, InUse):  # refs/ is the truth; the next opener does it
        return
