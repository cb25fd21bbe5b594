"""`CkstoreReader`, a `StorageReader` for checkpoints in a store. Each rank reads only the pieces that it needs.

The planner sees each tensor as a single chunk, regardless of which ranks saved it. A rank needs a block of the tensor,
and `ops/read/regions` reads the pieces of this block. Plain values are nodes in the manifest. The planner requires them
as pickles, so this module builds the values from the manifest and pickles them in memory. No pickle is read from the
store.
"""

from __future__ import annotations

import io
import os
import uuid
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from ckstore.errors import BadInput, NoSuchRef
from ckstore.integrations.dcp.lineages import open_again
from ckstore.integrations.dcp.optimizers import SavedOptimizers
from ckstore.integrations.dcp.replicas import refuse_different_checkpoints
from ckstore.interpreter import python_gc_paused
from ckstore.model.manifest.dtypes import TORCH_ITEMSIZE
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.manifest.manifest import LeafRecord
from ckstore.model.manifest.tensor_cuts import block_of, in_bytes
from ckstore.model.training_identity import Parent
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.objects.pieces import PieceReader
from ckstore.ops.api_calls import api_call, of_state
from ckstore.ops.read.common_pieces import HeldExtents, unchanged
from ckstore.ops.read.dcp_entries import StateValue, entries_of
from ckstore.ops.read.load import continue_from, lose_parents
from ckstore.ops.read.regions import RegionReader
from ckstore.ops.read.storage_read import read_memories
from ckstore.ops.read.target_load import (
    LoadIntoRequest,
    LoadReport,
    TargetContent,
    begin_content,
    content_of_target,
    end_contents,
)
from ckstore.ops.refs.find import open_directory
from ckstore.store import RefLike, Store, context_of
from ckstore.tensors.state_restore import allocate, build_with, make_leaf
from ckstore.tensors.torch_leaves import DTYPES, address_of
from ckstore.tensors.torch_ranges import count_beyond
from ckstore.training.newest import untried


