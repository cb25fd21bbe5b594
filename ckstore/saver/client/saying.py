"""What a saver says of a save, and what it means for that."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from ckstore.model.saver.messages import Answer, Committed, Done, Failed, Message, Publishing, Status, Taken
from ckstore.saver.client.save import refused

if TYPE_CHECKING:
    from ckstore.errors import CkstoreError
    from ckstore.model.manifest.info import CheckpointInfo
    from ckstore.saver.client.process import SaverProcess
    from ckstore.saver.client.save import Save


def heard_of(process: SaverProcess, save: Save, message: Message) -> CheckpointInfo | CkstoreError | None:
    """Note what was said, and answer; return what became of the save once it has ended."""
    if isinstance(message, Taken):
        # The first saver's time: the second one is part of the save, not of the queue.
        save.taken_at = save.taken_at or time.monotonic()
        save.pending.note("staged")
    elif isinstance(message, Status):
        # The saver says "committing" before it asks; the caller sees it once the answer was yes.
        if message.state != "committing" or save.granted:
            save.pending.note(message.state, message.done_bytes)
    elif isinstance(message, Publishing):
        _answer(process, save, message)
    elif isinstance(message, Committed):
        save.committed = message.info
        save.pending.note("durable")
    elif isinstance(message, Done):
        return save.saved(message.info)
    elif isinstance(message, Failed):
        return refused(save, message.error)
    return None


def _answer(process: SaverProcess, save: Save, question: Publishing) -> None:
    save.granted = save.pending.grant(question.step)
    if save.granted:
        # A saver after this one tries the same step first: there it finds what was perhaps published.
        save.order = replace(save.order, tried_step=question.step)
    if not process.send(Answer(save.order.number, save.granted)):
        process.kill()  # its socket is full, so it does not listen
