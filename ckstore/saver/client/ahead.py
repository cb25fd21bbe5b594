"""Copy changed data of a state from devices to a snapshot early, while the walk through the state is still running.

The walk needs Python for each value, but the devices can copy data without Python. Therefore the large tensors of the
last save of a run are compared first, by their fingerprints, and changed tensors are copied to a snapshot immediately.
The walk validates these copies: if it finds one of the tensors at another address or with another fingerprint, all
tensors are copied again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckstore.saver.client.snapshot import aligned, places_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ckstore.model.manifest.captured import ByteSource
    from ckstore.saver.client.snapshot import Snapshot, SnapshotPool
    from ckstore.saver.client.unchanged_storages import Fingerprints
    from ckstore.tensors.torch_sources import TorchSource

_LEAST_BYTES = 2**20
"""The minimum size of a storage that is copied early, in bytes. PCIe transfers it in 20 µs.

Smaller storages are transferred together, once all of them are known.
"""
_MOST_BYTES = 512 * 2**20
"""The maximum number of bytes that are copied early.

PCIe transfers them in 10 ms, the time to walk and compare a few thousand tensors.
"""


@dataclass(frozen=True, slots=True)
class _Remembered:
    index: int
    name: str
    storage: Any  # a weak reference
    start: int
    nbytes: int
    fingerprint: bytes

    def source(self) -> TorchSource | None:
        """Return the source of the current bytes, or None if their memory was freed."""
        from ckstore.tensors.torch_sources import TorchSource, storage_of

        storage = storage_of(self.storage)
        # FSDP and offloading free the memory but keep the storage object.
        if storage is None or storage.nbytes() < self.start + self.nbytes:
            return None
        return TorchSource(self.name, storage, self.start, self.nbytes, ())


class HeadStart:
    """The early copies of one save. The caller must call `give_up` at the end in any case."""

    def __init__(self, pool: SnapshotPool, most: int) -> None:
        self.waited: Collection[object] = ()  # the argument `waited` of `capture`
        self._pool = pool
        self._most = most
        self._snapshot: Snapshot | None = None
        self._copied: list[tuple[_Remembered, TorchSource, bytes]] = []

    def begin(self, large: Sequence[_Remembered], nbytes: int) -> None:
        """Begin to copy changed storages to a snapshot of at least `nbytes`, if the pool has one."""
        live = [(one, source) for one in large if (source := one.source()) is not None]
        space = live[0][1].space if live else None
        if space is None:
            return
        self.waited = space.wait_for(source for _, source in live)
        found = space.fingerprints_of([source for _, source in live])
        changed = [
            (one, source, now)
            for (one, source), now in zip(live, found, strict=False)
            if one.fingerprint and now != one.fingerprint
        ]
        if changed and (snapshot := self._pool.take_free(nbytes)) is not None:
            self._snapshot, self._copied = snapshot, changed
            sources = [source for _, source, _ in changed]
            snapshot.fill(sources, places_of(sources)[0])

    def indexes(self, sources: Sequence[ByteSource], fingerprints: Fingerprints) -> tuple[int, ...]:
        """Return the indexes of the copied sources of a state, in their order in the snapshot.

        The result is empty if any copy is invalid.
        """
        # A copy is valid if the fingerprints before and after it are equal.
        for one, source, before in self._copied:
            now: Any = sources[one.index] if one.index < len(sources) else None
            if now is None or now.space is not source.space or fingerprints.get(one.index) != before:
                return ()
            if now.addresses(0, now.nbytes) != source.addresses(0, source.nbytes):
                return ()
        return tuple(one.index for one, _, _ in self._copied)

    def take(self, nbytes: int) -> Snapshot | None:
        """Return the snapshot with the copies, which then belongs to the caller, or None if it is too small."""
        if self._snapshot is None or self._snapshot.nbytes < nbytes:
            return None
        snapshot, self._snapshot = self._snapshot, None
        return snapshot

    def give_up(self) -> None:
        """Return the snapshot to the pool, unless the caller took it. Its next user waits for running copies."""
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            self._pool.give(snapshot, self._most)
        self._copied = []


class HeadStarts:
    """Keeps, for each run, the storages of the last save that the next save can copy early."""

    def __init__(self) -> None:
        self._runs: dict[str, tuple[list[_Remembered], int]] = {}

    def begin(self, run: str, pool: SnapshotPool, most: int) -> HeadStart:
        """Begin to copy the remembered storages of a run, if there are any."""
        started = HeadStart(pool, most)
        large, nbytes = self._runs.pop(run, ((), 0))
        if large:
            try:
                started.begin(large, nbytes)
            except BaseException:  # Ctrl-C, or the device failed
                started.give_up()
                raise
        return started

    def remember(
        self, run: str, sources: Sequence[ByteSource], fingerprints: Fingerprints, kept: Collection[int]
    ) -> None:
        """Remember the storages of a save, except unchanged ones, which are likely to remain unchanged."""
        large: list[_Remembered] = []
        found_bytes = 0
        for index in fingerprints:
            source: Any = sources[index]
            if index in kept or source.nbytes < _LEAST_BYTES or found_bytes + source.nbytes > _MOST_BYTES:
                continue
            if (where := source.weakly()) is not None:
                storage, start = where
                found_bytes += source.nbytes
                large.append(_Remembered(index, source.name, storage, start, source.nbytes, fingerprints[index]))
        if large:
            self._runs[run] = large, sum(aligned(source.nbytes) for source in sources)
