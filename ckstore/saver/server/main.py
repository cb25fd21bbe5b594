"""The process of the saver: one order after another, until the trainer closes its side or is gone.

An end of file is the trainer's death, or its end: orders that lie in the socket by then are carried out anyway.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckstore.errors import CkstoreError, SaveFailed, UnknownOutcome
from ckstore.fs.inside import NotInStore
from ckstore.model.saver.messages import Close, Done, Failed, Open, Order, Started, Taken
from ckstore.ops.os_errors import describe_os_error, unsafe
from ckstore.saver import compactor, mirror
from ckstore.saver.server.inbox import Inbox
from ckstore.saver.server.job import carry_out
from ckstore.saver.server.report import Reporter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ckstore.model.manifest.info import CheckpointInfo
    from ckstore.model.reports.evict_report import EvictReport
    from ckstore.ops.context import Context


def main(fd: int | str) -> None:
    """Serve the trainer at the other end of a socket; return when nothing is left to do."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # these end the trainer, and thereby this process
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=int(fd)) as sock, Inbox(sock) as inbox:
        got = inbox.next()
        if got is None or not isinstance(got[0], Open):
            return
        opening = got[0]
        with Reporter(inbox, opening.path) as reporter:
            serve(inbox, opening, reporter)


def serve(inbox: Inbox, opening: Open, reporter: Reporter) -> None:
    """Open the store and carry out what is asked for."""
    with suppress(OSError):  # forbidden in a sandbox: the save is the same, the trainer's step a little slower
        # The threads of a save wake up after each fsync, and would each time take the core from a step of training.
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    if opening.nice:
        os.nice(opening.nice)  # the priority of reads and writes follows
    try:
        context = _open(opening, reporter)
    except CkstoreError as error:
        # Number 0 stands for all orders: without the store none can be carried out.
        reporter.say(Failed(0, error))
        return
    reporter.say(Started())
    while True:
        reporter.at(0, "idle")
        got = inbox.next()
        # Orders that lay in the socket before the end were handed out first, so none is lost.
        if got is None or isinstance(got[0], Close):
            break
        message, descriptors = got
        if not isinstance(message, Order) or not _serve_one(context, message, descriptors, reporter):
            break
        gc.collect()  # what looks at the snapshot goes, and with it the mapping: the trainer may have replaced it
    reporter.at(0, "closing")


def _open(opening: Open, reporter: Reporter) -> Context:
    from ckstore.ops.open.opening import open_context

    catalog_path = None if opening.catalog_path is None else Path(opening.catalog_path)
    try:
        context, notes = open_context(Path(opening.path), readonly=False, recover=True, catalog_path=catalog_path)
    except (OSError, MemoryError) as error:
        raise _as_error(error, "opening the store") from error
    context.watch = reporter
    context.saved = partial(_saved, context, catalog_path)
    context.evict = partial(_evict, context)
    for note in notes:
        print(note, file=sys.stderr)  # noqa: T201 - the trainer has it as the last lines of its saver
    return context


def _evict(context: Context, infos: Sequence[CheckpointInfo]) -> EvictReport:
    from ckstore.remote.elsewhere.keep_local import evict_mirrored

    return evict_mirrored(context, infos)


def _saved(context: Context, catalog_path: Path | None, _: Callable[[], Mapping[str, Any]]) -> None:
    mirror.wake(context, catalog_path)
    compactor.wake(context, catalog_path)


def _serve_one(context: Context, order: Order, descriptors: list[int], reporter: Reporter) -> bool:
    """Carry out one order; False if the store must be opened again before the next."""
    try:
        reporter.begin(order)
        reporter.say(Taken(order.number))
        reporter.at(order.number, "staging")
        info = carry_out(context, order, descriptors[0])
    except CkstoreError as error:
        reporter.say(Failed(order.number, error))
        # This process does not know the state of the disk: the next saver opens the store again, and looks.
        return not isinstance(error, UnknownOutcome)
    except (OSError, MemoryError) as error:
        reporter.say(Failed(order.number, _as_error(error, f"saving {order.run}@{order.step}")))
        # After a MemoryError this process may be in any state, so the next order goes to a fresh one.
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
