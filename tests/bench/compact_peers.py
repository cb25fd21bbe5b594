"""Peers of ``python -m tests.bench compact``: what each keeps of the older of two states when it has the newer one."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

State = dict[str, torch.Tensor]
PEERS = ("zstd-3", "zipnn", "restic", "borg")


class Peers:
    """The peers that are installed, with their repositories in a folder."""

    def __init__(self, folder: Path) -> None:
        self._source, self._restic, self._borg = folder / "source", folder / "restic", folder / "borg"
        self._source.mkdir()
        self._environment = {**os.environ, "HOME": str(folder), "RESTIC_PASSWORD": "x", "BORG_BASE_DIR": str(folder)}
        self.missing = {
            "zipnn": "" if importlib.util.find_spec("zipnn") else "the package zipnn is not installed",
            **{name: "" if shutil.which(name) else f"there is no program {name}" for name in ("restic", "borg")},
        }
        if not self.missing["restic"]:
            self._run("restic", "-q", "-r", str(self._restic), "init")
        if not self.missing["borg"]:
            self._run("borg", "init", "-e", "none", str(self._borg))
        self._count = 0

    def kept(self, older: State, newer: State, *, backups: bool = True) -> Mapping[str, int]:
        """Return how many bytes each peer keeps of the older state; programs for backups take seconds, if wanted."""
        found = {"zstd-3": _zstd(older)}
        if not self.missing["zipnn"]:
            found["zipnn"] = _zipnn(older)
        for name, folder in (("restic", self._restic), ("borg", self._borg)):
            if backups and not self.missing[name]:
                self._backup(name, newer)
                before = _size(folder)
                self._backup(name, older)
                found[name] = _size(folder) - before
        return found

    def _backup(self, name: str, state: State) -> None:
        from safetensors.torch import save_file

        save_file(state, self._source / "state.safetensors")
        self._count += 1
        if name == "restic":
            self._run("restic", "-q", "-r", str(self._restic), "backup", ".")
        else:
            self._run("borg", "create", "-C", "zstd,3", f"{self._borg}::{self._count}", ".")

    def _run(self, *command: str) -> None:
        done = subprocess.run(
            command, cwd=self._source, env=self._environment, capture_output=True, text=True, check=False, timeout=1800
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr[-500:]}")


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _raw(value: torch.Tensor) -> bytes:
    return bytes(value.contiguous().flatten().view(torch.uint8).numpy().tobytes())


def _zstd(state: State) -> int:
    import zstandard

    compressor = zstandard.ZstdCompressor(level=3)
    return sum(len(compressor.compress(_raw(value))) for value in state.values())


def _zipnn(state: State) -> int:
    ZipNN = importlib.import_module("zipnn").ZipNN  # noqa: N806 - its name

    names = {torch.bfloat16: "bfloat16", torch.float32: "float32"}
    total = 0
    for value in state.values():
        raw = _raw(value)
        dtype = names.get(value.dtype)
        packed = raw if dtype is None else ZipNN(bytearray_dtype=dtype, input_format="byte").compress(raw)
        total += min(len(packed), len(raw))
    return total
