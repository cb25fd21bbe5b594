"""Create files, make them durable, and read them completely. This module writes all blobs and documents of a store.

The module relies on these facts, which were measured on ext4 and XFS. `fsync` reports a write error only once, so it is
called once, on the descriptor through which the data was written. A new name is durable after `fsync` of its directory.
A rename is durable after `fsync` of both parents.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from ckstore.errors import DamagedBlob
from ckstore.fs import blob_time
from ckstore.fs.buffers import GRAIN_BYTES, is_aligned
from ckstore.fs.dirfd_stat import AnyPath, StorePath, at, close_quietly, open_at, open_descriptor, open_directory
from ckstore.interpreter import end_overdue_pauses

BLOB_MODE = 0o444

_APPEND = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # does not wait for a reader of a pipe
# If another user created a file or symlink with the name, O_EXCL and O_NOFOLLOW make the open fail.
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# The maximum size of one write. Linux writes at most 2 GiB at once. Signals are handled between two writes.
_WRITE_MOST_BYTES = 16 * 2**20
# The minimum size of a document that is checked for holes. The check takes two more system calls, and a smaller file
# takes little memory in any case.
_SPARSE_FROM_BYTES = 2**20
DIRECT_FROM_BYTES = 2**20
"""Smaller blobs are written through the page cache, because direct writes gain little."""
CANNOT_DIRECT = (errno.EINVAL, errno.EOPNOTSUPP)
"""Errors which show that a file does not support direct reads and writes, or requires a larger alignment."""
NO_SPACE = frozenset((errno.ENOSPC, errno.EDQUOT))
"""Errors of a full disk or an exhausted quota."""
NO_MEANS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR))
"""Errors of a process or host that lacks resources. They say nothing about a file."""
_NO_SERVER = frozenset((errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH))
NOT_OF_THE_FILE = NO_MEANS | _NO_SERVER
"""Errors that say nothing about the content of a file. They include errors of a file server that is down or that no
longer knows the handle of the file."""
# Errors of kernels and filesystems that do not support O_TMPFILE. Linux before 3.11 returns EISDIR.
_NO_UNNAMED = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)
_TRIED_FILES = 3
"""The number of files that `has_room` creates: a transaction of the catalog creates a log and its index, and a document
is one more file."""
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
    # If a process has a lease on the file, this call waits until the lease ends. A lease of gc lasts some microseconds.
    # A lease of another program lasts at most the kernel's ``fs.lease-break-time``.
    flags |= os.O_RDONLY | os.O_NOFOLLOW
    try:
        # Without O_NONBLOCK, a pipe that another user created at the path would block the process forever.
        return open_at(path, flags | os.O_NONBLOCK, dir_fd=dir_fd)
    except BlockingIOError:  # a process has a lease on the file, so it is a regular file
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
    """Return a descriptor like `open_regular`, and the status of the file."""
    try:
        # The status is read from the open descriptor, because the name may refer to another file in a later call.
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
        # The file keeps its times, and its ctime becomes the current time of the filesystem's clock.
        os.utime(name, ns=(found.st_atime_ns, found.st_mtime_ns), dir_fd=parent, follow_symlinks=False)


def append_line(path: StorePath, line: bytes, *, mode: int, most_bytes: int, older: StorePath) -> None:
    """Append a line to a log with one write, so that lines of several processes do not mix.

    The line is not made durable. If the log had more than `most_bytes` before the call, it is renamed to `older`, and
    replaces an existing file with that name.

    Raises:
        OSError: The line could not be written completely, for example on a full disk.
        DamagedBlob: The file at the path is not a regular file.
    """
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
            os.fchmod(fd, mode)  # regardless of the umask, because other users of a group append to the file
        # A full disk, a kill or a power cut may have left an incomplete line. A line break is added first, so that the
        # new line is separate. If another process is writing a line at this moment, an empty line may follow its line.
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
        # Without the lock, the second of two processes could rename the new log over the old one.
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    with at(path) as (parent, name):
        there, ours = os.stat(name, dir_fd=parent, follow_symlinks=False), os.fstat(fd)
        if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino):
            os.rename(name, older.name, src_dir_fd=parent, dst_dir_fd=parent)


def write_all(fd: int, data: memoryview) -> None:
    """Write all of `data`, a contiguous buffer of bytes, with as many writes as needed.

    Raises:
        OSError: A write failed. An unknown part of the data was written.
    """
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
    """Create the read-only file `path` with these bytes and a stamp as its time, and make its content durable.

    If `data` has several parts, each part is written before the next one is requested. The name is durable after
    `sync_directory` of the parent.

    Raises:
        FileExistsError: The file already exists.
        OSError: The file could not be written or made durable. If it exists, it must not be used.
    """
    with opened(path, _CREATE, BLOB_MODE) as fd:
        for part in (data,) if isinstance(data, memoryview) else data:
            write_all(fd, part[_write_direct(fd, part) :])
        # Mode and time are set before the fsync (law D3). Otherwise, the bytes could be durable after a power cut
        # without the stamp, which saves rely on.
        os.fchmod(fd, BLOB_MODE)  # regardless of the umask
        blob_time.stamp(fd)
        end_overdue_pauses()
        # The kernel reports a failed write-back once, so a second fsync would succeed (laws D1, D2).
        os.fsync(fd)


def _write_direct(fd: int, data: memoryview) -> int:
    """Write whole blocks of a large aligned buffer past the page cache. Return the number of bytes written."""
    # The disk starts writing at the first write instead of at the fsync. Nothing is copied to the page cache, and no
    # pages of other files are evicted from it (docs/adr/0006-direct-io.md). The caller writes the rest through the
    # cache with the same descriptor, so one fsync covers the whole file.
    if len(data) < DIRECT_FROM_BYTES or not is_aligned(data):
        return 0
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    done, whole = 0, len(data) - len(data) % GRAIN_BYTES
    try:
        # The flag is set on the open file, because open with O_DIRECT may create the file and then fail
        # (docs/adr/0006-direct-io.md).
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
        while (
            done < whole
            # After a short write that ends within a block, the kernel would refuse a further direct write.
            and done % GRAIN_BYTES == 0
            and (written := os.write(fd, data[done : min(done + _WRITE_MOST_BYTES, whole)]))
        ):
            done += written
    except OSError as error:
        if error.errno not in CANNOT_DIRECT:
            raise
    # Without the flag, the caller writes the rest through the cache.
    fcntl.fcntl(fd, fcntl.F_SETFL, flags)
    return done


def create_file(path: AnyPath, data: bytes, *, mode: int, dir_fd: int | None = None) -> None:
    """Create the file `path` with the permissions `mode` regardless of the umask, and make its content durable.

    The name is durable after `sync_directory`.
    """
    with opened(path, _CREATE, mode, dir_fd=dir_fd) as fd:
        write_all(fd, memoryview(data))
        os.fchmod(fd, mode)
        os.fsync(fd)


def allocate(path: AnyPath, nbytes: int) -> None:
    """Allocate `nbytes` for the file `path`, which is created if it is missing. The change is not made durable.

    Raises:
        OSError: The disk has too little space. An existing file keeps its size, and a new file is removed.
    """
    with at(path) as (parent, name):
        try:
            before = os.stat(name, dir_fd=parent, follow_symlinks=False).st_size
        except FileNotFoundError:
            before = None
        with opened(name, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, dir_fd=parent) as fd:
            try:
                # A truncate would only create a sparse file, without reserving space.
                os.posix_fallocate(fd, 0, nbytes)
            except OSError:
                if before is None:
                    os.unlink(name, dir_fd=parent)
                else:
                    # A failed fallocate may have extended the file.
                    os.ftruncate(fd, before)
                raise


def has_room(directory: AnyPath, nbytes: int) -> bool:
    """Whether a file of `nbytes` bytes, and a few more files, can be created in a directory now.

    The test creates files, because the filesystem does not report the space that a quota leaves. The files have no
    names, so nothing remains. The result is also True if the test fails for a reason other than space.
    """
    with ExitStack() as made:
        try:
            # Inodes can be exhausted before blocks, so several files are created, each with at least one block.
            for number in range(_TRIED_FILES):
                fd = made.enter_context(_opened_unnamed(directory))
                os.posix_fallocate(fd, 0, nbytes if number == 0 else 1)
        except OSError as error:
            return error.errno not in NO_SPACE
    return True


@contextmanager
def _opened_unnamed(directory: AnyPath) -> Iterator[int]:
    """Open a new file without a name. If the filesystem (NFS) requires a name, the name is removed immediately."""
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
            # The name contains the ids of process and thread, so that concurrent tests use different names. Readers of
            # the folder ignore names with a leading dot.
            name = f".room-{os.getpid()}-{threading.get_ident()}"
            fd = open_at(name, _CREATE, 0o600, dir_fd=parent)
            os.unlink(name, dir_fd=parent)
    except BaseException:  # unlinking the name or closing the directory can fail
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
    """Return the mode for a changeable file in a directory. Only the owner may always read and write the file.

    All others may read and write the file if they may read and write the directory.
    """
    return 0o600 | stat.S_IMODE(os.fstat(dir_fd).st_mode) & 0o666


def sync_directory(path: AnyPath) -> None:
    """Make the names in the directory `path` durable."""
    with opened_directory(path) as fd:
        _sync_names(fd)


def sync_name(directory: Path) -> None:
    """Make the name of a directory durable: sync its parent, or the filesystem if this user may not read the parent."""
    parent = directory.parent
    # A mount point has no name on its own filesystem, and an fsync of its parent would sync another filesystem.
    if os.stat(parent).st_dev != os.stat(directory).st_dev:
        return
    try:
        sync_directory(parent)
    except PermissionError:
        sync_filesystem(directory)


def sync_filesystem(directory: Path) -> None:
    """Make everything on the filesystem of a directory durable, including writes of other processes."""
    import ctypes  # it is slow to import and rarely needed

    with opened(directory, os.O_RDONLY | os.O_DIRECTORY) as fd:
        if ctypes.CDLL(None, use_errno=True).syncfs(fd) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(directory))


def sync_open_directory(fd: int) -> None:
    """Make names durable like `sync_directory`, for a directory that was opened before the names were changed."""
    _sync_names(fd)


def _sync_names(fd: int) -> None:
    """Sync an open directory."""
    end_overdue_pauses()
    os.fsync(fd)
    # If XFS shut itself down after the directory was opened, fsync succeeds although the log is lost (seen in
    # tests/crash). In this case, opening the directory again fails. Without this test, a save would report success
    # although its checkpoint is lost.
    try:
        os.close(open_descriptor(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd))
    except OSError as error:
        if error.errno not in NO_MEANS:
            raise


def read_file(path: AnyPath, *, most_bytes: int, dir_fd: int | None = None, is_blob: bool = False) -> bytes:
    """Return the content of a regular file. A symlink is not followed, and a pipe does not block.

    Raises:
        FileNotFoundError: The file does not exist.
        DamagedBlob: The file is not regular, is larger than `most_bytes`, or is a large document with holes. Blobs may
            have holes, because some programs copy zeros as holes.
    """
    with opened_regular(path, dir_fd=dir_fd) as fd:
        size = os.fstat(fd).st_size
        if size > most_bytes:
            raise DamagedBlob(f"{path} has {size} bytes; ckstore reads at most {most_bytes}")
        if size > _SPARSE_FROM_BYTES and not is_blob:
            # A sparse file of 512 MiB takes no space on the disk, but 512 MiB of memory when it is read. Any user who
            # may write to the store could create one.
            if os.lseek(fd, 0, os.SEEK_HOLE) < size:
                raise DamagedBlob(f"{path} is damaged: wanted {size} bytes of text, found holes in the file")
            os.lseek(fd, 0, os.SEEK_SET)
        data = bytearray()
        while len(data) <= most_bytes:
            # The read requests one byte more than the size, to detect a file that has grown.
            part = os.read(fd, size + 1 - len(data) if size >= len(data) else _WRITE_MOST_BYTES)
            if not part:
                return bytes(data)
            data += part
    raise DamagedBlob(f"{path} grew beyond {most_bytes} bytes while it was read")


def is_cached(fd: int, offset: int) -> bool:
    """Whether a byte of an open file is in the page cache. False if the filesystem cannot report it."""
    # With RWF_NOWAIT, the kernel returns the byte only if it is cached. Otherwise, the kernel may start to read the
    # byte in the background.
    try:
        return os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
    except OSError:  # EAGAIN if the byte is not cached; the next read of the caller reports other errors
        return False


def on_local_disk(fd: int) -> bool:
    """Whether an open file is on a block device. False for network and memory filesystems, and also for btrfs."""
    # Such filesystems (NFS, tmpfs, FUSE, btrfs, overlayfs) have anonymous devices, whose major number is 0.
    return os.major(os.fstat(fd).st_dev) != 0


def read_ahead(fd: int, offset: int, nbytes: int) -> None:
    """Ask the kernel to read a range of an open file into the page cache, all at once, in pages of 4 KiB."""
    # Without this call, the kernel reads a few hundred KiB ahead, in larger pages.
    with suppress(OSError):  # if the call fails, later reads are only slower
        os.posix_fadvise(fd, offset, nbytes, os.POSIX_FADV_WILLNEED)


def read_into_many(fd: int, offset: int, buffers: Sequence[memoryview], nbytes: int) -> bool:
    """Fill buffers of `nbytes` together with the bytes of a file from `offset`, by one call.

    Return False if the call reads fewer bytes, for example because a signal interrupts it, or because the disk cannot
    read all of them.
    """
    end_overdue_pauses()
    try:
        return os.preadv(fd, buffers, offset) == nbytes
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return False


def read_into(fd: int, offset: int, out: memoryview, subject: str) -> None:
    """Fill `out` with the bytes of the file from `offset`. `subject` names the file in messages.

    Raises:
        DamagedBlob: The file ends too early, or the disk cannot read the bytes.
    """
    end_overdue_pauses()
    done = 0
    while done < len(out):
        try:
            # One call returns at most 2 GiB, and less if a signal interrupts it.
            count = os.preadv(fd, [out[done:]], offset + done)
        except OSError as error:
            # Only EIO shows that the disk lost the bytes. Other errors must not mark a blob as damaged.
            if error.errno != errno.EIO:
                raise
            raise DamagedBlob(f"{subject} cannot be read at byte {offset + done}: {error.strerror}") from error
        if count == 0:
            raise DamagedBlob(f"{subject} ends after {offset + done} bytes, wanted {offset + len(out)}")
        done += count
