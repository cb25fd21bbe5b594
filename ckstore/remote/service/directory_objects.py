"""Implements `Objects` in a directory. Each object is a file, and its path is its key.

An object is written to a temporary file, synced and renamed, and its directories are synced. So an acknowledged write
survives a power cut, and no reader finds a part of it. Versions are compared only under a lock that reaches every host.
Source: docs/format/remote-v1.md, "In a directory".
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from ckstore.errors import BadInput, CkstoreError, InUse, RemoteDenied, RemoteError, RemoteFull, RemoteUnavailable
from ckstore.fs import dirfd_stat, files, links, statx
from ckstore.fs.dirfd_stat import NotInStore, OpenDir, StorePath
from ckstore.fs.host.mounts import examine
from ckstore.fs.lock_files import LockFile
from ckstore.model.host import reach_of_locks
from ckstore.remote import keys
from ckstore.remote.objects import ObjectEntry
from ckstore.remote.service.abilities import Abilities
from ckstore.remote.service.engine_calls import CallThreads
from ckstore.remote.service.target import Target

T = TypeVar("T")
_INCOMING, _LOCK = ".incoming", ".lock"
"""Names in the directory that are not keys. No key begins with a dot."""
_LOCK_S = 60.0
# The maximum number of attempts to give an object its name. Other processes remove empty directories, possibly just
# before an object is renamed into one of them.
_TRIES = 100
_READ_BYTES = 4 * 2**20
_BATCH = 1000
# Leftovers of a dead writer are deleted a day after their last write.
_LEFT_S = 86400.0
_NO_LINKS = (*links.CANNOT_LINK, errno.ENOSYS)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
_MOST_LEVELS = 16


class DirectoryObjects:
    """Objects in a directory; see `Objects`. Threads and forked children may share an instance."""

    # The directory is opened for each call, so that its filesystem can be unmounted between two calls.

    def __init__(self, target: Target, abilities: Abilities | None = None) -> None:
        self._target = target
        self._creates = abilities is None or abilities.create
        self._workers = CallThreads(of_engine=False)
        self._swept = threading.Lock()
        self._inode: tuple[int, int] | None = None
        self._call(self._look, "opening")

    def _look(self, top: StorePath) -> None:
        status, place = dirfd_stat.status(top), examine(self._target.path)
        self._inode = status.st_dev, status.st_ino
        self._other_hosts = place.other_hosts
        self._locks = not place.other_hosts or reach_of_locks(place.kind, place.options).hosts is True

    def __repr__(self) -> str:
        return f"<objects of {self._target}>"

    def __reduce__(self) -> tuple[Any, ...]:
        raise RemoteError(f"objects of {self._target} cannot be pickled", hint="pickle and open the target")

    def close(self) -> None:
        """End the waits of all threads; see `Objects`."""
        self._workers.stop()

    def get(self, key: str, max_bytes: int) -> bytes | None:
        """Return a small object; see `Objects`."""

        def read(top: StorePath) -> bytes | None:
            self._refresh(top, key)
            with suppress(FileNotFoundError), files.opened_regular(_path_of(top, key)) as fd:
                size = os.fstat(fd).st_size
                if size > max_bytes:
                    raise RemoteError(f"{key} at {self._target} has {size} bytes, more than {max_bytes}")
                data = bytearray(size)
                files.read_into(fd, 0, memoryview(data), f"{key} at {self._target}")
                return bytes(data)
            return None

        return self._call(read, f"reading {key}")

    def read_into(self, key: str, offset: int, into: memoryview) -> bool:
        """Fill `into` with bytes of an object; see `Objects`."""
        into, what = into.cast("B"), f"reading {key}"
        if not len(into):
            return self.head(key) is not None
        filled = 0
        while filled < len(into):
            # This thread copies the bytes, because an abandoned worker must not write into the caller's memory.
            part = self._call(partial(_read, key, offset + filled, min(_READ_BYTES, len(into) - filled)), what)
            if part is None and not filled:
                return False
            if not part:
                msg = f"{key} at {self._target} ends {len(into) - filled} bytes before the end of the range to read"
                raise RemoteError(msg)
            into[filled : filled + len(part)] = part
            filled += len(part)
        return True

    def send(self, key: str, data: bytes | memoryview) -> str:
        """Write an object; see `Objects`."""
        return self.put(key, data).tag

    def put(self, key: str, data: bytes | memoryview) -> ObjectEntry:
        """Write an object and return its entry; see `Objects`."""

        def place(top: StorePath, fresh: StorePath) -> ObjectEntry:
            with self._locked(top, key, exclusive=False):
                return _rename(fresh, top, key)

        return self._write_and_name(key, data, place)

    def create(self, key: str, data: bytes | memoryview) -> bool:
        """Create an object; see `Objects`."""

        def place(top: StorePath, fresh: StorePath) -> bool | None:
            target = _path_of(top, key)
            if self._creates:
                try:
                    with self._locked(top, key, exclusive=False):
                        links.link(fresh, target)
                except FileExistsError:
                    return _has_bytes(target, data)
                except OSError as error:
                    if error.errno not in _NO_LINKS:
                        raise
                else:
                    return True
                if not self._locks:
                    msg = f"{self._target} has neither hardlinks nor locks, so two processes could create one object"
                    raise RemoteError(msg)
            with self._locked(top, key, exclusive=True):
                if dirfd_stat.exists(target):
                    return _has_bytes(target, data)
                _rename(fresh, top, key)
            return True

        return self._write_and_name(key, data, place)

    def update(self, key: str, data: bytes | memoryview, expected: str) -> str | None:
        """Replace one version of an object; see `Objects`."""
        if not self._locks:
            msg = f"locks on {self._target} are not known to reach other hosts, so no version can be compared"
            raise RemoteError(msg)

        def place(top: StorePath, fresh: StorePath) -> str | bool:
            with closing(_lock(top, exclusive=True)) as lock:
                found = self._find(top, key)
                if found is None or found.tag != expected:
                    return False
                return _rename(fresh, top, key, lock).tag

        found = self._write_and_name(key, data, place)
        return found if isinstance(found, str) else None

    def list(self, prefix: str) -> Iterator[ObjectEntry]:
        """Yield objects in the order of their keys; see `Objects`."""
        folder, slash, _ = prefix.rpartition("/")
        yield from self._list_folder(folder + slash, prefix, 0)

    def _list_folder(self, folder: str, prefix: str, level: int) -> Iterator[ObjectEntry]:
        """Yield the objects of a folder whose keys begin with a prefix. The folder is "" or ends with a slash."""

        def look(top: StorePath) -> Sequence[tuple[str, os.stat_result]]:
            found = dirfd_stat.statuses(_path_of(top, folder[:-1]) if folder else top)
            # Names of folders get a slash at their end, so that all names are sorted like keys.
            named = ((name + "/" * stat.S_ISDIR(status.st_mode), status) for name, status in found)
            return sorted((name, status) for name, status in named if folder or not name.startswith("."))

        if level > _MOST_LEVELS:
            raise RemoteError(f"{self._target} has directories below {folder} that no remote uses: delete them")
        for name, status in self._call(look, f"listing {prefix or 'all'}"):
            key = folder + name
            if name.endswith("/"):
                if key.startswith(prefix):
                    yield from self._list_folder(key, prefix, level + 1)
            elif key.startswith(prefix) and stat.S_ISREG(status.st_mode):
                yield _entry_of(key, status)

    def head(self, key: str) -> ObjectEntry | None:
        """Return the entry of an object; see `Objects`."""
        return self._call(lambda top: self._find(top, key), f"examining {key}")

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; see `Objects`."""
        every = [*keys]
        for start in range(0, len(every), _BATCH):
            batch = every[start : start + _BATCH]
            self._call(partial(self._remove, batch), f"removing {len(batch)} objects")

    def _remove(self, batch: Sequence[str], top: StorePath) -> None:
        folders: dict[StorePath, None] = {}
        for key in batch:
            place = _path_of(top, key)
            with self._locked(top, key, exclusive=False), suppress(FileNotFoundError, NotADirectoryError):
                links.unlink(place)
                folders[place.parent] = None
        for folder in folders:
            with suppress(FileNotFoundError):
                _sync(folder)
            # Remove the folder and those above it, up to the first folder that is not empty. Top folders are kept.
            with suppress(OSError):
                while len(folder.parts) > 1:
                    links.remove_directory(folder)
                    folder = folder.parent  # noqa: PLW2901

    def _find(self, top: StorePath, key: str) -> ObjectEntry | None:
        """Return the entry of an object. On a shared filesystem, it is read from the server and not from a cache."""
        try:
            self._refresh(top, key)
            # The file is opened, because an open queries the server. A lookup by name may use a cache of this host.
            fd, status = files.open_with_status(_path_of(top, key))
        except (FileNotFoundError, NotADirectoryError):
            return None
        os.close(fd)
        return _entry_of(key, status)

    def _refresh(self, top: StorePath, key: str) -> None:
        if self._other_hosts:
            with suppress(FileNotFoundError, NotADirectoryError):
                statx.refresh(_path_of(top, key).parent)

    def _locked(self, top: StorePath, key: str, *, exclusive: bool) -> AbstractContextManager[object]:
        """Return a context manager that excludes updates by other processes."""
        # Blobs need no lock, because each write to the name of a blob has the same bytes.
        if not self._locks or key.startswith(keys.BLOBS):
            return nullcontext()
        return closing(_lock(top, exclusive=exclusive))

    def _write_and_name(
        self, key: str, data: bytes | memoryview, place: Callable[[StorePath, StorePath], T | None]
    ) -> T:
        """Write a file with these bytes, and return the result of `place`, which gives the file its name.

        `place` is called again if it returns None, or if another process has removed a directory.
        """
        what, view = f"writing {key}", memoryview(data).cast("B")
        # A second call gives the file its name. A write that the caller has given up, for example after an hour, must
        # not create an object later.
        name = self._call(partial(self._write, view), what)

        def give_name(top: StorePath) -> T:
            fresh = top / _INCOMING / name
            for _ in range(_TRIES):
                # Use the mode of the top directory. The parent directory may not have its final mode yet, because
                # another thread may just have created it.
                folder, mode = top, stat.S_IMODE(dirfd_stat.status(top).st_mode) | stat.S_IRWXU
                for part in key.split("/")[:-1]:
                    folder /= part
                    links.make_directory(folder, mode=mode)
                try:
                    found = place(top, fresh)
                except FileNotFoundError:  # its directory was empty and another process has just removed it
                    if not dirfd_stat.exists(fresh):
                        raise
                    continue
                if found is not None:
                    # Make the names of the object and of its directories durable, even if another process created them.
                    folder = _path_of(top, key)
                    while folder.parts:
                        folder = folder.parent
                        _sync(folder)
                    return found
            raise RemoteUnavailable(f"{key} at {self._target} was removed {_TRIES} times while it was written")

        try:
            return self._call(give_name, what)
        finally:
            with suppress(RemoteError):  # a later writer deletes the file, and this must not hide the first error
                self._call(partial(_discard, name), what)

    def _write(self, data: memoryview, top: StorePath) -> str:
        """Write a file under a unique name, and return the name."""
        folder, name = top / _INCOMING, uuid.uuid4().hex
        links.make_directory(folder)
        if self._swept.acquire(blocking=False):  # never released, so that this runs only once
            _sweep(folder)
        with OpenDir(folder) as held:
            mode = files.mode_in(held.fd)
        try:
            with files.opened(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode) as fd:
                files.write_all(fd, data)
                os.fchmod(fd, mode)
                os.fsync(fd)
        except BaseException:
            with suppress(OSError):  # this must not hide the first error
                links.unlink(folder / name)
            raise
        return name

    def _call(self, function: Callable[[StorePath], T], what: str) -> T:
        """Call a function with the directory in a worker, and translate its errors to errors of a remote."""

        def call() -> T:
            with OpenDir(StorePath(self._target.address)) as held:
                status = os.fstat(held.fd)
                if self._inode not in (None, (status.st_dev, status.st_ino)):
                    msg = f"{self._target} is now another directory than before"
                    raise RemoteUnavailable(msg, hint="if it is on a filesystem of its own, mount that")
                return function(held.inside)

        try:
            return self._workers.call(call)
        except (OSError, InUse) as error:
            raise _translated(error, what, self._target) from error
        except (RemoteError, BadInput):
            raise
        except CkstoreError as error:  # for example because of a symlink that another program created
            raise RemoteError(f"{what} at {self._target} failed: {error.message}", hint=error.hint) from error


