"""A flag that a signal sets, so that the training loop saves a last time and ends."""

from __future__ import annotations

import math
import signal

from ckstore.errors import BadInput
from ckstore.model.document import shown
from ckstore.ops.pace import process_ends_in

_came: set[int] = set()
"""The received signals. A handler changes this set, and may run between any two instructions of the program."""
_GRACE_S = 20.0
"""By default, Slurm and Kubernetes kill a process 30 s after SIGTERM. Docker does so after 10 s, so pass less then."""


def should_stop() -> bool:
    """Whether the process has received one of the signals since `stop_on_signals` was called."""
    return bool(_came)


def stop_on_signals(*signals: int, grace_s: float = _GRACE_S) -> None:
    """Set the flag that `should_stop` returns when one of these signals, by default SIGTERM, arrives.

    After the signal, a save of this process that fails for a transient reason or on a full disk is retried until
    `grace_s` seconds have passed. A save with its own `try_for_s` is retried for that time instead.

    Args:
        signals: The numbers of the signals. Without an argument, SIGTERM.
        grace_s: How many seconds after the signal saves may continue. Subtract the time that the process needs for
            other work from the time until it is killed.

    Raises:
        BadInput: This is not the main thread, a signal cannot be handled, or `grace_s` is not a number of seconds.
    """
    given: object = grace_s
    if isinstance(given, bool) or not isinstance(given, int | float) or not given >= 0:
        raise BadInput(f"grace_s must be a number of seconds, got {shown(grace_s)}")

    def stop(number: int, _frame: object) -> None:
        if not _came:  # a second signal does not extend the time
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
