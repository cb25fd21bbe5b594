"""Wait until all ranks have come, and let one of them decide: it publishes, or gives up, and the others learn why."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ckstore.errors import CkstoreError, MissingRanks, RankFailed, RankMismatch, UnknownOutcome
from ckstore.fs import files
from ckstore.model.digest import short_id
from ckstore.model.saver.messages import info_from, info_json
from ckstore.objects import trash
from ckstore.objects.checkpoints import look
from ckstore.ops.context import info_of
from ckstore.ops.free import reclaim
from ckstore.ranks.meeting import Meeting, Pace, elsewhere
from ckstore.ranks.processes import what_became_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ckstore.model.manifest.info import CheckpointInfo, Published
    from ckstore.objects.staging import Staging
    from ckstore.ops.context import Context
    from ckstore.ranks.work import RankWork


@dataclass(frozen=True, slots=True)
class Deciding:
    """One rank, while it waits for the others.

    Attributes:
        context: The store.
        meeting: Where they meet.
        work: How long it waits, and who is told how far it is.
        publish: Joins the parts of all ranks, given what they said of them by rank, and publishes them; it calls its
            second argument with what it published, before all that follows.
    """

    context: Context
    meeting: Meeting
    work: RankWork
    publish: Callable[[Mapping[int, Mapping[str, Any]], Callable[[CheckpointInfo], None]], CheckpointInfo]

    def wait(self, staging: Staging) -> CheckpointInfo:
        """Return the checkpoint of all, once it is published; `staging` is the part of this rank."""
        meeting, who, pace = self.meeting, self.meeting.who, Pace()
        while True:
            self.work.doing("looked at what the others say")
            outcome = meeting.outcome()
            if outcome is not None:
                self._see_the_rest(outcome)
                return self._ended(outcome)
            if meeting.is_over():
                info = self._published()
                if info is not None:
                    return self._ended(published(info))
                msg = f"the place where the ranks meet for {who.run}@{who.step} was moved away; nothing was published"
                raise RankFailed(msg, hint="another process took all of them for dead; save again")
            info = self._decide(staging)
            if info is not None:
                return info
            if self.work.is_late_for_others and meeting.outcome() is None:
                return self._fence()
            pace.wait()

    def fail(self, error: BaseException) -> None:
        """Tell the others why this rank failed, and stay until all have come, or the deadline is over."""
        with suppress(OSError):  # as on a full disk: the others learn at the deadline that this rank has ended
            self.meeting.say_failed(why(error))
            if isinstance(error, Exception):
                self._see_it_end()

    def _see_it_end(self) -> None:
        """Stay until all ranks have come, and so learn why nothing is published, or the deadline has passed."""
        pace = Pace()
        with suppress(CkstoreError):  # the caller raises why this rank failed
            while self.meeting.outcome() is None and not self.meeting.is_over() and self._decide(None) is None:
                if self.work.is_late:
                    return
                self.work.doing("waited for the others to learn why it failed")
                pace.wait()

    def _decide(self, staging: Staging | None) -> CheckpointInfo | None:
        """Publish, or give up, if there is reason to; None: there is not, or another rank is at it."""
        meeting, who = self.meeting, self.meeting.who
        parts, failed = meeting.documents("part"), meeting.documents("failed")
        all_came = len(meeting.documents("rank")) == who.world_size
        if len(parts) < who.world_size and not (failed and all_came) and not self.work.is_late:
            return None
        deciding = meeting.deciding()
        if deciding is None:
            return None
        with deciding:
            return self._decide_alone(staging)

    def _decide_alone(self, staging: Staging | None) -> CheckpointInfo | None:
        """Decide, while no other rank does."""
        meeting, who = self.meeting, self.meeting.who
        if meeting.outcome() is not None:
            return None
        info = self._published()
        if info is not None:  # by a rank that died before it could say so
            return self._end(published(info))
        failed, parts = meeting.documents("failed"), meeting.documents("part")
        if failed:
            return self._end({"failed": sorted(failed)})
        if len(parts) < who.world_size:
            return self._end(self._given_up(parts))
        try:
            info = self.publish(parts, self._committed)
        except BaseException as error:
            if staging is not None:
                reclaim.discard(self.context, staging, error)  # on a full disk, there is room then to say why
            ended = self._after(error)
            if ended is None:
                raise
            return self._ended(ended)
        outcome = meeting.outcome()
        # If the same content was there, no rename failed: the others may have given this rank up meanwhile.
        return info if outcome is None or "published" in outcome else self._ended(outcome)

    def _committed(self, info: CheckpointInfo) -> None:
        """Tell the others, and the caller of this rank, at once: what follows may take long."""
        outcome = self._say(published(info))
        self.work.decided(info if "published" in outcome else self._error_of(outcome))

    def _after(self, error: BaseException) -> dict[str, Any] | None:
        """Return how the try ended if it did although this rank failed to publish; else tell the others why."""
        outcome = self.meeting.outcome() if isinstance(error, CkstoreError) else None
        if outcome is not None:  # the others gave this rank up, or it is published
            return outcome
        info = None if isinstance(error, UnknownOutcome) else self._published()
        if info is None:
            self._tell(error)
        elif isinstance(error, CkstoreError):  # a rank of another host, which no lock reaches, was faster
            return self._say(published(info))
        return None

    def _fence(self) -> CheckpointInfo:
        """End the try although a rank has the lock and stands still: what it may be about to publish is moved away."""
        meeting, who = self.meeting, self.meeting.who
        publishing = meeting.fence()
        for document in publishing.values():
            with suppress(FileNotFoundError):  # it has been renamed into its place, or given up
                trash.move_to_trash(self.context.layout, self.context.layout.staging / document["staging"])
        info = self._published()
        if info is not None:
            return self._end(published(info))
        said = []
        for rank, document in sorted({**meeting.documents("rank"), **publishing}.items()):
            became = what_became_of(document, who.host)
            if became or rank in publishing:
                there = f"rank {rank} ({document.get('host')}, process {document.get('pid')})"
                said.append(f"{there} {became or 'is still publishing'}")
        return self._end({"stuck": "; ".join(said) or "another rank is still publishing it long after the deadline"})

    def _published(self) -> CheckpointInfo | None:
        """Return the checkpoint, if it is that of this try; it is durable then."""
        who, layout = self.meeting.who, self.context.layout
        found = look(layout, who.run, who.step).published
        if found is None or found.manifest.ranks is None or found.manifest.ranks.attempt != who.attempt:
            return None
        # The rank that renamed it may have died, or stand still, before its sync; this one acknowledges it (rule F).
        for folder in (layout.checkpoints / who.run, layout.checkpoints, layout.staging):
            files.sync_directory(folder)
        return self._info_of(found)

    def _info_of(self, found: Published) -> CheckpointInfo:
        return info_of(self.context, found.manifest, found.manifest_id)

    def _tell(self, error: BaseException) -> None:
        """Tell the others why this rank, which was to publish, did not."""
        with suppress(OSError):  # they find its part gone, and say so
            if isinstance(error, RankMismatch):
                self.meeting.say_outcome({"mismatch": str(error)})
            else:
                self.meeting.say_failed(why(error))
                self.meeting.say_outcome({"failed": [self.meeting.who.rank]})

    def _end(self, outcome: dict[str, Any]) -> CheckpointInfo:
        """Say how the try ended, and act on it here too, whether or not it could be written down."""
        return self._ended(self._say(outcome))

    def _say(self, outcome: dict[str, Any]) -> dict[str, Any]:
        """Say how the try ended; return what was said first."""
        try:
            self.meeting.say_outcome(outcome)
            return self.meeting.outcome() or outcome
        except OSError:  # the others decide the same
            return outcome

    def _given_up(self, parts: Mapping[int, object]) -> dict[str, Any]:
        who = self.meeting.who
        here = self.meeting.documents("rank")
        said = []
        missing = [rank for rank in range(who.world_size) if rank not in parts]
        for rank in missing:
            if rank not in here:
                said.append(f"rank {rank} did not come")
            else:
                there = f"rank {rank} ({here[rank].get('host')}, process {here[rank].get('pid')})"
                said.append(f"{there} began and {what_became_of(here[rank], who.host) or 'is not done'}")
        others = elsewhere(self.context.layout, who)
        if others:
            return {"mismatch": f"the ranks do not save the same: {'; '.join(others)}"}
        return {"missing": missing, "said": "; ".join(said)}

    def _ended(self, outcome: dict[str, Any]) -> CheckpointInfo:
        """Return what this try published, or raise what the outcome says."""
        if "published" not in outcome:
            error = self._error_of(outcome)
            self.work.decided(error)
            raise error
        info = info_from(dict(outcome["info"]))
        self.work.decided(info)
        found = look(self.context.layout, info.run, info.step).published
        if found is not None and found.manifest_id == info.id:
            return self._info_of(found)
        # This rank may have stood still for long: what it took part in is what it returns.
        now = "was deleted since" if found is None else f"was replaced since, by {short_id(found.manifest_id)}"
        return replace(info, warnings=(*info.warnings, f"{info.name} {short_id(info.id)} {now}"))

    def _see_the_rest(self, outcome: dict[str, Any]) -> None:
        """Wait until the rank that published is done with what follows: its tags, and the policy of the store."""
        if "published" not in outcome:
            return
        self.work.decided(info_from(dict(outcome["info"])))
        pace = Pace()
        while not self.work.is_late:
            following = self.meeting.deciding()
            if following is not None:
                following.release()
                return
            self.work.doing("waited for the rank that published to end")
            pace.wait()

    def _error_of(self, outcome: Mapping[str, Any]) -> CkstoreError:
        who = self.meeting.who
        name = f"{who.run}@{who.step}"
        if "mismatch" in outcome:
            return RankMismatch(f"{outcome['mismatch']}; {name} was not published")
        if "stuck" in outcome:
            return RankFailed(f"{name} was not published: {outcome['stuck']}", hint="save again when all ranks run")
        if "failed" in outcome:
            failed = sorted(self.meeting.documents("failed").items())
            causes = {rank: CkstoreError(document["why"]) for rank, document in failed}
            said = "; ".join(f"rank {rank}: {cause}" for rank, cause in causes.items())
            return RankFailed(f"saving {name} failed on all {who.world_size} ranks, because of {said}", causes=causes)
        missing = tuple(outcome["missing"])
        msg = f"{name} was not published: {outcome['said']}, of {who.world_size} ranks; {who} waited for them"
        again = "save again when all ranks run"
        return MissingRanks(msg, hint=f"{again}; timeout_s= says how long to wait", missing=missing)


def published(info: CheckpointInfo) -> dict[str, Any]:
    """Return the outcome of a try that published this: a rank that comes later may find another checkpoint there."""
    return {"published": info.id, "info": info_json(replace(info, counters=None))}


def why(error: BaseException) -> str:
    """Return what the other ranks are told of an error; of one that is not the store's, its type too."""
    if isinstance(error, CkstoreError):
        return str(error)
    return f"{type(error).__name__}: {error}".removesuffix(": ")
