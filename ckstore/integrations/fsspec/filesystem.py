"""`CkstoreFileSystem` lets programs that accept fsspec URLs read and write the checkpoints of a store.

A checkpoint appears as a directory that never changes, and every byte that is read is checked. Files are written in a
transaction, which publishes one checkpoint or nothing.
"""

from __future__ import annotations

import os
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.utils import tokenize

from ckstore.errors import BadInput, CkstoreError, NoSuchFile, NoSuchRef, StoreNotFound
from ckstore.integrations.fsspec.places import PREFIX, StoreLocation, entries, entry, place_of, stripped
from ckstore.integrations.fsspec.transaction import CheckpointTransaction, TransactionFiles
from ckstore.integrations.opened_file import opened
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.names import expanded, is_run
from ckstore.model.training_identity import Parent
from ckstore.objects.publish import IfExists
from ckstore.ops.read.committed_file import BUFFER_BYTES
from ckstore.ops.save.continuation import parent_at
from ckstore.store import Store, context_of

_TRANSACTION = "with fs.transaction: its files become visible together when it ends"
_TWO_LINES = """fs, path = fsspec.url_to_fs({url!r})
with fs.transaction, fs.open(path, "wb") as file: file.write(data)"""


class CkstoreFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """A filesystem of fsspec for paths ``ckstore:///path/to/store/RUN/CHECKPOINT/FILE``.

    `CHECKPOINT` is a step, ``latest``, ``latest-valid`` or a tag. A missing file raises `NoSuchFile`, a path without a
    store raises `StoreNotFound`, and an attempt to change a published checkpoint raises `BadInput`.

    Args:
        if_exists: As in `ckstore.Store.commit`, for written checkpoints.
        staging: The directory in which written files are kept until their checkpoint is committed. If None, the parent
            directory of the store.
        options: The options of fsspec.

    Attributes:
        last: The last committed checkpoint.
    """

    protocol = PREFIX.removesuffix("://")
    root_marker = "/"
    transaction_type = CheckpointTransaction

    def __init__(
        self, if_exists: IfExists = "error", staging: str | os.PathLike[str] | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        self.if_exists = if_exists
        self.staging = None if staging is None else Path(os.path.abspath(expanded(staging)))
        self.last: CheckpointInfo | None = None
        self._stores: dict[tuple[Path, bool], Store] = {}
        self._parents: dict[Path, dict[str, Parent]] = {}  # parents of the next saves, by store

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return [stripped(each) for each in path] if isinstance(path, list) else stripped(path)

    def store_at(self, path: Path, *, to_write: bool = False) -> Store:
        """Return the store at a path, read-only unless `to_write` is set. Repeated calls return the same object."""
        key = path, to_write
        if key not in self._stores:
            # Reads use a separate read-only handle, so that users without write permission can read.
            self._stores[key] = Store.open(path, readonly=not to_write)
            if to_write:
                context_of(self._stores[key]).known.last_parents = self._parents.setdefault(path, {})
        return self._stores[key]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Return the name, size and type of a file or directory, and the id of a checkpoint."""
        place = place_of(path)
        tree = self._tree(place)
        if place.path not in tree:
            raise NoSuchFile(f"{place} is not in {place.run}@{place.name}", hint="fs.find(…) lists its files")
        return tree[place.path]

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """List the runs of a store, the steps of a run, or the files of a checkpoint."""
        place = place_of(path)
        tree = self._tree(place)
        if tree.get(place.path, {"type": ""})["type"] == "directory":
            found = [tree[name] for name in tree if name and os.path.dirname(name) == place.path]
        else:
            found = [self.info(path)]
        return sorted(found, key=lambda each: str(each["name"])) if detail else sorted(each["name"] for each in found)

    def exists(self, path: str, **_: Any) -> bool:
        """Whether a path exists. Damage raises an error and does not count as a missing path."""
        return bool(self._type(path))

    def isdir(self, path: str) -> bool:
        """Whether a path is a directory. See `exists`."""
        return self._type(path) == "directory"

    def isfile(self, path: str) -> bool:
        """Whether a path is a file. See `exists`."""
        return self._type(path) == "file"

    def _type(self, path: str) -> str:
        try:
            return str(self.info(path)["type"])
        except (NoSuchRef, StoreNotFound):
            return ""

    def created(self, path: str) -> datetime:
        """Return the creation time of the checkpoint of this file."""
        return datetime.fromisoformat(self._checkpoint(place_of(path)).created)

    def modified(self, path: str) -> datetime:
        """Return the creation time, as `created` does, because a checkpoint never changes."""
        return self.created(path)

    def ukey(self, path: str) -> str:
        """Return a key that changes when this path names a file of another checkpoint."""
        return str(tokenize(self.info(path)))

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        place = place_of(path)
        staging = self._staging_of(place)
        if mode == "rb":
            if staging is not None:
                return staging.open(place, mode)
            info = self._checkpoint(place)
            file = opened(self.store_at(place.store).open_checkpoint(info), place.path)
            self._continue(place.store, info)
            return file
        if mode not in ("wb", "xb"):
            msg = f"{place} cannot be opened with {mode!r}: a checkpoint in a store never changes"
            raise BadInput(msg, hint="'rb' reads; 'wb' and 'xb' write a new checkpoint")
        return self._staging_to_write(place).open(place, mode)

    def _continue(self, store: Path, info: CheckpointInfo) -> None:
        """Record a checkpoint, of which a file was read, as the parent of the next written checkpoint."""
        context = context_of(self.store_at(store))
        parents = self._parents.setdefault(store, {})
        before = parents.get("")
        if before is None or before.id != info.id:
            parents[info.run] = parents[""] = parent_at(context, info)

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """Create a directory in the checkpoint that is being written. Other paths need no directories."""
        self.makedirs(path, exist_ok=True)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Create directories. See `mkdir`."""
        place = place_of(path)
        if self._intrans and place.path:
            local = self._staging_to_write(place).local(place.path)
            local.mkdir(parents=True, exist_ok=exist_ok)

    def mv(self, path1: str, path2: str, **_: Any) -> None:
        """Rename a file of the checkpoint that is being written."""
        old, new = place_of(path1), place_of(path2)
        staging = self._staging_of(old)
        if staging is None or self._staging_of(new) is not staging:
            msg = f"{old} cannot be renamed: a checkpoint in a store never changes"
            raise BadInput(msg, hint=_TRANSACTION)
        staging.local(new.path).parent.mkdir(parents=True, exist_ok=True)
        staging.local(old.path).replace(staging.local(new.path))

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        """Copy a file into the checkpoint that is being written."""
        if self.isdir(path1):
            self.makedirs(path2, exist_ok=True)
            return
        with self.open(path1, "rb") as source, self.open(path2, "wb") as target:
            shutil.copyfileobj(source, target, BUFFER_BYTES)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Delete a file of the checkpoint that is being written, or, with `recursive`, a whole checkpoint.

        The deletion of a checkpoint works like `Store.delete`.

        Raises:
            BadInput: The path is a part of a published checkpoint, a run, or a store.
            InUse: The checkpoint is tagged, pinned or open.
            NoSuchFile: The path does not exist.
        """
        for each in path if isinstance(path, (list, tuple)) else [path]:
            self._remove(place_of(each), recursive=recursive)

    def rm_file(self, path: str) -> None:
        """Remove a file of the checkpoint that is being written. See `rm`."""
        self.rm(path)

    _rm = rm_file

    def rmdir(self, path: str) -> None:
        """Raise `BadInput`, because directories exist only through their files."""
        raise BadInput(f"{path}: directories exist only through their files", hint="fs.rm(checkpoint, recursive=True)")

    def _remove(self, place: StoreLocation, *, recursive: bool) -> None:
        staging = self._staging_of(place)
        if staging is not None and place.path:
            local = staging.local(place.path)
            if local.is_dir() and recursive:
                shutil.rmtree(local)
            elif local.is_file():
                local.unlink()
            else:
                raise NoSuchFile(f"{place} was not written", hint="fs.find(…) lists the written files")
            return
        if place.name and not place.path and recursive:
            self.store_at(place.store, to_write=True).delete(self._checkpoint(place))
            return
        msg = f"{place} cannot be removed: only a whole checkpoint can"
        raise BadInput(msg, hint="fs.rm('ckstore:///path/to/store/RUN/STEP', recursive=True)")

    def _staging_of(self, place: StoreLocation) -> TransactionFiles | None:
        """Return the uncommitted files of the checkpoint at a location, if it is being written."""
        staging = self._transaction.staging if self._transaction is not None else None
        if staging is None or not place.name or (place.store, place.run) != staging.target[:2]:
            return None
        return staging if place.step == staging.target[2] else None

    def _staging_to_write(self, place: StoreLocation) -> TransactionFiles:
        target = place.to_write()
        if not self._intrans:
            msg = f"{place} cannot be written outside a transaction: readers would see a partial checkpoint"
            raise BadInput(msg, hint=f"these two lines write it:\n{_TWO_LINES.format(url=str(place))}\n")
        staging: TransactionFiles = self.transaction.staging_for(target, self.staging)
        if staging.target != target:
            _, run, step = staging.target
            msg = f"{place} is not in {run}@{step}, and a transaction writes one checkpoint"
            raise BadInput(msg, hint="end it, and begin another one")
        return staging

    def _tree(self, place: StoreLocation) -> dict[str, dict[str, Any]]:
        """Return the entry of a store, run or checkpoint, and the entries below it, by path relative to it."""
        top = place.written
        if not place.run:
            runs = sorted({info.run for info in self.store_at(place.store).checkpoints()})
            return {"": entry(top), **{run: entry(f"{top}/{run}") for run in runs}}
        top = f"{top}/{place.run}"
        if not place.name:
            infos = self.store_at(place.store).checkpoints(place.run) if is_run(place.run) else []
            if not infos:
                raise NoSuchFile(f"{place.store} has no run {place.run}", hint="fs.ls(store) lists the runs")
            return {"": entry(top), **{str(i.step): entry(f"{top}/{i.step}", id=i.id) for i in infos}}
        top = f"{top}/{place.name}"
        staging = self._staging_of(place)
        if staging is not None:
            return staging.entries(top)
        info = self._checkpoint(place)
        with self.store_at(place.store).open_checkpoint(info) as checkpoint:
            return entries(checkpoint.files(), top, id=info.id)

    def _checkpoint(self, place: StoreLocation) -> CheckpointInfo:
        """Return the checkpoint of a location. If the name in the location is not a ref, use the step in the name."""
        store = self.store_at(place.store)
        error: CkstoreError | None = None
        for name in (place.name, *([] if place.step is None else [str(place.step)])):
            try:
                return store.info(f"{place.run}@{name}")
            except (NoSuchRef, BadInput) as problem:
                error = error or problem
        reason = error.message if error is not None else ""
        raise NoSuchFile(
            f"{place} leads to no checkpoint: {reason}", hint="fs.ls(…) lists the steps of a run"
        ) from error
