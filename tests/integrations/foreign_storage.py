"""Run the tests of torch_checkpointing with checkpoints in stores: ``python -m tests.integrations.foreign_storage``.

It downloads the source of the installed version, runs those of its tests that save or load with a storage, once with
its own storage and once with ours in its place, and prints both counts and the tests whose result differs. A folder
gets a store when a directory is renamed in it for the first time. Tests that look at the disk, and not at the storage,
differ, and so do those in which the disk refuses each rename.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torch_checkpointing.storage import filesystem
from torch_checkpointing.storage.filesystem import LocalFileSystemStorage, LocalFileSystemStorageConfig

from ckstore import Store
from ckstore.integrations.torch_checkpointing import CkstoreStorage, CkstoreStorageConfig

_STORES = "CKSTORE_TEST_STORES"
"""Names the directory of the stores, for the processes that the tests start."""
_FILES = "test_checkpoint_manager test_checkpoint_reader test_checkpoint_writer test_local_filesystem test_hf_loading"


@dataclass
class AnyFolderConfig(LocalFileSystemStorageConfig):
    """In the place of the default configuration."""

    def create_storage(self) -> AnyFolder:
        return AnyFolder(self)


class AnyFolder(LocalFileSystemStorage):
    """Passes each path on to the storage of its folder, if that has a store."""

    def __init__(self, config: AnyFolderConfig) -> None:
        super().__init__(config)
        self._made: dict[Path, CkstoreStorage] = {}

    def of(self, path: Path, *, make: bool = False) -> CkstoreStorage | None:
        """Return the storage of the nearest folder above a path."""
        parents = [Path(os.path.abspath(path)).parent] if make else [*Path(os.path.abspath(path) + "/x").parents][:-2]
        for folder in parents:
            store = Path(os.environ[_STORES]) / hashlib.sha256(str(folder).encode()).hexdigest()
            if make and not store.exists():
                Store.init(store).close()
            if store.exists():
                if folder not in self._made:
                    config = CkstoreStorageConfig(store, folder, temp_dir_prefix="")
                    self._made[folder] = config.create_storage()
                return self._made[folder]
        return None

    def rename(self, src_path: Path, dst_path: Path, *rest: Any, **options: Any) -> None:
        storage = self.of(dst_path, make=os.path.isdir(src_path))
        if storage is None:
            super().rename(src_path, dst_path, *rest, **options)
        else:
            storage.rename(src_path, dst_path, *rest, **options)


def _passed_on(name: str) -> Any:
    def method(self: AnyFolder, path: Path, *rest: Any, **options: Any) -> Any:
        storage = self.of(path)
        own = getattr(LocalFileSystemStorage, name).__get__(self)
        return (own if storage is None else getattr(storage, name))(path, *rest, **options)

    return method


for _name in ("stream_read", "stream_write", "write", "delete", "mkdir", "rmdir", "ls", "exists", "isdir", "getsize"):
    setattr(AnyFolder, _name, _passed_on(_name))


def pytest_configure() -> None:
    """Have the tests use it; pytest loads this module as a plugin."""
    if _STORES in os.environ:
        filesystem.LocalFileSystemStorageConfig = AnyFolderConfig  # type: ignore[misc]


def results(tests: Path, stores: Path | None) -> dict[str, str]:
    """Return the result of each test."""
    environment = {**os.environ, "PYTHONPATH": f"{Path(__file__).parents[2]}:{tests.parents[1] / 'packages'}"}
    if stores is not None:
        environment[_STORES] = str(stores)
    files = [f"{name}.py" for name in _FILES.split()]
    options = ["-p", "no:cacheprovider", "-p", __spec__.name, "-q", "-rA", "--continue-on-collection-errors"]
    command = [sys.executable, "-m", "pytest", *options, *files]
    done = subprocess.run(command, cwd=tests, env=environment, capture_output=True, text=True, check=False)
    return {test: result for result, test in re.findall(r"^(PASSED|FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)}


def main() -> int:
    """Print the counts; return 1 if a test of the storage contract fails."""
    number = version("torch_checkpointing")
    with tempfile.TemporaryDirectory(prefix="ckstore-foreign-") as name:
        folder = Path(name)
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "-d", name]
        subprocess.run([*pip, f"torch_checkpointing=={number}"], check=True)
        needed = [sys.executable, "-m", "pip", "install", "-q", "--target", str(folder / "packages"), "expecttest"]
        subprocess.run(needed, check=True)
        with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
            archive.extractall(folder, filter="data")
        (folder / "stores").mkdir()
        (tests,) = folder.glob("torch_checkpointing-*/tests")
        plain, kept = results(tests, None), results(tests, folder / "stores")
        stores = len([*(folder / "stores").iterdir()])
    for what, found in (("its own storage", plain), (f"ours, {stores} stores", kept)):
        passed = sum(result == "PASSED" for result in found.values())
        print(f"torch_checkpointing {number}, {what}: {passed} of {len(found)} passed")
    for test in sorted({*plain, *kept}):
        if plain.get(test) != kept.get(test):
            print(f"{test}: {plain.get(test)} with its own, {kept.get(test)} with ours")
    return int("test_local_filesystem.py" in str([test for test, result in kept.items() if result != "PASSED"]))


if __name__ == "__main__":
    sys.exit(main())
