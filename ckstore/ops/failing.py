"""Errors of the system become errors of ckstore at one place, with the cause attached."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from ckstore.errors import CkstoreError

P = ParamSpec("P")
R = TypeVar("R")


def describe_os_error(error: OSError) -> str:
    """Return what the system said and about which file, for a message."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    where = f" ({os.fsdecode(error.filename)})" if isinstance(error.filename, (str, bytes)) else ""
    return f"{reason}{where}"


def only_ckstore_errors(method: Callable[P, R]) -> Callable[P, R]:
    """Make a public function raise `CkstoreError` where the system failed; the message is what the system said."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except OSError as error:
            what = method.__name__.strip("_").replace("_", " ")
            msg = f"{'opening the store' if what == 'init' else what} failed: {describe_os_error(error)}"
            raise CkstoreError(
                msg, hint="the cause above is the system's; nothing that was in the store is lost"
            ) from error

    return call
