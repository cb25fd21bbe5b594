"""Check the directory of a published checkpoint, or open it for reading, at any path."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

from ckstore.errors import BadInput, BytesElsewhere, DamagedBlob, InUse, MissingBlob, OtherHash, RemoteError
from ckstore.fs import dirfd_stat, files, locks
from ckstore.fs.dirfd_stat import AnyPath, OpenDir, StorePath
from ckstore.model.manifest.info import Published, Stamp
from ckstore.model.manifest.manifest import MANIFEST_MAX_BYTES, BlobRecord, Extent, Manifest
from ckstore.model.manifest.parse import parse_manifest
from ckstore.model.manifest.stored import OldPiece
from ckstore.model.names import CheckpointKey
from ckstore.objects import blobs
from ckstore.objects.layout import BLOBS, ELSEWHERE, MANIFEST, PLAIN, Layout
from ckstore.objects.remote.remote_only import holders_at, may_lack, remove_remote_only, touch
from ckstore.objects.remote.remote_pieces import Fetch, RemotePieces


class Rescued(NamedTuple):
    """The source of the bytes of a blob that was damaged or missing."""

    source: str
    problem: str  # why the file was not repaired; empty if it was repaired


UNREADABLE = (DamagedBlob, RemoteError)
Unreadable = DamagedBlob | RemoteError
"""Errors of reads after which the bytes may be available from another copy."""


class Rescue(Protocol):
    """Repairs the file that an error is about, or returns the bytes of the blob. See `ckstore.ops.context.Rescuer`."""

    def __call__(  # noqa: D102 - as above
        self, directory: CheckpointDirectory, error: Unreadable, blob: BlobRecord, *, first: bool
    ) -> memoryview | None: ...


class AbsentPieces(Protocol):
    """Reads pieces of blobs that a directory lacks, from a remote. Only one thread may use it."""

    received_bytes: int  # the number of bytes that were received from the remote

    def expect(self, extents: Sequence[Extent]) -> None:
        """Announce the next reads from one blob, in the order of their offsets."""

    def read_right(
        self, extent: Extent, old: OldPiece | None, out: memoryview, what: str, before_each: Callable[[], None]
    ) -> None:
        """Fill memory with a piece, and compare it with its digest. `old` is the piece that the memory holds now."""


OfStep = Callable[[str, int], Iterable[CheckpointKey]]
"""A function that returns the directories of a step, if the caller knows them. If None, the run is listed."""

# The id is the digest of the manifest. In a compacted checkpoint, it is the first member of the encoding.
_HEAD = re.compile(
    rb'\{"digest":"(?P<own>[a-z0-9]+-[0-9a-f]+)","manifest":(\{"checkpoint":"(?P<id>[a-z0-9]+-[0-9a-f]+)")?'
)
# The number of bytes to read for the id. The longest head, with two blake3 digests, has less than 200 bytes.
_HEAD_BYTES = 256
# A try to find a checkpoint fails only if the checkpoint is compacted or dropped at the same moment.
_LIST_TRIES = 5
# A try to check a directory fails only if the directory is replaced at the same moment.
_LOOK_TRIES = 100


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of checking the directory of a checkpoint."""

    published: Published | None  # the checkpoint if it is complete, otherwise None
    problem: str = ""  # why it is not complete; empty if it is complete or the directory does not exist
    # Whether the directory holds a checkpoint of another run or step, or of a store with another hash.
    is_another: bool = False
    is_closed: bool = False  # whether this user may not read the directory
    content: str = ""  # the content digest in its manifest; empty if the manifest cannot be read


