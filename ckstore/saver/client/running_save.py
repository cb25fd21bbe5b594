"""Keep the progress of a pending save, and decide its result if its saver has died or is stuck."""

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
    """A pending save. A saver begins a save when all earlier saves have ended, so only the first can have begun."""

    order: Order  # the order to the saver
    snapshot: Snapshot  # the memory with the bytes of the state
    pending: PendingSave  # the save as its caller sees it
    tries: int = 0  # the number of savers that died while this save was the first one
    sent: bool = False  # whether the current saver has the order
    granted: bool = False  # whether the current saver may publish the save
    maybe_published: bool = False  # whether a dead saver may have published the save without reporting it
    committed: CheckpointInfo | None = None  # the published checkpoint, as soon as it is known
    copied_s: float = 0.0  # seconds that the call took to copy the state
    # The time at which the save was queued, and the time at which a saver first received it, from `time.monotonic`.
    asked_at: float = field(default_factory=time.monotonic)
    taken_at: float = 0.0
    # Copies from devices to the snapshot that are still running. Until they end, the order is not sent.
    copying: Transfers | None = None
    # The encoded order, prepared while the state was copied. Empty if it was not prepared, or if the order has changed.
    order_bytes: bytes = b""
    # The fingerprints of the storages on devices, at the time of the copy.
    fingerprints: Fingerprints = field(default_factory=dict)

    def again(self) -> None:
        """Prepare the save for another saver."""
        # This attribute remains set for all later savers: a rename that was allowed once may have happened, regardless
        # of what later savers report.
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
    # The save is not reported as failed: the checkpoint may exist, and a caller that saves again must know this.
    if save.granted or save.maybe_published:
        return _unknown(save, f"{reason}; the saver before it also failed")
    msg = f"the save of {save.pending.name} failed: {reason}; the saver before it also failed"
    return SaveFailed(msg, hint="save() needs no other process; dmesg says whether the kernel ran out of memory")


def given_up(save: Save, reason: str) -> CheckpointInfo | CkstoreError:
    """Return the result of a save whose saver is stuck."""
    pending = save.pending
    if save.committed is not None:
        return with_warning(save.committed, reason)
    # The kill may be too late: if a rename has begun, the kernel finishes it as soon as the disk responds.
    if save.granted or save.maybe_published:
        return _unknown(save, reason)
    return SaveAbandoned(f"{reason}; the save of {pending.name}, which was {pending.state}, is abandoned", hint=_NEXT)


def refused(save: Save, error: CkstoreError) -> CheckpointInfo | CkstoreError:
    """Return the result of a save that a saver could not continue."""
    if save.committed is not None:
        return with_warning(save.committed, error.message)
    # If another checkpoint has the step, or another training has the run, the previous saver has not published.
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
        if message.state == "waiting":  # the saver pauses before another try, and then asks for permission again
            save.granted = False
            save.pending.revoke()
        # The saver reports "committing" before it asks for permission. The caller sees this state only after the
        # permission was given.
        if message.state != "committing" or save.granted:
            save.pending.note(message.state, message.done_bytes)
    elif isinstance(message, Publishing):
        save.granted = save.pending.grant(message.step)
        if save.granted:
            # A later saver tries the same step first, and finds the checkpoint if this saver has published it.
            save.order, save.order_bytes = replace(save.order, tried_step=message.step), b""
        if not process.send(Answer(save.order.number, save.granted)):
            process.kill()  # its socket is full, so it does not read messages
    elif isinstance(message, Committed):
        save.committed = message.info
        save.pending.note("durable")
    elif isinstance(message, Done):
        return save.saved(message.info)
    elif isinstance(message, Failed):
        return refused(save, message.error)
    return None
