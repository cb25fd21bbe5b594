"""Load a state, or a part of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from ckstore.errors import BadInput, NoSuchRef
from ckstore.model.name_globs import NameGlobs
from ckstore.model.sizes import size_text
from ckstore.model.training_identity import LOST, Parent, next_load
from ckstore.model.words import counted
from ckstore.objects.pieces import PieceMaps, has_file
from ckstore.ops.notices import warn
from ckstore.ops.read.committed_file import loadable
from ckstore.ops.read.storage_read import (
    Tally,
    check_bound,
    names_of,
    read_memories,
    read_to_sink,
    wrong_memories,
)
from ckstore.ops.refs.find import AnyRef, read_checkpoint
from ckstore.tensors.state_restore import HOST, build, needed_storages, sink_of, wrap
from ckstore.tensors.walks import value_names

if TYPE_CHECKING:
    from ckstore.model.manifest.manifest import Manifest
    from ckstore.model.reports.progress import Progress
    from ckstore.objects.checkpoints import CheckpointDirectory
    from ckstore.ops.context import Context
    from ckstore.tensors.memory_layout import StorageMemory

_SAID_BYTES = 2**20

Select = str | Sequence[str] | Callable[[str], bool] | None
"""Which names to load: globs (a name also selects everything below it), a function of a name, or None for all."""


def as_filter(select: Select, argument: str = "select") -> Callable[[str], bool] | None:
    """Return `select` as a function of a name, or None if everything is selected.

    `argument` is the name of the argument in messages.
    """
    if select is None or callable(select):
        return select
    try:
        given: list[object] = [select] if isinstance(select, str) else list(select)
    except TypeError:
        given = [select]
    globs = [glob for glob in given if isinstance(glob, str)]
    if len(globs) < len(given):
        raise BadInput(f"{argument} must be a glob, a list of globs or a function of a name, got {select!r}")
    return NameGlobs(globs).select


class StatePart(ABC):
    """A part of the state of a checkpoint that is loaded as a state of its own."""

    @abstractmethod
    def names(self, manifest: Manifest, keep: Callable[[str], bool] | None) -> Callable[[str], bool]:
        """Return a filter for names in the whole state. `keep` is a filter for names in the part.

        Raises:
            BadInput, NoSuchRef: The checkpoint has no such part.
        """

    @abstractmethod
    def of(self, state: object) -> object:
        """Return the part of `state`. The caller has loaded `state` with the filter from `names`."""


def load(
    context: Context,
    ref: AnyRef,
    *,
    location: object,
    select: Select,
    mmap: bool,
    verify: bool,
    progress: Progress | None = None,
    part: StatePart | None = None,
    file: str | None = None,
    max_bytes: int | None = None,
) -> object:
    """Return the state of the checkpoint that `ref` names; see `ckstore.Store.load`."""
    chunk_bytes = context.settings.chunk_bytes

    def read(directory: CheckpointDirectory) -> object:
        wanted = select if part is None else part.names(directory.manifest, as_filter(select))
        with _source(directory, file, chunk_bytes=chunk_bytes, keep=as_filter(select), verify=verify) as source:
            state = load_open(
                source,
                location=location,
                select=wanted,
                mmap=mmap,
                verify=verify,
                progress=progress,
                max_bytes=max_bytes,
            )
        manifest = directory.manifest
        # If only values without tensors are selected, the checkpoint does not become a parent.
        if select is None or needed_storages(manifest.state, manifest.leaves, as_filter(wanted)):
            continue_from(context, Parent.loaded(manifest, directory.manifest_id))
        return state if part is None else part.of(state)

    return read_checkpoint(context, ref, read, verify=verify)


def _source(
    directory: CheckpointDirectory,
    file: str | None,
    *,
    chunk_bytes: int,
    keep: Callable[[str], bool] | None,
    verify: bool,
) -> AbstractContextManager[CheckpointDirectory]:
    """Return a context with the source of a load: the checkpoint, or a file of it as a state."""
    if file is None:
        return nullcontext(directory)
    from ckstore.ops.read.file_state import state_of  # rarely needed: it imports the readers of all file formats

    return state_of(directory, file, chunk_bytes=chunk_bytes, keep=keep, verify=verify)


def continue_from(context: Context, parent: Parent) -> None:
    """Make a loaded checkpoint the parent of the next save."""
    # The key "" applies to the next save to any other run, so that a fine-tuning that saves to a run of its own gets
    # the loaded checkpoint as its parent.
    parent = parent._replace(load=next_load())
    context.known.last_parents[parent.run] = context.known.last_parents[""] = parent
    context.notices.run_guessed = parent.run if context.notices.run_was_open else ""


def lose_parents(context: Context) -> None:
    """Make the next save have no parent, since a failed load has left parts of another checkpoint in the target."""
    # The entries are not removed but lose their id, so that a background saver receives the change.
    lost = LOST._replace(load=next_load())
    context.known.last_parents.update(dict.fromkeys([*context.known.last_parents, ""], lost))


def load_open(
    directory: CheckpointDirectory,
    *,
    location: object,
    select: Select,
    mmap: bool,
    verify: bool,
    progress: Progress | None = None,
    max_bytes: int | None = None,
) -> object:
    """Return the state of an open checkpoint. The arguments are those of `ckstore.Store.load`."""
    manifest = directory.manifest
    if manifest.files and not manifest.leaves:
        msg = f"{manifest.name} holds files, but no tensors that can be loaded by name"
        near = loadable(manifest, 1)
        hint = "ckstore checkout REF DEST writes the files"
        raise BadInput(msg, hint=f"file={near[0]!r} loads the state in that file; {hint}" if near else hint)
    keep = as_filter(select)
    needed = needed_storages(manifest.state, manifest.leaves, keep)
    # An empty selection is an error only for globs, since a function may select nothing on purpose.
    if not needed:
        check_selection(directory, select)
    # Create the sink first, so that an unusable location fails before gigabytes are read.
    sink = sink_of(location, manifest.leaves)
    nbytes = sum(manifest.storages[storage].nbytes for storage in needed)
    check_bound(manifest.name, nbytes, max_bytes, "load a part with select=")
    tally = Tally(nbytes, progress)
    if mmap:
        memories = map_memories(directory, needed, verify=verify)
    else:
        # Read directly into the sink, so that host memory need not hold a copy of the model.
        memories = {} if sink is HOST else read_to_sink(directory, needed, sink, verify=verify, tally=tally)
        others = [index for index in needed if index not in memories]
        memories.update(read_memories(directory, others, verify=verify, tally=tally))
    tally.end()
    return build(manifest.state, manifest.leaves, memories.__getitem__, sink=sink, keep=keep)


def check_selection(directory: CheckpointDirectory, select: Select) -> None:
    """Raise if a selection matches no value, since a misspelled name must not look like an empty checkpoint.

    Raises:
        NoSuchRef: The globs match nothing. A function may match nothing.
    """
    keep = as_filter(select)
    if keep is not None and not callable(select) and not any(map(keep, all_names(directory))):
        raise no_match(directory, f"select={select!r}")


def all_names(directory: CheckpointDirectory) -> Iterator[str]:
    """Yield the names of all values of a checkpoint."""
    return value_names(directory.manifest.state, "", directory.manifest.leaves)


def no_match(directory: CheckpointDirectory, argument: str) -> NoSuchRef:
    """Return the error for an argument that matches no name in a checkpoint."""
    return NoSuchRef(
        f"{directory.manifest.name} has no name that {argument} matches", hint="ckstore ls REF lists the names"
    )


def map_memories(directory: CheckpointDirectory, storages: Iterable[int], *, verify: bool) -> dict[int, StorageMemory]:
    """Map storages copy-on-write, and read those that cannot be mapped.

    With `verify`, every byte is read and checked before the function returns. Mapped bytes are not checked when they
    are used later.
    """
    names = names_of(directory)
    records = directory.manifest.storages
    memories: dict[int, StorageMemory] = {}
    to_read = []
    with directory.reporting_damage():
        maps = PieceMaps(directory)
        for i in sorted(storages, key=lambda i: (maps.place(records[i].extents), i)):
            view = None if records[i].tiling is not None else maps.map(records[i].extents, names.name(i))
            # A storage is not mapped if it is encoded or damaged, if its pieces are not aligned to pages, or if
            # its bytes in a pack are already mapped for another storage.
            if view is None:
                to_read.append(i)
            else:
                memories[i] = wrap(names.kind(i), view)
        for i in wrong_memories(directory, memories) if verify else ():
            del memories[i]
            to_read.append(i)  # reading the storage reports or repairs the damage
        decoded = [i for i in to_read if not all(has_file(directory, extent) for extent in records[i].extents)]
        nbytes = sum(records[i].nbytes for i in decoded)
        # Do not warn about small tensors in an old encoded pack, which even an uncompacted checkpoint can use.
        if nbytes >= _SAID_BYTES:
            tensors = counted(len(decoded), "storage")
            warn(
                f"{tensors} of {directory.manifest.name} are encoded, so they were decoded into memory "
                f"({size_text(nbytes)}) instead of being mapped"
            )
        if to_read:
            memories.update(read_memories(directory, to_read, verify=verify))
    return memories
