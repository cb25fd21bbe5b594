"""An open checkpoint, from which names, single tensors and slices can be read."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from ckstore.errors import BadInput, CkstoreError, NoSuchRef
from ckstore.fs import dirfd_stat
from ckstore.fs.dirfd_stat import AnyPath, StorePath
from ckstore.fs.host.mounts import examine
from ckstore.model.brief import BriefList, brief
from ckstore.model.manifest.committed_files import FileSummary, summaries
from ckstore.model.manifest.health import Health
from ckstore.model.manifest.info import CheckpointInfo, is_local
from ckstore.model.manifest.leaf_records import itemsize
from ckstore.model.manifest.manifest import LeafRecord
from ckstore.model.manifest.nodes import join
from ckstore.model.names import plain
from ckstore.model.reports.diff import type_text
from ckstore.model.sizes import size_text
from ckstore.model.words import named
from ckstore.objects.checkpoints import CheckpointDirectory, key_with_id
from ckstore.objects.documents.annotations import read_annotations
from ckstore.objects.layout import Layout
from ckstore.ops.api_calls import api_call
from ckstore.ops.context import Context, info_of
from ckstore.ops.notices import warn
from ckstore.ops.read.committed_file import BUFFER_BYTES, CommittedFile, file_record
from ckstore.ops.read.dcp_entries import TensorNames
from ckstore.ops.read.load import Select, load_open
from ckstore.ops.read.regions import RegionReader
from ckstore.ops.read.storage_read import check_bound, check_room, read_memories
from ckstore.ops.refs.find import AnyRef, open_directory
from ckstore.tensors.memory_layout import StorageMemory
from ckstore.tensors.state_restore import LeafMaker, allocate, build_with, is_empty, make_leaf
from ckstore.tensors.walks import leaf_numbers

_FEWER_ROWS = "read fewer rows at once, as with [a:b]"


@brief()
@dataclass(frozen=True, slots=True)
class LeafSummary:
    """One tensor, array or other value kept as bytes.

    Attributes:
        name: Path in the state.
        kind: ``torch``, ``numpy``, ``bytes`` or ``str``.
        dtype: Empty for bytes and str.
        shape: Sizes, outermost first.
        nbytes: Size of the elements in bytes.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int

    def __str__(self) -> str:
        return f"{named(self.name)}: {type_text(self.kind, self.dtype, self.shape)}, {size_text(self.nbytes)}"


