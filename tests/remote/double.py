"""A double of a remote in memory: real compare-and-swap, counted requests, and faults on demand."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal

from ckstore.errors import RemoteError
from ckstore.model.settings.settings import StoreSettings
from ckstore.remote import keys
from ckstore.remote.documents.remote_info import RemoteInfo
from ckstore.remote.objects import ObjectEntry, Remote

Fault = Literal["fail", "lose", "flip", "stall"]
"""``fail``: nothing is done. ``lose``: it is done, and the answer is lost. ``flip``: one bit of the body is another."""


@dataclass
class Double:
    """Objects in memory.

    Attributes:
        held: Key -> bytes.
        requests: Number of calls of each kind. A listing counts one for each 1,000 keys.
        sent_bytes, received_bytes: Total size of the bodies.
        fault: Called with the kind of a call and its key. Returns the fault to inject.
        most_in_flight_bytes: The most bytes of bodies that were in flight at once.
    """

    held: dict[str, bytes] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    sent_bytes: int = 0
    received_bytes: int = 0
    fault: Callable[[str, str], Fault | None] = lambda _call, _key: None
    most_in_flight_bytes: int = 0
    keys_read: list[str] = field(default_factory=list)
    keys_written: list[str] = field(default_factory=list)
    now: datetime = datetime(2026, 11, 26, tzinfo=UTC)
    _versions: dict[str, tuple[datetime, int]] = field(default_factory=dict)
    _serial: int = 0
    _in_flight: int = 0
    _mutex: threading.RLock = field(default_factory=threading.RLock)

    def get(self, key: str, max_bytes: int) -> bytes | None:
        data = self._begin("get", key)
        found = self.held.get(key)
        if found is None:
            return None
        if len(found) > max_bytes:
            raise RemoteError(f"{key} has {len(found)} bytes, more than {max_bytes}")
        with self._mutex:
            self.received_bytes += len(found)
            self.keys_read.append(key)
        return _flipped(found) if data == "flip" else found

    def read_into(self, key: str, offset: int, into: memoryview) -> bool:
        fault = self._begin("read", key)
        found = self.held.get(key)
        if found is None:
            return False
        part = found[offset : offset + len(into)]
        if len(part) != len(into):
            raise RemoteError(f"{key} ends after {len(found)} bytes")
        self._carry(len(part))
        into[:] = _flipped(part) if fault == "flip" and part else part
        with self._mutex:
            self.received_bytes += len(part)
            self.keys_read.append(key)
        return True

    def send(self, key: str, data: bytes | memoryview) -> str:
        return self.put(key, data).tag

    def put(self, key: str, data: bytes | memoryview) -> ObjectEntry:
        fault = self._begin("put", key)
        return self._write(key, data, fault)

    def create(self, key: str, data: bytes | memoryview) -> bool:
        fault = self._begin("create", key)
        with self._mutex:
            if key in self.held:
                return self.held[key] == bytes(data)
            self._write(key, data, fault)
            return True

    def update(self, key: str, data: bytes | memoryview, expected: str) -> str | None:
        fault = self._begin("update", key)
        with self._mutex:
            if key not in self.held or self._listed(key).tag != expected:
                return None
            return self._write(key, data, fault).tag

    def list(self, prefix: str) -> Iterator[ObjectEntry]:
        self._begin("list", prefix)
        with self._mutex:
            found = [self._listed(key) for key in sorted(self.held) if key.startswith(prefix)]
        self.requests["list"] += len(found) // 1000
        return iter(found)

    def head(self, key: str) -> ObjectEntry | None:
        self._begin("head", key)
        with self._mutex:
            return self._listed(key) if key in self.held else None

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._begin("delete", key)
            with self._mutex:
                self.held.pop(key, None)
                self._versions.pop(key, None)

    def close(self) -> None:
        """Do nothing: no call of this double waits."""

    def request_count(self) -> int:
        """Return the number of requests other than listings."""
        return sum(count for call, count in self.requests.items() if call != "list")

    def forget_requests(self) -> None:
        """Reset the counters."""
        self.requests.clear()
        self.sent_bytes = self.received_bytes = self.most_in_flight_bytes = 0
        self.keys_read.clear()
        self.keys_written.clear()

    def _begin(self, call: str, key: str) -> Fault | None:
        with self._mutex:
            self.requests[call] += 1
        fault = self.fault(call, key)
        if fault == "fail":
            raise RemoteError(f"{call} of {key} failed: 503")
        return fault

    def _write(self, key: str, data: bytes | memoryview, fault: Fault | None) -> ObjectEntry:
        body = bytes(data)
        self._carry(len(body))
        with self._mutex:
            self.held[key] = _flipped(body) if fault == "flip" and body else body
            self._serial += 1
            self.now += timedelta(milliseconds=1)
            self._versions[key] = self.now, self._serial
            self.sent_bytes += len(body)
            self.keys_written.append(key)
            listed = self._listed(key)
        if fault == "lose":
            raise RemoteError(f"the answer to the write of {key} was lost")
        return listed

    def _listed(self, key: str) -> ObjectEntry:
        modified, serial = self._versions[key]
        return ObjectEntry(key, len(self.held[key]), modified, f'"{serial}"')

    def _carry(self, nbytes: int) -> None:
        with self._mutex:
            self._in_flight += nbytes
            self.most_in_flight_bytes = max(self.most_in_flight_bytes, self._in_flight)
        with self._mutex:
            self._in_flight -= nbytes


def _flipped(data: bytes) -> bytes:
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


REMOTES: dict[str, Remote] = {}
"""What the tests reach by name; see `conftest.py`."""


def new_remote(
    settings: StoreSettings, name: str = "away", *, cas: bool = True, checks_bodies: bool = False
) -> tuple[Double, str]:
    """Create an empty remote of a store; return its objects and its name."""
    objects = Double()
    info = RemoteInfo.of(settings, "2026-11-26T00:00:00.000000Z")
    objects.put(keys.INFO, info.render())
    objects.forget_requests()
    REMOTES[name] = Remote(name, objects, cas, checks_bodies)
    return objects, name