def look(layout: Layout, key: CheckpointKey, *, lock: locks.DirectoryLock | None = None) -> Verdict:
    """Return the verdict on a checkpoint directory from its manifest and the status of its blobs, without reading data.

    The directory is locked for use during the check, unless another process has it locked exclusively. The caller can
    pass its own lock on the directory instead.
    """
    # Do not wait for the lock. Otherwise, a deadlock is possible: the caller may hold the lock of the catalog, and a
    # compaction that has locked a former generation may be waiting for that lock.
    path = layout.checkpoint(key)
    try:
        if lock is not None:
            return _judged(layout, key, lock)
        if layout.inode(key) is None:  # also if the run is a file or a symlink
            return Verdict(None)
        try:
            lock = locks.lock_shared(path, timeout_s=0)
        except InUse:
            return _looked_at_unlocked(layout, key)
        with lock:
            return _judged(layout, key, lock)
    except (FileNotFoundError, NotADirectoryError):
        return Verdict(None)
    except PermissionError:
        return Verdict(None, layout.pass_over(path), is_closed=True)
    except OtherHash as error:
        return Verdict(None, str(error), is_another=True)
    except DamagedBlob as error:
        return Verdict(None, str(error))


def lacks_blobs(layout: Layout, key: CheckpointKey) -> bool:
    """Whether blobs of a checkpoint are missing or unreadable. Nothing is locked, so that no eviction fails."""
    try:
        published = _looked_at_unlocked(layout, key).published
    except (FileNotFoundError, NotADirectoryError, PermissionError, OtherHash, DamagedBlob, InUse):
        return True
    return published is None or not published.is_local


def may_lack_blobs(path: StorePath) -> bool:
    """Whether the directory of a checkpoint has a record of remotes, so that its blobs may be on remotes only."""
    return dirfd_stat.exists(path / ELSEWHERE)


def holder_names_at(path: StorePath) -> tuple[str, ...]:
    """Return the names of the remotes that have the evicted blobs of the checkpoint in this directory."""
    return tuple(holder.name for holder in holders_at(path))


def end_restore(lock: locks.DirectoryLock, manifest: Manifest) -> bool:
    """Make catalogs read a locked checkpoint again after blobs were restored.

    If all blobs are local, also remove the record of remotes.

    Returns:
        Whether all blobs are local.
    """
    is_local = not judge_blobs(lock.inside, lock.fd, manifest).elsewhere
    # Call `touch` first: if the process is killed afterwards, the rows of catalogs must not omit the new links.
    touch(lock)
    if is_local:
        remove_remote_only(lock)
        touch(lock)
    return is_local


def _looked_at_unlocked(layout: Layout, key: CheckpointKey) -> Verdict:
    """Return the verdict on a directory without locking it. The verdict is valid while the directory has its name."""
    path = layout.checkpoint(key)
    for _ in range(_LOOK_TRIES):
        with locks.open_unlocked(path) as opened:
            try:
                verdict = _judged(layout, key, opened)
            except (FileNotFoundError, NotADirectoryError, DamagedBlob):
                if opened.names(path):
                    raise
            else:
                if opened.names(path):
                    return verdict
    raise InUse(f"{path} was replaced {_LOOK_TRIES} times while it was being examined")


def _judged(layout: Layout, key: CheckpointKey, lock: locks.DirectoryLock) -> Verdict:
    path = layout.checkpoint(key)
    directory = CheckpointDirectory.locked(path, lock, layout.hash_prefix)
    manifest = directory.manifest
    if not key.fits(manifest.run, manifest.step, directory.manifest_id):
        problem = f"{directory.path} holds the checkpoint {manifest.name} with id {directory.manifest_id}"
        return Verdict(None, problem, is_another=True)
    # Use the descriptor of the lock, because the path may name another checkpoint now.
    judged = judge_blobs(lock.inside, lock.fd, manifest)
    if judged.problem:
        return Verdict(None, f"{directory.path}: {judged.problem}", content=manifest.content)
    published = Published(manifest, directory.manifest_id, key, directory.stamp, judged.elsewhere)
    return Verdict(published, content=manifest.content)


class Judgement(NamedTuple):
    """The result of checking the blobs of a checkpoint."""

    problem: str = ""  # why the checkpoint is not complete; empty if it is complete
    touched: tuple[BlobRecord, ...] = ()  # blobs of the right size to which a program has written
    elsewhere: frozenset[str] = frozenset()  # digests of the blobs that are missing locally but are on a remote

    @property
    def is_local(self) -> bool:
        """Whether no blob is only on a remote."""
        return not self.elsewhere


