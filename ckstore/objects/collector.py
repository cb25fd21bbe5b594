"""Empty the trash, and free blobs that no checkpoint needs: rules F, T and K of the design.

A store has one collector at a time, which holds the exclusive lock on ``trash/``. It needs no lock against savers,
because unlinking a name never removes bytes from another name. Before it removes the last name of a blob, it checks

1. the link count, before and after the rename to trash. Above 1, a save has claimed the blob, which gets its name back.
2. the kernel, with a lease. It is refused while any process has the inode open or mapped, through any name.
3. ``/proc``, which shows the few uses that a lease misses (`ckstore.fs.holders`), and names the holders.

On a shared filesystem, a lease may always be refused, or be granted while another host has the file open. So no lease
is requested there. The caller that starts a collector has either stated that no other host uses the store, or passes a
grace for which entries wait in trash (`ckstore.objects.shared.grace`).

Every rename into trash is made durable before anything in the entry is unlinked. Its digests are entered into the
catalog before that, so that gc inspects blobs that lose their last user. If the collector dies at any line, the next
one can continue.
"""

from __future__ import annotations

import errno
import stat
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from ckstore.errors import CatalogUnavailable, CkstoreError, InUse
from ckstore.fs import dirfd_stat, files, holders, links, locks, statx
from ckstore.fs.dirfd_stat import with_open_parents
from ckstore.fs.host.probe import TRY_PREFIX
from ckstore.model.digest import is_digest
from ckstore.model.names import CheckpointKey
from ckstore.model.reports.held_blobs import HeldBlob, PlannedBlob
from ckstore.objects import store_locks, trash
from ckstore.objects.last_links import LastLink, OpenFileCheck
from ckstore.objects.layout import BLOBS, MANIFEST, Layout

if TYPE_CHECKING:
    from ckstore.fs.dirfd_stat import StorePath
    from ckstore.objects.shared.grace import Grace

EnterCandidates = Callable[[list[tuple[str, int]], CheckpointKey | None], None]
"""Makes sure that gc will inspect these blobs (digest, size), and that the catalog knows the current checkpoint at the
key from which they were removed. Raises if it cannot."""

# Savers wait for the catalog while a batch is written.
_ENTER_BATCH = 1000


@dataclass(slots=True)
class Collected:
    """The results of a collector so far."""

    freed: list[PlannedBlob] = field(default_factory=list)  # the blobs that were freed
    # Digests that the catalog was told of, since a name of theirs was about to go.
    entered: set[str] = field(default_factory=set)
    # Names in ``trash/`` that another process was in, or that are another user's.
    left: list[str] = field(default_factory=list)
    # Paths in the store that the system did not let go, and why.
    failed: dict[str, OSError | CkstoreError] = field(default_factory=dict)
    held: dict[str, HeldBlob] = field(default_factory=dict)  # blobs that a process has open, by digest
    # Digests without a use that have further names, and their sizes.
    linked: dict[str, int] = field(default_factory=dict)


