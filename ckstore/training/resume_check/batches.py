"""Record the batches of a data loader without a change to the loop that reads them."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any, Self


class _Recorded:
    """An iterator that passes each batch to `note` before it returns the batch."""

    def __init__(self, iterator: Iterator[Any], note: Callable[[Any], None]) -> None:
        self._iterator = iterator
        self._note = note

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        batch = next(self._iterator)
        self._note(batch)
        return batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)


def record_batches(loader: Any, note: Callable[[Any], None]) -> None:
    """Make a loader pass each batch to `note`, unless its class cannot be extended."""
    kind = type(loader)
    if not hasattr(kind, "__iter__"):
        return

    def iterate(self: Any) -> _Recorded:
        # Create the iterator immediately, as the loader does, so that it draws random numbers at the same moment.
        return _Recorded(kind.__iter__(self), note)

    # Give the new class the same name, because capture and restore compare loaders by class name.
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    try:
        loader.__class__ = types.new_class(
            kind.__name__, (kind,), exec_body=lambda own: own.update(names, __iter__=iterate)
        )
    except TypeError:  # a class written in C or with slots; the report says that batches were not compared
        return
