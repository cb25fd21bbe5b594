"""The options that saves of a state, background saves and commits of files share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, SupportsIndex, TypedDict

from ckstore.errors import BadInput
from ckstore.model.document import shown
from ckstore.model.names import check_step
from ckstore.model.settings.patience import AskedPatience

if TYPE_CHECKING:
    from ckstore.model.manifest.info import CheckpointInfo
    from ckstore.model.reports.progress import Progress
    from ckstore.model.training_identity import IfRunInUse
    from ckstore.objects.publish import IfExists
    from ckstore.ops.context import Context
    from ckstore.ops.save.save import Request


class SaveOptions(TypedDict, total=False):
    """The options that `Store.save`, `Store.save_async` and `Store.commit` share, for functions that pass them on.

    Attributes:
        metrics, metadata, message, tags, parent, if_exists, if_run_in_use, retries, wait_for_space_s, try_for_s: As in
            `Store.save`.
    """

    metrics: Mapping[str, Any] | None
    metadata: Mapping[str, Any] | None
    message: str
    tags: Iterable[str]
    parent: str | SupportsIndex | CheckpointInfo | None
    if_exists: IfExists
    retries: int | None
    wait_for_space_s: float | None
    try_for_s: float | None
    if_run_in_use: IfRunInUse | None


def request_of(  # noqa: PLR0917 - the arguments are those of `Request`
    context: Context,
    run: str,
    step: int | None,
    options: SaveOptions,
    progress: Progress | None,
    ref: str = "",
    *,
    has_facts: bool = True,
) -> Request:
    """Return the request for a save, after looking up its parent and checking some of its options.

    Args:
        context: The store.
        run: The run.
        step: The step. If None, the next one.
        options: The options of the caller.
        progress: Called with the progress.
        ref: The ref of the parent, which the saver will look up later. If empty, `options["parent"]` is looked up now.
        has_facts: Whether subscribers add their facts to the metadata.
    """
    from ckstore.model.manifest.describe import describe
    from ckstore.ops.refs.find import find
    from ckstore.ops.save.continuation import parent_at
    from ckstore.ops.save.save import Request

    named = None if ref else options.get("parent")
    parent = None if named is None else parent_at(context, find(context, named))
    metadata, facts = options.get("metadata"), _facts_of(context) if has_facts else {}
    if facts and isinstance(metadata, Mapping | None):  # `describe` refuses other types
        metadata = {**facts, **(metadata or {})}
        facts = {name: metadata[name] for name in facts}
    about = describe(
        options.get("metrics"),
        metadata,
        options.get("message", ""),
        None if parent is None else parent.id,
    )
    tags = options.get("tags", ())
    if isinstance(tags, str):
        msg = f"tags must be a list of names, got the string {tags!r}"
        raise BadInput(msg, hint=f"give a list with one name: [{tags!r}]")
    if not isinstance(tags, Iterable):
        raise BadInput(f"tags must be a list of names, got {shown(tags)}", hint="give a list, or leave it out")
    if step is not None:
        step = check_step(step)
    return Request(
        run,
        step,
        about,
        tuple(tags),
        options.get("if_exists", "error"),
        progress=progress,
        parent=parent,
        patience=patience_in(options),
        if_run_in_use=options.get("if_run_in_use") or "append",
        facts=facts,
    )


def _facts_of(context: Context) -> dict[str, Any]:
    """Return the members that subscribers add to the metadata of a save."""
    facts: dict[str, Any] = {}
    for subscriber in context.subscribers:
        if subscriber.facts is not None:
            facts |= subscriber.facts()
    return facts


def patience_in(options: SaveOptions) -> AskedPatience:
    """Check and return the patience options of a caller."""
    asked = AskedPatience(options.get("retries"), options.get("wait_for_space_s"), options.get("try_for_s"))
    asked.check()
    return asked
