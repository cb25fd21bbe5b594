"""Find ``latest-valid``: the newest checkpoint that is complete, not marked as damaged, and verifies when read.

``latest-healthy`` also skips unhealthy checkpoints.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from ckstore.errors import BadInput, CkstoreError, DamagedBlob, InUse, NoSuchRef, is_damage
from ckstore.fs import dirfd_stat, holders
from ckstore.fs.dirfd_stat import StorePath
from ckstore.model.checkpoint.refs import VERIFIED_KINDS, newest_first, nothing_saved, parse_ref, why_skipped
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.names import CheckpointKey
from ckstore.objects.checkpoints import CheckpointDirectory, judge_blobs
from ckstore.objects.documents import marks
from ckstore.ops.check.validity import open_checked, remember_damage
from ckstore.ops.check.verifier import Verifier
from ckstore.ops.context import Context, info_of
from ckstore.ops.index.facts import from_manifests
from ckstore.ops.notices import warn
from ckstore.ops.refs.listing import (
    Problem,
    in_one_run,
    incomplete,
    infos,
    listed_problems,
    newer_than,
    nothing_whole,
    repair_newer,
)

T = TypeVar("T")
_LOCKED = "locked by "
# The maximum time to wait for the locks of all checkpoints together. A training that restarts must not wait ten seconds
# for each of a hundred checkpoints.
LOCKED_S = 10.0
Take = Callable[[CheckpointInfo, "CheckpointDirectory"], T]


def take_newest_valid(context: Context, ref: str, take: Take[T], *, read_touched: bool) -> T:
    """Return the result of `take` for the newest valid checkpoint that `ref` requests.

    The checkpoint is open while `take` runs. A damaged checkpoint is marked and skipped with a `CkstoreWarning`, even
    if only `take` detects the damage. If other processes have exclusive locks on checkpoints, to drop or to move them,
    this function waits up to `LOCKED_S` in total. Then it skips these checkpoints, also with a warning.

    Args:
        context: The store.
        ref: ``latest-valid`` or ``latest-healthy``, optionally after ``RUN@``.
        take: Called with the info and the open directory of a complete checkpoint. If it raises `DamagedBlob`, the next
            checkpoint is tried.
        read_touched: Whether to read blobs whose times show that a program wrote to them. Set this if `take` reads no
            data.

    Raises:
        NoSuchRef: There are no checkpoints, or none that the ref can name.
        NoWholeCheckpoint: No checkpoint is complete. The message contains the problem of each checkpoint.
        InUse: Other processes have locked every checkpoint.
    """
    parsed = in_one_run(context, parse_ref(ref))
    if parsed.kind not in VERIFIED_KINDS:
        raise BadInput(f"{ref!r} is not a ref to the newest valid checkpoint")
    run, kind = parsed.run, parsed.kind
    take = partial(_take_unless_skipped, kind, take)
    skipped: list[CheckpointInfo] = []
    passed: list[Problem] = []
    deadline_s = time.monotonic() + LOCKED_S
    torn: set[CheckpointKey] = set()
    # A superseded checkpoint is tried after the checkpoint that supersedes it, so it is used only if the newer one is
    # damaged.
    found = newest_first(infos(context, run, superseded=True, torn=torn))
    if repair_newer(context, found[0] if found else None, torn):
        found = newest_first(infos(context, run, superseded=True))
    for info in found:
        try:
            # No checkpoint is skipped only because of a row of the catalog, which may be wrong (docs/adr/0002).
            if why_skipped(kind, info) and why_skipped(kind, known := from_manifests(context, info)):
                skipped.append(known)
                continue
            taken = _take(context, info, take, deadline_s, read_touched=read_touched)
        except _SkippedCheckpoint as error:
            skipped.append(error.info)
            continue
        except InUse as error:
            why = _why_locked(context.layout.checkpoint(info.key), error)
            passed.append(Problem(info.name, why, info.order, info.key))
            continue
        except CkstoreError as error:
            # If data could not be fetched now, the caller must not get an older checkpoint silently.
            if not is_damage(error):
                raise
            passed.append(Problem(info.name, error.message, info.order, info.key))
            continue
        except (FileNotFoundError, NotADirectoryError):  # it was dropped after it was listed
            continue
        passed += newer_than(info, incomplete(context, run))
        if passed:
            kinds = "damaged or locked" if any(other.problem.startswith(_LOCKED) for other in passed) else "damaged"
            context.notices.problems[kind] = (
                f"{kind} is {info.name}, since newer checkpoints are {kinds}: {listed_problems(passed)}"
            )
            warn(context.notices.problems[kind])
        else:
            context.notices.problems.pop(kind, None)
        return taken
    if skipped and not passed:
        msg = f"{ref}: every checkpoint is skipped, such as {skipped[0].name} ({why_skipped(kind, skipped[0])})"
        raise NoSuchRef(msg, hint="latest-valid names the newest complete one")
    raise _none_left(context, kind, run, passed)


class _SkippedCheckpoint(Exception):
    """The manifest of an open, valid checkpoint shows that the ref does not name this checkpoint."""

    def __init__(self, info: CheckpointInfo) -> None:
        super().__init__(info.name)
        self.info = info


def _take_unless_skipped(kind: str, take: Take[T], info: CheckpointInfo, directory: CheckpointDirectory) -> T:
    if why_skipped(kind, info):
        raise _SkippedCheckpoint(info)
    return take(info, directory)


def _take(context: Context, info: CheckpointInfo, take: Take[T], deadline_s: float, *, read_touched: bool) -> T:
    """Return the result of `take` for a checkpoint, if it is valid or can be repaired from a remote."""
    path = context.layout.checkpoint(info.key)
    is_repaired = False
    while True:
        try:
            # Lock the checkpoint before checking it, so that the checked directory is the one that `take` reads.
            with open_checked(context, path, timeout_s=deadline_s - time.monotonic()) as directory:
                # Check only the mark, and the sizes and times of the blobs. If `take` reads data, the read checks every
                # byte.
                _check_cheaply(context, directory, read_touched=read_touched)
                health = directory.manifest.health
                is_unhealthy = health is not None and bool(health.unhealthy)
                current = info
                if info.id != directory.manifest_id or bool(info.unhealthy) != is_unhealthy:  # the row is wrong
                    current = info_of(context, directory.manifest, directory.manifest_id, key=info.key)
                return take(current, directory)
        except DamagedBlob:
            if is_repaired or context.rescuer is None or not context.rescuer.checkpoint(info.key):
                raise
            is_repaired = True


def _why_locked(place: StorePath, error: InUse) -> str:
    """Return a text that names the process with the lock on a checkpoint, if this user can see that process."""
    status = dirfd_stat.find(place)
    if status is None:  # it was removed in the meantime
        return error.message
    holding = holders.find_holders([(status.st_dev, status.st_ino)]).holders.get((status.st_dev, status.st_ino), [])
    who = " and ".join(f"process {holder.pid} ({holder.command})" for holder in holding) or "another process"
    return f"{_LOCKED}{who}, which did not release it in time"


def newest_valid(context: Context, ref: str) -> CheckpointInfo:
    """Return the newest checkpoint that is valid by a cheap check, which reads only blobs that a program wrote to."""
    return take_newest_valid(context, ref, lambda info, _: info, read_touched=True)


def fill_from_newest_valid(
    context: Context, ref: str, read: Callable[[CheckpointDirectory], T], *, strict: bool, verify: bool
) -> T:
    """Do the same as `take_newest_valid` for a `read` that fills a target.

    `strict` is whether `read` fills the whole target.
    """
    # Without `strict`, a damaged checkpoint could leave values that the next checkpoint does not replace. Therefore
    # each checkpoint is read and checked completely before the target is changed.
    begun: list[str] = []

    def take(info: CheckpointInfo, directory: CheckpointDirectory) -> T:
        if verify and not strict:
            check_whole(context, directory)
        try:
            return read(directory)
        except DamagedBlob:
            begun.append(info.name)
            raise
        except BadInput as error:
            if not begun:
                raise
            msg = f"{error.message}; but the target holds a part of {begun[-1]}, which is damaged"
            raise BadInput(msg, hint="create the target again before you use it") from error

    return take_newest_valid(context, ref, take, read_touched=not verify)


def _check_cheaply(context: Context, directory: CheckpointDirectory, *, read_touched: bool) -> None:
    """Raise `DamagedBlob` if a checkpoint is marked or incomplete."""
    mark = marks.read_mark(directory.lock.fd)
    if mark is not None:
        raise DamagedBlob(mark.entries[0].what if mark.entries else f"{directory.path} is marked as damaged")
    problem, touched, _ = judge_blobs(directory.lock.inside, directory.lock.fd, directory.manifest)
    if problem:
        with directory.reporting_damage():
            raise DamagedBlob(f"{directory.path}: {problem}")
    if read_touched and touched:
        wanted = {blob.digest for blob in touched}
        check_whole(context, directory, [i for i, b in enumerate(directory.manifest.stored) if b.digest in wanted])


def check_whole(context: Context, directory: CheckpointDirectory, indexes: list[int] | None = None) -> None:
    """Read the blobs with these indexes, or all blobs. If one is damaged, mark the checkpoint and raise."""
    with Verifier(context) as checker:
        chosen = range(len(directory.manifest.stored)) if indexes is None else indexes
        damage = [found for found in checker.blobs(directory, chosen) if found.affects]
    if damage:
        remember_damage(context, directory.lock, damage)
        raise DamagedBlob(damage[0].what, blob=damage[0].blob, names=damage[0].names)


def _none_left(context: Context, kind: str, run: str | None, passed: list[Problem]) -> CkstoreError:
    everything = passed + incomplete(context, run)
    if everything and all(other.problem.startswith(_LOCKED) for other in everything):
        return InUse(
            f"{kind}: every checkpoint is locked. {listed_problems(everything)}",
            hint="try again when that process has ended",
        )
    if everything:
        return nothing_whole(kind, run, everything)
    absence = f"the run {run!r} has no checkpoints" if run is not None else "the store has no checkpoints"
    return nothing_saved(f"{kind}: {absence}", run)
