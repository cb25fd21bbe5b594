"""Copy a state once to a snapshot, which is memory that can be passed to another process.

A snapshot is kept for the next save, so that its pages need not be allocated again. docs/explanation/async.md explains
why a snapshot is a memfd.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from ckstore.errors import InsufficientSpace
from ckstore.fs.buffers import GRAIN_BYTES
from ckstore.fs.host.memory import left
from ckstore.fs.mapping import HUGE_BYTES, gather_huge_pages, map_shared
from ckstore.fs.memory_file import open_memory
from ckstore.model.saver.messages import SnapshotSpan
from ckstore.model.sizes import SMALL_BELOW_BYTES, size_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ckstore.model.manifest.captured import ByteSource, MemorySpace, PinnedMemory, RangeSource, Transfers

_NO_MEMORY = (errno.ENOSPC, errno.ENOMEM, errno.EFBIG)
"""Errors that mean a lack of memory. For a file in memory, EFBIG means the limit of file sizes (ulimit -f)."""
_SPARE_BYTES = 64 * 2**20
"""The memory that must remain free in addition to a snapshot, in bytes.

A saver needs about 40 MiB, and the training also continues to allocate memory.
"""
# The alignment of storages, in bytes. It is the size of a cache line, for fast hashing, and is sufficient for every
# dtype.
_ALIGNMENT = 64
# Parts are large enough that the two threads seldom wait for the lock, and small enough that both end at about the same
# time.
_PART_BYTES = 16 * 2**20
# One thread copies a GiB in 131 ms, and two threads in 95 ms (docs/adr/0017). More threads would take cores from the
# training.
_THREADS = 2


def aligned(nbytes: int) -> int:
    """Return the number of bytes to reserve in a snapshot for a storage of `nbytes`, including alignment."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT + _grain(nbytes) - _ALIGNMENT


def _grain(nbytes: int) -> int:
    # The saver writes a large storage from the snapshot with direct I/O, which requires alignment to whole pages.
    return GRAIN_BYTES if nbytes >= SMALL_BELOW_BYTES else _ALIGNMENT


