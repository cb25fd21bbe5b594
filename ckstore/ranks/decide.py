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
    meeting: FileRendezvous  # the rendezvous of the ranks
    work: RankWork  # the deadline of this rank, and the record of its progress
    request: Request | None = None  # the arguments of the caller; None if this rank has failed and only waits

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
            # This limit is later than the deadline: a rank that is publishing gets additional time, so that a slow disk
            # does not count as a failure.
            if self.work.is_late_for_others and meeting.outcome() is None:
                return self._give_up(None)
            pace.wait()

    def fail(self, error: BaseException) -> None:
        """Report to the other ranks why this rank failed, and wait until all have joined or the deadline has passed."""
        with suppress(OSError):  # for example on a full disk; the others then notice the failure at the deadline
            self.meeting.say_failed(reason_of(error), of_storage=is_of_storage(error))
            if isinstance(error, Exception):
                self._see_it_end()

    def _see_it_end(self) -> None:
        """Wait until all ranks have joined and can learn why nothing is published, or until the deadline has passed."""
        pace = Backoff()
        with suppress(CkstoreError):  # the caller raises the error of this rank
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
        # The rendezvous is kept until all ranks have joined. If it were moved away earlier, a rank that joins later
        # would wait in a new, empty rendezvous.
        all_came = len(meeting.hear("rank")) == who.world_size
        if len(parts) < who.world_size and not (failed and all_came) and not self.work.is_late:
            return None
        deciding = meeting.deciding()
        if deciding is None:
            return None
        with deciding:
            return self._decide_alone(staging)

    def _decide_alone(self, staging: Staging | None) -> CheckpointInfo | None:
        """Decide while holding the lock that keeps other ranks from deciding."""
        meeting, who = self.meeting, self.meeting.who
        if meeting.outcome() is not None:  # recorded by the previous holder of the lock since this rank's last check
            return None
        layout = self.context.layout
        gone = lost(layout, meeting)  # called first, so that `_published` finds a checkpoint that is renamed meanwhile
        info = self._published()
        if info is not None:  # a rank published the checkpoint, and died before it could report this
            return self._end(published(info))
        # The documents are read again under the lock, because the last part may have been staged meanwhile.
        failed, parts = meeting.hear("failed"), meeting.hear("part")
        if failed:
            return self._give_up({"failed": sorted(failed)})
        if len(parts) < who.world_size:
            return self._give_up(given_up(layout, meeting))
        if gone is not None:
            return self._give_up(gone)
        if self.request is None or staging is None:  # this rank has failed, but could not record its failure
            return None
        try:
            self.work.doing("joined the parts")
            watch = WorkWatch(self.work, self._committed, meeting.take_back_publishing)
            whole = MergedCheckpoint(parts, who.attempt, beside)
            info = whole.publish(self.context, self.request, watch, meeting.say_publishing)
        except BaseException as error:
            reclaim.discard(self.context, staging, error)  # on a full disk, this makes room to record the reason
            ended = self._after(error)
            if ended is None:
                raise
            return self._ended(ended)
        outcome = self._readable_outcome()
        # If the step already had the same content, nothing was renamed. In this case, the save succeeded even if the
        # other ranks gave up on this rank meanwhile.
        return info if outcome is None or "published" in outcome else self._ended(outcome)

    def _committed(self, info: CheckpointInfo) -> None:
        """Report the commit to the other ranks and to the caller of this rank, before the steps that may take long."""
        outcome = self._say(published(info))
        self.work.decided(info if "published" in outcome else error_of(self.meeting, outcome))

    def _after(self, error: BaseException) -> Document | None:
        """Return the outcome if the attempt has ended although this rank failed to publish.

        Otherwise, report the error to the other ranks, and return None.
        """
        outcome = self.meeting.outcome() if isinstance(error, CkstoreError) else None
        if outcome is not None:  # the others gave up on this rank, or the checkpoint is published
            return outcome
        is_fenced = bool(self.meeting.hear("fence"))
        publishing = self.meeting.hear("publishing") if self.context.view.sees_locks else self._stop_publishers()
        # After a failed sync, do not call `_published`. It would sync the same directories again, and the success of a
        # second sync does not prove that the rename is durable.
        info = None if isinstance(error, UnknownOutcome) else self._published()
        if info is None and is_fenced:  # the others have moved away the directory that this rank wanted to rename
            return self._say(stuck(self.meeting, publishing))
        if info is None:
            self._tell(error)
        elif isinstance(error, CkstoreError):  # a rank on another host, which the locks do not exclude, was faster
            return self._say(published(info))
        return None

    def _give_up(self, outcome: Document | None) -> CheckpointInfo:
        """End the attempt without publishing.

        If the rank with the lock of `deciding` makes no progress, `outcome` must be None.
        """
        # If locks do not reach other hosts, a rank on another host may still publish. Such a rank is stopped first: as
        # long as a rank can publish, no outcome may say that nothing was published.
        if outcome is None or not self.context.view.sees_locks:
            publishing = self._stop_publishers()
            info = self._published()
            if info is not None:
                return self._end(published(info))
            outcome = outcome or stuck(self.meeting, publishing)
        return self._end(outcome)

    def _stop_publishers(self) -> dict[int, Document]:
        """Keep ranks from beginning to publish, and move away the staging directories that ranks may be publishing.

        Return the documents of the ranks that had announced that they would publish.

        Raises:
            UnknownOutcome: The fence could not be written, or a directory could not be moved. A rank may still publish.
        """
        layout = self.context.layout
        try:
            publishing = self.meeting.fence()
            for document in publishing.values():
                # Only a rename is safe: afterwards, the rank that makes no progress can no longer rename the directory.
                # The directory may be missing because it was published or discarded. On a shared filesystem, it may
                # also have the hidden name of the step; `take_hidden` then moves it.
                with suppress(FileNotFoundError):
                    trash.move_to_trash(layout, layout.staging / document["staging"])
            take_hidden(layout, self.meeting.who)
        except OSError as error:
            name = self.meeting.who.name
            msg = f"it is unknown whether {name} was published: the other ranks could not be stopped: {why_of(error)}"
            raise UnknownOutcome(msg, hint="check the disk; ckstore log shows whether the checkpoint exists") from error
        return publishing

    def _published(self) -> CheckpointInfo | None:
        """Return the checkpoint if this attempt has published it, and make its name durable."""
        who, layout = self.meeting.who, self.context.layout
        of_step = published_of_step(layout, who.run, who.step)
        found = next((one for one in of_step if is_of_try(one.manifest, who)), None)
        if found is None:
            return None
        # The rank that renamed the checkpoint may have died or stopped before its sync. This rank reports success, so
        # it must make the name durable itself (law N2).
        for folder in (layout.checkpoints / who.run, layout.checkpoints, layout.staging):
            files.sync_directory(folder)
        return info_of(self.context, found.manifest, found.manifest_id, key=found.key)

    def _tell(self, error: BaseException) -> None:
        """Report to the other ranks why this rank failed to publish."""
        with suppress(OSError):  # the others find that the part of this rank is missing, and report this instead
            if isinstance(error, RankMismatch):
                self.meeting.say_outcome({"mismatch": str(error)})
            else:
                self.meeting.say_failed(reason_of(error), of_storage=is_of_storage(error))
                self.meeting.say_outcome({"failed": [self.meeting.who.rank]})

    def _end(self, outcome: Document) -> CheckpointInfo:
        """Record the outcome and act on it in this rank, even if it could not be written."""
        return self._ended(self._say(outcome))

    def _say(self, outcome: Document) -> Document:
        """Record the outcome of the attempt, and return the outcome that was recorded first."""
        try:
            self.meeting.say_outcome(outcome)
        except OSError:  # the other ranks reach the same decision
            return outcome
        return self._readable_outcome() or outcome

    def _readable_outcome(self) -> Document | None:
        """Return the recorded outcome, or None if it is missing or damaged."""
        with suppress(OSError, DamagedBlob):
            return self.meeting.outcome()
        return None

    def _ended(self, outcome: Document) -> CheckpointInfo:
        """Return the checkpoint that this attempt published, or raise the error of its outcome."""
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
        # The publishing rank holds the lock of `deciding` until it has finished these steps. The wait also ends at the
        # deadline.
        pace = Backoff()
        while not self.work.is_late:
            following = self.meeting.deciding()
            if following is not None:
                following.release()
                return
            self.work.doing("waited for the rank that published to end")
            pace.wait()
