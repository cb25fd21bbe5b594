"""Single zstd frames whose size is known before they are decompressed, so that none of them is a bomb."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from ckstore.errors import DamagedBlob, MissingExtra

if TYPE_CHECKING:
    import zstandard

    from ckstore.model.digest import Buffer

# Level 1: on byte planes of floats higher levels are larger or save 3 % for ten times the time (docs/adr/0020).
_LEVEL = 1
# In small differences the short matches that it finds take more than their bytes as symbols: with a table of 64 places
# it finds next to none, and is 4 to 6 % smaller there. Repeating values need the whole table, so both are tried.
_FEW_MATCHES_LOG = 6

# Planes have a MiB at most. A frame that is cut makes the library ask for its whole window, which may be 128 MiB.
_WINDOW_BYTES = 2**23

# A context is not for several threads at once, and takes longer to make than a small plane to compress.
_own = threading.local()


def compress(data: Buffer) -> bytes:
    """Return `data` as one zstd frame that says its size."""
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
    """Return the `nbytes` bytes of one zstd frame that says exactly this size, and has no other bytes."""
    package = _package()
    if not hasattr(_own, "decompressor"):
        _own.decompressor = package.ZstdDecompressor(max_window_size=_WINDOW_BYTES)
    decompressor: zstandard.ZstdDecompressor = _own.decompressor
    try:
        # Asked first: the library allocates whatever size a frame claims for itself.
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
        msg = "this checkpoint has encoded pieces, and the package zstandard is not installed"
        raise MissingExtra(msg, hint="pip install 'ckstore[compact]'") from error
    return zstandard
