"""Open a descriptor so that no exception of a signal handler loses it.

CPython runs signal handlers between two steps of Python code: after a call of C code has returned, when a Python
function is entered, and when a loop goes back. One of these places is between ``os.open(…)`` and the assignment of what
it returned: a handler that raises there leaves a descriptor, and its lock, that nothing closes until the process ends.
Here C code alone moves the number from `os.open` into a list that exists before.

The caller assigns what `open_descriptor` returns to a name or an attribute, and a ``try`` that closes it follows at
once. It may be passed to `os.close`, and to nothing else: a Python function or class that is called is such a place.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial


def open_descriptor(path: str | os.PathLike[str], flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    """Return a descriptor as `os.open` does; it is closed on exec.

    Raises:
        OSError: As `os.open`.
        BaseException: What a signal handler raised; nothing is left open.
    """
    opened: list[int] = []
    try:
        opened.extend(map(partial(os.open, dir_fd=dir_fd), (path,), (flags | os.O_CLOEXEC,), (mode,)))
    except BaseException:
        for fd in opened:
            with suppress(OSError):  # the first error is the news
                os.close(fd)
        raise
    return opened[0]
