"""The errors of a call that processes many items, some of which failed."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy

from ckstore.errors import CkstoreError
from ckstore.model.words import counted, some_of
from ckstore.ops.api_calls import describe_os_error, of_the_system


def joined(failures: Mapping[str, CkstoreError]) -> CkstoreError:
    """Return one error for all failed items: the first error, with a message that also names the others.

    Args:
        failures: Name of an item, such as a checkpoint -> its error. At least one item is needed.
    """
    (name, first), *others = failures.items()
    message = first.message if name in first.message else f"{name}: {first.message}"
    if others:
        message += f"; {counted(len(others), 'more item')} failed: {some_of([name for name, _ in others])}"
    error = copy(first)
    error.args = (message, *first.args[1:])
    return error


def failure_of(item: str, error: CkstoreError | OSError) -> CkstoreError:
    """Return the error of an item as a `CkstoreError`; the message for a system error contains the name of the item."""
    if isinstance(error, CkstoreError):
        return error
    hint = "the operating system reported the cause above; ckstore verify checks the store"
    return of_the_system(error, f"{item}: {describe_os_error(error)}", hint=hint)
