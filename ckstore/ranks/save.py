"""Save as one rank of several, without a process group: stage one's part, meet the others, publish once."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ckstore.errors import CkstoreError, RankFailed, RankMismatch
from ckstore.fs import peek
from ckstore.model.manifest.manifest import Ranks
from ckstore.objects.checkpoints import look
from ckstore.objects.staging import Staging
from ckstore.ops.config_file import save_checks_or_all
from ckstore.ops.context import tell_not_durable
from ckstore.ops.free import reclaim
from ckstore.ops.save.commit import capture_files
from ckstore.ops.save.gather import step_in_name
from ckstore.ops.save.save import failing_as_save, save_staged
from ckstore.ranks.decide import Deciding
from ckstore.ranks.join import Join
from ckstore.ranks.meeting import Meeting
from ckstore.ranks.part import Content, Who, stage_part
from ckstore.ranks.whole import Joined, link_parts, staged_of
from ckstore.ranks.work import RankWork, WorkWatch
from ckstore.tensors.capture import capture

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from ckstore.fs.inside import Inside
    from ckstore.model.manifest.info import CheckpointInfo
    from ckstore.model.manifest.manifest import Manifest, Node
    from ckstore.ops.context import Context
    from ckstore.ops.save.commit import CommitOptions
    from ckstore.ops.save.save import Request, Staged
    from ckstore.ranks.attempt import AsRank
    from ckstore.tensors.capture import Captured


Prepared = tuple["Request", "Captured"]


def save_state(context: Context, state: object, request: Callable[[], Request], as_rank: AsRank) -> CheckpointInfo:
    """Save the state of one rank; see `ckstore.Store.save`. `request` returns what the caller wants."""
    who = as_rank.who()
    return save_as_rank(context, who, lambda: (request(), capture({who.rank: state})), as_rank.timeout_s)


def commit_files(
    context: Context,
    paths: Sequence[Path],
    request: Callable[[], Request],
    options: CommitOptions,
    as_rank: AsRank,
) -> CheckpointInfo:
    """Commit the files of one rank; see `ckstore.Store.commit`."""
    said: list[str] = []
    if as_rank.step is None:
        as_rank = replace(as_rank, step=step_in_name(paths))

    def prepare() -> Prepared:
        wanted, captured, warnings = capture_files(context, paths, request(), options)
        said.extend(warnings)
        return wanted, captured

    info = save_as_rank(context, as_rank.who(), prepare, as_rank.timeout_s)
    return replace(info, warnings=(*said, *info.warnings))


def save_as_rank(context: Context, who: Who, prepare: Callable[[], Prepared], timeout_s: float) -> CheckpointInfo:
    """Save what `prepare` gives as the part of one rank; return the checkpoint of all, once it is published.

    What `prepare` raises is told to the other ranks, too. It is called in this thread: the state is the caller's.

    Raises:
        RankFailed: A rank failed, or the disk did not answer it. After all of these nothing was published.
        UnknownOutcome: The disk stopped answering when the others, or this rank, could publish.
    """
    tell_not_durable(context)  # which finds the caller's line in the stack of this thread
    work = RankWork(who, timeout_s)
    try:
        request, captured = prepare()
        request.check()
        context.check_writable()
    except BaseException as error:
        if not context.readonly:
            raised = error
            with suppress(RankFailed):  # the disk does not answer; what was raised is the news
                work.run(lambda: _fail(context, work, raised))
        raise
    work.progress = request.progress
    return work.run(lambda: _save(context, work, request, captured))


def _fail(context: Context, work: RankWork, error: BaseException) -> None:
    """Tell the other ranks that this one has failed before it had anything to stage."""
    with suppress(CkstoreError, OSError), Meeting.enter(context.layout, work.who) as meeting:  # the error is the news
        Deciding(context, meeting, work, _nothing).fail(error)


def _nothing(*_: object) -> CheckpointInfo:
    raise AssertionError("a rank that failed has no part to publish")


def _save(context: Context, work: RankWork, request: Request, captured: Captured) -> CheckpointInfo:
    who = work.who
    _refuse_duplicate(context, who)
    with (
        failing_as_save(context, f"saving {request.run}@{request.step} at {who}"),
        Meeting.enter(context.layout, who) as meeting,
    ):
        deciding = Deciding(context, meeting, work, partial(_publish, context, work, meeting, request))
        try:
            staging = _staged(context, work, captured)
        except BaseException as error:
            deciding.fail(error)
            raise
        try:
            work.doing("said that its part is staged", offers=True)
            meeting.say_part(staging.path.name)
            return deciding.wait(staging)
        finally:
            reclaim.discard(context, staging)


def _refuse_duplicate(context: Context, who: Who) -> None:
    found = look(context.layout, who.run, who.step).published
    if found is not None and found.manifest.ranks is not None and found.manifest.ranks.attempt == who.attempt:
        msg = f"{who.run}@{who.step} was saved by all {found.manifest.ranks.world_size} ranks of this try already"
        came = f"{who} came a second time, or too late; a new try needs another"
        raise RankMismatch(msg, hint=f"{came} attempt=")


def _staged(context: Context, work: RankWork, captured: Captured) -> Staging:
    who = work.who
    work.doing("began to stage its part")
    staging = Staging.create(context.layout, who.run, who.step, read_back=save_checks_or_all(context.layout).read_back)
    try:
        stage_part(context, staging, who, Content(captured, {}, progress=work.staged_bytes))
    except BaseException as error:
        reclaim.discard(context, staging, error)
        raise
    return staging


def _publish(  # noqa: PLR0917
    context: Context,
    work: RankWork,
    meeting: Meeting,
    request: Request,
    parts: Mapping[int, Mapping[str, Any]],
    committed: Callable[[CheckpointInfo], None],
) -> CheckpointInfo:
    who = work.who

    def stage(staging: Staging, notes: list[str]) -> Staged:
        del notes
        work.doing("joined the parts")
        meeting.say_publishing(staging.path.name)
        with ExitStack() as opened:
            paths = [context.layout.staging / parts[rank]["staging"] for rank in sorted(parts)]
            try:
                manifests = link_parts(context, staging, paths, opened)
            except FileNotFoundError as error:
                raise _gone(parts, paths) or error from error
            join = Join(context.settings.chunk_bytes)
            state = _beside(join, manifests)
            hosts = tuple(str(part.description.metadata["host"]) for part in manifests)
            ranks = Ranks(who.world_size, who.attempt, hosts)
            return staged_of(context, staging, request, manifests, Joined(join, state, ranks))

    watch = _Publishing(work, committed)
    return save_staged(context, request, lambda: Staging.create(context.layout, who.run, who.step), stage, watch)


class _Publishing(WorkWatch):
    """Has the other ranks told as soon as it is done."""

    def __init__(self, work: RankWork, committed: Callable[[CheckpointInfo], None]) -> None:
        super().__init__(work)
        self._committed = committed

    def committed(self, info: CheckpointInfo) -> None:
        """Tell them."""
        self._committed(info)


def _beside(join: Join, parts: Sequence[Manifest]) -> Node:
    """Take the states of all ranks, by rank, or the files of all; one that several ranks have must be the same."""
    with_files = any(part.files for part in parts)
    if with_files:
        with_state = [rank for rank, part in enumerate(parts) if not part.files]
        if with_state:
            ranks = ", ".join(map(str, with_state))
            msg = f"of the ranks some commit files, and others save a state: rank {ranks}"
            raise RankMismatch(msg, hint="let all ranks do the same")
    take = join.files_of if with_files else join.whole
    return ["dict", [pair for part in parts for pair in take(part)[1]]]


def _gone(parts: Mapping[int, Mapping[str, Any]], paths: Sequence[Inside]) -> RankFailed | None:
    """Return the error for ranks that ended after they had staged their parts, which were swept as dead."""
    gone = [rank for rank, path in zip(sorted(parts), paths, strict=True) if not peek.is_directory(path)]
    if not gone:
        return None
    said = ", ".join(f"rank {rank} ({parts[rank].get('host')}, process {parts[rank].get('pid')})" for rank in gone)
    msg = f"{said} ended or failed before all parts were joined, and what it had staged is gone; nothing was published"
    return RankFailed(msg, hint="save again when all ranks run")
