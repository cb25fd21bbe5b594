"""Publish a sealed staging directory: step 5 of the save protocol of the design. One rename is the commit."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal

from ckstore.errors import SaveFailed, StepExists, UnknownOutcome
from ckstore.fs import files, links, locks
from ckstore.fs.held import Held
from ckstore.fs.inside import Inside, NotInStore
from ckstore.model.manifest.info import Published
from ckstore.model.manifest.manifest import Manifest
from ckstore.objects import blobs, store_locks
from ckstore.objects.checkpoints import look
from ckstore.objects.documents import marks
from ckstore.objects.layout import BLOBS, Layout, RunChange, RunStamp
from ckstore.objects.shared import two_renames
from ckstore.objects.staging import Staging

IfExists = Literal["error", "replace", "keep"]
Rule = IfExists | Literal["taken"]
"""As `IfExists`; ``taken``: any checkpoint that is there is another one, whatever it holds."""
# Each try loses only if what was at the place is dropped in the same moment; twenty times in a row is no accident.
_PUBLISH_TRIES = 20
_REOPEN = "the step may or may not be there after a restart of the machine; open the store again"
# Replacing and completing a gap fsync a few directories under the lock, which a busy disk may take seconds for.
_RUN_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class IfThere:
    """What to do where a checkpoint is already."""

    rule: Rule  # whether it is to be replaced
    check_replaceable: Callable[[], None]  # raises if other bytes must not take its place: a tag or a pin names it


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a save."""

    existing: Published | None = None  # the checkpoint that was there and stays, if the new one was not published
    old: Inside | None = None  # where the replaced checkpoint lies now, to be moved to trash
    other_bytes: bool = False  # whether it held other bytes, or may have
    change: RunChange | None = None  # the run, while others could only add to it; None: they could do more


def publish(
    layout: Layout,
    staging: Staging,
    manifest: Manifest,
    if_there: IfThere,
    synced_runs: dict[str, RunStamp | None] | None = None,
) -> Outcome:
    """Give the sealed `staging`, with this manifest, its place and make that durable."""
    # A checkpoint with the same content is not replaced unless asked to and its description differs; an incomplete one,
    # and one that is marked as damaged, always is. Before other bytes take a place, `if_there` may refuse it; nothing
    # can tag or pin the old ones by then. Only after `UnknownOutcome` was it published: a directory is perhaps not
    # durable.
    # `synced_runs`: how each run was when this process itself had last made its name in ``checkpoints/`` durable; one
    # that is still so is not synced again. It is kept up to date.
    target = layout.checkpoint(manifest.run, manifest.step)
    links.make_directory(target.parent)
    # Opened before the rename: after it, only the sync itself may fail.
    with ExitStack() as opened:
        try:
            parents = [opened.enter_context(Held(path)) for path in (target.parent, layout.checkpoints, layout.staging)]
        except NotInStore as error:
            msg = f"{error.filename} {error.strerror}, and the checkpoints of a run lie in the store itself"
            raise SaveFailed(msg, hint="move them back, or choose another name for the run") from error
        # The one rename is the commit; all that may fail for want of descriptors was done before it.
        try:
            outcome = _publish(layout, staging, manifest, if_there)
        except OSError as error:
            _raise_if_unknown(error, parents[0])
            raise
        change = outcome.change
        known = {} if synced_runs is None else synced_runs
        # Not synced again where this process itself has synced checkpoints/ and the run is as it was then.
        if change is not None and change.before is not None and known.pop(manifest.run, None) == change.before:
            parents.pop(1)
        # The run first, as the new parent (law N4), then checkpoints/ and staging/ (N2, N3).
        _sync(parents)
        if change is not None:
            known[manifest.run] = change.after
        return outcome


def _publish(layout: Layout, staging: Staging, manifest: Manifest, if_there: IfThere) -> Outcome:
    """Rename into a free place; else judge what is there, and exchange or leave it under the lock of the run."""
    # Without the lock another save could put its checkpoint there between the judgement and the exchange, and would be
    # taken out although it was acknowledged; a kill then loses it.
    target = layout.checkpoint(manifest.run, manifest.step)
    key = manifest.run, manifest.step
    # Shared: saves of other steps go on side by side; only a judgement with an exchange excludes them
    # (docs/adr/0004).
    with store_locks.lock_run(layout, manifest.run, exclusive=False, timeout_s=_RUN_TIMEOUT_S) as lock:
        # Under the lock nothing is dropped or exchanged, so what differs afterwards are additions only.
        before = layout.run_stamp(manifest.run)
        # A place that is empty because a replacement died in the middle is not free.
        is_gap = any(gap.key == key for gap in two_renames.gaps(layout))
        lock.check()
        if not is_gap and _renamed(staging, target):
            return Outcome(change=RunChange(before, layout.run_stamp(manifest.run)))
    # Not upgraded from the shared lock: two that upgrade at once would wait for each other.
    with store_locks.lock_run(layout, manifest.run, exclusive=True, timeout_s=_RUN_TIMEOUT_S) as lock:
        # First, so that a half-done replacement is judged as the checkpoint that it will be.
        two_renames.complete_run(layout, key)
        for _ in range(_PUBLISH_TRIES):
            lock.check()
            if _renamed(staging, target):
                return Outcome()
            try:
                return _replace(layout, staging, manifest, if_there, lock)
            except FileNotFoundError:  # what was there has gone
                continue
    raise SaveFailed(f"{target} was made and removed by other processes {_PUBLISH_TRIES} times during the publish")


