"""``latest-valid``: the newest checkpoint that is complete, not marked as damaged, and verifies when it is read.

``latest-healthy``: the same, without unhealthy checkpoints.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from ckstore.errors import BadInput, CkstoreError, DamagedBlob, InUse, NoSuchRef
from ckstore.fs import dirfd_stat, holders
from ckstore.fs.store_path import StorePath
from ckstore.model.checkpoint.refs import VERIFIED_KINDS, newest_first, nothing_saved, parse_ref
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.names import CheckpointKey
from ckstore.objects.checkpoints import CheckpointDirectory, judge_blobs
from ckstore.objects.documents import marks
from ckstore.ops.check.validity import open_checked, remember_damage
from ckstore.ops.check.verifier import Verifier
from ckstore.ops.context import Context, info_of
from ckstore.ops.index.facts import from_manifests
from ckstore.ops.notices import warn
from ckstore.ops.refs.incomplete import Problem, incomplete, listed, newer_than, nothing_whole, repair_newer
from ckstore.ops.refs.latest import in_one_run
from ckstore.ops.refs.listing import infos

T = TypeVar("T")
_LOCKED = "locked by "
# For all together: a restart of a training must not wait ten seconds for each of a hundred.
LOCKED_S = 10.0
Take = Callable[[CheckpointInfo, "CheckpointDirectory"], T]


def take_newest_valid(context: Context, ref: str, take: Take[T], *, read_touched: bool) -> T:
    """Return what `take` makes of the newest valid checkpoint that `ref` asks for; it is open meanwhile."""
    # A checkpoint that turns out to be damaged, also while `take` reads it, is marked and passed over with a
    # `CkstoreWarning` that says what was wrong. One that another process has locked against all others, to drop or
    # to move it, is waited for, `LOCKED_S` for all of them together, and then passed over in the same way. `ref`:
    # ``latest-valid``, ``latest-healthy`` or one of them behind ``RUN@``. `take`: called with what the store says
    # and the directory, open and complete; what it raises other than `DamagedBlob` passes on. `read_touched`: read
    # blobs whose time says that a program wrote into them; `take` does not. Raises NoSuchRef: there is none;
    # NoWholeCheckpoint: none is whole, and the message says what is wrong with each.
    run, kind = _run_and_kind(context, ref)
    if kind == "latest-healthy":
        take = partial(_take_healthy, take)
    unhealthy: list[CheckpointInfo] = []
    passed: list[Problem] = []
    deadline_s = time.monotonic() + LOCKED_S
    torn: set[CheckpointKey] = set()
    # A superseded one comes after the one that supersedes it, so only if that is damaged.
    found = newest_first(infos(context, run, superseded=True, torn=torn))
    if repair_newer(context, found[0] if found else None, torn):
        found = newest_first(infos(context, run, superseded=True))
    for info in found:
        try:
            # Rule D: a row of the catalog alone passes over none.
            if kind == "latest-healthy" and info.unhealthy and (known := from_manifests(context, info)).unhealthy:
                unhealthy.append(known)
                continue
            taken = _take(context, info, take, deadline_s, read_touched=read_touched)
        except DamagedBlob as error:
            passed.append(Problem(info.name, error.message, info.order, info.key))
            continue
        except _Unhealthy as error:
            unhealthy.append(error.info)
            continue
        except InUse as error:
            why = _why_locked(context.layout.checkpoint(info.key), error)
            passed.append(Problem(info.name, why, info.order, info.key))
            continue
        except (FileNotFoundError, NotADirectoryError):  # dropped since it was listed
            continue
        passed += newer_than(info, incomplete(context, run))
        if passed:
            kinds = "damaged or locked" if any(other.problem.startswith(_LOCKED) for other in passed) else "damaged"
            context.notices.problems[kind] = (
                f"{kind} is {info.name}, since newer checkpoints are {kinds}: {listed(passed)}"
            )
            warn(context.notices.problems[kind])
        else:
            context.notices.problems.pop(kind, None)
        return taken
    if unhealthy and not passed:
        msg = f"{ref}: each checkpoint is unhealthy, such as {unhealthy[0].name}: {unhealthy[0].unhealthy}"
        raise NoSuchRef(msg, hint="latest-valid names the newest one that is whole")
    raise _none_left(context, kind, run, passed)


class _Unhealthy(Exception):
    """The manifest of an open checkpoint says that it is unhealthy."""

    def __init__(self, info: CheckpointInfo) -> None:
        super().__init__(info.unhealthy)
        self.info = info


def _take_healthy(take: Take[T], info: CheckpointInfo, directory: CheckpointDirectory) -> T:
    if info.unhealthy:
        raise _Unhealthy(info)
    return take(info, directory)


def _take(context: Context, info: CheckpointInfo, take: Take[T], deadline_s: float, *, read_touched: bool) -> T:
    """Return what `take` makes of a checkpoint, if it is valid; what a remote has right is repaired first."""
    path = context.layout.checkpoint(info.key)
    is_repaired = False
    while True:
        try:
            # Locked before it is judged, so that what was found valid is what is read.
            with open_checked(context, path, timeout_s=deadline_s - time.monotonic()) as directory:
                # A look at links first; the caller's own read then checks every byte.
                _check_cheaply(context, directory, read_touched=read_touched)
                return take(_current(context, info, directory), directory)
        except DamagedBlob:
            if is_repaired or context.rescuer is None or not context.rescuer.checkpoint(info.key):
                raise
            is_repaired = True


def _why_locked(place: StorePath, error: InUse) -> str:
    """Say who has a checkpoint locked, as far as this user may see that."""
    status = dirfd_stat.find(place)
    if status is None:  # gone since
        return error.message
    holding = holders.find_holders([(status.st_dev, status.st_ino)]).holders.get((status.st_dev, status.st_ino), [])
    who = " and ".join(f"process {holder.pid} ({holder.command})" for holder in holding) or "another process"
    return f"{_LOCKED}{who}, which did not release it in time"


def newest_valid(context: Context, ref: str) -> CheckpointInfo:
    """Return the newest checkpoint that is valid by a cheap look; blobs that a program wrote into are read."""
    return take_newest_valid(context, ref, lambda info, _: info, read_touched=True)


def fill_from_newest_valid(
    context: Context, ref: str, read: Callable[[CheckpointDirectory], T], *, strict: bool, verify: bool
) -> T:
    """As `take_newest_valid`, for a `read` that fills a target; with `strict` it fills all of the target."""
    # Without `strict` a damaged checkpoint could leave values where the next one has none, so each is read and checked
    # before the target is touched.
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
            msg = f"{error.message}; but the target holds a part of {begun[-1]}, which turned out to be damaged"
            raise BadInput(msg, hint="build the target again before you use it") from error

    return take_newest_valid(context, ref, take, read_touched=not verify)


def _run_and_kind(context: Context, ref: str) -> tuple[str | None, str]:
    """Return the run that a ref to the newest valid checkpoint means, None: the only one; and the kind of the ref."""
    parsed = in_one_run(context, parse_ref(ref))
    if parsed.kind not in VERIFIED_KINDS:
        raise BadInput(f"{ref!r} is not a ref to the newest valid checkpoint")
    return parsed.run, parsed.kind


def _current(context: Context, info: CheckpointInfo, directory: CheckpointDirectory) -> CheckpointInfo:
    health = directory.manifest.health
    if info.id == directory.manifest_id and bool(info.unhealthy) == bool(health is not None and health.unhealthy):
        return info
    return info_of(context, directory.manifest, directory.manifest_id, key=info.key)  # its row was wrong


def _check_cheaply(context: Context, directory: CheckpointDirectory, *, read_touched: bool) -> None:
    """Raise `DamagedBlob` if a checkpoint is marked or not complete."""
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
    """Read blobs of an open checkpoint, given by their index, or all; mark it if they are damaged."""
    with Verifier(context) as checker:
        chosen = range(len(directory.manifest.stored)) if indexes is None else indexes
        damage = [found for found in checker.blobs(directory, chosen) if found.affects]
    if damage:
        remember_damage(context, directory.lock, damage)
        raise DamagedBlob(damage[0].what, blob=damage[0].blob, names=damage[0].names)


def _none_left(context: Context, kind: str, run: str | None, passed: list[Problem]) -> CkstoreError:
    everything = passed + incomplete(context, run)
    if everything and all(other.problem.startswith(_LOCKED) for other in everything):
        return InUse(f"{kind}: no checkpoint is free: {listed(everything)}", hint="try again when it has ended")
    if everything:
        return nothing_whole(kind, run, everything)
    absence = f"there is no checkpoint of the run {run!r}" if run is not None else "the store has no checkpoints"
    return nothing_saved(f"{kind}: {absence}", run)
