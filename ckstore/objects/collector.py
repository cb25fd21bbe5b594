"""Empty the trash, and free blobs that no checkpoint needs (laws T1, T2 and K1 of docs/protocol.md).

A store has one collector at a time, which holds the exclusive lock on ``trash/``. It needs no lock against saves,
because removing one name of a file does not affect its other names. Before it removes the last name of a blob, it
checks:

1. The link count, before and after the rename to trash. If it is above 1, a save has claimed the blob, and the
   canonical name is restored.
2. A lease, which the kernel refuses while any process has the inode open or mapped through any name.
3. ``/proc``, which shows the few uses that a lease does not detect (`ckstore.fs.holders`), and names the holders.

On a shared filesystem, a lease may always be refused, or may be granted while another host has the file open. Therefore
the collector requests no lease on such a filesystem. Instead, either the user has stated that no other host uses the
store, or the caller passes a grace period during which entries wait in trash (`ckstore.objects.shared.grace`).

Before anything in an entry of trash is unlinked, the rename of the entry into trash is made durable, and the digests in
the entry are entered into the catalog. Thus gc later inspects blobs that have lost their last user. If the collector
dies at any time, the next one continues.
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
"""A function that enters blobs (digest, size) into the catalog as candidates for gc, and updates the row of the
checkpoint from which they were removed. It raises an error if the catalog cannot be updated."""

# The maximum number of blobs that are entered at once. It is limited, because saves wait for the catalog meanwhile.
_ENTER_BATCH = 1000


@dataclass(slots=True)
class Collected:
    """The results of a collector so far."""

    freed: list[PlannedBlob] = field(default_factory=list)  # the blobs that were freed
    # The digests that were entered into the catalog before one of their names was removed.
    entered: set[str] = field(default_factory=set)
    # Names in ``trash/`` that were kept, because a process uses them or they belong to another user.
    left: list[str] = field(default_factory=list)
    # Path in the store that could not be removed -> the error.
    failed: dict[str, OSError | CkstoreError] = field(default_factory=dict)
    held: dict[str, HeldBlob] = field(default_factory=dict)  # digest -> entry for a blob that a process has open
    # Digest of an unused blob that has further names -> its size in bytes.
    linked: dict[str, int] = field(default_factory=dict)


class Collector:
    """Empties the trash of a store. It is a context manager that holds the lock on ``trash/``."""

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
        self.collected = Collected()  # the results so far
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
        """Return a collector without waiting, or None if another collector is running.

        Args:
            layout: The store.
            enter: Updates the catalog before links are removed.
            leases: Whether leases show all uses of a file.
            grace: The grace period. If given, other hosts may use the store, and only entries that have waited in trash
                for this period are unlinked.
            purge: Whether to also unlink dropped checkpoints that can still be restored.
        """
        lock = store_locks.try_trash(layout)
        return None if lock is None else cls(layout, lock, enter, leases=leases, grace=grace, purge=purge)

    @property
    def unseen_count(self) -> int | None:
        """The number of processes that could not be inspected (see `OpenFileCheck`)."""
        return self._judge.unseen_count

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    # ------------------------------------------------------------------------------- entries of trash

    def empty(self, names: Sequence[str] | None = None) -> None:
        """Delete the entries of ``trash/`` that are not in use. If `names` is given, delete only these entries.

        If an entry cannot be deleted, it is recorded in `Collected.failed`, and the other entries are still deleted.

        Raises:
            CatalogUnavailable, InUse: The catalog could not be updated, which is necessary before names of blobs are
                deleted. Therefore only last links were deleted, because they need no update.
        """
        trash.renew_future(self._layout)
        due = trash.due(self._layout, purge=self._purge)
        names = due if names is None else sorted(set(names).intersection(due))
        if not names:
            return
        # Sync the former parents of all listed entries, including entries that another process moved to trash.
        # Otherwise, a power cut could restore the old name of a checkpoint that is partly deleted.
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
            except PermissionError:  # only the owner may delete it, as in a sticky directory; the report names it
                self.collected.left.append(name)
            except (OSError, CkstoreError) as error:
                if isinstance(error, FileNotFoundError) and (self._grace is not None or trash.can_return(name)):
                    continue  # a process has restored it, or the collector of another host has deleted it
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
            with suppress(FileNotFoundError):  # the process that was testing the filesystem has removed it
                self._unlink_unless_open(path)
        else:
            self._unlink_unless_open(path)

    def _take_apart(self, path: StorePath) -> None:
        lock = locks.try_exclusive(path)
        if lock is None:  # a reader or a save still uses the directory
            self.collected.left.append(path.name)
            return
        with lock:
            entries, folders = _contents(lock)
            # Free last links first. This needs no update of the catalog, and on a full disk it makes room for one.
            lasts, others = _split(entries)
            self._free(lasts)
            # Update the catalog before other names are removed, so that the next gc finds these digests if this process
            # dies. Also update the row of the checkpoint, because the process that dropped it may have died before.
            self._enter([], trash.former_place(path.name))
            self._enter_all(others)
            # Remove the manifest first, so that the checkpoint cannot be restored without its other documents.
            for entry in sorted(others, key=lambda entry: entry.name != MANIFEST):
                self._unlink_unless_open(entry)
            for folder in folders:
                _remove_if_empty(folder)
            _remove_if_empty(path)

    def _enter(self, blobs: list[tuple[str, int]], key: CheckpointKey | None) -> None:
        """Update the catalog. After a failure, do not try again, because each try may wait for the lock."""
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
        for start in range(0, len(known), _ENTER_BATCH):  # between two batches, saves may write to the catalog
            batch = known[start : start + _ENTER_BATCH]
            self._enter([(entry.name, dirfd_stat.status(entry).st_size) for entry in batch], None)

    def _finish(self, digest: str, path: StorePath) -> None:
        """Free or put back a blob that a killed collector left in trash."""
        status = dirfd_stat.status(path)
        self._enter([(digest, status.st_size)], None)
        if status.st_nlink == 1 and self._free([LastLink(digest, path, status)]):
            return
        if not trash.put_back(self._layout, digest, path):
            self._unlink_unless_last(path)

    # ---------------------------------------------------------------------------- unused blobs

    def mark_for_deletion(self, blobs: Sequence[tuple[str, int]]) -> list[str]:
        """Free the canonical blobs (digest, size) that no checkpoint uses. Return the digests whose name was removed.

        Blobs that were kept are recorded in `collected`. After an error, the next collector continues.
        """
        gone: list[str] = []
        moved: list[LastLink] = []
        open_now: list[LastLink] = []
        for (digest, nbytes), canonical in with_open_parents((blob, self._layout.blob(blob[0])) for blob in blobs):
            try:
                last, is_moved = self._take_last(digest, nbytes, canonical)
            except PermissionError:  # it is in a directory of another user, and only that user may free it
                continue
            except FileNotFoundError:
                if digest not in self.collected.held:  # a held blob may be in trash
                    gone.append(digest)
                continue
            except OSError as error:
                if error.errno in files.NO_SPACE:  # the same error would follow for all other blobs
                    raise
                self.collected.failed[self._layout.blob(digest).inner] = error
                continue
            if last is not None:
                (moved if is_moved else open_now).append(last)
        # Sync before any blob is unlinked, so that a power cut cannot restore the name of a deleted blob in blobs/.
        if moved:
            files.sync_directory(self._trash)
        if self._grace is not None:  # the blobs wait for the grace period, and are checked again afterwards
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
        # After this rename, no save can find the blob, so the result of the next check remains valid.
        target = trash.free_name(self._trash, digest)
        links.rename(canonical, target)
        return LastLink(digest, target, status), True

    def _free(self, lasts: list[LastLink], seen: holders.Scan | None = None) -> set[str]:
        """Unlink the last links to files that no process has open, and return their digests. Keep the others."""
        # Check the link count again, because a save may have linked the blob between the first check and the rename.
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
        """Unlink a name in trash unless it is the last link to its file, which must be kept while it is in use."""
        if dirfd_stat.status(path).st_nlink > 1:
            links.unlink(path)

    def _unlink_unless_open(self, path: StorePath) -> bool:
        """Unlink one name. Return False if it is the last link to an open file (law K1), or a name that NFS keeps."""
        status = dirfd_stat.status(path)
        last = status.st_nlink == 1 and stat.S_ISREG(status.st_mode)
        if last and self._judge.is_open(LastLink(path.name, path, status)):
            return False
        try:
            links.unlink(path)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return False  # a `.nfs…` file: a process of this host has it open, and the NFS client removes it later
        if last and is_digest(path.name):
            self.collected.freed.append(PlannedBlob(path.name, status.st_size))
        return True


def _contents(lock: locks.DirectoryLock) -> tuple[list[StorePath], list[StorePath]]:
    """Return all files below a locked directory, and all its subdirectories."""
    # Deeper subdirectories are moved up, so that all subdirectories are one level below the directory. Therefore no
    # recursion is needed, and only two directories are open at the same time, even for a very deep tree.
    top = lock.inside
    entries: list[StorePath] = []
    folders: list[StorePath] = []
    here, waiting = _sorted_names(top)
    entries += [top / name for name in here]
    while waiting:
        name = waiting.pop()
        folder = top / name
        here, below = _sorted_names(folder)
        # Keep blobs/ open, because it may have thousands of entries.
        inside = lock.keep(folder).inside if name == BLOBS else folder
        entries += [inside / entry for entry in here]
        for deep in below:
            up = f"deep-{uuid.uuid4().hex[:12]}"
            links.rename(folder / deep, top / up)
            waiting.append(up)
        folders.append(folder)
    return entries, folders


def _sorted_names(folder: StorePath) -> tuple[list[str], list[str]]:
    """Return the sorted names of files and of subdirectories in a directory. Both are empty if it is missing."""
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
    """Divide paths into last links to blobs and all other paths."""
    lasts, others = [], []
    for entry in entries:
        status = dirfd_stat.status(entry)
        if status.st_nlink == 1 and is_digest(entry.name) and stat.S_ISREG(status.st_mode):
            lasts.append(LastLink(entry.name, entry, status))
        else:
            others.append(entry)
    return lasts, others
