"""Peers that are rarely installed: tensorizer, Orbax (`pip install tensorizer orbax-checkpoint`)."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tests.bench.case import System, sync_file, sync_tree
from tests.bench.states import State


class _Imported(System):
    """A peer that is a package."""

    module = ""
    package = ""

    def missing(self) -> str:
        found = importlib.util.find_spec(self.module.split(".")[0])
        return "" if found else f"{self.package} is not installed: pip install {self.package}"

    def open(self, folder: Path) -> None:
        self._folder = folder / "peer"
        self._folder.mkdir()
        sync_file(folder)

    def forget(self, step: int) -> None:
        path = self._path(step)
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _path(self, step: int) -> Path:
        return self._folder / f"{step:06}"

    def _newest(self) -> Path:
        return max(self._folder.iterdir())


class Tensorizer(_Imported):
    """`TensorSerializer` to a local file, which it does not fsync; hashes are verified where `load` says so."""

    name = "tensorizer"
    module = "tensorizer"
    package = "tensorizer"

    def save(self, state: State, step: int) -> None:
        serializer = importlib.import_module(self.module).TensorSerializer(str(self._path(step)))
        serializer.write_state_dict(state)
        serializer.close()
        sync_file(self._path(step))
        sync_file(self._folder)

    def load(self) -> Mapping[str, torch.Tensor]:
        return self._read(verify_hash=True)

    def load_one(self, name: str) -> torch.Tensor:
        return self._read(lazy_load=True, filter_func=lambda key: key == name)[name]

    def _read(self, **options: Any) -> dict[str, torch.Tensor]:
        deserializer = importlib.import_module(self.module).TensorDeserializer
        with deserializer(str(self._newest()), device="cpu", **options) as found:
            return {name: found[name] for name in list(found.keys())}


class Orbax(_Imported):
    """`PyTreeCheckpointer`, which writes its arrays by tensorstore; what it does not fsync itself is added."""

    name = "Orbax"
    module = "orbax.checkpoint"
    package = "orbax-checkpoint"

    def save(self, state: State, step: int) -> None:
        arrays = {name: self._array(tensor) for name, tensor in state.items()}
        self._checkpointer().save(self._path(step).resolve(), arrays)
        sync_tree(self._path(step))

    def load(self) -> Mapping[str, torch.Tensor]:
        orbax = importlib.import_module(self.module)
        path = self._newest().resolve()
        metadata = self._checkpointer().metadata(path).item_metadata.tree
        wanted = {name: orbax.RestoreArgs(restore_type=importlib.import_module("numpy").ndarray) for name in metadata}
        found = self._checkpointer().restore(path, restore_args=wanted)
        return {name: self._tensor(array) for name, array in found.items()}

    def _checkpointer(self) -> Any:
        return importlib.import_module(self.module).PyTreeCheckpointer()

    def _array(self, tensor: torch.Tensor) -> Any:
        if tensor.dtype is torch.bfloat16:
            return tensor.view(torch.int16).numpy().view(importlib.import_module("ml_dtypes").bfloat16)
        return tensor.numpy()

    def _tensor(self, array: Any) -> torch.Tensor:
        if array.dtype.name == "bfloat16":
            return torch.from_numpy(array.view("int16")).view(torch.bfloat16)
        return torch.from_numpy(array)
