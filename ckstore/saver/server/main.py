"""The process of the saver. It carries out one order after another, until the trainer closes its side or ends.

An end of file means that the trainer has ended. Orders that are already in the socket are still carried out.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import cast

from ckstore.errors import CkstoreError, SaveFailed, StepExists, UnknownOutcome
from ckstore.fs.dirfd_stat import NotInStore
from ckstore.fs.mapping import map_shared
from ckstore.model.manifest.captured import ByteSource, BytesSource
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.saver.messages import Close, Done, Failed, Open, Order, Started, Taken
from ckstore.objects.publish import IfExists
from ckstore.ops.api_calls import describe_os_error, unsafe
from ckstore.ops.context import Context, another_store
from ckstore.ops.save.continuation import named_parent
from ckstore.ops.save.save import Request, save_captured
from ckstore.saver.helper_processes import COMPACTION
from ckstore.saver.server.reused_storages import manifest_of, recorded_sources
from ckstore.saver.server.status_page import Inbox, Reporter


def main(fd: int | str) -> None:
    """Serve the trainer at the other end of a socket. Return when no work is left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # these signals end the trainer, and so this process
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=int(fd)) as sock, Inbox(sock) as inbox:
        got = inbox.next()
        if got is None or not isinstance(got[0], Open):
            return
        opening = got[0]
        with Reporter(inbox, opening.path) as reporter:
            serve(inbox, opening, reporter)


def serve(inbox: Inbox, opening: Open, reporter: Reporter) -> None:
    """Open the store and carry out the orders."""
    with suppress(OSError):  # if a sandbox forbids this call, the training becomes only a little slower
        # The threads of a save wake up after each fsync. Without batch scheduling, they would take a core from the
        # training each time.
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    if opening.nice:
        os.nice(opening.nice)  # the priority of reads and writes depends on it
    try:
        context = _open(opening, reporter)
    except CkstoreError as error:
        # Number 0 stands for all orders, because no order can be carried out without the store.
        reporter.say(Failed(0, error))
        return
    reporter.say(Started())
    while True:
        reporter.at(0, "idle")
        got = inbox.next()
        # `next` first returns all orders that were in the socket before the end, so no order is lost.
        if got is None or isinstance(got[0], Close):
            break
        message, descriptors = got
        if not isinstance(message, Order) or not _serve_one(context, message, descriptors, reporter):
            break
        # Free the objects that refer to the snapshot, so that it is unmapped: the trainer may have replaced it.
        gc.collect()
    reporter.at(0, "closing")


def _open(opening: Open, reporter: Reporter) -> Context:
    from ckstore.ops.open.opening import open_context

    catalog_path = None if opening.catalog_path is None else Path(opening.catalog_path)
    try:
        context, notes = open_context(
            Path(opening.path), readonly=False, recover=True, catalog_path=catalog_path, subscribers=[COMPACTION]
        )
    except (OSError, MemoryError) as error:
        raise _as_error(error, "opening the store") from error
    if context.settings.uuid != opening.uuid:
        raise another_store(context.layout, context.settings.uuid, opening.uuid)
    context.watch = reporter
    context.trainer_pid = os.getppid()
    for module in opening.attached:
        import_module(module).attach(context)
    for note in notes:
        print(note, file=sys.stderr)  # noqa: T201 - the trainer quotes the end of this output if the saver dies
    return context


def _serve_one(context: Context, order: Order, descriptors: list[int], reporter: Reporter) -> bool:
    """Carry out one order. Return False if the store must be opened again before the next order."""
    try:
        reporter.begin(order)
        reporter.say(Taken(order.number))
        reporter.at(order.number, "staging")
        info = carry_out(context, order, descriptors[0])
    except CkstoreError as error:
        reporter.say(Failed(order.number, error))
        # This process does not know the state of the disk. The next saver opens the store again and examines it.
        return not isinstance(error, UnknownOutcome)
    except (OSError, MemoryError) as error:
        reporter.say(Failed(order.number, _as_error(error, f"saving {order.run}@{order.step}")))
        # After a MemoryError, this process may be in any state, so another process must carry out the next order.
        return isinstance(error, OSError)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    reporter.say(Done(order.number, info))
    return True


def _as_error(error: OSError | MemoryError, act_name: str) -> CkstoreError:
    if isinstance(error, NotInStore):
        return unsafe(f"{act_name} failed", error)
    reason = describe_os_error(error) if isinstance(error, OSError) else "not enough memory"
    return SaveFailed(f"{act_name} failed in the saver: {reason}", hint="see the cause; the next save tries again")


def carry_out(context: Context, order: Order, snapshot: int) -> CheckpointInfo:
    """Save the state that the snapshot contains, and return the checkpoint."""
    context.check_is_same_store()
    # Update this before the lookup of the parent: the trainer may have loaded another checkpoint since the last order.
    context.known.last_parents.update(order.last_parents)
    about, parent = order.about, named_parent(context, order.parent or order.about.parent, must_be=bool(order.parent))
    if parent is not None:
        about = replace(about, parent=parent.id)
    is_tried_again = order.step is None and order.tried_step is not None
    request = Request(
        run=order.run,
        # The previous saver may have published this save at `tried_step`. If so, the save finds the same content at
        # this step, and succeeds.
        step=order.step if order.tried_step is None else order.tried_step,
        about=about,
        tags=order.tags,
        # If the step that the previous saver chose has other content, this content belongs to another process. It is
        # neither replaced nor returned as the result.
        if_exists="error" if is_tried_again else cast("IfExists", order.if_exists),
        patience=order.patience,
        parent=parent,
        if_run_in_use=order.if_run_in_use,
    )
    captured = replace(order.captured, sources=_sources(context, order, snapshot))
    try:
        return save_captured(context, captured, request, lambda error: is_tried_again and isinstance(error, StepExists))
    except StepExists:
        if not is_tried_again:
            raise
    # Another process has published at this step, so the previous saver has not.
    return save_captured(context, captured, replace(request, step=None))


def _sources(context: Context, order: Order, snapshot: int) -> tuple[ByteSource, ...]:
    """Return the source of the bytes of each storage: the snapshot, or an earlier checkpoint."""
    kept = order.kept
    samples = () if kept is None else kept.samples
    ends = [place.offset + place.nbytes for place in order.places if place.offset >= 0]
    # Only the part with the state is mapped, because a snapshot that is kept from an earlier save may be larger.
    end = max((*ends, *(sample.offset + sample.nbytes for sample in samples)), default=0)
    # The memory is unmapped when no object refers to it any more: a thread of a failed save may still be reading it.
    whole = map_shared(snapshot, end, writable=False) if end else memoryview(b"")
    sources: dict[int, ByteSource] = {
        index: BytesSource(place.name, whole[place.offset : place.offset + place.nbytes])
        for index, place in enumerate(order.places)
        if place.offset >= 0
    }
    if kept is not None:
        in_hand: dict[int, dict[int, memoryview]] = {}
        for sample in samples:
            data = whole[sample.offset : sample.offset + sample.nbytes]
            in_hand.setdefault(sample.storage, {})[sample.start] = data
        manifest = manifest_of(context, order.run, kept.step, kept.id)
        sources |= recorded_sources(manifest, order, kept, in_hand)
    return tuple(sources[index] for index in range(len(order.places)))
