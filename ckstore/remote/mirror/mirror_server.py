"""The mirror process. It pushes checkpoints that the mirror lacks, and ends some time after the last push.

Like a saver, the process is detached from the training and outlives it. It retries failed pushes for a day after the
last success. After SIGTERM, it pushes for some more seconds, and then ends.
"""

from __future__ import annotations

import random
import time
from contextlib import suppress
from functools import partial

from ckstore.errors import CkstoreError, RemoteDenied
from ckstore.fs import dirfd_stat
from ckstore.ops.api_calls import describe_error
from ckstore.ops.context import Context
from ckstore.ops.events import journal_stamp
from ckstore.ops.mirror_record import note_problem
from ckstore.remote.mirror.mirror_process import has_successor, lock_mirror
from ckstore.remote.mirror.mirror_step import Mirror
from ckstore.saver.server.ending import Ending
from ckstore.saver.server.helper_begin import begin
from ckstore.saver.server.status_page import StatusPage

# How long the process waits for more work. If it ended sooner, each save would start a process, which takes half a
# second of processor time.
_LINGER_S = 60.0
# How long failed pushes are retried, which is longer than most outages of a service. After that, a save or an opening
# for writing starts another process.
_PATIENCE_S = 86_400.0
_LOOK_S = 0.5
# The first and the longest pause between two attempts. An overloaded service must not receive attempts more often. Five
# minutes are half of the default of `mirror_age_s`.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 300.0


def main(about: str) -> None:
    """Mirror the store that `about` names, until no work is left."""
    ending = Ending()
    context = begin(about, ending)
    with StatusPage(str(context.layout.path)) as page:
        mirror = Mirror(context, partial(page.begin, state="mirroring"), partial(page.at, "mirroring"))
        serve(context, mirror, page, ending=ending)


def serve(
    context: Context,
    mirror: Mirror,
    page: StatusPage,
    *,
    linger_s: float = _LINGER_S,
    patience_s: float = _PATIENCE_S,
    ending: Ending | None = None,
) -> None:
    """Push until the mirror has been complete for a while, the store has no mirror, or another process takes over.

    The function also ends if no push has succeeded for `patience_s`, or if a signal requests that the process ends.
    """
    ending = ending or Ending()
    pause_s = _FIRST_PAUSE_S
    has_failed = False
    done_at = time.monotonic()
    while _is_there(context):
        lock = lock_mirror(context)
        if lock is not None:
            with lock:
                pushed, failed = _push_all(context, mirror, page, ending, linger_s=linger_s, patience_s=patience_s)
            if not failed:
                # A save or a tag since the last check may have found the lock taken. It then relies on this process.
                if not _is_there(context) or not mirror.has_work():
                    return
                continue
            if pushed:
                pause_s, done_at = _FIRST_PAUSE_S, time.monotonic()
        elif not has_failed:  # another process is mirroring
            return
        has_failed = True
        if time.monotonic() - done_at >= patience_s:
            return
        # The process pauses without the lock, so that a training that restarts with other credentials can start another
        # process. After the pause, the lock may belong to an older process that fails, or to a save that only tests the
        # lock. So this process ends only if there is a newer one. The length of the pause is random, so that machines
        # that lost the same service do not all retry at the same moment.
        with ending.waiting():
            time.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        if has_successor(context):
            return


def _push_all(
    context: Context, mirror: Mirror, page: StatusPage, ending: Ending, *, linger_s: float, patience_s: float
) -> tuple[bool, bool]:
    """Push until nothing has been missing for `linger_s`, or the mirror refuses.

    If the push of one checkpoint fails, for example because the checkpoint is damaged locally, other pushes and the
    policies continue. The failed push is retried at growing intervals, for `patience_s` after the last success.

    Returns:
        Whether anything was pushed, and whether the mirror refused.
    """
    pushed = False
    done_at = time.monotonic()
    retry_s, retry_at = _FIRST_PAUSE_S, 0.0
    while _is_there(context) and mirror.name is not None:
        stamp = journal_stamp(context.layout)
        try:
            if mirror.step():
                pushed, done_at = True, time.monotonic()
                continue
            mirror.tidy()
            problem = mirror.problem
            _tell(context, mirror, problem)
        except (CkstoreError, OSError) as error:
            _tell(context, mirror, error)
            page.at("waiting")
            return pushed, True
        page.at("idle" if problem is None else "waiting")
        now = time.monotonic()
        until = done_at + (linger_s if problem is None else patience_s)
        if now >= until:
            break
        if problem is not None and now >= retry_at:
            retry_at, retry_s = now + retry_s, min(2 * retry_s, _LONGEST_PAUSE_S)
        with ending.waiting():
            wake_at = until if problem is None else min(until, retry_at)
            # New work changes the size of the journal, and this check costs less than listing the checkpoints.
            while time.monotonic() < wake_at and _is_there(context) and journal_stamp(context.layout) == stamp:
                time.sleep(_LOOK_S)
        if problem is not None and time.monotonic() >= retry_at:
            mirror.try_again()
    return pushed, False


def _is_there(context: Context) -> bool:
    return dirfd_stat.exists(context.layout.settings)


def _tell(context: Context, mirror: Mirror, error: CkstoreError | OSError | None) -> None:
    """Record the failure or the success of an attempt for `doctor` and other readers, if possible."""
    with suppress(CkstoreError, OSError):
        why = "" if error is None else describe_error(error)
        note_problem(context.layout, mirror.name or "", why, is_refused=isinstance(error, RemoteDenied))
