"""A property that is computed once, and that never makes the threads of two objects wait for each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class LazyProperty(Generic[T]):
    """Decorates a method whose result is computed at the first access, then stored in the object's ``__dict__``.

    Use it where computing reads a disk. `functools.cached_property` of Python 3.11 has one lock for all objects: a
    store on a filesystem that hangs would stop the stores on all others. Two threads that ask one object at the same
    time may both compute the value, and the last one is stored.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __get__(self, owner: object, _: type | None = None) -> T:
        value = self._compute(owner)
        owner.__dict__[self._compute.__name__] = value  # found before this descriptor from now on
        return value
