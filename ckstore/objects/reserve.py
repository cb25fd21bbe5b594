"""Reserve space and inodes in ``reserve/``, so that checkpoints can be deleted when the disk is full.

A process that frees space on a full filesystem first releases the reserve, and creates it again at the end. A save
never releases the reserve, because the data of the save would take this space, and then nothing could be freed. A test
file shows whether the filesystem is full, because the free space that the filesystem reports ignores quotas (of a user,
a project or a subvolume).
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ckstore.fs import dirfd_stat, files, links
from ckstore.objects.layout import Layout
from ckstore.objects.trash import names_in

# The minimum size of the reserve (docs/format/v1.md, "reserve/").
LEAST_BYTES = 2**20
# The maximum size. The user cannot use this space, so the reserve must not grow with the catalog without limit.
MOST_BYTES = 64 * 2**20
# The number of files of the reserve. Inodes may also run out, and the removal of each file frees one.
INODES = 8
_NAMES = tuple(f"space-{number}" for number in range(INODES))
_PLENTY = 16
"""The reserve is created or enlarged only if this many times its size is free, so it never takes the last bytes."""
# The maximum wait until the released space is free. gc then continues anyway: another process may have taken the space.
_SETTLE_S = 2.0
# The filesystem is synced only after this time, because a sync makes all programs that use the filesystem wait.
_SYNC_AFTER_S = 0.05
_PAUSE_S = 0.005


def wanted_bytes(layout: Layout) -> int:
    """Return the wanted size of the reserve in bytes. A transaction may write as many bytes as the catalog has."""
    try:
        catalog_bytes = dirfd_stat.status(layout.root / "catalog.db").st_size
    except OSError:  # the catalog is on another filesystem, or will be rebuilt
        catalog_bytes = 0
    wanted = LEAST_BYTES
    while wanted < min(catalog_bytes, MOST_BYTES):  # double the size, so that it is not enlarged with every save
        wanted *= 2
    return wanted


def fill(layout: Layout) -> None:
    """Create or enlarge the reserve if there is enough free space. No `OSError` is raised."""
    wanted = wanted_bytes(layout)
    try:
        there = dirfd_stat.found_in(layout.reserve, _NAMES)
        if all(_has_size(there.get(name), wanted // INODES) for name in _NAMES):
            return
        room = dirfd_stat.free_space(layout.path)
        if room.free_bytes >= _PLENTY * wanted and room.has_inodes(_PLENTY * INODES):
            _make(layout, wanted)
    except OSError:  # there is no room, or this user may not write; without a reserve, gc may fail on a full disk
        return


def kept_bytes(layout: Layout) -> int:
    """Return the current size of the reserve in bytes."""
    return sum(found.st_size for _, found in dirfd_stat.statuses(layout.reserve))


@contextmanager
def given_up(layout: Layout, *, full: bool | None = None) -> Iterator[bool]:
    """Release the reserve during the block if the filesystem is full. Yield whether the filesystem is full.

    If the caller already knows this from an earlier call, it can pass the yielded value as `full` to avoid a test.
    """
    # Afterwards, the reserve is created again even if little space is free, because the next gc also needs it.
    full = is_full(layout) if full is None else full
    gives = full and bool(names_in(layout.reserve))
    try:
        if gives:
            # Release the reserve before opening the catalog: on a full disk, SQLite ends the process or reports damage.
            _give_up(layout)
        yield full
    finally:
        if gives:
            with suppress(OSError):  # if other processes have taken the space, `fill` creates the reserve later
                _make(layout, wanted_bytes(layout))


def is_full(layout: Layout) -> bool:
    """Whether the filesystem or a quota has at most `LEAST_BYTES`, or only a few inodes, free."""
    room = dirfd_stat.free_space(layout.path)
    if room.free_bytes <= LEAST_BYTES or not room.has_inodes(INODES + 1):
        return True
    return not files.has_room(layout.reserve, LEAST_BYTES)


def _give_up(layout: Layout) -> None:
    """Remove the reserve, and wait until its space is free."""
    before_bytes = dirfd_stat.free_space(layout.path).unused_bytes
    removed = 0
    for name in names_in(layout.reserve):
        try:
            links.unlink(layout.reserve / name)
            removed += 1
        except FileNotFoundError:  # another process is also freeing space
            continue
    if removed:
        # Some filesystems count the space as free only after the removal is in the journal.
        files.sync_directory(layout.reserve)
        _wait_until_free(layout, before_bytes)


def _wait_until_free(layout: Layout, before_bytes: int) -> None:
    """Wait until a file can be created, because XFS frees unlinked files in the background."""
    # The number of free inodes is not reliable: XFS may report 0 although it can create some. A quota of btrfs counts
    # unlinked files until the next commit of the filesystem, up to 30 s later, unless the filesystem is synced.
    begun_s = time.monotonic()
    is_synced = False
    while (waited_s := time.monotonic() - begun_s) < _SETTLE_S:
        if dirfd_stat.free_space(layout.path).unused_bytes > before_bytes and files.has_room(layout.reserve, 1):
            return
        if waited_s > _SYNC_AFTER_S and not is_synced:
            is_synced = True
            files.sync_filesystem(layout.path)
        time.sleep(_PAUSE_S)


def _make(layout: Layout, nbytes: int) -> None:
    for path in (layout.reserve / name for name in _NAMES):
        found = dirfd_stat.find(path)
        # Opening a pipe would block. Enlarging a file that has another link would also change the file for its user.
        if found is not None and not _is_own(found):
            links.unlink(path)
        if not _has_size(found, nbytes // INODES):
            files.allocate(path, nbytes // INODES)


def _is_own(found: os.stat_result) -> bool:
    return stat.S_ISREG(found.st_mode) and found.st_nlink == 1


def _has_size(found: os.stat_result | None, nbytes: int) -> bool:
    return found is not None and _is_own(found) and found.st_size >= nbytes
