"""Link all names of a blob to one inode again, after the store was copied without its hardlinks.

Only the file that all names will share is read, because only this file must be intact. It is the canonical file or, if
that file is damaged or missing, the first intact file. Each other file first gets a second name in a staging directory.
Then a rename replaces its first name by a link to the intact file. A reader finds the old or the new file, and both
have the same bytes. The old files are moved to trash with the staging directory, and are freed when no process has them
open (laws T1 and K1). If the process dies at any time, every name refers to the old or the new file. The process that
moves the staging directory to trash first makes all names durable (`trash.sweep_staging`).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass, field

from ckstore.errors import DamagedBlob, InUse
from ckstore.fs import blob_time, dirfd_stat, files, links
from ckstore.fs.dirfd_stat import StorePath
from ckstore.model.manifest.manifest import BlobRecord
from ckstore.model.names import CheckpointKey
from ckstore.objects import blobs
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.objects.documents import marks
from ckstore.objects.layout import BLOBS, Layout

Inode = tuple[int, int]
# A try fails only if gc removes the canonical name, or a save creates it, at the same moment.
_TRIES = 20


@dataclass(slots=True)
class Relinked:
    """The results of a relinker so far."""

    checked_bytes: int = 0  # how many bytes were read and compared
    relinked_count: int = 0  # the number of names in checkpoints that were linked to another file
    spare_bytes: int = 0  # the total size of replaced files without another name
    damaged: set[str] = field(default_factory=set)  # digests of blobs of which no intact file was found so far


class Relinker:
    """Relinks one checkpoint after another. The old files are moved to `staging`, which the caller has locked."""

    def __init__(self, layout: Layout, staging: StorePath, report: Callable[[int], None]) -> None:
        self.done = Relinked()
        self._layout = layout
        self._staging = staging
        self._report = report
        self._serial = itertools.count()
        self._right: dict[str, Inode] = {}
        self._wrong: set[Inode] = set()

    @property
    def found_damage(self) -> bool:
        """Whether any file was damaged. If so, relink all checkpoints again, because intact files may be known now."""
        return bool(self._wrong)

    def checkpoint(self, key: CheckpointKey) -> None:
        """Relink the blobs of one checkpoint. A missing checkpoint, or one without a valid manifest, is skipped."""
        path = self._layout.checkpoint(key)
        try:
            directory = CheckpointDirectory.at(path, self._layout.hash_prefix)
        except (FileNotFoundError, NotADirectoryError, DamagedBlob, InUse):
            return
        with directory:
            # Relink all blobs of the checkpoint before syncing its directory: an fsync for each name would take hours.
            changed = [blob.digest for blob in directory.manifest.stored if self._relink(directory, blob)]
            if not changed:
                return
            with marks.kept_unless_durable(directory.lock):
                # Sync the new names before the old files are deleted (law N1).
                files.sync_directory(directory.lock.inside / BLOBS)
                files.sync_directory(self._staging)
            if marks.identity(directory.lock.fd):
                for digest in changed:
                    marks.forget_blob(directory.lock, digest)

    def _relink(self, directory: CheckpointDirectory, blob: BlobRecord) -> bool:
        """Replace one blob of a checkpoint by the canonical file. Return whether it was replaced."""
        name = directory.lock.inside / BLOBS / blob.digest
        try:
            mine = directory.stat_blob(blob.digest)
        except (FileNotFoundError, NotADirectoryError):  # the check of the whole checkpoint reports a missing blob
            return False
        canonical = dirfd_stat.find(self._layout.blob(blob.digest))
        right = self._right.get(blob.digest)
        if right is None:
            one = canonical is not None and _inode(canonical) == _inode(mine)
            if one and blobs.looks_untouched(mine, blob.nbytes):  # the blob is linked correctly and need not be read
                return False
            right = self._find_right(blob, name)
        if right is None:
            self.done.damaged.add(blob.digest)
            return False
        self.done.damaged.discard(blob.digest)
        return _inode(mine) != right and self._put_right(name, blob.digest, right)

    def _find_right(self, blob: BlobRecord, name: StorePath) -> Inode | None:
        """Link an intact file to the canonical name, and return its inode, or None if no file is intact."""
        canonical = self._layout.blob(blob.digest)
        # Check the canonical file first: if it is intact, most names are already linked to it.
        found = self._verify(canonical, blob)
        if found is None:
            found = self._verify(name, blob)
            if found is None or not self._make_canonical(name, blob.digest, found):
                return None
        self._right[blob.digest] = found
        return found

    def _verify(self, path: StorePath, blob: BlobRecord) -> Inode | None:
        status = dirfd_stat.find(path)
        # Each damaged file is read only once, even if many checkpoints have it.
        if status is None or _inode(status) in self._wrong:
            return None
        try:
            right = blobs.verified(path, blob.digest, blob.nbytes)
        except FileNotFoundError:
            return None
        if blobs.has_size(status, blob.nbytes):
            self.done.checked_bytes += blob.nbytes
            self._report(self.done.checked_bytes)
        if right is None:
            self._wrong.add(_inode(status))
            return None
        return _inode(right)

    def _make_canonical(self, name: StorePath, digest: str, right: Inode) -> bool:
        """Link the intact file `name` to the canonical name. Return False if this is impossible."""
        canonical = self._layout.blob(digest)
        for _ in range(_TRIES):
            fresh = self._link_of(name, right)
            if fresh is None:
                return False
            try:
                return links.try_link(fresh, canonical)
            except FileExistsError:
                try:
                    # Do not only rename over the damaged file. It must keep a name in the staging directory until gc
                    # may free it (laws T1, K1).
                    if self._swap(fresh, canonical) is None:
                        return False
                except FileNotFoundError:  # gc has just removed the canonical name
                    continue
                files.sync_directory(canonical.parent)
                return True
            except FileNotFoundError:
                links.make_directory(canonical.parent)
        return False

    def _put_right(self, name: StorePath, digest: str, right: Inode) -> bool:
        """Replace the file `name` by a link to the canonical file. Return False if this is impossible."""
        fresh = self._link_of(self._layout.blob(digest), right)
        if fresh is None:
            return False
        try:
            place = self._swap(fresh, name)
            if place is None:
                return False
            old = dirfd_stat.status(place)
        except FileNotFoundError:
            return False
        self.done.relinked_count += 1
        self.done.spare_bytes += old.st_size if old.st_nlink == 1 else 0
        return True

    def _swap(self, fresh: StorePath, name: StorePath) -> StorePath | None:
        """Replace a file atomically. Return the new name of the old file in the staging directory.

        If the old file cannot have another link, nothing is replaced, and None is returned.
        """
        old = self._staging / f"new-{next(self._serial)}"
        # Create the second name first. A rename over the only name would free the old file, which a reader on another
        # host may have open.
        if not links.try_link(name, old):
            return None
        links.rename(fresh, name)
        return old

    def _link_of(self, path: StorePath, right: Inode) -> StorePath | None:
        """Return a new name in the staging directory for the intact file, or None if `path` is another file.

        The result is also None if the file is missing or cannot have another link.
        """
        fresh = self._staging / f"new-{next(self._serial)}"
        try:
            if not links.try_link(path, fresh):
                return None
        except FileNotFoundError:
            return None
        found = dirfd_stat.status(fresh)
        # The inode number may have been reused, but only a checked file has a stamp.
        if _inode(found) == right and blob_time.is_stamp(found.st_mtime_ns):
            return fresh
        links.unlink(fresh)
        return None


def _inode(status: os.stat_result) -> Inode:
    return status.st_dev, status.st_ino
