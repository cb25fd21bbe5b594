"""Replace a checkpoint where the filesystem cannot exchange two names: by two renames, with a gap between them.

The steps, and why they come in this order, are in docs/protocol.md, "replace without an exchange". A process that finds
a *gap*, which no living process has open, completes it: forwards if the new checkpoint is whole, else back. With
something at the place, the old one is a dead staging like any other.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import NamedTuple

from ckstore.errors import UnknownOutcome, UnsafePlace
from ckstore.fs import files, links, locks, peek, statx
from ckstore.fs.inside import Inside
from ckstore.model.names import CheckpointKey, is_run, step_of
from ckstore.objects import store_locks
from ckstore.objects.layout import Layout

# The name alone says run, step and successor: after a crash there is nothing else to go by.
_OLD = re.compile(r"(?P<run>[^@]+)@(?P<step>[0-9]+)\.(?P<id>[0-9a-f]{12})\.old")


class Gap(NamedTuple):
    """A replacement that was begun: the old checkpoint has left its place."""

    key: CheckpointKey  # run and step
    old: Inside  # where the old checkpoint is
    new: tuple[Inside, Inside]  # where the new one may be; the name of a save that had no step yet has ``next`` in it


def exchange(
    layout: Layout, new: Inside, key: CheckpointKey, lock: locks.DirectoryLock, opened: locks.DirectoryLock
) -> Inside:
    """Put the sealed checkpoint `new` in the place of another one, in one step where that can be; else as `replace`."""
    try:
        links.exchange(new, layout.checkpoint(*key))
    except UnsafePlace:
        return replace(layout, new, key, lock, opened)
    except OSError as error:
        if not is_done(opened, layout.checkpoint(*key), error):
            raise
    return new


def replace(
    layout: Layout, new: Inside, key: CheckpointKey, lock: locks.DirectoryLock, opened: locks.DirectoryLock
) -> Inside:
    """Put the sealed checkpoint `new` in the place of another one; return where that is now, in ``staging/``."""
    # The caller holds `lock`, the exclusive one of the run, has `new` `opened`, and makes the parents durable
    # afterwards. With `InUse` the lock was lost, and the old one is in its place. `UnknownOutcome`: it stopped in the
    # gap, or going back may not be durable; `complete` fills the gap.
    target = layout.checkpoint(*key)
    # Twelve digits of the new one's name: the process that finds it knows which staging was to follow.
    old = layout.staging / f"{key[0]}@{key[1]}.{new.name.rpartition('.')[2]}.old"
    _forget_begun(layout, key)
    # The new one must have its name for certain before the old one leaves its place (law G1).
    # The lock is asked for again after the fsync, which may have waited for the server, right before the rename.
    files.sync_directory(layout.staging)
    lock.check()
    # From the first rename to the second nothing is at the place. staging/ is synced before the run (law N4): a power
    # cut between the two could else leave the old checkpoint without any name.
    try:
        links.rename(target, old)
        files.sync_directory(layout.staging)
        files.sync_directory(target.parent)
        rename_opened(opened, new, target)
    except BaseException as error:
        # Any exception, Ctrl-C too: a gap that stays makes readers wait ten seconds.
        _go_back(layout, old, target, error)
        raise
    return old


def rename_opened(opened: locks.DirectoryLock, source: Inside, target: Inside) -> None:
    """Rename a directory that is open; an error although it was done is ignored."""
    # So it is when the answer of a server is lost, and when the client asks again and there is no source any more.
    try:
        links.rename(source, target)
    except OSError as error:
        if not is_done(opened, target, error):
            raise


def is_done(opened: locks.DirectoryLock, target: Inside, error: OSError) -> bool:
    """Return whether an open directory is at `target`, after a call that should have put it there failed."""
    # The one error that says for certain that nothing was renamed.
    if error.errno in links.ALREADY_THERE:
        return False
    try:
        statx.refresh(target.parent)  # this host may remember that nothing is there
        return opened.names(target)
    except OSError as second:
        msg = f"whether {target} was published cannot be told: {error}; {second}"
        hint = "the step may or may not be there; open the store again"
        raise UnknownOutcome(msg, hint=hint) from error


def _forget_begun(layout: Layout, key: CheckpointKey) -> None:
    """Give what an earlier replacement of this place left the name of a dead staging: it must not come back."""
    # Its process died after the second rename, so the old checkpoint still names a new one that is about to move, too.
    for gap in begun(layout):
        if gap.key == key:
            with suppress(FileNotFoundError):  # swept meanwhile
                links.rename(gap.old, layout.staging / f"{key[0]}@{key[1]}.{uuid.uuid4().hex[:12]}")


def _go_back(layout: Layout, old: Inside, target: Inside, error: BaseException) -> None:
    """Put the old checkpoint back in its place after an error, if it left that."""
    try:
        # This host may remember a name that the rename took away.
        statx.refresh(layout.staging)
        if not peek.exists(old):
            return
        with locks.lock_shared(old):  # so has each process that puts a checkpoint in its place (L2)
            links.rename(old, target)
            for parent in (target.parent, layout.staging):
                files.sync_directory(parent)
    except OSError as second:
        msg = f"{target} was being replaced when the system failed: {error}; {old} could not be put back: {second}"
        again = "save that step again" if layout.shared else "open the store again"
        hint = f"{again}, which completes it first: the step may or may not be the new one"
        raise UnknownOutcome(msg, hint=hint) from error


def gaps(layout: Layout, names: Collection[str] | None = None) -> Iterator[Gap]:
    """Yield the places that are empty because of a replacement; `names`: those in ``staging/``, if they are known."""
    for gap in begun(layout, names):
        if not peek.exists(layout.checkpoint(*gap.key)):
            yield gap


def begun(layout: Layout, names: Collection[str] | None = None) -> Iterator[Gap]:
    """Yield the replacements of which the old checkpoint is still in ``staging/``, whatever is at its place."""
    if names is None:
        try:
            names = peek.names(layout.staging)
        except FileNotFoundError:  # an empty one, which a copy left out
            return
    for name in names:
        found = _OLD.fullmatch(name)
        if found is None or (step := step_of(found["step"])) is None or not is_run(found["run"]):
            continue
        new = tuple(layout.staging / f"{found['run']}@{number}.{found['id']}" for number in (step, "next"))
        yield Gap((found["run"], step), layout.staging / name, (new[0], new[1]))


def make_successor_durable(layout: Layout, name: str) -> None:
    """Make durable what took the place of what has this name in ``staging/``, before that goes, if anything did."""
    # The process that put it there may have died before it did so, and then neither of them might come back.
    for replaced in begun(layout, [name]):
        files.sync_directory(layout.checkpoints / replaced.key[0])


def complete(layout: Layout, gap: Gap) -> bool:
    """Fill a gap durably: forwards if the new checkpoint is whole, else back. False: a process has the new one open."""
    # The caller holds the exclusive lock of the run. With something at the place nothing is changed.
    from ckstore.objects.checkpoints import look  # who only lists needs no more than names

    target = layout.checkpoint(*gap.key)
    # Looked at again under the lock: the save that left the gap may have filled it.
    if peek.exists(target):
        return True
    for parent in (layout.staging, target.parent):  # the process that died may have come no further than the rename
        files.sync_directory(parent)
    for new in gap.new:
        if not peek.is_directory(new):
            continue
        # A living save holds a shared lock on its staging: then the gap is its own to fill.
        lock = locks.try_exclusive(new)
        if lock is None:
            return False
        with lock:
            # Forwards only if it is whole: else the old one is the only checkpoint there is.
            if look(layout, *gap.key, lock=lock).published is not None:
                links.rename(new, target)
                _make_durable(layout, target)
                return True
    with suppress(FileNotFoundError), locks.lock_shared(gap.old):
        links.rename(gap.old, target)
        _make_durable(layout, target)
    return True


def _make_durable(layout: Layout, target: Inside) -> None:
    for parent in (target.parent, layout.checkpoints, layout.staging):
        files.sync_directory(parent)


def complete_run(layout: Layout, key: CheckpointKey) -> None:
    """Fill the gaps of a run, all of them dead, since the caller holds the exclusive lock of the run."""
    for gap in gaps(layout):
        if gap.key[0] == key[0]:
            complete(layout, gap)


def try_complete(layout: Layout, gap: Gap) -> bool:
    """Fill a gap if no other process has its run locked."""
    lock = store_locks.try_run(layout, gap.key[0])
    if lock is None:
        return False
    with lock:
        return complete(layout, gap)


def unswept(layout: Layout, names: Collection[str]) -> frozenset[str]:
    """Return which of the names in ``staging/`` a gap needs: neither its old nor its new checkpoint is dead."""
    needed: set[str] = set()
    for gap in gaps(layout, names):
        needed |= {gap.old.name, *(new.name for new in gap.new)}
    return frozenset(needed)
