"""Convert times in the format of the store, and durations that users write, without reading a clock."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

from ckstore.errors import BadInput
from ckstore.model.document import shown

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(s|m|h|d|w)\Z")
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_MOST_S = 100 * 365 * 86_400
_WITH_UNIT = "a number with s, m, h, d or w such as '36h' or '7d'"


def duration_s(value: object, what: str) -> float:
    """Return a duration in seconds.

    Args:
        value: A number of seconds, a timedelta, or a text with a number and one of s, m (minutes), h, d, w.
        what: The name of the argument, for messages.
    """
    if isinstance(value, str):
        match = _DURATION.match(value)
        seconds = float(match[1]) * _UNIT_S[match[2]] if match else math.nan
    elif isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value) if abs(value) <= _MOST_S else math.nan
    else:
        seconds = math.nan
    if not 0 < seconds <= _MOST_S:
        # A text without a unit is refused, because a user may mean hours or days.
        wanted = _WITH_UNIT if isinstance(value, str) else f"seconds, or {_WITH_UNIT}"
        raise BadInput(f"{what}: wanted {wanted}, above 0 and at most 100 years, got {shown(value)}")
    return seconds


def seconds_text(seconds: float) -> str:
    """Return a duration as text for users, with two significant digits if it is below a second."""
    return f"{seconds:.1f} s" if seconds >= 1 else f"{round(seconds, 3):.2g} s"


def text_of_time(time: datetime) -> str:
    """Return a time with a zone as ``YYYY-MM-DDTHH:MM:SS.ffffffZ``, in UTC."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")


def time_of_text(text: str) -> datetime:
    """Return the time in a text from `text_of_time`, which `document.check_created` has checked."""
    return datetime.fromisoformat(text)


def expiry(value: object, now: datetime) -> datetime | None:
    """Return the time of expiry, which may be given as a duration from `now`, or None if there is no expiry."""
    found = _moment(value, now, "expires", 1)
    if found is not None and isinstance(value, datetime) and value <= now:
        raise BadInput(f"expires: wanted a time after now, got {value.isoformat()}")
    return found


def start_of(value: object, now: datetime, what: str) -> datetime | None:
    """Return the start of a period, which may be given as a duration before `now`, or None if it has no start."""
    return _moment(value, now, what, -1)


def _moment(value: object, now: datetime, what: str, sign: int) -> datetime | None:
    # `value` is a datetime with a zone, or a duration as for `duration_s` after `now` (`sign` 1) or before it (-1), or
    # None.
    if value is None:
        return None
    if not isinstance(value, datetime):
        return now + sign * timedelta(seconds=duration_s(value, what))
    if value.tzinfo is None:
        raise BadInput(f"{what}: wanted a datetime with a time zone, got {value!r}", hint="datetime.now(UTC) has one")
    return value.astimezone(UTC)
