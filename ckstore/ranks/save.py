"""Save as one rank of several, without a process group: stage a part, join the other ranks, publish once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ckstore.errors import CkstoreError, RankFailed, RankMismatch, StoreNotFound
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.objects.checkpoints import published_of_step
from ckstore.ops.context import Context
from ckstore.ops.free import reclaim
from ckstore.ops.notices import tell_left_out, tell_not_durable
from ckstore.ops.save.commit import CommitOptions, capture_files
from ckstore.ops.save.gather import step_in_name
from ckstore.ops.save.save import Request, failing_as_save
from ckstore.ops.save.subscribers import tell_caller
from ckstore.ranks.attempt import AsRank
from ckstore.ranks.decide import Coordinator
from ckstore.ranks.file_rendezvous import FileRendezvous
from ckstore.ranks.outcome import is_of_try
from ckstore.ranks.part import FACTS, Content, stage_part
from ckstore.ranks.rank_identity import RankIdentity
from ckstore.ranks.work import RankWork
from ckstore.tensors.state_capture import Captured, capture

Prepared = tuple[Request, Captured]


def save_state(context: Context, state: object, request: Callable[[], Request], as_rank: AsRank) -> CheckpointInfo:
    """Save the state of one rank; see `ckstore.Store.save`. `request` returns the arguments of the caller."""
    who = as_rank.who()

    def prepare() -> Prepared:
        captured = capture({who.rank: state})
        tell_left_out(captured.left_out)
        return request(), captured

    return save_as_rank(context, who, prepare, as_rank.ranks.timeout_s)


def commit_files(
    context: Context, paths: Sequence[Path], request: Callable[[], Request], options: CommitOptions, as_rank: AsRank
) -> CheckpointInfo:
    """Commit the files of one rank; see `ckstore.Store.commit`."""
    said: list[str] = []
    if as_rank.step is None:
        as_rank = replace(as_rank, step=step_in_name(paths))

    def prepare() -> Prepared:
        wanted, captured, warnings = capture_files(context, paths, request(), options)
        said.extend(warnings)
        return wanted, captured

    info = save_as_rank(context, as_rank.who(), prepare, as_rank.ranks.timeout_s)
    return replace(info, warnings=(*said, *info.warnings))


def save_as_rank(
    context: Context, who: RankIdentity, prepare: Callable[[], Prepared], timeout_s: float
) -> CheckpointInfo:
    """Save the result of `prepare` as the part of one rank. Return the checkpoint of all ranks, once it is published.

    `prepare` is called in this thread, because the state belongs to the caller. Its errors are reported to the other
    ranks. `RankFailed` means that nothing was published. `UnknownOutcome` means that the disk stopped responding when a
    rank was allowed to publish.
    """
    # Call this function in the caller's thread, because the warning names the line of the caller.
    tell_not_durable(context.not_durable_because, context.settings)
    work = RankWork(who, timeout_s)  # the deadline counts from here, so it includes the time of `prepare`
    try:
        request, captured = prepare()
        request.check()
        context.check_writable()
    except BaseException as error:
        # If another store is now at this path, the report must not be written to it.
        if not (context.readonly or isinstance(error, StoreNotFound)):
            raised = error
            with suppress(RankFailed):  # the disk does not respond; the first error is raised
                work.run(lambda: _fail(context, work, raised))
        raise
    work.progress = request.progress
    info = work.run(lambda: _save(context, work, request, captured))
    if who.rank == 0:
        tell_caller(context, info)
    return info


def _fail(context: Context, work: RankWork, error: BaseException) -> None:
    """Report to the other ranks that this rank failed before it could stage a part."""
    # The caller raises `error`, even if reporting it fails.
    with suppress(CkstoreError, OSError), FileRendezvous.enter(context.layout, work.who) as meeting:
        Coordinator(context, meeting, work).fail(error)


def _save(context: Context, work: RankWork, request: Request, captured: Captured) -> CheckpointInfo:
    who = work.who
    if any(is_of_try(found.manifest, who) for found in published_of_step(context.layout, who.run, who.step)):
        msg = f"all ranks of this attempt have already saved {who.name}"
        came = f"{who} called save twice or too late"
        raise RankMismatch(msg, hint=f"{came}; give each start of the job another attempt=")
    with (
        failing_as_save(context, f"saving {request.run}@{request.step} at {who}"),
        FileRendezvous.enter(context.layout, who) as meeting,
    ):
        deciding = Coordinator(context, meeting, work, request)
        try:
            # The part is staged after this rank has joined. So the others learn of a failure, and a second process with
            # the same rank is detected.
            # Any rank may publish, but only the first rank gets facts from its subscribers, so its part carries them.
            about = {FACTS: request.facts} if who.rank == 0 and request.facts else {}
            staging = stage_part(context, work, Content(captured, about), request.patience)
        except BaseException as error:
            deciding.fail(error)
            raise
        try:
            # `doing` raises if the caller has given up. It is called before `say_part`, so that the part is not offered
            # in this case.
            work.doing("said that its part is staged", offers=True)
            meeting.say_part(staging.path.name)
            return deciding.wait(staging)
        finally:
            reclaim.discard(context, staging)  # the merged checkpoint has its own links to the staged blobs
