"""Reread from disk a share of the blobs that a save reuses, to detect bit rot while the right bytes are available.

A hit is a stored blob that a save reuses instead of writing its bytes. A save accepts a blob as a hit if its size and
modification time are as expected, but bit rot changes neither. Therefore each save also compares the bytes of some
hits, beginning with the blobs that were read longest ago (`model/settings/recheck`). If a blob is damaged, the save
writes the right bytes instead of reusing the blob. If it writes them under the same digest, they also replace the
damaged blob in every checkpoint. Otherwise, the checkpoints that need the damaged bytes are marked.

A hit is foreseen if the last checkpoint of the run has the blob. Foreseen hits are chosen before the first chunk is
hashed, so that the hashing threads can read them. Unforeseen hits are chosen when all of them are known.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from ckstore.errors import CatalogUnavailable, CkstoreError
from ckstore.fs import dirfd_stat, files
from ckstore.fs.buffers import GRAIN_BYTES, aligned_buffer
from ckstore.model.manifest.manifest import BlobRecord
from ckstore.model.settings.recheck import LEAST_BYTES, Reading, after, due, recheck_bytes
from ckstore.objects.blob_check import READ_BYTES, Checked, ReadMode, check_file
from ckstore.objects.blobs import agrees_to, reading_buffer
from ckstore.objects.layout import BLOBS
from ckstore.objects.staging import Staging
from ckstore.ops.api_calls import why_of
from ckstore.ops.context import Context
from ckstore.ops.events import note

_SHARE_OF_TIME = 1 / 4
"""The maximum total reading time of all threads, as a share of the time since the save began."""


class Recheck:
    """The blobs that one save rereads.

    The methods may be called from several threads. `share` is the fraction of the state's bytes to reread. If it is 0,
    nothing is reread.
    """

    def __init__(self, context: Context, staging: Staging, run: str, state_bytes: int, share: float) -> None:
        # Digest -> problem, for each blob that the save would have reused and whose bytes do not match its digest.
        self.damaged: dict[str, str] = {}
        self._context = context
        self._staging = staging
        self.run = run
        self._everything = share == 1
        # A share of 1 sets no limit. A limit computed from the size of the state could be too small, because packs also
        # contain pieces that the state does not use.
        # There are two budgets of the same size, so that foreseen hits cannot use up the budget of unforeseen hits.
        self._budget_bytes = self._unforeseen_bytes = (
            sys.maxsize if self._everything else recheck_bytes(state_bytes, share)
        )
        self._known = {reading.digest: self._to_do(reading) for reading in self._foreseen()}
        self._due = {part.digest: part for part in due(self._known.values(), self._budget_bytes, time.time_ns())}
        self._mutex = threading.Lock()
        self._local = threading.local()
        self._began_s = time.monotonic()
        self._spent_s = 0.0
        self._read_bytes = 0
        self._read: dict[str, Reading] = {}

    def _foreseen(self) -> Iterable[Reading]:
        """Return the last readings of the blobs of the run's last checkpoint; this save will reuse most of them."""
        if not self._budget_bytes:
            return ()
        run, readings = self._context.known.relied_on
        # If the previous save of this process was to the same run, it remembered the readings. Then the trainer need
        # not wait for the catalog.
        if run == self.run:
            return readings
        try:
            return self._context.catalog.readings_of_newest(self.run)
        except CatalogUnavailable:  # then every hit is unforeseen
            return ()

    def _to_do(self, reading: Reading) -> Reading:
        """Return the reading to continue, reset to its beginning if everything must be read."""
        return replace(reading, read_to=0) if self._everything else reading

    def foresaw(self, digest: str) -> bool:
        """Whether the blob is foreseen, or nothing is to be read, so that `add` is not needed for the blob."""
        return not self._budget_bytes or digest in self._known

    def add(self, hits: Mapping[str, int], *, whole: bool) -> None:
        """Choose which unforeseen hits to read.

        Args:
            hits: The sizes in bytes of the unforeseen hits, by digest.
            whole: Whether each blob must be read completely, because the save does not have all of its bytes.
        """
        if self._unforeseen_bytes <= 0 or not hits:
            return
        readings = {digest: Reading(digest, nbytes, whole=whole) for digest, nbytes in hits.items()}
        with suppress(CatalogUnavailable):  # then all hits count as never read
            for reading in self._context.catalog.readings(hits):
                readings[reading.digest] = self._to_do(replace(reading, nbytes=hits[reading.digest], whole=whole))
        with self._mutex:
            self._known.update(readings)
            for part in due(readings.values(), self._unforeseen_bytes, time.time_ns()):
                self._due[part.digest] = part
                self._unforeseen_bytes -= part.stop - part.start

    # ------------------------------------------------------------------------------------------- read

    def agrees(self, digest: str, bytes_of: Callable[[int, int], memoryview], *, believed: bool = False) -> bool:
        """Whether a claimed blob can be reused.

        If it is due to be read, this reads it and checks that it has the right bytes on disk.

        Args:
            digest: The blob.
            bytes_of: Returns the bytes that the blob should have between two offsets. These bytes may come from a live
                tensor that is changing. Therefore, a blob with other bytes is also compared with its digest.
            believed: Whether the digest was inferred from a fingerprint and not computed from these bytes. If so, a
                blob whose bytes differ cannot be reused.
        """
        part = self._due.get(digest)
        # It is safe to skip a blob, because the next save chooses the blobs with the oldest readings first.
        if part is None or not self._may_go_on():
            return True
        begun_s = time.monotonic()
        try:
            data = bytes_of(part.start, part.stop)
            if not hasattr(self._local, "buffer"):  # one buffer per thread
                self._local.buffer = reading_buffer()
            stopped_at = agrees_to(
                self._staging.path_of(digest),
                data,
                part.start,
                algorithm=self._context.algorithm,
                buffer=self._local.buffer,
                go_on=self._may_go_on,
            )
        except OSError as error:
            # A lack of descriptors or memory is a problem of this process and does not mean that the blob is damaged.
            if error.errno in files.NO_MEANS:
                raise
            stopped_at = None
        self._took(begun_s, (part.stop if stopped_at is None else stopped_at) - part.start)
        # The tensor may have changed meanwhile, so the blob is damaged only if its bytes do not match its digest.
        if stopped_at is None:
            return self.is_right(digest, self._known[digest].nbytes) and not believed
        self._note(after(self._known[digest], part, stopped_at, time.time_ns()))
        return True

    def agrees_whole(self, digest: str) -> bool:
        """Whether a claimed blob can be reused. Unlike `agrees`, this compares the whole blob with its digest."""
        if digest not in self._due or not self._may_go_on():
            return True
        return self.is_right(digest, self._known[digest].nbytes)

    def is_right(self, digest: str, nbytes: int) -> bool:
        """Return whether a staged blob on disk matches its digest, and record the blob as damaged if it does not."""
        begun_s = time.monotonic()
        buffer = aligned_buffer(min(READ_BYTES, -(-nbytes // GRAIN_BYTES) * GRAIN_BYTES + GRAIN_BYTES))
        try:
            checked = check_file(
                self._staging.path_of(digest), BlobRecord(digest, nbytes), ReadMode(buffer, may_touch=True)
            )
        except OSError as error:
            if error.errno in files.NO_MEANS:
                raise
            checked = Checked(f"blob {digest} cannot be read: {error.strerror}")
        self._took(begun_s, nbytes)
        if checked.problem:
            with self._mutex:
                self.damaged[digest] = checked.problem
            return False
        self._note(Reading(digest, nbytes, time.time_ns(), 0, whole=True))
        return True

    def _may_go_on(self) -> bool:
        """Whether to continue reading within the time limit; at least `LEAST_BYTES` are read, even from a slow disk."""
        # With a share of 1, everything is read, regardless of the time.
        with self._mutex:
            allowed_s = _SHARE_OF_TIME * (time.monotonic() - self._began_s)
            return self._everything or self._read_bytes < LEAST_BYTES or self._spent_s <= allowed_s

    def _took(self, begun_s: float, nbytes: int) -> None:
        with self._mutex:
            self._spent_s += time.monotonic() - begun_s
            self._read_bytes += nbytes

    def _note(self, reading: Reading) -> None:
        with self._mutex:
            self._read[reading.digest] = reading

    # ----------------------------------------------------------------------------------- when it is done

    def readings(self) -> dict[str, tuple[int, int]]:
        """Return `read_ns` and `read_to` of each blob that this save read or wrote (see `Reading`), for the catalog."""
        now_ns = time.time_ns()
        read = {digest: (reading.read_ns, reading.read_to) for digest, reading in self._read.items()}
        return {**read, **dict.fromkeys(self._staging.written, (now_ns, 0))}

    def remember(self, blobs: Iterable[BlobRecord], packs: set[str]) -> None:
        """Remember in this process the blobs that the next save of the run will reuse."""
        now_ns = time.time_ns()
        kept = []
        for blob in blobs:
            digest = blob.digest
            known = self._read.get(digest) or self._known.get(digest) or Reading(digest, blob.nbytes)
            at = (now_ns, 0) if digest in self._staging.written else (known.read_ns, known.read_to)
            kept.append(Reading(digest, blob.nbytes, *at, digest in packs))
        self._context.known.relied_on = (self.run, kept)

    def warnings(self) -> list[str]:
        """Return a sentence for each damaged blob, and mark checkpoints with a blob that could not be healed.

        Call this method after the commit. If checkpoints cannot be marked, the sentence gives the reason.
        """
        return [self._warning(digest, problem) for digest, problem in self.damaged.items()]

    def _warning(self, digest: str, problem: str) -> str:
        # The save had the right bytes, and `Staging.put` replaced every link to the damaged blob.
        if digest in self._staging.written:
            note(self._context, "healed", (self.run, None), nbytes=self._staging.written[digest], why=problem)
            return (
                f"{problem}. Each save rereads a share of the blobs that it reuses; this one put the right"
                " bytes in place in every checkpoint that uses the blob. Check the disk"
            )
        try:
            hurt = self._mark_users(digest)
            marked = f"; marked as damaged: {', '.join(hurt)}" if hurt else ""
        except (CkstoreError, OSError) as error:
            reason = why_of(error)
            marked = f"; the checkpoints that use it could not be marked: {reason}"
        return (
            f"{problem}. The save wrote the bytes that it needs to another blob{marked}. Run ckstore "
            "verify and check the disk"
        )

    def _mark_users(self, digest: str) -> list[str]:
        """Read a blob in all checkpoints; mark the checkpoints that need its damaged bytes, and return their names."""
        # Imported here, so that only a save with a damaged blob loads the verifier.
        from ckstore.ops.check.verifier import Verifier

        layout = self._context.layout
        hurt = []
        with Verifier(self._context) as checker:
            # Check every directory, because the catalog does not record which checkpoints link to the damaged inode.
            for key, _ in sorted(layout.published()):
                status = dirfd_stat.find(layout.checkpoint(key) / BLOBS / digest)
                if status is None:
                    continue
                result = checker.checkpoint(key, {(status.st_dev, status.st_ino, digest)})
                if result is not None and any(found.affects and found.blob == digest for found in result[1]):
                    hurt.append(key.name)
        return hurt