class CkstoreReader(StorageReader):
    """Loads a checkpoint of a store, on any number of ranks: ``dcp.load(state, storage_reader=CkstoreReader(store))``.

    Args:
        store: The store, or its path.
        ref: The checkpoint to load. All ranks must find the same checkpoint.
        since: The checkpoint whose values the tensors hold now, or the report of the load that filled them. The first
            load then reads only the pieces that differ.

    Attributes:
        info: The checkpoint, after the call of `read_metadata`.
        tried: Ids of checkpoints in which damage was detected. ``latest-valid`` names the newest checkpoint before
            these.
        read_bytes: The number of bytes that this rank has read from blobs.
        content: The content of the tensors of this rank after the load.
        beyond: Name of a converted tensor -> number of its values that are out of the range of the target's dtype.
        load_id: The id of this load. `reset` replaces it.
    """

    def __init__(
        self,
        store: Store | str | os.PathLike[str],
        ref: RefLike = "latest",
        *,
        since: LoadReport | RefLike | None = None,
    ) -> None:
        super().__init__()
        self.ref = ref
        self.info: CheckpointInfo | None = None
        self.tried: Collection[str] = ()
        self.read_bytes = 0
        self.world_size = 1
        self.beyond: Counter[str] = Counter()
        self.load_id = str(uuid.uuid4())
        self._store: Store | None = store if isinstance(store, Store) else None
        self._path = store.path if isinstance(store, Store) else Path(store).resolve()
        self.content: TargetContent | None = None
        self._before = None if since is None else _content(self.store, since)

    @property
    def store(self) -> Store:
        """The store. The first access opens it if the reader was given a path."""
        if self._store is None:
            self._store = open_again(self._path, readonly=True)
        return self._store

    @property
    def checkpoint_id(self) -> str:
        """The name of the loaded checkpoint, for the log of `torch.distributed.checkpoint`."""
        return str(self.ref)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_store": None}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin a load of another ref."""
        if checkpoint_id is not None:
            self.ref = os.fspath(checkpoint_id)
        self.info = None
        self.load_id = str(uuid.uuid4())

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the metadata of the checkpoint without reading data."""
        del args, kwargs
        self.info = untried(self.store, self.ref, self.tried)
        ids = StorageMeta(checkpoint_id=self.info.name, save_id=self.info.id, load_id=self.load_id)
        metadata, self.world_size = _metadata(self.store, self.info)
        return replace(metadata, storage_meta=ids)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Do nothing, because `read_metadata` has found the checkpoint."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Add to the plan the identity of the checkpoint that this rank reads."""
        return replace(plan, storage_data=None if self.info is None else (self.info.name, self.info.id))

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Check that all ranks read the same checkpoint. The coordinator calls this."""
        refuse_different_checkpoints([plan.storage_data for plan in plans])
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read the data of this rank into its tensors."""
        if self.info is None:
            raise BadInput("read_data was called before read_metadata")
        # Use `since` only once. The next load may be into other tensors, and after a failed load, the tensors hold
        # parts of two checkpoints.
        before, self._before = self._before, None
        read_bytes, self.content = _read(self.store, self.info, plan, planner, self.beyond, before)
        self.read_bytes += read_bytes
        result: Future[None] = Future()
        result.set_result(None)
        return result

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return False, because a reader is passed explicitly and not looked up by the name of a checkpoint."""
        del checkpoint_id
        return False


@api_call
@of_state
def _metadata(store: Store, info: CheckpointInfo) -> tuple[Metadata, int]:
    with open_directory(context_of(store), info) as directory, python_gc_paused():
        found = entries_of(directory.manifest)
        optimizers = SavedOptimizers(directory.manifest, tuple(found))
        described: dict[str, Any] = {}
        for name, one in found.items():
            leaf = one.tensor
            if leaf is None:
                described[name] = BytesStorageMetadata()
                continue
            shape = torch.Size(leaf.shape)
            chunks = [ChunkStorageMetadata(torch.Size([0] * len(shape)), shape)]
            described[name] = TensorStorageMetadata(TensorProperties(dtype=DTYPES[leaf.dtype]), shape, chunks)
        paths = {name: one.path for name, one in found.items()}
        metadata = Metadata(state_dict_metadata=described, planner_data=paths, storage_data=optimizers)
        return metadata, directory.manifest.world_size


@api_call
def _content(store: Store, since: LoadReport | RefLike) -> TargetContent | None:
    return content_of_target(context_of(store), LoadIntoRequest(since=since))


@api_call
@of_state
def _read(
    store: Store,
    info: CheckpointInfo,
    plan: LoadPlan,
    planner: LoadPlanner,
    beyond: Counter[str],
    before: TargetContent | None,
) -> tuple[int, TargetContent]:
    """Read the values of a plan. Return the number of bytes, and the content of the tensors afterwards."""
    context = context_of(store)
    with open_directory(context, info) as directory:
        manifest = directory.manifest
        held = {} if before is None else unchanged(before.manifest, manifest, before.names)
        if before is not None:
            before.is_stale = True  # set this before the load, so that it also applies if only another rank fails
        try:
            read_bytes, names, addresses = _read_items(directory, info, plan, planner, beyond, held)
        except BaseException:
            lose_parents(context)  # some tensors already hold values of this checkpoint, and others do not
            raise
        continue_from(context, Parent.loaded(manifest, info.id))
    content = TargetContent(manifest, None, None, names)
    begin_content(content, addresses)
    return read_bytes, content


def _read_items(
    directory: CheckpointDirectory,
    info: CheckpointInfo,
    plan: LoadPlan,
    planner: LoadPlanner,
    beyond: Counter[str],
    held: HeldExtents,
) -> tuple[int, frozenset[str], set[int]]:
    """Read the values of a plan. Return the number of bytes, and the names and the addresses of the tensors."""
    with python_gc_paused():
        found = entries_of(directory.manifest)
    names: set[str] = set()
    addresses: set[int] = set()
    reader: RegionReader | None = None
    read_bytes = 0
    with PieceReader(directory) as pieces:  # small tensors share blobs, which remain open
        for item in sorted(plan.items, key=lambda item: item.storage_index.fqn):
            name = item.storage_index.fqn
            if name not in found:
                raise NoSuchRef(f"{info.name} has no value named {name!r}")
            leaf = found[name].tensor
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, _bytes(directory, found[name]))
                continue
            if leaf is None:
                raise BadInput(f"{name} of {info.name} is not a tensor, and the plan reads it as one")
            if reader is None or reader.storage != leaf.storage:
                read_bytes += 0 if reader is None else reader.read_bytes
                reader = RegionReader(directory, leaf.storage, leaf.name, pieces=pieces)
            names.add(leaf.name)
            target = planner.resolve_tensor(item)
            if address := address_of(target):
                addresses.add(address)
                end_contents([address])
            with directory.reporting_damage():
                count = _read_tensor(reader, leaf, item, target, held.get(leaf.storage, frozenset()))
            if count:
                beyond[name] += count
            planner.commit_tensor(item, target)
    return read_bytes + (0 if reader is None else reader.read_bytes), frozenset(names), addresses


def _read_tensor(
    reader: RegionReader, leaf: LeafRecord, item: ReadItem, target: torch.Tensor, held: frozenset[int]
) -> int:
    """Fill a block of a tensor, except the pieces that start at the positions in `held`.

    Return the number of values that were out of the range of the dtype of `target`.
    """
    beyond = 0
    out = target.detach()
    item_bytes = TORCH_ITEMSIZE[leaf.dtype]
    sizes = tuple(item.lengths)
    shape, wanted = in_bytes(leaf.shape, item_bytes), block_of(tuple(item.storage_offsets), sizes, item_bytes)
    share = reader.held_share(shape, wanted, held) if out.numel() else "all"
    if share != "all":
        # If `straight`, the stored bytes can be read directly into the memory of the tensor.
        dtype = DTYPES[leaf.dtype]
        plain = type(out) is torch.Tensor and out.is_cpu and out.layout == torch.strided
        straight = plain and out.dtype == dtype and out.is_contiguous() and not out.is_conj() and not out.is_neg()
        flat = out.reshape(-1).view(torch.uint8) if straight else torch.empty(wanted.nbytes, dtype=torch.uint8)
        if not straight and share == "some":
            if out.dtype == dtype:
                flat.view(dtype).reshape(sizes).copy_(out)  # for the pieces that are not read
            else:
                held = frozenset()  # read all pieces, because a conversion back may give other bytes
        array: Any = flat.numpy()
        reader.block(shape, wanted, memoryview(array), held)
        if not straight:
            values = flat.view(dtype).reshape(sizes)
            beyond = count_beyond(values, out.dtype)
            out.copy_(values)
    return beyond


def _bytes(directory: CheckpointDirectory, found: StateValue) -> io.BytesIO:
    """Return a plain value as a file that `torch.load` can read."""

    def leaf(number: int) -> object:
        record = directory.manifest.leaves[number]
        memories = {} if 0 in record.shape else read_memories(directory, [record.storage], verify=True)
        return make_leaf(record, memories.get(record.storage) or allocate(record.kind, 0))

    data = io.BytesIO()
    torch.save(build_with(found.node, leaf, directory.manifest.leaves), data)
    data.seek(0)
    return data
