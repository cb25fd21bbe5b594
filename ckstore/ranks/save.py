"""Save as one rank of several, without a process group: stage one's part, meet the others, publish once."""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ckstore.errors import BadInput, CkstoreError, MissingRanks, RankFailed, RankMismatch
from ckstore.fs import peek
from ckstore.model.manifest.manifest import Ranks
from ckstore.model.manifest.shards import ATTEMPT_MOST_CHARS, WORLD_SIZE_MOST
from ckstore.objects.checkpoints import look
from ckstore.objects.staging import Staging
from ckstore.ops.free import reclaim
from ckstore.ops.refs.find import find
from ckstore.ops.save.commit import capture_files
from ckstore.ops.save.save import failing_as_save, save_staged, what_is_read
from ckstore.ranks.join import Join, Joined, link_parts, staged_of
from ckstore.ranks.meeting import Meeting, Pace, elsewhere, is_gone
from ckstore.ranks.part import Content, Who, stage_part
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
    from ckstore.tensors.capture import Captured


_GRACE_LEAST_S = 30.0
"""Who is publishing when the deadline passes has as long again, and at least this."""


def attempt_here(attempt: str | None) -> str:
    """Return the name of this try: that of the caller, or of the launcher.

    Raises:
        BadInput: There is neither.
    """
    if attempt:
        return attempt
    environment = os.environ
    for job, restarts in (
        ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
        ("SLURM_JOB_ID", "SLURM_RESTART_COUNT"),
    ):
        if environment.get(job) and environment[job] != "none":
            return f"{environment[job]}.{environment.get(restarts, '0')}"
    port = environment.get("MASTER_PORT")
    if environment.get("TORCHELASTIC_RUN_ID") and port:  # torchrun without --rdzv-id names every run "none"
        return f"{environment.get('MASTER_ADDR', '')}:{port}.{environment.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    msg = "the ranks need a name for this try that all of them have, so that it never meets leftovers of another"
    raise BadInput(
        msg,
        hint="give attempt=, the same on all ranks and new for each start of the job",
        command_hint="give --attempt, the same on all ranks and new for each start of the job",
    )


@dataclass(frozen=True, slots=True)
class AsRank:
    """What the caller says about ranks."""

    rank: int | None
    world_size: int | None
    timeout_s: float
    attempt: str | None

    def who(self, request: Request) -> Who:
        """Return this process as a rank.

        Raises:
            BadInput: An argument is wrong or missing; it says which.
        """
        if type(self.world_size) is not int or not 1 <= self.world_size <= WORLD_SIZE_MOST:
            raise BadInput(f"world_size must be the number of ranks, at least 1, got {self.world_size!r}")
        if type(self.rank) is not int or not 0 <= self.rank < self.world_size:
            raise BadInput(f"rank must be an integer from 0 to {self.world_size - 1}, got {self.rank!r}")
        timeout_s: object = self.timeout_s
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not timeout_s > 0:
            raise BadInput(f"timeout must be a number of seconds above 0, got {timeout_s!r}")
        if request.step is None:
            msg = "ranks that save together give the step"
            hint, command_hint = "step=, the same on all ranks", "--step, the same on all ranks"
            raise BadInput(msg, hint=hint, command_hint=command_hint)
        attempt = attempt_here(self.attempt)
        if len(attempt) > ATTEMPT_MOST_CHARS:
            raise BadInput(f"attempt must have at most {ATTEMPT_MOST_CHARS} characters, got {len(attempt)}")
        return Who.here(request.run, request.step, self.rank, world_size=self.world_size, attempt=attempt)


def save_state(context: Context, state: object, request: Request, as_rank: AsRank) -> CheckpointInfo:
    """Save the state of one rank; see `ckstore.Store.save`."""
    request.check()
    who = as_rank.who(request)
    return save_as_rank(context, who, request, lambda: capture({who.rank: state}), as_rank.timeout_s)


