"""Publish a sealed staging directory (step 5 of a save). One rename is the commit.

The name of a checkpoint depends on its id, so the rename can only conflict with an earlier publication of the same
checkpoint. Nothing is ever replaced. Source: docs/format/v1.md, "The store"; docs/protocol.md, "save, commit".
"""

from __future__ import annotations

import errno
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ckstore.errors import InUse, SaveFailed, StepExists, UnknownOutcome
from ckstore.fs import dirfd_stat, files, links, locks, statx
from ckstore.fs.dirfd_stat import NotInStore, OpenDir, StorePath
from ckstore.model.manifest.info import Published
from ckstore.model.manifest.manifest import Manifest
from ckstore.model.names import SHORT_DIGITS, CheckpointKey, directory_of
from ckstore.objects import blobs, store_locks, trash
from ckstore.objects.checkpoints import OfStep, id_at, look
from ckstore.objects.documents import marks
from ckstore.objects.layout import BLOBS, Layout, RunChange, RunStamp
from ckstore.objects.staging import Staging

IfExists = Literal["error", "replace", "keep"]
Rule = IfExists | Literal["taken", "beside"]
"""Like `IfExists`. With ``taken``, any checkpoint of the step counts as a different one, even with equal content. With
``beside``, other checkpoints of the step are ignored."""
MayPublish = Callable[[Sequence[Published]], None]
"""A function that raises if a checkpoint must not be published, given the checkpoints that would be replaced."""
# A try fails only if the name belongs to an earlier generation of the checkpoint, or to a directory that is being
# dropped.
_NAME_TRIES = 100
_REOPEN = "the checkpoint may or may not exist after a restart of the machine; open the store again"
# Listing a run under the lock may take seconds on a busy disk.
_RUN_TIMEOUT_S = 30.0
# The maximum time for which a save may have the hidden name. In this time, the save waits for the lock, and then makes
# a few calls to the server.
_HIDDEN_S = _RUN_TIMEOUT_S + 15.0
_HIDDEN_PAUSE_S = 0.02


