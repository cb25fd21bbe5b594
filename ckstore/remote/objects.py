"""The interface of object storage: a flat set of objects under keys, each written atomically."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol

from ckstore.errors import RemoteDenied, RemoteFull, RemoteUnavailable, UnknownOutcome

THREADS = 8
"""The number of concurrent requests. Requests mostly wait, and eight of them filled the link in a measurement."""


class ObjectEntry(NamedTuple):
    """The entry of an object in the listing of its service."""

    key: str  # relative to the prefix of the target
    nbytes: int  # in bytes
    modified: datetime  # according to the server's clock, never to the clock of this machine
    tag: str  # the service's tag of this version (an ETag); "" if there is none


OF_ALL = (RemoteDenied, RemoteFull, RemoteUnavailable, UnknownOutcome)
"""If an item of a call fails with one of these errors, the remaining items would also fail."""


class Objects(Protocol):
    """The objects below the prefix of one target. Threads may share an instance, and every call ends before a deadline.

    A call that fails raises `RemoteError` (a `CkstoreError`), whose text never contains a secret. If an object is
    missing, a call returns `None` or `False` if its signature allows that. Otherwise, it raises `RemoteError`.
    """

    def get(self, key: str, max_bytes: int) -> bytes | None:
        """Return a small object, or None if it is missing. An object above `max_bytes` is refused without reading."""

    def read_into(self, key: str, offset: int, into: memoryview) -> bool:
        """Fill `into` with unverified bytes of an object from an offset on. Return False if the object is missing."""

    def send(self, key: str, data: bytes | memoryview) -> str:
        """Write an object, replacing any existing one, and return the tag of the new version."""

    def put(self, key: str, data: bytes | memoryview) -> ObjectEntry:
        """Write an object as `send` does, and return its entry. This costs one more request."""

    def create(self, key: str, data: bytes | memoryview) -> bool:
        """Create an object. Return False if it exists with other bytes, or if its bytes cannot be compared.

        An existing object with exactly these bytes counts as created, because the response to an earlier attempt may
        have been lost.
        """

    def update(self, key: str, data: bytes | memoryview, expected: str) -> str | None:
        """Replace the `expected` version of an object; return the new tag, or None if the object has another version.

        If the service does not return the tag and another client has written since, the result is "", which is the tag
        of no version.
        """

    def list(self, prefix: str) -> Iterator[ObjectEntry]:
        """Yield the objects whose keys begin with a prefix, in the order of their keys."""

    def head(self, key: str) -> ObjectEntry | None:
        """Return the entry of an object, or None if it is missing."""

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects. Missing ones are not an error."""

    def close(self) -> None:
        """End the waits of all threads, and refuse further calls."""


@dataclass(frozen=True, slots=True)
class Remote:
    """An open remote, as transfers use it."""

    name: str  # its name for users
    objects: Objects  # its objects
    cas: bool = True  # whether a probe confirmed that it supports compare-and-swap
    checks_bodies: bool = False  # whether a probe confirmed that it rejects a corrupted body
    uuid: str = ""  # recorded when it was added; "" if unknown
