"""Reads intact copies of blobs and manifests from any remote of a store, for repairs and for loads that find damage.

A blob is used only if its bytes have the expected digest, and a manifest only if it has the expected id.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from ckstore.errors import CkstoreError, RemoteDenied, RemoteError, RemoteUnavailable
from ckstore.model.digest import algorithm_of
from ckstore.model.manifest.manifest import BlobRecord
from ckstore.model.names import CheckpointKey
from ckstore.ops.context import Context, CopyAnswer
from ckstore.remote import remote_opener
from ckstore.remote.documents.remote_info import check_hash, read_info
from ckstore.remote.keys import Place
from ckstore.remote.service.remote_entries import RemoteEntry, entries, open_objects
from ckstore.remote.service.target import parse_target
from ckstore.remote.source import ObjectSource, Source, read_manifest

# The number of reads of a blob. After a mismatch, it is read again, because a bit may have flipped during the transfer.
# After the second mismatch, the blob counts as damaged on the remote.
_READS = 2
CONTACT_S = 30.0
"""The time to wait for the first response of a remote."""
AGAIN_S = 60.0
"""The time for which a remote that did not answer is not queried, so that a load waits once and not for each blob."""


class _LazySource:
    """A remote that is opened at its first use. It keeps the open source, or the last error."""

    def __init__(self, name: str, open_source: Callable[[], Source]) -> None:
        self.name = name
        self._open = open_source
        self._mutex = threading.RLock()  # reentrant, since a signal handler may load while this thread has it
        self._source: Source | None = None
        self._problem = ""
        self._failed_s = 0.0

    @property
    def problem(self) -> str:
        """The reason why the remote is not queried now, or an empty string if it is queried."""
        return self._problem if self._problem and time.monotonic() - self._failed_s < AGAIN_S else ""

    def source(self) -> Source:
        """Return the open source. The first of several threads opens it."""
        # The wait is limited, because a child that was forked while another thread held the lock can never acquire it.
        if not self._mutex.acquire(timeout=CONTACT_S):
            raise RemoteUnavailable(self.problem or f"another thread is still opening {self.name}")
        try:
            if self._source is None:
                # A thread that waited for the lock must not also wait for the remote that just failed.
                if problem := self.problem:
                    raise RemoteUnavailable(problem)
                try:
                    self._source = self._open()
                except CkstoreError as error:
                    self.fail(error)
                    raise
            return self._source
        finally:
            self._mutex.release()

    def fail(self, error: CkstoreError) -> None:
        """Record an error, so that the remote is not queried for a while."""
        self._problem, self._failed_s, self._source = error.message, time.monotonic(), None


class RemoteCopies:
    """Queries the remotes at the given URLs, then the remotes of an open store. Threads may share an instance."""

    def __init__(self, context: Context, urls: Sequence[str] = ()) -> None:
        self._context = context
        self._urls = {url: _LazySource(url, lambda url=url: _open_url(context, url)) for url in urls}  # type: ignore[misc]
        for asked in self._urls.values():  # raises immediately if a URL of the caller cannot be used
            asked.source()
        self._asked: dict[str, _LazySource] = {}

    def __len__(self) -> int:
        return len(self._all())

    def blob(self, blob: BlobRecord, places: Sequence[tuple[str, int, str]]) -> CopyAnswer:
        """Return the verified bytes of a blob of the checkpoints at `places`, each with a run, a step and an id."""
        problems: list[str] = []
        for asked in self._all():
            data = self._ask(asked, problems, lambda source: _read_blob(source, blob, places))
            if data is not None:
                return CopyAnswer(data, f"the remote {asked.name}", tuple(problems))
        return CopyAnswer(None, "", tuple(problems))

    def manifest(self, key: CheckpointKey) -> CopyAnswer:
        """Return the bytes of the manifest whose id fits the name of the checkpoint directory `key`."""
        problems: list[str] = []
        for asked in self._all():
            data = self._ask(asked, problems, lambda source: self._read_manifest(source, key))
            if data is not None:
                return CopyAnswer(data, f"the remote {asked.name}", tuple(problems))
        return CopyAnswer(None, "", tuple(problems))

    def _read_manifest(self, source: Source, key: CheckpointKey) -> bytearray | str:
        for place in source.places(f"{key.run}/{key.step}/"):
            if key.fits(*place) and (found := read_manifest(source, place, self._context.layout.hash_prefix)):
                return bytearray(found.data)
        return "has no manifest of it"

    def _ask(
        self, asked: _LazySource, problems: list[str], read: Callable[[Source], bytearray | str]
    ) -> bytearray | None:
        """Return bytes from a remote. If the remote has none, append the reason to `problems`, and return None."""
        if asked.problem:
            problems.append(f"{asked.name}: {asked.problem}")
            return None
        source = None
        try:
            source = asked.source()
            found = read(source)
        except CkstoreError as error:
            problems.append(f"{asked.name}: {error.message}")
            if source is None or isinstance(error, RemoteUnavailable | RemoteDenied):
                asked.fail(error)
            return None
        if isinstance(found, str):
            problems.append(f"{asked.name} {found}")
            return None
        return found

    def _all(self) -> list[_LazySource]:
        """Return the remotes in the order of the queries. Each call reads the settings."""
        found = [*self._urls.values()]
        try:
            listed = entries(self._context.layout)
        except CkstoreError:  # operations that need the settings report the error
            listed = {}
        for name, entry in listed.items():
            if name not in self._asked:
                # Use `setdefault`, because concurrent threads must share one instance.
                made = _LazySource(name, lambda entry=entry: _open_entry(self._context, entry))  # type: ignore[misc]
                self._asked.setdefault(name, made)
            found.append(self._asked[name])
        return found


def _read_blob(source: Source, blob: BlobRecord, places: Sequence[tuple[str, int, str]]) -> bytearray | str:
    """Read a blob through checkpoints on a remote, or else by its digest. Return the reason if no copy is intact."""

    def of_checkpoint(place: tuple[str, int, str], into: memoryview) -> bool:
        return source.read_into(Place(*place), blob.digest, 0, into) is not None

    said = "does not have it"
    ways: list[Callable[[memoryview], bool]] = [partial(of_checkpoint, place) for place in places]
    ways.append(partial(source.read_any, blob.digest))
    for read in ways:
        for _ in range(_READS):
            data = bytearray(blob.nbytes)
            if not read(memoryview(data)):
                break
            if algorithm_of(blob.digest).digest(data) == blob.digest:
                return data
            said = f"has a damaged copy of blob {blob.digest}, with other bytes"
    return said


def _open_entry(context: Context, entry: RemoteEntry) -> Source:
    remote = remote_opener.open_source(context, entry.name)
    source = remote_opener.source_of(remote, remote_opener.near(context.layout))
    with _limited_wait(source):
        found = remote_opener.uuid_of(remote)
    # Another remote with this name may have other checkpoints of the same run and step.
    if found != entry.uuid:
        raise RemoteError(f"another remote is now at its address: its uuid is {found}, expected {entry.uuid}")
    return source


def _open_url(context: Context, url: str) -> Source:
    objects = open_objects(parse_target(url))
    source = ObjectSource(objects, url, remote_opener.near(context.layout))
    with _limited_wait(source):
        check_hash(read_info(objects, url), context.settings, url)
    return source


@contextmanager
def _limited_wait(source: Source) -> Iterator[None]:
    """Limit the wait for the first response of a remote to `CONTACT_S`."""
    timer = threading.Timer(CONTACT_S, source.close)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
