"""Read a blob of a checkpoint whole and compare it, and the pieces in it, with their digests."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ckstore.fs import files
from ckstore.model.digest import algorithm_of
from ckstore.objects import blobs
from ckstore.objects.layout import BLOBS

if TYPE_CHECKING:
    from ckstore.model.manifest import BlobRecord

READ_BYTES = 4 * 2**20

Piece = tuple[str, int, int]
"""Digest, offset in the blob, length."""


@dataclass(slots=True)
class Checked:
    """What a blob turned out to be.

    Attributes:
        problem: Why the blob is not what its name says; empty if it is.
        bad: Pieces whose bytes are damaged or missing, and how.
        read_bytes: Bytes of the blob that were read and compared, each once.
        absent: Whether there is no file of that size.
    """

    problem: str = ""
    bad: dict[Piece, str] = field(default_factory=dict)
    read_bytes: int = 0
    absent: bool = False


def check_blob(
    dir_fd: int, blob: BlobRecord, pieces: Iterable[Piece], buffer: memoryview, *, may_touch: bool, whole: bool = True
) -> Checked:
    """Check a blob of the checkpoint whose directory is `dir_fd`.

    What the page cache holds of it is dropped first as far as the kernel does that (not what is mapped or dirty, and
    nothing on tmpfs), so that the bytes come from the disk. With `may_touch`, a blob of another time whose bytes are
    right gets the fixed time back, and a damaged one loses it, so that no save relies on it.

    Args:
        dir_fd: The directory, open.
        blob: As the manifest says.
        pieces: The pieces of it that are to be compared.
        buffer: Memory to read into; not used by others meanwhile.
        may_touch: Whether times may be set.
        whole: Whether to compare the whole blob with its name, too.

    Raises:
        OSError: The system refused to open it.
    """
    pieces = list(pieces)
    name = f"{BLOBS}/{blob.digest}"
    try:
        with files.opened(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=dir_fd) as fd:
            return _check_open(fd, blob, pieces, buffer, may_touch=may_touch, whole=whole)
    except (FileNotFoundError, NotADirectoryError):
        return _all_bad(f"blob {blob.digest} is missing", pieces)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EIO, errno.ENXIO):
            raise
        return _all_bad(f"blob {blob.digest} cannot be opened: {error.strerror}", pieces)


def _all_bad(problem: str, pieces: Iterable[Piece]) -> Checked:
    return Checked(problem, dict.fromkeys(pieces, problem), absent=True)


def _check_open(
    fd: int, blob: BlobRecord, pieces: list[Piece], buffer: memoryview, *, may_touch: bool, whole: bool
) -> Checked:
    status = os.fstat(fd)
    if not blobs.has_size(status, blob.nbytes):
        return _all_bad(f"blob {blob.digest} has {status.st_size} bytes, wanted {blob.nbytes}", pieces)
    if may_touch and whole and not blobs.looks_untouched(status, blob.nbytes):
        _set_time(fd, files.BLOB_MTIME_NS)  # before it is read, so that a write during or after that shows
    checked = Checked()
    known: dict[Piece, str] = {}
    if whole:
        with suppress(OSError):  # a filesystem that cannot drop pages: then they are compared as they are
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        everything = (blob.digest, 0, blob.nbytes)
        known[everything] = _compare(fd, everything, buffer)
        checked.read_bytes = blob.nbytes
        if known[everything]:
            checked.problem = f"blob {blob.digest} is damaged: {known[everything]}"
    for piece in pieces:
        if piece not in known:
            known[piece] = _compare(fd, piece, buffer)
            checked.read_bytes += 0 if whole else piece[2]
        if known[piece]:
            _, offset, length = piece
            where = f"bytes {offset} to {offset + length} of blob {blob.digest}"
            checked.bad[piece] = f"{where} are damaged: {known[piece]}"
    if may_touch and checked.problem:
        _set_time(fd, 0)
    return checked


def _compare(fd: int, piece: Piece, buffer: memoryview) -> str:
    """Return what is wrong with a run of bytes of an open blob; empty if it has its digest."""
    digest, start, length = piece
    algorithm = algorithm_of(digest)
    running = algorithm.start()
    done = 0
    while done < length:
        try:
            count = os.preadv(fd, [buffer[: length - done]], start + done)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return f"the disk cannot read byte {start + done}: {error.strerror}"
        if count == 0:
            return f"it ends after {start + done} bytes"
        running.update(buffer[:count])
        done += count
    found = algorithm.digest_of_parts(running)
    return "" if found == digest else f"they have the digest {found}, wanted {digest}"


def _set_time(fd: int, time_ns: int) -> None:
    with suppress(PermissionError):  # another user's file
        os.utime(fd, ns=(time_ns, time_ns))
