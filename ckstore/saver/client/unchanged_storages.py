"""Find the data that a background save need not copy, because it has not changed since the previous checkpoint.

A storage is *kept*, which means that it is not copied, if the caller names all tensors in it as unchanged, or if its
fingerprint on the device is unchanged. The previous save of the run must also have these tensors with the same names,
dtypes and shapes. This save must have succeeded, and its result must be known. Each save copies a share of the kept
data, so that the saver can compare the digests (see `IN_SAVES`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from ckstore.errors import BadInput
from ckstore.model.manifest.captured import Captured, RangeSource
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.manifest.manifest import LeafRecord
from ckstore.model.saver.messages import Order, ReusedStorage, Sample, SnapshotSpan
from ckstore.model.sizes import SMALL_BELOW_BYTES, medium_count, pack_below_bytes
from ckstore.model.training_identity import LOST, Parent
from ckstore.saver.client.snapshot import aligned, places_of

Fingerprints = Mapping[int, bytes]
"""Index of a storage -> its fingerprint, which shows changes on its device (`tensors/device/fingerprint`)."""
NO_FINGERPRINTS: Fingerprints = MappingProxyType({})
_SEEN_SHARE = 0.005
"""Each save compares this share of the data that is kept only because of its fingerprints.

It is equal to the share of existing blobs that a save reads again (docs/adr/0010).
"""
IN_SAVES = 32
"""Each chunk that the caller names as unchanged is compared once within this number of saves."""


@dataclass(frozen=True, slots=True)
class UnchangedNames:
    """The data that the caller names as unchanged."""

    # Returns whether the value with a name is unchanged since the previous save. None if the caller names nothing.
    selects: Callable[[str], bool] | None
    chunk_bytes: int  # the size of the chunks of the store

    def names_in(self, captured: Captured) -> set[str]:
        """Return the names in a state that the caller names as unchanged."""
        if self.selects is None:
            return set()
        names = {leaf.name for leaf in captured.leaves if self.selects(leaf.name)}
        # Without this check, a misspelled name would silently cause everything to be copied.
        if captured.leaves and not names:
            some = ", ".join(leaf.name for leaf in captured.leaves[:3])
            msg = f"unchanged= selects none of the {len(captured.leaves)} tensors of the state"
            raise BadInput(msg, hint=f"their names are as in load(select=): {some}")
        return names


@dataclass(slots=True)
class Base:
    """A checkpoint from which unchanged tensors can be reused."""

    step: int
    id: str
    leaves: dict[str, LeafRecord]  # its leaves, by name
    sizes: tuple[int, ...]  # the sizes of its storages, in bytes
    copied_steps: tuple[int, ...]  # for each storage, the step for which the storage was last copied completely
    fingerprints: Fingerprints  # the fingerprints of its storages that were on a device
    own_blobs: bool  # see `Captured`

    def kept(
        self, captured: Captured, names: set[str], fingerprints: Fingerprints, chunk_bytes: int
    ) -> tuple[dict[int, tuple[int, int]], set[int]]:
        """Return the storages that need not be copied, as `ReusedStorage.storages`, and those that are not named.

        A storage that the caller does not name counts as unchanged if its fingerprint is unchanged.
        """
        members: dict[int, list[LeafRecord]] = defaultdict(list)
        for leaf in captured.leaves:
            members[leaf.storage].append(leaf)
        found, unnamed = {}, set()
        below = SMALL_BELOW_BYTES if self.own_blobs else pack_below_bytes(medium_count(self.sizes), chunk_bytes)
        for storage, leaves in members.items():
            is_named = all(leaf.name in names for leaf in leaves)
            if not (is_named or storage in fingerprints):
                continue
            old_storage = self._storage_of(leaves)
            nbytes = captured.sources[storage].nbytes
            # A smaller tensor is in a pack, so there is no blob of only this tensor that a save could claim.
            if old_storage is None or nbytes != self.sizes[old_storage] or nbytes < below:
                continue
            if not is_named:
                if fingerprints[storage] != self.fingerprints.get(old_storage):
                    continue
                unnamed.add(storage)
            found[storage] = (old_storage, self.copied_steps[old_storage])
        return found, unnamed

    def _storage_of(self, leaves: list[LeafRecord]) -> int | None:
        """Return the one storage that has all these leaves in the same form, otherwise None."""
        storages = set()
        for leaf in leaves:
            old_leaf = self.leaves.get(leaf.name)
            if old_leaf is None or old_leaf._replace(storage=leaf.storage) != leaf:
                return None
            storages.add(old_leaf.storage)
        return storages.pop() if len(storages) == 1 else None


@dataclass(frozen=True, slots=True)
class SnapshotPlan:
    """The places of a state in a snapshot."""

    places: tuple[SnapshotSpan, ...]  # the place of each storage
    kept: ReusedStorage | None  # the storages of an earlier checkpoint that are reused; None if there are none
    # The parts of reused storages that are copied for comparison, and their places.
    parts: tuple[RangeSource, ...]
    part_places: tuple[SnapshotSpan, ...]
    nbytes: int  # the size of the snapshot


@dataclass(slots=True)
class UnchangedBases:
    """Keeps, for each run, the checkpoint from which the next save can reuse data. Callers hold the lock of the queue.

    A call names data that is unchanged since the previous call. If the previous call saved nothing, for example because
    it was skipped, only data that both calls name is unchanged since the last save. `_since` has the names that all
    calls since the last save have in common.
    """

    _bases: dict[str, Base] = field(default_factory=dict)
    _asked: dict[str, int] = field(default_factory=dict)
    _since: dict[str, set[str]] = field(default_factory=dict)
    _compared: dict[str, dict[tuple[str, int], int]] = field(default_factory=dict)
    _credit_bytes: dict[str, float] = field(default_factory=dict)

    def ordered(self, order: Order) -> None:
        """Record that a save was ordered. Until it has succeeded, the next save of the run cannot reuse data."""
        self._asked[order.run] = order.number
        # In the next call, "unchanged" refers to this save, which has no checkpoint yet.
        self._bases.pop(order.run, None)
        self._since.pop(order.run, None)

    def not_saved(self, run: str, names: set[str]) -> None:
        """Record that a call saved nothing. `names` is the data that the call named as unchanged."""
        # After several calls that saved nothing, only data that all of them name has certainly not changed.
        self._since[run] = names & self._since.get(run, names)

    def ended(self, order: Order, saved: CheckpointInfo, fingerprints: Fingerprints = NO_FINGERPRINTS) -> None:
        """Record that a save has succeeded."""
        kept = {} if order.kept is None else order.kept.storages
        compared = self._compared.setdefault(order.run, {})
        for sample in () if order.kept is None else order.kept.samples:
            compared[order.places[sample.storage].name, sample.start] = order.number
        # After a later order, "unchanged" refers to the later save. With ``if_exists="keep"``, the result may be an
        # existing checkpoint with other bytes.
        if self._asked.get(order.run) != order.number or order.if_exists == "keep":
            return
        self._bases[order.run] = Base(
            saved.step,
            saved.id,
            {leaf.name: leaf for leaf in order.captured.leaves},
            tuple(place.nbytes for place in order.places),
            tuple(kept[index][1] if index in kept else saved.step for index in range(len(order.places))),
            fingerprints,
            order.captured.own_blobs,
        )

    def place(  # noqa: PLR0917
        self,
        captured: Captured,
        order: Order,
        unchanged: UnchangedNames | None,
        names: set[str],
        last_parents: Mapping[str, Parent],
        fingerprints: Fingerprints = NO_FINGERPRINTS,
        first: Sequence[int] = (),
    ) -> SnapshotPlan:
        """Return the places of a state in a snapshot. `names` are the names that `unchanged` selects.

        If `last_parents` shows that another call has saved to the run or loaded from it since the base, "unchanged"
        refers to another checkpoint, and nothing is reused. `first` are storages that are copied in any case, in the
        order of their places.
        """
        base = self._bases.get(order.run)
        if (
            unchanged is None
            or base is None
            # Another call has saved or loaded this run afterwards, so "unchanged" does not refer to the base.
            or last_parents.get(order.run, LOST).id != base.id
            or order.step == base.step  # this save replaces the base, which another saver may need for a retry
        ):
            places, nbytes = places_of(captured.sources, (), first)
            return SnapshotPlan(places, None, (), (), nbytes)
        still = names & self._since.get(order.run, names)
        storages, unnamed = base.kept(captured, still, fingerprints, unchanged.chunk_bytes)
        for index in first:
            storages.pop(index, None)
            unnamed.discard(index)
        places, nbytes = places_of(captured.sources, storages, first)
        samples = []
        for storage, start, length in self._due(captured, order.run, storages, unnamed, unchanged.chunk_bytes):
            samples.append(Sample(storage, start, nbytes, length))
            nbytes += aligned(length)
        parts = tuple(RangeSource(captured.sources[of.storage], of.start, of.nbytes) for of in samples)
        part_places = tuple(SnapshotSpan(places[of.storage].name, of.offset, of.nbytes) for of in samples)
        kept = ReusedStorage(base.step, base.id, storages, tuple(samples), tuple(unnamed)) if storages else None
        return SnapshotPlan(places, kept, parts, part_places, nbytes)

    def _due(
        self, captured: Captured, run: str, storages: Iterable[int], unnamed: set[int], chunk_bytes: int
    ) -> list[tuple[int, int, int]]:
        """Return the storage, the start and the size of each chunk to compare."""
        compared = self._compared.get(run, {})
        chunks = [
            (storage, start, min(chunk_bytes, captured.sources[storage].nbytes - start))
            for storage in storages
            for start in range(0, captured.sources[storage].nbytes, chunk_bytes)
        ]
        # The chunks that were compared longest ago are first, so that each chunk is compared within `IN_SAVES` saves.
        chunks.sort(key=lambda chunk: compared.get((captured.sources[chunk[0]].name, chunk[1]), -1))
        named = [chunk for chunk in chunks if chunk[0] not in unnamed]
        due = named[: -(-len(named) // IN_SAVES)]
        # A fingerprint is more reliable than a name from the caller, so a smaller share is compared. Because only whole
        # chunks are compared, the share accumulates over several saves until it reaches the size of a chunk.
        seen = [chunk for chunk in chunks if chunk[0] in unnamed]
        credit = self._credit_bytes.get(run, 0.0) + _SEEN_SHARE * sum(chunk[2] for chunk in seen)
        for chunk in seen:
            if credit < chunk[2]:
                break
            credit -= chunk[2]
            due.append(chunk)
        self._credit_bytes[run] = credit if seen else 0.0
        return due
