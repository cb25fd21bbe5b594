"""A running save: claim the blobs that the store has, and write the others (steps 1 to 4 of the save protocol).

The link is the claim. Once a blob is linked into the staging directory, nothing can free its bytes. A new blob is
written and made durable under its name *in the staging directory*. Then a link to its canonical name offers it to other
processes.
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

# A try fails only if gc frees the canonical name in the same moment.
_OFFER_TRIES = 20
# A try fails only if another process opens the store in the same moment and removes the directory as dead.
_CREATE_TRIES = 20
_TEMPORARY = "new-"
# Checking the owner of a checkpoint costs one call. The newest checkpoints share the most blobs with a save.
_LOOKED_AT = 64
_TRIED = 2
_OTHER_RUNS = 32


class Staging:
    """The directory of one save, locked for use by this process. Several threads may call its methods."""

    def __init__(self, layout: Layout, path: StorePath, lock: locks.DirectoryLock, *, read_back: bool = False) -> None:
        self.layout = layout
        self.path = path  # ``staging/<save-id>``, also after it was published under another name
        self.lock = lock
        self.inode = os.fstat(lock.fd).st_ino  # inode number of the directory
        self.stamp = Stamp(self.inode, 0, 0, 0)  # of the directory and its manifest, which exists after `seal`
        self.written: dict[str, int] = {}  # digest and size of every blob that this save wrote
        self.reads_back = read_back  # whether written data is read from disk and compared before it is used
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
        """Create a staging directory and lock it. With `read_back`, written blobs are read from disk and compared."""
        for _ in range(_CREATE_TRIES):
            # Run and step in the name are for people; the id makes it unique.
            path = layout.staging / f"{run}@{'next' if step is None else step}.{uuid.uuid4().hex[:12]}"
            links.make_directory(path)
            try:
                # At once, since every process that opens the store takes an unlocked staging for a dead one.
                lock = locks.lock_shared(path)
            except FileNotFoundError:  # another process removed it as dead before it was locked
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
        # False is a miss, after which the caller must `put` the bytes. A damaged canonical blob is also a miss, and
        # `put` heals it.
        mine = self._blobs / digest
        try:
            # The link is the claim. From now on, the link count keeps gc from freeing the bytes (K1).
            if not links.try_link(self._canonical(digest), mine):
                return self._claim_own(digest, nbytes, mine)
        except FileNotFoundError:
            return False
        except FileExistsError:  # claimed or written before
            pass
        # Check our own name, after linking, since the canonical name may be replaced between a check and the link.
        return blobs.is_sound(mine, digest, nbytes, is_used=True)

    def claim_compared(self, digest: str, nbytes: int) -> bool:
        """Claim a blob like `claim`, but read all of it, because it replaces a good copy at a remote."""
        return self.claim(digest, nbytes) and blobs.is_right(self.path_of(digest), digest, nbytes)

    def _claim_own(self, digest: str, nbytes: int, mine: StorePath) -> bool:
        """Claim a copy in a checkpoint of this user, because the kernel may refuse a link to another user's file."""
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
        """Return the newest checkpoints of this user: two of the run, and one of each of the most recent other runs."""
        if self._saved is None:
            # A frozen base is in all runs of a sweep. The runs with the most recent saves come first.
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
        """Whether the blob in the staging directory has exactly these bytes. It is read and compared."""
        try:
            return blobs.has_bytes(self._blobs / digest, data)
        except FileNotFoundError:
            return False

    def path_of(self, digest: str) -> StorePath:
        """Return the name of a blob in the staging directory."""
        return self._blobs / digest

    def _canonical(self, digest: str) -> StorePath:
        """Return the canonical name of a blob. ``blobs/`` remains open, because a save claims thousands of blobs."""
        return self._canonical_blobs / fan_out(digest) / digest

    def is_damaged(self, digest: str) -> bool:
        """Whether the last `claim` of the blob was a miss because the canonical blob is damaged."""
        return dirfd_stat.exists(self._blobs / digest)

    def unclaim(self, digest: str) -> None:
        """Release a claim. Without a claim this does nothing."""
        try:
            links.unlink(self._blobs / digest)
        except FileNotFoundError:
            return

    def put(self, digest: str, data: memoryview) -> bool:
        """Write the blob `digest` with bytes `data` durably and link it. Return False if another save was faster."""
        # After any error the save must fail.
        return self._put(digest, data, len(data))

    def put_parts(self, digest: str, parts: Iterable[memoryview], nbytes: int) -> bool:
        """Write a blob like `put`, from parts that may change later. Not for a save that `reads_back`."""
        return self._put(digest, parts, nbytes)

    def _put(self, digest: str, data: memoryview | Iterable[memoryview], nbytes: int) -> bool:
        mine = self._blobs / digest
        damaged = dirfd_stat.exists(mine)
        # A damaged claim remains until the good bytes are durable, so an error before that changes nothing.
        fresh = self._temporary() if damaged else mine
        # In our own staging, not at the canonical name, since others may see a blob only when it is durable (law D1).
        files.create_blob(fresh, data)
        if self.reads_back and isinstance(data, memoryview):
            # Before the blob is offered, since bytes that the disk did not keep must not reach another save.
            check_on_disk(fresh, data)
        with self._mutex:
            self.written[digest] = nbytes
        if damaged:
            links.rename(fresh, mine)
            self.heal(digest)
            return True
        return self._offer(digest, mine, nbytes)

    def heal(self, digest: str, spare: Collection[int] = (), lacking: Collection[CheckpointKey] = ()) -> Given:
        """Replace damaged copies of a blob by the staged copy, which is good. See `Given` for the result."""
        # Copies with an inode number in `spare` are also good, and are not replaced. The checkpoints in `lacking` have
        # no copy and need one.
        mine = self._blobs / digest
        # The canonical name is replaced last. If this process is killed before, the next save finds it damaged and
        # heals the blob again.
        given = relink_everywhere(self.layout, digest, mine, self._temporary, spare, lacking=lacking)
        self._take_over(digest, mine)
        return given

    def heal_marked(self, checkpoints: Iterable[StorePath]) -> None:
        """Replace damaged or missing copies in these marked checkpoints by staged blobs."""
        # A save claims only the canonical copy, which may be intact although a checkpoint has another, damaged copy.
        # Use only staged blobs whose bytes were read and are right. If another checkpoint cannot be healed, this save
        # does not fail, and the mark of that checkpoint remains.
        for checkpoint in checkpoints:
            try:
                for digest in marks.blobs_of(checkpoint):
                    mine = self._blobs / digest
                    if dirfd_stat.exists(mine) and blobs.digest_of_file(mine, digest) == digest:
                        relink_everywhere(self.layout, digest, mine, self._temporary)
            except OSError:  # not an error of this save; the next save or a repair tries again
                for name in os.listdir(self.lock.fd):
                    if name.startswith(_TEMPORARY):
                        links.unlink(self._own / name)

    def take(self, digest: str, good: StorePath) -> None:
        """Stage a good copy with a link or, if a link is not possible, by copying it."""
        mine = self._blobs / digest
        if not links.try_link(good, mine):
            self.write(
                digest, memoryview(files.read_file(good, most_bytes=dirfd_stat.status(good).st_size, is_blob=True))
            )

    def write(self, digest: str, data: memoryview) -> None:
        """Stage a new copy, durably, without offering it to other processes."""
        files.create_blob(self._blobs / digest, data)
        with self._mutex:
            self.written[digest] = len(data)

    def put_away(self, name: StorePath) -> None:
        """Move a file that is no longer needed to the staging directory, which is later moved to trash."""
        links.rename(name, self._temporary())

    def _offer(self, digest: str, mine: StorePath, nbytes: int) -> bool:
        """Link the new blob to its canonical name, or use the blob that another process offered meanwhile."""
        canonical = self._canonical(digest)
        for _ in range(_OFFER_TRIES):
            try:
                links.try_link(mine, canonical)  # if no link is possible, only this save has the blob
            except FileExistsError:
                # Check it through a link of our own, since their name may be freed or replaced during the check.
                theirs = self._link_of(canonical)
                if theirs is None:
                    continue
                if theirs == canonical:
                    self._beside_theirs(canonical, digest, nbytes, mine)
                    return True
                if blobs.is_sound(theirs, digest, nbytes):
                    # Use their inode. Otherwise equal bytes would take space twice until a relink.
                    self._adopt(theirs, mine, digest)
                    return False
                links.unlink(theirs)
                relink_everywhere(self.layout, digest, mine, self._temporary)
                self._take_over(digest, mine)
            except FileNotFoundError:
                # The missing name may be our own staging, which another process swept as dead.
                if not self.lock.names(self.path):
                    msg = f"{self.path} was moved away during the save"
                    raise SaveFailed(msg, hint="another process assumed that this save was dead; save again") from None
                links.make_directory(canonical.parent)
                continue
            return True
        msg = f"{canonical} was replaced by other processes {_OFFER_TRIES} times while this save linked its copy"
        raise SaveFailed(msg)

    def _link_of(self, canonical: StorePath) -> StorePath | None:
        """Return a new link to the canonical blob, None if it is missing, or `canonical` if no link is possible."""
        theirs = self._temporary()
        try:
            return theirs if links.try_link(canonical, theirs) else canonical
        except FileNotFoundError:
            return None

    def _beside_theirs(self, canonical: StorePath, digest: str, nbytes: int, mine: StorePath) -> None:
        """Keep our copy next to a canonical one that cannot be linked, or replace the canonical one if unsound."""
        with contextlib.suppress(FileNotFoundError):  # freed meanwhile
            if not blobs.is_sound(canonical, digest, nbytes):
                relink_everywhere(self.layout, digest, mine, self._temporary)
            elif _owner(canonical) != os.geteuid():  # its owner keeps linking to it, and we link to ours
                return
        self._take_over(digest, mine)

    def _adopt(self, theirs: StorePath, mine: StorePath, digest: str) -> None:
        links.give_name(theirs, mine)
        with self._mutex:
            self.written.pop(digest, None)

    def _take_over(self, digest: str, mine: StorePath) -> None:
        """Replace the canonical file, which is damaged or at its link limit, by our copy."""
        canonical = self._canonical(digest)
        links.make_directory(canonical.parent)  # it usually exists, but a power cut may have removed it
        links.replace_name(mine, canonical, self._temporary())

    def _temporary(self) -> StorePath:
        """Return an unused name, outside ``blobs/`` so that it is never mistaken for a blob."""
        return self._own / f"{_TEMPORARY}{next(self._serial)}"

    def keep_exactly(self, wanted: dict[str, int]) -> list[str]:
        """Release every claim that is not in `wanted` (digest -> size). Return the wanted blobs that are missing."""
        # An unneeded claim of an earlier try would keep unused bytes in the checkpoint.
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
        """Write or replace the manifest, and make every name in the directory durable. Nothing may be added later."""
        # No process reads the manifest before the directory is published. So the first one is written in place, without
        # a temporary name.
        path = self._own / MANIFEST
        fresh = self._own / f"{_TEMPORARY}{MANIFEST}" if self._sealed else path
        self._sealed = True
        # After all blobs, since a reader of the manifest relies on the blobs that it names (law N1).
        files.create_file(fresh, manifest, mode=0o444)
        if self.reads_back:
            check_on_disk(fresh, memoryview(manifest))
        if fresh != path:
            links.rename(fresh, path)
        self.stamp = Stamp.of(self.inode, dirfd_stat.status(path))
        # The inner directory first, so that the outer one only names a directory that is whole (law N1).
        files.sync_directory(self._blobs)
        files.sync_directory(self._own)


def _owner(path: StorePath) -> int | None:
    found = dirfd_stat.find(path)
    return None if found is None else found.st_uid