def commit_files(
    context: Context, paths: Sequence[Path], request: Request, options: CommitOptions, as_rank: AsRank
) -> CheckpointInfo:
    """Commit the files of one rank; see `ckstore.Store.commit`."""
    request, captured, warnings = capture_files(context, paths, request, options)
    info = save_as_rank(context, as_rank.who(request), request, lambda: captured, as_rank.timeout_s)
    return replace(info, warnings=(*warnings, *info.warnings))


def save_as_rank(
    context: Context, who: Who, request: Request, captured: Callable[[], Captured], timeout_s: float
) -> CheckpointInfo:
    """Save what `captured` gives as the part of one rank; return the checkpoint of all, once it is published.

    Raises:
        MissingRanks: Some did not come before the deadline.
        RankMismatch: Another process is the same rank, or ranks do not mean the same.
        RankFailed: A rank failed. After all of these nothing was published.
    """
    request.check()
    context.check_writable()
    _refuse_duplicate(context, who)
    with (
        failing_as_save(context, f"saving {request.run}@{request.step} at {who}"),
        Meeting.enter(context.layout, who) as meeting,
    ):
        pace = Pace(timeout_s)
        try:
            staging = _staged(context, who, captured, request)
        except BaseException as error:
            with suppress(OSError):  # as on a full disk: the others learn at the deadline that this rank has ended
                meeting.say_failed(str(error) or type(error).__name__)
                if isinstance(error, Exception):
                    _see_it_end(context, meeting, request, pace)
            raise
        try:
            meeting.say_part(staging.path.name)
            return _wait(context, meeting, request, pace)
        finally:
            reclaim.discard(context, staging)


def _refuse_duplicate(context: Context, who: Who) -> None:
    found = look(context.layout, who.run, who.step).published
    if found is not None and found.manifest.ranks is not None and found.manifest.ranks.attempt == who.attempt:
        msg = f"{who.run}@{who.step} was saved by all {found.manifest.ranks.world_size} ranks of this try already"
        came = f"{who} came a second time, or too late; a new try needs another"
        raise RankMismatch(msg, hint=f"{came} attempt=", command_hint=f"{came} --attempt")


def _staged(context: Context, who: Who, captured: Callable[[], Captured], request: Request) -> Staging:
    staging = Staging.create(context.layout, who.run, who.step, read_back=what_is_read(context).read_back)
    try:
        stage_part(context, staging, who, Content(captured(), {}, progress=request.progress))
    except BaseException as error:
        reclaim.discard(context, staging, error)
        raise
    return staging


def _wait(context: Context, meeting: Meeting, request: Request, pace: Pace) -> CheckpointInfo:
    who = meeting.who
    grace: Pace | None = None
    while True:
        outcome = meeting.outcome()
        if outcome is not None:
            return _ended(context, meeting, outcome)
        if meeting.is_over():
            msg = f"the place where the ranks meet for {who.run}@{who.step} was moved away; nothing was published"
            raise RankFailed(msg, hint="another process took all of them for dead; save again")
        info = _decide(context, meeting, request, pace)
        if info is not None:
            return info
        if pace.is_late and meeting.outcome() is None:
            grace = grace or Pace(max(_GRACE_LEAST_S, pace.timeout_s))
            if grace.is_late:
                msg = f"another rank is still publishing {who.run}@{who.step} long after the deadline"
                raise RankFailed(msg, hint="ckstore log says later whether it was published")
        pace.wait()


def _see_it_end(context: Context, meeting: Meeting, request: Request, pace: Pace) -> None:
    """Stay until all ranks have come, and so learn why nothing is published, or the deadline has passed."""
    while meeting.outcome() is None and not meeting.is_over():
        _decide(context, meeting, request, pace)
        if pace.is_late:
            return
        pace.wait()


