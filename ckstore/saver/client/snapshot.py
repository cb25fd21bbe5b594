"""The snapshot: memory to which a state is copied once, and which can be passed to another process.

It is kept for the next save, so that its pages need not be allocated again. docs/explanation/async.md gives the reasons
for a memfd.
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
"""For a file in memory, the last one is the limit of file sizes (ulimit -f)."""
_SPARE_BYTES = 64 * 2**20
"""Memory that must stay free besides a snapshot: a saver needs about 40 MiB, and the training continues meanwhile."""
# The saver hashes from here: a cache line, and every dtype is aligned.
_ALIGNMENT = 64
# Large enough that the two threads seldom meet at the lock, small enough that both end at about the same time.
_PART_BYTES = 16 * 2**20
# One copies a GiB in 131 ms, two in 95 (docs/adr/0017); more would take cores from the training.
_THREADS = 2


def aligned(nbytes: int) -> int:
    """Return the bytes of a snapshot that `nbytes` take at any place in it, including alignment."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT + _grain(nbytes) - _ALIGNMENT


def _grain(nbytes: int) -> int:
    # The saver writes a large one past the page cache from where it lies, which only whole pages can be.
    return GRAIN_BYTES if nbytes >= SMALL_BELOW_BYTES else _ALIGNMENT


