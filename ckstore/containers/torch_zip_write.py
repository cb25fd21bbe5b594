"""Lay out a zip archive like that of torch.save, without I/O.

Records are stored uncompressed, and each record begins at a multiple of 64 bytes, as in torch. All sizes, and therefore
all positions, are known in advance. Only the checksums are added later.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

# This is the alignment in torch. A mapped tensor then begins at a cache line.
ALIGN_BYTES = 64
_FOLDER = "archive"
_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_END_64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR_64 = struct.Struct("<4sLQL")
_EXTRA = struct.Struct("<2H")
_FILLING = 0x4246  # "FB", the tag that torch gives to the padding that aligns a record
_ZIP64 = 1
# The greatest values of fields of 32 and of 16 bits. They mean that the value is in the zip64 part.
_LARGE = 0xFFFFFFFF
_MANY = 0xFFFF
_FIRST_DAY = 0x21  # 1980-01-01, the earliest date that a zip can record
# The "version needed to extract" is 2.0, or 4.5 with zip64 (APPNOTE.TXT 4.4.3).
_VERSION, _VERSION_64 = 20, 45


@dataclass(frozen=True, slots=True)
class ArchiveLayout:
    """The layout of an archive."""

    names: tuple[bytes, ...]  # names of its records, in the order of their bytes
    sizes: tuple[int, ...]  # size of each record, in bytes
    heads: tuple[int, ...]  # offset of the local header before each record
    starts: tuple[int, ...]  # offset of the first byte of each record
    end: int  # offset of the directory, which follows the last record

    @property
    def nbytes(self) -> int:
        """Size of the archive, in bytes."""
        return self.end + len(self.tail([0] * len(self.names)))

    def head(self, i: int, crc: int) -> bytes:
        """Return the bytes before record `i`, whose CRC-32 is `crc`."""
        name, size = self.names[i], self.sizes[i]
        large = size >= _LARGE
        extra = _EXTRA.pack(_ZIP64, 16) + struct.pack("<2Q", size, size) if large else b""
        # The zip format has no alignment. As in torch, an extra field with the missing length moves the data.
        filling = self.starts[i] - self.heads[i] - _LOCAL.size - len(name) - len(extra) - _EXTRA.size
        extra += _EXTRA.pack(_FILLING, filling) + b"Z" * filling
        version, shown = (_VERSION_64, _LARGE) if large else (_VERSION, size)
        fields = (b"PK\x03\x04", version, 0, 0, 0, _FIRST_DAY, crc, shown, shown, len(name), len(extra))
        return _LOCAL.pack(*fields) + name + extra

    def tail(self, crcs: Sequence[int]) -> bytes:
        """Return the bytes after the last record: the directory, and its location."""
        entries = b"".join(self._entry(i, crc) for i, crc in enumerate(crcs))
        count = len(self.names)
        end = self.end + len(entries)
        behind = b""
        if count >= _MANY or end >= _LARGE:
            version = _VERSION_64
            fields = (_END_64.size - 12, version, version, 0, 0, count, count, len(entries), self.end)
            behind = _END_64.pack(b"PK\x06\x06", *fields) + _LOCATOR_64.pack(b"PK\x06\x07", 0, end, 1)
        shown = min(count, _MANY)
        last = _END.pack(b"PK\x05\x06", 0, 0, shown, shown, min(len(entries), _LARGE), min(self.end, _LARGE), 0)
        return entries + behind + last

    def _entry(self, i: int, crc: int) -> bytes:
        size, head = self.sizes[i], self.heads[i]
        beyond = [size, size] if size >= _LARGE else []
        beyond += [head] if head >= _LARGE else []
        extra = _EXTRA.pack(_ZIP64, 8 * len(beyond)) + struct.pack(f"<{len(beyond)}Q", *beyond) if beyond else b""
        version = _VERSION_64 if beyond else _VERSION
        shown = min(size, _LARGE)
        name = self.names[i]
        fields = (version, version, 0, 0, 0, _FIRST_DAY, crc, shown, shown, len(name), len(extra))
        return _CENTRAL.pack(b"PK\x01\x02", *fields, 0, 0, 0, 0, min(head, _LARGE)) + name + extra


def small_records(pickled: bytes) -> list[tuple[str, bytes]]:
    """Return the records that come before the storages, with their content, in torch's order."""
    return [
        ("data.pkl", pickled),
        (".format_version", b"1"),
        (".storage_alignment", str(ALIGN_BYTES).encode("ascii")),
        ("byteorder", b"little"),
    ]


VERSION_RECORD = ("version", b"3\n")  # the last record, by which torch recognises its own archives


def lay_out(names: Sequence[str], sizes: Sequence[int]) -> ArchiveLayout:
    """Return the layout of an archive with these records."""
    written = tuple(f"{_FOLDER}/{name}".encode("ascii") for name in names)
    heads, starts, at = [], [], 0
    for name, size in zip(written, sizes, strict=True):
        heads.append(at)
        # The zip64 field has 20 bytes. Only the size decides whether it is present, so that every position is known
        # before a byte is written.
        least = at + _LOCAL.size + len(name) + _EXTRA.size + (20 if size >= _LARGE else 0)
        starts.append(-(-least // ALIGN_BYTES) * ALIGN_BYTES)
        at = starts[-1] + size
    return ArchiveLayout(written, tuple(sizes), tuple(heads), tuple(starts), at)
