"""What an error says, most of them of the system, for the messages of the errors that ckstore makes of it."""

from __future__ import annotations

import os

from ckstore.errors import CkstoreError, InsufficientSpace, UnsafePlace
from ckstore.fs import files
from ckstore.fs.inside import NotInStore


def describe_os_error(error: OSError) -> str:
    """Return what the system said and about which file, for a message."""
    if isinstance(error, NotInStore):
        return f"{error.filename} {error.strerror}, wanted a directory of the store"
    reason = os.strerror(error.errno) if error.errno else str(error)
    where = f" ({os.fsdecode(error.filename)})" if isinstance(error.filename, (str, bytes)) else ""
    return f"{reason}{where}"


def of_the_system(error: OSError, message: str, *, hint: str) -> CkstoreError:
    """Return the error of ckstore for one of the system: of a full disk, or a quota, it is `InsufficientSpace`."""
    if error.errno not in files.NO_SPACE:
        return CkstoreError(message, hint=hint)
    return InsufficientSpace(message, hint=f"free space on the filesystem, or raise the quota; {hint}")


def why_of(error: CkstoreError | OSError) -> str:
    """Return what an error of the store or of the system says, for a message."""
    return error.message if isinstance(error, CkstoreError) else describe_os_error(error)


def unsafe(act_name: str, error: NotInStore) -> UnsafePlace:
    """Return the error of an act in whose way something was that is not a directory of the store."""
    hint = "nothing behind it was touched: find out who put it there, and move it away"
    return UnsafePlace(f"{act_name}: {describe_os_error(error)}", hint=hint)
