"""A save and a load in memory: from a capture through a real manifest and back, without a store."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ckstore.model.digest import ALGORITHMS
from ckstore.model.manifest.manifest import BlobRecord, Description, Extent, LeafKind, Manifest, StorageRecord, render
from ckstore.model.manifest.parse import parse_manifest
from ckstore.tensors.memory_layout import StorageMemory
from ckstore.tensors.state_capture import Captured, capture
from ckstore.tensors.state_restore import allocate, build, needed_storages, sink_of
from ckstore.tensors.targets.into import IntoPlan, plan_into

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckstore.model.manifest.captured import ByteSource
    from ckstore.tensors.targets.load_comparison import LoadRules


def bytes_of(source: ByteSource) -> bytes:
    """Return all bytes of a source."""
    out = bytearray(source.nbytes)
    source.read_into(0, source.nbytes, memoryview(out))
    return bytes(out)


class Saved:
    """A state as a store would have it: a manifest that was written and read again, and the bytes."""

    def __init__(self, state: object) -> None:
        self.captured: Captured = capture(state)
        self.data = [bytes_of(source) for source in self.captured.sources]
        self.manifest = parse_manifest(render(self._manifest(), ALGORITHMS["xxh3_128"])[1], where="test")[0]
        self.asked: list[int] = []

    def _manifest(self) -> Manifest:
        digest = ALGORITHMS["xxh3_128"].digest
        sizes = {digest(data): len(data) for data in self.data if data}
        index = {name: i for i, name in enumerate(sizes)}
        storages = [
            StorageRecord(len(data), (Extent(digest(data), index[digest(data)], 0, len(data)),) if data else ())
            for data in self.data
        ]
        total = sum(map(len, self.data))
        return Manifest(
            run="main",
            step=1,
            sequence=1,
            created="2026-01-02T03:04:05.000000Z",
            writer="test",
            description=Description(),
            logical_bytes=total,
            new_bytes=sum(sizes.values()),
            reused_bytes=total - sum(sizes.values()),
            content=digest(b""),
            blobs=tuple(BlobRecord(name, nbytes) for name, nbytes in sizes.items()),
            storages=tuple(storages),
            leaves=self.captured.leaves,
            state=self.captured.state,
        )

    def memory(self, storage: int) -> StorageMemory:
        """Return fresh memory with the bytes of a storage; `asked` lists the calls."""
        self.asked.append(storage)
        kinds: dict[int, LeafKind] = {leaf.storage: leaf.kind for leaf in self.manifest.leaves}
        memory = allocate(kinds[storage], len(self.data[storage]))
        memory.view[:] = self.data[storage]
        return memory

    def load(self, device: object = "cpu", keep: Callable[[str], bool] | None = None) -> Any:
        """Return the state; check that only what is needed was asked for, and once."""
        self.asked.clear()
        leaves = self.manifest.leaves
        value = build(self.manifest.state, leaves, self.memory, sink=sink_of(device, leaves), keep=keep)
        assert sorted(self.asked) == needed_storages(self.manifest.state, self.manifest.leaves, keep)
        return value

    def plan(self, target: object, terms: LoadRules | None = None) -> IntoPlan:
        """Return the plan to load into `target`."""
        plan = plan_into(target, self.manifest.state, self.manifest.leaves, terms)
        plan.prepare([record.nbytes for record in self.manifest.storages])
        return plan

    def load_into(self, target: object, terms: LoadRules | None = None) -> IntoPlan:
        """Load into `target`; check that only what is indirect was asked for, and once."""
        plan = self.plan(target, terms)
        plan.attempt(lambda storages: {storage: self.memory(storage) for storage in storages})
        for storage, memory in plan.direct.items():
            memory[:] = self.data[storage]
        for storage in plan.copied:
            plan.filling.fill(storage, self.memory(storage))
        self.asked.clear()
        plan.finish(self.memory)
        assert sorted(self.asked) == sorted(plan.indirect)
        return plan


def differences(plan: IntoPlan) -> dict[str, Any]:
    """Return what a plan found, without the kinds of which there is nothing."""
    return {name: value for name, value in dataclasses.asdict(plan.differences).items() if value}
