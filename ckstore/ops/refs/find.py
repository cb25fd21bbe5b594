"""The door for refs: any ref becomes a checkpoint, or an open and locked one."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Literal, SupportsIndex, TypeVar

from ckstore.errors import BadInput, CatalogUnavailable, CkstoreError, DamagedBlob, NoSuchRef
from ckstore.model.best import Best
from ckstore.model.checkpoint.refs import BEST, Ref, has_id, is_latest_valid, parse_ref, resolve
from ckstore.model.digest import is_digest
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.names import DEFAULT_RUN, CheckpointKey, check_run
from ckstore.objects import trash
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.objects.shared.two_renames import Gap
from ckstore.ops.context import Context, tags_by_checkpoint
from ckstore.ops.index.facts import as_it_is, sure
from ckstore.ops.index.reconcile import stamps
from ckstore.ops.notices import way_in
from ckstore.ops.refs.latest import in_one_run, newest, run_meant
from ckstore.ops.refs.listing import infos, refuse_unfinished, settle
from ckstore.ops.refs.protection import damaged_tag, doubtful_tags

T = TypeVar("T")
AnyRef = str | SupportsIndex | CheckpointInfo
# Each try loses only if the checkpoint is replaced or dropped between two calls.
_OPEN_TRIES = 5


def find(context: Context, ref: AnyRef) -> CheckpointInfo:
    """Return the checkpoint that `ref` names. Raises NoSuchRef: there is none; the message says what there is."""
    if isinstance(ref, CheckpointInfo):
        context.notices.run_was_open = False
        return _same(context, ref)
    parsed = in_one_run(context, parse_ref(text_of(ref)))
    if parsed.kind == "latest-valid":
        from ckstore.ops.refs.latest_valid import newest_valid

        return newest_valid(context, str(parsed))
    if parsed.kind == "best":
        return _best(context, parsed)
    if parsed.kind == "latest" and (latest := newest(context, parsed.run)) is not None:
        return latest
    # From refs/ and not from the catalog, which may not have heard of a tag yet.
    tags = context.layout.tags()
    key = _key_of(context, parsed, tags)
    if key is not None and (present := infos(context, at=stamps(context, [key]))):
        return present[0]
    if key is not None:
        _refuse_damaged(context, key)
    elif parsed.kind == "tag" and (problem := doubtful_tags(context.layout).get(parsed.value)):
        raise damaged_tag(parsed.value, problem)
    listed = infos(context)
    if key is not None and all(info.key != key for info in listed):  # or `resolve` might name that step of another run
        refuse_unfinished(context, key[0], lambda gap: gap.key == key)
    try:
        return resolve(parsed, listed, tags)
    except NoSuchRef as error:
        refuse_unfinished(context, parsed.run, partial(_has_id, parsed))
        raise (error if key is None else _missed(context, key, error)) from None


def _missed(context: Context, key: CheckpointKey, error: NoSuchRef) -> NoSuchRef:
    """Return the error for a step that is not there, with what is left of it."""
    name = f"{key[0]}@{key[1]}"
    if context.layout.inode(*key) is not None:
        msg = f"{error.message}; but {context.layout.checkpoint(*key)} is there, and is no whole checkpoint"
        return NoSuchRef(msg, hint="ckstore verify says what it lacks")
    if not trash.waits(context.layout, *key):
        return error
    by_command = f"{name} was deleted; ckstore undo {name} brings it back"
    hint = f"{name} was deleted; store.undelete({name!r}) brings it back"
    return NoSuchRef(error.message, hint=hint, command_hint=by_command)


def _has_id(ref: Ref, gap: Gap) -> bool:
    from ckstore.objects.checkpoints import id_at

    return ref.kind == "id" and has_id(ref, id_at(gap.old) or "")


def text_of(ref: str | SupportsIndex) -> str:
    """Return a ref as a string; a step may be any integer, NumPy's too."""
    if isinstance(ref, str):
        return ref
    try:
        if not isinstance(ref, bool):
            return str(operator.index(ref))
    except TypeError:
        pass
    raise BadInput(f"a ref is a string, a step number or a CheckpointInfo, got {type(ref).__name__}")


def _refuse_damaged(context: Context, key: CheckpointKey) -> None:
    """Raise if a directory with a manifest is there, and it is not a whole checkpoint: another answer would mislead."""
    from ckstore.objects.checkpoints import look

    if context.layout.stamp(*key) is None and not context.layout.passed_over:
        return
    found = look(context.layout, *key)
    if found.is_closed:
        raise CkstoreError(found.problem, hint=way_in(context.layout, context.layout.checkpoint(*key).inner))
    if found.published is None and found.problem and not found.is_another:
        hint = "ckstore verify says what is whole; latest-valid is the newest checkpoint that verifies"
        raise DamagedBlob(found.problem, hint=hint)


