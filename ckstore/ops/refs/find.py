"""Resolve refs: find the checkpoint that a ref names, or open and lock it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import SupportsIndex, TypeVar

from ckstore.errors import BadInput, CatalogUnavailable, CkstoreError, DamagedBlob, InUse, NoSuchRef
from ckstore.model.best import Best
from ckstore.model.checkpoint.refs import BEST, VERIFIED_KINDS, Ref, is_latest_valid, parse_ref, resolve
from ckstore.model.digest import is_digest
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.metric_names import Mode
from ckstore.model.names import DEFAULT_RUN, CheckpointKey, check_run
from ckstore.model.words import arguments
from ckstore.objects import trash
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.ops.context import Context, tags_by_checkpoint
from ckstore.ops.index.facts import as_it_is, facts_at, from_manifests
from ckstore.ops.index.reconcile import stamps
from ckstore.ops.notices import way_in
from ckstore.ops.refs.listing import check_newest, in_one_run, infos, newest, run_meant
from ckstore.ops.refs.protection import damaged_tag, doubtful_tags

T = TypeVar("T")
AnyRef = str | SupportsIndex | CheckpointInfo
# The number of tries to open a checkpoint. A try fails only if the checkpoint is replaced or dropped at the same time.
_OPEN_TRIES = 5


def find(context: Context, ref: AnyRef) -> CheckpointInfo:
    """Return the checkpoint that `ref` names.

    Raises:
        NoSuchRef: The checkpoint does not exist. The hint helps to find or restore it.
    """
    if isinstance(ref, CheckpointInfo):
        context.notices.run_was_open = False
        return _same(context, ref)
    parsed = in_one_run(context, parse_ref(text_of(ref)))
    if parsed.kind in VERIFIED_KINDS:
        from ckstore.ops.refs.latest_valid import newest_valid

        return newest_valid(context, str(parsed))
    if parsed.kind == "best":
        return _best(context, parsed)
    if parsed.kind == "latest" and (latest := newest(context, parsed.run)) is not None:
        return latest
    # Read the tags from refs/ and not from the catalog, which may not have a new tag yet.
    tags = context.layout.tags()
    keys = _keys_of(context, parsed, tags)
    present = infos(context, at=stamps(context, keys), superseded=True)
    if parsed.kind == "step" or not present:
        incomplete = {*keys} - {info.key for info in present}
        # Use a list and not a generator, so that all incomplete directories are repaired and not only the first.
        if context.rescuer is not None and [key for key in sorted(incomplete) if context.rescuer.checkpoint(key)]:
            present = infos(context, at=stamps(context, keys), superseded=True)
        _refuse_damaged(context, keys, present)
    if present:
        return present[-1] if parsed.kind == "step" else _marked(context, present[-1])
    if parsed.kind == "tag" and (problem := doubtful_tags(context.layout).get(parsed.value)):
        raise damaged_tag(parsed.value, problem)
    try:
        return among_all(context, parsed)
    except NoSuchRef as error:
        missed = error
    # Raise outside the `except` block, so that the new error does not refer to the old one.
    raise missed if keys or parsed.kind not in ("step", "tag") else _missed(context, parsed, missed)


def among_all(context: Context, ref: Ref) -> CheckpointInfo:
    """Return the checkpoint that `ref` names, searching all checkpoints of the store."""
    listed = infos(context, superseded=True)
    incomplete = {key for key, _ in context.layout.published()} - {info.key for info in listed}
    return resolve(ref, listed, context.layout.tags(), incomplete)


def _marked(context: Context, info: CheckpointInfo) -> CheckpointInfo:
    """Return a checkpoint, marked as superseded if its step has a newer checkpoint."""
    of_step = context.layout.of_step(info.run, info.step)
    if len(of_step) < 2:
        return info
    listed = infos(context, at=stamps(context, of_step), superseded=True)
    superseded = any(other.id != info.id and other.order > info.order for other in listed)
    return replace(info, superseded=superseded)


def _missed(context: Context, ref: Ref, error: NoSuchRef) -> NoSuchRef:
    """Return the error for a missing step or tag, with advice on how to restore it if it was dropped."""
    if ref.kind == "tag":
        target = context.layout.tags().get(ref.value)
        run_step = None if target is None else target.run_step
    else:
        run_step = (_run_of_step(context, ref), int(ref.value))
    if run_step is None or not trash.waits(context.layout, *run_step):
        return error
    name = f"{run_step[0]}@{run_step[1]}"
    by_command = f"{name} was deleted; ckstore undo {arguments(name)} restores it"
    hint = f"{name} was deleted; store.undo({name!r}) restores it"
    return NoSuchRef(error.message, hint=hint, command_hint=by_command)


def text_of(ref: str | SupportsIndex) -> str:
    """Return a ref as a string. A step may have any integer type, including those of NumPy."""
    if isinstance(ref, str):
        return ref
    try:
        if not isinstance(ref, bool):
            return str(operator.index(ref))
    except TypeError:
        pass
    raise BadInput(f"a ref is a string, a step number or a CheckpointInfo, got {type(ref).__name__}")


def _refuse_damaged(context: Context, keys: Sequence[CheckpointKey], present: Sequence[CheckpointInfo]) -> None:
    """Raise if the newest checkpoint among `keys` is incomplete or damaged. `present` has the complete ones."""
    # An older checkpoint of the step must not be returned instead of a damaged newer one.
    from ckstore.objects.checkpoints import look

    for key in sorted({*keys} - {info.key for info in present}):
        if context.layout.stamp(key) is None and not context.layout.passed_over:
            continue
        found = look(context.layout, key)
        if found.is_closed and not present:
            raise CkstoreError(found.problem, hint=way_in(context.layout, context.layout.checkpoint(key).inner))
        if found.published is not None or found.is_closed or found.is_another or not found.problem:
            continue
        try:
            # Compare without the generation, since another generation of the same checkpoint may be complete.
            is_older = bool(present) and facts_at(context, key).order[:3] <= present[-1].order[:3]
        except (FileNotFoundError, NotADirectoryError, DamagedBlob):
            is_older = bool(present)  # without a readable manifest, the directory does not count as newer
        if not is_older:
            hint = "ckstore verify lists complete checkpoints; latest-valid is the newest checkpoint that verifies"
            raise DamagedBlob(found.problem, hint=hint)


def _keys_of(context: Context, ref: Ref, tags: Mapping[str, CheckpointKey]) -> list[CheckpointKey]:
    """Return the directories that a tag, a step or a full id can name.

    For a tag or an id, these are the generations of one checkpoint. For a step, these are all checkpoints of the step.
    For other refs, which `resolve` handles, the result is empty.
    """
    if ref.kind == "tag":
        target = tags.get(ref.value)
        if target is None or ref.run not in (None, target.run):
            return []
        of_step = context.layout.of_step(*target.run_step)
        # A tag of a draft format names only the step, until the store is converted.
        return [key for key in of_step if key.any_generation == target] or (of_step if target.is_draft else [])
    if ref.kind == "id":
        return _keys_of_whole_id(context, ref)
    return context.layout.of_step(_run_of_step(context, ref), int(ref.value)) if ref.kind == "step" else []


def _run_of_step(context: Context, ref: Ref) -> str:
    if ref.run is not None:
        return ref.run
    return names[0] if len(names := context.layout.runs()) == 1 else DEFAULT_RUN


def _keys_of_whole_id(context: Context, ref: Ref) -> list[CheckpointKey]:
    """Return the directories that the catalog lists for a full id and whose manifests have that id."""
    from ckstore.objects.checkpoints import id_at

    if not is_digest(ref.value):
        return []
    try:
        keys = context.catalog.places_of_id(ref.value)
    except CatalogUnavailable:
        return []
    if len({key.run_step for key in keys}) != 1 or ref.run not in (None, keys[0].run):
        return []
    return [key for key in keys if id_at(context.layout.checkpoint(key)) == ref.value]


def _same(context: Context, wanted: CheckpointInfo) -> CheckpointInfo:
    from ckstore.objects.checkpoints import id_at, key_with_id

    fitting = [key for key in context.layout.of_step(wanted.run, wanted.step) if key.fits(*wanted.key[:2], wanted.id)]
    forms = infos(context, at=stamps(context, fitting)) if len(fitting) > 1 else []
    if (form := next((info for info in reversed(forms) if info.id == wanted.id), None)) is not None:
        return _marked(context, form)
    key: CheckpointKey | None = wanted.key
    if id_at(context.layout.checkpoint(wanted.key)) != wanted.id:  # it was dropped or compacted
        key = key_with_id(context.layout, wanted.run, wanted.step, wanted.id)
    if key is None:
        msg = f"checkpoint {wanted.name} with id {wanted.id} is no longer in the store"
        raise NoSuchRef(msg, hint="it was deleted or replaced; ckstore log lists the checkpoints")
    found = replace(wanted, directory=key.directory)
    with context.layout.open_runs() as runs:
        known = as_it_is(context, runs, found, tags_by_checkpoint(context.layout).get(key.any_generation, ()))
    return _marked(context, known)


def torn_at(context: Context, ref: AnyRef) -> list[CheckpointKey]:
    """Return the directories of a step that hold no complete checkpoint, or an empty list if `ref` is not a step."""
    from ckstore.objects.checkpoints import look

    if isinstance(ref, CheckpointInfo) or (parsed := parse_ref(text_of(ref))).kind != "step":
        return []
    in_run = replace(parsed, run=run_meant(context, parsed.run))
    keys = context.layout.of_step(_run_of_step(context, in_run), int(parsed.value))
    looked = {key: look(context.layout, key) for key in keys}
    return [key for key, found in looked.items() if found.published is None and found.problem and not found.is_closed]


def open_directory(context: Context, ref: AnyRef) -> CheckpointDirectory:
    """Open the checkpoint that `ref` names for reading, with a shared lock and a checked manifest."""
    from ckstore.ops.check.validity import open_checked

    for _ in range(_OPEN_TRIES):
        info = find(context, ref)
        try:
            directory = open_checked(context, context.layout.checkpoint(info.key))
        except FileNotFoundError:  # the checkpoint was dropped before it was locked
            continue
        except InUse:
            # A compaction keeps the former generation locked while it encodes other checkpoints against it. The next
            # try opens the latest generation.
            if find(context, ref).key == info.key:
                raise
            continue
        # Compare the id under the lock, which keeps other processes from dropping the checkpoint.
        if directory.manifest_id == info.id:
            return directory
        directory.close()  # the row of the catalog is wrong, and is repaired
        with suppress(FileNotFoundError, NotADirectoryError, DamagedBlob):  # the next try reports the error
            from_manifests(context, info)
    raise NoSuchRef(f"{ref} was replaced or removed {_OPEN_TRIES} times while it was being opened")


def open_listed(context: Context, info: CheckpointInfo) -> CheckpointDirectory:
    """Open a recently listed checkpoint, like `open_directory`, but without listing its run again."""
    from ckstore.ops.check.validity import open_checked

    # If the checkpoint was compacted, locked or damaged in the meantime, `open_directory` finds the new directory,
    # waits for the lock, or raises the error.
    with suppress(FileNotFoundError, NotADirectoryError, DamagedBlob, InUse):
        directory = open_checked(context, context.layout.checkpoint(info.key), timeout_s=0)
        if directory.manifest_id == info.id:
            return directory
        directory.close()
    return open_directory(context, info)


def latest(context: Context, run: str | None, *, valid: bool) -> CheckpointInfo | None:
    """Return the newest checkpoint of a run, or with `valid` the newest valid one. Without checkpoints, return None.

    Raises:
        NoWholeCheckpoint: Directories of checkpoints exist, but none holds a complete checkpoint.
    """
    run = run_meant(context, run)
    if not valid:
        return newest(context, in_one_run(context, Ref(run, "latest", "latest")).run)
    try:
        return find(context, "latest-valid" if run is None else f"{run}@latest-valid")
    except NoSuchRef:
        return None


def _best(context: Context, ref: Ref) -> CheckpointInfo:
    """Return the checkpoint that a ref such as ``best:loss`` names."""
    torn: set[CheckpointKey] = set()
    listed = {info.name: info for info in infos(context, torn=torn)}
    if not any(ref.run in (None, info.run) for info in listed.values()):
        check_newest(context, ref.run, None, {key for key in torn if ref.run in (None, key.run)}, str(ref))
    read: set[str] = set()
    while True:
        found = resolve(ref, list(listed.values()), {})
        if found.name in read:
            return found
        read.add(found.name)
        try:
            # A wrong number in a row of the catalog must not make a checkpoint the best (docs/adr/0002-catalog.md).
            listed[found.name] = from_manifests(context, found)
        except DamagedBlob:  # loading it reports the damage
            return found
        except (FileNotFoundError, NotADirectoryError):  # it was dropped after it was listed
            del listed[found.name]


def best_by(context: Context, metric: str, run: str | None, mode: Mode | None) -> CheckpointInfo | None:
    """Return the checkpoint of a run with the best value of a metric, or None if no checkpoint has the metric."""
    run = run_meant(context, run)
    best = Best(metric, mode)
    ref = f"{BEST}{best.metric}:{best.mode}"
    try:
        return find(context, ref if run is None else f"{check_run(run)}@{ref}")
    except NoSuchRef:
        return None


def read_checkpoint(
    context: Context, ref: AnyRef, read: Callable[[CheckpointDirectory], T], *, verify: bool = True
) -> T:
    """Return the result of `read` for the open checkpoint that `ref` names.

    For ``latest-valid``, `read` may be called for several checkpoints in turn, until one is valid. `verify` is whether
    `read` checks every byte that it reads.
    """
    if not is_latest_valid(ref):
        with open_directory(context, ref) as directory:
            return read(directory)
    from ckstore.ops.refs.latest_valid import take_newest_valid

    return take_newest_valid(context, str(ref), lambda _, directory: read(directory), read_touched=not verify)


def read_checkpoint_into(
    context: Context, ref: AnyRef, read: Callable[[CheckpointDirectory], T], *, strict: bool, verify: bool
) -> T:
    """Do the same as `read_checkpoint` for a `read` that fills a target.

    `strict` is whether `read` fills the whole target.
    """
    if not is_latest_valid(ref):
        return read_checkpoint(context, ref, read)
    from ckstore.ops.refs.latest_valid import fill_from_newest_valid

    return fill_from_newest_valid(context, str(ref), read, strict=strict, verify=verify)
