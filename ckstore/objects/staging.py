"""Claim existing blobs for a save, and write new ones, in the staging directory of the save (steps 1 to 4 of a save).

A claim is a link. Once a blob is linked into the staging directory, nothing can free its bytes. A new blob is written
and made durable under its name *in the staging directory*. Then it is linked to its canonical name, which offers the
blob to other processes.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import uuid
from collections.abc import Collection, Iterable
from itertools import islice

from ckstore.errors import SaveFailed
from ckstore.fs import dirfd_stat, files, links, locks
from ckstore.fs.direct import check_on_disk
from ckstore.fs.dirfd_stat import StorePath
from ckstore.model.digest import fan_out
from ckstore.model.manifest.info import Stamp
from ckstore.model.names import CheckpointKey
from ckstore.objects import blobs
from ckstore.objects.documents import marks
from ckstore.objects.heal import Given, relink_everywhere
from ckstore.objects.layout import BLOBS, MANIFEST, Layout

# A try to offer a blob fails only if another process frees the canonical name at the same moment.
_OFFER_TRIES = 20
# A try to create the directory fails only if another process opens the store at the same moment, assumes that the save
# is dead, and removes the directory.
_CREATE_TRIES = 20
_TEMPORARY = "new-"
# The number of checkpoints of a run whose owner is checked. These are the checkpoints with the highest steps, because
# they share the most blobs with a save. Each check costs one call.
_LOOKED_AT = 64
_TRIED = 2
_OTHER_RUNS = 32


class Staging:
    """The directory of one save, locked for use by this process. Several threads may call its methods."""

    def __init__(self, layout: Layout, path: StorePath, lock: locks.DirectoryLock, *, read_back: bool = False) -> None:
        self.layout = layout
        self.path = path  # ``staging/<save-id>``, unchanged after the directory was published under another name
        self.lock = lock
        self.inode = os.fstat(lock.fd).st_ino  # the inode number of the directory
        self.stamp = Stamp(self.inode, 0, 0, 0)  # the stamp of the directory; valid after `seal`
        self.written: dict[str, int] = {}  # digest -> size in bytes of every blob that this save wrote
        self.reads_back = read_back  # whether written data is read back from the disk and compared before it is used
        self._own = lock.inside
        self._blobs = lock.keep(self._own / BLOBS).inside
        self._canonical_blobs = lock.keep(layout.blobs).inside
        self._run = path.name.partition("@")[0]
        self._saved: list[StorePath] | None = None
        self._sealed = False
        self._serial = itertools.count()
        self._mutex = threading.Lock()

    @classmethod
    def create(cls, layout: Layout, run: str, step: int | None, *, read_back: bool = False) -> Staging:
        """Create a staging directory and lock it. With `read_back`, written blobs are read back and compared."""
        for _ in range(_CREATE_TRIES):
            # The run and step in the name are for people. The id makes the name unique.
            path = layout.staging / f"{run}@{'next' if step is None else step}.{uuid.uuid4().hex[:12]}"
            links.make_directory(path)
            try:
                # Lock the directory immediately: a process that opens the store removes unlocked staging directories.
                lock = locks.lock_shared(path)
            except FileNotFoundError:  # another process removed the directory before it was locked
                continue
            try:
                links.make_directory(lock.inside / BLOBS)
                return cls(layout, path, lock, read_back=read_back)
            except BaseException:
                with contextlib.suppress(OSError):  # report the first error; the next opener removes the directory
                    links.remove_directory(path)
                lock.release()
                raise
        raise SaveFailed(
            f"{_CREATE_TRIES} staging directories in {layout.staging} were removed by other "
            "processes as soon as they were made"
        )

    def claim(self, digest: str, nbytes: int) -> bool:
        """Link the canonical blob into the staging directory. Return True if it is linked and reliable."""
        # If the result is False, the caller must `put` the bytes. If the canonical blob is damaged, the result is also
        # False, and `put` heals the blob.
        mine = self._blobs / digest
        try:
            # After this link, the link count keeps gc from freeing the bytes (law K1).
            if not links.try_link(self._canonical(digest), mine):
                return self._claim_own(digest, nbytes, mine)
        except FileNotFoundError:
            return False
        except FileExistsError:  # this save has claimed or written the blob before
            pass
        # Check the new link instead of the canonical name, which may be replaced between the check and the link.
        return blobs.is_sound(mine, digest, nbytes, is_used=True)

    def claim_compared(self, digest: str, nbytes: int) -> bool:
        """Claim a blob like `claim`, but always read and compare all its bytes.

        If the blob is intact, the caller need not download a good copy.
        """
        return self.claim(digest, nbytes) and blobs.is_right(self.path_of(digest), digest, nbytes)

    def _claim_own(self, digest: str, nbytes: int, mine: StorePath) -> bool:
        """Claim a copy in a checkpoint of this user. The kernel may refuse a link to the file of another user."""
        # Source: proc(5), ``fs.protected_hardlinks``.
        for folder in self._saved_by_us():
            try:
                if not links.try_link(folder / BLOBS / digest, mine):
                    continue
            except FileExistsError:
                pass
            except (FileNotFoundError, NotADirectoryError):
                continue
            return blobs.is_sound(mine, digest, nbytes, is_used=True)
        return False

    def _saved_by_us(self) -> list[StorePath]:
        """Return checkpoints of this user with high steps: two of this run, and one of each of the latest others."""
        if self._saved is None:
            # Other runs may also have the blobs. For example, a frozen base model is in all runs of a sweep.
            others = {
                run: dirfd_stat.find(self.layout.checkpoints / run) for run in self.layout.runs() if run != self._run
            }
            times = {run: found.st_mtime_ns for run, found in others.items() if found is not None}
            latest = sorted(times, key=lambda run: times[run], reverse=True)[:_OTHER_RUNS]
            self._saved = self._saved_in(self._run, _TRIED)
            self._saved += [path for run in latest for path in self._saved_in(run, 1)]
        return self._saved

    def _saved_in(self, run: str, most: int) -> list[StorePath]:
        me = os.geteuid()
        keys = sorted((key for key, _ in self.layout.published(run)), reverse=True)
        paths = (self.layout.checkpoint(key) for key in keys[:_LOOKED_AT])
        return list(islice((path for path in paths if _owner(path) == me), most))

    def holds(self, digest: str, data: memoryview) -> bool:
        """Read the blob in the staging directory, and return whether it has exactly these bytes."""
        try:
            return blobs.has_bytes(self._blobs / digest, data)
        except FileNotFoundError:
            return False

    def path_of(self, digest: str) -> StorePath:
        """Return the name of a blob in the staging directory."""
        return self._blobs / digest

    def _canonical(self, digest: str) -> StorePath:
        """Return the canonical name of a blob, relative to ``blobs/``, which remains open for all claims."""
        return self._canonical_blobs / fan_out(digest) / digest

    def is_damaged(self, digest: str) -> bool:
        """Whether the last `claim` of the blob was a miss because the canonical blob is damaged."""
        return dirfd_stat.exists(self._blobs / digest)

    def unclaim(self, digest: str) -> None:
        """Release a claim, if there is one."""
        try:
            links.unlink(self._blobs / digest)
        except FileNotFoundError:
            return

    def put(self, digest: str, data: memoryview) -> bool:
        """Write the blob `digest` with bytes `data` durably and link it. Return False if another save was faster."""
        # If this raises an error, the save must fail.
        return self._put(digest, data, len(data))

    def put_parts(self, digest: str, parts: Iterable[memoryview], nbytes: int) -> bool:
        """Write a blob like `put`, from parts that may change later. Do not use this method if `reads_back` is set."""
        return self._put(digest, parts, nbytes)

    def _put(self, digest: str, data: memoryview | Iterable[memoryview], nbytes: int) -> bool:
        mine = self._blobs / digest
        damaged = dirfd_stat.exists(mine)
        # A damaged claim is replaced only when the good bytes are durable, so an earlier error changes nothing.
        fresh = self._temporary() if damaged else mine
        # Write into the staging directory instead of the canonical name, because other processes may see a blob only
        # after it is durable (law D1).
        files.create_blob(fresh, data)
        if self.reads_back and isinstance(data, memoryview):
            # Check the blob before offering it, so that no other save uses bytes that the disk did not keep.
            check_on_disk(fresh, data)
        with self._mutex:
            self.written[digest] = nbytes
        if damaged:
            links.rename(fresh, mine)
            self.heal(digest)
            return True
        return self._offer(digest, mine, nbytes)

    def heal(self, digest: str, spare: Collection[int] = (), lacking: Collection[CheckpointKey] = ()) -> Given:
        """Replace damaged copies of a blob in all checkpoints by the staged copy, which must be good.

        Args:
            digest: The blob.
            spare: The inode numbers of other good copies, which are not replaced.
            lacking: Checkpoints that have no copy and need one.
        """
        mine = self._blobs / digest
        # Replace the canonical name last. If this process is killed earlier, the next save finds the damaged canonical
        # blob and heals it again.
        given = relink_everywhere(self.layout, digest, mine, self._temporary, spare, lacking=lacking)
        self._take_over(digest, mine)
        return given

    def heal_marked(self, checkpoints: Iterable[StorePath]) -> None:
        """Replace damaged or missing copies in these marked checkpoints by staged blobs."""
        # A save usually claims the canonical copy, which may be intact although a checkpoint has a separate, damaged
        # copy. Each staged blob is read and compared before it is used. If a checkpoint cannot be healed, its mark
        # remains, and this save does not fail.
        for checkpoint in checkpoints:
            try:
                for digest in marks.blobs_of(checkpoint):
                    mine = self._blobs / digest
                    if dirfd_stat.exists(mine) and blobs.digest_of_file(mine, digest) == digest:
                        relink_everywhere(self.layout, digest, mine, self._temporary)
            except OSError:  # this must not fail the save; the next save or a repair tries again
                for name in os.listdir(self.lock.fd):
                    if name.startswith(_TEMPORARY):
                        links.unlink(self._own / name)

    def take(self, digest: str, good: StorePath) -> None:
        """Stage a good copy of a blob by a link, or by copying it if no link is possible."""
        mine = self._blobs / digest
        if not links.try_link(good, mine):
            self.write(
                digest, memoryview(files.read_file(good, most_bytes=dirfd_stat.status(good).st_size, is_blob=True))
            )

    def write(self, digest: str, data: memoryview) -> None:
        """Write a new copy of a blob durably, without offering it to other processes."""
        files.create_blob(self._blobs / digest, data)
        with self._mutex:
            self.written[digest] = len(data)

    def put_away(self, name: StorePath) -> None:
        """Move an unneeded file to the staging directory, which is later moved to trash."""
        links.rename(name, self._temporary())

    def _offer(self, digest: str, mine: StorePath, nbytes: int) -> bool:
        """Link the new blob to its canonical name. Return False if the blob of another process is used instead."""
        canonical = self._canonical(digest)
        for _ in range(_OFFER_TRIES):
            try:
                links.try_link(mine, canonical)  # if no link is possible, only this save has the blob
            except FileExistsError:
                # Another process has offered the blob. That blob is checked through a separate link, because the
                # canonical name may be freed or replaced during the check.
                theirs = self._link_of(canonical)
                if theirs is None:
                    continue
                if theirs == canonical:
                    self._beside_theirs(canonical, digest, nbytes, mine)
                    return True
                if blobs.is_sound(theirs, digest, nbytes):
                    # Use the inode of the other process. Otherwise, equal bytes would take space twice until a relink.
                    self._adopt(theirs, mine, digest)
                    return False
                links.unlink(theirs)
                relink_everywhere(self.layout, digest, mine, self._temporary)
                self._take_over(digest, mine)
            except FileNotFoundError:
                # The missing name may be the directory of this save. Another process removes it if it assumes that this
                # save is dead.
                if not self.lock.names(self.path):
                    msg = f"{self.path} was moved away during the save"
                    raise SaveFailed(msg, hint="another process assumed that this save was dead; save again") from None
                links.make_directory(canonical.parent)
                continue
            return True
        msg = f"{canonical} was removed by other processes {_OFFER_TRIES} times while this save linked its copy"
        raise SaveFailed(msg)

    def _link_of(self, canonical: StorePath) -> StorePath | None:
        """Return a new link to the canonical blob, None if it is missing, or `canonical` if no link is possible."""
        theirs = self._temporary()
        try:
            return theirs if links.try_link(canonical, theirs) else canonical
        except FileNotFoundError:
            return None

    def _beside_theirs(self, canonical: StorePath, digest: str, nbytes: int, mine: StorePath) -> None:
        """Handle a canonical blob that cannot be linked. Replace it, unless it is sound and of another user."""
        with contextlib.suppress(FileNotFoundError):  # gc has freed the blob
            if not blobs.is_sound(canonical, digest, nbytes):
                relink_everywhere(self.layout, digest, mine, self._temporary)
            # Saves of the owner continue to link to the canonical file, and saves of this user link to the new copy.
            elif _owner(canonical) != os.geteuid():
                return
        self._take_over(digest, mine)

    def _adopt(self, theirs: StorePath, mine: StorePath, digest: str) -> None:
        links.give_name(theirs, mine)
        with self._mutex:
            self.written.pop(digest, None)

    def _take_over(self, digest: str, mine: StorePath) -> None:
        """Replace the canonical file, which is damaged or at its link limit, by the staged copy."""
        canonical = self._canonical(digest)
        links.make_directory(canonical.parent)  # it usually exists, but a power cut may have removed it
        links.replace_name(mine, canonical, self._temporary())

    def _temporary(self) -> StorePath:
        """Return an unused name outside ``blobs/``, so that it is never mistaken for a blob."""
        return self._own / f"{_TEMPORARY}{next(self._serial)}"

    def keep_exactly(self, wanted: dict[str, int]) -> list[str]:
        """Release every claim that is not in `wanted` (digest -> size). Return the wanted blobs that are missing."""
        # A claim of an earlier try that is not needed any more would keep unused bytes in the checkpoint.
        for name in dirfd_stat.names(self._blobs):
            if name not in wanted:
                self.unclaim(name)
        missing = []
        for digest, nbytes in wanted.items():
            with contextlib.suppress(FileNotFoundError):
                if blobs.looks_untouched(dirfd_stat.status(self._blobs / digest), nbytes):
                    continue
            missing.append(digest)
        return missing

    def seal(self, manifest: bytes) -> None:
        """Write or replace the manifest, and make every name in the directory durable. No blob may be added later."""
        # The first manifest is created under its final name, because no process reads it before the directory is
        # published. A later manifest replaces it by a rename.
        path = self._own / MANIFEST
        fresh = self._own / f"{_TEMPORARY}{MANIFEST}" if self._sealed else path
        self._sealed = True
        # Write the manifest after all blobs, because a reader of the manifest relies on the blobs that it names (law
        # N1).
        files.create_file(fresh, manifest, mode=0o444)
        if self.reads_back:
            check_on_disk(fresh, memoryview(manifest))
        if fresh != path:
            links.rename(fresh, path)
        self.stamp = Stamp.of(self.inode, dirfd_stat.status(path))
        # Sync the inner directory first, so that the outer directory never names an incomplete one (law N1).
        files.sync_directory(self._blobs)
        files.sync_directory(self._own)


def _owner(path: StorePath) -> int | None:
    found = dirfd_stat.find(path)
    return None if found is None else found.st_uid
