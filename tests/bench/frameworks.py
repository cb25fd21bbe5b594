"""torch.save, safetensors, distributed checkpoints: each gets the fsync of file and directory that it lacks."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tests.bench.case import System, sync_file
from tests.bench.states import State


class _OneFile(System):
    """A file a step: written under another name, made durable, renamed; then the directory is made durable."""

    suffix = ""

    def open(self, folder: Path) -> None:
        self._folder = folder / "files"
        self._folder.mkdir()
        sync_file(folder)

    def save(self, state: State, step: int) -> None:
        path = self._path(step)
        fresh = path.with_suffix(".new")
        self._write(state, fresh)
        sync_file(fresh)
        os.rename(fresh, path)
        sync_file(self._folder)

    def _write(self, state: State, path: Path) -> None:
        raise NotImplementedError

    def forget(self, step: int) -> None:
        self._path(step).unlink()

    def _path(self, step: int) -> Path:
        return self._folder / f"{step:06}{self.suffix}"

    def _newest(self) -> Path:
        return max(self._folder.iterdir())


class TorchSave(_OneFile):
    """`torch.save` of a path, which is its faster form, and `torch.load`.

    Args:
        crc32: Whether the checksums of the zip file are computed, as they are by default.
    """

    suffix = ".pt"

    def __init__(self, *, crc32: bool = True) -> None:
        self.name = "torch.save" if crc32 else "torch.save, no crc32"
        self._crc32 = crc32

    def open(self, folder: Path) -> None:
        super().open(folder)
        torch.serialization.set_crc32_options(self._crc32)

    def _write(self, state: State, path: Path) -> None:
        torch.save(state, path)

    def load(self) -> Mapping[str, torch.Tensor]:
        state: Mapping[str, torch.Tensor] = torch.load(self._newest(), weights_only=True)
        return state

    def load_mapped(self) -> Mapping[str, torch.Tensor]:
        state: Mapping[str, torch.Tensor] = torch.load(self._newest(), weights_only=True, mmap=True)
        return state

    def load_into(self, state: State) -> None:
        found = self.load()
        for name, tensor in state.items():
            tensor.copy_(found[name])

    def load_one(self, name: str) -> torch.Tensor:
        return self.load_mapped()[name].clone()


class Safetensors(_OneFile):
    """`safetensors.torch.save_file` and `load_file`, which maps; a load into fresh memory copies each tensor."""

    name = "safetensors"
    suffix = ".safetensors"

    def _write(self, state: State, path: Path) -> None:
        from safetensors.torch import save_file

        save_file(state, path)

    def load(self) -> Mapping[str, torch.Tensor]:
        return {name: tensor.clone() for name, tensor in self.load_mapped().items()}

    def load_mapped(self) -> Mapping[str, torch.Tensor]:
        from safetensors.torch import load_file

        return load_file(self._newest())

    def load_into(self, state: State) -> None:
        for name, tensor in self.load_mapped().items():
            state[name].copy_(tensor)

    def load_one(self, name: str) -> torch.Tensor:
        from safetensors import safe_open

        with safe_open(self._newest(), framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(name).clone()
        return tensor


class DistributedCheckpoint(System):
    """`torch.distributed.checkpoint` in one process; it fsyncs its files, and the directories are added.

    Args:
        threads: Files that are written at once.
    """

    def __init__(self, threads: int) -> None:
        self.name = f"DCP, {threads} {'thread' if threads == 1 else 'threads'}"
        self._threads = threads

    def missing(self) -> str:
        from torch import distributed

        return "" if distributed.is_available() else "this torch has no torch.distributed"

    def open(self, folder: Path) -> None:
        self._folder = folder / "dcp"
        self._folder.mkdir()
        sync_file(folder)

    def save(self, state: State, step: int) -> None:
        dcp = _dcp()
        path = self._folder / f"{step:06}"
        writer = dcp.FileSystemWriter(path, thread_count=self._threads, sync_files=True)
        dcp.save(dict(state), storage_writer=writer, no_dist=True)
        sync_file(path)
        sync_file(self._folder)

    def forget(self, step: int) -> None:
        shutil.rmtree(self._folder / f"{step:06}")

    def load(self) -> Mapping[str, torch.Tensor]:
        fresh = {name: torch.empty(size, dtype=dtype) for name, (size, dtype) in self._described().items()}
        self.load_into(fresh)
        return fresh

    def _described(self) -> dict[str, tuple[Any, torch.dtype]]:
        metadata = self._reader().read_metadata().state_dict_metadata
        return {name: (entry.size, entry.properties.dtype) for name, entry in metadata.items()}

    def _reader(self) -> Any:
        return _dcp().FileSystemReader(max(self._folder.iterdir()))

    def load_into(self, state: State) -> None:
        _dcp().load(dict(state), storage_reader=self._reader(), no_dist=True)

    def load_one(self, name: str) -> torch.Tensor:
        size, dtype = self._described()[name]
        tensor = torch.empty(size, dtype=dtype)
        self.load_into({name: tensor})
        return tensor


def _dcp() -> Any:
    return importlib.import_module("torch.distributed.checkpoint")  # its names are public, and not exported for mypy


class FileEach(System):
    """A raw file a tensor, fsync each: what a store without packs does with small tensors."""

    name = "file a tensor, fsync each"

    def open(self, folder: Path) -> None:
        self._folder = folder / "each"
        self._folder.mkdir()

    def save(self, state: State, step: int) -> None:
        target = self._folder / f"{step:06}"
        target.mkdir()
        for name, tensor in state.items():
            path = target / name
            path.write_bytes(tensor.view(-1).view(torch.uint8).numpy().data)
            sync_file(path)
        sync_tree_names(target)

    def load(self) -> Mapping[str, torch.Tensor]:
        paths = max(self._folder.iterdir()).iterdir()
        return {path.name: torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.float32) for path in paths}


def sync_tree_names(folder: Path) -> None:
    """Make the names in a directory durable, and its own."""
    sync_file(folder)
    sync_file(folder.parent)
