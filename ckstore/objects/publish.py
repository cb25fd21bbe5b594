"""Publish a sealed staging directory: step 5 of the save protocol of the design. One rename is the commit."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ckstore.errors import SaveFailed, StepExists
from ckstore.fs import files, links
from ckstore.objects import marks
from ckstore.objects.checkpoints import look

if TYPE_CHECKING:
    from pathlib import Path

    from ckstore.model.manifest import Manifest
    from ckstore.model.published import Published
    from ckstore.objects.layout import Layout
    from ckstore.objects.staging import Staging

IfExists = Literal["error", "replace", "keep"]
Rule = IfExists | Literal["taken"]
"""As `IfExists`; ``taken``: any checkpoint that is there is another one, whatever it holds."""
_PUBLISH_TRIES = 20


class UnknownOutcome(SaveFailed):
    """The checkpoint was published, but whether it survives a power cut is not known; the store must be opened anew."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a save.

    Attributes:
        existing: The checkpoint that was there and stays, if the new one was not published.
        old: Where the replaced checkpoint lies now, to be moved to trash.
    """

    existing: Published | None = None
    old: Path | None = None


def publish(layout: Layout, staging: Staging, manifest: Manifest, if_exists: Rule) -> Outcome:
    """Give the sealed `staging` its place and make that durable.

    A checkpoint with the same content is not replaced unless asked to and its description differs; an incomplete one,
    and one that is marked as damaged, always is.

    Raises:
        StepExists: Another checkpoint is there; nothing was changed.
        UnknownOutcome: It was published, but a directory could not be made durable.
        OSError: Nothing was published.
    """
    target = layout.checkpoint(manifest.run, manifest.step)
    links.make_directory(target.parent)
    for _ in range(_PUBLISH_TRIES):
        try:
            links.rename(staging.path, target)
        except OSError as error:
            if error.errno not in links.ALREADY_THERE:
                raise
        else:
            make_durable(layout, manifest.run)
            return Outcome()
        found = look(layout, manifest.run, manifest.step)
        whole = None if marks.is_marked(target) else found.published
        if whole is not None and not _to_be_replaced(whole.manifest, manifest, if_exists):
            make_durable(layout, manifest.run)
            return Outcome(existing=whole)
        try:
            links.exchange(staging.path, target)
        except FileNotFoundError:  # what was there has gone meanwhile
            continue
        make_durable(layout, manifest.run)
        return Outcome(old=staging.path)
    msg = f"{target} came and went {_PUBLISH_TRIES} times while it was being published"
    raise SaveFailed(msg)


def _to_be_replaced(there: Manifest, new: Manifest, if_exists: Rule) -> bool:
    same = there.content == new.content
    if if_exists == "replace":
        return not same or there.description != new.description
    if (same and if_exists != "taken") or if_exists == "keep":
        return False
    msg = f"run {new.run} has another checkpoint at step {new.step}, saved at {there.created}"
    raise StepExists(msg, hint="choose another step, or if_exists='replace' or 'keep'")


def make_durable(layout: Layout, run: str) -> None:
    """Make every rename into and out of ``checkpoints/<run>`` and ``staging/`` durable; the new parent first.

    It is done also for a rename that somebody else did: nobody acknowledges what he has not made durable himself
    (rule F).

    Raises:
        UnknownOutcome: A directory could not be made durable.
    """
    for path in (layout.checkpoints / run, layout.checkpoints, layout.staging):
        try:
            files.sync_directory(path)
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            msg = f"the checkpoint was published, but {path} could not be made durable: {reason}"
            hint = "the step may or may not be there after a restart of the machine; open the store anew"
            raise UnknownOutcome(msg, hint=hint) from error
