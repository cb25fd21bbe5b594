"""A flag that a signal sets, so that the training loop saves once more and ends."""

from __future__ import annotations

import signal

from ckstore.errors import BadInput

_came: set[int] = set()
"""The signals that have come; changed by a handler, which may run between any two steps of the program."""


def should_stop() -> bool:
    """Whether a signal of `stop_on_signals` has come since that was called."""
    return bool(_came)


def stop_on_signals(*signals: int) -> None:
    """Have these signals, or SIGTERM, do nothing but let `should_stop` say so, instead of what they did.

    Raises:
        BadInput: This is not the main thread, or a signal cannot be handled.
    """

    def stop(number: int, _frame: object) -> None:
        _came.add(number)

    _came.clear()
    for number in signals or (signal.SIGTERM,):
        try:
            signal.signal(number, stop)
        except (ValueError, OSError) as error:
            msg = f"the signal {number} cannot be handled: {error}"
            raise BadInput(msg, hint="call stop_on_signals in the main thread") from error
