"""Wait for all ranks, and let one of them publish or abort. The other ranks learn the outcome and its reason."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from ckstore.errors import CkstoreError, DamagedBlob, RankFailed, RankMismatch, UnknownOutcome, is_of_storage
from ckstore.fs import files
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.manifest.info_message import info_from
from ckstore.objects import trash
from ckstore.objects.checkpoints import published_of_step
from ckstore.objects.staging import Staging
from ckstore.ops.api_calls import why_of
from ckstore.ops.context import Context, info_of
from ckstore.ops.free import reclaim
from ckstore.ops.save.save import Request
from ckstore.ranks.file_rendezvous import Backoff, FileRendezvous
from ckstore.ranks.meeting import reason_of
from ckstore.ranks.merged_checkpoint import MergedCheckpoint
from ckstore.ranks.outcome import error_of, given_up, is_of_try, lost, now_at, published, stuck, take_hidden, with_news
from ckstore.ranks.part_merger import beside
from ckstore.ranks.rank_identity import Document
from ckstore.ranks.work import RankWork, WorkWatch


@dataclass(frozen=True, slots=True)
class Coordinator:
    """One rank that waits for the others and may decide for all."""

    context: Context  # the store
    meeting: FileRendezvous  # where they meet
    work: RankWork  # how long it waits, and who is told how far it is
    request: Request | None = None  # what the caller wants; None: this rank has failed, and only sees how it ends

    def wait(self, staging: Staging) -> CheckpointInfo:
        """Return the checkpoint of all ranks, once it is published. `staging` is the part of this rank."""
        meeting, pace = self.meeting, Backoff()
        while True:
            self.work.doing("read the state of the other ranks")
            outcome = meeting.outcome()
            if outcome is not None:
                self._await_follow_up(outcome)
                return self._ended(outcome)
            if meeting.is_over():
                info = self._published()
                if info is not None:
                    return self._ended(published(info))
                msg = f"the directory in which the ranks save {meeting.who.name} was moved away; nothing was published"
                raise RankFailed(msg, hint="another process assumed that all ranks were dead; save again")
            info = self._decide(staging)
            if info is not None:
                return info
            # Later than this rank would give up itself: who publishes gets a grace, so that a slow disk is no failure.
            if self.work.is_late_for_others and meeting.outcome() is None:
                return self._give_up(None)
            pace.wait()

    def fail(self, error: BaseException) -> None:
        """Report to the other ranks why this rank failed, and wait until all have joined or the deadline has passed."""
        with suppress(OSError):  # as on a full disk: the others learn at the deadline that this rank has ended
            self.meeting.say_failed(reason_of(error), of_storage=is_of_storage(error))
            if isinstance(error, Exception):
                self._see_it_end()

    def _see_it_end(self) -> None:
        """Wait until all ranks have joined and can learn why nothing is published, or until the deadline has passed."""
        pace = Backoff()
        with suppress(CkstoreError):  # the caller raises why this rank failed
            while self.meeting.outcome() is None and not self.meeting.is_over() and self._decide(None) is None:
                if self.work.is_late:
                    return
                self.work.doing("waited for the others to learn why it failed")
                pace.wait()

    def _decide(self, staging: Staging | None) -> CheckpointInfo | None:
        """Publish or abort if there is a reason.

        Return None if there is no reason yet, or if another rank is deciding.
        """
        meeting, who = self.meeting, self.meeting.who
        parts, failed = meeting.hear("part"), meeting.hear("failed")
        # While some have not come the place stays: who comes to a place that was moved away would wait in an empty one.
        all_came = len(meeting.hear("rank")) == who.world_size
        if len(parts) < who.world_size and not (failed and all_came) and not self.work.is_late:
            return None
        deciding = meeting.deciding()
        if deciding is None:
            return None
        with deciding:
            return self._decide_alone(staging)

    def _decide_alone(self, staging: Staging | None) -> CheckpointInfo | None:
        """Decide, with the lock that keeps other ranks from deciding."""
        meeting, who = self.meeting, self.meeting.who
        if meeting.outcome() is not None:  # said since this rank looked, by the one that had the lock before
            return None
        layout = self.context.layout
        gone = lost(layout, meeting)  # before the place is looked at: what is renamed between the two is seen there
        info = self._published()
        if info is not None:  # by a rank that died before it could say so
            return self._end(published(info))
        # Read again, under the lock: a part may have come since, and then all are there.
        failed, parts = meeting.hear("failed"), meeting.hear("part")
        if failed:
            return self._give_up({"failed": sorted(failed)})
        if len(parts) < who.world_size:
            return self._give_up(given_up(layout, meeting))
        if gone is not None:
            return self._give_up(gone)
        if self.request is None or staging is None:  # it could not say that it has failed
            return None
        try:
            self.work.doing("joined the parts")
            watch = WorkWatch(self.work, self._committed, meeting.take_back_publishing)
            whole = MergedCheckpoint(parts, who.attempt, beside)
            info = whole.publish(self.context, self.request, watch, meeting.say_publishing)
        except BaseException as error:
            reclaim.discard(self.context, staging, error)  # on a full disk, there is room then to say why
            ended = self._after(error)
            if ended is None:
                raise
            return self._ended(ended)
        outcome = self._readable_outcome()
        # If the same content was there, no rename failed: the others may have given this rank up meanwhile.
        return info if outcome is None or "published" in outcome else self._ended(outcome)

    def _committed(self, info: CheckpointInfo) -> None:
        """Report the commit immediately to the other ranks and to the caller of this rank.

        The following steps may take long.
        """
        outcome = self._say(published(info))
        self.work.decided(info if "published" in outcome else error_of(self.meeting, outcome))

    def _after(self, error: BaseException) -> Document | None:
        """Return the outcome if the try has ended although this rank failed to publish; otherwise report the error."""
        outcome = self.meeting.outcome() if isinstance(error, CkstoreError) else None
        if outcome is not None:  # the others gave this rank up, or it is published
            return outcome
        is_fenced = bool(self.meeting.hear("fence"))
        publishing = self.meeting.hear("publishing") if self.context.view.sees_locks else self._stop_publishers()
        # Not after a failed sync: to sync again, and to be told that all went well, would prove nothing.
        info = None if isinstance(error, UnknownOutcome) else self._published()
        if info is None and is_fenced:  # the others have moved away what this rank was to rename
            return self._say(stuck(self.meeting, publishing))
        if info is None:
            self._tell(error)
        elif isinstance(error, CkstoreError):  # a rank of another host, which no lock reaches, was faster
            return self._say(published(info))
        return None

    def _give_up(self, outcome: Document | None) -> CheckpointInfo:
        """End the try without publishing. Without an `outcome`, a rank that has the lock makes no progress."""
        # No lock reaches the ranks of other hosts. No outcome may say that nothing is published while one of them can.
        if outcome is None or not self.context.view.sees_locks:
            publishing = self._stop_publishers()
            info = self._published()
            if info is not None:
                return self._end(published(info))
            outcome = outcome or stuck(self.meeting, publishing)
        return self._end(outcome)

    def _stop_publishers(self) -> dict[int, Document]:
        """Move staging directories that ranks may publish away, and stop new publishes.

        Return the documents of these ranks.

        Raises:
            UnknownOutcome: The disk refuses the fence, so a rank may still publish.
        """
        layout = self.context.layout
        try:
            publishing = self.meeting.fence()
            for document in publishing.values():
                # A rename, not a look: after it the rank that stands still cannot rename that directory any more.
                with suppress(FileNotFoundError):  # already published, under its hidden name, or given up
                    trash.move_to_trash(layout, layout.staging / document["staging"])
            take_hidden(layout, self.meeting.who)
        except OSError as error:
            name = self.meeting.who.name
            msg = f"it is unknown whether {name} was published: the other ranks could not be stopped: {why_of(error)}"
            raise UnknownOutcome(msg, hint="check the disk; ckstore log shows whether the checkpoint exists") from error
        return publishing

    def _published(self) -> CheckpointInfo | None:
        """Return the checkpoint if this try has published it, and make it durable."""
        who, layout = self.meeting.who, self.context.layout
        of_step = published_of_step(layout, who.run, who.step)
        found = next((one for one in of_step if is_of_try(one.manifest, who)), None)
        if found is None:
            return None
        # The rank that renamed it may have died, or stand still, before its sync; this one acknowledges it (rule F).
        for folder in (layout.checkpoints / who.run, layout.checkpoints, layout.staging):
            files.sync_directory(folder)
        return info_of(self.context, found.manifest, found.manifest_id, key=found.key)

    def _tell(self, error: BaseException) -> None:
        """Report to the other ranks why this rank, which should publish, did not."""
        with suppress(OSError):  # they find its part gone, and say so
            if isinstance(error, RankMismatch):
                self.meeting.say_outcome({"mismatch": str(error)})
            else:
                self.meeting.say_failed(reason_of(error), of_storage=is_of_storage(error))
                self.meeting.say_outcome({"failed": [self.meeting.who.rank]})

    def _end(self, outcome: Document) -> CheckpointInfo:
        """Record the outcome and act on it in this rank, even if it could not be written."""
        return self._ended(self._say(outcome))

    def _say(self, outcome: Document) -> Document:
        """Record the outcome of the try; return the outcome that was recorded first."""
        try:
            self.meeting.say_outcome(outcome)
        except OSError:  # the others decide the same
            return outcome
        return self._readable_outcome() or outcome

    def _readable_outcome(self) -> Document | None:
        """Return the recorded outcome, or None if it is missing or damaged."""
        with suppress(OSError, DamagedBlob):
            return self.meeting.outcome()
        return None

    def _ended(self, outcome: Document) -> CheckpointInfo:
        """Return the checkpoint that this try published, or raise the error of its outcome."""
        if "published" not in outcome:
            error = error_of(self.meeting, outcome)
            self.work.decided(error)
            raise error
        info = info_from(dict(outcome["info"]))
        self.work.decided(info)
        found = now_at(self.context.layout, info)
        known = with_news(info, found)
        if known is info and found is not None:
            return info_of(self.context, found.manifest, found.manifest_id, key=found.key)
        return known

    def _await_follow_up(self, outcome: Document) -> None:
        """Wait until the publishing rank has finished the steps after the commit, such as tags and retention."""
        if "published" not in outcome:
            return
        self.work.decided(info_from(dict(outcome["info"])))
        # The lock on deciding is held until then, so it says when; the deadline ends the wait in any case.
        pace = Backoff()
        while not self.work.is_late:
            following = self.meeting.deciding()
            if following is not None:
                following.release()
                return
            self.work.doing("waited for the rank that published to end")
            pace.wait()