def judge_blobs(directory: StorePath, fd: int, manifest: Manifest) -> Judgement:
    """Check the blobs in a directory, which is open as `fd`, without reading data."""
    if not manifest.stored:
        return Judgement(why_not_own(fd))
    try:
        with OpenDir(directory / BLOBS) as folder:
            return _judge_blobs(folder, fd, manifest)
    except (FileNotFoundError, NotADirectoryError):
        if problem := why_not_own(fd):
            return Judgement(problem)
        # An eviction that was killed between two renames leaves no `blobs/`.
        if _may_be_remote(fd, manifest):
            return Judgement(elsewhere=frozenset(blob.digest for blob in manifest.stored))
        first = manifest.stored[0]
        return Judgement(blobs.why_absent(first.digest, first.nbytes, None))


def _judge_blobs(folder: OpenDir, fd: int, manifest: Manifest) -> Judgement:
    touched: list[BlobRecord] = []
    elsewhere: set[str] = set()
    for blob in manifest.stored:
        try:
            status = os.stat(blob.digest, dir_fd=folder.fd, follow_symlinks=False)
        except FileNotFoundError:
            # Check this only at the first missing blob, so that it costs nothing for complete checkpoints.
            if not elsewhere and not _may_be_remote(fd, manifest):
                return Judgement(blobs.why_absent(blob.digest, blob.nbytes, None))
            elsewhere.add(blob.digest)
            continue
        # Check only the size and the time: opening a checkpoint with a thousand blobs must not read their data.
        if blobs.looks_untouched(status, blob.nbytes):
            continue
        if problem := blobs.why_absent(blob.digest, blob.nbytes, status):
            return Judgement(problem)
        touched.append(blob)
    return Judgement("", tuple(touched), frozenset(elsewhere))


def _may_be_remote(fd: int, manifest: Manifest) -> bool:
    """Whether files that an open directory lacks may be on remotes. Remotes have no encoded files of this store."""
    return manifest.form.is_plain and may_lack(fd)


def published_of_step(layout: Layout, run: str, step: int, of_step: OfStep | None = None) -> list[Published]:
    """Return the complete checkpoints of a step in the order of commits. The last one is the current one."""
    looked = (look(layout, key).published for key in (of_step or layout.of_step)(run, step))
    return sorted((found for found in looked if found is not None), key=lambda found: found.order)


def key_with_id(layout: Layout, run: str, step: int, id: str, of_step: OfStep | None = None) -> CheckpointKey | None:
    """Return the key of the latest generation of a checkpoint, or None if it is not published."""
    for _ in range(_LIST_TRIES):
        fitting = [key for key in (of_step or layout.of_step)(run, step) if key.fits(run, step, id)]
        fitting.sort(key=lambda key: key.generation, reverse=True)
        found = next((key for key in fitting if id_at(layout.checkpoint(key)) == id), None)
        # List again if a directory was removed after the listing, because a later generation may exist now.
        if found is not None or all(layout.inode(key) is not None for key in fitting):
            return found
    return None


def places_with_id(layout: Layout, run: str, step: int, id: str, of_step: OfStep | None = None) -> Iterator[StorePath]:
    """Yield the directory of a checkpoint, and then each later generation that was published meanwhile."""
    path: StorePath | None = None
    while (key := key_with_id(layout, run, step, id, of_step)) is not None and layout.checkpoint(key) != path:
        path = layout.checkpoint(key)
        yield path


def id_at(path: StorePath) -> str | None:
    """Return the id at the beginning of a directory's manifest, without checking it, or None if it is unreadable."""
    try:
        with files.opened_regular(path / MANIFEST) as fd:
            match = _HEAD.match(os.pread(fd, _HEAD_BYTES, 0))
    except (FileNotFoundError, NotADirectoryError, PermissionError, DamagedBlob):
        return None
    return (match["id"] or match["own"]).decode("ascii") if match else None


def manifest_in(dir_fd: int, path: AnyPath, hash_prefix: str = "") -> tuple[Manifest, str]:
    """Return the manifest in an open directory of a checkpoint at `path`, and its id."""
    data = files.read_file(MANIFEST, most_bytes=MANIFEST_MAX_BYTES, dir_fd=dir_fd)
    return parse_manifest(data, where=f"{path}/{MANIFEST}", hash_prefix=hash_prefix, plain=plain_in(dir_fd, path))


