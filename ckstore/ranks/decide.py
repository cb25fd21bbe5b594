"""Wait until all ranks have come, and let one of them decide: it publishes, or gives up, and the others learn why."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckstore.errors import CkstoreError, MissingRanks, RankFailed, RankMismatch, UnknownOutcome
from ckstore.objects.checkpoints import look
from ckstore.ops.free import reclaim
from ckstore.ops.refs.find import find
from ckstore.ranks.meeting import Meeting, Pace, elsewhere
from ckstore.ranks.processes import what_became_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ckstore.model.manifest.info import CheckpointInfo
    from ckstore.objects.staging import Staging
    from ckstore.ops.context import Context

_GRACE_LEAST_S = 30.0
"""Who is publishing when the deadline passes has as long again, and at least this."""


@dataclass(frozen=True, slots=True)
class Deciding:
    """One rank, while it waits for the others.

    Attributes:
        context: The store.
        meeting: Where they meet.
        pace: How long it waits.
        publish: Joins the parts of all ranks, given what they said of them by rank, and publishes them.
    """

    context: Context
    meeting: Meeting
    pace: Pace
    publish: Callable[[Mapping[int, Mapping[str, Any]]], CheckpointInfo]

    def wait(self, staging: Staging) -> CheckpointInfo:
        """Return the checkpoint of all, once it is published; `staging` is the part of this rank.

        Raises:
            MissingRanks, RankMismatch, RankFailed: Nothing was published.
        """
        meeting, who = self.meeting, self.meeting.who
        grace: Pace | None = None
        while True:
            outcome = meeting.outcome()
            if outcome is not None:
                return self._ended(outcome)
            if meeting.is_over():
                if self._published() is not None:
                    return find(self.context, f"{who.run}@{who.step}")
                msg = f"the place where the ranks meet for {who.run}@{who.step} was moved away; nothing was published"
                raise RankFailed(msg, hint="another process took all of them for dead; save again")
            info = self._decide(staging)
            if info is not None:
                return info
            if self.pace.is_late and meeting.outcome() is None:
                grace = grace or Pace(max(_GRACE_LEAST_S, self.pace.timeout_s))
                if grace.is_late:
                    msg = f"another rank is still publishing {who.run}@{who.step} long after the deadline"
                    raise RankFailed(msg, hint="ckstore log says later whether it was published")
            self.pace.wait()

    def see_it_end(self) -> None:
        """Stay until all ranks have come, and so learn why nothing is published, or the deadline has passed."""
        with suppress(CkstoreError):  # the caller raises why this rank failed
            while self.meeting.outcome() is None and not self.meeting.is_over() and self._decide(None) is None:
                if self.pace.is_late:
                    return
                self.pace.wait()

    def _decide(self, staging: Staging | None) -> CheckpointInfo | None:
        """Publish, or give up, if there is reason to; None: there is not, or another rank is at it."""
        meeting, who = self.meeting, self.meeting.who
        parts, failed = meeting.documents("part"), meeting.documents("failed")
        all_came = len(meeting.documents("rank")) == who.world_size
        if len(parts) < who.world_size and not (failed and all_came) and not self.pace.is_late:
            return None
        deciding = meeting.deciding()
        if deciding is None:
            return None
        with deciding:
            if meeting.outcome() is not None:
                return None
            published = self._published()
            if published is not None:  # by a rank that died before it could say so
                return self._end({"published": published})
            if failed:
                return self._end({"failed": sorted(failed)})
            parts = meeting.documents("part")
            if len(parts) < who.world_size:
                return self._end(self._given_up(parts))
            try:
                info = self.publish(parts)
            except BaseException as error:
                if staging is not None:
                    reclaim.discard(self.context, staging, error)  # on a full disk, there is room then to say why
                published = None if isinstance(error, UnknownOutcome) else self._published()
                if published is None:
                    self._tell(error)
                elif isinstance(error, CkstoreError):  # a rank of another host, which no lock reaches, was faster
                    return self._end({"published": published})
                raise
            with suppress(OSError):  # the others see that it is there
                meeting.say_outcome({"published": info.id})
            return info

    def _published(self) -> str | None:
        """Return the id of the checkpoint, if it is that of this try."""
        who = self.meeting.who
        found = look(self.context.layout, who.run, who.step).published
        if found is None or found.manifest.ranks is None or found.manifest.ranks.attempt != who.attempt:
            return None
        return found.manifest_id

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
        with suppress(OSError):  # the others decide the same
            self.meeting.say_outcome(outcome)
        return self._ended(outcome)

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
        """Return the checkpoint, or raise what the outcome says."""
        who = self.meeting.who
        name = f"{who.run}@{who.step}"
        if "published" in outcome:
            return find(self.context, name)
        if "mismatch" in outcome:
            raise RankMismatch(f"{outcome['mismatch']}; {name} was not published")
        if "failed" in outcome:
            failed = sorted(self.meeting.documents("failed").items())
            causes = {rank: CkstoreError(document["why"]) for rank, document in failed}
            said = "; ".join(f"rank {rank}: {cause}" for rank, cause in causes.items())
            raise RankFailed(f"saving {name} failed on all {who.world_size} ranks, because of {said}", causes=causes)
        missing = tuple(outcome["missing"])
        msg = f"{name} was not published: {outcome['said']}, of {who.world_size} ranks; {who} waited for them"
        again = "save again when all ranks run"
        hint, command_hint = f"{again}; timeout= says how long to wait", f"{again}; --timeout says how long to wait"
        raise MissingRanks(msg, hint=hint, command_hint=command_hint, missing=missing)


def why(error: BaseException) -> str:
    """Return what the other ranks are told of an error; of one that is not the store's, its type too."""
    if isinstance(error, CkstoreError):
        return str(error)
    return f"{type(error).__name__}: {error}".removesuffix(": ")
