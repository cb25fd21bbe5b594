"""Compress and decompress single zstd frames.

The size is checked before a frame is decompressed, as protection against decompression bombs.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from ckstore.errors import DamagedBlob, MissingExtra

if TYPE_CHECKING:
    import zstandard

    from ckstore.model.digest import Buffer

# Bytes of floats have almost no repetitions. At every level, zstd finds short matches in them, which take more space
# than the plain bytes. With a hash table of 64 entries and matches of at least 7 bytes, zstd finds almost no matches.
# The result is an order-0 coder within 3 % of the entropy, which takes a third of the time of level 1. Data with
# repetitions needs level 1. Higher levels take 2 to 200 times as long, and make few planes smaller (docs/adr/0020).
_LEVEL = 1
_FEW_MATCHES = {"hash_log": 6, "min_match": 7}
# A plane is compressed with the parameters that are best for a sample of the plane.
_SAMPLE_PARTS, _SAMPLE_PART_BYTES = 3, 2**13
_FASTER = 63 / 64  # level 1 must save this much, because a frame with matches takes longer to write and to read
_RANDOM = 3 / 4

# The maximum window, sufficient for a plane of at most 1 MiB. By default, the library would allocate up to 128 MiB for
# a truncated frame, as large as the frame claims its window to be.
_WINDOW_BYTES = 2**23

# Threads cannot share a context, and creating a context takes longer than compressing a small plane. So each thread
# keeps its own contexts.
_own = threading.local()


def compress(data: Buffer, *, try_all: bool = False) -> bytes:
    """Return `data` as one zstd frame with the size in its header.

    The parameters are those that are best for a sample of the data, or for all of it if `try_all` is true.
    """
    compressors = _compressors(len(data).bit_length())
    if try_all or len(data) <= 2 * _SAMPLE_PARTS * _SAMPLE_PART_BYTES:
        return min((compressor.compress(data) for compressor in compressors), key=len)
    view, step = memoryview(data), (len(data) - _SAMPLE_PART_BYTES) // (_SAMPLE_PARTS - 1)
    # Each part is compressed as its own frame, since zstd also adapts its codes to each part of a plane.
    parts = [view[i * step : i * step + _SAMPLE_PART_BYTES] for i in range(_SAMPLE_PARTS)]
    few, many = (sum(len(compressor.compress(part)) for part in parts) for compressor in compressors)
    # Level 1 takes no more time and space for nearly random bytes, and it also finds repetitions that are far apart.
    is_random = few > _RANDOM * _SAMPLE_PARTS * _SAMPLE_PART_BYTES
    return compressors[is_random or many < _FASTER * few].compress(data)


def _compressors(bits: int) -> tuple[zstandard.ZstdCompressor, ...]:
    """Return the compressors for data whose size has this many bits, and for samples of the data."""
    if not hasattr(_own, "compressors"):
        _own.compressors = {}
    if bits not in _own.compressors:
        package = _package()
        # zstd chooses parameters by the size of its input. A sample needs the parameters of the whole data.
        parameters = partial(package.ZstdCompressionParameters.from_level, _LEVEL, source_size=2**bits - 1)
        _own.compressors[bits] = tuple(
            package.ZstdCompressor(compression_params=one) for one in (parameters(**_FEW_MATCHES), parameters())
        )
    found: tuple[zstandard.ZstdCompressor, ...] = _own.compressors[bits]
    return found


def decompress(frame: Buffer, nbytes: int) -> bytes:
    """Return the `nbytes` bytes in a zstd frame. Its header must state this size, and no bytes may follow the frame."""
    package = _package()
    if not hasattr(_own, "decompressor"):
        _own.decompressor = package.ZstdDecompressor(max_window_size=_WINDOW_BYTES)
    decompressor: zstandard.ZstdDecompressor = _own.decompressor
    try:
        # The size is checked first, since the library allocates the size that the header claims.
        claimed = package.frame_content_size(frame)
        if claimed != nbytes:
            raise DamagedBlob(f"a zstd frame claims {claimed} bytes, wanted {nbytes}")
        data = decompressor.decompress(frame, max_output_size=nbytes, allow_extra_data=False)
    except package.ZstdError as error:
        raise DamagedBlob(f"a zstd frame is damaged: {error}") from error
    if len(data) != nbytes:
        raise DamagedBlob(f"a zstd frame has {len(data)} bytes, wanted {nbytes}")
    return data


def _package() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise MissingExtra.of(error, "this checkpoint has encoded pieces and needs", "zstandard", "compact") from error
    return zstandard
