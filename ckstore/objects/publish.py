"""Publish a sealed staging directory: step 5 of the save protocol of the design. One rename is the commit.

The id of a checkpoint determines its name, so the rename can only conflict with an earlier attempt at the same
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
"""Like `IfExists`. With ``taken``, any checkpoint of the step counts as a different one, whatever it contains. With
``beside``, the other checkpoints of the step are ignored."""
MayPublish = Callable[[Sequence[Published]], None]
"""Raises if a checkpoint must not be published. Its argument is the checkpoints that would be replaced."""
# Each try meets an earlier form of the same checkpoint, or one that is dropped in the same moment.
_NAME_TRIES = 100
_REOPEN = "the checkpoint may or may not exist after a restart of the machine; open the store again"
# A busy disk may take seconds for one listing under the lock.
_RUN_TIMEOUT_S = 30.0
# Who has the hidden name waits for the lock, and needs a few calls of the server.
_HIDDEN_S = _RUN_TIMEOUT_S + 15.0
_HIDDEN_PAUSE_S = 0.02


class Overtaken(Exception):
    """A checkpoint of the step comes later in the order of commits. `sequence` is its number."""

    def __init__(self, sequence: int) -> None:
        super().__init__(sequence)
        self.sequence = sequence


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a save."""

    key: CheckpointKey  # where the checkpoint is: the new one, or `existing`
    existing: Published | None = None  # the checkpoint that counts instead, if the new one was not published
    older: tuple[CheckpointKey, ...] = ()  # the other directories of the step, which the new one supersedes
    change: RunChange | None = None  # the run, while others could only add to it; None: they could do more


class KnownRuns(NamedTuple):
    """The runs that a process knows, and neither syncs nor lists again."""

    synced: dict[str, RunStamp | None]
    """The stamp of each run when this process itself last made the name of the run durable. `publish` updates it."""
    of_step: OfStep | None = None
    """Returns the directories of a step. If None, the run is listed."""


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

    After `UnknownOutcome`, the checkpoint may have been published. After any other error, it was not.

    Args:
        staging: The sealed directory.
        manifest: Its manifest.
        manifest_id: The id of the manifest.
        rule: Whether it may be published if its step has another checkpoint.
        runs: The runs that the process knows. A run whose stamp has not changed is not synced again.
        as_newest: Whether it must come after all others of its step in the order of commits.
        may_publish: Called under the lock of the run with the checkpoints of the step that would be replaced. It raises
            if nothing must be published. It is not called if an equal checkpoint is returned instead.

    Raises:
        Overtaken: It does not come after all others, and nothing was published.
        StepExists: The rule does not allow another checkpoint at its step.
        InUse: Another process has the run locked for too long, or is saving the same step.
    """
    layout = staging.layout
    run = layout.checkpoints / manifest.run
    links.make_directory(run)
    # Opened before the rename: after it, only the sync itself may fail.
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
        # Not synced again where this process itself has synced checkpoints/ and the run is as it was then.
        if change is not None and change.before is not None and known.pop(manifest.run, None) == change.before:
            parents.pop(1)
        # The run first, as the new parent (law N4), then checkpoints/ and staging/ (N2, N3).
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
    """Search for other checkpoints of the step and rename, in one step for all processes that do so under the lock."""
    layout = staging.layout
    # The lock may not reach the other hosts of a shared filesystem: there a name does its work. It comes before the
    # lock, whose mark would tell a host that has the name that its own lock was lost.
    hides = not layout.view.sees_locks and rule not in ("replace", "beside")
    source, published = hidden_at(layout, manifest.run, manifest.step) if hides else staging.path, False
    try:
        if hides:
            _hide(layout, staging, source)
        with store_locks.lock_run(layout, manifest.run, exclusive=True, timeout_s=_RUN_TIMEOUT_S) as lock:
            # Under the lock nothing is dropped, so what differs afterwards are additions only.
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
    """Return the name that a save on a shared filesystem has before its own."""
    return layout.checkpoints / run / f".{step}"


def _hide(layout: Layout, staging: Staging, hidden: StorePath) -> None:
    """Rename a staging directory to the hidden name of its step, which only one process can have."""
    # A save that has it lists the step afterwards, so of two hosts that save one step at once one sees what the other
    # published. No reader, tag or collector looks at it, so it can be withdrawn.
    inode, deadline = 0, math.inf
    while not rename_opened(staging.lock, staging.path, hidden):
        found = dirfd_stat.find(hidden)
        if found is not None and found.st_ino != inode:  # each save that has it gets as long
            inode, deadline = found.st_ino, time.monotonic() + _HIDDEN_S
        if time.monotonic() > deadline and not _took_away(layout, hidden):
            raise InUse(f"another process is saving this step: it uses {hidden}", hint="save again")
        time.sleep(_HIDDEN_PAUSE_S)
    statx.refresh(hidden.parent)


def _took_away(layout: Layout, hidden: StorePath) -> bool:
    """Whether a directory that kept the hidden name for too long was moved to trash."""
    # The save died, or stands still on another host, whose lock is not seen: then it finds the name gone, and fails.
    with suppress(FileNotFoundError):
        lock = locks.try_exclusive(hidden)
        if lock is None:
            return not dirfd_stat.exists(hidden)
        with lock:
            trash.move_to_trash(layout, hidden, lock)
    return True


def _check_own(staging: Staging, hidden: StorePath, target: StorePath) -> None:
    """Raise if the directory renamed from the hidden name is not the staging directory, and reverse that rename."""
    try:
        if staging.lock.names(target):
            return
        # This save stood still and was swept, and another one has the hidden name by now: not ours to take.
        links.rename(target, hidden)
    except OSError as error:
        msg = f"it is unknown whether {target} was published: {error}"
        raise UnknownOutcome(msg, hint="the checkpoint may or may not exist; open the store again") from error
    msg = f"{staging.path} was moved away during the save"
    raise SaveFailed(msg, hint="another process assumed that this save was dead; save again")


def _withdraw(hidden: StorePath, staging: Staging) -> None:
    """Rename an unpublished staging directory back to its own name, so that it is discarded like any other."""
    with suppress(OSError):  # gc removes it: nothing was published, and the first error is the news
        if staging.lock.names(hidden):  # else it was swept, and another save may have the name
            links.rename(hidden, staging.path)


def existing_of_step(layout: Layout, manifest: Manifest, rule: Rule, keys: Iterable[CheckpointKey]) -> Published | None:
    """Return the checkpoint of the step to use instead of a new one. Raise `StepExists` if none may be added."""
    return _existing(manifest, rule, _sound_of_step(layout, rule, keys))


def _sound_of_step(layout: Layout, rule: Rule, keys: Iterable[CheckpointKey]) -> list[Published]:
    """Return the reliable checkpoints of a step, in order. The others count for no rule."""
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
    """Return the checkpoint of the step to use instead of a new one. Raise if a new one is not allowed."""
    ask: MayPublish = may_publish or (lambda _: None)
    try:
        existing = _existing(manifest, rule, found)
    except StepExists:
        ask(())  # that the run is another training's is the better news
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
    """Whether a complete checkpoint is reliable: it has no mark, and touched blobs have the right digest."""
    path = layout.checkpoint(published.key)
    if marks.is_marked(path):
        return False
    # An eviction compared the other files on the remote.
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
    """Rename a whole directory, which is `opened`, to the name that the id of its checkpoint gives.

    Args:
        layout: The store.
        source: The directory.
        opened: The lock on it.
        run: The run of the checkpoint.
        step: Its step.
        id: Its id.
        former: The published generation of this checkpoint that the directory replaces, or None if it is a new one.

    Returns:
        The key. If this checkpoint was published before and is sound, also that checkpoint. In this case nothing was
        renamed.
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
        elif there is not None:  # another checkpoint, whose id begins with the same digits
            digit_count = len(id)
        elif dirfd_stat.exists(target):  # no manifest in it can be read
            generation += 1
    raise SaveFailed(f"{layout.checkpoints / run} has {_NAME_TRIES} directories of {run}@{step} with one id")


