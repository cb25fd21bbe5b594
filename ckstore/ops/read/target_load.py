"""Load a state into an existing target.

The target and the state are compared first, and the target is changed only if the state fits.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain

from ckstore.errors import BadInput, DoesNotFit
from ckstore.model.brief import brief
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.manifest.manifest import Manifest
from ckstore.model.name_globs import NameGlobs
from ckstore.model.names import spellings
from ckstore.model.reports.progress import Progress
from ckstore.model.training_identity import Parent
from ckstore.model.words import printable, some_of
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.ops.context import Context, info_of
from ckstore.ops.notices import warn
from ckstore.ops.read.committed_file import loadable
from ckstore.ops.read.common_pieces import HeldExtents, old_pieces, unchanged
from ckstore.ops.read.file_state import state_of
from ckstore.ops.read.load import (
    Select,
    all_names,
    as_filter,
    check_selection,
    continue_from,
    lose_parents,
    no_match,
)
from ckstore.ops.read.storage_read import Tally, check_room, read_memories, read_storages, stream_storages
from ckstore.ops.refs.find import AnyRef, open_directory, read_checkpoint_into
from ckstore.tensors.state_restore import make_leaf
from ckstore.tensors.targets.advice import Load, advice
from ckstore.tensors.targets.into import IntoPlan, plan_into
from ckstore.tensors.targets.load_comparison import Differences, LoadRules
from ckstore.tensors.targets.renames import check_rename

Strict = bool | str | Sequence[str]
"""The names whose values must fit: all names (True), no name (False), or the names that match the globs."""


def must_fit(strict: Strict) -> Callable[[str], bool]:
    """Return a function that takes a name, and returns whether the value with that name must fit."""
    if isinstance(strict, bool):
        return lambda _: strict
    keep = as_filter(strict, "strict")
    if keep is None:
        raise BadInput("strict must be True, False, a glob or a list of globs, got None")
    return keep


def globs_of(strict: Strict) -> list[str]:
    """Return the globs in `strict`, which select the values that must fit."""
    return [] if isinstance(strict, bool) else [strict] if isinstance(strict, str) else list(strict)


# The maximum number of names of one kind in a message. A model that does not fit at all would otherwise fill the
# terminal with thousands of names, and the advice would scroll out of view.
SHOWN_MOST = 20


@dataclass(slots=True, weakref_slot=True, eq=False)
class TargetContent:
    """The content of a target after a load, so that the next load can skip unchanged bytes.

    The loaded checkpoint may have been deleted in the meantime.
    """

    manifest: Manifest  # the manifest of the loaded checkpoint
    # `select` and `rename` are the arguments of that load.
    select: Select
    rename: Mapping[str, str] | None
    names: frozenset[str] | None = None  # the names of the leaves that were loaded; None for all
    is_stale: bool = False  # whether a later load has begun to change the target
    is_verified: bool = True  # whether every byte was compared with its digest
    addresses: frozenset[int] = frozenset()  # the addresses of the tensors and arrays


_contents: set[weakref.ref[TargetContent]] = set()
"""The contents that loads in this process recorded, as long as their tensors have not been loaded into again."""
# The set is changed and copied by single calls of C code, and no lock is used. A signal handler may load into another
# target at any moment, and a child may be forked while another thread loads.


def end_contents(addresses: Collection[int]) -> None:
    """Mark the contents that earlier loads recorded for these addresses as stale, before a load changes the tensors."""
    for reference in _contents.copy():
        content = reference()
        if content is not None and not content.addresses.isdisjoint(addresses):
            content.is_stale = True
            _contents.discard(reference)


def begin_content(content: TargetContent, addresses: Collection[int]) -> None:
    """Record the content of the tensors at these addresses, until the next load into one of these tensors."""
    content.addresses = frozenset(addresses)
    _contents.add(weakref.ref(content, _contents.discard))


@brief()
@dataclass(frozen=True, slots=True)
class LoadReport:
    """The result of `load_into`. Its text lists the values that were not loaded exactly as in the checkpoint.

    The text shows at most 20 values of each kind. If the list is not empty, `load_into` also gives one
    `CkstoreWarning` with the first names.

    Attributes:
        info: The checkpoint.
        missing: Names in the target that the checkpoint lacks. Their values in the target are unchanged.
        unexpected: Names in the checkpoint that the target lacks. Their values were not loaded.
        not_loaded: Names in both the target and the checkpoint whose values do not fit -> the reason, such as
            ``shape [1024, 8] float32 wanted, found shape [1000, 8] float32``. Their values in the target are unchanged.
        cast: Names of converted values -> the conversion, such as ``float32 to bfloat16``, and the number of values
            that the new dtype cannot represent, if there are any.
        fresh: Names in an optimizer of the target that the checkpoint lacks because the parameter had no gradient
            before the save. As in the saved optimizer, these parameters have no optimizer state after the load.
        read_bytes: Bytes that were read from the store. With `since`, equal pieces are not read, except those of
            tensors that are always read as a whole.
        received_bytes: Bytes that were downloaded from a remote. For encoded blobs, fewer bytes are downloaded than
            read.
    """

    info: CheckpointInfo
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    not_loaded: Mapping[str, str] = field(default_factory=dict)
    cast: Mapping[str, str] = field(default_factory=dict)
    fresh: tuple[str, ...] = ()
    read_bytes: int = 0
    received_bytes: int = 0
    _loaded: TargetContent | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        lines = [line for title, names in self._kinds() for line in listed(title, names)]
        return "\n".join(map(printable, [f"{self.info.name} loaded" + (", except:" if lines else ""), *lines]))

    @property
    def summary(self) -> str:
        """One line about values that were not loaded exactly as in the checkpoint, or "" without such values."""
        said = [f"{title} ({len(names)}): {some_of(names)}" for title, names in self._kinds() if names]
        return printable(f"{self.info.name} loaded, except: {'; '.join(said)}") if said else ""

    def _kinds(self) -> list[tuple[str, Sequence[str]]]:
        return [
            ("only in the target, unchanged", self.missing),
            ("only in the checkpoint, not loaded", self.unexpected),
            ("do not fit, unchanged", pairs(self.not_loaded)),
            ("converted", pairs(self.cast)),
            ("of parameters that had no gradient yet, started without state", self.fresh),
        ]


@dataclass(frozen=True, slots=True)
class LoadIntoRequest:
    """The arguments of `ckstore.Store.load_into`."""

    strict: Strict = True
    select: Select = None
    rename: Mapping[str, str] | None = None
    cast: bool = False
    assign: bool = False
    verify: bool = True
    since: LoadReport | AnyRef | None = None
    progress: Progress | None = None
    file: str | None = None

    @property
    def fills_all(self) -> bool:
        """Whether every value of the target is replaced."""
        return self.strict is True and self.select is None


def load_into(context: Context, ref: AnyRef, target: object, request: LoadIntoRequest) -> LoadReport:
    """Read the state of the checkpoint that `ref` names into `target`; see `ckstore.Store.load_into`."""
    before = held = content_of_target(context, request)
    is_touched = False

    def begin(addresses: Collection[int]) -> None:
        nonlocal is_touched
        is_touched = True
        if held is not None:
            held.is_stale = True
        end_contents(addresses)

    def read(directory: CheckpointDirectory) -> LoadReport:
        nonlocal before
        # If a checkpoint is damaged, `read` may be called again for another one. The target then holds parts of the
        # damaged checkpoint, so `since` is not valid any more.
        since, before = before, None
        with _source(context, directory, request) as source:
            report = _load_into_open(source, target, request, since, begin)
        report = replace(report, info=info_of(context, directory.manifest, directory.manifest_id))
        # Do this only after the last byte was read: a checkpoint whose load failed midway must not become a parent.
        continue_from(context, Parent.loaded(directory.manifest, directory.manifest_id))
        return report

    try:
        report = read_checkpoint_into(context, ref, read, strict=request.fills_all, verify=request.verify)
    # Ctrl-C is included, since a target with parts of two checkpoints must not be saved as the child of either.
    except BaseException:
        if is_touched:
            lose_parents(context)
        raise
    # Warn, since a script that ignores the report would continue with an incomplete state.
    if report.summary:
        warn(report.summary)
    return report


def content_of_target(context: Context, request: LoadIntoRequest) -> TargetContent | None:
    """Return the content of the target according to `since`, or None if it is unknown."""
    since = request.since
    if since is None:
        return None
    if not isinstance(since, LoadReport):
        with open_directory(context, since) as directory:
            if not directory.manifest.files:
                return TargetContent(directory.manifest, request.select, request.rename)
            with _source(context, directory, request) as source:
                return TargetContent(source.manifest, request.select, request.rename)
    loaded = since._loaded  # noqa: SLF001 - of this module
    if loaded is None or loaded.is_stale or (request.verify and not loaded.is_verified):
        return None
    if (loaded.select, loaded.rename) != (request.select, request.rename):
        msg = f"since={since.info.name} was loaded with another select or rename, so the target has other content"
        raise BadInput(msg, hint="pass the same select and rename, or leave since out")
    return loaded


def _source(
    context: Context, directory: CheckpointDirectory, request: LoadIntoRequest
) -> AbstractContextManager[CheckpointDirectory]:
    keep = as_filter(request.select)
    chunk_bytes = context.settings.chunk_bytes
    return state_of(directory, request.file, chunk_bytes=chunk_bytes, keep=keep, verify=request.verify)


def _load_into_open(
    directory: CheckpointDirectory,
    target: object,
    request: LoadIntoRequest,
    before: TargetContent | None,
    begin: Callable[[Collection[int]], None],
) -> LoadReport:
    """Load the state of an open checkpoint into the target.

    `begin` is called with the addresses of the target's tensors, before any byte of these tensors may change.
    """
    manifest = directory.manifest
    if request.select is not None:
        # Check the selection first: a misspelled glob selects nothing, and any target would then seem to fit.
        check_selection(directory, request.select)
    must_fit(request.strict)  # raises if the argument is invalid
    if (globs := globs_of(request.strict)) and (unused := NameGlobs(globs).unused(all_names(directory))):
        raise no_match(directory, f"strict={unused[0]!r}")
    rename = check_rename(request.rename)
    terms = LoadRules(
        as_filter(request.select), rename, cast=request.cast, assign=request.assign, strict=request.strict is True
    )

    def early(index: int) -> object:
        leaf = manifest.leaves[index]
        return make_leaf(leaf, read_memories(directory, [leaf.storage], verify=request.verify)[leaf.storage])

    def plan_by(terms: LoadRules) -> IntoPlan:
        return plan_into(target, manifest.state, manifest.leaves, terms, manifest.storages, early)

    # The plan finds the values that do not fit, without changing the target.
    plan = plan_by(terms)
    found, can_load = plan.differences, not plan.is_empty
    load = Load(manifest, target, terms, bool(request.strict), found, can_load, lambda by: plan_by(by).likely)
    # Compare everything before the first byte changes, so that an error leaves the model unchanged.
    _check_fits(load, directory, request)
    check_room(directory, plan.new_bytes + plan.kept_bytes)
    # From here on the target may hold parts of this checkpoint.
    addresses = plan.filling.addresses
    begin(addresses)
    # Allocate memory first, because an allocation that fails during the reading would leave a mixture of two
    # checkpoints in the target.
    plan.prepare([storage.nbytes for storage in manifest.storages])
    whole = _read_whole(manifest, plan)
    # Newly allocated memory holds nothing of the previous checkpoint.
    skip = {} if before is None or plan.new_bytes else _held(before, manifest, whole)
    tally = Tally(_bytes_to_read(manifest, plan, skip), request.progress)
    # For a module with its own load hook (`_load_from_state_dict`), only an attempt shows whether the state fits.
    plan.attempt(lambda storages: read_memories(directory, storages, verify=request.verify, tally=tally))
    try:
        _check_fits(load, directory, request)
    # The attempt has changed modules: restore their old values before the caller gets the error.
    except DoesNotFit:
        plan.undo()
        raise
    # Read most of the model directly into the memory of the target, without a second copy in memory. If a remote has
    # the difference from the current content of the target, only the difference is downloaded. The current content is
    # verified before it is used.
    old = {} if before is None or plan.new_bytes else old_pieces(before.manifest, manifest, before.names)
    read_storages(directory, plan.direct, verify=request.verify, skip=skip, old=old, tally=tally)
    streamed = [storage for storage in plan.copied if storage not in whole]
    stream_storages(directory, streamed, plan.filling.fill_part, verify=request.verify, skip=skip, tally=tally)
    for storage in sorted(whole - skip.keys()):
        plan.filling.fill(storage, read_memories(directory, [storage], verify=request.verify, tally=tally)[storage])
    memories = read_memories(directory, sorted(plan.indirect), verify=request.verify, tally=tally)
    # Set the values that are not tensors last, after every tensor was loaded.
    plan.finish(memories.__getitem__)
    plan.name_beyond()
    found, info = _as_written(plan.differences, manifest), CheckpointInfo.of(manifest, directory.manifest_id)
    report = LoadReport(info, tuple(found.missing), tuple(found.unexpected), found.mismatched, found.cast)
    names = frozenset(manifest.leaves[index].name for index in plan.taken)
    loaded = TargetContent(manifest, request.select, request.rename, names, is_verified=request.verify)
    begin_content(loaded, plan.filling.addresses if plan.new_bytes else addresses)
    return replace(report, read_bytes=tally.done_bytes, received_bytes=tally.received_bytes, _loaded=loaded)


def _bytes_to_read(manifest: Manifest, plan: IntoPlan, skip: HeldExtents) -> int:
    """Return the number of bytes to read."""
    total = sum(manifest.storages[storage].nbytes for storage in chain(plan.indirect, *plan.attempted))
    for storage in (*plan.direct, *plan.copied):
        at, has = 0, skip.get(storage, ())
        for extent in manifest.storages[storage].extents:
            total += 0 if at in has else extent.length
            at += extent.length
    return total


def _read_whole(manifest: Manifest, plan: IntoPlan) -> set[int]:
    """Return the copied storages that must be read as a whole: tiled ones, and those that cannot be filled in parts."""
    # The other copied storages are read in parts through one buffer.
    whole = set()
    for storage in plan.copied:
        record = manifest.storages[storage]
        cuts = list(accumulate(extent.length for extent in record.extents))[:-1]
        if record.tiling is not None or not plan.filling.streams(storage, cuts):
            whole.add(storage)
    return whole


def _held(before: TargetContent, manifest: Manifest, whole: Collection[int]) -> HeldExtents:
    """Return the extents that the target already holds.

    For a storage that is read as a whole, either all of its extents are returned or none.
    """
    found = unchanged(before.manifest, manifest, before.names)
    return {
        storage: starts
        for storage, starts in found.items()
        # A storage that is read as a whole is also written as a whole, so an unchanged part saves nothing.
        if not (storage in whole or manifest.storages[storage].tiling)
        or len(starts) == len(manifest.storages[storage].extents)
    }


def _as_written(found: Differences, manifest: Manifest) -> Differences:
    """Return the differences with names spelled for users. No two values get the same spelling."""
    lists = (found.missing, found.unexpected, found.meta)
    dicts = (found.mismatched, found.dtypes, found.cast)
    if not any(lists) and not any(dicts):
        return found
    spelling = spellings({*chain(*lists, *dicts), *(leaf.name for leaf in manifest.leaves)})

    def pairs_of(kind: Mapping[str, str]) -> dict[str, str]:
        return {spelling[name]: said for name, said in kind.items()}

    return replace(
        found,
        missing=[spelling[name] for name in found.missing],
        unexpected=[spelling[name] for name in found.unexpected],
        meta=[spelling[name] for name in found.meta],
        mismatched=pairs_of(found.mismatched),
        dtypes=pairs_of(found.dtypes),
        cast=pairs_of(found.cast),
    )


def _check_fits(load: Load, directory: CheckpointDirectory, request: LoadIntoRequest) -> None:
    """Raise if the target and the checkpoint differ in a way that the caller does not allow."""
    found = load.found
    differ = [*found.missing, *found.unexpected, *found.mismatched]
    # These values cannot be filled, so each is an error even with `strict=False`.
    never = found.dtypes or found.meta or found.strangers or (differ and not load.fits_somewhere)
    if not never and not any(map(must_fit(request.strict), differ)):
        return
    written = _as_written(found, directory.manifest)
    kinds = (
        ("another shape or kind", pairs(written.mismatched)),
        ("another dtype", pairs(written.dtypes)),
        ("on the meta device, without memory", written.meta),
        ("only in the target", written.missing),
        ("only in the checkpoint", written.unexpected),
    )
    lines = [line for title, names in kinds for line in listed(title, names)]
    name = directory.manifest.name
    name = name if request.file is None else f"{request.file} of {name}"
    message = "\n".join([f"{name} does not fit the target, nothing was loaded:", *lines])
    of_files = (f"file={path!r} loads the state in that file" for path in loadable(directory.manifest, 1))
    raise DoesNotFit(
        message,
        hint="; ".join([*of_files, *advice(load)]),
        missing=tuple(written.missing),
        unexpected=tuple(written.unexpected),
        mismatched={**written.mismatched, **written.dtypes, **dict.fromkeys(written.meta, "on the meta device")},
    )


def listed(title: str, names: Iterable[str]) -> list[str]:
    """Return lines for a message: a title with the number of names, and the first names."""
    names = list(names)
    if not names:
        return []
    more = len(names) - SHOWN_MOST
    lines = [f"  {title} ({len(names)}):", *(f"    {name}" for name in names[:SHOWN_MOST])]
    return [*lines, f"    and {more} more"] if more > 0 else lines


def pairs(found: Mapping[str, str]) -> list[str]:
    """Return names with their descriptions."""
    return [f"{name}: {said}" for name, said in found.items()]