def _decide(context: Context, meeting: Meeting, request: Request, pace: Pace) -> CheckpointInfo | None:
    """Publish, or give up, if there is reason to; None: there is not, or another rank is at it."""
    who = meeting.who
    parts, failed = meeting.documents("part"), meeting.documents("failed")
    all_came = len(meeting.documents("rank")) == who.world_size
    if len(parts) < who.world_size and not (failed and all_came) and not pace.is_late:
        return None
    deciding = meeting.deciding()
    if deciding is None:
        return None
    with deciding:
        if meeting.outcome() is not None:
            return None
        published = look(context.layout, who.run, who.step).published
        if (
            published is not None
            and published.manifest.ranks is not None
            and published.manifest.ranks.attempt == who.attempt
        ):
            meeting.say_outcome({"published": published.manifest_id})  # by a rank that died before it could say so
            return None
        if failed:
            meeting.say_outcome({"failed": sorted(failed)})
            return None
        parts = meeting.documents("part")
        if len(parts) < who.world_size:
            meeting.say_outcome(_given_up(context, meeting, parts))
            return None
        try:
            info = _publish(context, meeting, request, parts)
        except CkstoreError as error:
            if isinstance(error, RankMismatch):
                meeting.say_outcome({"mismatch": str(error)})
            else:
                meeting.say_failed(str(error))
                meeting.say_outcome({"failed": [who.rank]})
            raise
        meeting.say_outcome({"published": info.id})
        return info


def _given_up(context: Context, meeting: Meeting, parts: Mapping[int, object]) -> dict[str, Any]:
    who = meeting.who
    here = meeting.documents("rank")
    said = []
    missing = [rank for rank in range(who.world_size) if rank not in parts]
    for rank in missing:
        if rank not in here:
            said.append(f"rank {rank} did not come")
        else:
            there = f"rank {rank} ({here[rank].get('host')}, process {here[rank].get('pid')})"
            said.append(
                f"{there} began and has ended" if is_gone(here[rank], who.host) else f"{there} began and is not done"
            )
    others = elsewhere(context.layout, who)
    if others:
        return {"mismatch": f"the ranks do not save the same: {'; '.join(others)}"}
    return {"missing": missing, "said": "; ".join(said)}


def _ended(context: Context, meeting: Meeting, outcome: dict[str, Any]) -> CheckpointInfo:
    who = meeting.who
    name = f"{who.run}@{who.step}"
    if "published" in outcome:
        return find(context, name)
    if "mismatch" in outcome:
        raise RankMismatch(f"{outcome['mismatch']}; {name} was not published")
    if "failed" in outcome:
        causes = {rank: CkstoreError(document["why"]) for rank, document in sorted(meeting.documents("failed").items())}
        said = "; ".join(f"rank {rank}: {cause}" for rank, cause in causes.items())
        raise RankFailed(f"saving {name} failed on all {who.world_size} ranks, because of {said}", causes=causes)
    missing = tuple(outcome["missing"])
    msg = f"{name} was not published: {outcome['said']}, of {who.world_size} ranks; {who} waited for them"
    again = "save again when all ranks run"
    hint, command_hint = f"{again}; timeout= says how long to wait", f"{again}; --timeout says how long to wait"
    raise MissingRanks(msg, hint=hint, command_hint=command_hint, missing=missing)


def _publish(
    context: Context, meeting: Meeting, request: Request, parts: Mapping[int, Mapping[str, Any]]
) -> CheckpointInfo:
    who = meeting.who

    def stage(staging: Staging, notes: list[str]) -> Staged:
        del notes
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

    return save_staged(context, request, lambda: Staging.create(context.layout, who.run, who.step), stage)


def _beside(join: Join, parts: Sequence[Manifest]) -> Node:
    """Take the states of all ranks, by rank, or the files of all; one that several ranks have must be the same.

    Raises:
        RankMismatch: It is not, or some ranks save a state and others commit files.
    """
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
    msg = f"{said} ended before all ranks had come, and what it had staged is gone; nothing was published"
    return RankFailed(msg, hint="save again when all ranks run")
