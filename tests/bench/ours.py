"""ckstore as a system of the benchmark, with the settings that a new store has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from ckstore import RetentionPolicy, Store
from ckstore.model import sizes
from ckstore.model.names import join_key
from ckstore.model.settings.settings import DEFAULT_CHUNK_BYTES
from ckstore.ops.read import storage_read
from tests.bench.case import Role, System
from tests.bench.states import State


class Ckstore(System):
    """Saved by `Store.save`.

    Args:
        verify: Whether loads check every byte, as they do by default.
        name: For a second way to load.
        chunk_bytes, threads, pack_below_bytes: What the store chooses itself, for the curves; None: as it does.
    """

    role: Role = "ckstore"
    deduplicates = True

    def __init__(
        self,
        *,
        verify: bool = True,
        name: str = "ckstore",
        chunk_bytes: int = DEFAULT_CHUNK_BYTES,
        threads: int | None = None,
        pack_below_bytes: int | None = None,
    ) -> None:
        self.name = name
        self._verify = verify
        self._chunk_bytes = chunk_bytes
        self._threads = threads
        self._pack_below_bytes = pack_below_bytes

    def open(self, folder: Path) -> None:
        if self._threads is not None:  # this process does nothing else
            storage_read._CORES = self._threads
        if self._pack_below_bytes is not None:
            vars(sizes)["MEDIUM_BELOW_BYTES"] = self._pack_below_bytes
        self._store = Store.init(folder / "store", chunk_bytes=self._chunk_bytes)
        if self._threads is not None:
            self._store.config.threads = self._threads

    def save(self, state: State, step: int) -> None:
        self._store.save(state, step)

    def forget(self, step: int) -> None:
        self._store.delete(step)
        self._store.gc()

    def rotate(self, keep: int) -> None:
        self._store.config.retention = RetentionPolicy(keep_last=keep)  # and gc follows each save

    def load(self) -> Mapping[str, torch.Tensor]:
        state: Mapping[str, torch.Tensor] = self._store.load(verify=self._verify)
        return state

    def load_mapped(self) -> Mapping[str, torch.Tensor]:
        state: Mapping[str, torch.Tensor] = self._store.load(mmap=True, verify=False)
        return state

    def load_into(self, state: State) -> None:
        self._store.load_into(state, verify=self._verify)

    def load_one(self, name: str) -> torch.Tensor:
        with self._store.open_checkpoint("latest") as checkpoint:
            tensor: torch.Tensor = checkpoint[join_key("", name)]
        return tensor

    def verify(self) -> None:
        report = self._store.verify("latest")
        assert report.ok, report.damage
