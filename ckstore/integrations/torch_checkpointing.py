"""A storage for torch_checkpointing that keeps its checkpoints in a store. torchtitan saves with torch_checkpointing.

Ranks write their files into a directory of a folder, and the rename that ends a save commits this directory. Other
files remain in the folder.
"""

from __future__ import annotations

import atexit
import errno
import io
import os
import shutil
import tempfile
import threading
import uuid
import warnings
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TypeVar, cast

from torch_checkpointing.checkpoint_writer import DEFAULT_TEMP_DIR_PREFIX
from torch_checkpointing.storage.base_storage import ReadArgs, StorageConfig
from torch_checkpointing.storage.filesystem import LocalFileSystemStorage, LocalFileSystemStorageConfig
from typing_extensions import Buffer, override

from ckstore.errors import BadInput, CkstoreWarning, DamagedBlob, InUse, NoSuchRef, StepExists
from ckstore.fs import locks
from ckstore.fs.lock_holders import named_holders
from ckstore.integrations.opened_file import opened
from ckstore.integrations.own_run import begin
from ckstore.model.manifest.info import CheckpointInfo, Stamp
from ckstore.model.names import AUTO, CheckpointKey, expanded
from ckstore.model.training_identity import Parent
from ckstore.objects.publish import IfExists
from ckstore.ops.index.reconcile import stamps
from ckstore.ops.read.load import continue_from
from ckstore.ops.save.continuation import parent_at
from ckstore.ops.save.gather import step_in_name
from ckstore.store import Store, context_of
from ckstore.training.history import run_of
from ckstore.training.processes import world_size

_K = TypeVar("_K")
_V = TypeVar("_V")
_KEY = "torch_checkpointing"
"""The key of the directory's name in the metadata of a checkpoint."""
_REMEMBERED = 16
"""The maximum number of cached lists of files, and of cached lists of the checkpoints of a step."""
_unfinished: dict[Path, locks.DirectoryLock] = {}
"""Directory of an unfinished checkpoint that this process writes -> its lock."""
os.register_at_fork(after_in_child=_unfinished.clear)


@atexit.register
def release_unfinished() -> None:
    """Release the locks of all directories that this process has not finished. Their files remain."""
    while _unfinished:
        _unfinished.popitem()[1].release()


@dataclass
class CkstoreStorageConfig(StorageConfig):
    """Keeps the checkpoints of a folder in a store: ``CheckpointManager.Config(storage_config=…)``.

    ``manager.save(f"{folder}/step-500", …)`` creates the checkpoint of step 500. Loads and listings find it at this
    path, although it is in the store. If the name contains no step, the checkpoint gets the next step of the run.

    Attributes:
        store: Directory of an existing store.
        folder: Directory of the checkpoints, on a filesystem that all ranks share. Files are written here until their
            checkpoint is committed.
        run: Run of the checkpoints. If None, ``main``.
        if_exists: As in `ckstore.Store.commit`, for a path that has a checkpoint. ``error`` raises `FileExistsError`.
            If another path has a checkpoint of the same step, `FileExistsError` is always raised.
        temp_dir_prefix: The same value as in torch_checkpointing's ``CheckpointWriterConfig``.

    Raises:
        BadInput: The run is ``auto``.
    """

    store: str | os.PathLike[str]
    folder: str | os.PathLike[str]
    run: str | None = None
    if_exists: IfExists = "error"
    temp_dir_prefix: str = DEFAULT_TEMP_DIR_PREFIX
    _loaded: Path = field(init=False, repr=False, compare=False)
    _has_peers: bool = field(init=False, repr=False, compare=False, default=False)

    def __post_init__(self) -> None:
        if self.run == AUTO:
            msg = "run='auto' creates a new run in each process, but all paths of a folder belong to one run"
            raise BadInput(msg, hint="name the run, for example after the folder: run='gpt-2'")
        # A child process that has unpickled this object may save after this process has loaded a checkpoint. This file
        # names the loaded checkpoint.
        self._loaded = Path(tempfile.gettempdir()) / f"ckstore-loaded-{uuid.uuid4().hex}"

    def __getstate__(self) -> dict[str, object]:
        # A child process that writes in the background is in no process group, so pass the value of this process.
        return {**self.__dict__, "_has_peers": self.has_peers()}

    def has_peers(self) -> bool:
        """Whether several processes write each checkpoint."""
        return self._has_peers or world_size() > 1 or os.environ.get("WORLD_SIZE", "1") != "1"

    @override
    def create_storage(self) -> CkstoreStorage:
        """Return a storage for one process.

        Raises:
            StoreNotFound: There is no store at this path.
        """
        return CkstoreStorage(self, self._loaded)


