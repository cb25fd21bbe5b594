"""Write a saved state as one file that `torch.load` reads, with tied and strided tensors as they were.

The pickle is made over storages that take no memory; their bytes are streamed into the archive behind it.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from ckstore.errors import BadInput
from ckstore.model.manifest.nodes import SPARSE_KINDS
from ckstore.model.names import plain
from ckstore.model.reports.export_report import ExportedFile, ExportReport
from ckstore.ops.read.export_files import MARGIN_BYTES, Meter, building, read_back
from ckstore.ops.read.export_plan import leaf_bytes, refuse_files
from ckstore.ops.read.formats.archives import Archive
from ckstore.ops.read.load import Select, as_filter, check_selection
from ckstore.ops.read.storage_read import read_memories
from ckstore.tensors.restore import build, is_empty
from ckstore.tensors.walks import leaf_numbers, parts_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ckstore.model.manifest.manifest import LeafRecord, Manifest, Node
    from ckstore.model.reports.progress import Progress
    from ckstore.objects.checkpoints import CheckpointDirectory
    from ckstore.tensors.files.pickled import PickledState
    from ckstore.tensors.layout import StorageMemory

VALUES_MOST_BYTES = 32 * 2**20
"""What lies in the pickle itself, as arrays of NumPy do, and the parts of sparse tensors, go through memory."""
_NUMBERS_TIMES = 5  # A number in a list takes so much more memory than in the store
_SHOWN = 5


def export_torch(
    directory: CheckpointDirectory, path: Path, *, select: Select = None, progress: Progress | None = None
) -> ExportReport:
    """Export an open checkpoint as the file `path`; see `ckstore.Store.export`."""
    manifest = directory.manifest
    refuse_files(manifest)
    check_selection(directory, select)
    keep = as_filter(select)
    chosen = [leaf for leaf in manifest.leaves if keep is None or keep(leaf.name)]
    _refuse_two_types(chosen)
    pickled = pickled_node(directory, manifest.state, chosen, keep)
    archive = Archive(directory, pickled.data, pickled.storages)
    nbytes = archive.layout.nbytes
    with building(directory, path, nbytes + MARGIN_BYTES, one_file=True) as (tree, reader):
        meter = Meter(nbytes, progress)
        with tree.create_file(path.name) as fd:
            read_back(fd, path.name, nbytes, list(archive.write(fd, 0, reader, meter)), meter)
        tree.publish_file(path.name)
    tensors = len({leaf._replace(name="") for leaf in chosen if leaf.kind == "torch"})
    return ExportReport(
        name=manifest.name,
        checkpoint_id=directory.manifest_id,
        destination=path,
        files=(ExportedFile(path.name, nbytes, tensors),),
        unsafe_globals=pickled.unsafe_globals,
    )


def pickled_node(
    directory: CheckpointDirectory, state: Node, chosen: Sequence[LeafRecord], keep: Callable[[str], bool] | None
) -> PickledState:
    """Pickle the value of a node, with the leaves that are `chosen`; the bytes of tensors are not read for it."""
    leaves = directory.manifest.leaves
    parts = {leaves[i].name: node[2] for _, node in parts_in(state) for i in leaf_numbers(node)}
    # The indices of a sparse tensor are looked at when it is made; a subclass, as a rule, only holds its parts.
    read = [leaf for leaf in chosen if leaf.kind != "torch" or parts.get(leaf.name) in SPARSE_KINDS]
    pickled = _pickled(directory, state, read, keep)
    streamed = {leaf.storage for leaf in chosen if not is_empty(leaf)} - {leaf.storage for leaf in read}
    copied = sum(bool(one) for one in pickled.storages if isinstance(one, bytes))
    if streamed <= set(pickled.storages) and copied <= len({leaf.storage for leaf in read if leaf.kind == "torch"}):
        return pickled
    # A class that makes other tensors of its parts needs their values.
    return _pickled(directory, state, [leaf for leaf in chosen if leaf.kind != "torch" or leaf.name in parts], keep)


def _pickled(
    directory: CheckpointDirectory, state: Node, in_memory: Sequence[LeafRecord], keep: Callable[[str], bool] | None
) -> PickledState:
    from ckstore.tensors.files.pickled import Placeholders, pickle_state

    manifest = directory.manifest
    refuse_large(manifest, in_memory)
    read = {leaf.storage for leaf in in_memory if not is_empty(leaf)}
    memories = read_memories(directory, sorted(read), verify=True)
    stand_in = Placeholders(manifest.storages)

    def memory(storage: int) -> StorageMemory:
        return memories[storage] if storage in memories else stand_in.memory(storage)

    return pickle_state(build(state, manifest.leaves, memory, keep=keep), stand_in.number)


def refuse_large(manifest: Manifest, leaves: Sequence[LeafRecord]) -> None:
    """Raise if values that go through memory are too large for it. Raises BadInput: they are; it names the largest."""
    sizes = {
        leaf.name: leaf_bytes(manifest, leaf) * (_NUMBERS_TIMES if leaf.kind == "numbers" else 1) for leaf in leaves
    }
    if sum(sizes.values()) <= VALUES_MOST_BYTES:
        return
    largest = sorted(sizes, key=sizes.__getitem__, reverse=True)[:_SHOWN]
    listed = "; ".join(f"{plain(name) or 'the state itself'}: {sizes[name]} bytes" for name in largest)
    msg = (
        f"values that are no plain tensors lie in the pickle, and would take {sum(sizes.values())} bytes of memory, "
        f"at most {VALUES_MOST_BYTES} may: {listed}"
    )
    raise BadInput(
        msg,
        hint="select what to export without them, select='model' for example; or torch.save what load returns",
        command_hint="select what to export without them, --select model for example",
    )


def _refuse_two_types(chosen: Sequence[LeafRecord]) -> None:
    by_storage: dict[int, list[LeafRecord]] = defaultdict(list)
    for leaf in chosen:
        if leaf.kind == "torch" and not is_empty(leaf):
            by_storage[leaf.storage].append(leaf)
    for leaves in by_storage.values():
        other = next((leaf for leaf in leaves if leaf.dtype != leaves[0].dtype), None)
        if other is not None:
            first = leaves[0]
            msg = f"{first.name} ({first.dtype}) and {other.name} ({other.dtype}) are the same memory"
            raise BadInput(f"{msg}, which torch files cannot hold", hint="select one of them")
