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

# Large enough that the disk streams, small enough that a pause between two reads slows a verification evenly.
READ_BYTES = 4 * 2**20

Piece = tuple[str, int, int]
"""Digest, offset in the blob, length."""

Pace = Callable[[int], None]
"""Called with the number of bytes of the next read. May wait."""


@dataclass(slots=True)
class Checked:
    """The result of checking a blob."""

    problem: str = ""  # why the blob is not what its name says; empty if it is
    bad: dict[Piece, str] = field(default_factory=dict)  # pieces whose bytes are damaged or missing, and how
    read_bytes: int = 0  # bytes of the blob that were read and compared, each once
    absent: bool = False  # whether there is no file of that size


@dataclass(frozen=True, slots=True)
class ReadMode:
    """Options for reading blobs."""

    buffer: memoryview  # of `buffers.aligned_buffer`, `READ_BYTES` long; not used by others meanwhile
    may_touch: bool = False  # whether times may be set
    # Whether a damaged blob loses its stamp. False if the same inode is correct under another name.
    may_distrust: bool = True
    pace: Pace | None = None  # called before each read
    by_size: bool = False  # read nothing of a file that has another size: all in it counts as damaged


def check_blob(
    directory: CheckpointDirectory, blob: BlobRecord, pieces: Iterable[Piece], how: ReadMode, *, whole: bool = True
) -> Checked:
    """Check a blob of an open checkpoint."""
    # The bytes come from the disk, see `ckstore.fs.direct`. If times may be set, a blob without a stamp whose bytes are
    # right is stamped, and a damaged one loses its stamp, so that no save relies on it.
    pieces = list(pieces)
    try:
        place = directory.blobs.inside / blob.digest
    except (FileNotFoundError, NotADirectoryError):
        return _all_bad(blobs.why_absent(blob.digest, blob.nbytes, None), pieces)
    return _check(place, blob, pieces, how, whole=whole)


def check_file(path: StorePath, blob: BlobRecord, how: ReadMode) -> Checked:
    """Check a blob, given by its place in the store, like `check_blob`."""
    return _check(path, blob, [], how, whole=True)


def _check(path: StorePath, blob: BlobRecord, pieces: list[Piece], how: ReadMode, *, whole: bool) -> Checked:
    try:
        # From the disk: a page cache that is right would hide a rotten sector until the next restart.
        with direct.opened_uncached(path) as file:
            return _check_open(file, blob, pieces, how, whole=whole)
    except (FileNotFoundError, NotADirectoryError):
        return _all_bad(blobs.why_absent(blob.digest, blob.nbytes, None), pieces)
    except OSError as error:
        # ELOOP: there is a symlink in place of the blob. ENXIO: there is a socket. Any other error says nothing about
        # the blob and must not mark it.
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
        # A device or a pipe in its place must not be read: it could wait for ever, or never end.
        if how.by_size or not stat.S_ISREG(status.st_mode):
            return _all_bad(problem, pieces)
        bad = {piece: problem for piece in pieces if _compare(file, piece, how)}
        return Checked(problem, bad, sum(piece[2] for piece in pieces), absent=True)
    # Only a blob that is read whole may be stamped: a part that is right says nothing of the rest.
    if how.may_touch and whole and not blobs.looks_untouched(status, blob.nbytes):
        checked = _check_touched(file, blob, pieces, how)
    else:
        checked = _compare_all(file, blob, pieces, how, whole=whole)
    if how.may_touch and how.may_distrust and checked.problem:
        _distrust(file.fd)
    return checked


def _check_touched(file: direct.UncachedFile, blob: BlobRecord, pieces: list[Piece], how: ReadMode) -> Checked:
    """Check a blob that a program may have written to. If it is right, it is stamped."""
    # If its time cannot be set (another user's file, a full disk), it is only compared, and remains as suspect as it
    # was. The status is read before the time is changed: the file may be a user's own, and then it gets its old time
    # back.
    before = os.fstat(file.fd)
    if blob.nbytes <= READ_BYTES:
        # For a small blob, a flush takes longer than a read. Compare first, so that 100,000 wrong files from a stranger
        # do not cost 100,000 flushes.
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
        # Durable before it is read: right bytes in dirty pages could still fail to reach the disk (law D2).
        os.fsync(file.fd)
    except OSError as error:  # the bytes may be in memory only, and a second fsync would not tell
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
        # Blob and pieces in one pass: reading a second time would double the load of a verification.
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
    """A piece that is partly read."""

    def __init__(self, piece: Piece) -> None:
        self.piece = piece
        self.stop = piece[1] + piece[2]
        self._digest: RunningDigest = algorithm_of(piece[0]).start()

    def update(self, at: int, data: memoryview) -> None:
        """Hash the part of the piece that is in the bytes from `at`."""
        self._digest.update(data[max(self.piece[1] - at, 0) : self.stop - at])

    def verdict(self) -> str:
        found = algorithm_of(self.piece[0]).digest_of_parts(self._digest)
        return "" if found == self.piece[0] else f"the digest is {found}, wanted {self.piece[0]}"


def _compare_at_once(
    file: direct.UncachedFile, everything: Piece, pieces: Iterable[Piece], how: ReadMode
) -> dict[Piece, str]:
    """Read a range once. Return its problem, and the problem of each piece in it that could be read."""
    # The last piece first, so that the next one to begin is taken from the end of the list.
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
            # Only EIO says that the medium lost the bytes; anything else is this process's or the server's trouble.
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
    # An empty blob is never read, and still has a digest to be compared.
    return known if everything[2] else {everything: open_now[0].verdict()}


def _compare(file: direct.UncachedFile, piece: Piece, how: ReadMode) -> str:
    """Return the problem of a range of bytes of an open blob, empty if the digest matches."""
    return _compare_at_once(file, piece, (), how)[piece]


def _distrust(fd: int) -> None:
    if not blob_time.is_stamp(
        os.fstat(fd).st_mtime_ns
    ):  # no save relies on it, and it may be a file that is not a blob
        return
    with suppress(OSError):  # another user's file, or a full disk: that must not hide the damage
        blob_time.mark_suspect(fd)
