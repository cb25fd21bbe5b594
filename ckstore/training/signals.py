"""A flag that a signal sets, so that the training loop saves once more and ends."""

from __future__ import annotations

import math
import signal

from ckstore.errors import BadInput
from ckstore.model.document import shown
from ckstore.ops.pace import process_ends_in

_came: set[int] = set()
"""The signals that have come; changed by a handler, which may run between any two steps of the program."""
_GRACE_S = 20.0
"""Slurm, Docker and Kubernetes kill a process 30 s after SIGTERM, by default."""


def should_stop() -> bool:
    """Whether a signal of `stop_on_signals` has come since that was called."""
    return bool(_came)


def stop_on_signals(*signals: int, grace_s: float = _GRACE_S) -> None:
    """Have these signals, or SIGTERM, do nothing but let `should_stop` say so, instead of what they did.

    The save at the end has more patience: after a failure of the storage that can pass, or on a full disk, a save of
    this process is tried again until `grace_s` after the signal, and no longer, unless it has `try_for_s`.

    Args:
        signals: Their numbers.
        grace_s: How many seconds after the signal the process is not killed yet, less what it needs for other things.

    Raises:
        BadInput: This is not the main thread, a signal cannot be handled, or `grace_s` is no number of seconds.
    """
    given: object = grace_s
    if isinstance(given, bool) or not isinstance(given, int | float) or not given >= 0:
        raise BadInput(f"grace_s must be a number of seconds, got {shown(grace_s)}")

    def stop(number: int, _frame: object) -> None:
        if not _came:  # a second signal gives no more time
            process_ends_in(grace_s)
        _came.add(number)

    _came.clear()
    process_ends_in(math.inf)
    for number in signals or (signal.SIGTERM,):
        try:
            signal.signal(number, stop)
        except (ValueError, OSError) as error:
            msg = f"the signal {number} cannot be handled: {error}"
            raise BadInput(msg, hint="call stop_on_signals in the main thread") from error