class CkstoreStorage(LocalFileSystemStorage):
    """A folder whose checkpoints are in a store. See `CkstoreStorageConfig`.

    Files of a checkpoint can be read, and every byte that is read is checked. An attempt to change a checkpoint raises
    `OSError`.
    """

    def __init__(self, config: CkstoreStorageConfig, loaded: Path) -> None:
        # Direct writes of torch_checkpointing fail on ext4 and XFS, because they are not aligned (see findings/).
        super().__init__(LocalFileSystemStorageConfig(use_direct_io=False))
        self._config = config
        self._folder = Path(os.path.realpath(expanded(config.folder)))
        self._path = Path(os.path.abspath(expanded(config.store)))
        self._store = Store.open(self._path, readonly=True)
        self._to_write: Store | None = None
        self._run = run_of(self._store, config.run)
        self._loaded, self._noted = loaded, ""
        self._sizes: dict[str, dict[str, int | None]] = {}
        self._known: dict[int | None, tuple[dict[CheckpointKey, Stamp], tuple[CheckpointInfo, ...]]] = {}
        self._changing = threading.Lock()

    @override
    def stream_read(self, path: Path, read_args: ReadArgs | None = None) -> io.RawIOBase:
        """Open a file for reading. A file of a checkpoint is read from the store and checked.

        Raises:
            FileNotFoundError: There is no such file.
            DamagedBlob: The read bytes are damaged or missing.
        """
        found = self._find(path)
        if found is None:
            return super().stream_read(path, read_args)
        info, inner = found
        self._size_of(info, inner, path)
        try:
            file = opened(self._store.open_checkpoint(info), inner)
        except NoSuchRef as error:  # deleted in the meantime
            raise _error(errno.ENOENT, path) from error
        try:
            self._note(info)
            if read_args is not None and not read_args.pre_read_full_file:
                return cast("io.RawIOBase", file)
            data = io.BytesIO(file.read())
        except BaseException:  # otherwise the checkpoint would remain open
            file.close()
            raise
        file.close()
        return cast("io.RawIOBase", data)

    @override
    def stream_write(self, path: Path) -> io.IOBase:
        """Open a file for writing."""
        self._check_writable(path)
        return super().stream_write(path)

    @override
    def write(self, path: Path, data: Buffer) -> None:
        """Write a file."""
        self._check_writable(path)
        super().write(path, data)

    @override
    def delete(self, path: Path) -> None:
        """Delete a file that is not part of a checkpoint."""
        if self._find(path) is not None:
            raise _unchangeable(path)
        super().delete(path)

    @override
    def mkdir(self, path: Path, recursive: bool = True) -> None:
        """Create a directory.

        Raises:
            InUse: Another training is writing a checkpoint of this name to the folder.
        """
        place = self._place(path)
        if place is not None and place[0].startswith(self._config.temp_dir_prefix):
            self._take_unfinished(self._folder / place[0], recursive or not place[1])
        if recursive and self.isdir(path):
            return
        # Refuse a directory in which each file would be refused.
        self._check_writable(Path(path) / "file")
        super().mkdir(path, recursive)

    @override
    def rmdir(self, path: Path) -> None:
        """Delete a directory. A checkpoint is deleted as `Store.delete` does.

        Raises:
            InUse: The checkpoint is tagged, pinned or open.
        """
        found = self._find(path)
        if found is None:
            super().rmdir(path)
            return
        info, inner = found
        if inner:
            raise _unchangeable(path)
        # A process that died while it replaced a checkpoint of this path may have left the older one. Delete both.
        for each in self._of_name(Path(path).name, step_in_name([Path(path)])) or [info]:
            self._writer().delete(each)

    @override
    def rename(
        self, src_path: Path, dst_path: Path, is_directory: bool = False, background_cleanup: bool = False
    ) -> None:
        """Rename a file or directory. A directory that is renamed to an entry of the folder becomes a checkpoint.

        Raises:
            FileExistsError: The destination exists.
            OSError: The source or the destination is part of a checkpoint.
            RunInUse: The run has checkpoints of another training, and this process has loaded none of them.
            CkstoreError: As in `Store.commit`. The source is kept.
        """
        place = self._place(dst_path)
        try:
            there = self._find(dst_path)
        except DamagedBlob:  # the commit replaces the damaged checkpoint
            there = None
        if self._find(src_path) is not None:
            raise _unchangeable(src_path)
        if there is not None and there[1]:
            raise _unchangeable(dst_path)
        if place is None or place[1] or not os.path.isdir(src_path):
            if there is not None:
                raise _occupied(errno.EISDIR, dst_path)
            super().rename(src_path, dst_path, is_directory, background_cleanup)
            return
        _make_way(Path(dst_path))
        # A path has at most one checkpoint, even if its name has no step.
        step = step_in_name([Path(dst_path)])
        older: list[CheckpointInfo] = []
        if there is not None:
            if self._config.if_exists == "error":
                raise _occupied(errno.ENOTEMPTY, dst_path)
            if step is None and self._config.if_exists == "replace":
                # The step of the older checkpoint may be before the last step of the training. So commit at the next
                # step, and then delete the older checkpoint.
                older = self._of_name(Path(dst_path).name, None)
            else:
                step = there[0].step
        # A checkpoint of the same step from another path is never replaced.
        if_exists = "error" if there is None or older else self._config.if_exists
        self._commit(Path(src_path), Path(dst_path), step, if_exists)
        self._drop(older, Path(dst_path))

    def _drop(self, older: list[CheckpointInfo], target: Path) -> None:
        """Delete the older checkpoints of a path after a new commit, as `Store.commit` does for a repeated step."""
        for info in older:
            try:
                self._writer().delete(info, now=not self._writer().config.undo_by_rule_s)
            except NoSuchRef:  # another process has deleted it
                continue
            except InUse as error:
                msg = f"the older checkpoint of {target} is kept: {error.message}"
                warnings.warn(msg, CkstoreWarning, stacklevel=3)

    def _commit(self, source: Path, target: Path, step: int | None, if_exists: IfExists) -> None:
        writer = self._writer()
        try:
            self._continue_loaded(writer)
            writer.commit(
                source,
                step,
                self._run,
                metadata={_KEY: {"directory": target.name}},
                if_exists=if_exists,
                if_run_in_use="error",
            )
            _remove_committed(source, target)
        except StepExists as error:  # the step was saved in another way, or to another path
            hint = f"save to a path with another number, or delete {self._run}@{step} first"
            msg = f"{error.message}; that one was saved in another way, so this path does not replace it ({hint})"
            raise FileExistsError(errno.EEXIST, msg, str(target)) from error
        finally:
            # Release the lock only after the removal, which could otherwise delete new files of another training.
            if (lock := _unfinished.pop(_resolved(source), None)) is not None:
                lock.release()

    def _take_unfinished(self, path: Path, make: bool) -> None:
        """Lock the directory of an unfinished checkpoint, and remove the files that an ended process has left in it.

        Such files would become part of the checkpoint. Ranks that save together share the directory, so they neither
        lock it nor remove files.
        """
        lock = _unfinished.get(path)
        if self._config.has_peers() or (lock is not None and lock.names(path)):
            return
        if lock is not None:
            _unfinished.pop(path).release()
        if make:
            path.mkdir(parents=True, exist_ok=True)
        elif not path.is_dir():
            return
        try:
            lock = locks.lock_exclusive(path, timeout_s=0.0)
        except InUse as error:
            msg = f"{path} is being written by another process{named_holders(os.stat(path))}"
            hint = "two trainings that save to one folder overwrite each other's files: give each a folder and a run"
            raise InUse(msg, hint=hint) from error
        _unfinished[path] = lock
        with os.scandir(path) as entries:
            for entry in entries:
                shutil.rmtree(entry) if entry.is_dir(follow_symlinks=False) else os.unlink(entry)

    @override
    def ls(self, path: Path) -> list[str]:
        """Return the names in a directory. For the folder, they include the checkpoints."""
        found = self._find(path)
        if found is not None:
            info, inner = found
            if not self.isdir(path):
                raise _error(errno.ENOTDIR if self.exists(path) else errno.ENOENT, path)
            below = f"{inner}/" if inner else ""
            files = [file for file in self._files(info) if file.startswith(below)]
            return sorted({file.removeprefix(below).partition("/")[0] for file in files})
        committed = self._committed(path)
        return sorted({*committed, *(super().ls(path) if not committed or os.path.isdir(path) else [])})

    @override
    def exists(self, path: Path) -> bool:
        """Whether the path is a file or directory."""
        found = self._find(path)
        if found is None:
            return super().exists(path) or bool(self._committed(path))
        info, inner = found
        return not inner or inner in self._files(info)

    @override
    def isdir(self, path: Path) -> bool:
        """Whether the path is a directory."""
        found = self._find(path)
        if found is None:
            return super().isdir(path) or bool(self._committed(path))
        info, inner = found
        return not inner or self._files(info).get(inner, 0) is None

    @override
    def getsize(self, path: Path) -> int:
        """Return the number of bytes of a file."""
        found = self._find(path)
        if found is None:
            return super().getsize(path)
        return self._size_of(*found, path)

    def _committed(self, path: Path) -> list[str]:
        """Return the names of all checkpoints if `path` is that of the folder, even if this node lacks the folder."""
        if Path(os.path.realpath(path)) != self._folder:
            return []
        return [name for info in self._infos(None) if (name := _name_of(info))]

    def _infos(self, step: int | None) -> tuple[CheckpointInfo, ...]:
        """Return the checkpoint of a step, or, without a step, all checkpoints of the run, oldest first."""
        found = self._stamps(step)
        known = self._known.get(step)
        if found and known is not None and known[0] == found:
            return known[1]
        try:
            infos = self._store.checkpoints(self._run) if step is None else [self._store.info(f"{self._run}@{step}")]
        except NoSuchRef:
            return ()
        # Read the catalog again only after a directory has changed. Checking the directories takes a tenth as long.
        if found and found == self._stamps(step):
            self._remember(self._known, step, (found, tuple(infos)))
        return tuple(infos)

    def _stamps(self, step: int | None) -> dict[CheckpointKey, Stamp]:
        context = context_of(self._store)
        layout, run = context.layout, self._run
        return stamps(context, layout.checkpoints_of(run) if step is None else layout.of_step(run, step))

    def _of_name(self, name: str, step: int | None) -> list[CheckpointInfo]:
        """Return the checkpoints of a path, oldest first. A process that died while it replaced one leaves several."""
        return [info for info in self._infos(step) if _name_of(info) == name]

    def _remember(self, known: dict[_K, _V], key: _K, value: _V) -> None:
        with self._changing:
            known[key] = value
            while len(known) > _REMEMBERED:
                del known[next(iter(known))]

    def _place(self, path: Path) -> tuple[str, str] | None:
        """Return the entry of the folder that contains a path, and the path inside that entry. None for other paths."""
        whole = _resolved(path)
        if whole == self._folder or not whole.is_relative_to(self._folder):
            return None
        name, *inner = whole.relative_to(self._folder).parts
        return name, "/".join(inner)

    def _find(self, path: Path) -> tuple[CheckpointInfo, str] | None:
        """Return the checkpoint that contains a path, and the path inside it. None for other paths."""
        place = self._place(path)
        # An entry that exists in the folder is still being written, or another storage has written it.
        if place is None or os.path.lexists(self._folder / place[0]):
            return None
        name, inner = place
        found = self._of_name(name, step_in_name([Path(name)]))
        return (found[-1], inner) if found else None

    def _files(self, info: CheckpointInfo) -> dict[str, int | None]:
        """Return a dict with the size of each file of a checkpoint, and None for each directory, by path."""
        if (known := self._sizes.get(info.id)) is None:
            try:
                with self._store.open_checkpoint(info) as checkpoint:
                    files = checkpoint.files()
            except NoSuchRef:  # deleted in the meantime
                return {}
            found: dict[str, int | None] = {}
            for file in files:
                found.update(dict.fromkeys(map(str, PurePosixPath(file.path).parents[:-1])))
                found[file.path] = None if file.kind == "directory" else file.nbytes
            self._remember(self._sizes, info.id, found)
            return found
        return known

    def _size_of(self, info: CheckpointInfo, inner: str, path: Path) -> int:
        """Return the size of a file of a checkpoint. Raise `OSError` if the path does not exist or is a directory."""
        files = self._files(info)
        if inner and inner not in files:
            raise _error(errno.ENOENT, path)
        nbytes = files.get(inner)
        if nbytes is None:
            raise _error(errno.EISDIR, path)
        return nbytes

    def _check_writable(self, path: Path) -> None:
        place = self._place(path)
        if place is None:
            return
        if (found := self._find(path)) is not None:
            raise _unchangeable(path) if found[1] else _error(errno.EISDIR, path)
        name, inner = place
        if inner and not name.startswith(self._config.temp_dir_prefix):
            msg = f"{path} would not become part of a checkpoint: {name} does not begin with "
            hint = "write_to_temp_dir=True, which is the default, and the same temp_dir_prefix in both configurations"
            raise BadInput(f"{msg}{self._config.temp_dir_prefix!r}", hint=hint)

    def _writer(self) -> Store:
        # Use a separate handle, so that users without write permission can load.
        if self._to_write is None:
            self._to_write = Store.open(self._path)
            begin(self._to_write, self._run)
        return self._to_write

    def _note(self, info: CheckpointInfo) -> None:
        """Record the loaded checkpoint as the parent of the next save by this process or one of its children."""
        # A save removes the record. If the same checkpoint is loaded again after a save, this is a rollback, which must
        # be recorded.
        if info.id == self._noted and self._loaded.exists():
            return
        training = parent_at(context_of(self._store), info).training
        new = self._loaded.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        try:
            new.write_text(f"{info.id} {training}", encoding="ascii")
            new.replace(self._loaded)
        except OSError:  # for example, because the disk is full
            new.unlink(missing_ok=True)
            raise
        if not self._noted:
            atexit.register(self._loaded.unlink, missing_ok=True)
        self._noted = info.id

    def _continue_loaded(self, writer: Store) -> None:
        """Continue the checkpoint that was loaded since the last save, if any, even if it has been deleted since."""
        try:
            loaded, _, training = self._loaded.read_text(encoding="ascii").partition(" ")
            self._loaded.unlink()
        except FileNotFoundError:
            return
        continue_from(context_of(writer), Parent(loaded, self._run, training))


