"""What an error of the system says, for the messages of the errors that ckstore makes of it."""

from __future__ import annotations

import os


def describe_os_error(error: OSError) -> str:
    """Return what the system said and about which file, for a message."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    where = f" ({os.fsdecode(error.filename)})" if isinstance(error.filename, (str, bytes)) else ""
    return f"{reason}{where}"
