"""Files: create them, make them durable, and read them exactly. Every write of the store uses this module.

It follows these facts, measured on ext4 and XFS. `fsync` reports an error once. So it is called once, on the descriptor
that wrote, and never repeated. A new name is durable after `fsync` of its directory. A rename is durable after `fsync`
of both parents.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from ckstore.errors import DamagedBlob
from ckstore.fs import blob_time
from ckstore.fs.buffers import GRAIN_BYTES, is_aligned
from ckstore.fs.dirfd_stat import AnyPath, StorePath, at, close_quietly, open_at, open_descriptor, open_directory

BLOB_MODE = 0o444

# O_EXCL with O_NOFOLLOW: a file or symlink that another user put at the name is an error, never written through (rule
# N).
_APPEND = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # does not wait for a pipe's reader
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# One write of Linux takes at most 2 GiB; in parts of this size a signal or an error is seen between two of them.
_WRITE_MOST_BYTES = 16 * 2**20
# A smaller file costs no memory worth guarding, and the guard takes two more system calls.
_SPARSE_FROM_BYTES = 2**20
DIRECT_FROM_BYTES = 2**20
"""Smaller blobs are written through the page cache, because direct writes gain little."""
CANNOT_DIRECT = (errno.EINVAL, errno.EOPNOTSUPP)
"""Errors which show that a file cannot be read or written past the page cache, or not with this alignment."""
NO_SPACE = frozenset((errno.ENOSPC, errno.EDQUOT))
"""Errors of a full disk or an exhausted quota."""
NO_MEANS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR))
"""Errors of a process or host that lacks resources. They show nothing about a file."""
_NO_SERVER = frozenset((errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH))
NOT_OF_THE_FILE = NO_MEANS | _NO_SERVER
"""Errors which show nothing about the content of a file. They include those of a server that is down or has lost the
handle."""
# Answers of kernels and filesystems that do not know O_TMPFILE; EISDIR is from before 3.11.
_NO_UNNAMED = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)
_TRIED_FILES = 3
"""A transaction of the catalog creates a log and its index, and a document creates one file."""
# Errors of open for a symlink, a socket, and a device without a driver.
_NO_FILE = (errno.ELOOP, errno.ENXIO, errno.ENODEV)


@contextmanager
def opened(path: AnyPath, flags: int, mode: int = 0o600, *, dir_fd: int | None = None) -> Iterator[int]:
    """Open a descriptor for a `with` block. An error of `close` is also raised."""
    fd = open_at(path, flags, mode, dir_fd=dir_fd)
    try:
        yield fd
    except BaseException:
        close_quietly(fd)
        raise
    os.close(fd)


def open_to_read(path: AnyPath, *, dir_fd: int | None = None, flags: int = 0) -> int:
    """Return a descriptor for reading. A symlink is not followed, and a pipe does not block."""
    # A lease is waited for: gc asks for one for some microseconds, and another program's ends after the kernel's
    # ``fs.lease-break-time``.
    flags |= os.O_RDONLY | os.O_NOFOLLOW
    try:
        # Without O_NONBLOCK a pipe that another user put here would hold the process for ever.
        return open_at(path, flags | os.O_NONBLOCK, dir_fd=dir_fd)
    except BlockingIOError:  # there is a lease on it, so it is a regular file
        return open_at(path, flags, dir_fd=dir_fd)


@contextmanager
def opened_to_read(path: AnyPath) -> Iterator[int]:
    """Open a descriptor like `open_to_read`, for a `with` block."""
    fd = open_to_read(path)
    try:
        yield fd
    finally:
        close_quietly(fd)


def open_regular(path: AnyPath, *, dir_fd: int | None = None) -> int:
    """Return a descriptor of a regular file for reading. A symlink is not followed, and a pipe does not block."""
    return open_with_status(path, dir_fd=dir_fd)[0]


def open_with_status(path: AnyPath, *, dir_fd: int | None = None) -> tuple[int, os.stat_result]:
    """Return a descriptor like `open_regular`, with the status that was needed for it."""
    try:
        # Open first, look at the descriptor then: a look by name may be at another file than the one that is opened.
        fd = open_to_read(path, dir_fd=dir_fd)
    except OSError as error:
        if error.errno in _NO_FILE:
            raise _no_regular_file(path) from error
        raise
    try:
        status = os.fstat(fd)
        regular = stat.S_ISREG(status.st_mode)
    except BaseException:
        close_quietly(fd)
        raise
    if regular:
        return fd, status
    close_quietly(fd)
    raise _no_regular_file(path)


@contextmanager
def opened_regular(path: AnyPath, *, dir_fd: int | None = None) -> Iterator[int]:
    """Open a descriptor like `open_regular`, for a `with` block."""
    fd = open_regular(path, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        close_quietly(fd)


def _no_regular_file(path: AnyPath) -> DamagedBlob:
    msg = f"{path} is not a regular file: it is a symlink, a directory, a pipe or the like"
    return DamagedBlob(msg, hint="ckstore never creates one at this path: move it away")


def renew_ctime(path: StorePath) -> None:
    """Set the `ctime` of a file or directory to now, unless it is missing or belongs to another user."""
    with suppress(FileNotFoundError, PermissionError), at(path) as (parent, name):
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        # Its own times again: only ctime changes, to what the clock of the filesystem says.
        os.utime(name, ns=(found.st_atime_ns, found.st_mtime_ns), dir_fd=parent, follow_symlinks=False)


def append_line(path: StorePath, line: bytes, *, mode: int, most_bytes: int, older: StorePath) -> None:
    """Append a line to a log with one write, so that lines of several processes do not mix. It is not made durable.

    Raises:
        OSError: The line could not be written as a whole, as on a full disk.
    """
    # A log of more than `most_bytes` becomes `older`, in the place of the one that is there. Raises DamagedBlob:
    # something other than a regular file is at the path.
    try:
        fd = open_at(path, _APPEND)
        made = False
    except FileNotFoundError:
        fd, made = open_at(path, _APPEND | os.O_CREAT, mode), True
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise _no_regular_file(path)
        if made:
            os.fchmod(fd, mode)  # whatever the umask is: the others of a group append, too
        # A line that a full disk, a kill or a power cut has torn is ended first, so that this one is not lost with it.
        # A line that another process is still writing looks torn as well, and gets an empty line after it.
        if status.st_size and os.pread(fd, 1, status.st_size - 1) != b"\n":
            line = b"\n" + line
        if os.write(fd, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        if status.st_size > most_bytes:
            _turn_over(fd, path, older)
    finally:
        close_quietly(fd)


def _turn_over(fd: int, path: StorePath, older: StorePath) -> None:
    try:
        # Of two that find it full at once, the second would else rename the new one over the old one.
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    with at(path) as (parent, name):
        there, ours = os.stat(name, dir_fd=parent, follow_symlinks=False), os.fstat(fd)
        if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino):
            os.rename(name, older.name, src_dir_fd=parent, dst_dir_fd=parent)


def write_all(fd: int, data: memoryview) -> None:
    """Write all of `data`, a contiguous buffer of bytes, with as many writes as needed."""
    # Raises OSError: a write failed; an unknown part of the data was written.
    start = 0
    while start < len(data):
        written = os.write(fd, data[start : start + _WRITE_MOST_BYTES])
        if written == 0:
            raise OSError(f"write returned 0 with {len(data) - start} bytes left")
        start += written


def write_at(fd: int, offset: int, data: memoryview) -> None:
    """Write all of `data`, a contiguous buffer of bytes, at `offset`, with as many writes as needed."""
    done = 0
    while done < len(data):
        written = os.pwrite(fd, data[done : done + _WRITE_MOST_BYTES], offset + done)
        if written == 0:
            raise OSError(f"write returned 0 with {len(data) - done} bytes left")
        done += written


def create_blob(path: AnyPath, data: memoryview | Iterable[memoryview]) -> None:
    """Create the read-only file `path` with these bytes and a stamp as its time, and make its content durable."""
    # Of several parts each is written before the next one is asked for; an error of asking is raised, too. The name is
    # durable after `sync_directory` of its parent. Raises FileExistsError: there is such a file. Raises OSError: it
    # could not be written or made durable; do not use the file that is there.
    with opened(path, _CREATE, BLOB_MODE) as fd:
        for part in (data,) if isinstance(data, memoryview) else data:
            write_all(fd, part[_write_direct(fd, part) :])
        # Mode and time come before the fsync (law D3): a power cut must not leave durable bytes with a time that no
        # save relies on.
        # One fsync, on the descriptor that wrote: the kernel reports a failed write-back once, and a second fsync would
        # say success (laws D1, D2).
        os.fchmod(fd, BLOB_MODE)  # whatever the umask is
        blob_time.stamp(fd)
        os.fsync(fd)


def _write_direct(fd: int, data: memoryview) -> int:
    """Write whole blocks of a large aligned buffer past the page cache. Return the number of bytes written."""
    # So the disk works from the first write on and not from the fsync on, nothing is copied to pages of the cache, and
    # no other file loses its own (docs/adr/0006-direct-io.md). The rest, as after a short write, goes through the
    # cache: on the same descriptor, whose fsync covers both.
    if len(data) < DIRECT_FROM_BYTES or not is_aligned(data):
        return 0
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    done, whole = 0, len(data) - len(data) % GRAIN_BYTES
    try:
        # Set after the file was made: open with O_DIRECT makes the file even where it then refuses (docs/adr/0006).
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
        while (
            done < whole
            # After a short write that ends within a block a further direct write would be refused: the cache takes
            # the rest.
            and done % GRAIN_BYTES == 0
            and (written := os.write(fd, data[done : min(done + _WRITE_MOST_BYTES, whole)]))
        ):
            done += written
    except OSError as error:
        if error.errno not in CANNOT_DIRECT:
            raise
    # The rest is no whole block, and needs the cache.
    fcntl.fcntl(fd, fcntl.F_SETFL, flags)
    return done


def create_file(path: AnyPath, data: bytes, *, mode: int, dir_fd: int | None = None) -> None:
    """Create the file `path` and make its content durable. The name is durable after `sync_directory`."""
    # Its permissions are `mode`, whatever the umask is.
    with opened(path, _CREATE, mode, dir_fd=dir_fd) as fd:
        write_all(fd, memoryview(data))
        os.fchmod(fd, mode)
        os.fsync(fd)


def allocate(path: AnyPath, nbytes: int) -> None:
    """Allocate `nbytes` for the file `path`, which is created if it is missing. Nothing is made durable."""
    # Raises OSError: there is no room; a file that was there has its size, one that was not is not.
    with at(path) as (parent, name):
        try:
            before = os.stat(name, dir_fd=parent, follow_symlinks=False).st_size
        except FileNotFoundError:
            before = None
        with opened(name, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, dir_fd=parent) as fd:
            try:
                # Not a sparse file: a truncate would promise space that a full disk does not have.
                os.posix_fallocate(fd, 0, nbytes)
            except OSError:
                if before is None:
                    os.unlink(name, dir_fd=parent)
                else:
                    # A fallocate that fails may leave the file longer, with the blocks that it got.
                    os.ftruncate(fd, before)
                raise


def has_room(directory: AnyPath, nbytes: int) -> bool:
    """Whether a file of `nbytes` bytes, and a few more files, can be created in a directory now."""
    # It is tried, with files that have no name: no number of the filesystem says what a quota leaves. True also where
    # trying says nothing of space.
    with ExitStack() as made:
        try:
            # Inodes can run out before blocks do, so several files are made, each with at least one block.
            for number in range(_TRIED_FILES):
                fd = made.enter_context(_opened_unnamed(directory))
                os.posix_fallocate(fd, 0, nbytes if number == 0 else 1)
        except OSError as error:
            return error.errno not in NO_SPACE
    return True


@contextmanager
def _opened_unnamed(directory: AnyPath) -> Iterator[int]:
    """Open a new file without a name. On a filesystem without such files (NFS), its name is removed at once."""
    fd = _open_unnamed(directory)
    try:
        yield fd
    finally:
        close_quietly(fd)


def _open_unnamed(directory: AnyPath) -> int:
    try:
        return open_at(directory, os.O_TMPFILE | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        if error.errno not in _NO_UNNAMED:
            raise
    fd = -1
    try:
        with opened_directory(directory) as parent:
            # With process and thread in the name two probes never meet; the leading dot hides it from readers of the
            # folder.
            name = f".room-{os.getpid()}-{threading.get_ident()}"
            fd = open_at(name, _CREATE, 0o600, dir_fd=parent)
            os.unlink(name, dir_fd=parent)
    except BaseException:  # to take the name away can fail, and so can closing the directory
        if fd >= 0:
            close_quietly(fd)
        raise
    return fd


@contextmanager
def opened_directory(path: AnyPath) -> Iterator[int]:
    """Open a directory like `dirfd_stat.open_directory`, for a `with` block. An error of `close` is also raised."""
    fd = open_directory(path)
    try:
        yield fd
    except BaseException:
        close_quietly(fd)
        raise
    os.close(fd)


def mode_in(dir_fd: int) -> int:
    """Return the permissions for a file that may change: its owner's, and those that its directory grants to others."""
    return 0o600 | stat.S_IMODE(os.fstat(dir_fd).st_mode) & 0o666


