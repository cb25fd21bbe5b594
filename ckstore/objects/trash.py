"""Trash, the only place in which files that other processes can see are unlinked (rules F, T and K of the design).

Files to delete are renamed into ``trash/``, which `ckstore.objects.collector` empties.
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
# A draft replaced a checkpoint by two renames where names could not be exchanged: the first left it under this name.
_REPLACED = re.compile(r"(?P<run>[^@]+)@(?P<step>[0-9]+)\.[0-9a-f]{12}\.old\Z")
RELINKING = "relink"
"""The run in the name of the staging directory in which a relink puts replaced files."""


def move_to_trash(
    layout: Layout, path: StorePath, lock: locks.DirectoryLock | None = None, *, undo_s: float = 0
) -> StorePath:
    """Rename the directory `path` into ``trash/``, where it waits for `undo_s`. Return its new path."""
    # It is durable after a sync of ``trash/`` and of the old parent, which `former_parents` finds by the name in trash.
    # The name tells where it came from: what must be durable first, and which row of the catalog is wrong by now.
    name = path.name if path.parent == layout.staging else f"{path.parent.name}@{path.name}"
    target = free_name(layout.trash, name)
    if undo_s >= 1:
        target = target.parent / f"{target.name}{_UNDO}{int(undo_s)}"
    links.rename(path, target)
    if lock is not None and not lock.names(target):
        links.rename(target, path)  # another process put a directory there meanwhile: it is not ours to take
        raise FileNotFoundError(f"{path} was replaced")
    return target


def can_return(name: str) -> bool:
    """Whether an entry of trash with this name can be restored."""
    return _UNDO_END.search(name) is not None


def has_waiting(layout: Layout) -> bool:
    """Whether the trash has an entry that can be restored."""
    return any(map(can_return, names_in(layout.trash)))


def left_s(path: StorePath) -> float:
    """Return the remaining time in which an entry of trash can be restored, or 0 if it may be deleted or is missing."""
    window = _UNDO_END.search(path.name)
    # Without a manifest it cannot come back: a gc was killed while it took this apart, and so renewed the time.
    found = dirfd_stat.find(path) if window and dirfd_stat.exists(path / MANIFEST) else None
    # The rename into trash set ctime, which no user can set back.
    return 0.0 if window is None or found is None else left_of(int(window[1]), found.st_ctime)


def left_of(window_s: float, since: float) -> float:
    """Return the remaining time of a window. A start in the future, because the clock was set back, counts as now."""
    return max(0.0, window_s - max(0.0, time.time() - since))


def renew_future(layout: Layout) -> None:
    """Restart windows that begin far in the future, because their entries would otherwise wait until that time."""
    now_s = time.time()
    for name in names_in(layout.trash):
        window = _UNDO_END.search(name)
        found = dirfd_stat.find(layout.trash / name) if window else None
        # Less than a window ahead may be the clock of a server, which would set the same time again.
        if window and found is not None and found.st_ctime - now_s > int(window[1]):
            files.renew_ctime(layout.trash / name)


def due(layout: Layout, *, purge: bool = False) -> list[str]:
    """Return the names in trash that do not wait. With `purge`, include those that wait and belong to this user."""
    return [name for name in names_in(layout.trash) if not _stays(layout.trash / name, purge=purge)]


def _stays(path: StorePath, *, purge: bool) -> bool:
    return left_s(path) > 0 and not (purge and may_purge(path))


def may_purge(path: StorePath) -> bool:
    """Whether this user may end the undo window of a checkpoint: its owner, and root for every checkpoint.

    Purging another user's checkpoint would not free its blobs. It would only prevent an undo.
    """
    found = dirfd_stat.find(path)
    return found is not None and dirfd_stat.current_user() in (0, found.st_uid)


def waiting_blobs(layout: Layout, *, purge: bool = False) -> set[str]:
    """Return the digests in waiting entries of trash. They keep a name, so they need no individual check."""
    return {
        digest for folder in waiting_folders(layout, purge=purge) for digest in names_in(folder) if is_digest(digest)
    }


def waiting_folders(layout: Layout, *, purge: bool = False) -> list[StorePath]:
    """Return the blob directories of waiting entries of trash. With `purge`, exclude those of this user."""
    names = names_in(layout.trash)
    return [layout.trash / name / BLOBS for name in names if _stays(layout.trash / name, purge=purge)]


def in_use(path: StorePath) -> bool:
    """Whether a process uses the directory of a checkpoint or an entry of trash. True for an inaccessible directory."""
    try:
        return locks.is_locked(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError:
        return dirfd_stat.is_directory(path)


def former_parents(layout: Layout, names: Sequence[str]) -> list[StorePath]:
    """Return the directories from which the entries of ``trash/`` with these names may have been renamed."""
    # Both stagings and checkpoints have names there that begin with their run and ``@``. Of another name any run may be
    # the one. The parents of condemned blobs are left out: a name that comes back in ``blobs/`` is only listed again.
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
    # The blobs of an evicted checkpoint were in its own directory, which stays.
    there += [layout.checkpoint(place) for name in names if (place := former_place(name)) is not None]
    return [*(path for path in there if dirfd_stat.is_directory(path)), layout.staging]


def free_name(trash: StorePath, name: str) -> StorePath:
    """Return a free name in ``trash/`` that begins with `name` and a dot."""
    return trash / f"{name}.{uuid.uuid4().hex[:12]}"


def former_place(name: str) -> CheckpointKey | None:
    """Return the key of the checkpoint that was renamed to this name in ``trash/``, or None for another entry."""
    # A staging directory has the same form of name, and so may be taken for a checkpoint of which nothing is known.
    run, at, rest = name.partition("@")
    directory = _UNDO_END.sub("", rest).rpartition(".")[0]  # `free_name` put the last part there
    return key_of(run, directory) if at and is_run(run) else None


def draft_replaced(layout: Layout, name: str) -> CheckpointKey | None:
    """Return the checkpoint that a draft moved to this name in ``staging/``, if its step has no directory."""
    found = _REPLACED.match(name)
    key = key_of(found["run"], found["step"]) if found is not None and is_run(found["run"]) else None
    return None if key is None or layout.of_step(*key.run_step) else key


def dead_stagings(layout: Layout) -> list[str]:
    """Return the names of the staging directories whose owner is dead, without changing them."""
    found = []
    for path, lock in _locked_dead(layout, None, {}):  # what cannot be looked at the sweep names
        lock.release()
        found.append(path.name)
    return found


def sweep_staging(
    layout: Layout,
    failed: dict[str, OSError | CkstoreError],
    grace: Grace | None = None,
    names: Sequence[str] | None = None,
) -> dict[str, str]:
    """Move staging directories whose owner is dead to trash. Return their names there by those in ``staging/``.

    If one cannot be moved, its path and the error are added to `failed`, and the others are still moved.
    """
    # With a grace, where the locks of other hosts are not seen: those that were left alone for so long. A save that
    # lives fails by that, and nothing is published.
    swept: dict[str, str] = {}
    for path, lock in _locked_dead(layout, names, failed):
        with lock:
            try:
                if grace is not None and not grace.is_over(path):
                    continue
                if path.name.startswith(f"{RELINKING}@") and not _blobs_are_durable(layout):
                    continue
                swept[path.name] = move_to_trash(layout, path, lock).name
            except (FileNotFoundError, PermissionError):  # gone, or its owner's alone (a sticky directory)
                continue
            except OSError as error:
                failed[path.inner] = error
    return swept


def sweep_hidden(layout: Layout, names: Iterable[tuple[str, str]], grace: Grace | None = None) -> None:
    """Move directories to trash that died under the hidden name of their step. `names` are runs, and names in them."""
    # Only on a shared filesystem a save has it for a moment (`publish._hide`).
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
    """Make the names of all blobs in checkpoints durable, before the files that a relink replaced are deleted."""
    # Where the disk refuses that, only the space of the old files is lost, and all else goes on: `verify` finds the
    # disk.
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
    """Yield the staging directories with these names whose owner is dead, each with a lock that the caller releases."""
    names = names_in(layout.staging) if names is None else names
    if not names:
        return
    # The only copy of a checkpoint is not dead: a conversion publishes it.
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
    """Unlink the leftovers of processes that died while creating a lock file, after the grace if there is one."""
    # A further name of a lock goes at once: its time is that of the last mark, and so would never be over.
    for path in leftovers(layout.locks):
        with suppress(FileNotFoundError, PermissionError):  # gone, or its owner's alone (a sticky directory)
            if grace is None or dirfd_stat.status(path).st_nlink > 1 or grace.is_over(path):
                links.unlink(path)


def put_back(layout: Layout, digest: str, path: StorePath) -> bool:
    """Restore the canonical name of a blob in trash. Return False if another copy has it. The blob then remains."""
    # So does a blob of another user, to which the kernel may refuse a link.
    canonical = layout.blob(digest)
    links.make_directory(canonical.parent)  # usually there; a power cut may have taken it
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
    """Whether a dropped checkpoint of a run, or of this step of it, can be restored."""
    of_run = ((name, former_place(name)) for name in names_in(layout.trash) if can_return(name))
    return any(
        place is not None and place.run == run and step in (None, place.step) and left_s(layout.trash / name) > 0
        for name, place in of_run
    )


def names_in(directory: StorePath) -> list[str]:
    """Return the names in a directory, sorted. Empty if the directory is missing."""
    try:
        return sorted(dirfd_stat.names(directory))
    except FileNotFoundError:
        return []
