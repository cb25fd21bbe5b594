"""Rename a run: copy its checkpoints with links, then drop the old checkpoints.

Source: docs/protocol.md. The name of a run is in each manifest, and the id of a checkpoint is the digest of its
manifest. Therefore each checkpoint gets a new manifest and id, and keeps its bytes, its place in the order of commits
and its times. All copies are durable before the first old checkpoint is dropped. If the process is killed, complete
checkpoints may exist under both names, and repeating the call completes the renaming.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

from ckstore.errors import BadInput, DamagedBlob, InUse, NoSuchRef, Protected, StepExists
from ckstore.fs import files, links, locks
from ckstore.model.checkpoint.annotations import Annotations
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.manifest.manifest import render
from ckstore.model.names import CheckpointKey, check_own_run, check_run
from ckstore.model.reports.event import RENAMED
from ckstore.model.words import some_of
from ckstore.objects import publish, trash
from ckstore.objects.checkpoints import CheckpointDirectory, key_with_id, look, published_of_step
from ckstore.objects.documents.annotations import add_annotations, read_annotations
from ckstore.objects.documents.pins import read_pins, write_pin
from ckstore.objects.generations import take_annotations
from ckstore.objects.layout import PLAIN
from ckstore.objects.staging import Staging
from ckstore.ops import config_file, events
from ckstore.ops.context import Context, info_of, read_info
from ckstore.ops.free import reclaim
from ckstore.ops.free.drop import drop, make_kept_durable
from ckstore.ops.index.reconcile import update_row
from ckstore.ops.notices import warn
from ckstore.ops.refs.evaluations import check_not_evaluated
from ckstore.ops.refs.labels import move_tag
from ckstore.ops.refs.listing import infos, no_such_run
from ckstore.ops.refs.protection import check_tags, gone, held
from ckstore.ops.save.continuation import is_reserved, parent_at, rename_lineage
from ckstore.ops.save.save import failing_as_save

_T = TypeVar("_T")
_AGAIN = "rename the run again, which completes the renaming"


class RunCopies(Protocol):
    """Copies of checkpoints of a run in other places."""

    def check_local(self, context: Context, infos: Sequence[CheckpointInfo], /) -> None:
        """Raise unless the store itself has all data of these checkpoints."""

    def left_behind(self, context: Context, infos: Sequence[CheckpointInfo], /) -> str:
        """Describe the places that keep these checkpoints under their old names; return "" if no place does."""


def rename_run(context: Context, old: str, new: str, copies: RunCopies) -> list[CheckpointInfo]:
    """Rename a run; see `ckstore.Store.rename_run`."""
    context.check_writable()
    check_run(old)
    check_own_run(new)
    if old == new:
        raise BadInput(f"the run already has the name {new}")
    # While a tag or pin cannot be read, nothing may be dropped, so check this before anything is copied.
    check_tags(context.layout)
    read_pins(context.layout)
    moving = _checked(context, old, new, copies)
    left = copies.left_behind(context, moving)
    with failing_as_save(context, f"renaming {old}"):
        _take_directory(context, new)
    ids: dict[str, str] = {}
    pairs: list[tuple[CheckpointInfo, CheckpointInfo]] = []
    dropped: list[str] = []  # a sentence about each checkpoint that was dropped during the renaming
    for info in moving:
        copy = _copied(context, info, new)
        if copy is None:
            with failing_as_save(context, f"renaming {info.name}"):
                copy = _unless_dropped(context, info, partial(_copy, context, run=new, ids=ids))
        if copy is None:
            dropped.append(f"{info.name} was dropped during the renaming")
            continue
        ids[info.id] = copy.id
        pairs.append((info, copy))
    if not pairs:
        raise no_such_run(context.layout, old)
    make_kept_durable(context, new)
    make_kept_durable(context, old)
    _take_names(context, pairs)
    digests, kept = _drop_old(context, pairs)
    reclaim.free_unused(context, digests)
    rename_lineage(context, old, new, ids)
    events.note(context, "renamed", (new, None), why=f"it was {old}")
    if dropped := [*dropped, *kept]:
        warn(some_of(dropped))
    if left:
        warn(f"{left} under the name {old}, so new stores list both runs: open them with run={new!r}")
    taken = {*ids.values()}
    return [info for info in infos(context, new, superseded=True) if info.id in taken]  # with their tags


def _checked(context: Context, old: str, new: str, copies: RunCopies) -> list[CheckpointInfo]:
    """Return the checkpoints to rename, the oldest first; raise if one of them cannot be renamed."""
    found = _whole_in(context, old)
    for info in found:
        if info.damaged:
            raise _damaged(f"{info.name} is marked as damaged")
        # Dropping the old checkpoint needs an exclusive lock, so detect a reader before anything is copied.
        if trash.in_use(context.layout.checkpoint(info.key)):
            raise InUse(f"{info.name} is open for reading", hint="close it in the process that has it open")
        check_not_evaluated(context, info)
    # A checkpoint that an earlier try has copied is only dropped, so its data is not needed.
    copies.check_local(context, [info for info in found if _copied(context, info, new) is None])
    _check_free(context, found, new)
    if {old, new} <= config_file.policies_by_run(context.layout).keys():  # one of the two rules would be lost
        raise BadInput(
            f"the runs {old} and {new} both have rules in {config_file.BY_RUN}",
            hint=f"remove the rules of one of the runs from store.config.{config_file.BY_RUN}",
            command_hint=f"ckstore config retention off --run {new} removes the rules of {new}",
        )
    return found


def _whole_in(context: Context, run: str) -> list[CheckpointInfo]:
    """Return the checkpoints of a run, the oldest first; raise if one is incomplete, or a save to the run is active."""
    layout = context.layout
    # Search for running saves before listing the run, so that the list includes every save that has ended.
    for name in trash.names_in(layout.staging):
        if name.startswith(f"{run}@") and trash.in_use(layout.staging / name):
            raise _save_under_way(run)
    there = {key for key, _ in layout.published(run)}
    found = infos(context, run, superseded=True)
    whole = {info.key.any_generation for info in found}  # their other generations are dropped together with them
    for key in sorted(key for key in there if key.any_generation not in whole):
        # Another process may have dropped or completed the checkpoint since it was listed.
        verdict = look(layout, key)
        if verdict.published is not None:
            raise _save_under_way(run)
        if verdict.is_another:
            raise DamagedBlob(verdict.problem, hint="move that directory out of the run, or back to its own name")
        if verdict.problem:
            raise _damaged(f"{key.name} is incomplete")
    if not found:
        raise no_such_run(layout, run)
    return found


def _save_under_way(run: str) -> InUse:
    # The staging directory of a compaction looks like that of a save, so the message names both.
    return InUse(
        f"a save to the run {run} or a compaction of it is under way",
        hint="stop the training, wait until a compaction has ended, then rename the run",
    )


def _damaged(message: str) -> DamagedBlob:
    return DamagedBlob(
        message,
        hint="repair it with store.verify(repair=True), or delete it",
        command_hint="repair it with ckstore verify --repair, or delete it",
    )


def _check_free(context: Context, moving: Sequence[CheckpointInfo], new: str) -> None:
    """Raise unless the new name is free, or an earlier try copied checkpoints of the same run to it."""
    there = {key for key, _ in context.layout.published(new)}
    copies = {info.id: copy.key for info in moving if (copy := _copied(context, info, new)) is not None}
    others = there - {*copies.values()}
    left = [info for info in moving if info.id not in copies]
    if others and ({key.step for key in others} & {info.step for info in left} or not _are_of(context, left, others)):
        raise StepExists(f"the run {new} exists and has its own checkpoints", hint="choose another name for the run")


def _take_directory(context: Context, new: str) -> None:
    """Create the directory of the new run if it does not exist, so that no other process reserves its name."""
    if not links.make_directory(context.layout.checkpoints / new) and is_reserved(context.layout, new):
        raise StepExists(
            f'the name {new} is reserved by a process that opened the store with run="auto"',
            hint="choose another name for the run",
        )


def _are_of(context: Context, left: Sequence[CheckpointInfo], others: Iterable[CheckpointKey]) -> bool:
    """Whether the checkpoints `left`, which have no copy, belong to the trainings of the checkpoints `others`.

    A copy keeps its training, and a training belongs to one run. If this function returns True, the checkpoints were
    saved during or after an earlier try of the same renaming, which can be continued.
    """
    if not left:  # an earlier try has made all copies
        return True
    known = {found.training for key in others if (found := read_info(context, key)) is not None} - {""}
    return {parent_at(context, info).training for info in left} <= known


def _copied(context: Context, info: CheckpointInfo, new: str) -> CheckpointInfo | None:
    """Return the copy that an earlier try made of a checkpoint, or None."""
    for found in published_of_step(context.layout, new, info.step):
        copy = info_of(context, found.manifest, found.manifest_id, key=found.key)
        if (copy.sequence, copy.created, copy.content) == (info.sequence, info.created, info.content):
            return copy
    return None


def _unless_dropped(context: Context, info: CheckpointInfo, act: Callable[[CheckpointInfo], _T]) -> _T | None:
    """Return the result of `act` on a checkpoint in its current directory, or None if the checkpoint was dropped."""
    layout = context.layout
    while (key := key_with_id(layout, info.run, info.step, info.id)) is not None:
        try:
            return act(replace(info, directory=key.directory))
        except (NoSuchRef, FileNotFoundError):
            # A compaction may have moved the checkpoint to another directory.
            if key_with_id(layout, info.run, info.step, info.id) == key:
                raise
    return None


def _copy(context: Context, info: CheckpointInfo, run: str, ids: Mapping[str, str]) -> CheckpointInfo:
    """Publish a checkpoint again under another run, durably, with links to its blobs."""
    layout = context.layout
    with CheckpointDirectory.at(layout.checkpoint(info.key), layout.hash_prefix) as directory:
        if directory.manifest_id != info.id:
            raise gone(info)
        present = directory.manifest
        # If rendering gives another id, the manifest has a member that this version does not know and would lose.
        if render(present, context.algorithm)[0] != info.id:
            raise BadInput(
                f"{info.name} was written by another version of ckstore ({present.writer})",
                hint="rename it with that version",
            )
        about = present.description
        parent = None if about.parent is None else ids.get(about.parent, about.parent)
        manifest = replace(present, run=run, description=replace(about, parent=parent))
        checkpoint_id, data = render(manifest, context.algorithm)
        staging = Staging.create(layout, run, info.step)
        try:
            for file in present.stored:
                staging.take(file.digest, directory.blobs.inside / file.digest)
            take_annotations(directory.lock, staging)
            if not present.form.is_plain:
                files.create_file(staging.lock.inside / PLAIN, data, mode=0o444)
            staging.seal(present.form.document(checkpoint_id, data, context.algorithm))
            # "replace" publishes without dropping other checkpoints. If a step was saved several times, all its
            # checkpoints are copied.
            runs = publish.KnownRuns(context.known.synced_runs)
            key = publish.publish(staging, manifest, checkpoint_id, "replace", runs).key
        except BaseException as error:
            reclaim.abandon(context, staging, error, purge=False)
            raise
    staging.lock.release()
    update_row(context, key)
    return info_of(context, manifest, checkpoint_id, key=key)


def _take_names(context: Context, pairs: Sequence[tuple[CheckpointInfo, CheckpointInfo]]) -> None:
    """Move tags and pins to the copies that still exist, and the rule of the run to the new name."""
    layout = context.layout
    by_key = {info.key.any_generation: copy for info, copy in pairs}
    by_id = {info.id: copy for info, copy in pairs}
    texts = layout.tag_texts()
    for tag, key in layout.tags().items():
        if key in by_key:
            copy = by_key[key]
            with suppress(NoSuchRef), held(context, copy, is_durable=True):
                move_tag(layout, tag, texts.get(tag), copy.key)
    for pin in read_pins(layout):
        if pin.id in by_id:
            copy = by_id[pin.id]
            with suppress(NoSuchRef), held(context, copy, is_durable=True):
                write_pin(layout, replace(pin, run=copy.run, id=copy.id), instead_of=pin)
    old, new = (info.run for info in pairs[0])
    if old in config_file.policies_by_run(layout):
        config_file.edit(
            layout,
            config_file.BY_RUN,
            # Another process may have removed the rule.
            lambda rules: {new if name == old else name: rule for name, rule in (rules or {}).items()} or None,
        )


def _drop_old(context: Context, pairs: Sequence[tuple[CheckpointInfo, CheckpointInfo]]) -> tuple[set[str], list[str]]:
    """Drop the old checkpoints.

    Returns:
        The digests of their blobs, and a sentence for each checkpoint that a rule or a user has dropped meanwhile.
    """
    digests: set[str] = set()
    dropped = []
    # Begin with the oldest, so that the newest checkpoint of the old run still exists if the process is killed.
    for info, copy in pairs:
        later = partial(_take_later, context, copy)
        why = f"{RENAMED} {copy.name}"
        try:
            with _continuing():
                done = _unless_dropped(context, info, partial(drop, context, why=why, last=later))
        except (NoSuchRef, Protected):
            if _exists(context, copy):
                raise
            dropped.append(f"{copy.name} was dropped during the renaming, so {info.name} keeps its name; {_AGAIN}")
            continue
        if done is None:
            what = f"{info.name} was dropped during the renaming, after it was copied to {copy.name}, which stays"
            dropped.append(what)
        else:
            digests |= {*done.digests}
    return digests, dropped


def _exists(context: Context, info: CheckpointInfo) -> bool:
    return key_with_id(context.layout, info.run, info.step, info.id) is not None


@contextmanager
def _continuing() -> Iterator[None]:
    """Add advice to the error if a process has tagged, pinned or opened an old checkpoint after its copy was made."""
    try:
        yield
    except InUse as error:
        if isinstance(error, Protected):  # its advice is to remove the tag or the pin, which was just set
            raise Protected(f"{error.message}, set during the renaming", hint=_AGAIN) from error
        error.hint, error.command_hint = f"when that process no longer uses it, {_AGAIN}", ""
        raise


def _take_later(context: Context, copy: CheckpointInfo, lock: locks.DirectoryLock) -> None:
    """Copy annotations that were added to the old checkpoint after its copy was made.

    The caller has locked the old checkpoint, so no more annotations can be added.

    Raises:
        NoSuchRef: The copy was dropped, for example by a rule before it had the tags and the rules of the run.
    """
    if not _exists(context, copy):
        raise gone(copy)
    found = read_annotations(lock.inside)
    if found is None:
        return
    with held(context, copy, is_durable=True) as held_copy:
        own = read_annotations(held_copy.inside) or Annotations()
        notes = tuple(note for note in found.notes if note not in own.notes)
        if notes or any(own.metrics.get(name) != value for name, value in found.metrics.items()):
            add_annotations(context.layout, held_copy, Annotations(found.metrics, notes))