def _key_of(context: Context, ref: Ref, tags: Mapping[str, CheckpointKey]) -> CheckpointKey | None:
    """Return the key that is meant if a checkpoint is there, which `resolve` would say, too; else it decides."""
    if ref.kind == "tag":
        key = tags.get(ref.value)
        return key if key is not None and ref.run in (None, key[0]) else None
    if ref.kind == "id":
        return _key_of_whole_id(context, ref)
    if ref.kind != "step":
        return None
    runs = [DEFAULT_RUN] if ref.run is None else [ref.run]
    if ref.run is None and len(names := context.layout.runs()) == 1:
        runs = names
    return runs[0], int(ref.value)


def _key_of_whole_id(context: Context, ref: Ref) -> CheckpointKey | None:
    """Return where the catalog has a whole id, if the manifest there has it: then no other checkpoint can be meant."""
    from ckstore.objects.checkpoints import id_at

    if not is_digest(ref.value):
        return None
    try:
        places = context.catalog.places_of_id(ref.value)
    except CatalogUnavailable:
        return None
    if len(places) != 1 or ref.run not in (None, places[0][0]):
        return None
    return places[0] if id_at(context.layout.checkpoint(*places[0])) == ref.value else None


def _same(context: Context, wanted: CheckpointInfo) -> CheckpointInfo:
    from ckstore.objects.checkpoints import id_at

    settle(context)
    if id_at(context.layout.checkpoint(wanted.run, wanted.step)) != wanted.id:
        refuse_unfinished(context, wanted.run, lambda gap: id_at(gap.old) == wanted.id)
        msg = f"checkpoint {wanted.name} with id {wanted.id} is no longer in the store"
        raise NoSuchRef(msg, hint="it was deleted or replaced; ckstore log shows what there is")
    with context.layout.open_runs() as runs:
        return as_it_is(context, runs, wanted, tags_by_checkpoint(context.layout).get(wanted.key, ()))


def open_directory(context: Context, ref: AnyRef) -> CheckpointDirectory:
    """Open the checkpoint that `ref` names for reading: locked, with a checked manifest."""
    from ckstore.ops.check.validity import open_checked

    for _ in range(_OPEN_TRIES):
        info = find(context, ref)
        try:
            directory = open_checked(context, context.layout.checkpoint(info.run, info.step))
        except FileNotFoundError:  # dropped between finding and locking: look again
            continue
        # Compared under the lock: from here on it cannot be replaced.
        if directory.manifest_id == info.id:
            return directory
        directory.close()  # replaced between finding and locking, or its row is wrong
        with suppress(FileNotFoundError, NotADirectoryError, DamagedBlob):  # the next look tells
            sure(context, info)
    raise NoSuchRef(f"{ref} was replaced or removed {_OPEN_TRIES} times while it was being opened")


def latest(context: Context, run: str | None, *, valid: bool) -> CheckpointInfo | None:
    """Return the newest checkpoint of a run, with `valid` of those that are whole; None: there is none."""
    run = run_meant(context, run)
    if not valid:
        return newest(context, in_one_run(context, Ref(run, "latest", "latest")).run)
    try:
        return find(context, "latest-valid" if run is None else f"{run}@latest-valid")
    except NoSuchRef:
        return None


def _best(context: Context, ref: Ref) -> CheckpointInfo:
    """Return the checkpoint that a ref by a metric names."""
    listed = {info.name: info for info in infos(context)}
    read: set[str] = set()
    while True:
        found = resolve(ref, list(listed.values()), {})
        if found.name in read:
            return found
        read.add(found.name)
        try:
            # Rule D: a row that says another number makes no checkpoint the best.
            listed[found.name] = sure(context, found)
        except DamagedBlob:  # loading it says so
            return found
        except (FileNotFoundError, NotADirectoryError):  # it went since it was listed
            del listed[found.name]


def best_by(context: Context, metric: str, run: str | None, mode: Literal["min", "max"]) -> CheckpointInfo | None:
    """Return the checkpoint of a run with the best number of a metric; None: none has one."""
    run = run_meant(context, run)
    ref = f"{BEST}{Best(metric, mode).metric}:{mode}"
    try:
        return find(context, ref if run is None else f"{check_run(run)}@{ref}")
    except NoSuchRef:
        return None


def read_checkpoint(
    context: Context, ref: AnyRef, read: Callable[[CheckpointDirectory], T], *, verify: bool = True
) -> T:
    """Return what `read` makes of the open checkpoint that `ref` names."""
    # For ``latest-valid`` that of the newest that is whole: `read` may be called with one after another. `verify`:
    # whether it checks every byte that it reads.
    if not is_latest_valid(ref):
        with open_directory(context, ref) as directory:
            return read(directory)
    from ckstore.ops.refs.latest_valid import take_newest_valid

    return take_newest_valid(context, str(ref), lambda _, directory: read(directory), read_touched=not verify)


def read_checkpoint_into(
    context: Context, ref: AnyRef, read: Callable[[CheckpointDirectory], T], *, strict: bool, verify: bool
) -> T:
    """As `read_checkpoint`, for a `read` that fills a target; with `strict` it fills all of the target."""
    if not is_latest_valid(ref):
        return read_checkpoint(context, ref, read)
    from ckstore.ops.refs.latest_valid import fill_from_newest_valid

    return fill_from_newest_valid(context, str(ref), read, strict=strict, verify=verify)
