"""The memory of devices as a `captured.MemorySpace`, the interface that the rest of ckstore uses.

For a state in host memory, only `space_of` is called. Therefore, the modules that do the work are imported at their
first use.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ckstore.tensors.device import GROUPED_BELOW_BYTES, streams

if TYPE_CHECKING:
    import torch

    from ckstore.tensors.device.device_copies import DeviceSource
    from ckstore.tensors.device.feed import DeviceMemory, DeviceReader
    from ckstore.tensors.device.pinned import Pinned


class DeviceSpace:
    """The memory of all devices of this process; see `captured.MemorySpace`."""

    grouped_below_bytes = GROUPED_BELOW_BYTES

    def fingerprints(self, ranges: Sequence[tuple[DeviceSource, int, int]]) -> list[bytes]:
        """Return the fingerprint of each range of a source, computed on its device."""
        from ckstore.tensors.device import fingerprint

        return fingerprint.fingerprints(ranges)

    def fingerprints_of(self, sources: Sequence[DeviceSource]) -> list[bytes]:
        """Return the fingerprint of each whole source."""
        from ckstore.tensors.device import fingerprint

        return fingerprint.of_storages(sources)

    def prepare(self, timeout_s: float) -> None:
        """Wait for the compiled kernel of the fingerprints."""
        from ckstore.tensors.device import fingerprint

        fingerprint.prepare(timeout_s)

    def wait_for(self, sources: Iterable[DeviceSource]) -> set[torch.device]:
        """Wait for all work queued on the devices of these sources, and return the devices."""
        devices: set[torch.device] = {place[0] for source in sources for place in source.addresses(0, source.nbytes)}
        streams.wait(devices)
        return devices

    def fetch(self, sources: Sequence[DeviceSource]) -> list[memoryview]:
        """Return the bytes of small sources, each aligned, in new memory."""
        from ckstore.tensors.device import feed

        return feed.fetch(sources)

    def reader(self, nbytes: int) -> DeviceReader:
        """Return a reader of ranges of at most `nbytes`."""
        from ckstore.tensors.device import feed

        return feed.DeviceReader(nbytes)

    def pin(self, memory: memoryview) -> Pinned:
        """Pin host memory, so that devices copy it directly."""
        from ckstore.tensors.device.pinned import Pinned

        return Pinned(memory)

    def fillable(self, flat: torch.Tensor) -> DeviceMemory:
        """Return flat bytes on a device as memory that a load fills."""
        from ckstore.tensors.device.feed import DeviceMemory

        return DeviceMemory(flat)


DEVICES = DeviceSpace()


def space_of(device: torch.device) -> DeviceSpace | None:
    """Return the memory space of a device, or None for host memory."""
    return DEVICES if device.type in streams.system.kinds else None
