"""Find the records of a zip archive and the locations of their bytes, without decompressing anything.

This module is stricter than zipfile, which accepts bytes before the first record, overlapping records, and sizes that
the records contradict. This module refuses such archives. PKWARE defines the format in APPNOTE.TXT 6.3.10.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from ckstore.containers.parsed_values import MAX_TENSORS, RandomAccess, refuse

MAX_DIRECTORY_BYTES = 128 * 2**20  # enough for a million records with names of 100 bytes

_LOCAL = struct.Struct("<4s5H3L2H")
_LOCAL_MAGIC = b"PK\x03\x04"
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_CENTRAL_MAGIC = b"PK\x01\x02"
_END = struct.Struct("<4s4H2LH")
_END_MAGIC = b"PK\x05\x06"
_END64 = struct.Struct("<4sQ2H2L4Q")
_END64_MAGIC = b"PK\x06\x06"
_LOCATOR = struct.Struct("<4sLQL")
_LOCATOR_MAGIC = b"PK\x06\x07"
_MAX_COMMENT_BYTES = 2**16 - 1
_EXTRA = struct.Struct("<2H")
_EXTRA64 = 1
_FULL16, _FULL32 = 2**16 - 1, 2**32 - 1
"""The content of a field whose value is in the zip64 part."""
_ENCRYPTED = 0x2041  # flags of an encrypted record, a strong cipher, and an encrypted header
_SIZES_FOLLOW = 0x8
_STORED = 0


@dataclass(frozen=True, slots=True)
class ZipRecord:
    """One record.

    Its data is in the bytes from `start` to `stop` of the file. `stored` is true if the data is uncompressed.
    """

    name: bytes
    start: int
    stop: int
    stored: bool


@dataclass(frozen=True, slots=True)
class _Directory:
    offset: int
    nbytes: int
    count: int


@dataclass(frozen=True, slots=True)
class _Entry:
    """The entry of a record in the directory. `header` is the position of the local header."""

    name: bytes
    flags: int
    method: int
    packed_bytes: int
    nbytes: int
    header: int


def looks_like_zip(file: RandomAccess) -> bool:
    """Whether the file begins with a record."""
    return file.nbytes >= _LOCAL.size and file.read(0, len(_LOCAL_MAGIC)) == _LOCAL_MAGIC


def read_records(file: RandomAccess) -> list[ZipRecord]:
    """Return the records of a file that looks like a zip archive, in the order of their bytes.

    Raises:
        Refused: The file is not a valid archive, its parts overlap, or a name occurs twice.
    """
    directory = _find_directory(file)
    entries = sorted(_entries(file, directory), key=lambda entry: entry.header)
    # Readers differ in which of two records with one name they use, so such an archive is refused.
    if len({entry.name for entry in entries}) < len(entries):
        refuse("the zip directory", "each name once", "one twice")
    records = []
    end = 0
    for entry in entries:
        # With overlapping records, two tensors could share a byte, and a small file could have huge contents.
        if entry.header < end:
            refuse(f"the zip record at byte {entry.header}", f"a start after byte {end}", "an overlap")
        record = _record(file, entry, directory.offset)
        end = record.stop
        records.append(record)
    return records


def _find_directory(file: RandomAccess) -> _Directory:
    # The end record is followed by at most a comment of 64 KiB, so only this part of the file is read.
    nbytes = min(file.nbytes, _END.size + _MAX_COMMENT_BYTES)
    tail = file.read(file.nbytes - nbytes, nbytes)
    at = tail.rfind(_END_MAGIC)
    # The comment may also contain the magic. The comment of the right record ends at the end of the file.
    while at >= 0 and not (at + _END.size <= nbytes and _END.unpack_from(tail, at)[-1] == nbytes - at - _END.size):
        at = tail.rfind(_END_MAGIC, 0, at)
    if at < 0:
        refuse("the zip archive", "a directory at its end", "none")
    _, disk, first_disk, here, count, size, offset, _ = _END.unpack_from(tail, at)
    end = file.nbytes - nbytes + at
    classic = (disk, first_disk, here, count, size, offset)
    wide = _read_end64(file, end)
    if wide is not None:
        end, *values = wide
        full = (_FULL16, _FULL16, _FULL16, _FULL16, _FULL32, _FULL32)
        # A reader that uses only the classic part must find the same records.
        if any(c not in (v, most) for c, v, most in zip(classic, values, full, strict=True)):
            refuse("the end of the zip directory", "the values of its zip64 part", "others")
        disk, first_disk, here, count, size, offset = values
    if disk or first_disk or here != count:
        refuse("the zip archive", "one file", "one of several")
    # The size is checked before the directory is read, so that a forged size does not allocate memory.
    if size > MAX_DIRECTORY_BYTES or count > MAX_TENSORS:
        refuse(
            "the zip directory", f"at most {MAX_DIRECTORY_BYTES} bytes for {MAX_TENSORS} records", f"{size}, {count}"
        )
    if offset + size != end or count * _CENTRAL.size > size:
        refuse("the zip directory", f"{count} records and an end at byte {end}", f"{size} bytes at {offset}")
    return _Directory(offset, size, count)


def _read_end64(file: RandomAccess, end: int) -> tuple[int, ...] | None:
    """Return the start and the values of the zip64 part that ends before byte `end`, or None without such a part."""
    at = end - _LOCATOR.size
    if at < _END64.size:
        return None
    magic, disk, start, disks = _LOCATOR.unpack(file.read(at, _LOCATOR.size))
    if magic != _LOCATOR_MAGIC:
        return None
    if disk or disks > 1 or start > at - _END64.size:
        refuse("the zip64 locator", f"a place before byte {at}", start)
    magic, nbytes, _, _, *values = _END64.unpack(file.read(start, _END64.size))
    if magic != _END64_MAGIC or start + 12 + nbytes != at:  # the size excludes the magic and the size field
        refuse(f"the zip64 end of the directory at byte {start}", f"an end at byte {at}", "something else")
    return start, *values


def _entries(file: RandomAccess, directory: _Directory) -> Iterator[_Entry]:
    data = file.read(directory.offset, directory.nbytes)
    at = 0
    for _ in range(directory.count):
        if at + _CENTRAL.size > len(data):
            refuse("the zip directory", f"{directory.count} records", "an end before")
        # Times, versions and attributes are ignored.
        magic, _, _, flags, method, _, _, _, *sizes, _, _, header = _CENTRAL.unpack_from(data, at)
        packed, nbytes, name_bytes, extra_bytes, comment_bytes, disk = sizes
        name_at = at + _CENTRAL.size
        extra_at = name_at + name_bytes
        at = extra_at + extra_bytes + comment_bytes
        if magic != _CENTRAL_MAGIC or at > len(data):
            refuse("the zip directory", f"{directory.count} records", "something else")
        extra = data[extra_at : extra_at + extra_bytes]
        nbytes, packed, header, disk = _widened(extra, nbytes, packed, header, disk)
        if disk:
            refuse("the zip archive", "one file", "one of several")
        yield _Entry(data[name_at:extra_at], flags, method, packed, nbytes, header)
    if at != len(data):
        refuse("the zip directory", f"{directory.count} records", f"{len(data) - at} bytes after them")


def _widened(extra: bytes, nbytes: int, packed: int, header: int, disk: int) -> tuple[int, int, int, int]:
    """Return the four values. A value that does not fit into its field is read from the zip64 field in `extra`."""
    values = [nbytes, packed, header, disk]
    full = [_FULL32, _FULL32, _FULL32, _FULL16]
    if all(value != most for value, most in zip(values, full, strict=True)):
        return nbytes, packed, header, disk
    wide = _extra64(extra)
    at = 0
    for i, width in enumerate((8, 8, 8, 4)):
        # The zip64 part only has the values of the full fields, one after another in this order.
        if values[i] == full[i] and at + width <= len(wide):
            values[i] = int.from_bytes(wide[at : at + width], "little")
            at += width
    return values[0], values[1], values[2], values[3]


def _extra64(extra: bytes) -> bytes:
    at = 0
    while at + _EXTRA.size <= len(extra):
        kind, length = _EXTRA.unpack_from(extra, at)
        at += _EXTRA.size
        if kind == _EXTRA64:
            return extra[at : at + length]
        at += length
    return b""


def _record(file: RandomAccess, entry: _Entry, end: int) -> ZipRecord:
    """Return the record of an entry. Refuse it if its local header differs, or if it does not end before byte `end`."""
    where = f"the zip record at byte {entry.header}"
    data_at = entry.header + _LOCAL.size + len(entry.name)
    if data_at > end:
        refuse(where, f"a header before byte {end}", "none")
    header = file.read(entry.header, _LOCAL.size + len(entry.name))
    # The local header must agree with the directory. Otherwise two readers could see different archives in one file.
    magic, _, flags, method, _, _, _, packed, _, name_bytes, extra_bytes = _LOCAL.unpack_from(header)
    if (
        magic != _LOCAL_MAGIC
        or name_bytes != len(entry.name)
        or header[_LOCAL.size :] != entry.name
        or method != entry.method
        or (flags ^ entry.flags) & _ENCRYPTED
        or not (flags & _SIZES_FOLLOW or packed in (entry.packed_bytes, _FULL32))
    ):
        refuse(where, "the header that the directory describes", "another")
    start = data_at + extra_bytes
    stop = start + entry.packed_bytes
    if stop > end:
        refuse(where, f"an end before byte {end}", stop)
    stored = entry.method == _STORED and not flags & _ENCRYPTED
    # A stored record has the same length packed and unpacked. With two different lengths, its end would be ambiguous.
    if stored and entry.packed_bytes != entry.nbytes:
        refuse(where, f"{entry.nbytes} bytes as they are", entry.packed_bytes)
    return ZipRecord(entry.name, start, stop, stored)
