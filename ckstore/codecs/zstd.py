"""Single zstd frames. The size is checked before a frame is decompressed, as protection from decompression bombs."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from ckstore.errors import DamagedBlob, MissingExtra

if TYPE_CHECKING:
    import zstandard

    from ckstore.model.digest import Buffer

# For byte planes of floats, higher levels either compress worse or save only 3 % in ten times the time
# (docs/adr/0020).
_LEVEL = 1
# In small differences, zstd finds short matches that take more space than the plain bytes. With a hash table of 64
# entries it finds almost none, and the frame is 4 to 6 % smaller. Data with repeating values needs the full table, so
# both are tried.
_FEW_MATCHES_LOG = 6

# A plane has at most 1 MiB. For a truncated frame, the library would allocate the whole window that the frame claims,
# up to 128 MiB.
_WINDOW_BYTES = 2**23

# Threads cannot share a context, and creating one takes longer than compressing a small plane. So each thread keeps
# its own.
_own = threading.local()


def compress(data: Buffer) -> bytes:
    """Return `data` as one zstd frame with the size in its header."""
    if not hasattr(_own, "compressors"):
        package = _package()
        few_matches = package.ZstdCompressionParameters.from_level(_LEVEL, hash_log=_FEW_MATCHES_LOG)
        _own.compressors = (
            package.ZstdCompressor(level=_LEVEL, write_checksum=False, write_dict_id=False),
            package.ZstdCompressor(compression_params=few_matches),
        )
    compressors: tuple[zstandard.ZstdCompressor, ...] = _own.compressors
    return min((compressor.compress(data) for compressor in compressors), key=len)


def decompress(frame: Buffer, nbytes: int) -> bytes:
    """Return the `nbytes` bytes of one zstd frame. Its header must state this size, and no bytes may follow it."""
    package = _package()
    if not hasattr(_own, "decompressor"):
        _own.decompressor = package.ZstdDecompressor(max_window_size=_WINDOW_BYTES)
    decompressor: zstandard.ZstdDecompressor = _own.decompressor
    try:
        # Checked first, since the library allocates the size that the header claims.
        claimed = package.frame_content_size(frame)
        if claimed != nbytes:
            raise DamagedBlob(f"a zstd frame says that it has {claimed} bytes, wanted {nbytes}")
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
