"""Write checkpoints through fsspec. Files are staged outside the store, and one commit makes them visible."""

from __future__ import annotations

import os
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from fsspec.transaction import Transaction

from ckstore.errors import BadInput, SaveFailed
from ckstore.fs.new_tree import NewTree
from ckstore.integrations.fsspec.places import StoreLocation, entry
from ckstore.model.names import check_path
from ckstore.training.processes import world_size

_NEVER_BUILT = "fsspec"
"""The directory for staged files is created next to a path with this suffix. No file with this path ever exists."""


class TransactionFiles:
    """The staged files of one checkpoint, in a directory that is removed after the commit or a failure."""

    def __init__(self, target: tuple[Path, str, int], folder: Path | None) -> None:
        self.target = target  # store, run and step
        store = target[0]
        try:
            self.tree = NewTree.beside((folder or store.parent) / f"{store.name}.{_NEVER_BUILT}")
        except BadInput as error:
            raise BadInput(error.message, hint="give another directory: staging=…, of the same filesystem") from error

    def local(self, path: str) -> Path:
        """Return the path of a staged file."""
        return self.tree.path / path

    def open(self, place: StoreLocation, mode: str) -> Any:
        """Open a staged file, and create its directory."""
        local = self.local(place.path)
        if mode != "rb":
            check_path(place.path, "the path of a file in a checkpoint")
            local.parent.mkdir(parents=True, exist_ok=True)
        return local.open(mode)

    def entries(self, top: str) -> dict[str, dict[str, Any]]:
        """Return the fsspec entries of the staged files, for the checkpoint at `top`."""
        found = {"": entry(top)}
        for folder, folders, files in os.walk(self.tree.path):
            inner = os.path.relpath(folder, self.tree.path)
            for name in (*folders, *files):
                path = name if inner == "." else f"{inner}/{name}"
                nbytes = None if name in folders else self.local(path).stat().st_size
                found[path] = entry(f"{top}/{path}", nbytes)
        return found

    def has_files(self) -> bool:
        """Whether at least one file is staged. Directories do not count."""
        return any(names for _, _, names in os.walk(self.tree.path))

    def end(self) -> None:
        """Remove the staged files. Files that cannot be removed do no harm, and the next writer removes them."""
        with suppress(OSError), self.tree:
            pass


class CheckpointTransaction(Transaction):  # type: ignore[misc]
    """A transaction, ``with fs.transaction``. Its end publishes all written files as one checkpoint, or nothing."""

    # If there are no files, for example because all were removed again, no checkpoint is published. Nested transactions
    # are committed with the outermost one, and if one of them fails, nothing is committed. Several threads may write in
    # one transaction.

    fs: Any
    files: deque[Any]

    def __init__(self, fs: Any) -> None:
        super().__init__(fs)
        # `start_transaction` of fsspec sets `_intrans` before it creates this object. Count that transaction.
        self._depth = 1 if fs._intrans else 0  # noqa: SLF001 - start_transaction of fsspec has set it
        self._failed = False
        self._lock = threading.Lock()
        self.staging: TransactionFiles | None = None  # the uncommitted files, or None before the first write

    def start(self) -> None:
        """Begin a transaction, or a nested one."""
        with self._lock:
            if self._depth == 0:
                super().start()
            self._depth += 1

    def staging_for(self, target: tuple[Path, str, int], folder: Path | None) -> TransactionFiles:
        """Return the staged files. The first call creates their directory, for the checkpoint `target`."""
        with self._lock:
            # Hold the lock, so that two threads that both write a first file share one directory.
            if self.staging is None:
                self.staging = TransactionFiles(target, folder)
            return self.staging

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.complete(commit=kind is None)

    def complete(self, commit: bool = True) -> None:
        """End the transaction. Commit the written files, or remove them."""
        with self._lock:
            self._depth -= 1
            # Remember a failure until the outermost transaction ends. A failed inner `with` has left incomplete files.
            self._failed = self._failed or not commit
            if self._depth > 0:
                return
        # Reset the filesystem before the commit, so that the next transaction is a new one even if the commit raises.
        fs, self.fs = self.fs, None
        files, self.files = list(self.files), deque()
        staging, self.staging = self.staging, None
        fs._intrans, fs._transaction = False, None  # noqa: SLF001 - as fsspec's own does
        if staging is None:
            return
        try:
            if commit:
                self._check(files, staging)
                if not staging.has_files():  # all written files were removed again
                    return
                store, run, step = staging.target
                fs.last = fs.store_at(store, to_write=True).commit(staging.tree.path, step, run, if_exists=fs.if_exists)
        finally:
            for file in files:
                with suppress(Exception):  # only abandoned files are still open
                    file.close()
            staging.end()

    def _check(self, files: list[Any], staging: TransactionFiles) -> None:
        _, run, step = staging.target
        if self._failed:
            msg = f"a transaction in this one failed: {run}@{step} is not committed"
            raise SaveFailed(msg, hint="write all of its files again")
        still_open = [file.name for file in files if not file.closed]
        if still_open:
            msg = f"{os.path.basename(still_open[0])} is still open: {run}@{step} is not committed"
            raise BadInput(msg, hint="close each file in the transaction: with fs.open(…) as file")
        world = world_size()
        # Without this check, each rank would publish a checkpoint with only its own part, and replace that of the
        # previous rank.
        if world > 1 and any(staging.tree.path.rglob("*.distcp")):
            msg = f"each of {world} ranks would commit its own part of {run}@{step}"
            raise BadInput(msg, hint="save with ckstore.integrations.dcp: its ranks make one checkpoint")
