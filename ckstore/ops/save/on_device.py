"""What a save need not read from devices: chunks with the fingerprint that they had when they were last read.

A fingerprint is evidence and no name: what a save finds so has the digest of bytes that this process has read. The
share of hits that is read again each time compares them with the live bytes, too (`recheck`).
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, cast

from ckstore.model.manifest.captured import BytesSource
from ckstore.model.sizes import PACK_BELOW_BYTES
from ckstore.ops.save.recorded import state_changed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ckstore.model.manifest.captured import ByteSource
    from ckstore.ops.context import Context
    from ckstore.tensors.device.staging import DeviceSource

Key = tuple[str, int, int, int]
"""The name of a source, how many before it have that name, and from where to where."""


class DeviceChunks:
    """The chunks of one save that lie on devices. Its methods may be called from several threads, but for `settle`."""

    def __init__(self, context: Context, run: str, sources: Sequence[ByteSource]) -> None:
        self.claimed_bytes = 0
        self._context = context
        self._run = run
        on_device = [cast("DeviceSource", source) for source in sources if source.on_device]
        counts: Counter[str] = Counter()
        self._numbers: dict[int, int] = {}
        for source in on_device:
            # Parts of one tensor, as ranks save them, have one name.
            self._numbers[id(source)] = counts[source.name]
            counts[source.name] += 1
        self._chunks = [
            (source, start, stop) for source in on_device for start, stop in _cuts(source, context.settings.chunk_bytes)
        ]
        self._keys = [self._key(*chunk) for chunk in self._chunks]
        self._before = self._fingerprints()
        # Forgotten until this save has ended well: after one that failed everything is read.
        seen = context.known.device_seen.pop(run, {})
        pairs = zip(self._keys, self._before, strict=True) if self._before else ()
        self._known = {key: seen[key][1] for key, found in pairs if key in seen and seen[key][0] == found}
        self._digests: dict[Key, str] = {}
        self._mutex = threading.Lock()

    def known(self, source: ByteSource, start: int, stop: int) -> str | None:
        """Return the digest that these bytes had when they were last read, if they are the same; else None."""
        return self._known.get(self._key(source, start, stop))

    def claimed(self, source: ByteSource, start: int, stop: int, digest: str) -> None:
        """Bytes are saved by that digest, and were not read."""
        self.read(source, start, stop, digest)
        with self._mutex:
            self.claimed_bytes += stop - start

    def read(self, source: ByteSource, start: int, stop: int, digest: str) -> None:
        """Bytes were read, and have this digest."""
        with self._mutex:
            self._digests[self._key(source, start, stop)] = digest

    def fetched(self, batch: Sequence[ByteSource]) -> list[ByteSource]:
        """Return small sources with those in memory that lie on a device and are not known: read in few transfers."""
        wanted = [i for i, one in enumerate(batch) if one.on_device and self.known(one, 0, one.nbytes) is None]
        if not wanted:
            return [*batch]
        from ckstore.tensors.device.feed import fetch

        found = [*batch]
        for i, data in zip(wanted, fetch([cast("DeviceSource", batch[i]) for i in wanted]), strict=True):
            found[i] = BytesSource(batch[i].name, data)
        return found

    def settle(self) -> None:
        """Keep what was read for the next save; `StateChanged` if what is on the devices was changed meanwhile."""
        after = self._fingerprints()
        if not (self._before and after):
            return
        # What was read lies between two fingerprints: equal ones mean that it is what they are of.
        for key, old, new in zip(self._keys, self._before, after, strict=True):
            if old != new:
                raise state_changed(key[0])
        found = zip(self._keys, self._before, strict=True)
        self._context.known.device_seen[self._run] = {
            key: (old, self._digests[key]) for key, old in found if key in self._digests
        }

    def _key(self, source: ByteSource | DeviceSource, start: int, stop: int) -> Key:
        return source.name, self._numbers.get(id(source), -1), start, stop

    def _fingerprints(self) -> list[bytes]:
        from ckstore.tensors.device.fingerprint import fingerprints

        return fingerprints(self._chunks)


def _cuts(source: DeviceSource, chunk_bytes: int) -> Iterable[tuple[int, int]]:
    step = chunk_bytes if source.nbytes >= PACK_BELOW_BYTES else max(source.nbytes, 1)
    for start in range(0, source.nbytes, step):
        yield start, min(start + step, source.nbytes)