def plain_in(dir_fd: int, path: AnyPath) -> Callable[[], bytes]:
    """Return a function that reads the plain manifest of a compacted checkpoint, or raises if it is missing."""

    def read() -> bytes:
        try:
            return files.read_file(PLAIN, most_bytes=MANIFEST_MAX_BYTES, dir_fd=dir_fd)
        except FileNotFoundError as error:
            raise DamagedBlob(f"{path}/{PLAIN} is missing") from error

    return read


def why_not_own(dir_fd: int) -> str:
    """Return why the blobs in an open directory of a checkpoint do not belong to the checkpoint, or "" if they do."""
    try:
        found = os.stat(BLOBS, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:  # the caller then reports the first blob as missing
        return ""
    if stat.S_ISDIR(found.st_mode):
        # A filesystem that is mounted here has no hardlinks to blobs of the store.
        if found.st_dev == os.fstat(dir_fd).st_dev:
            return ""
        return f"{BLOBS}/ is on another filesystem, and a checkpoint owns its blobs"
    kind = "a symlink" if stat.S_ISLNK(found.st_mode) else "not a directory"
    return f"{BLOBS}/ is {kind}, and a checkpoint owns its blobs"


class CheckpointDirectory:
    """A checkpoint that is open for reading, as a context manager.

    Its directory is locked for use (law L1), and its manifest was checked. Files are opened through the descriptor of
    the directory, so a rename of the directory has no effect.
    """

    # These functions take the directory as their first argument. If they were bound to it, the cycle of references
    # would keep its manifest in memory until Python's collector runs.
    # Called with the error if a read finds damage. It may be None.
    on_damage: Callable[[CheckpointDirectory, DamagedBlob], None] | None = None
    fetch: Fetch[CheckpointDirectory] | None = None  # downloads data; None if no remote can be reached
    # Called with the error of a damaged or missing blob, the plain blob to be read, and whether this is the first call
    # of the reader for the file. If None, reads repair nothing.
    rescue: Rescue | None = None
    on_close: Callable[[CheckpointDirectory], None] | None = None  # called after the checkpoint was closed
    threads: int = 4  # the maximum number of threads that read it

    def __init__(
        self, path: AnyPath, lock: locks.DirectoryLock, stamp: Stamp, manifest: Manifest, manifest_id: str
    ) -> None:
        self.path = path  # the path at which it was opened
        self.stamp = stamp  # the stamp of the directory and its manifest
        self._blobs: OpenDir | None = None
        self.lock = lock  # the shared lock on the directory
        self.manifest = manifest
        self.manifest_id = manifest_id
        self.rescued: dict[str, Rescued] = {}  # digest of a damaged or missing blob -> the source of its right bytes

    @classmethod
    def at(cls, path: AnyPath, hash_prefix: str = "") -> CheckpointDirectory:
        """Open the checkpoint in `path`, of a store with `hash_prefix`. Raise `DamagedBlob` if its manifest is bad."""
        # Lock the directory before reading anything, so that it is not deleted until the reader has finished (law L1).
        lock = locks.lock_shared(path)
        try:
            return cls.locked(path, lock, hash_prefix)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def locked(cls, path: AnyPath, lock: locks.DirectoryLock, hash_prefix: str = "") -> CheckpointDirectory:
        """Open the checkpoint whose directory is locked by `lock`. If this raises, the caller still owns the lock."""
        where = f"{path}/{MANIFEST}"
        try:
            # Take the stamp first: if the file is changed while it is read, the stamp must not match the new file.
            stamp = Stamp.of(os.fstat(lock.fd).st_ino, os.stat(MANIFEST, dir_fd=lock.fd, follow_symlinks=False))
            # Use the descriptor, so that a rename of the directory has no effect.
            manifest, manifest_id = manifest_in(lock.fd, path, hash_prefix)
        except FileNotFoundError as error:
            raise DamagedBlob(f"{where} is missing") from error
        except BadInput as error:
            raise DamagedBlob(error.message, hint=error.hint) from error
        if problem := why_not_own(lock.fd):
            raise DamagedBlob(f"{path}: {problem}")
        return cls(path, lock, stamp, manifest, manifest_id)

    @property
    def manifest_file(self) -> str:
        """The name of the file with the plain manifest, whose digest is the id."""
        return MANIFEST if self.manifest.form.is_plain else PLAIN

    def stat_blob(self, digest: str) -> os.stat_result:
        """Return the status of a blob of the checkpoint."""
        return os.stat(digest, dir_fd=self.blobs.fd, follow_symlinks=False)

    @property
    def blobs(self) -> OpenDir:
        """The directory with the blobs of the checkpoint. It is opened only once."""
        if self._blobs is None:
            self._blobs = self.lock.keep(self.lock.inside / BLOBS)
        return self._blobs

    def open_blob(self, blob: BlobRecord, what: str, *, whole: bool = False) -> int:
        """Return a descriptor for reading a blob of the checkpoint. The caller must close it.

        With `whole`, raise an error if the file does not have the size of the blob.
        """
        # After `close`, the number of the descriptor may belong to another file of the program.
        if self.lock.fd < 0:
            raise BadInput(f"{self.path} was closed", hint="read from it inside its with block")
        try:
            fd, status = self._opened(blob.digest)
        except DamagedBlob as error:
            error.blob, error.names = blob.digest, (what,)
            raise
        except (FileNotFoundError, NotADirectoryError) as error:
            if _may_be_remote(self.lock.fd, self.manifest):
                raise BytesElsewhere(
                    f"{self.path}: blob {blob.digest} is stored only on a remote, and {what} needs it",
                    hint="download the checkpoint from that remote: store.pull(ref, remote)",
                    command_hint="download the checkpoint from that remote: ckstore pull REF --remote NAME",
                ) from error
            raise self._absent(blob, None, what) from error
        if whole and not blobs.has_size(status, blob.nbytes):
            # Refuse a short file. A mapping of the file would have zeros up to the end of the last page, and a read
            # beyond this page would kill the process.
            os.close(fd)
            raise self._absent(blob, status, what)
        return fd

    def open_local(self, blob: BlobRecord, what: str) -> int | None:
        """Return a descriptor of a blob like `open_blob`, or None if the blob can be downloaded instead."""
        try:
            return self.open_blob(blob, what)
        except BytesElsewhere:
            if self.fetch is None:
                raise
            return None

    def absent_pieces(self) -> AbsentPieces:
        """Return a reader for pieces of blobs that the directory lacks."""
        return RemotePieces(self, self.manifest, self.fetch)

    def _opened(self, digest: str) -> tuple[int, os.stat_result]:
        return files.open_with_status(self.blobs.inside / digest)

    def must_have(self, digest: str) -> bool:
        """Whether a blob of the checkpoint must be in the directory. False if the blob is only on a remote."""
        try:
            self.stat_blob(digest)
        except (FileNotFoundError, NotADirectoryError):
            return not _may_be_remote(self.lock.fd, self.manifest)
        return True

    def _absent(self, blob: BlobRecord, status: os.stat_result | None, what: str) -> DamagedBlob:
        error = MissingBlob if status is None else DamagedBlob
        problem = blobs.why_absent(blob.digest, blob.nbytes, status)
        hint = "ckstore verify shows which checkpoints are whole"
        if status is None:
            hint = f"ckstore never deletes needed files: does this filesystem delete files by age? {hint}"
        return error(f"{self.path}: {problem}; {what} needs it", hint=hint, blob=blob.digest, names=(what,))

    @contextmanager
    def reporting_damage(self) -> Iterator[None]:
        """Call `on_damage` for a `DamagedBlob` that the block raises, and raise it again."""
        try:
            yield
        except DamagedBlob as error:
            if self.on_damage is not None:
                self.on_damage(self, error)
            raise

    def close(self) -> None:
        """Release the lock. Repeated calls do nothing."""
        self.lock.release()
        on_close, self.on_close = self.on_close, None
        if on_close is not None:
            on_close(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
