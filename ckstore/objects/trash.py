"""Move files to be deleted to ``trash/``, restore them, and list the entries that may be deleted.

Blobs and manifests that other processes can see are unlinked only in this directory (laws T1, T2 and K1 of
docs/protocol.md). `ckstore.objects.collector` empties it.
"""

from __future__ import annotations

import re
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

from ckstore.fs import dirfd_stat, files, links, locks
from ckstore.fs.dirfd_stat import with_open_parents
from ckstore.fs.lock_files import leftovers
from ckstore.model.digest import is_digest
from ckstore.model.names import CheckpointKey, is_run, key_of, step_of
from ckstore.objects.layout import BLOBS, MANIFEST

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ckstore.errors import CkstoreError
    from ckstore.fs.dirfd_stat import StorePath
    from ckstore.objects.layout import Layout
    from ckstore.objects.shared.grace import Grace

_UNDO = ".undo-"
_UNDO_END = re.compile(r"\.undo-([0-9]{1,10})\Z")
# If the filesystem could not exchange two names, a draft version of ckstore replaced a checkpoint with two renames. The
# first rename gave the old checkpoint such a name.
_REPLACED = re.compile(r"(?P<run>[^@]+)@(?P<step>[0-9]+)\.[0-9a-f]{12}\.old\Z")
# A draft version of ckstore moved a replaced checkpoint from a staging directory to trash. The digits in such a name
# are random.
_OF_DRAFT_STAGING = re.compile(r"(?P<step>[0-9]+)\.[0-9a-f]{12}(\.old)?\Z")
RELINKING = "relink"
"""The run in the name of the staging directory to which a relink moves replaced files."""


def move_to_trash(
    layout: Layout, path: StorePath, lock: locks.DirectoryLock | None = None, *, undo_s: float = 0
) -> StorePath:
    """Rename the directory `path` into ``trash/``. Return its new path.

    The directory can be restored for `undo_s` seconds. The rename is durable after ``trash/`` and the old parent were
    synced. `former_parents` returns the old parent.
    """
    # The new name contains the former place, which determines the old parent and the outdated row of the catalog.
    name = path.name if path.parent == layout.staging else f"{path.parent.name}@{path.name}"
    target = free_name(layout.trash, name)
    if undo_s >= 1:
        target = target.parent / f"{target.name}{_UNDO}{int(undo_s)}"
    links.rename(path, target)
    if lock is not None and not lock.names(target):
        links.rename(target, path)  # another process had replaced `path` by another directory, which must remain
        raise FileNotFoundError(f"{path} was replaced")
    return target


def can_return(name: str) -> bool:
    """Whether an entry of trash with this name can be restored."""
    return _UNDO_END.search(name) is not None


def has_waiting(layout: Layout) -> bool:
    """Whether the trash has an entry that can be restored."""
    return any(map(can_return, names_in(layout.trash)))


def left_s(path: StorePath) -> float:
    """Return for how many more seconds an entry of trash can be restored, or 0 if it may be deleted or is missing."""
    window = _UNDO_END.search(path.name)
    # An entry without a manifest cannot be restored: a gc was killed while deleting the entry. That gc has also changed
    # the time of the entry, so the window must not be computed from this time.
    found = dirfd_stat.find(path) if window and dirfd_stat.exists(path / MANIFEST) else None
    # The window begins at ctime, which the rename into trash has set, and which no user can set back.
    return 0.0 if window is None or found is None else left_of(int(window[1]), found.st_ctime)


def left_of(window_s: float, since: float) -> float:
    """Return the remaining time of a window in seconds.

    A start in the future, because the clock was set back, counts as now.
    """
    return max(0.0, window_s - max(0.0, time.time() - since))


def renew_future(layout: Layout) -> None:
    """Restart undo windows that begin far in the future. Otherwise, their entries would wait until that time."""
    now_s = time.time()
    for name in names_in(layout.trash):
        window = _UNDO_END.search(name)
        found = dirfd_stat.find(layout.trash / name) if window else None
        # A start that is ahead by less than the length of the window may come from the clock of a server. The server
        # would set the same time again.
        if window and found is not None and found.st_ctime - now_s > int(window[1]):
            files.renew_ctime(layout.trash / name)


def due(layout: Layout, *, purge: bool = False) -> list[str]:
    """Return the names in trash whose undo window is over. With `purge`, include all entries of this user."""
    return [name for name in names_in(layout.trash) if not _stays(layout.trash / name, purge=purge)]


