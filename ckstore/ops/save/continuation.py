"""Decide which checkpoint a save continues and which checkpoints it may replace, as a run belongs to one training.

Rule: docs/format/v1.md, "Trainings"; reasons: docs/adr/0031-a-run-is-one-training.md. The decision is made under the
lock of the run, from the published manifests.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ckstore.errors import CkstoreError, InUse, NoSuchRef, RunInUse
from ckstore.fs import dirfd_stat, files, links, locks
from ckstore.model.manifest.describe import encode_metadata
from ckstore.model.manifest.info import CheckpointInfo, Published
from ckstore.model.manifest.manifest import Description, Manifest
from ckstore.model.names import CheckpointKey, key_of
from ckstore.model.training_identity import (
    LOST,
    IfRunInUse,
    Parent,
    begins,
    draw_training,
    next_load,
    next_name,
)
from ckstore.model.words import some_of
from ckstore.objects.checkpoints import look
from ckstore.objects.layout import Layout
from ckstore.objects.publish import is_sound
from ckstore.ops.context import Context, read_info
from ckstore.ops.refs.find import find

_LOCK_TIMEOUT_S = 1.0
_RESERVED_NS = 1_618_033_988 * 10**9
"""The modification time of the empty directory of a reserved run, in nanoseconds.

A directory that is empty because all checkpoints of its run were deleted or renamed has another time, and its name is
free. The time of a reserved run is an even number of seconds, which every filesystem can store."""
_drawn: dict[tuple[str, str], str] = {}
"""Store and run -> the training that this process began in the run."""
# A forked process is another training, so it must not replace checkpoints of its parent process.
os.register_at_fork(after_in_child=_drawn.clear)


def parent_at(context: Context, info: CheckpointInfo) -> Parent:
    """Return the `Parent` for a checkpoint of the store."""
    # The catalog does not record trainings. If the info was read from the catalog, the manifest must be read.
    found = info if info.training else read_info(context, info.key)
    return Parent(info.id, info.run, "" if found is None else found.training)


def named_parent(context: Context, ref: str | None, *, must_be: bool) -> Parent | None:
    """Return the parent that a caller names; the checkpoint must exist if `must_be`, and may be deleted otherwise."""
    if not ref:
        return None
    try:
        return parent_at(context, find(context, ref))
    except NoSuchRef:
        if must_be:
            raise
        return Parent(ref)


def parent_in(context: Context, run: str) -> Parent | None:
    """Return the checkpoint that the next save of a run continues, or None if this process knows none."""
    known = context.known.last_parents
    own, last = known.get(run), known.get("")
    if own is not None and own.origin == "begun":
        # If a checkpoint of another run was loaded, the new training is a fork that begins with that checkpoint.
        is_fork = last is not None and last.id and last.run != run
        return own._replace(id=last.id) if is_fork and last is not None else own
    for found in (own, last):
        if found is not None and found.id:
            return found
    return None


class ParentAtCall(NamedTuple):
    """The parent of a save at the time of its call; the save runs in another thread after the call has returned."""

    entry: Parent | None  # the entry of the run in `ProcessCache.last_parents`
    last: Parent | None  # the entry with the key "", of the last load of any run
    parent: Parent | None  # the result of `parent_in`

    @classmethod
    def of(cls, context: Context, run: str) -> ParentAtCall:
        """Return the current parent of a run, at the call of a save."""
        known = context.known.last_parents
        return cls(known.get(run), known.get(""), parent_in(context, run))

    def is_last(self, context: Context, run: str) -> bool:
        """Whether the process has loaded no checkpoint of the run and begun no training in the run since the call."""
        now = context.known.last_parents.get(run)
        return _load_of(now) == _load_of(self.entry)

    def parent_now(self, context: Context, run: str) -> Parent | None:
        """Return the parent of the save, which may be the checkpoint of another save that was pending at the call."""
        is_same = context.known.last_parents.get(run) == self.entry
        return parent_in(context, run) if self.is_last(context, run) and not is_same else self.parent

    def sent(self, continues: Mapping[str, Parent], run: str) -> dict[str, Parent]:
        """Return the parents that another process needs for the save, without those from loads after the call."""
        ours = {key: one for key, one in ((run, self.entry), ("", self.last)) if one is not None}
        begun = {key: one for key, one in continues.items() if key not in {run, ""} or one.origin == "begun"}
        return {**begun, **ours}


def continue_saved(context: Context, info: CheckpointInfo, at_call: ParentAtCall | None) -> None:
    """Make a saved checkpoint the parent of the next save of its run.

    This has no effect if, since the call of the save, the process loaded a checkpoint of the run or began a training.
    """
    known = context.known.last_parents
    before = known.get(info.run)
    if at_call is None or at_call.is_last(context, info.run):
        known[info.run] = Parent.saved(info, before)
    elif before is not None and before.origin == "saved":
        # A save that was called later has already published its checkpoint. Record the sequence number of this save, so
        # that the next save does not mistake this checkpoint for one of another process.
        known[info.run] = before._replace(sequence=max(before.sequence, info.sequence))


def _load_of(parent: Parent | None) -> int:
    return 0 if parent is None else parent.load


def described(about: Description, parent: Parent | None) -> Description:
    """Return a description with the id of the parent added."""
    return replace(about, parent=(parent.id or None) if parent is not None else None)


def training_of(context: Context, parent: Parent | None, run: str) -> str:
    """Return the training of a save; this is the training of its parent in the same run, or else a new training."""
    if parent is not None and parent.run == run:
        return parent.training
    return _drawn.setdefault((context.settings.uuid, run), draw_training())


def know_training(context: Context, run: str) -> None:
    """Decide the training of the next save of a run, before another process gets the order for that save."""
    training = training_of(context, None, run)
    context.known.last_parents.setdefault(run, Parent("", run, training, origin="begun"))


def begin_training(context: Context, run: str) -> None:
    """Begin a training in a run.

    Its saves do not continue checkpoints that this process saved or loaded before. A parent that was declared
    (`Store.open(…, continue_from=…)`) is still continued.
    """
    known, declared = context.known, context.known.declared
    _drawn.pop((context.settings.uuid, run), None)
    if declared is not None:
        known.last_parents[declared.run] = known.last_parents[""] = declared._replace(load=next_load())
    if declared is None or declared.run != run:
        # Draw the id of the training now. It is sent to the background saver, so that a restarted saver does not draw
        # another id.
        known.last_parents[run] = Parent("", run, draw_training(), origin="begun", load=next_load())


def rename_lineage(context: Context, old: str, new: str, ids: Mapping[str, str]) -> None:
    """Update the parents that this process remembers after a run was renamed; `ids` maps old ids to new ones."""
    known = context.known.last_parents
    for run, parent in [*known.items()]:
        if parent.run == old:
            known[new if run == old else run] = parent._replace(id=ids.get(parent.id, parent.id), run=new)
    # Replace the entry instead of removing it, since a background saver would otherwise continue its own entry for the
    # old name.
    if old in known:
        known[old] = Parent("", old, draw_training(), origin="begun", load=next_load())
    if (training := _drawn.pop((context.settings.uuid, old), None)) is not None:
        _drawn[context.settings.uuid, new] = training


def take_free_run(context: Context, wanted: str) -> str:
    """Reserve and return an unused run name that is derived from `wanted`; no other process gets the same name."""
    context.check_writable()
    names = set(context.layout.runs())
    while True:
        name = next_name(wanted, names)
        path = context.layout.checkpoints / name
        if links.make_directory(path):
            # If the filesystem cannot set the time, the only consequence is that a rename of another run may take the
            # name.
            with suppress(OSError), files.opened_directory(path) as fd:
                os.utime(fd, ns=(_RESERVED_NS, _RESERVED_NS))
            return name
        names.add(name)


def is_reserved(layout: Layout, run: str) -> bool:
    """Whether `take_free_run` reserved the name of a run, and no checkpoint has been published in it since."""
    # Adding a checkpoint to the directory changes its modification time.
    found = dirfd_stat.find(layout.checkpoints / run)
    return found is not None and found.st_mtime_ns == _RESERVED_NS


def check_free(context: Context, run: str) -> None:
    """Raise `RunInUse` if a training would begin in the run of another training; the save repeats this check."""
    parent = parent_in(context, run)
    if begins(parent, run):
        other = _other_in(context, run, training_of(context, parent, run))
        if other is not None:
            raise _in_use(context, other)


def changed_configuration(context: Context, manifest: Manifest, parent: Parent | None) -> str:
    """Describe how the configuration differs from that of the loaded checkpoint, or return "" if none is known."""
    now = _configuration(manifest.description.metadata)
    # The difference is reported only once, since the parent of the next save is a saved and not a loaded checkpoint.
    if now is None or parent is None or parent.origin != "loaded":
        return ""
    try:
        loaded = read_info(context, find(context, parent.id).key)
    except CkstoreError:  # the loaded checkpoint was deleted or is damaged, which must not fail the save
        return ""
    before = None if loaded is None else _configuration(encode_metadata(loaded.metadata))
    if loaded is None or before is None:
        return ""
    names = sorted(name for name in now.keys() | before.keys() if now.get(name) != before.get(name))
    said = [f"{name} is {now.get(name)!r}, was {before.get(name)!r}" for name in names]
    continued = f"{manifest.name} continues {loaded.name} with another configuration"
    return f"{continued}: {some_of(said)}" if said else ""


def _configuration(metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the configuration that `ckstore.training.provenance` recorded in metadata, flattened."""
    recorded = metadata.get("provenance")
    config = recorded.get("config") if isinstance(recorded, dict) else None
    return None if not isinstance(config, dict) else dict(_flat(config, ""))


