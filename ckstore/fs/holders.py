"""Find out whether any process has a file open or mapped, with a lease, and which processes have it, from ``/proc``.

`fcntl(F_SETLEASE, F_WRLCK)` is refused while any other open file description or mapping of the inode exists, through
any name, in any process, user or PID namespace. A lease does not detect O_PATH descriptors and, on overlayfs, files
that are only mapped.

``/proc`` shows the uses that a lease does not detect, and uses of deleted files. It does not show processes of other
users (except to root), processes of outer PID namespaces, and descriptors in transit in a socket. For these, only the
lease gives an answer (law K1 of docs/protocol.md).

A request for the status of a file on a dead network mount would hang. So descriptors and mappings are first compared by
inode number, which ``fdinfo`` and ``maps`` contain.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum

from ckstore.fs.dirfd_stat import AnyPath, open_at
from ckstore.model.reports.held_blobs import DeletedFile, Holder

Inode = tuple[int, int]
"""Device and inode number, as in `os.stat`."""

_DELETED = " (deleted)"
# Descriptors with these targets do not belong to files of a filesystem.
_NO_FILES = ("socket:", "pipe:", "anon_inode:")
_IO_URING = "anon_inode:[io_uring]"
# The maximum length of a command line in a message, in characters. The command line of a launcher can have megabytes.
_COMMAND_MOST = 200
_INFO_INODE = re.compile(rb"^ino:\s*(\d+)$", re.MULTILINE)
_INFO_FILE = re.compile(r"^\s*(\d+): (/.*)$")


@dataclass(slots=True)
class Scan:
    """The result of one scan of ``/proc``."""

    # The processes that have one of the inodes open or mapped. Inodes that no process uses are missing.
    holders: dict[Inode, list[Holder]] = field(default_factory=dict)
    # The number of processes that could not be inspected completely. None if it is unknown, because ``/proc`` is
    # missing, or does not list the processes of other users (its mount option ``hidepid``).
    unseen_count: int | None = 0
    blind: bool = False  # whether no process could be inspected


@dataclass(frozen=True, slots=True)
class _Hold:
    """One reference of a process to a file. It has no `status` if the kernel does not allow access to the file."""

    how: str
    target: str
    st_dev: int
    inode: int
    status: os.stat_result | None


Wanted = Callable[[int | None, str], bool]
"""A function that decides whether to inspect a file, given its inode number (None if unknown) and the path that the
kernel shows for it."""


def find_holders(inodes: Collection[Inode]) -> Scan:
    """Scan all processes once, including this one, and return those that have one of `inodes` open or mapped."""
    scan = Scan()
    numbers = {inode for _, inode in inodes}
    wanted = set(inodes)
    if not wanted:
        return scan

    def look_closer(inode: int | None, _target: str) -> bool:
        return inode is None or inode in numbers

    for pid, hold in _all_holds(look_closer, scan):
        if (hold.st_dev, hold.inode) in wanted:
            listed = scan.holders.setdefault((hold.st_dev, hold.inode), [])
            listed.append(Holder(pid=pid, command=command_of(pid), how=hold.how, target=hold.target))
    return scan


def deleted_but_open(st_dev: int, folder: str = "/") -> list[DeletedFile]:
    """Return files without a name that still take space because a process has them open or mapped, largest first.

    Args:
        st_dev: The filesystem of the files, as the ``st_dev`` of any file on it.
        folder: The directory that contained the files, at any depth. It is compared with the paths that the kernel
            shows.
    """
    start = folder.rstrip("/") + "/"
    scan = Scan()
    holders: dict[int, list[Holder]] = {}
    nbytes: dict[int, int] = {}

    def look_closer(_inode: int | None, target: str) -> bool:
        return target.endswith(_DELETED) and target.startswith(start)

    for pid, hold in _all_holds(look_closer, scan):
        if hold.st_dev != st_dev or (hold.status is not None and hold.status.st_nlink > 0):
            continue
        holder = Holder(pid=pid, command=command_of(pid), how=hold.how, target=hold.target)
        listed = holders.setdefault(hold.inode, [])
        if holder not in listed:  # a file that is mapped in several parts appears once for each part
            listed.append(holder)
        taken_bytes = hold.status.st_blocks * 512 if hold.status is not None else 0
        nbytes[hold.inode] = max(nbytes.get(hold.inode, 0), taken_bytes)
    found = [DeletedFile(inode, nbytes[inode], tuple(listed)) for inode, listed in holders.items()]
    return sorted(found, key=lambda file: (-file.nbytes, file.inode))


def users_below(folder: str) -> list[Holder]:
    """Return the other processes that use a file below a directory, one entry for each process and file."""
    found: dict[tuple[int, str], Holder] = {}
    start = folder.rstrip("/") + "/"

    def look_closer(_inode: int | None, target: str) -> bool:
        return target.startswith(start)

    for pid, hold in _all_holds(look_closer, Scan()):
        if pid != os.getpid() and hold.target.startswith(start) and (pid, hold.target) not in found:
            found[pid, hold.target] = Holder(pid=pid, command=command_of(pid), how=hold.how, target=hold.target)
    return list(found.values())


def command_of(pid: int) -> str:
    """Return the shortened command line of a process, its name in brackets if it has none, or ``?`` if it has ended."""
    text = _read_text(f"/proc/{pid}/cmdline").replace("\0", " ").strip()
    if not text:
        name = _read_text(f"/proc/{pid}/comm").strip()
        return f"[{name}]" if name else "?"
    return text if len(text) <= _COMMAND_MOST else f"{text[: _COMMAND_MOST - 1]}…"


def _all_holds(look_closer: Wanted, scan: Scan) -> Iterator[tuple[int, _Hold]]:
    pids = _pids()
    # The /proc of another PID namespace does not list this process. In this case, an empty result proves nothing.
    scan.blind = os.getpid() not in pids
    unseen_count = 0
    for pid in pids:
        unseen = False
        # A file that was mapped and closed has no descriptor, and a file that is only open has no mapping.
        for source in (_descriptors, _mappings):
            try:
                for hold in source(pid, look_closer):
                    yield pid, hold
            except (FileNotFoundError, ProcessLookupError):  # the process has ended
                continue
            except OSError:
                unseen = True
        unseen_count += unseen
    # The process with PID 1 always exists. If it is not listed, processes of other users are hidden.
    scan.unseen_count = unseen_count if not scan.blind and 1 in pids else None


def _pids() -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    except OSError:  # no /proc here
        return []


def _descriptors(pid: int, look_closer: Wanted) -> Iterator[_Hold]:
    for number in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{number}"
        try:
            target = os.readlink(path)
            # A file that is registered with an io_uring stays open, although it has no descriptor in /proc.
            if target == _IO_URING:
                yield from _registered(pid, number, look_closer)
            if target.startswith(_NO_FILES):
                continue
            # Reading the inode number does not access the filesystem of the file. Linux shows the number since 5.14.
            match = _INFO_INODE.search(_read(f"/proc/{pid}/fdinfo/{number}"))
            if not look_closer(int(match[1]) if match else None, target):
                continue
            # This call would hang for a file on a dead network mount, so it is made only for files that may match.
            status = os.stat(path)
        except (FileNotFoundError, ProcessLookupError):  # the descriptor was closed
            continue
        yield _Hold(f"descriptor {number}", target, status.st_dev, status.st_ino, status)


def _registered(pid: int, number: str, look_closer: Wanted) -> Iterator[_Hold]:
    """Yield the files that are registered with an io_uring, for which the kernel only shows paths."""
    for line in _read_text(f"/proc/{pid}/fdinfo/{number}").splitlines():
        match = _INFO_FILE.match(line)
        if match is None:
            continue
        target = match[2]
        try:
            status = os.stat(f"/proc/{pid}/root{target}", follow_symlinks=False)
        except OSError:  # the file no longer has this name, so only a lease can detect it
            continue
        if look_closer(status.st_ino, target):
            yield _Hold(f"io_uring file {match[1]}", target, status.st_dev, status.st_ino, status)


def _mappings(pid: int, look_closer: Wanted) -> Iterator[_Hold]:
    yielded: set[tuple[int, int]] = set()
    for line in _read(f"/proc/{pid}/maps").splitlines():
        # The path is the sixth field, and may contain spaces.
        fields = line.split(None, 5)
        # Inode 0 is memory without a file.
        if len(fields) < 6 or fields[4] == b"0":
            continue
        target = os.fsdecode(fields[5])
        inode = int(fields[4])
        if not look_closer(inode, target):
            continue
        status = _status_of_mapping(pid, fields[0])
        if status is None:
            # On btrfs and overlayfs, the device in `maps` differs from the device in the status. So the former is used
            # only if the status is not available.
            major, _, minor = fields[3].partition(b":")
            st_dev = os.makedev(int(major, 16), int(minor, 16))
        else:
            st_dev, inode = status.st_dev, status.st_ino
        if (st_dev, inode) not in yielded:
            yielded.add((st_dev, inode))
            yield _Hold("mapping", target, st_dev, inode, status)


def _status_of_mapping(pid: int, addresses: bytes) -> os.stat_result | None:
    start, _, end = addresses.partition(b"-")
    # The addresses in `maps` have leading zeros, and the names in `map_files` have none.
    try:
        return os.stat(f"/proc/{pid}/map_files/{int(start, 16):x}-{int(end, 16):x}")
    except OSError:  # this user is not root, or the file was unmapped
        return None


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.readall()


def _read_text(path: str) -> str:
    try:
        return os.fsdecode(_read(path))
    except OSError:
        return ""


class Holding(Enum):
    """Whether a process has an inode open or mapped."""

    FREE = "free"
    HELD = "held"
    UNKNOWN = "unknown"  # this user is not the owner, or leases are not supported; callers treat it like HELD


def holding_of(path: AnyPath) -> Holding:
    """Return whether a process has the regular file `path` open or mapped now."""
    # The lease exists for some microseconds. In this time, a process that opens the file without O_NONBLOCK waits.
    try:
        # A write lease does not need a writable descriptor, and blobs are read-only.
        fd = open_at(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except BlockingIOError:  # another process has a lease on the file
        return Holding.HELD
    except PermissionError:
        return Holding.UNKNOWN
    try:
        # The default signal of a broken lease, SIGIO, would kill this process; SIGURG is ignored by default.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        try:
            # A read lease would also be granted while other readers have the file open.
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError as error:
            return Holding.HELD if error.errno in (errno.EAGAIN, errno.EBUSY) else Holding.UNKNOWN
        # The lease is removed immediately, because a process that opens the blob waits for the end of the lease.
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return Holding.FREE
    finally:
        os.close(fd)
