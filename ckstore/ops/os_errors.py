"""What an error says, most of them of the system, for the messages of the errors that ckstore makes of it."""

from __future__ import annotations

import os

from ckstore.errors import CkstoreError, UnsafePlace
from ckstore.fs.inside import NotInStore


def describe_os_error(error: OSError) -> str:
    """Return what the system said and about which file, for a message."""
    if isinstance(error, NotInStore):
        return f"{error.filename} {error.strerror}, wanted a directory of the store"
    reason = os.strerror(error.errno) if error.errno else str(error)
    where = f" ({os.fsdecode(error.filename)})" if isinstance(error.filename, (str, bytes)) else ""
    return f"{reason}{where}"


def why_of(error: CkstoreError | OSError) -> str:
    """Return what an error of the store or of the system says, for a message."""
    return error.message if isinstance(error, CkstoreError) else describe_os_error(error)


def unsafe(what: str, error: NotInStore) -> UnsafePlace:
    """Return the error of an act in whose way something was that is not a directory of the store."""
    hint = "nothing behind it was touched: find out who put it there, and move it away"
    return UnsafePlace(f"{what}: {describe_os_error(error)}", hint=hint)