def places_of(
    sources: Sequence[ByteSource], kept: Iterable[int] = (), first: Iterable[int] = ()
) -> tuple[tuple[SnapshotSpan, ...], int]:
    """Return the place of each source in a snapshot, except those in `kept`, and the size of the snapshot."""
    # The sources in `first` are at the beginning of the snapshot, in that order.
    offsets = dict.fromkeys(kept, -1)
    end = 0

    def place(index: int) -> None:
        nonlocal end
        nbytes = sources[index].nbytes
        offsets[index] = -(-end // _grain(nbytes)) * _grain(nbytes)
        end += aligned(nbytes)

    for index in first:
        place(index)
    # Small sources that are transferred together are adjacent, after all other sources.
    grouped = []
    for index, source in enumerate(sources):
        if index in offsets:
            continue
        if source.space is not None and source.nbytes < source.space.grouped_below_bytes:
            grouped.append(index)
        else:
            place(index)
    for index in grouped:
        place(index)
    return tuple(SnapshotSpan(source.name, offsets[index], source.nbytes) for index, source in enumerate(sources)), end


class Snapshot:
    """Shared memory for one state. Its pages, huge pages if possible, are allocated before the copy.

    A copy to huge pages takes 70% of the time of a copy to pages of 4 KiB (docs/adr/0014-saver.md).
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = self.size_for(nbytes)
        self._is_written = False
        self._pinned: PinnedMemory | None = None
        self._copying: Transfers | None = None
        found = left()
        # The free memory is checked first: in a control group, the kernel kills the training at the first page above
        # the limit.
        if found is not None and self.nbytes + _SPARE_BYTES > found.nbytes:
            raise self._no_memory(f", of which {found}")
        self.fd = open_memory("ckstore-snapshot")  # the descriptor that is passed to the saver
        try:
            os.ftruncate(self.fd, self.nbytes)
            self._memory = map_shared(self.fd, self.nbytes, writable=True)
            # Huge pages are created before the rest is allocated. Otherwise, the kernel would copy each existing page
            # of 4 KiB to the huge page.
            self._gather()
            for at in range(0, self.nbytes, _PART_BYTES):
                # This call turns a lack of memory into an error instead of a later signal (SIGBUS). The memory is
                # allocated in parts, because a signal makes the kernel undo the whole call (shmem_fallocate). With the
                # regular signals of a profiler, one call for gigabytes would never end.
                os.posix_fallocate(self.fd, at, min(_PART_BYTES, self.nbytes - at))
            self._fault_in()
        except BaseException as error:
            self._give_up()
            # Only the kernel's errors about a lack of memory become `InsufficientSpace`.
            if not isinstance(error, OSError) or error.errno not in _NO_MEMORY:
                raise
            raise self._no_memory(f": {error.strerror}") from error

    def _no_memory(self, reason: str) -> InsufficientSpace:
        msg = f"no memory for a snapshot of {size_text(self.nbytes)}{reason}"
        return InsufficientSpace(msg, hint="use save(), which needs none, or a smaller max_in_flight")

    def _give_up(self) -> None:
        """Free the memory. Otherwise, the frames of the raised error would keep it mapped while the error exists."""
        # A write to a freed page would cause a SIGBUS. If a thread may still write, because Ctrl-C ended the wait for
        # the thread, the memory is freed only when the raised error is freed.
        if not self._is_written:
            with suppress(OSError):  # in this case, the memory is also freed only with the raised error
                os.ftruncate(self.fd, 0)
        os.close(self.fd)

    @staticmethod
    def size_for(nbytes: int) -> int:
        """Return the memory that a snapshot of `nbytes` takes."""
        return max(HUGE_BYTES, -(-nbytes // HUGE_BYTES) * HUGE_BYTES)

    def _gather(self) -> None:
        """Allocate huge pages until the kernel refuses for the first time."""
        can = True

        def gather(at: int) -> None:
            nonlocal can
            part = self._memory[at : at + _PART_BYTES]
            for start in range(at, at + len(part), HUGE_BYTES):
                if can:
                    # This allocates one page, which `MADV_COLLAPSE` then replaces by a huge page.
                    os.posix_fallocate(self.fd, start, 1)
            # Once the kernel has refused (no huge page is free, or the kernel is too old), it would refuse again, and
            # further tries would only cost time.
            can = can and gather_huge_pages(part)

        self._make([lambda at=at: gather(at) for at in range(0, self.nbytes, _PART_BYTES)])  # type: ignore[misc]

    def _fault_in(self) -> None:
        def clear(at: int) -> None:
            part = self._memory[at : at + _PART_BYTES]
            ctypes.memset(ctypes.addressof(ctypes.c_ubyte.from_buffer(part)), 0, len(part))

        self._make([lambda at=at: clear(at) for at in range(0, self.nbytes, _PART_BYTES)])  # type: ignore[misc]

    def _make(self, work: list[Callable[[], None]]) -> None:
        """Run work that writes to the memory. Until all work has ended, `_is_written` is True."""
        self._is_written = True
        errors = _in_parallel(work)
        self._is_written = False
        if errors:
            raise errors[0]

    def fill(
        self,
        sources: Sequence[ByteSource | RangeSource],
        places: Sequence[SnapshotSpan],
        *,
        behind_current: bool = False,
        more: bool = False,
    ) -> Transfers | None:
        """Copy each source to its place, if it has one, with two threads.

        Copies from another memory space are still running when this method returns. The result is an object to wait for
        these copies. With `behind_current`, they run after the queued work of the current streams, and later work of
        these streams runs after them. With `more`, copies that began earlier continue, and the result also waits for
        them.

        Raises:
            StateChanged: The memory of a tensor was freed meanwhile.
        """
        if not more:
            self._settle()
        in_host: list[tuple[ByteSource | RangeSource, SnapshotSpan]] = []
        to_transfer: list[tuple[ByteSource | RangeSource, int]] = []
        space: MemorySpace | None = None
        for source, place in zip(sources, places, strict=True):
            if place.offset < 0:
                continue
            if source.space is None:
                in_host.append((source, place))
            else:
                space = source.space
                to_transfer.append((source, place.offset))
        if space is not None:
            to_transfer.sort(key=lambda pair: pair[1])
            begun, self._copying = self._copying, self.pin(space).copy(to_transfer, behind_current=behind_current)
            if begun is not None:
                self._copying.join(begun)
        if errors := _in_parallel(_copies(in_host, self._memory)):
            raise errors[0]
        return self._copying

    def pin(self, space: MemorySpace) -> PinnedMemory:
        """Pin the memory for transfers from this space, but only once: pinning takes as long as several copies."""
        if self._pinned is None:
            self._pinned = space.pin(self._memory)
        return self._pinned

    def _settle(self) -> None:
        """Wait for copies of devices that are still running after an error. They write to this memory."""
        copying, self._copying = self._copying, None
        if copying is not None:
            with suppress(RuntimeError):  # an error of the device, after which the copies have also ended
                copying.wait()

    def close(self) -> None:
        """Free the memory in this process. A saver that has received the snapshot keeps the memory."""
        if self.fd >= 0:
            # The attribute is reset first: a second `close` could close a file that another thread has just opened
            # under the same number.
            fd, self.fd = self.fd, -1
            os.close(fd)
            self._settle()
            if self._pinned is not None:  # unpinned before unmapping, because the driver uses the pinned pages
                self._pinned.close()
                self._pinned = None
            self._memory.release()

    def let_go(self) -> None:
        """Close the descriptor. The memory is freed when no object refers to it any more."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)


class SnapshotPool:
    """Snapshots that are kept for the next save, so that their pages need not be allocated again."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._free: list[Snapshot] = []
        self._is_closed = False

    def take(self, nbytes: int) -> Snapshot:
        """Return the smallest kept snapshot of at least `nbytes`, or free all kept ones and allocate a new one."""
        if (free := self.take_free(nbytes)) is not None:
            return free
        # All kept snapshots are too small. They are freed first, so that the host does not need memory for old and new
        # snapshots at the same time.
        self.drop_above(0)
        return Snapshot(nbytes)

    def take_free(self, nbytes: int) -> Snapshot | None:
        """Return the smallest kept snapshot of at least `nbytes`, or None."""
        with self._mutex:
            self._is_closed = False
            fitting = [snapshot for snapshot in self._free if snapshot.nbytes >= nbytes]
            if not fitting:
                return None
            # The smallest snapshot is used, so that a large one remains for the next large state.
            best = min(fitting, key=lambda snapshot: snapshot.nbytes)
            self._free.remove(best)
            return best

    def drop_above(self, nbytes: int) -> None:
        """Free the snapshots that are larger than `nbytes`."""
        with self._mutex:
            large = [snapshot for snapshot in self._free if snapshot.nbytes > nbytes]
            self._free = [snapshot for snapshot in self._free if snapshot.nbytes <= nbytes]
        # The memory is freed outside the lock, because unmapping gigabytes takes milliseconds.
        for one in large:
            one.close()

    def give(self, snapshot: Snapshot, most: int) -> None:
        """Keep a snapshot, and free the oldest snapshots if there are more than `most`. After `close`, free all."""
        with self._mutex:
            self._free.append(snapshot)
            # The newest snapshots are kept, because they have the size of the last state.
            over = self._free[:] if self._is_closed else self._free[:-most]
            del self._free[: len(over)]
        for one in over:
            one.close()

    def close(self) -> None:
        """Free the memory of all snapshots. A save that ends later frees its snapshot, unless a new save has begun."""
        # A save may end after its store was closed. No later save would use the memory of this save.
        with self._mutex:
            self._is_closed = True
        self.drop_above(0)

    def let_go(self) -> None:
        """In a forked child, close the descriptors without the lock, which a missing thread may hold."""
        for snapshot in self._free:
            snapshot.let_go()


def _copies(
    pairs: Iterable[tuple[ByteSource | RangeSource, SnapshotSpan]], whole: memoryview
) -> list[Callable[[], None]]:
    """Return jobs of about equal size: parts of large sources, and groups of small sources."""
    work: list[Callable[[], None]] = []
    few: list[tuple[ByteSource | RangeSource, SnapshotSpan]] = []
    few_bytes = 0

    def copy(source: ByteSource | RangeSource, place: SnapshotSpan, start: int, stop: int) -> None:
        source.read_into(start, stop, whole[place.offset + start : place.offset + stop])

    def copy_all(several: list[tuple[ByteSource | RangeSource, SnapshotSpan]]) -> None:
        for source, place in several:
            copy(source, place, 0, place.nbytes)

    for source, place in pairs:
        # Small sources are grouped, because a closure and a lock for each of thousands of small sources would take
        # longer than the copies.
        if place.nbytes < _PART_BYTES:
            few.append((source, place))
            few_bytes += place.nbytes
            if few_bytes >= _PART_BYTES:
                work.append(lambda several=few: copy_all(several))  # type: ignore[misc]
                few, few_bytes = [], 0
            continue
        for start in range(0, place.nbytes, _PART_BYTES):
            stop = min(start + _PART_BYTES, place.nbytes)
            work.append(lambda s=source, p=place, a=start, b=stop: copy(s, p, a, b))  # type: ignore[misc]
    if few:
        work.append(lambda several=few: copy_all(several))  # type: ignore[misc]
    return work


def _in_parallel(work: list[Callable[[], None]]) -> list[BaseException]:
    """Run all jobs in this thread and, if possible, in another one. Return the errors when both have ended."""
    waiting = iter(work)
    mutex = threading.Lock()
    errors: list[BaseException] = []

    def take() -> None:
        try:
            while not errors:
                with mutex:
                    job = next(waiting, None)
                if job is None:
                    return
                job()
        except BaseException as error:  # noqa: BLE001 - returned to the calling thread, which raises it
            errors.append(error)

    others = [threading.Thread(target=take, daemon=True) for _ in range(min(_THREADS, len(work)) - 1)]
    try:
        for thread in others:
            thread.start()
    except RuntimeError:  # "can't start new thread": this thread does all of the work
        pass
    # This thread must continue to `join`. Otherwise, the other thread could write to memory that was freed.
    except BaseException as error:  # noqa: BLE001 - Ctrl-C: because of the error, no thread takes more work
        errors.append(error)
    take()
    for thread in others:
        # The wait is repeated after Ctrl-C, because the thread still writes to the snapshot.
        while thread.is_alive():
            try:
                thread.join()
            except BaseException as error:  # noqa: BLE001 - Ctrl-C: raised once that thread has ended
                errors.append(error)
    return errors