def rename_opened(opened: locks.DirectoryLock, source: StorePath, target: StorePath) -> bool:
    """Rename an open directory. Return False if the name is taken. An error is ignored if the rename succeeded."""
    # So it is when the answer of a server is lost, and when the client asks again and there is no source any more.
    # rename(2) replaces no directory that has something in it, and every checkpoint has its manifest.
    try:
        links.rename(source, target)
    except OSError as error:
        if error.errno in links.ALREADY_THERE:
            return False
        try:
            statx.refresh(target.parent)  # this host may remember that nothing is there
            if opened.names(target):
                return True
        except OSError as second:
            msg = f"it is unknown whether {target} was published: {error}, then {second}"
            raise UnknownOutcome(msg, hint="the step may or may not be there; open the store again") from error
        raise
    return True


def raise_if_unknown(error: OSError, parent: OpenDir) -> None:
    """Raise `UnknownOutcome` for a rename that a filesystem refused while it shut down."""
    # XFS that shuts down answers EIO to a rename whose log record may have reached the disk: the replay of the log does
    # it then (seen in a power cut). A filesystem that still syncs refused it for good.
    if error.errno != errno.EIO:
        return
    try:
        files.sync_open_directory(parent.fd)
    except OSError:
        msg = f"the filesystem went down while the checkpoint was published in {parent.inside}"
        raise UnknownOutcome(msg, hint=_REOPEN) from error


def sync_parents(parents: Sequence[OpenDir]) -> None:
    """Make every rename into and out of the directories durable, the new parent first."""
    # Also a rename that another process did: no process acknowledges what it has not made durable (rule F).
    # In this order, and none is left out after an error: a name without its fsync is not acknowledged.
    for directory in parents:
        try:
            files.sync_open_directory(directory.fd)
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            msg = f"the checkpoint was published, but {directory.inside} could not be made durable: {reason}"
            raise UnknownOutcome(msg, hint=_REOPEN) from error