def sync_directory(path: AnyPath) -> None:
    """Make the names in the directory `path` durable."""
    with opened_directory(path) as fd:
        _sync_names(fd)


def sync_name(directory: Path) -> None:
    """Make the name of a directory durable: sync its parent, or the filesystem if this user may not read the parent."""
    # The root of a filesystem has no name in it, so nothing is done for one.
    parent = directory.parent
    # A mount point: the parent is on another filesystem, whose fsync says nothing of this one.
    if os.stat(parent).st_dev != os.stat(directory).st_dev:
        return
    try:
        sync_directory(parent)
    except PermissionError:
        sync_filesystem(directory)


def sync_filesystem(directory: Path) -> None:
    """Make everything on the filesystem of a directory durable, including writes of other processes."""
    import ctypes  # rare, and slow to import

    with opened(directory, os.O_RDONLY | os.O_DIRECTORY) as fd:
        if ctypes.CDLL(None, use_errno=True).syncfs(fd) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(directory))


def sync_open_directory(fd: int) -> None:
    """Make names durable like `sync_directory`, for a directory that was opened before the names were changed."""
    _sync_names(fd)


def _sync_names(fd: int) -> None:
    """Sync an open directory."""
    # XFS that shut itself down since it was opened says success although its log is gone (seen in tests/crash); opening
    # the directory again then fails. That other resources have run out does not matter any more.
    os.fsync(fd)
    try:
        # A shut-down XFS refuses to open what it let fsync pass: without this look a lost checkpoint would be
        # acknowledged.
        os.close(open_descriptor(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd))
    except OSError as error:
        if error.errno not in NO_MEANS:
            raise