class Collector:
    """The process that empties the trash of a store; a context manager that holds the lock on ``trash/``."""

    def __init__(
        self,
        layout: Layout,
        lock: locks.DirectoryLock,
        enter: EnterCandidates,
        *,
        leases: bool,
        grace: Grace | None = None,
        purge: bool = False,
    ) -> None:
        self.collected = Collected()  # what was done
        self._judge = OpenFileCheck(leases=leases)
        self._layout = layout
        self._lock = lock
        self._trash = lock.inside
        self._catalogue = enter
        self._refused: CkstoreError | None = None
        self._grace = grace
        self._purge = purge

    @classmethod
    def try_start(
        cls,
        layout: Layout,
        enter: EnterCandidates,
        *,
        leases: bool = True,
        grace: Grace | None = None,
        purge: bool = False,
    ) -> Self | None:
        """Return a collector without waiting, or None if another one runs."""
        # With `grace` other hosts may be at work, and only what has waited in trash for so long is unlinked; with
        # `purge` also what waits there to be brought back. `enter` tells the catalog, `leases` whether they tell
        # something here.
        lock = store_locks.try_trash(layout)
        return None if lock is None else cls(layout, lock, enter, leases=leases, grace=grace, purge=purge)

    @property
    def unseen_count(self) -> int | None:
        """Number of processes that could not be inspected, see `OpenFileCheck`."""
        return self._judge.unseen_count

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    # ------------------------------------------------------------------------------- what is in trash

    def empty(self, names: Sequence[str] | None = None) -> None:
        """Delete the entries of ``trash/`` that are not in use, or only those with these names.

        An entry that cannot be deleted is recorded in `Collected.failed` and stops no other one.

        Raises:
            CatalogUnavailable, InUse: The catalog could not record blobs whose names were to be deleted. Only last
                links were deleted, which need no entry.
        """
        trash.renew_future(self._layout)
        due = trash.due(self._layout, purge=self._purge)
        names = due if names is None else sorted(set(names).intersection(due))
        if not names:
            return
        # Of all that was listed, even if another process renamed it; else a checkpoint may come back under its old
        # name, taken apart.
        for parent in (self._layout.trash, *trash.former_parents(self._layout, names)):
            files.sync_directory(parent)
        refused: CkstoreError | None = None
        self._refused = None
        for name in names:
            if self._grace is not None and not self._grace.is_over(self._trash / name):
                continue
            try:
                self._empty_one(name)
                self.collected.failed.pop((self._layout.trash / name).inner, None)
            except (CatalogUnavailable, InUse) as error:
                refused = refused or error
            except PermissionError:  # its owner's alone, as in a sticky directory: it stays, and the report says so
                self.collected.left.append(name)
            except (OSError, CkstoreError) as error:
                if isinstance(error, FileNotFoundError) and (self._grace is not None or trash.can_return(name)):
                    continue  # a process brought it back, or the collector of another host was faster
                self.collected.failed[(self._layout.trash / name).inner] = error
        if refused is not None:
            raise refused

    def _empty_one(self, name: str) -> None:
        path = self._trash / name
        if dirfd_stat.is_directory(path):
            self._take_apart(path)
        elif is_digest(digest := name.partition(".")[0]):
            self._finish(digest, path)
        elif name.startswith(TRY_PREFIX):
            with suppress(FileNotFoundError):  # a process that was opening the store took it back
                self._unlink_unless_open(path)
        else:
            self._unlink_unless_open(path)

    def _take_apart(self, path: StorePath) -> None:
        lock = locks.try_exclusive(path)
        if lock is None:  # a reader or a saver is still in it
            self.collected.left.append(path.name)
            return
        with lock:
            entries, folders = _contents(lock)
            # Last links first: they need no entry, and on a full disk they make room for the entries of the others.
            lasts, others = _split(entries)
            self._free(lasts)
            # Before any other name goes: a gc that dies between the two must still find these digests.
            self._enter([], trash.former_place(path.name))  # the process that dropped it may have died before it could
            self._enter_all(others)
            # The manifest before what says more of the checkpoint: it must not be brought back without that.
            for entry in sorted(others, key=lambda entry: entry.name != MANIFEST):
                self._unlink_unless_open(entry)
            for folder in folders:
                _remove_if_empty(folder)
            _remove_if_empty(path)

    def _enter(self, blobs: list[tuple[str, int]], key: CheckpointKey | None) -> None:
        """Update the catalog. Do not retry after a failure, because each attempt may last as long as its lock."""
        if self._refused is not None:
            raise self._refused
        try:
            self._catalogue(blobs, key)
        except CkstoreError as error:
            self._refused = error
            raise
        self.collected.entered.update(digest for digest, _ in blobs)

    def _enter_all(self, entries: list[StorePath]) -> None:
        known = [entry for entry in entries if is_digest(entry.name)]
        for start in range(0, len(known), _ENTER_BATCH):  # a saver may write to the catalog between two of these
            batch = known[start : start + _ENTER_BATCH]
            self._enter([(entry.name, dirfd_stat.status(entry).st_size) for entry in batch], None)

    def _finish(self, digest: str, path: StorePath) -> None:
        """Continue with a blob in trash that a killed collector left."""
        status = dirfd_stat.status(path)
        self._enter([(digest, status.st_size)], None)
        if status.st_nlink == 1 and self._free([LastLink(digest, path, status)]):
            return
        if not trash.put_back(self._layout, digest, path):
            self._unlink_unless_last(path)

    # ---------------------------------------------------------------------------- what is unused

    def mark_for_deletion(self, blobs: Sequence[tuple[str, int]]) -> list[str]:
        """Free the canonical blobs (digest, size) that no checkpoint uses. Return those whose name was removed."""
        # What is kept is told by `collected`. After an error the next collector goes on with it.
        gone: list[str] = []
        moved: list[LastLink] = []
        open_now: list[LastLink] = []
        for (digest, nbytes), canonical in with_open_parents((blob, self._layout.blob(blob[0])) for blob in blobs):
            try:
                last, is_moved = self._take_last(digest, nbytes, canonical)
            except PermissionError:  # in a directory of another user, who alone may free it
                continue
            except FileNotFoundError:
                if digest not in self.collected.held:  # else it is in trash, held
                    gone.append(digest)
                continue
            except OSError as error:
                if error.errno in files.NO_SPACE:  # of the filesystem, and so of all others
                    raise
                self.collected.failed[self._layout.blob(digest).inner] = error
                continue
            if last is not None:
                (moved if is_moved else open_now).append(last)
        # Before any of them is unlinked: after a power cut a name in blobs/ must not be of a blob that is gone.
        if moved:
            files.sync_directory(self._trash)
        if self._grace is not None:  # they wait, and are looked at again then
            self._note_held(open_now, self._judge.look_for(open_now))
            return gone
        seen = self._judge.look_for(moved + open_now)
        self._note_held(open_now, seen)
        freed = self._free(moved, seen)
        for last in moved:
            if last.digest not in freed and not trash.put_back(self._layout, last.digest, last.path):
                self._unlink_unless_last(last.path)
        return [*gone, *freed]

    def _take_last(self, digest: str, nbytes: int, canonical: StorePath) -> tuple[LastLink | None, bool]:
        """Move the last name of a blob to trash unless the file is open. Return the link, and whether it was moved."""
        if not self._layout.view.sees_changes:
            statx.refresh(canonical)
        status = dirfd_stat.status(canonical)
        if status.st_nlink > 1:
            self.collected.linked[digest] = nbytes
            return None, False
        if self._judge.may_be_open(canonical):
            return LastLink(digest, self._layout.blob(digest), status), False
        # From here on no save finds it, so that what the next look sees stays true.
        target = trash.free_name(self._trash, digest)
        links.rename(canonical, target)
        return LastLink(digest, target, status), True

    def _free(self, lasts: list[LastLink], seen: holders.Scan | None = None) -> set[str]:
        """Unlink the last names that no process has open, and return their digests. The others remain."""
        # The count again: a save may have linked to it between the first look and the rename.
        lasts = [last for last in lasts if self._is_last(last.path)]
        seen = seen or self._judge.look_for(lasts)
        freed: set[str] = set()
        held: list[LastLink] = []
        for last in lasts:
            if self._judge.is_held(last, seen):
                held.append(last)
                continue
            links.unlink(last.path)
            freed.add(last.digest)
            self.collected.freed.append(PlannedBlob(last.digest, last.status.st_size))
        self._note_held(held, seen)
        return freed

    def _is_last(self, path: StorePath) -> bool:
        if not self._layout.view.sees_changes:
            statx.refresh(path)
        return dirfd_stat.status(path).st_nlink == 1

    def _note_held(self, lasts: list[LastLink], seen: holders.Scan) -> None:
        for last in lasts:
            self.collected.held[last.digest] = self._judge.held(last, seen)

    def _unlink_unless_last(self, path: StorePath) -> None:
        """Unlink a name in trash if its canonical name is another copy. A last name remains until the blob is free."""
        if dirfd_stat.status(path).st_nlink > 1:
            links.unlink(path)

    def _unlink_unless_open(self, path: StorePath) -> bool:
        """Unlink one name. Return False if the file is open and this is its last name (rule K) or a name of NFS."""
        status = dirfd_stat.status(path)
        last = status.st_nlink == 1 and stat.S_ISREG(status.st_mode)
        if last and self._judge.is_open(LastLink(path.name, path, status)):
            return False
        try:
            links.unlink(path)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return False  # `.nfs…`: a process of this host has it open, and with its end the client removes it
        if last and is_digest(path.name):
            self.collected.freed.append(PlannedBlob(path.name, status.st_size))
        return True


