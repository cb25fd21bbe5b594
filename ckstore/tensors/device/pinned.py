"""Host memory that devices copy directly. It is pinned once and then kept."""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Iterable

import torch

from ckstore.fs.buffers import aligned_buffer
from ckstore.interpreter import log
from ckstore.tensors.device import device_copies, streams
from ckstore.tensors.device.device_copies import Copying, DeviceSource

_KEPT_BYTES = 512 * 2**20
"""The maximum total size of unused buffers, in bytes, enough for sixteen threads with a chunk each."""


class Pinned:
    """Memory that is pinned until `close`."""

    def __init__(self, memory: memoryview) -> None:
        # torch's own pinned memory is not suitable, because the saver maps the memory and writes it with direct I/O.
        self._address = ctypes.addressof(ctypes.c_ubyte.from_buffer(memory))
        self.flat = torch.frombuffer(memory, dtype=torch.uint8)
        self._system = streams.system
        # If pinning fails, copies are still correct, only slower.
        self.why_not = self._system.register(self._address, len(memory))
        if self.why_not and not _said:
            _said.add(self.why_not)
            slower = "so copies from and to the GPU are slower; `ulimit -l` may allow it"
            log(logging.WARNING, f"memory cannot be pinned ({self.why_not}), {slower}", name="ckstore")

    def copy(self, pairs: Iterable[tuple[DeviceSource, int]], *, behind_current: bool) -> Copying:
        """Begin to copy each source to its offset; see `device_copies.start`."""
        return device_copies.start(pairs, self.flat, behind_current=behind_current)

    def close(self) -> None:
        """Unpin the memory. No copy may be running."""
        if self.why_not == "":
            self.why_not = "it is closed"
            self._system.unregister(self._address)
        self.flat = torch.empty(0, dtype=torch.uint8)


class Buffer:
    """Private pinned memory, for disks and devices."""

    def __init__(self, nbytes: int) -> None:
        self.view = aligned_buffer(nbytes)
        self._pinned = Pinned(self.view)
        self.flat = self._pinned.flat

    def close(self) -> None:
        """Free the memory."""
        self.flat = torch.empty(0, dtype=torch.uint8)
        self._pinned.close()


class BufferPool:
    """Buffers that are kept for the next save or load, since pinning a buffer takes longer than using it."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._free: list[Buffer] = []

    def take(self, nbytes: int) -> Buffer:
        """Return a buffer of exactly this size."""
        with self._mutex:
            for at, buffer in enumerate(self._free):
                if len(buffer.view) == nbytes:
                    return self._free.pop(at)
        return Buffer(nbytes)

    def give(self, buffer: Buffer) -> None:
        """Keep a buffer that no transfer uses. Free the oldest buffers if the pool is larger than its limit."""
        with self._mutex:
            self._free.append(buffer)
            over = []
            while sum(len(one.view) for one in self._free) > _KEPT_BYTES:
                over.append(self._free.pop(0))
        # Close the buffers outside the lock, because unpinning waits for the device.
        for one in over:
            one.close()

    def close(self) -> None:
        """Free all buffers."""
        with self._mutex:
            free, self._free = self._free, []
        for one in free:
            one.close()


pool = BufferPool()
_said: set[str] = set()
