"""Detect changes of bytes on a device by fingerprints of 128 bits, which are computed on the device.

Fingerprints are never used as names of files. A region is treated as a sequence of 64-bit words. Each word is mixed
with its position, and a fingerprint has the sum of these mixes modulo 2^64, for each of two sets of constants. For a
given position, different words have different mixes, so a change of one word always changes the sum. Thus a change of
one element of up to 8 bytes is always detected. For other changes, a fingerprint is a checksum of 128 bits, without
protection against bytes that were chosen to collide (docs/adr/0018).
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress

import torch

from ckstore.interpreter import log
from ckstore.tensors.device import MIXES
from ckstore.tensors.device.device_copies import DeviceSource

Kernel = Callable[[Sequence[tuple[int, int]], torch.device], torch.Tensor]
WORD_BYTES = 8
# The number of bytes that torch processes at a time. torch needs four times this memory in addition to the state. A
# larger number would save no time.
_SLICE_BYTES = 16 * 2**20
_PART_BYTES = 32 * 2**20
"""Larger regions are cut, because the kernel uses a fixed number of programs for each region."""
_LARGE_BYTES = 2**20
"""Smaller regions are combined, because each call of torch takes 5 µs, whatever its size."""


def fingerprints(chunks: Sequence[tuple[DeviceSource, int, int]]) -> list[bytes]:
    """Return the fingerprint of each byte range of a source.

    The fingerprints are computed on the current streams, and this function waits for them. A fingerprint has 16 bytes
    for each contiguous part of the range. The result is empty if a device does not have enough memory to compute it.
    """
    numbered: dict[torch.device, list[int]] = defaultdict(list)
    places: dict[torch.device, list[tuple[int, int]]] = defaultdict(list)
    for index, (source, start, stop) in enumerate(chunks):
        for device, address, nbytes in source.addresses(start, stop):
            numbered[device].append(index)
            places[device].append((address, nbytes))
    found: list[bytes] = [b""] * len(chunks)
    for device, indexes in numbered.items():
        kernel = _compiled.get() if device.type == "cuda" else None
        try:
            for index, row in zip(indexes, _rows(chunks, indexes, places[device], device, kernel), strict=True):
                found[index] += row
        except torch.OutOfMemoryError:  # without fingerprints, all bytes are read, which is always correct
            return []
    return found


def _rows(
    chunks: Sequence[tuple[DeviceSource, int, int]],
    indexes: Sequence[int],
    places: Sequence[tuple[int, int]],
    device: torch.device,
    kernel: Kernel | None,
) -> list[bytes]:
    """Return the two sums of each part of the chunks, in 16 bytes.

    For each part, `indexes` has the index of its chunk, and `places` its address and size.
    """
    # The kernel can only read aligned words. For other parts, which are rare, torch computes the sums.
    even = [] if kernel is None else [at for at, (address, _) in enumerate(places) if address % WORD_BYTES == 0]
    rows = [b""] * len(places)
    if kernel is not None and even:
        for at, row in zip(even, kernel([places[at] for at in even], device).cpu().numpy(), strict=True):
            rows[at] = row.tobytes()
    if len(even) < len(places):
        parts = [part for i in dict.fromkeys(indexes) for _, part in chunks[i][0].flat_parts(*chunks[i][1:])]
        odd = [at for at, row in enumerate(rows) if not row]
        for at, row in zip(odd, by_torch([parts[at] for at in odd]).cpu().numpy(), strict=True):
            rows[at] = row.tobytes()
    return rows


def of_storages(sources: Sequence[DeviceSource]) -> list[bytes]:
    """Return the fingerprint of each source, or an empty list if `fingerprints` returns one."""
    cuts = [
        (i, at, min(at + _PART_BYTES, source.nbytes))
        for i, source in enumerate(sources)
        for at in range(0, source.nbytes, _PART_BYTES)
    ]
    found = [b""] * len(sources)
    parts = fingerprints([(sources[i], start, stop) for i, start, stop in cuts])
    for (i, _, _), part in zip(cuts, parts, strict=False):
        found[i] += part
    return found if parts else []


def by_torch(regions: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return two sums for each region, computed with operations of torch."""
    sums = torch.empty((len(regions), 2), dtype=torch.int64, device=regions[0].device)
    few: list[int] = []
    few_bytes = 0
    for i, region in enumerate(regions):
        if region.numel() >= _LARGE_BYTES:
            sums[i] = _of_large(region)
            continue
        few.append(i)
        few_bytes += region.numel()
        if few_bytes >= _SLICE_BYTES:
            sums[few] = _of_small([regions[j] for j in few])
            few, few_bytes = [], 0
    if few:
        sums[few] = _of_small([regions[j] for j in few])
    return sums


