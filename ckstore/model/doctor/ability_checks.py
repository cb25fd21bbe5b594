"""Findings about the features of the kernel, the filesystem and the libraries, and about free space."""

from __future__ import annotations

from dataclasses import dataclass

from ckstore.model.doctor.finding import DoctorFinding, ok
from ckstore.model.host import DirtyFacts
from ckstore.model.sizes import size_text

_LEAST_READ_AHEAD_KIB = 128
_LEAST_FILES = 1024
_SQLITE_LEAST = (3, 37, 0)
_SQLITE_MENDED = (3, 51, 3)
_SQLITE_BACKPORTS = {(3, 50): 7, (3, 44): 6}


@dataclass(frozen=True, slots=True)
class AbilityFacts:
    """The results of tests and queries on this machine."""

    # Empty if hardlinks and renames between the directories of the store work, otherwise the failure. None if nothing
    # was tried, because this user may not write to the store.
    links: str | None = ""
    projects: str = ""  # text on directories with different project ids, between which renames fail; empty if none
    # Whether leases work: ``yes``, ``no``, or ``held`` if a lease was refused because a process has the file open. This
    # also shows that leases work. ``shared`` if other hosts may use the store, because a lease does not detect their
    # open files. ``foreign`` if nothing was tried, because another user owns the store.
    lease: str = "yes"
    reflink: bool | None = None  # whether files can share blocks; None if not tried
    link_limit: int = 0  # the maximum number of names of a file; 0 if unknown
    link_most: int = 0  # the greatest number of names of a blob in the store
    # Alignment of direct reads and writes. 0 if direct I/O is not possible, None if the kernel does not report it.
    direct_io_bytes: int | None = None
    read_ahead_kib: int | None = None  # read-ahead of the device; None if no device is visible
    open_files: int = _LEAST_FILES  # the maximum number of files that this process may have open
    sqlite: tuple[int, int, int] = _SQLITE_MENDED  # version of the SQLite library


def check_links(facts: AbilityFacts) -> DoctorFinding:
    """Check whether hardlinks and renames between the directories of the store work."""
    if facts.links is None:
        do = "run doctor as a user who may write to the store"
        return DoctorFinding("note", "links", "not tried, since this user may not write to the store", do)
    if facts.links:
        do = "keep the whole store on one filesystem with hardlinks: ext4, XFS or btrfs"
        return DoctorFinding("error", "links", facts.links, do)
    if facts.projects:
        do = "give the whole store one project id; xfs_io -c lsproj DIRECTORY shows the id of a directory"
        return DoctorFinding("error", "links", facts.projects, do)
    return ok("links", "hardlinks and renames between directories work")


def check_headroom(facts: AbilityFacts) -> DoctorFinding:
    """Check whether the blob with the most names is close to the limit of hardlinks."""
    if not facts.link_limit:
        return ok("link limit", f"not known; the blob with the most names has {facts.link_most}")
    found = f"the blob with the most names has {facts.link_most} of {facts.link_limit}"
    if facts.link_most > 0.9 * facts.link_limit:
        do = "nothing; at the limit a save stores that blob once more, which keeping fewer checkpoints avoids"
        return DoctorFinding("note", "link limit", found, do)
    return ok("link limit", found)


def check_lease(facts: AbilityFacts) -> DoctorFinding:
    """Check whether the kernel can report that a process has a file open."""
    if facts.lease == "shared":
        told = "the kernel does not know whether another host has a blob open, so blobs are freed after a grace period"
        do = "nothing; when no other host uses the store, ckstore gc --exclusive frees at once"
        return DoctorFinding("note", "leases", told, do)
    if facts.lease == "foreign":
        told = "each user's gc asks the kernel about that user's blobs, and ignores the blobs of other users"
        return ok("leases", told)
    if facts.lease == "no":
        told = (
            "the kernel does not report which process has a blob open, so gc only frees blobs that are certainly closed"
        )
        do = "run gc as the owner of the files, or as root; if the filesystem has no leases, see docs/how-to/shared.md"
        return DoctorFinding("warning", "leases", told, do)
    return ok("leases", "the kernel tells gc whether a process has a blob open")


def check_reflink(facts: AbilityFacts) -> DoctorFinding:
    """Check whether checkouts can share blocks with the store."""
    if facts.reflink is None:
        do = "nothing, if this user may write to the store; otherwise run doctor as a user who may"
        told = "sharing of blocks was not tried, since no unnamed file could be created"
        return DoctorFinding("note", "reflink", told, do)
    if facts.reflink:
        return ok("reflink", "checkout shares blocks with the store")
    do = "nothing, if copies may take space; XFS and btrfs can share blocks"
    return DoctorFinding("note", "reflink", "files cannot share blocks on this filesystem, so checkout copies", do)


def check_direct_io(facts: AbilityFacts) -> DoctorFinding:
    """Check whether direct I/O is possible, and its alignment."""
    if facts.direct_io_bytes is None:
        return ok("direct I/O", "the kernel does not report the alignment (Linux 6.1 and later do, if the device can)")
    if facts.direct_io_bytes == 0:
        do = "nothing: all I/O uses the page cache"
        return DoctorFinding("note", "direct I/O", "not possible on this filesystem", do)
    return ok("direct I/O", f"aligned to {facts.direct_io_bytes} bytes")


