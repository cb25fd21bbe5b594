"""The rules that decide which failures of a save may be temporary, and how the save is retried, without I/O."""

from __future__ import annotations

import errno
import math
from dataclasses import dataclass, field, replace
from typing import Literal

from ckstore.errors import BadInput
from ckstore.model.document import shown

OnFailure = Literal["raise", "warn"]
"""Whether a failed save raises its error, or only warns so that the training continues."""
Failure = Literal["storage", "space", "no room"]
"""A failure that may be temporary: the storage returned an error, was full during a save, or was full before it."""

RETRIES_MOST = 1000
PATIENCE_MOST_S = 30 * 86400.0
_FIRST_PAUSE_S = 0.25
_PAUSE_TIMES = 4.0
_PAUSE_MOST_S = 30.0
# Errors of a disk, a server or a network that may disappear soon. Errors that only a person can correct are excluded,
# such as EACCES, EPERM, EROFS and ENAMETOOLONG.
PASSING = frozenset(
    (
        errno.EIO,
        errno.EREMOTEIO,
        errno.ESTALE,
        errno.ETIMEDOUT,
        errno.EAGAIN,
        errno.EBUSY,
        errno.ENOBUFS,
        errno.ENOTCONN,
        errno.ESHUTDOWN,
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETUNREACH,
    )
)


@dataclass(frozen=True, slots=True)
class SavePatience:
    """How often and how long a save is retried."""

    retries: int = 2  # number of retries after failures of the storage
    wait_for_space_s: float = 0.0  # how long to wait for space on a full disk
    # If not None, retry until this many seconds after the start of the save, and ignore the other two limits.
    try_for_s: float | None = None


@dataclass(frozen=True, slots=True)
class AskedPatience:
    """The retry limits that a caller requests.

    A value of None for `retries` or `wait_for_space_s` means that the value in the settings is used.
    """

    retries: int | None = None
    wait_for_space_s: float | None = None
    try_for_s: float | None = None

    def check(self) -> None:
        """Raise an error if a value is invalid."""
        if self.retries is not None and (type(self.retries) is not int or not 0 <= self.retries <= RETRIES_MOST):
            raise BadInput(f"retries must be a whole number from 0 to {RETRIES_MOST}, got {shown(self.retries)}")
        for name in ("wait_for_space_s", "try_for_s"):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (is_number and 0 <= value <= PATIENCE_MOST_S):
                raise BadInput(f"{name} must be seconds from 0 to {PATIENCE_MOST_S:.0f}, got {shown(value)}")

    def until(self, left_s: float) -> AskedPatience:
        """Return the retry limits of a process that will be killed in `left_s` seconds (`math.inf` if it will not)."""
        if left_s == math.inf or self.try_for_s is not None:
            return self
        return replace(self, try_for_s=max(0.0, left_s))

    def over(self, settings: SavePatience) -> SavePatience:
        """Return the retry limits of the save; `try_for_s` is never taken from the settings."""
        return SavePatience(
            settings.retries if self.retries is None else self.retries,
            settings.wait_for_space_s if self.wait_for_space_s is None else self.wait_for_space_s,
            self.try_for_s,
        )


AS_SET = AskedPatience()
"""The retry limits of a caller that takes all values from the settings."""


def check_on_failure(on_failure: object) -> None:
    """Raise an error if a value is not an `OnFailure`."""
    if on_failure not in ("raise", "warn"):
        raise BadInput(f"on_failure must be 'raise' or 'warn', got {shown(on_failure)}")


@dataclass(slots=True)
class Tries:
    """The attempts of one save, with times from one monotonic clock."""

    began_s: float
    count: int = 0  # number of failed attempts that were followed by another attempt
    _counted: int = field(default=0, init=False)  # the part of `count` that `retries` limits
    _full_since_s: float | None = field(default=None, init=False)

    def pause_s(self, failure: Failure, patience: SavePatience, now_s: float, end_s: float = math.inf) -> float | None:
        """Return the seconds to pause before another attempt, or None if `patience` or `end_s` does not allow it."""
        left_s, counts = self._left_s(failure, patience, now_s)
        left_s = min(left_s, end_s - now_s)
        if left_s <= 0:
            return None
        self.count += 1
        self._counted += counts
        # If the pause would be longer than the remaining time, make one last attempt at the end of this time.
        return min(_FIRST_PAUSE_S * _PAUSE_TIMES ** min(self.count - 1, 10), _PAUSE_MOST_S, left_s)

    def _left_s(self, failure: Failure, patience: SavePatience, now_s: float) -> tuple[float, bool]:
        """Return the remaining time for attempts in seconds, and whether `retries` limits the next attempt."""
        if patience.try_for_s is not None:
            return self.began_s + patience.try_for_s - now_s, False
        if failure != "storage":
            self._full_since_s = now_s if self._full_since_s is None else self._full_since_s
            left_s = self._full_since_s + patience.wait_for_space_s - now_s
            # If a check before the save found too little space, only waiting can help.
            if left_s > 0 or failure == "no room":
                return left_s, False
        return (math.inf if self._counted < patience.retries else 0.0), True
