"""What a place outside the store must do: a flat set of objects under keys, each replaced or made as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol

THREADS = 8
"""So many requests are under way at once: each waits most of its time, and eight filled a link when it was measured."""


class ObjectEntry(NamedTuple):
    """An object as its service lists it."""

    key: str  # its key below the target's prefix
    nbytes: int  # its length
    modified: datetime  # by the server's clock, never by this machine's
    tag: str  # the service's mark of this version of it (an ETag); "" if it gives none


class Objects(Protocol):
    """Objects of one target, below one prefix. Every call may be made by several threads, and ends by a deadline.

    A call that fails raises `RemoteError` (a `CkstoreError`), whose text never holds a secret. A missing object is
    `None` or `False` where the signature says so, else `RemoteError`.
    """

    def get(self, key: str, max_bytes: int) -> bytes | None:
        """Return a whole small object; None if it is missing. More than `max_bytes` is refused before it is read."""

    def read_into(self, key: str, offset: int, into: memoryview) -> bool:
        """Fill `into` with the bytes of an object from an offset on, unverified; False if the object is missing."""

    def send(self, key: str, data: bytes | memoryview) -> str:
        """Write an object, over what is there, and return the service's mark of this write."""

    def put(self, key: str, data: bytes | memoryview) -> ObjectEntry:
        """As `send`, and look at it: one request more."""

    def create(self, key: str, data: bytes | memoryview) -> bool:
        """Write an object that is not there; False if there is one whose bytes differ or are not known to be these.

        An object that holds exactly these bytes counts as made: the answer to an earlier try may have been lost.
        """

    def update(self, key: str, data: bytes | memoryview, expected: str) -> str | None:
        """Write an object over the version with that mark alone, and return the new mark; None: it is not there.

        The mark is "" where the service does not say it and another client has written since; no version has that.
        """

    def list(self, prefix: str) -> Iterator[ObjectEntry]:
        """Yield the objects whose keys begin with a prefix, by their keys."""

    def head(self, key: str) -> ObjectEntry | None:
        """Return what the service says of one object; None if it is missing."""

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects; those that are missing already are no error."""

    def close(self) -> None:
        """End the waits of all threads, and refuse further calls."""


@dataclass(frozen=True, slots=True)
class Remote:
    """A remote on object storage, as a transfer needs it."""

    name: str  # what users call it
    objects: Objects  # its objects
    cas: bool = True  # whether its compare-and-swap was seen to work
    checks_bodies: bool = False  # whether it was seen to refuse a body that was damaged on the way
    uuid: str = ""  # what it had when it was added; "": not known