def places_of(
    sources: Sequence[ByteSource], kept: Iterable[int] = (), first: Iterable[int] = ()
) -> tuple[tuple[SnapshotSpan, ...], int]:
    """Return the place of each source in a snapshot, except those in `kept`, and the size of the snapshot."""
    # Those that are `first` lie at its beginning, in that order.
    offsets = dict.fromkeys(kept, -1)
    end = 0

    def place(index: int) -> None:
        nonlocal end
        nbytes = sources[index].nbytes
        offsets[index] = -(-end // _grain(nbytes)) * _grain(nbytes)
        end += aligned(nbytes)

    for index in first:
        place(index)
    # Those that are transferred together are adjacent, behind the others.
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
    """Shared memory for one state, with pages allocated before the copy, huge ones if possible.

    A copy to huge pages takes seven tenths of the time of one to pages of 4 KiB (docs/adr/0014-saver.md).
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = self.size_for(nbytes)  # its size
        self._is_written = False
        self._pinned: PinnedMemory | None = None
        self._copying: Transfers | None = None
        found = left()
        # Asked, not tried: in a control group the page that is one too many kills the training.
        if found is not None and self.nbytes + _SPARE_BYTES > found.nbytes:
            raise self._no_memory(f", of which {found}")
        self.fd = open_memory("ckstore-snapshot")  # to be given to the saver
        try:
            os.ftruncate(self.fd, self.nbytes)
            self._memory = map_shared(self.fd, self.nbytes, writable=True)
            # Before the rest is allocated: a page of 4 KiB that is there makes the kernel copy it into the huge one.
            self._gather()
            for at in range(0, self.nbytes, _PART_BYTES):
                # Memory that is not there is an error here, no signal later. In parts: a signal makes the kernel undo a
                # call (shmem_fallocate), and that of a profiler would come before gigabytes are there, each time.
                os.posix_fallocate(self.fd, at, min(_PART_BYTES, self.nbytes - at))
            self._fault_in()
        except BaseException as error:
            self._give_up()
            # Only the kernel's ways to say that there is no memory become that error.
            if not isinstance(error, OSError) or error.errno not in _NO_MEMORY:
                raise
            raise self._no_memory(f": {error.strerror}") from error

    def _no_memory(self, reason: str) -> InsufficientSpace:
        msg = f"no memory for a snapshot of {size_text(self.nbytes)}{reason}"
        return InsufficientSpace(msg, hint="use save(), which needs none, or a smaller max_in_flight")

    def _give_up(self) -> None:
        """Free the memory. Otherwise the frames of the raised error would keep it mapped as long as the error lives."""
        # A write to a page that was given back is a SIGBUS. So where Ctrl-C came while a thread was waited for, and it
        # may still write, the memory goes with the error.
        if not self._is_written:
            with suppress(OSError):  # then it goes with the error, too, which is the news
                os.ftruncate(self.fd, 0)
        os.close(self.fd)

    @staticmethod
    def size_for(nbytes: int) -> int:
        """Return the memory that a snapshot of this size takes."""
        return max(HUGE_BYTES, -(-nbytes // HUGE_BYTES) * HUGE_BYTES)

    def _gather(self) -> None:
        """Allocate huge pages until the kernel refuses for the first time."""
        can = True

        def gather(at: int) -> None:
            nonlocal can
            part = self._memory[at : at + _PART_BYTES]
            for start in range(at, at + len(part), HUGE_BYTES):
                if can:
                    # One byte makes one page, of which `MADV_COLLAPSE` makes a huge one.
                    os.posix_fallocate(self.fd, start, 1)  # a huge page is made where there is a page
            # Once the kernel has said no (none free, or too old) each further try costs time and is refused as well.
            can = can and gather_huge_pages(part)

        self._make([lambda at=at: gather(at) for at in range(0, self.nbytes, _PART_BYTES)])  # type: ignore[misc]

    def _fault_in(self) -> None:
        def clear(at: int) -> None:
            part = self._memory[at : at + _PART_BYTES]
            ctypes.memset(ctypes.addressof(ctypes.c_ubyte.from_buffer(part)), 0, len(part))

        self._make([lambda at=at: clear(at) for at in range(0, self.nbytes, _PART_BYTES)])  # type: ignore[misc]

    def _make(self, work: list[Callable[[], None]]) -> None:
        """Run work that writes to the memory; record whether a thread may still do so."""
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
        """Copy every source that has a place to it, with two threads.

        Copies from another memory space are still running when this returns. The result is an object to wait for. With
        `behind_current` these copies run after the queued work of the current streams, and later work of these streams
        runs after them. With `more` copies that began earlier continue, and are also waited for.

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
        """Pin the memory, once, for transfers from this space. Pinning takes as long as several copies."""
        if self._pinned is None:
            self._pinned = space.pin(self._memory)
        return self._pinned

    def _settle(self) -> None:
        """Wait for copies of devices that an error, or a saver's end, left running. They write to this memory."""
        copying, self._copying = self._copying, None
        if copying is not None:
            with suppress(RuntimeError):  # of the device: then they are over as well
                copying.wait()

    def close(self) -> None:
        """Free the memory in this process. A saver that has it keeps it."""
        if self.fd >= 0:
            # Taken out first: closed twice, the number may be that of a file that another thread has just opened.
            fd, self.fd = self.fd, -1
            os.close(fd)
            self._settle()
            if self._pinned is not None:  # before it is unmapped, or the driver would go on with pages of the system
                self._pinned.close()
                self._pinned = None
            self._memory.release()

    def let_go(self) -> None:
        """Close the descriptor. The memory is freed with its last user, such as a thread that a fork left behind."""
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
        """Return the smallest snapshot of at least `nbytes`, or a new one, after freeing those that are too small."""
        if (free := self.take_free(nbytes)) is not None:
            return free
        # Those that are too small go before the new one is made, or the host needs both at once.
        self.drop_above(0)
        return Snapshot(nbytes)

    def take_free(self, nbytes: int) -> Snapshot | None:
        """Return a snapshot like `take`, if it need not be allocated."""
        with self._mutex:
            self._is_closed = False
            fitting = [snapshot for snapshot in self._free if snapshot.nbytes >= nbytes]
            if not fitting:
                return None
            # The smallest: a large one stays for the next large state.
            best = min(fitting, key=lambda snapshot: snapshot.nbytes)
            self._free.remove(best)
            return best

    def drop_above(self, nbytes: int) -> None:
        """Free the snapshots that are larger than `nbytes`."""
        with self._mutex:
            large = [snapshot for snapshot in self._free if snapshot.nbytes > nbytes]
            self._free = [snapshot for snapshot in self._free if snapshot.nbytes <= nbytes]
        # Outside the lock: to unmap gigabytes takes milliseconds.
        for one in large:
            one.close()

    def give(self, snapshot: Snapshot, most: int) -> None:
        """Keep a snapshot; free older ones so that at most `most` are kept, and none after `close`."""
        with self._mutex:
            self._free.append(snapshot)
            # The newest stay: their size is that of the last state.
            over = self._free[:] if self._is_closed else self._free[:-most]
            del self._free[: len(over)]
        for one in over:
            one.close()

    def close(self) -> None:
        """Free the memory of all snapshots. A save that ends later frees its own, unless another one has begun."""
        # A save may end after its store was closed, and no later save would use its memory.
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
    """Return work items of about equal size: parts of large sources, and groups of small ones."""
    work: list[Callable[[], None]] = []
    few: list[tuple[ByteSource | RangeSource, SnapshotSpan]] = []
    few_bytes = 0

    def copy(source: ByteSource | RangeSource, place: SnapshotSpan, start: int, stop: int) -> None:
        source.read_into(start, stop, whole[place.offset + start : place.offset + stop])

    def copy_all(several: list[tuple[ByteSource | RangeSource, SnapshotSpan]]) -> None:
        for source, place in several:
            copy(source, place, 0, place.nbytes)

    for source, place in pairs:
        # Thousands of small tensors: a closure and a lock for each would take longer than the copies.
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
    """Run all work in this thread and, if possible, another; return the errors when both are done."""
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
        except BaseException as error:  # noqa: BLE001 - raised below, in the thread that asked
            errors.append(error)

    others = [threading.Thread(target=take, daemon=True) for _ in range(min(_THREADS, len(work)) - 1)]
    try:
        for thread in others:
            thread.start()
    except RuntimeError:  # "can't start new thread": this one does all of it
        pass
    # This thread must go on to `join`: returning now would let a thread write into memory that is given back.
    except BaseException as error:  # noqa: BLE001 - Ctrl-C: a thread that begins now takes nothing any more
        errors.append(error)
    take()
    for thread in others:
        # Again after Ctrl-C: the thread still writes into the snapshot.
        while thread.is_alive():
            try:
                thread.join()
            except BaseException as error:  # noqa: BLE001 - Ctrl-C: raised once that thread writes no more
                errors.append(error)
    return errors
