"""Read a whole blob of a checkpoint once, and compare it and its pieces with their digests."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from ckstore.fs import blob_time, direct, files
from ckstore.fs.dirfd_stat import StorePath
from ckstore.model.digest import RunningDigest, algorithm_of
from ckstore.model.manifest.manifest import BlobRecord
from ckstore.objects import blobs
from ckstore.objects.checkpoints import CheckpointDirectory

# The size of one read. It is large enough for sequential reading, and small enough for short pauses between reads.
READ_BYTES = 4 * 2**20

Piece = tuple[str, int, int]
"""The digest, the offset in the blob, and the length. Offset and length are in bytes."""

Pace = Callable[[int], None]
"""A function that is called with the number of bytes of the next read, and may wait."""


@dataclass(slots=True)
class Checked:
    """The result of checking a blob."""

    problem: str = ""  # why the blob does not match its name; empty if it matches
    bad: dict[Piece, str] = field(default_factory=dict)  # piece with damaged or missing bytes -> its problem
    read_bytes: int = 0  # how many bytes of the blob were read and compared
    absent: bool = False  # whether the file is missing, has another size, or cannot be opened


@dataclass(frozen=True, slots=True)
class ReadMode:
    """Options for reading blobs."""

    buffer: memoryview  # from `buffers.aligned_buffer`, of `READ_BYTES` bytes; no other reader may use it meanwhile
    may_touch: bool = False  # whether the modification times of blobs may be changed
    # Whether the stamp of a damaged blob is removed. False if the same inode is correct under another name.
    may_distrust: bool = True
    pace: Pace | None = None  # called before each read
    by_size: bool = False  # whether all pieces of a file with the wrong size count as damaged without being read


def check_blob(
    directory: CheckpointDirectory, blob: BlobRecord, pieces: Iterable[Piece], how: ReadMode, *, whole: bool = True
) -> Checked:
    """Check a blob of an open checkpoint, and some of its pieces. Without `whole`, only these pieces are read."""
    # The bytes are read from the disk (`ckstore.fs.direct`). If `may_touch` is set, an intact blob without a stamp is
    # stamped, and the stamp of a damaged blob is removed, so that no save relies on the blob. A stamp is a time that
    # only ckstore sets (`ckstore.fs.blob_time`).
    pieces = list(pieces)
    try:
        place = directory.blobs.inside / blob.digest
    except (FileNotFoundError, NotADirectoryError):
        return _all_bad(blobs.why_absent(blob.digest, blob.nbytes, None), pieces)
    return _check(place, blob, pieces, how, whole=whole)


def check_file(path: StorePath, blob: BlobRecord, how: ReadMode) -> Checked:
    """Check a blob at a path in the store, like `check_blob`."""
    return _check(path, blob, [], how, whole=True)


def _check(path: StorePath, blob: BlobRecord, pieces: list[Piece], how: ReadMode, *, whole: bool) -> Checked:
    try:
        # Read from the disk: correct bytes in the page cache would hide a damaged sector until the next restart.
        with direct.opened_uncached(path) as file:
            return _check_open(file, blob, pieces, how, whole=whole)
    except (FileNotFoundError, NotADirectoryError):
        return _all_bad(blobs.why_absent(blob.digest, blob.nbytes, None), pieces)
    except OSError as error:
        # EIO means that the disk cannot read the blob. ELOOP means that a symlink has the name of the blob, and ENXIO
        # that a socket has it. Other errors are not about the blob, and must not mark it as damaged.
        if error.errno not in (errno.ELOOP, errno.EIO, errno.ENXIO):
            raise
        return _all_bad(f"blob {blob.digest} cannot be opened: {error.strerror}", pieces)


def _all_bad(problem: str, pieces: Iterable[Piece]) -> Checked:
    return Checked(problem, dict.fromkeys(pieces, problem), absent=True)


def _check_open(
    file: direct.UncachedFile, blob: BlobRecord, pieces: list[Piece], how: ReadMode, *, whole: bool
) -> Checked:
    status = os.fstat(file.fd)
    problem = blobs.why_absent(blob.digest, blob.nbytes, status)
    if problem:
        # A device or a pipe with the name of the blob must not be read, because the read might never end.
        if how.by_size or not stat.S_ISREG(status.st_mode):
            return _all_bad(problem, pieces)
        bad = {piece: problem for piece in pieces if _compare(file, piece, how)}
        return Checked(problem, bad, sum(piece[2] for piece in pieces), absent=True)
    # Only a blob that is read completely may be stamped, because one correct part does not prove that others are.
    if how.may_touch and whole and not blobs.looks_untouched(status, blob.nbytes):
        checked = _check_touched(file, blob, pieces, how)
    else:
        checked = _compare_all(file, blob, pieces, how, whole=whole)
    if how.may_touch and how.may_distrust and checked.problem:
        _distrust(file.fd)
    return checked


def _check_touched(file: direct.UncachedFile, blob: BlobRecord, pieces: list[Piece], how: ReadMode) -> Checked:
    """Check a blob that a program may have written to. If the blob is intact, stamp it."""
    # If the time of the blob cannot be set (another user's file, a full disk), the blob is only compared, and remains
    # suspect. Read the status before changing the time: if the file is not a blob, its old time is restored.
    before = os.fstat(file.fd)
    if blob.nbytes <= READ_BYTES:
        # For a small blob, an fsync takes longer than a read. Compare first, so that 100,000 damaged files do not
        # require 100,000 fsyncs.
        checked = _compare_all(file, blob, pieces, how, whole=True)
        if checked.problem:
            with suppress(OSError):
                blobs.refuse(file.fd, before)
            return checked
    try:
        blobs.suspect(file.fd)
    except OSError:
        return _compare_all(file, blob, pieces, how, whole=True)
    try:
        # Make the blob durable before reading it, because bytes in dirty pages may never reach the disk (law D2).
        os.fsync(file.fd)
    except OSError as error:  # the bytes may be only in memory, and a second fsync would not report this
        if error.errno in files.NOT_OF_THE_FILE:
            raise
        problem = f"a program wrote into blob {blob.digest}, and it cannot be made durable: {error.strerror}"
        return Checked(problem, dict.fromkeys(pieces, problem))
    checked = _compare_all(file, blob, pieces, how, whole=True)
    with suppress(OSError):  # if this fails, the file keeps the time that marks it as suspect
        if checked.problem:
            blobs.refuse(file.fd, before)
        else:
            blobs.clear(file.fd)
    return checked


def _compare_all(
    file: direct.UncachedFile, blob: BlobRecord, pieces: list[Piece], how: ReadMode, *, whole: bool
) -> Checked:
    checked = Checked()
    known: dict[Piece, str] = {}
    if whole:
        everything = (blob.digest, 0, blob.nbytes)
        # Compare the blob and its pieces in one pass, because a second pass would double the load of a verification.
        known = _compare_at_once(file, everything, pieces, how)
        checked.read_bytes = blob.nbytes
        if known[everything]:
            checked.problem = f"blob {blob.digest} is damaged: {known[everything]}"
    for piece in pieces:
        if piece not in known:
            known[piece] = _compare(file, piece, how)
            checked.read_bytes += 0 if whole else piece[2]
        if known[piece]:
            _, offset, length = piece
            where = f"bytes {offset} to {offset + length} of blob {blob.digest}"
            checked.bad[piece] = f"{where} are damaged: {known[piece]}"
    return checked


class _Running:
    """A piece that is being read."""

    def __init__(self, piece: Piece) -> None:
        self.piece = piece
        self.stop = piece[1] + piece[2]
        self._digest: RunningDigest = algorithm_of(piece[0]).start()

    def update(self, at: int, data: memoryview) -> None:
        """Hash the part of the piece that is in `data`, which begins at the offset `at` of the blob."""
        self._digest.update(data[max(self.piece[1] - at, 0) : self.stop - at])

    def verdict(self) -> str:
        found = algorithm_of(self.piece[0]).digest_of_parts(self._digest)
        return "" if found == self.piece[0] else f"the digest is {found}, wanted {self.piece[0]}"


def _compare_at_once(
    file: direct.UncachedFile, everything: Piece, pieces: Iterable[Piece], how: ReadMode
) -> dict[Piece, str]:
    """Read a range once. Return its problem, and the problem of each piece in it that could be read ("" if none)."""
    # Sort the pieces in descending order, so that the next one is at the end of the list.
    waiting = sorted(({*pieces} - {everything}), key=lambda piece: piece[1], reverse=True)
    open_now = [_Running(everything)]
    known: dict[Piece, str] = {}
    at, stop = everything[1], everything[1] + everything[2]
    while at < stop:
        try:
            if how.pace is not None:
                how.pace(min(stop - at, READ_BYTES))
            data = file.read(at, stop, how.buffer)
        except OSError as error:
            # Only EIO means that the disk lost the bytes. Other errors are problems of this process or of a server.
            if error.errno != errno.EIO:
                raise
            return {**known, everything: f"the disk cannot read byte {at}: {error.strerror}"}
        if not data:
            return {**known, everything: f"it ends after {at} bytes"}
        while waiting and waiting[-1][1] < at + len(data):
            open_now.append(_Running(waiting.pop()))
        for running in open_now:
            running.update(at, data)
        at += len(data)
        known.update((running.piece, running.verdict()) for running in open_now if running.stop <= at)
        open_now = [running for running in open_now if running.stop > at]
    # An empty blob is never read, but its digest must be compared.
    return known if everything[2] else {everything: open_now[0].verdict()}


def _compare(file: direct.UncachedFile, piece: Piece, how: ReadMode) -> str:
    """Return the problem with a range of bytes of an open blob, or an empty string if the digest matches."""
    return _compare_at_once(file, piece, (), how)[piece]


def _distrust(fd: int) -> None:
    # A file without a stamp need not be changed: no save relies on it, and it may not even be a blob.
    if not blob_time.is_stamp(os.fstat(fd).st_mtime_ns):
        return
    with suppress(OSError):  # an error, such as for another user's file or on a full disk, must not hide the damage
        blob_time.mark_suspect(fd)