def _renamed(staging: Staging, target: Inside) -> bool:
    """Rename `staging` to `target`; False if there is something already."""
    try:
        two_renames.rename_opened(staging.lock, staging.path, target)
    except OSError as error:
        if error.errno not in links.ALREADY_THERE:
            raise
        return False
    return True


def _replace(
    layout: Layout, staging: Staging, manifest: Manifest, if_there: IfThere, lock: locks.DirectoryLock
) -> Outcome:
    """Change places with the checkpoint that is there, unless that stays."""
    stays, other_bytes = existing_to_keep(layout, manifest, if_there)
    if stays is not None:
        return Outcome(existing=stays)
    # The last moment before the exchange: to judge the blobs may have taken minutes of a slow disk.
    lock.check()
    old = two_renames.exchange(layout, staging.path, (manifest.run, manifest.step), lock, staging.lock)
    return Outcome(old=old, other_bytes=other_bytes)


def existing_to_keep(layout: Layout, manifest: Manifest, if_there: IfThere) -> tuple[Published | None, bool]:
    """Return the checkpoint that is there if it is to stay; else None, and whether it may hold other bytes."""
    # Judged again under the lock: the checkpoint of the beginning may have been replaced since.
    found = look(layout, manifest.run, manifest.step)
    if found.is_closed:
        raise StepExists(
            found.problem,
            hint="choose another step=, or let root give that checkpoint to the owner of the store (chown -R)",
        )
    if found.is_another:
        raise StepExists(found.problem, hint="it was moved there by hand: move it back, or out of the store")
    present = found.published
    if present is not None and not marks.is_marked(layout.checkpoint(manifest.run, manifest.step)):
        folder = layout.checkpoint(manifest.run, manifest.step) / BLOBS
        # What is elsewhere is whole where it is: an eviction compared it there.
        whole = _stays(present.manifest, manifest, if_there.rule) and all(
            blobs.is_sound(folder / blob.digest, blob.digest, blob.nbytes)
            for blob in present.manifest.stored
            if blob.digest not in present.elsewhere
        )
        if whole:
            return present, False
    other_bytes = found.content != manifest.content
    if other_bytes and found.content:  # without a manifest it cannot be loaded, and this may be the same state again
        if_there.check_replaceable()
    return None, other_bytes


def _stays(present: Manifest, new: Manifest, if_exists: Rule) -> bool:
    same = present.content == new.content
    if if_exists == "replace":
        return same and present.description == new.description
    if (same and if_exists != "taken") or if_exists == "keep":
        return True
    raise StepExists(
        f"run {new.run} has another checkpoint at step {new.step}, saved at {present.created}",
        hint="choose another step=, or if_exists='replace' to put this one in its place; keep leaves the other, and "
        "saves nothing",
    )


def _raise_if_unknown(error: OSError, parent: Held) -> None:
    """Raise `UnknownOutcome` for a rename that a filesystem refused while it went down."""
    # XFS that shuts down answers EIO to a rename whose log record may have reached the disk: the replay of the log does
    # it then (seen in a power cut). A filesystem that still syncs refused it for good.
    if error.errno != errno.EIO:
        return
    try:
        files.sync_open_directory(parent.fd)
    except OSError:
        msg = f"the filesystem went down while the checkpoint was published in {parent.inside}"
        raise UnknownOutcome(msg, hint=_REOPEN) from error


def _sync(parents: Sequence[Held]) -> None:
    """Make every rename into and out of the directories durable; the new parent comes first."""
    # Also a rename that another process did: no process acknowledges what it has not made durable (rule F).
    # In this order, and none is left out after an error: a name without its fsync is not acknowledged.
    for directory in parents:
        try:
            files.sync_open_directory(directory.fd)
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            msg = f"the checkpoint was published, but {directory.inside} could not be made durable: {reason}"
            raise UnknownOutcome(msg, hint=_REOPEN) from error