def _path_of(top: StorePath, key: str) -> StorePath:
    for part in key.split("/"):
        top /= part
    return top


def _read(key: str, offset: int, nbytes: int, top: StorePath) -> bytes | None:
    """Return up to `nbytes` bytes of an object, or None if it is missing."""
    # The file is opened for each part. A descriptor that a worker returned to a caller who gave up would stay open.
    with suppress(FileNotFoundError), files.opened_regular(_path_of(top, key)) as fd:
        return os.pread(fd, nbytes, offset)
    return None


def _has_bytes(place: StorePath, data: bytes | memoryview) -> bool | None:
    """Whether an object has these bytes, or None if it was deleted meanwhile."""
    view = memoryview(data).cast("B")
    with suppress(FileNotFoundError), files.opened_regular(place) as fd:
        if os.fstat(fd).st_size != len(view):
            return False
        at = 0
        while part := os.pread(fd, _READ_BYTES, at):
            if view[at : at + len(part)] != part:
                return False
            at += len(part)
        return at == len(view)
    return None


def _lock(top: StorePath, *, exclusive: bool) -> LockFile:
    try:
        return LockFile.take(top / _LOCK, exclusive=exclusive, timeout_s=_LOCK_S)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
    # `LockFile` creates the file with a hardlink, so that no process sees it with preliminary permissions. Without
    # hardlinks, the file is created directly.
    with OpenDir(top) as held, suppress(FileExistsError):
        files.create_file(top / _LOCK, b"", mode=files.mode_in(held.fd))
    return LockFile.take(top / _LOCK, exclusive=exclusive, timeout_s=_LOCK_S)