def _flat(values: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


@dataclass(frozen=True, slots=True)
class RunGuard:
    """Decides for one save whether its run belongs to its training; `check` is called under the lock of the run."""

    context: Context
    manifest: Manifest  # of the save
    parent: Parent | None  # the checkpoint that the save continues
    if_run_in_use: IfRunInUse
    notes: list[str]  # notes for the user

    def check(self, replaced: Sequence[Published]) -> None:
        """Raise `RunInUse` unless the save may publish in the run and replace these checkpoints of its step."""
        manifest = self.manifest
        if begins(self.parent, manifest.run):
            self._check_begin()
        elif self.if_run_in_use == "error":
            self._check_alone()
        for other in replaced:
            # A save of equal content replaces nothing.
            if other.manifest.training != manifest.training and other.manifest.content != manifest.content:
                msg = f"{_named(other)} belongs to another training; only a training that continues it can replace it"
                raise _refused(self.context, msg, other)
        if self.if_run_in_use == "error":
            self._check_order([other for other in replaced if other.manifest.content != manifest.content])

    def _check_order(self, replaced: Sequence[Published]) -> None:
        """Raise if this process saves an earlier step without a preceding load, since that begins another training."""
        if not replaced:
            return
        manifest, parent = self.manifest, self.parent
        if begins(parent, manifest.run):  # this handle has not saved to the run, but another handle of the process has
            newest = _newest_in(self.context, manifest.run)
            last = None if newest is None else newest.key.step
        else:
            last = None if parent is None else parent.step
        if last is None or manifest.step >= last:
            return
        other = replaced[0]
        went_back = f"this process has saved {manifest.run}@{last}, and saves step {manifest.step}"
        msg = f"{went_back} without loading a checkpoint: that begins another training, and replaces {_named(other)}"
        raise _refused(self.context, msg, other)

    def _check_begin(self) -> None:
        """Raise, or add a note, if the run in which this training begins has a checkpoint of another training."""
        run = self.manifest.run
        names = _names_in(self.context, run)
        try:
            other = _other_in(self.context, run, self.manifest.training)
        except (InUse, OSError):
            # With "append", the other checkpoint is only needed for a note, so an error here must not fail the save.
            if self.if_run_in_use == "error":
                raise
            return
        if other is None:
            self.context.known.seen_names[run] = names
            return
        if self.if_run_in_use == "error":
            raise _in_use(self.context, other)
        # Add the note only if the other checkpoint has a parent in its run. Checkpoints without parents are independent
        # of each other, such as those that tools append to a run.
        parent_digits = (other.manifest.description.parent or "").partition("-")[2]
        digits = (name.split(".")[1:2] for name in names)
        if parent_digits and any(part and parent_digits.startswith(part[0]) for part in digits):
            name = self.manifest.name
            note = f"{name} continues no checkpoint of its run, and is its latest now instead of {_named(other)}"
            note = f"{note}, of another training; {_lines(self.context, other)}"
            if note not in self.notes:
                self.notes.append(note)

    def _check_alone(self) -> None:
        """Raise if another process of the same training has saved to the run since the last save of this process."""
        run, known = self.manifest.run, self.context.known
        names = _names_in(self.context, run)
        # Consider only checkpoints that appeared since that save. After a rollback, checkpoints that are newer than the
        # loaded one existed before, and do not count.
        new = names - known.seen_names.get(run, names)
        parent = self.parent
        if parent is None or parent.origin != "saved":
            parent, new = LOST, frozenset()
        locked: set[str] = set()
        for name in sorted(new):
            try:
                found = _whole_at(self.context, key_of(run, name))
            except InUse:  # the next save checks this checkpoint
                locked.add(name)
                continue
            if found is None or found.manifest.training != self.manifest.training:
                continue
            if found.manifest.sequence > parent.sequence:
                msg = f"another process has saved {_named(found)} since this one saved to the run {run}"
                hint = f"end one of the two; {_own_run(self.context, run)} keeps both"
                raise RunInUse(f"{msg}, so two processes train in it; nothing was published", hint=hint)
        # Record the names last, so that a retry of the save raises the same error.
        known.seen_names[run] = names - locked


def _names_in(context: Context, run: str) -> frozenset[str]:
    return frozenset(name for name, _, is_directory in context.layout.listed(run) if is_directory)


def _whole_at(context: Context, key: CheckpointKey | None) -> Published | None:
    """Return the complete checkpoint in a directory of a run, or None.

    Raises:
        InUse: Another process has locked it.
    """
    if key is None:
        return None
    try:
        # The timeout is short, since the caller holds the lock of the run.
        lock = locks.lock_shared(context.layout.checkpoint(key), timeout_s=_LOCK_TIMEOUT_S)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    with lock:
        return look(context.layout, key, lock=lock).published


def _other_in(context: Context, run: str, training: str) -> Published | None:
    """Return the complete checkpoint with the highest step of a run, if it belongs to another training."""
    found = _newest_in(context, run)
    return None if found is None or found.manifest.training == training else found


def _newest_in(context: Context, run: str) -> Published | None:
    """Return the complete checkpoint with the highest step of a run."""
    # Damaged checkpoints belong to no training. If no complete checkpoint exists, the process begins a training. Use
    # the highest step and not the highest sequence number, because a process that opens the store for each save would
    # otherwise read thousands of manifests.
    keys = [key for name in _names_in(context, run) if (key := key_of(run, name)) is not None]
    for key in sorted(keys, reverse=True):
        found = _whole_at(context, key)
        if found is not None and is_sound(context.layout, found):
            return found
    return None


def _in_use(context: Context, other: Published) -> RunInUse:
    msg = f"the run {other.key.run} has checkpoints of another training, such as {_named(other)}"
    return _refused(context, f"{msg}, and this save continues none of them", other)


def _refused(context: Context, msg: str, other: Published) -> RunInUse:
    by_command = f"--run {free_run(context, other.key.run)} keeps both; --parent {other.manifest.name} continues it"
    return RunInUse(f"{msg}; nothing was published", hint=_lines(context, other), command_hint=by_command)


def _lines(context: Context, other: Published) -> str:
    name = other.manifest.name
    return (
        f"{_own_run(context, other.key.run)} keeps both; "
        f"Store.open(…, continue_from={name!r}), or a load of that checkpoint, continues it"
    )


def _own_run(context: Context, run: str) -> str:
    return f'run={free_run(context, run)!r}, or run="auto", which takes such a name,'


def free_run(context: Context, run: str) -> str:
    """Return an unused run name that is derived from `run`, without reserving it."""
    return next_name(run, {*context.layout.runs(), run})


def _named(other: Published) -> str:
    return f"{other.manifest.name} of {other.manifest.created[:19]}Z"
