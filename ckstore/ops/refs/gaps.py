"""Gaps: places that are empty for a moment, since a filesystem without an exchange of names replaces in two steps.

A reader that meets one completes it if no living process has it open, else waits for it, at most `DEADLINE_S`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ckstore.errors import CkstoreError
from ckstore.objects.shared import two_renames
from ckstore.ops.os_errors import describe_os_error

if TYPE_CHECKING:
    from ckstore.objects.shared.grace import Grace
    from ckstore.objects.shared.two_renames import Gap
    from ckstore.ops.context import Context

DEADLINE_S = 10.0
_PAUSE_S = 0.005


def settle(context: Context) -> None:
    """Wait until no place is empty because of a replacement, and complete those that no living process has open.

    What cannot be completed, or is still open after the deadline, is told in `Context.problems` and waited for no more.
    """
    waiting = _untold(context)
    deadline = time.monotonic() + DEADLINE_S
    while waiting:
        if _may_fill(context):
            _fill(context, waiting)
        known = {gap.old.name for gap in waiting}
        waiting = [gap for gap in _untold(context) if gap.old.name in known]
        if time.monotonic() > deadline:
            for gap in waiting:
                context.problems[gap.old.name] = _stopped(context, gap)
            return
        if waiting:
            time.sleep(_PAUSE_S)


def _untold(context: Context) -> list[Gap]:
    return [gap for gap in two_renames.gaps(context.layout) if gap.old.name not in context.problems]


def _stopped(context: Context, gap: Gap) -> str:
    run, step = gap.key
    completes = "opening the store for writing completes it"
    if context.shared:
        completes = "saving that step again completes it, and so does gc after the grace (config.grace_s)"
    return (
        f"{run}@{step} is not there, since a save that replaces it stopped in the middle: the old one is {gap.old}; "
        f"{completes}"
    )


def fill_dead(context: Context, grace: Grace | None = None) -> None:
    """Complete every gap that no living process has open, as far as that works now.

    With a grace, where other hosts may be at work, only those for which it is over.
    """
    _fill(context, [gap for gap in two_renames.gaps(context.layout) if grace is None or grace.is_over(gap.old)])


def _may_fill(context: Context) -> bool:
    """Whether this process sees the locks of all who may be replacing, and may write."""
    return not (context.readonly or context.shared or context.writes_disabled_because)


def _fill(context: Context, gaps: list[Gap]) -> None:
    for gap in gaps:
        try:
            two_renames.try_complete(context.layout, gap)
        except (CkstoreError, OSError) as error:
            why = describe_os_error(error) if isinstance(error, OSError) else error.message
            context.problems[gap.old.name] = f"the replacement of {gap.key[0]}@{gap.key[1]} was not completed: {why}"