def _of_large(region: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(2, dtype=torch.int64, device=region.device)
    for at in range(0, region.numel(), _SLICE_BYTES):
        words = _words(region[at : at + _SLICE_BYTES])
        first = at // WORD_BYTES
        places = torch.arange(first, first + words.numel(), dtype=torch.int64, device=region.device)
        total += torch.stack([mixed.sum() for mixed in _mixes(words, places)])
    return total


def _of_small(regions: Sequence[torch.Tensor]) -> torch.Tensor:
    words = [_words(region) for region in regions]
    counts = [len(one) for one in words]
    ends = torch.tensor(counts, dtype=torch.int64).cumsum(0).to(regions[0].device)
    every = torch.cat(words)
    lengths = torch.tensor(counts, dtype=torch.int64).to(every.device)
    starts = torch.repeat_interleave(ends - lengths, lengths, output_size=every.numel())
    places = torch.arange(every.numel(), dtype=torch.int64, device=every.device) - starts
    sums = []
    for mixed in _mixes(every, places):
        # The sum of a region is the difference of two running sums. All sums are modulo 2^64.
        running = torch.cat([mixed.new_zeros(1), mixed.cumsum(0)])
        sums.append(running[ends] - running[ends - lengths])
    return torch.stack(sums, dim=1)


def _words(flat: torch.Tensor) -> torch.Tensor:
    """Return bytes as words. The last word is padded with zeros."""
    if flat.numel() % WORD_BYTES == 0 and flat.storage_offset() % WORD_BYTES == 0 and flat.data_ptr() % WORD_BYTES == 0:
        return flat.view(torch.int64)
    padded = torch.zeros(-(-flat.numel() // WORD_BYTES) * WORD_BYTES, dtype=torch.uint8, device=flat.device)
    padded[: flat.numel()] = flat
    return padded.view(torch.int64)


def _mixes(words: torch.Tensor, places: torch.Tensor) -> list[torch.Tensor]:
    found = []
    for seed, step, first, second in MIXES:
        mixed = words ^ (places * _signed(step) + _signed(seed))
        mixed.mul_(_signed(first))
        mixed ^= _shifted(mixed, 32)
        mixed.mul_(_signed(second))
        mixed ^= _shifted(mixed, 29)
        found.append(mixed)
    return found


def _shifted(values: torch.Tensor, count: int) -> torch.Tensor:
    """Shift values to the right as unsigned numbers. torch's own shift would extend the sign."""
    return (values >> count).bitwise_and_((1 << (64 - count)) - 1)


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


class _Compiled:
    """The kernel, compiled in a separate thread, because compiling takes a second.

    Without the kernel, operations of torch compute the same results, but more slowly.
    """

    def __init__(self) -> None:
        self.why_not = "it is not compiled yet"
        self._kernel: Kernel | None = None
        self._is_tried = False
        self._thread: threading.Thread | None = None
        self._mutex = threading.Lock()

    def get(self, timeout_s: float = 0.0) -> Kernel | None:
        """Return the kernel if it is available within this time, otherwise None."""
        if self._is_tried:
            return self._kernel
        with self._mutex:
            if self._thread is None:
                self._thread = threading.Thread(target=_compile, name="ckstore-compile", daemon=True)
                self._thread.start()
            self._thread.join(timeout_s)
            # Another thread may have tried the kernel while this thread waited.
            if self._thread.is_alive() or self._is_tried:
                return self._kernel
            self._try()
            self._is_tried = True
        return self._kernel

    def _try(self) -> None:
        """Compare the sums of the kernel with those of torch.

        This runs in the calling thread, because no other thread may use CUDA while a graph is captured.
        """
        try:
            from ckstore.tensors.device import kernel

            probe = [torch.arange(n, dtype=torch.uint8, device="cuda") for n in (250, 1, 8)]
            got = kernel.sums([(one.data_ptr(), one.numel()) for one in probe], probe[0].device)
            wanted = by_torch(probe)
            # With wrong sums, changed tensors could seem unchanged.
            self.why_not = "" if torch.equal(got, wanted) else f"its sums are {got.tolist()}, wanted {wanted.tolist()}"
        # A compiler or a driver may raise any error, for example if cc is missing. torch can compute the same sums.
        except Exception as error:  # noqa: BLE001
            self.why_not = f"{type(error).__name__}: {error}"
        else:
            self._kernel = kernel.sums if not self.why_not else None
        if self.why_not:
            text = f"no kernel for fingerprints ({self.why_not.splitlines()[0]}): torch computes them, more slowly"
            log(logging.INFO, text, name="ckstore")


def _compile() -> None:
    # The same error occurs again in `_Compiled._try`, which logs it.
    with suppress(Exception):
        from ckstore.tensors.device import kernel

        kernel.compile_it()


_compiled = _Compiled()


def prepare(timeout_s: float) -> None:
    """Wait for the kernel, if a CUDA device is available, so that later saves can use the kernel."""
    if torch.cuda.is_available():
        _compiled.get(timeout_s)


def compiled(timeout_s: float) -> tuple[Kernel | None, str]:
    """Return the kernel, or None and the reason if it is not available in time. Tests and measurements call this."""
    return _compiled.get(timeout_s), _compiled.why_not
