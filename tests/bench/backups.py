"""Peers that keep files: restic, borg, DVC. The state is a safetensors file that was written before the clock runs.

So they do less than the others: they only take in a file that is in the page cache. restic and borg make their own
files durable; DVC does not, and gets an fsync of what it made.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import torch

from tests.bench.case import System, sync_tree
from tests.bench.states import State


class _Program(System):
    """A program on PATH that keeps the files of one directory."""

    program = True
    deduplicates = True

    def missing(self) -> str:
        return "" if shutil.which(self.name) else f"there is no program {self.name}"

    def open(self, folder: Path) -> None:
        self._folder = folder
        self._source = folder / "source"
        self._source.mkdir()
        self._file = self._source / "state.safetensors"
        self._environment = {**os.environ, "HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}
        self._start()

    def _start(self) -> None:
        raise NotImplementedError

    def ready(self, state: State) -> None:
        from safetensors.torch import save_file

        save_file(state, self._file)
        sync_tree(self._source)

    def load(self) -> Mapping[str, torch.Tensor]:
        from safetensors.torch import load_file

        shutil.rmtree(self._folder / "restored", ignore_errors=True)
        found = next(self._restore(self._folder / "restored").rglob("state.safetensors"))
        return load_file(found)

    def _restore(self, target: Path) -> Path:
        raise NotImplementedError

    def _run(self, *arguments: str, cwd: Path | None = None) -> str:
        command = [self.name, *arguments]
        done = subprocess.run(
            command, env=self._environment, cwd=cwd, capture_output=True, text=True, check=False, timeout=1800
        )
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()[-400:]}")
        return done.stdout


class Restic(_Program):
    """A repository of restic with its default settings, encrypted as all are."""

    name = "restic"

    def _start(self) -> None:
        self._environment |= {"RESTIC_REPOSITORY": str(self._folder / "repository"), "RESTIC_PASSWORD": "bench"}
        self._run("init", "-q")

    def save(self, state: State, step: int) -> None:
        self._run("backup", "-q", "--force", str(self._source))  # --force: read the file, do not go by its mtime

    def _restore(self, target: Path) -> Path:
        self._run("restore", "-q", "latest", "--target", str(target))
        return target

    def verify(self) -> None:
        self._run("check", "-q", "--read-data")


class Borg(_Program):
    """A repository of borg without encryption, compressed by lz4 as it is by default."""

    name = "borg"

    def _start(self) -> None:
        self._environment |= {
            "BORG_REPO": str(self._folder / "repository"),
            "BORG_BASE_DIR": str(self._folder / "borg"),
            "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes",
            "BORG_RELOCATED_REPO_ACCESS_IS_OK": "yes",
        }
        self._run("init", "--encryption", "none")
        self._newest = ""

    def save(self, state: State, step: int) -> None:
        self._newest = f"{step:06}"
        self._run("create", "--files-cache", "disabled", f"::{self._newest}", str(self._source))

    def _restore(self, target: Path) -> Path:
        target.mkdir()
        self._run("extract", f"::{self._newest}", cwd=target)
        return target

    def verify(self) -> None:
        self._run("check", "--verify-data")


class Dvc(_Program):
    """A directory of DVC without git; files are linked or copied as it does by default."""

    name = "dvc"

    def _start(self) -> None:
        self._environment |= {"DVC_NO_ANALYTICS": "1", "DVC_GLOBAL_CONFIG_DIR": str(self._folder / "dvc")}
        self._run("init", "--no-scm", "-q", cwd=self._folder)

    def ready(self, state: State) -> None:
        self._file.unlink(missing_ok=True)  # it may be a link into its cache by now
        super().ready(state)

    def save(self, state: State, step: int) -> None:
        self._run("add", "-q", str(self._file), cwd=self._folder)
        sync_tree(self._folder / ".dvc")
        sync_tree(self._source)

    def _restore(self, target: Path) -> Path:
        self._file.unlink()
        self._run("checkout", "-q", str(self._file), cwd=self._folder)
        return self._source