def _sync(folder: StorePath) -> None:
    """Make the names in a directory durable. SMB does not support this call and relies on its server."""
    try:
        files.sync_directory(folder)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


def _sweep(folder: StorePath) -> None:
    """Delete old leftovers of dead writers, with ages according to the filesystem's clock."""
    clock = folder / uuid.uuid4().hex
    files.create_file(clock, b"", mode=0o600)
    now_s = dirfd_stat.status(clock).st_mtime
    links.unlink(clock)
    for name, status in dirfd_stat.statuses(folder):
        if now_s - status.st_mtime > _LEFT_S:
            with suppress(FileNotFoundError, PermissionError):  # the sticky bit protects files of other users
                links.unlink(folder / name)


def _discard(name: str, top: StorePath) -> None:
    with suppress(FileNotFoundError):
        links.unlink(top / _INCOMING / name)


def _rename(fresh: StorePath, top: StorePath, key: str, lock: LockFile | None = None) -> ObjectEntry:
    """Rename a file to an object, and make its modification time later than that of the replaced version."""
    target = _path_of(top, key)
    before, status = dirfd_stat.find(target), dirfd_stat.status(fresh)
    # The new time is later by a nanosecond, or else by two seconds, which is the resolution of the coarsest filesystem.
    for step_ns in (1, 2 * 10**9):
        if before is None or status.st_mtime_ns > before.st_mtime_ns:
            break
        with dirfd_stat.at(fresh) as (fd, name):
            os.utime(name, ns=(status.st_atime_ns, before.st_mtime_ns + step_ns), dir_fd=fd, follow_symlinks=False)
        status = dirfd_stat.status(fresh)
    if lock is not None:
        lock.check()
    links.rename(fresh, target)
    return _entry_of(key, status)