class OpenCheckpoint:
    """A checkpoint that is open for reading, as a context manager. It is not deleted while it is open.

    A forked child opens the checkpoint again when it first reads from it. A process that unpickles this object opens
    the checkpoint immediately. Each process has its own open checkpoint, and closes it independently.

    Attributes:
        info: The facts about the checkpoint.
    """

    def __init__(
        self, directory: CheckpointDirectory, info: CheckpointInfo, max_bytes: int | None = None, store: Any = None
    ) -> None:
        check_bound(info.name, 0, max_bytes, "")
        self.info = info
        self._max_bytes = max_bytes
        self._store = store  # the `ckstore.Store` that opened it, or None
        self._directory = directory
        self._reopened: dict[CheckpointDirectory, CheckpointDirectory] = {}
        self._closed = False
        self._names = TensorNames(directory.manifest)

    def keys(self) -> list[str]:
        r"""Return the names of all tensors, arrays, and long bytes and strings, in the order of the state.

        A dot in a key is written without a backslash, unless two names would then be equal. If a tensor consists of
        several tensors, such as a sparse or a quantized tensor, only its own name is listed. The parts can also be read
        by name.
        """
        return BriefList(self._names.listed)

    def __repr__(self) -> str:
        return f"<{self.info.name}, {'closed' if self._closed else 'open for reading'}: {len(self)} tensors>"

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self._names.listed)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    @api_call
    def __getitem__(self, name: str) -> Any:
        """Read one value. Only the pieces of this value are read and checked.

        The name may be written without its backslashes.

        Raises:
            NoSuchRef: No value has that name.
            InsufficientSpace: The value does not fit into memory, or is larger than `max_bytes` of `open_checkpoint`.
            DamagedBlob: Its bytes are damaged or missing.
        """
        found, leaves = self._names.find(name), self._directory.manifest.leaves
        if isinstance(found, LeafRecord):
            memories = self._read([found.storage], found.name, "slice() reads some rows of it")
            return make_leaf(found, memories[found.storage])
        name, node = found
        storages = {leaves[i].storage for i in leaf_numbers(node) if not is_empty(leaves[i])}
        memories = self._read(sorted(storages), name, "read the tensors that it consists of one by one")
        return build_with(node, LeafMaker(leaves, memories.__getitem__).leaf, leaves, path=name)

    def slice(self, name: str) -> LeafSlice:
        """Return a tensor that can be indexed: ``ckpt.slice("w")[a:b]`` reads only the pieces with rows a to b.

        Raises:
            NoSuchRef: No value has that name.
            BadInput: The tensor consists of several tensors, and has no rows of its own.
        """
        found = self._names.find(name)
        if isinstance(found, LeafRecord):
            return LeafSlice(self, found)
        own, node = found
        parts = ", ".join(self._names.written.get(join(own, key), key) for key, _ in node[1])
        msg = f"{plain(own)} is a {node[2]}, which consists of other tensors and has no rows of its own"
        raise BadInput(msg, hint=f"slice one of {parts}; or read all of it, and index that")

    def leaves(self) -> list[LeafSummary]:
        """Return the name, kind, dtype, shape and size of every value that is stored as bytes, without reading data."""
        written = self._names.written
        found = []
        for name, leaf in self._names.leaves.items():
            size = itemsize(leaf.kind, leaf.dtype)
            # A value without items, such as a string, occupies a whole storage.
            nbytes = (
                self._directory.manifest.storages[leaf.storage].nbytes if size is None else size * math.prod(leaf.shape)
            )
            found.append(LeafSummary(written[name], leaf.kind, leaf.dtype, leaf.shape, nbytes))
        return BriefList(found)

    @property
    def directory(self) -> Path:
        """The path of the checkpoint's directory. A copy of this directory (``cp -r``) is a complete checkpoint."""
        where = self._directory.path
        return where.path if isinstance(where, StorePath) else Path(where)

    @property
    def kept_bytes(self) -> int:
        """The total size in bytes of the blob files, plain or encoded. Other checkpoints may share these files."""
        return self._directory.manifest.kept_bytes

    @property
    def saved_bytes(self) -> int:
        """The number of bytes by which compaction made the blob files smaller, or 0 if no blob is encoded."""
        manifest = self._directory.manifest
        return sum(blob.nbytes for blob in manifest.blobs) - manifest.kept_bytes

    @property
    def health(self) -> Health | None:
        """The counts of values that are not finite, and the changes of each part, or None if the save did not check."""
        return self._directory.manifest.health

    def files(self) -> list[FileSummary]:
        """Return the path, kind, mode and size of committed files, ordered by path. A saved state has no files."""
        return BriefList(summaries(self._directory.manifest))

    @api_call
    def open_file(self, path: str) -> io.BufferedReader:
        """Open a committed file for reading with random access. The bytes that are read are checked.

        The file can be read while the checkpoint is open. ``torch.load(ckpt.open_file("optimizer.pt"))`` reads a file
        without a checkout.

        Args:
            path: A path as in `files`. A symlink is followed if its target is in the checkpoint.

        Raises:
            NoSuchFile: The file does not exist. A saved state has no files.
        """
        return io.BufferedReader(CommittedFile(self._here, file_record(self._directory.manifest, path)), BUFFER_BYTES)

    @api_call
    def load(
        self,
        *,
        device: object = "cpu",
        select: Select = None,
        mmap: bool = False,
        verify: bool = True,
        max_bytes: int | None = None,
    ) -> Any:
        """Return the state, or the part of it that `select` names; see `ckstore.Store.load`.

        Raises:
            NoSuchRef: `select` matches nothing.
            InsufficientSpace: The state does not fit into memory, or is larger than `max_bytes`, by default that of
                `open_checkpoint`.
            DamagedBlob: Bytes are damaged or missing. The message names the tensor.
        """
        most = self._max_bytes if max_bytes is None else max_bytes
        return load_open(self._here(), location=device, select=select, mmap=mmap, verify=verify, max_bytes=most)

    def close(self) -> None:
        """Close the checkpoint. Tensors that were read or mapped remain valid."""
        self._closed = True
        self._directory.close()

    def _read(self, storages: list[int], name: str, less: str) -> dict[int, StorageMemory]:
        """Read the storages of one value, unless they are larger than the caller allows."""
        records = self._directory.manifest.storages
        check_bound(self._words(name), sum(records[i].nbytes for i in storages), self._max_bytes, less)
        return read_memories(self._here(), storages, verify=True)

    def _words(self, name: str) -> str:
        return f"{named(plain(name))} of {self.info.name}"

    def _here(self) -> CheckpointDirectory:
        """Return the directory that this process has opened. In a forked child, open the directory again first.

        Raises:
            NoSuchRef: The checkpoint was removed or replaced in the meantime.
        """
        held = self._directory
        # After a fork, the child's copy of the lock is closed. The lock belongs to the parent, and unlocking it in the
        # child would unlock it in both processes.
        if held.lock.fd >= 0 or self._closed:
            return held
        again = _again(held.path, self.info)
        again.on_damage, again.threads = held.on_damage, held.threads
        again.fetch, again.rescue, again.on_close = held.fetch, held.rescue, held.on_close
        # If several threads open the checkpoint again, `setdefault` atomically decides which directory is used. The
        # other directory is closed, since its lock would otherwise never be released.
        first = self._reopened.setdefault(held, again)
        if first is not again:
            again.close()
        self._directory = first
        return first

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the path and the info. If the data is on a remote, pickle the store instead of the path.

        Raises:
            BadInput: The checkpoint was closed.
        """
        if self._closed:
            raise BadInput(f"{self.info.name} was closed", hint="pickle it inside its with block")
        if not is_local(self.info) and self._store is not None:  # the directory does not suffice to download the data
            return _open_in_store, (self._store, self.info, self._max_bytes)
        where = self._directory.path
        top, parts = (where.top, where.parts) if isinstance(where, StorePath) else (str(where), ())
        return _open_again, (Path(top), parts, self.info, self._max_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _act_places(self) -> tuple[object, ...]:
        return (self,)


class LeafSlice:
    """A tensor or array on disk that can be indexed.

    If the tensor is row-major and the first index is a slice such as ``a:b``, other rows are not read.

    Attributes:
        shape, dtype: The shape and dtype of the whole tensor.
    """

    def __init__(self, checkpoint: OpenCheckpoint, leaf: LeafRecord) -> None:
        self.shape = leaf.shape
        self.dtype = leaf.dtype
        self._checkpoint = checkpoint
        self._here = checkpoint._here  # noqa: SLF001 - of this module
        self._leaf = leaf
        self._name = checkpoint._names.written[leaf.name]  # noqa: SLF001 - of this module

    @api_call
    def __getitem__(self, index: Any) -> Any:
        """Return the result of indexing the whole tensor.

        Raises:
            IndexError: The index does not fit.
            InsufficientSpace: The rows do not fit into memory, or are larger than `max_bytes` of `open_checkpoint`.
            DamagedBlob: Bytes are damaged or missing.
        """
        first, rest = (index[0], index[1:]) if isinstance(index, tuple) and index else (index, ())
        leaf = self._leaf
        # Rows are contiguous only in a row-major tensor. Any other tensor is read as a whole and then indexed.
        if not isinstance(first, slice) or first.step not in (None, 1) or not leaf.shape or leaf.strides is not None:
            memories = self._checkpoint._read([leaf.storage], leaf.name, _FEWER_ROWS)  # noqa: SLF001
            whole: Any = make_leaf(leaf, memories[leaf.storage])
            return whole[index]
        start, stop, _ = first.indices(leaf.shape[0])
        rows = self._rows(start, max(start, stop))
        return rows[(slice(None), *rest)] if rest else rows

    def _act_places(self) -> tuple[object, ...]:
        return (self._checkpoint,)

    def _rows(self, start: int, stop: int) -> Any:
        leaf = self._leaf
        size = itemsize(leaf.kind, leaf.dtype)
        if size is None:
            raise BadInput(f"{self._name} is not a tensor and has no rows")
        row_bytes = size * math.prod(leaf.shape[1:])
        first, last = leaf.offset + start * row_bytes, leaf.offset + stop * row_bytes
        directory = self._here()
        checkpoint = self._checkpoint
        check_bound(checkpoint._words(leaf.name), last - first, checkpoint._max_bytes, _FEWER_ROWS)  # noqa: SLF001
        # A slice of a tensor of zeros can be huge in memory, although the tensor is only one chunk on the disk.
        check_room(directory, last - first)
        memory = allocate(leaf.kind, last - first)
        # The reader reads whole pieces, so that they can be checked.
        RegionReader(directory, leaf.storage, self._name).bytes(first, last, memory.view)
        return make_leaf(leaf._replace(shape=(stop - start, *leaf.shape[1:]), offset=0), memory)


def open_ref(context: Context, ref: AnyRef, max_bytes: int | None = None, store: Any = None) -> OpenCheckpoint:
    """Open the checkpoint that `ref` names; see `ckstore.Store.open_checkpoint`."""
    directory = open_directory(context, ref)
    # The directory is locked now. After an error, it must be closed: otherwise a traceback that a notebook keeps would
    # prevent gc from freeing the checkpoint.
    with _closed_by_an_error(directory):
        return OpenCheckpoint(directory, info_of(context, directory.manifest, directory.manifest_id), max_bytes, store)


def open_path(path: Path, max_bytes: int | None = None) -> OpenCheckpoint:
    """Open a checkpoint by its directory, in a store or copied from one; see `ckstore.open_checkpoint`."""
    try:
        directory = CheckpointDirectory.at(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        msg = f"{path} is not a directory"
        raise BadInput(
            msg, hint="give the directory of one checkpoint: STORE/checkpoints/RUN/STEP.ID, or a copy of it"
        ) from error
    with _closed_by_an_error(directory):
        info = replace(_info_of_open(directory), durable=examine(path).durable)
        return OpenCheckpoint(directory, info, max_bytes)


@contextmanager
def _closed_by_an_error(directory: CheckpointDirectory) -> Iterator[None]:
    """Close the directory if the block raises, since it would otherwise remain locked as long as the error exists."""
    try:
        yield
    except BaseException:
        directory.close()
        raise


def _open_in_store(store: Any, info: CheckpointInfo, max_bytes: int | None) -> Any:
    return store.open_checkpoint(info, max_bytes=max_bytes)


@api_call
def _open_again(top: Path, parts: tuple[str, ...], info: CheckpointInfo, max_bytes: int | None) -> OpenCheckpoint:
    """Open a pickled checkpoint at the path `parts` in `top`."""
    return OpenCheckpoint(_again(StorePath(str(top), parts) if parts else top, info), info, max_bytes)


def _again(path: AnyPath, info: CheckpointInfo) -> CheckpointDirectory:
    try:
        directory = CheckpointDirectory.at(_now_at(path, info))
    except FileNotFoundError as error:
        msg = f"{info.name} is no longer in {path}: it was removed since it was opened"
        raise NoSuchRef(msg, hint="keep it open in the process that opened it, or pin it") from error
    # Compare the id, since another checkpoint may be at the same path now.
    if directory.manifest_id != info.id:
        directory.close()
        msg = f"{path} was replaced since {info.name} was opened there"
        raise NoSuchRef(msg, hint="keep it open in the process that opened it, or pin it")
    return directory


def _now_at(path: AnyPath, info: CheckpointInfo) -> AnyPath:
    """Return the current path of a checkpoint that was opened at `path`. Compaction may have changed the path."""
    if not isinstance(path, StorePath) or path.parts[:1] != ("checkpoints",) or dirfd_stat.exists(path):
        return path
    layout = Layout(Path(path.top))
    key = key_with_id(layout, info.run, info.step, info.id)
    return path if key is None else layout.checkpoint(key)


def _info_of_open(directory: CheckpointDirectory) -> CheckpointInfo:
    """Return the info of an open checkpoint with its annotations, and warn if the annotations cannot be read."""
    info = CheckpointInfo.of(directory.manifest, directory.manifest_id)
    try:
        found = read_annotations(directory.lock.inside)
    except CkstoreError as error:
        warn(f"ignored the annotations of {info.name}: {error}")
        return info
    return info if found is None else info.with_annotations(found.metrics, found.notes)
