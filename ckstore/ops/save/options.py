"""What a caller says about a checkpoint beside its content: the same for a state, at once or later, and for files."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, SupportsIndex, TypedDict

from ckstore.errors import BadInput
from ckstore.model.names import check_step
from ckstore.model.saver.messages import Order
from ckstore.model.settings.patience import AskedPatience
from ckstore.ops.pace import process_end_s

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ckstore.model.manifest.info import CheckpointInfo
    from ckstore.model.reports.progress import Progress
    from ckstore.model.training_identity import IfRunInUse
    from ckstore.objects.publish import IfExists
    from ckstore.ops.context import Context
    from ckstore.ops.save.save import Request


class SaveOptions(TypedDict, total=False):
    """The options that `Store.save`, `Store.save_async` and `Store.commit` have in common; all are keywords.

    Attributes:
        metrics: Name -> number, shown by ``ckstore log``; none is read out of files.
        metadata: JSON-like values.
        message: Shown by ``ckstore log``.
        tags: Names to give to the checkpoint; a tag that exists moves. One that could not be written is not in the
            tags of what is returned, whose `warnings` say why: the checkpoint is saved.
        parent: The checkpoint that this one continues; None: the one of this run that was last saved or loaded
            here, else the one of any run that was last loaded. In `save_async` the saver looks up what is no
            `CheckpointInfo`.
        if_exists: What to do when the run has another checkpoint at that step: raise (``error``, the default),
            ``replace`` it, or ``keep`` it, so that nothing is saved. The same content again is no error, and a damaged
            checkpoint is replaced. A checkpoint that is replaced is dropped, unless a tag or a pin names it or it is
            open: then it stays, superseded, and `warnings` say so. Only a checkpoint of the same training is replaced:
            what this process has saved, and what the training saved whose checkpoint it loaded or names as `parent`.
        if_run_in_use: What to do when this save continues no checkpoint of its run, and the run has checkpoints of
            another training: raise `RunInUse` (``error``), or ``append`` to them; then `warnings` say so. None:
            ``error`` for what `ckstore.training.capture` returned, else ``append``.
        retries: How often to try again after a failure of the storage that can pass, each time as a new save; None: as
            `StoreConfig.save_retries` says. The state must not change meanwhile either.
        wait_for_space_s: How long to wait for space on a full disk; None: as `StoreConfig.wait_for_space_s` says.
        try_for_s: Go on trying until so many seconds after the save began, however often, and no longer, for the last
            save before the process ends; the two above do not count then. None: they do.
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


def request_of(  # noqa: PLR0917 - as `Request` has them
    context: Context, run: str, step: int | None, options: SaveOptions, progress: Progress | None, ref: str = ""
) -> Request:
    """Return what is to be done, checked as far as it can be without the filesystem."""
    # `step`: None: the next one. `ref`: the saver looks up this parent; empty: it is looked up here.
    from ckstore.model.manifest.describe import describe
    from ckstore.ops.refs.find import find
    from ckstore.ops.save.continuation import parent_at
    from ckstore.ops.save.save import Request

    named = None if ref else options.get("parent")
    parent = None if named is None else parent_at(context, find(context, named))
    about = describe(
        options.get("metrics"),
        options.get("metadata"),
        options.get("message", ""),
        None if parent is None else parent.id,
    )
    tags = options.get("tags", ())
    if isinstance(tags, str):
        msg = f"tags must be a list of names, got the string {tags!r}"
        raise BadInput(msg, hint=f"give a list with one name: [{tags!r}]")
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
    )


def patience_in(options: SaveOptions) -> AskedPatience:
    """Return what a caller says of the patience with a save, checked."""
    asked = AskedPatience(options.get("retries"), options.get("wait_for_space_s"), options.get("try_for_s"))
    asked.check()
    return asked


def order_of(request: Request, parent: str) -> Order:
    """Return the order of a request, which is checked; its number and its state are still to come."""
    request.check()
    return Order(
        number=0,
        run=request.run,
        step=request.step,
        about=request.about,
        tags=request.tags,
        if_exists=request.if_exists,
        parent=parent,
        patience=request.patience.until(process_end_s() - time.monotonic()),
        if_run_in_use=request.if_run_in_use,
    )