def read_file(path: AnyPath, *, most_bytes: int, dir_fd: int | None = None, is_blob: bool = False) -> bytes:
    """Return the content of a regular file. A symlink is not followed, and a pipe does not block."""
    # A document with holes is not read: what it claims to be takes no room on the disk. Blobs may have holes, since
    # some programs copy zeros as such. Raises FileNotFoundError: there is no such file. Raises DamagedBlob: it is not a
    # regular file, or larger than `most_bytes`, or a document with holes.
    with opened_regular(path, dir_fd=dir_fd) as fd:
        size = os.fstat(fd).st_size
        if size > most_bytes:
            raise DamagedBlob(f"{path} has {size} bytes; ckstore reads at most {most_bytes}")
        if size > _SPARSE_FROM_BYTES and not is_blob:
            # A sparse file of 512 MiB takes no disk and all of that memory: anyone who may write the store could make
            # one.
            if os.lseek(fd, 0, os.SEEK_HOLE) < size:
                raise DamagedBlob(f"{path} is damaged: wanted {size} bytes of text, found holes in the file")
            os.lseek(fd, 0, os.SEEK_SET)
        data = bytearray()
        while len(data) <= most_bytes:
            # One byte more than the file had: a file that grows meanwhile is noticed without a second look at its
            # size.
            part = os.read(fd, size + 1 - len(data) if size >= len(data) else _WRITE_MOST_BYTES)
            if not part:
                return bytes(data)
            data += part
    raise DamagedBlob(f"{path} grew beyond {most_bytes} bytes while it was read")


