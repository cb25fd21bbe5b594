"""Data that a background save does not copy: its caller names it as unchanged, and the previous checkpoint has it.

A storage is kept, so not copied, if all tensors in it are named as unchanged, and the previous save of the run has them
with the same names, dtypes and shapes. That save must have succeeded, and its result must be known. Each save copies a
share of the kept data, so that the saver compares its digests: see `IN_SAVES`.
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
"""Storage of a state -> its fingerprint, which shows changes on its device (`tensors/device/fingerprint`)."""
NO_FINGERPRINTS: Fingerprints = MappingProxyType({})
_SEEN_SHARE = 0.005
"""The share of data kept only by fingerprints that is compared, the same as a save rereads (docs/adr/0010)."""
IN_SAVES = 32
"""Within this number of saves each chunk of kept data is compared once."""


@dataclass(frozen=True, slots=True)
class UnchangedNames:
    """The data that the caller names as unchanged."""

    # Whether the value with a name is unchanged since the save before; None: nothing is said of any.
    selects: Callable[[str], bool] | None
    chunk_bytes: int  # size of the chunks of the store

    def names_in(self, captured: Captured) -> set[str]:
        """Return the names of a state that it selects."""
        if self.selects is None:
            return set()
        names = {leaf.name for leaf in captured.leaves if self.selects(leaf.name)}
        # A misspelt name would copy everything in silence, and the caller wonder why nothing got faster.
        if captured.leaves and not names:
            some = ", ".join(leaf.name for leaf in captured.leaves[:3])
            msg = f"unchanged= selects none of the {len(captured.leaves)} tensors of the state"
            raise BadInput(msg, hint=f"their names are as in load(select=): {some}")
        return names


@dataclass(slots=True)
class Base:
    """A checkpoint from which unchanged tensors can be reused."""

    # Which checkpoint.
    step: int
    id: str
    leaves: dict[str, LeafRecord]  # its leaves, by name
    sizes: tuple[int, ...]  # of its storages
    copied_steps: tuple[int, ...]  # for each of its storages the step for which it was last copied whole
    fingerprints: Fingerprints  # of those that were on a device, by their index
    own_blobs: bool  # as in `Captured`

    def kept(
        self, captured: Captured, names: set[str], fingerprints: Fingerprints, chunk_bytes: int
    ) -> tuple[dict[int, tuple[int, int]], set[int]]:
        """Return the storages that need not be copied, as `ReusedStorage.storages`, and those without a name."""
        # `names`, the caller's word, and equal fingerprints of what is on devices are evidence of the same.
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
            # A smaller tensor is in a pack, and has no blob of its own that could be claimed.
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

    places: tuple[SnapshotSpan, ...]  # of each of its storages
    kept: ReusedStorage | None  # the storage of an earlier checkpoint that is used again, if any
    # What is copied of that, to be compared.
    parts: tuple[RangeSource, ...]
    part_places: tuple[SnapshotSpan, ...]
    nbytes: int  # size of the snapshot


@dataclass(slots=True)
class UnchangedBases:
    """For each run, the checkpoint from which the next save can reuse data. Called with the queue's lock.

    A call names data that is unchanged since the previous call. If that call saved nothing, for example because it was
    skipped, only data named by both calls is unchanged since the one before. `_since` records it for a sequence of such
    calls.
    """

    _bases: dict[str, Base] = field(default_factory=dict)
    _asked: dict[str, int] = field(default_factory=dict)
    _since: dict[str, set[str]] = field(default_factory=dict)
    _compared: dict[str, dict[tuple[str, int], int]] = field(default_factory=dict)
    _credit_bytes: dict[str, float] = field(default_factory=dict)

    def ordered(self, order: Order) -> None:
        """Record that a save was ordered. Until it has succeeded, "unchanged" refers to nothing."""
        self._asked[order.run] = order.number
        # Until its outcome is known "unchanged since the save before" has no checkpoint to refer to.
        self._bases.pop(order.run, None)
        self._since.pop(order.run, None)

    def not_saved(self, run: str, names: set[str]) -> None:
        """Record that a call which named this data as unchanged saved nothing."""
        # Over a row of skipped calls only what all of them name has certainly not changed.
        self._since[run] = names & self._since.get(run, names)

    def ended(self, order: Order, saved: CheckpointInfo, fingerprints: Fingerprints = NO_FINGERPRINTS) -> None:
        """Record that a save has succeeded. With ``keep`` it may have kept an existing checkpoint with other bytes."""
        kept = {} if order.kept is None else order.kept.storages
        compared = self._compared.setdefault(order.run, {})
        for sample in () if order.kept is None else order.kept.samples:
            compared[order.places[sample.storage].name, sample.start] = order.number
        # A later order was placed already, whose "unchanged" refers to itself; `keep` may have kept other bytes.
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
        """Return the places of a state; `unchanged` is the caller's claim, and `names` are the names that it selects.

        If another call saved to the run or loaded from it after the base, as `last_parents` shows, the caller means
        another checkpoint. `first` has storages that are copied in any case, with their places.
        """
        base = self._bases.get(order.run)
        if (
            unchanged is None
            or base is None
            # Another call saved or loaded this run since: its bytes are not those that this client compared.
            or last_parents.get(order.run, LOST).id != base.id
            or order.step == base.step  # it is replaced by this save, perhaps before another saver goes on with it
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
        """Return the chunks to compare, those compared longest ago first: storage, start, size."""
        compared = self._compared.get(run, {})
        chunks = [
            (storage, start, min(chunk_bytes, captured.sources[storage].nbytes - start))
            for storage in storages
            for start in range(0, captured.sources[storage].nbytes, chunk_bytes)
        ]
        # Longest ago first: within `IN_SAVES` saves each chunk has had its turn.
        chunks.sort(key=lambda chunk: compared.get((captured.sources[chunk[0]].name, chunk[1]), -1))
        named = [chunk for chunk in chunks if chunk[0] not in unnamed]
        due = named[: -(-len(named) // IN_SAVES)]
        # Evidence needs less than a word: as much as a save reads again of what it finds in the store. Whole chunks
        # are compared, so what is due gathers over several saves.
        seen = [chunk for chunk in chunks if chunk[0] in unnamed]
        credit = self._credit_bytes.get(run, 0.0) + _SEEN_SHARE * sum(chunk[2] for chunk in seen)
        for chunk in seen:
            if credit < chunk[2]:
                break
            credit -= chunk[2]
            due.append(chunk)
        self._credit_bytes[run] = credit if seen else 0.0
        return due
