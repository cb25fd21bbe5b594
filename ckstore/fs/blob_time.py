"""Set and recognize the modification time of a blob, in a form that no other program produces.

The time records when a save wrote or last used the blob. A write to a file, or `touch`, sets the time of the file to
the clock time. A *stamp* is a clock time that is rounded up to the next time whose fraction of a second is
`_STAMP.nanoseconds`. On a filesystem with whole seconds (Lustre, ext4 with inodes of 128 bytes), the clock time is
rounded up to the next time that is `_STAMP.seconds` after a multiple of `_PERIOD_S`.
Source: docs/format/v1.md, "Blobs". docs/adr/0029 has the reasons and measurements.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

_SECOND_NS = 10**9
# An hour is a multiple of this period, so a stamp is still recognized if a copy shifts it by the offset of a time zone.
_PERIOD_S = 300
RENEW_AFTER_S = 24 * 3600
"""A stamp younger than this is not renewed. Filesystems that purge old files keep them for at least a week."""
_DRAFT_NS = 10**18
"""The time of every blob in stores of the previous draft of the format. It is renewed like any old stamp."""


class _Digits(NamedTuple):
    """The digits that distinguish one kind of time from others."""

    nanoseconds: int  # a multiple of 1000, since some filesystems only keep microseconds
    seconds: int  # an even number, since FAT only keeps even seconds; not a full minute, since people set such times


_STAMP = _Digits(nanoseconds=271_828_000, seconds=38)
_SUSPECT = _Digits(nanoseconds=314_159_000, seconds=94)


def is_stamp(mtime_ns: int) -> bool:
    """Whether the time of a blob is a stamp. If so, no program has written to the blob by ordinary means."""
    return mtime_ns == _DRAFT_NS or _is(_STAMP, mtime_ns)


def is_suspect(mtime_ns: int) -> bool:
    """Whether this is a time that `mark_suspect` sets."""
    return _is(_SUSPECT, mtime_ns)


def is_due(mtime_ns: int) -> bool:
    """Whether a stamp is old enough to be renewed when the blob is used."""
    return time.time_ns() - mtime_ns > RENEW_AFTER_S * _SECOND_NS


def stamp(file: int | str | Path, *, dir_fd: int | None = None) -> None:
    """Stamp a blob, given as a descriptor or as a name in `dir_fd`. Its access time is set to the current time."""
    _set(_STAMP, file, dir_fd)


def mark_suspect(file: int | str | Path, *, dir_fd: int | None = None) -> None:
    """Mark a blob as suspect by its modification time. Saves then read the blob before they use it."""
    _set(_SUSPECT, file, dir_fd)


def _is(digits: _Digits, mtime_ns: int) -> bool:
    seconds, rest_ns = divmod(mtime_ns, _SECOND_NS)
    return rest_ns == digits.nanoseconds or (rest_ns == 0 and seconds % _PERIOD_S == digits.seconds)


def _set(digits: _Digits, file: int | str | Path, dir_fd: int | None) -> None:
    now_ns = time.time_ns()
    # The new time is never earlier than now. Otherwise, a backup that copies only the files changed since the last
    # backup would miss the blob.
    fine_ns = now_ns + (digits.nanoseconds - now_ns) % _SECOND_NS
    if _set_and_read(file, dir_fd, now_ns, fine_ns) != fine_ns:
        now_s = -(-now_ns // _SECOND_NS)
        _set_and_read(file, dir_fd, now_ns, (now_s + (digits.seconds - now_s) % _PERIOD_S) * _SECOND_NS)


def _set_and_read(file: int | str | Path, dir_fd: int | None, atime_ns: int, mtime_ns: int) -> int:
    if isinstance(file, int):
        os.utime(file, ns=(atime_ns, mtime_ns))
        return os.fstat(file).st_mtime_ns
    os.utime(file, ns=(atime_ns, mtime_ns), dir_fd=dir_fd, follow_symlinks=False)
    return os.stat(file, dir_fd=dir_fd, follow_symlinks=False).st_mtime_ns