def is_cached(fd: int, offset: int) -> bool:
    """Whether a byte of an open file is in the page cache. False if the filesystem cannot report it."""
    # If it is not, the kernel may begin to read it; that is not waited for.
    try:
        # One byte is enough: RWF_NOWAIT gives it only if its page is there, and never sleeps on the disk.
        return os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
    except OSError:  # EAGAIN: the disk has to be asked; EOPNOTSUPP; EIO: the read that follows tells
        return False


def on_local_disk(fd: int) -> bool:
    """Whether the filesystem of an open file is on a block device. Network and memory filesystems are not."""
    # Filesystems without a disk below (NFS, tmpfs, FUSE) have anonymous devices, whose major number is 0.
    return os.major(os.fstat(fd).st_dev) != 0


def read_ahead(fd: int, offset: int, nbytes: int) -> None:
    """Ask the kernel to read a range of an open file into the page cache, all at once, in pages of 4 KiB."""
    # Unasked it reads some hundred KiB ahead, in larger pages.
    with suppress(OSError):  # only time is lost
        os.posix_fadvise(fd, offset, nbytes, os.POSIX_FADV_WILLNEED)


def read_into(fd: int, offset: int, out: memoryview, subject: str) -> None:
    """Fill `out` with the bytes of the file from `offset`."""
    # Raises DamagedBlob: the file ends before that, or the disk cannot read it; the message calls it `subject`.
    done = 0
    while done < len(out):
        try:
            # One call gives at most 2 GiB, and less when a signal comes: read on until the range is full.
            count = os.preadv(fd, [out[done:]], offset + done)
        except OSError as error:
            # Only EIO says that the medium lost the bytes; any other error must not mark a whole blob as damaged.
            if error.errno != errno.EIO:
                raise
            raise DamagedBlob(f"{subject} cannot be read at byte {offset + done}: {error.strerror}") from error
        if count == 0:
            raise DamagedBlob(f"{subject} ends after {offset + done} bytes, wanted {offset + len(out)}")
        done += count
