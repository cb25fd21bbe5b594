"""Digests of the batches that a data loader gives, without a change of the loop that reads them."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any, Self


class _Recorded:
    """An iterator that hands each batch to `note` before it gives it."""

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
    """Have a loader hand each batch to `note`, unless its class cannot be extended."""
    kind = type(loader)
    if not hasattr(kind, "__iter__"):
        return

    def iterate(self: Any) -> _Recorded:
        # At once, as the loader does: what it draws for its iterator must be drawn at the same moment.
        return _Recorded(kind.__iter__(self), note)

    # A class of the same name: capture and restore compare loaders by the names of their classes.
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    try:
        loader.__class__ = types.new_class(
            kind.__name__, (kind,), exec_body=lambda own: own.update(names, __iter__=iterate)
        )
    except TypeError:  # of C, or with slots: the report says that batches were not compared
        return