def check_read_ahead(facts: AbilityFacts) -> DoctorFinding:
    """Check how many bytes the kernel reads ahead."""
    if facts.read_ahead_kib is None:
        return ok("read-ahead", "no block device")
    found = f"{size_text(facts.read_ahead_kib * 1024)} on this device"
    if facts.read_ahead_kib < _LEAST_READ_AHEAD_KIB:
        do = f"as root, run blockdev --setra {8 * _LEAST_READ_AHEAD_KIB} DEVICE; loads read large files sequentially"
        return DoctorFinding("note", "read-ahead", found, do)
    return ok("read-ahead", found)


def check_open_files(facts: AbilityFacts) -> DoctorFinding:
    """Check how many files a process may have open."""
    if facts.open_files < _LEAST_FILES:
        do = f"raise it before training: ulimit -n {_LEAST_FILES}"
        return DoctorFinding("warning", "open files", f"a process may have {facts.open_files} open", do)
    return ok("open files", f"a process may have {facts.open_files} open")


def check_sqlite(facts: AbilityFacts) -> DoctorFinding:
    """Check whether SQLite is recent enough for the catalog, and whether it has the WAL-reset bug."""
    version = ".".join(map(str, facts.sqlite))
    if facts.sqlite < _SQLITE_LEAST:
        wanted = ".".join(map(str, _SQLITE_LEAST))
        do = f"use a Python whose SQLite is {wanted} or later; saves still work, without a catalog"
        return DoctorFinding("error", "SQLite", f"{version} is too old for the catalog", do)
    if has_wal_reset_bug(facts.sqlite):
        told = (
            f"{version} has the WAL-reset bug (fixed in 3.51.3, 3.50.7 and 3.44.6); it has no effect, since ckstore "
            "never writes to the catalog from two connections at once"
        )
        do = "let no other program write to catalog.db; it is an index, and ckstore reindex rebuilds it"
        return DoctorFinding("note", "SQLite", told, do)
    return ok("SQLite", version)


def has_wal_reset_bug(version: tuple[int, int, int]) -> bool:
    """Whether two connections can corrupt a database in WAL mode if they write and checkpoint at the same time."""
    if not (3, 7, 0) <= version < _SQLITE_MENDED:
        return False
    mended = _SQLITE_BACKPORTS.get(version[:2])
    return mended is None or version[2] < mended


_LOW_PART = 0.05
_LOW_INODES = 1000
_MAKE_ROOM = "free space with ckstore prune --keep-last N, then ckstore gc --now; ckstore du shows the usage"


@dataclass(frozen=True, slots=True)
class SpaceFacts:
    """Free space on a filesystem, as bytes and inodes that this user may use."""

    total_bytes: int
    free_bytes: int
    total_inodes: int  # 0 if the filesystem creates inodes as needed
    free_inodes: int  # meaningless if the total is 0
    newest_bytes: int  # size of the newest checkpoint; 0 if there is none
    reserve_bytes: int  # size of the space that the store reserves for gc on a full disk
    reserve_wanted_bytes: int  # the size that the reserve should have


def check_bytes(facts: SpaceFacts) -> DoctorFinding:
    """Check the number of free bytes."""
    found = f"{size_text(facts.free_bytes)} of {size_text(facts.total_bytes)} are free"
    if facts.free_bytes < facts.reserve_wanted_bytes:
        return DoctorFinding("error", "free space", f"{found}: nothing can be saved", _MAKE_ROOM)
    if facts.free_bytes < facts.newest_bytes:
        found += f", less than the newest checkpoint takes ({size_text(facts.newest_bytes)})"
        return DoctorFinding("warning", "free space", found, _MAKE_ROOM)
    if facts.free_bytes < _LOW_PART * facts.total_bytes:
        return DoctorFinding("warning", "free space", f"{found}, less than {_LOW_PART:.0%}", _MAKE_ROOM)
    return ok("free space", found)


def check_inodes(facts: SpaceFacts) -> DoctorFinding:
    """Check the number of free inodes."""
    if facts.total_inodes == 0:
        return ok("free inodes", "the filesystem creates them as needed")
    found = f"{facts.free_inodes} of {facts.total_inodes} are free"
    if facts.free_inodes < 16:
        return DoctorFinding("error", "free inodes", f"{found}: nothing can be saved", _MAKE_ROOM)
    if facts.free_inodes < _LOW_INODES:
        return DoctorFinding("warning", "free inodes", found, f"{_MAKE_ROOM}; or delete small files outside the store")
    return ok("free inodes", found)


def check_reserve(facts: SpaceFacts) -> DoctorFinding:
    """Check the size of the reserve for gc."""
    if facts.reserve_bytes >= facts.reserve_wanted_bytes:
        return ok("reserve", f"{size_text(facts.reserve_bytes)} are reserved for gc on a full disk")
    part = f"{size_text(facts.reserve_bytes)} of {size_text(facts.reserve_wanted_bytes)}"
    do = "free space, then open the store for writing (ckstore gc does): it then creates the reserve again"
    return DoctorFinding("note", "reserve", f"{part} are reserved for gc on a full disk", do)


def check_dirty(facts: DirtyFacts) -> DoctorFinding:
    """Check the amount of data that the kernel has not written yet."""
    waiting_bytes = facts.dirty_bytes + facts.writeback_bytes
    found = f"{size_text(facts.dirty_bytes)} dirty and {size_text(facts.writeback_bytes)} in write-back"
    if not facts.limit_bytes:
        return ok("dirty pages", f"{found}; the limit is not known")
    found += f", writers wait from {size_text(facts.limit_bytes)} on"
    if waiting_bytes > 0.8 * facts.limit_bytes:
        do = (
            "wait until it is written, or find the writer with iotop; a smaller vm.dirty_bytes makes such waits shorter"
        )
        return DoctorFinding("warning", "dirty pages", found, do)
    return ok("dirty pages", found)
