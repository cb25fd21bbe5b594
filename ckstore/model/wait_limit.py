"""Limit a timeout of a caller to the longest wait that Python's locks accept."""

from __future__ import annotations

import threading

from ckstore.errors import BadInput
from ckstore.model.document import shown


def wait_limit_s(timeout_s: object) -> float | None:
    """Return a timeout as a lock accepts it: at most `threading.TIMEOUT_MAX`, which is about 292 years.

    Raises:
        BadInput: The timeout is neither None nor a number.
    """
    # A longer wait, such as `math.inf`, would raise an `OverflowError`. With NaN, `wait_for` would never end.
    if timeout_s is None:
        return None
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or timeout_s != timeout_s:  # noqa: PLR0124
        raise BadInput(f"the timeout must be a number of seconds or None, got {shown(timeout_s)}")
    return min(timeout_s, threading.TIMEOUT_MAX)