def _stays(path: StorePath, *, purge: bool) -> bool:
    return left_s(path) > 0 and not (purge and may_purge(path))


def may_purge(path: StorePath) -> bool:
    """Whether this user may end the undo window of a checkpoint, as its owner or as root.

    Purging another user's checkpoint would not free its blobs. It would only prevent an undo.
    """
    found = dirfd_stat.find(path)
    return found is not None and dirfd_stat.current_user() in (0, found.st_uid)


def waiting_blobs(layout: Layout, *, purge: bool = False) -> set[str]:
    """Return the digests of blobs in entries of trash whose undo window is not over. gc cannot free these blobs yet."""
    return {
        digest for folder in waiting_folders(layout, purge=purge) for digest in names_in(folder) if is_digest(digest)
    }


def waiting_folders(layout: Layout, *, purge: bool = False) -> list[StorePath]:
    """Return the blob directories of entries whose undo window is not over. With `purge`, omit entries of this user."""
    names = names_in(layout.trash)
    return [layout.trash / name / BLOBS for name in names if _stays(layout.trash / name, purge=purge)]


def in_use(path: StorePath) -> bool:
    """Whether a process uses the directory of a checkpoint or an entry of trash. True if access is denied."""
    try:
        return locks.is_locked(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError:
        return dirfd_stat.is_directory(path)


def former_parents(layout: Layout, names: Sequence[str]) -> list[StorePath]:
    """Return the directories from which the entries of ``trash/`` with these names may have been renamed."""
    # The names of former stagings and checkpoints begin with their run and ``@``. For any other name, every run may be
    # the former parent. The parents of unused blobs are not needed: if a power cut restores a name in ``blobs/``, gc
    # lists the name again.
    runs: set[str] = set()
    for name in names:
        run, at, _ = name.partition("@")
        if at and is_run(run):
            runs.add(run)
        elif not is_digest(name.partition(".")[0]):
            runs.update(layout.runs())
    if not runs:
        return []
    there = [layout.checkpoints / run for run in sorted(runs)]
    # The blobs of an evicted checkpoint were in its directory, which still exists.
    there += [layout.checkpoint(place) for name in names if (place := former_place(name)) is not None]
    return [*(path for path in there if dirfd_stat.is_directory(path)), layout.staging]


def free_name(trash: StorePath, name: str) -> StorePath:
    """Return a free name in ``trash/`` that begins with `name` and a dot."""
    return trash / f"{name}.{uuid.uuid4().hex[:12]}"


def former_place(name: str) -> CheckpointKey | None:
    """Return the key of the checkpoint that was renamed to this name in ``trash/``, or None for another entry."""
    # A former staging directory has a similar name, so the checkpoint of the key may never have existed.
    run, at, rest = name.partition("@")
    directory = _UNDO_END.sub("", rest).rpartition(".")[0]  # remove the last part, which `free_name` has added
    if can_return(name) and (staged := _OF_DRAFT_STAGING.match(directory)):
        directory = staged["step"]
    return key_of(run, directory) if at and is_run(run) else None


def draft_replaced(layout: Layout, name: str) -> CheckpointKey | None:
    """Return the checkpoint that a draft version moved to this name in ``staging/``, if its step has no directory."""
    found = _REPLACED.match(name)
    key = key_of(found["run"], found["step"]) if found is not None and is_run(found["run"]) else None
    return None if key is None or layout.of_step(*key.run_step) else key


def dead_stagings(layout: Layout) -> list[str]:
    """Return the names of the staging directories whose process is dead, without changing them."""
    found = []
    for path, lock in _locked_dead(layout, None, {}):  # errors are ignored here; `sweep_staging` reports them
        lock.release()
        found.append(path.name)
    return found


def sweep_staging(
    layout: Layout,
    failed: dict[str, OSError | CkstoreError],
    grace: Grace | None = None,
    names: Sequence[str] | None = None,
) -> dict[str, str]:
    """Move staging directories whose process is dead to trash. Return former name -> name in trash.

    If a directory cannot be moved, its path and the error are added to `failed`, and the others are still moved.
    """
    # On a shared filesystem, the locks of other hosts are not visible. In this case, a directory is moved only if it
    # was not changed for the grace period. If its save is still running on another host, the save fails and publishes
    # nothing.
    swept: dict[str, str] = {}
    for path, lock in _locked_dead(layout, names, failed):
        with lock:
            try:
                if grace is not None and not grace.is_over(path):
                    continue
                if path.name.startswith(f"{RELINKING}@") and not _blobs_are_durable(layout):
                    continue
                swept[path.name] = move_to_trash(layout, path, lock).name
            except (FileNotFoundError, PermissionError):  # it was removed, or only its owner may move it (sticky bit)
                continue
            except OSError as error:
                failed[path.inner] = error
    return swept


def sweep_hidden(layout: Layout, names: Iterable[tuple[str, str]], grace: Grace | None = None) -> None:
    """Move directories with the hidden name of a step to trash if their save is dead.

    `names` are pairs of a run and a name in its directory. On a shared filesystem, a running save briefly uses a hidden
    name (`publish._hide`).
    """
    for run, name in names:
        if not name.startswith(".") or step_of(name[1:]) is None:
            continue
        path = layout.checkpoints / run / name
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            lock = locks.try_exclusive(path)
            if lock is None:
                continue
            with lock:
                if grace is None or grace.is_over(path):
                    move_to_trash(layout, path, lock)


def _blobs_are_durable(layout: Layout) -> bool:
    """Make the names of all blobs in checkpoints durable. Return False if this fails.

    This is necessary before files that a relink has replaced are deleted.
    """
    # If an fsync fails, the old files are kept, and everything else continues. `verify` detects such a disk.
    try:
        for key, _ in layout.published():
            with suppress(FileNotFoundError, NotADirectoryError):
                files.sync_directory(layout.checkpoint(key) / BLOBS)
    except OSError:
        return False
    return True


def _locked_dead(
    layout: Layout, names: Sequence[str] | None, failed: dict[str, OSError | CkstoreError]
) -> Iterator[tuple[StorePath, locks.DirectoryLock]]:
    """Yield the staging directories with these names whose process is dead, each with a lock.

    The caller must release the locks.
    """
    names = names_in(layout.staging) if names is None else names
    if not names:
        return
    # Do not yield the only copy of a checkpoint of a draft store. A conversion will publish this copy.
    places = ((name, layout.staging / name) for name in names if draft_replaced(layout, name) is None)
    for name, held in with_open_parents(places):
        path = layout.staging / name
        try:
            lock = locks.try_exclusive(path) if dirfd_stat.is_directory(held) else None
        except OSError as error:
            failed[path.inner] = error
            continue
        if lock is not None:
            yield path, lock


def sweep_locks(layout: Layout, grace: Grace | None) -> None:
    """Unlink the leftovers of processes that died while creating a lock file, after the grace period if it is given."""
    # A leftover with another link is unlinked immediately, because it has the inode of a lock file in use. Each new
    # mark in the lock file renews the time of the inode, so the grace period might never end.
    for path in leftovers(layout.locks):
        with suppress(FileNotFoundError, PermissionError):  # the file was removed, or only its owner may unlink it
            if grace is None or dirfd_stat.status(path).st_nlink > 1 or grace.is_over(path):
                links.unlink(path)


def put_back(layout: Layout, digest: str, path: StorePath) -> bool:
    """Restore the canonical name of a blob in trash. Return False if another copy has the name, or a link is refused.

    In these two cases, the blob remains in trash.
    """
    canonical = layout.blob(digest)
    links.make_directory(canonical.parent)  # it usually exists, but a power cut may have removed it
    try:
        if not links.try_link(path, canonical):
            return False
    except FileExistsError:
        try:
            own, other = dirfd_stat.status(path), dirfd_stat.status(canonical)
        except FileNotFoundError:
            return False
        if (own.st_dev, own.st_ino) != (other.st_dev, other.st_ino):
            return False
    links.unlink(path)
    return True


def waits(layout: Layout, run: str, step: int | None = None) -> bool:
    """Whether a dropped checkpoint of a run, or of one step of the run, can be restored."""
    of_run = ((name, former_place(name)) for name in names_in(layout.trash) if can_return(name))
    return any(
        place is not None and place.run == run and step in (None, place.step) and left_s(layout.trash / name) > 0
        for name, place in of_run
    )


def names_in(directory: StorePath) -> list[str]:
    """Return the sorted names in a directory, or nothing if the directory is missing."""
    try:
        return sorted(dirfd_stat.names(directory))
    except FileNotFoundError:
        return []
