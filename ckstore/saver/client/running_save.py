"""A pending save, and its result if its saver has died or is stuck."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ckstore.errors import RunInUse, SaveAbandoned, SaveFailed, StepExists, UnknownOutcome
from ckstore.model.saver.messages import Answer, Committed, Done, Failed, Message, Publishing, Status, Taken

if TYPE_CHECKING:
    from ckstore.errors import CkstoreError
    from ckstore.model.manifest.captured import Transfers
    from ckstore.model.manifest.info import CheckpointInfo
    from ckstore.model.saver.messages import Order
    from ckstore.saver.client.pending import PendingSave
    from ckstore.saver.client.process import SaverProcess
    from ckstore.saver.client.snapshot import Snapshot
    from ckstore.saver.client.unchanged_storages import Fingerprints

_NEXT = "does the storage of the store answer? Earlier checkpoints are intact; the next save starts another saver"


@dataclass(slots=True)
class Save:
    """A pending save. A saver begins one when those before it have ended, so only the first has begun."""

    order: Order  # what the saver is asked for
    snapshot: Snapshot  # where the bytes are
    pending: PendingSave  # what the caller sees
    tries: int = 0  # how many savers died while it was the first
    sent: bool = False  # whether the saver that is there now has the order
    granted: bool = False  # whether that may publish it
    maybe_published: bool = False  # whether a saver that has died might have published it, and had not said so
    committed: CheckpointInfo | None = None  # what was published, as soon as that is known
    copied_s: float = 0.0  # seconds that the call took to copy the state
    # When it was put behind the others, and when a saver first had it; `time.monotonic`.
    asked_at: float = field(default_factory=time.monotonic)
    taken_at: float = 0.0
    # What is still on its way from devices into the snapshot: until then no saver may have it.
    copying: Transfers | None = None
    # The order as it is sent, made while the state was on its way; empty: it is not the order any more.
    order_bytes: bytes = b""
    fingerprints: Fingerprints = field(default_factory=dict)  # of its storages on devices, as they were copied

    def again(self) -> None:
        """Prepare the save for another saver."""
        # Kept over all tries: a rename that was allowed once may have been done, whatever later savers say.
        self.maybe_published |= self.granted
        self.sent = self.granted = False

    def saved(self, info: CheckpointInfo) -> CheckpointInfo:
        """Return the saver's result with the times that only the trainer knows."""
        if info.counters is None:
            return info
        queued_s = max(0.0, self.taken_at - self.asked_at)
        return replace(info, counters=replace(info.counters, copied_s=self.copied_s, queued_s=queued_s))


def failed(save: Save, reason: str) -> CheckpointInfo | CkstoreError:
    """Return the result of a save whose last saver has died."""
    if save.committed is not None:
        return with_warning(save.committed, reason)
    # Not "failed": the checkpoint may be there, and a caller that saves again must know it.
    if save.granted or save.maybe_published:
        return _unknown(save, f"{reason}; the saver before it also failed")
    msg = f"the save of {save.pending.name} failed: {reason}; the saver before it also failed"
    return SaveFailed(msg, hint="save() needs no other process; dmesg says whether the kernel ran out of memory")


def given_up(save: Save, reason: str) -> CheckpointInfo | CkstoreError:
    """Return the result of a save whose saver is stuck."""
    pending = save.pending
    if save.committed is not None:
        return with_warning(save.committed, reason)
    # The kill may come too late: the kernel finishes a rename that it has begun when the disk answers.
    if save.granted or save.maybe_published:
        return _unknown(save, reason)
    return SaveAbandoned(f"{reason}; the save of {pending.name}, which was {pending.state}, is abandoned", hint=_NEXT)


def refused(save: Save, error: CkstoreError) -> CheckpointInfo | CkstoreError:
    """Return the result of a save that a saver could not continue."""
    if save.committed is not None:
        return with_warning(save.committed, error.message)
    # If the step, or the run, is taken by something else, the saver before this one has not published there.
    if save.maybe_published and not isinstance(error, StepExists | RunInUse):
        return _unknown(save, error.message)
    return error


def _unknown(save: Save, reason: str) -> UnknownOutcome:
    name = save.pending.name
    msg = f"{reason}; a saver was publishing {name}, so it may or may not exist when the storage answers again"
    return UnknownOutcome(msg, hint=_NEXT)


def with_warning(info: CheckpointInfo, reason: str) -> CheckpointInfo:
    """Return the checkpoint with a warning about unfinished steps."""
    note = f"{info.name} is saved, but its tags and retention may not have been applied: {reason}"
    return replace(info, catalogued=False, warnings=(*info.warnings, note))


def heard_of(process: SaverProcess, save: Save, message: Message) -> CheckpointInfo | CkstoreError | None:
    """Record a message and answer it. Return the result of the save once it has ended."""
    if isinstance(message, Taken):
        save.taken_at = save.taken_at or time.monotonic()
        save.pending.note("staged")
    elif isinstance(message, Status):
        if message.state == "waiting":  # before another try, which asks again
            save.granted = False
            save.pending.revoke()
        # The saver says "committing" before it asks; the caller sees it once the answer was yes.
        if message.state != "committing" or save.granted:
            save.pending.note(message.state, message.done_bytes)
    elif isinstance(message, Publishing):
        save.granted = save.pending.grant(message.step)
        if save.granted:
            # A saver after this one tries the same step first: there it finds what was perhaps published.
            save.order, save.order_bytes = replace(save.order, tried_step=message.step), b""
        if not process.send(Answer(save.order.number, save.granted)):
            process.kill()  # its socket is full, so it does not listen
    elif isinstance(message, Committed):
        save.committed = message.info
        save.pending.note("durable")
    elif isinstance(message, Done):
        return save.saved(message.info)
    elif isinstance(message, Failed):
        return refused(save, message.error)
    return None