def _remove_committed(source: Path, target: Path) -> None:
    """Remove the directory of a committed checkpoint, or warn if this fails."""
    try:
        shutil.rmtree(source)
    except OSError as error:  # the commit remains
        msg = f"{target} is committed, but its directory {source} cannot be removed: {error.strerror}"
        warnings.warn(msg, CkstoreWarning, stacklevel=4)


def _make_way(path: Path) -> None:
    """Remove an empty directory, as a rename does. Raise `FileExistsError` for any other existing path."""
    if not os.path.lexists(path):
        return
    if not os.path.isdir(path):
        raise _occupied(errno.ENOTDIR, path)
    if os.listdir(path):
        raise _occupied(errno.ENOTEMPTY, path)
    os.rmdir(path)


def _resolved(path: Path) -> Path:
    """Return a path with resolved symlinks, except in the last name, which may be a symlink to rename or delete."""
    whole = Path(os.path.abspath(path))
    return Path(os.path.realpath(whole.parent)) / whole.name


def _name_of(info: CheckpointInfo) -> str:
    """Return the name of the directory that was committed through this storage, or an empty string."""
    own = info.metadata.get(_KEY)
    name = own.get("directory") if isinstance(own, dict) else None
    return name if isinstance(name, str) else ""


def _error(number: int, path: Path) -> OSError:
    """Return the `OSError` of an error number. Python chooses its subclass by the number."""
    return OSError(number, os.strerror(number), str(path))


def _occupied(number: int, path: Path) -> OSError:
    hint = "it exists: delete it first, or use another path or if_exists='replace'"
    return FileExistsError(number, f"{os.strerror(number)}; {hint}", str(path))


def _unchangeable(path: Path) -> OSError:
    return OSError(errno.EROFS, "a checkpoint in a store never changes; rmdir deletes a whole one", str(path))
