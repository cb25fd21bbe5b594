"""Read a share of the blobs that a save reuses from the disk, to detect rot while the right bytes are available.

A hit is accepted by size and time, which rot does not change. Therefore each save compares some of its hits, those read
longest ago first (`model/settings/recheck`). A blob that differs is not a hit: the save writes the bytes and heals the
blob in every checkpoint that has it.

The blobs to read are chosen before the first chunk is hashed, from the blobs of the last checkpoint of the run, so that
the hashing threads read them. Hits that were not foreseen are chosen when all of them are known.
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
"""The share of the time since the save began that all threads together may read: that of one in four threads."""


class Recheck:
    """The blobs that one save reads again. Its methods may be called from several threads.

    `share` is the share of the bytes of the state to read again; 0 reads nothing.
    """

    def __init__(self, context: Context, staging: Staging, run: str, state_bytes: int, share: float) -> None:
        # Digest -> problem, for each blob that the save would have reused and that does not match its name.
        self.damaged: dict[str, str] = {}
        self._context = context
        self._staging = staging
        self.run = run
        self._everything = share == 1
        # A pack may be larger than the pieces that the state uses, so a share of 1 has no budget that could be too
        # small.
        # Two budgets of one size: foreseen hits must not use up the budget of unforeseen ones.
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
        """Return the blobs that this save will mostly reuse: those of the last checkpoint of the run."""
        if not self._budget_bytes:
            return ()
        run, readings = self._context.known.relied_on
        # The previous save of this process kept them, so the trainer does not wait for the catalog.
        if run == self.run:
            return readings
        try:
            return self._context.catalog.readings_of_newest(self.run)
        except CatalogUnavailable:  # then every hit is unforeseen
            return ()

    def _to_do(self, reading: Reading) -> Reading:
        """Return the rest of a partial reading; if everything is to be read, it begins again."""
        return replace(reading, read_to=0) if self._everything else reading

    def foresaw(self, digest: str) -> bool:
        """Whether the blob was considered in the first choice."""
        return not self._budget_bytes or digest in self._known

    def add(self, hits: Mapping[str, int], *, whole: bool) -> None:
        """Choose among unforeseen hits, digest -> size; `whole` if their bytes are not available in one sequence."""
        if self._unforeseen_bytes <= 0 or not hits:
            return
        readings = {digest: Reading(digest, nbytes, whole=whole) for digest, nbytes in hits.items()}
        with suppress(CatalogUnavailable):  # then all count as never read
            for reading in self._context.catalog.readings(hits):
                readings[reading.digest] = self._to_do(replace(reading, nbytes=hits[reading.digest], whole=whole))
        with self._mutex:
            self._known.update(readings)
            for part in due(readings.values(), self._unforeseen_bytes, time.time_ns()):
                self._due[part.digest] = part
                self._unforeseen_bytes -= part.stop - part.start

    # ------------------------------------------------------------------------------------------- read

    def agrees(self, digest: str, bytes_of: Callable[[int, int], memoryview], *, believed: bool = False) -> bool:
        """Whether a claimed blob can be reused: it is not due to be read, or the disk has these bytes.

        Args:
            digest: The blob.
            bytes_of: Returns the bytes that the blob should have between two offsets. They may be those of a live
                tensor: if they differ, the blob is compared with its digest.
            believed: The digest was inferred from evidence. If the bytes differ, the blob cannot be used for them.
        """
        part = self._due.get(digest)
        # Skipping is safe: an unread blob is older at the next save, and is chosen first then.
        if part is None or not self._may_go_on():
            return True
        begun_s = time.monotonic()
        try:
            data = bytes_of(part.start, part.stop)
            if not hasattr(self._local, "buffer"):  # one for each thread
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
            # A lack of descriptors or memory is a problem of this process. Treating the blob as damaged would write it
            # again for nothing.
            if error.errno in files.NO_MEANS:
                raise
            stopped_at = None
        self._took(begun_s, (part.stop if stopped_at is None else stopped_at) - part.start)
        # The tensor may have changed meanwhile, so the blob counts as damaged only if its own digest differs.
        if stopped_at is None:
            return self.is_right(digest, self._known[digest].nbytes) and not believed
        self._note(after(self._known[digest], part, stopped_at, time.time_ns()))
        return True

    def agrees_whole(self, digest: str) -> bool:
        """As `agrees`, by the digest of the whole blob."""
        if digest not in self._due or not self._may_go_on():
            return True
        return self.is_right(digest, self._known[digest].nbytes)

    def is_right(self, digest: str, nbytes: int) -> bool:
        """Whether the staged blob on the disk matches its name, by reading all of it. If not, no save reuses it."""
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
        """Whether reading may take more time: a slow disk reads less, but never less than `LEAST_BYTES`."""
        # A share of 1 means that everything is read, regardless of the time.
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
        """Return the readings for the catalog to record: of blobs that were read, and of written ones."""
        now_ns = time.time_ns()
        read = {digest: (reading.read_ns, reading.read_to) for digest, reading in self._read.items()}
        return {**read, **dict.fromkeys(self._staging.written, (now_ns, 0))}

    def remember(self, blobs: Iterable[BlobRecord], packs: set[str]) -> None:
        """Keep the blobs that the next save of the run will reuse, in this process."""
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

        Call it after the commit. It raises nothing.
        """
        return [self._warning(digest, problem) for digest, problem in self.damaged.items()]

    def _warning(self, digest: str, problem: str) -> str:
        # The save had the right bytes, and `put` replaced every link to the damaged blob.
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
        """Read the blob in every checkpoint that has it; mark and return those that need the damaged bytes."""
        # Imported only for a damaged blob: other saves never load the verifier.
        from ckstore.ops.check.verifier import Verifier

        layout = self._context.layout
        hurt = []
        with Verifier(self._context) as checker:
            # Check every checkpoint, not the list of the catalog: only directories say which ones link to the damaged
            # inode.
            for key, _ in sorted(layout.published()):
                status = dirfd_stat.find(layout.checkpoint(key) / BLOBS / digest)
                if status is None:
                    continue
                result = checker.checkpoint(key, {(status.st_dev, status.st_ino, digest)})
                if result is not None and any(found.affects and found.blob == digest for found in result[1]):
                    hurt.append(key.name)
        return hurt
