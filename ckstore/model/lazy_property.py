"""A property that is computed once, without a lock that all objects share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class LazyProperty(Generic[T]):
    """A decorator for a method whose result is computed at the first access and stored in the object's ``__dict__``.

    Use it if the computation reads a disk. `functools.cached_property` of Python 3.11 has one lock for all objects, so
    a store on a hanging filesystem would block the stores on all other filesystems. If two threads access the value of
    one object at the same time, both may compute it, and the last value is stored.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __get__(self, owner: object, _: type | None = None) -> T:
        value = self._compute(owner)
        owner.__dict__[self._compute.__name__] = value  # later accesses find this value before the descriptor
        return value