def _contents(lock: locks.DirectoryLock) -> tuple[list[StorePath], list[StorePath]]:
    """Return all files below a locked directory that are not directories, and its subdirectories."""
    # However deep it is, directories are at most one level below it afterwards: those that are deeper are moved up. So
    # nothing here recurses, and two directories are open at once.
    top = lock.inside
    entries: list[StorePath] = []
    folders: list[StorePath] = []
    here, waiting = _sorted_names(top)
    entries += [top / name for name in here]
    while waiting:
        name = waiting.pop()
        folder = top / name
        here, below = _sorted_names(folder)
        inside = lock.keep(folder).inside if name == BLOBS else folder  # that of a checkpoint may have thousands
        entries += [inside / entry for entry in here]
        for deep in below:
            up = f"deep-{uuid.uuid4().hex[:12]}"
            links.rename(folder / deep, top / up)
            waiting.append(up)
        folders.append(folder)
    return entries, folders


def _sorted_names(folder: StorePath) -> tuple[list[str], list[str]]:
    """Return the names of files and of directories in a directory. Both are empty if it is missing."""
    try:
        with dirfd_stat.entries(folder) as entries:
            found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    except FileNotFoundError:
        return [], []
    return sorted(name for name, inner in found if not inner), sorted(name for name, inner in found if inner)


def _remove_if_empty(folder: StorePath) -> None:
    if not trash.names_in(folder):
        links.remove_directory(folder)


def _split(entries: list[StorePath]) -> tuple[list[LastLink], list[StorePath]]:
    """Return the last names of blobs, and all other names."""
    lasts, others = [], []
    for entry in entries:
        status = dirfd_stat.status(entry)
        if status.st_nlink == 1 and is_digest(entry.name) and stat.S_ISREG(status.st_mode):
            lasts.append(LastLink(entry.name, entry, status))
        else:
            others.append(entry)
    return lasts, others