def _entry_of(key: str, status: os.stat_result) -> ObjectEntry:
    # The time is included, because a new version may get the inode number of an earlier one.
    tag = f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"
    return ObjectEntry(key, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC), tag)


def _translated(error: OSError | InUse, what: str, target: Target) -> RemoteError:
    where = f"{what} at {target}"
    if isinstance(error, FileNotFoundError) and error.filename == target.address:
        hint = "if it is on a filesystem of its own, mount that"
        return RemoteUnavailable(f"there is no directory {target}", hint=hint)
    if isinstance(error, InUse):
        return RemoteUnavailable(f"{where} failed: {error.message}", hint=error.hint)
    said = error.strerror or str(error)
    if error.errno in files.NO_SPACE:
        hint = "free space with ckstore remote prune NAME, which first needs a little space"
        return RemoteFull(f"{where} failed: {said}", hint=hint)
    if error.errno in _DENIED:
        return RemoteDenied(f"{where} failed: {said}", hint="let this user write to the directory and all below it")
    if isinstance(error, NotInStore) or error.errno in (errno.ENOTDIR, errno.EISDIR, errno.ELOOP):
        return RemoteError(f"{where} failed: {error.filename} {said}", hint="another program has changed the directory")
    return RemoteUnavailable(f"{where} failed: {said}", hint="check the filesystem; the same command may succeed later")