class Overtaken(Exception):
    """Another checkpoint of the step is later in the order of commits. `sequence` is the number of that checkpoint."""

    def __init__(self, sequence: int) -> None:
        super().__init__(sequence)
        self.sequence = sequence


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a save."""

    key: CheckpointKey  # the directory of the new checkpoint, or of `existing`
    existing: Published | None = None  # the checkpoint that is used instead, if the new one was not published
    older: tuple[CheckpointKey, ...] = ()  # the other directories of the step, which the new one supersedes
    # The status of the run before and after the rename. Under the lock, no checkpoint of the run was dropped between
    # these two times. None if nothing was published.
    change: RunChange | None = None


class KnownRuns(NamedTuple):
    """The facts about runs that a process knows, so that it need not sync or list them again."""

    synced: dict[str, RunStamp | None]
    """Run -> its stamp when this process last made the name of the run durable. `publish` updates this dict."""
    of_step: OfStep | None = None
    """A function that returns the directories of a step. If None, the run is listed."""


def publish(
    staging: Staging,
    manifest: Manifest,
    manifest_id: str,
    rule: Rule,
    runs: KnownRuns,
    *,
    as_newest: bool = False,
    may_publish: MayPublish | None = None,
) -> Outcome:
    """Durably publish the sealed `staging`, which has this manifest.

    After `UnknownOutcome`, the checkpoint may have been published. After any other error, it was not published.

    Args:
        staging: The sealed directory.
        manifest: The manifest of the checkpoint.
        manifest_id: The id of the manifest.
        rule: Whether the checkpoint may be published if its step has another checkpoint.
        runs: The runs that the process knows. A run whose stamp has not changed is not synced again.
        as_newest: Whether the checkpoint must be the last one of its step in the order of commits.
        may_publish: Called under the lock of the run with the checkpoints of the step that would be replaced. It raises
            to prevent the publication. It is not called if an equal checkpoint is returned instead.

    Raises:
        Overtaken: With `as_newest`, the step has a later checkpoint, and nothing was published.
        StepExists: The rule does not allow another checkpoint at the step.
        InUse: Another process has the run locked for too long, or is saving the same step.
    """
    layout = staging.layout
    run = layout.checkpoints / manifest.run
    links.make_directory(run)
    # Open the parents before the rename, so that only the syncs can fail after it.
    with ExitStack() as opened:
        try:
            parents = [opened.enter_context(OpenDir(path)) for path in (run, layout.checkpoints, layout.staging)]
        except NotInStore as error:
            msg = f"{error.filename} {error.strerror}, but a store contains the checkpoints of all its runs"
            raise SaveFailed(msg, hint="move them back, or choose another name for the run") from error
        try:
            outcome = _publish(
                staging,
                manifest,
                manifest_id,
                rule,
                runs.of_step or layout.of_step,
                as_newest=as_newest,
                may_publish=may_publish,
            )
        except OSError as error:
            raise_if_unknown(error, parents[0])
            raise
        change = outcome.change
        known = runs.synced
        # Do not sync checkpoints/ again if this process has synced it and the run has not changed since.
        if change is not None and change.before is not None and known.pop(manifest.run, None) == change.before:
            parents.pop(1)
        # Sync the run first, since it is the new parent (law N4), and then checkpoints/ and staging/ (laws N2, N3).
        sync_parents(parents)
        if change is not None:
            known[manifest.run] = change.after
        return outcome


def _publish(
    staging: Staging,
    manifest: Manifest,
    manifest_id: str,
    rule: Rule,
    of_step: OfStep,
    *,
    as_newest: bool,
    may_publish: MayPublish | None,
) -> Outcome:
    """Search for other checkpoints of the step, then rename. The lock of the run makes both steps atomic."""
    layout = staging.layout
    # On a shared filesystem, the lock may not reach other hosts, so a hidden name serves as a second lock. The save
    # gets this name before it takes the lock. In the opposite order, a host that waits for the name would already have
    # written its mark into the lock file, and the host with the name would find this mark and assume that it has lost
    # the lock.
    hides = not layout.view.sees_locks and rule not in ("replace", "beside")
    source, published = hidden_at(layout, manifest.run, manifest.step) if hides else staging.path, False
    try:
        if hides:
            _hide(layout, staging, source)
        with store_locks.lock_run(layout, manifest.run, exclusive=True, timeout_s=_RUN_TIMEOUT_S) as lock:
            # Nothing can be dropped under the lock, so any later difference in the run is an addition.
            before = layout.run_stamp(manifest.run)
            others = tuple(of_step(manifest.run, manifest.step))
            found = _sound_of_step(layout, rule, others)
            existing = _judged(manifest, rule, found, may_publish)
            if existing is not None:
                return Outcome(existing.key, existing=existing)
            own = (manifest.sequence, manifest.created, manifest_id, 0)
            if as_newest and any(one.order > own for one in found):
                raise Overtaken(max(one.manifest.sequence for one in found))
            lock.check()
            key, existing = give_name(layout, source, staging.lock, manifest.run, manifest.step, manifest_id)
            if existing is not None:
                return Outcome(key, existing=existing)
            if hides:
                _check_own(staging, source, layout.checkpoint(key))
            published = True
            return Outcome(key, older=others, change=RunChange(before, layout.run_stamp(manifest.run)))
    finally:
        if hides and not published:
            _withdraw(source, staging)


def hidden_at(layout: Layout, run: str, step: int) -> StorePath:
    """Return the hidden name that a save on a shared filesystem takes before its final name."""
    return layout.checkpoints / run / f".{step}"


def _hide(layout: Layout, staging: Staging, hidden: StorePath) -> None:
    """Rename a staging directory to the hidden name of its step, which only one process can have."""
    # A save lists the step after it gets the hidden name. Therefore, if two hosts save one step at the same time, the
    # second one sees the checkpoint of the first. No reader, tag or collector uses the hidden name, so the save can
    # withdraw it.
    inode, deadline = 0, math.inf
    while not rename_opened(staging.lock, staging.path, hidden):
        found = dirfd_stat.find(hidden)
        if found is not None and found.st_ino != inode:  # each save that has the name gets the full time
            inode, deadline = found.st_ino, time.monotonic() + _HIDDEN_S
        if time.monotonic() > deadline and not _took_away(layout, hidden):
            raise InUse(f"another process is saving this step: it uses {hidden}", hint="save again")
        time.sleep(_HIDDEN_PAUSE_S)
    statx.refresh(hidden.parent)


def _took_away(layout: Layout, hidden: StorePath) -> bool:
    """Move a directory that has had the hidden name for too long to trash. Return whether the name is free now."""
    # The save of the directory died, or it was stopped on another host, whose lock is not visible. A stopped save that
    # continues later no longer finds its directory under the name, and fails.
    with suppress(FileNotFoundError):
        lock = locks.try_exclusive(hidden)
        if lock is None:
            return not dirfd_stat.exists(hidden)
        with lock:
            trash.move_to_trash(layout, hidden, lock)
    return True


def _check_own(staging: Staging, hidden: StorePath, target: StorePath) -> None:
    """Reverse the rename from the hidden name and raise, if the renamed directory is not the staging directory."""
    try:
        if staging.lock.names(target):
            return
        # This save was stopped for so long that its directory was moved to trash. Another save now has the hidden name.
        links.rename(target, hidden)
    except OSError as error:
        msg = f"it is unknown whether {target} was published: {error}"
        raise UnknownOutcome(msg, hint="the checkpoint may or may not exist; open the store again") from error
    msg = f"{staging.path} was moved away during the save"
    raise SaveFailed(msg, hint="another process assumed that this save was dead; save again")


def _withdraw(hidden: StorePath, staging: Staging) -> None:
    """Rename an unpublished staging directory back to its own name, so that it is discarded like any other."""
    with suppress(OSError):  # gc removes the directory, and this error must not hide the first one
        if staging.lock.names(hidden):  # otherwise, it was moved to trash, and another save may have the name
            links.rename(hidden, staging.path)


def existing_of_step(layout: Layout, manifest: Manifest, rule: Rule, keys: Iterable[CheckpointKey]) -> Published | None:
    """Return the existing checkpoint of the step that the rule accepts instead of a new one, or None.

    Raise `StepExists` if the rule allows no other checkpoint.
    """
    return _existing(manifest, rule, _sound_of_step(layout, rule, keys))


def _sound_of_step(layout: Layout, rule: Rule, keys: Iterable[CheckpointKey]) -> list[Published]:
    """Return the reliable checkpoints of a step, in the order of commits. Rules ignore other checkpoints."""
    found: list[Published] = []
    for key in () if rule == "beside" else keys:
        looked = look(layout, key)
        if looked.is_closed and rule != "replace":
            raise StepExists(
                looked.problem,
                hint="choose another step=, or let root give that checkpoint to the owner of the store (chown -R)",
            )
        if looked.published is not None and is_sound(layout, looked.published):
            found.append(looked.published)
    return sorted(found, key=lambda one: one.order)


def _judged(
    manifest: Manifest, rule: Rule, found: Sequence[Published], may_publish: MayPublish | None
) -> Published | None:
    """Return the existing checkpoint of the step that the rule accepts instead of a new one, or None.

    Raise an error if a new one is not allowed.
    """
    ask: MayPublish = may_publish or (lambda _: None)
    try:
        existing = _existing(manifest, rule, found)
    except StepExists:
        ask(())  # if the run belongs to another training, this raises the more helpful error
        raise
    if existing is None:
        ask(found if rule == "replace" else ())
    elif existing.manifest.content != manifest.content:
        ask(())
    return existing


def _existing(manifest: Manifest, rule: Rule, found: Sequence[Published]) -> Published | None:
    if not found:
        return None
    newest = found[-1]
    same = newest.manifest.content == manifest.content
    if rule == "replace":
        return newest if same and newest.manifest.description == manifest.description else None
    if (same and rule != "taken") or rule == "keep":
        return newest
    raise StepExists(
        f"run {newest.key.run} has another checkpoint at step {newest.key.step}, saved at {newest.manifest.created}",
        hint="choose another step=, or if_exists='replace' to replace that one; if_exists='keep' skips this save",
        id=newest.manifest_id,
    )


def is_sound(layout: Layout, published: Published) -> bool:
    """Whether a complete checkpoint is reliable: it has no mark, and blobs without a stamp have the right digest."""
    path = layout.checkpoint(published.key)
    if marks.is_marked(path):
        return False
    # Only local files are checked, because an eviction has already compared the other files on the remote.
    return all(blobs.is_sound(path / BLOBS / file.digest, file.digest, file.nbytes) for file in published.local_files)


def give_name(  # noqa: PLR0917
    layout: Layout,
    source: StorePath,
    opened: locks.DirectoryLock,
    run: str,
    step: int,
    id: str,
    *,
    former: CheckpointKey | None = None,
) -> tuple[CheckpointKey, Published | None]:
    """Rename a complete directory to the final name of its checkpoint, which depends on the id.

    Args:
        layout: The store.
        source: The directory.
        opened: The lock on the directory.
        run: The run of the checkpoint.
        step: The step of the checkpoint.
        id: The id of the checkpoint.
        former: The published generation that the directory replaces. None for a new checkpoint.

    Returns:
        The key of the renamed directory, and None. If this checkpoint was published before and is sound, nothing is
        renamed, and the result is the key of the existing directory and the published checkpoint.
    """
    is_form, generation, digit_count = former is not None, 0, SHORT_DIGITS
    if former is not None:
        generation, digit_count = max(1, former.generation + 1), former.digit_count or SHORT_DIGITS
    for _ in range(_NAME_TRIES):
        key = CheckpointKey(run, step, directory_of(step, id, digit_count=digit_count, generation=generation))
        target = layout.checkpoint(key)
        if rename_opened(opened, source, target):
            return key, None
        there = id_at(target)
        if there == id:
            found = look(layout, key).published
            if found is not None and not is_form and is_sound(layout, found):
                return key, found
            generation += 1
        elif there is not None:  # the id of another checkpoint begins with the same digits
            digit_count = len(id)
        elif dirfd_stat.exists(target):  # the directory has no readable manifest
            generation += 1
    raise SaveFailed(f"{layout.checkpoints / run} has {_NAME_TRIES} directories of {run}@{step} with one id")


def rename_opened(opened: locks.DirectoryLock, source: StorePath, target: StorePath) -> bool:
    """Rename an open directory. Return False if the name is taken. An error is ignored if the rename succeeded."""
    # A rename may succeed and still return an error, if the reply of a server is lost and the client repeats the
    # request. The source then no longer exists. An existing checkpoint is never replaced, because rename(2) replaces
    # only empty directories, and every checkpoint has a manifest.
    try:
        links.rename(source, target)
    except OSError as error:
        if error.errno in links.ALREADY_THERE:
            return False
        try:
            statx.refresh(target.parent)  # according to the cache of this host, the target may not exist
            if opened.names(target):
                return True
        except OSError as second:
            msg = f"it is unknown whether {target} was published: {error}, then {second}"
            raise UnknownOutcome(msg, hint="the step may or may not be there; open the store again") from error
        raise
    return True


def raise_if_unknown(error: OSError, parent: OpenDir) -> None:
    """Raise `UnknownOutcome` if a filesystem refused a rename while it was shutting down."""
    # When XFS shuts down, a rename returns EIO although its log record may already be on the disk. The replay of the
    # log then performs the rename. This was observed after a power cut. If an fsync still succeeds, the filesystem has
    # not shut down, and the rename has definitely failed.
    if error.errno != errno.EIO:
        return
    try:
        files.sync_open_directory(parent.fd)
    except OSError:
        msg = f"the filesystem went down while the checkpoint was published in {parent.inside}"
        raise UnknownOutcome(msg, hint=_REOPEN) from error


def sync_parents(parents: Sequence[OpenDir]) -> None:
    """Make every rename into and out of the directories durable. The first directory must be the new parent."""
    # This is also needed if another process made the rename: a process reports success only for a name that this
    # process itself has made durable (law N2). After an error, the save does not report success.
    for directory in parents:
        try:
            files.sync_open_directory(directory.fd)
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            msg = f"the checkpoint was published, but {directory.inside} could not be made durable: {reason}"
            raise UnknownOutcome(msg, hint=_REOPEN) from error
