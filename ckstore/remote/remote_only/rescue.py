"""Repairs a blob that a load finds damaged or missing, with a copy from the store itself or from a remote.

This is the repair of ``verify --repair`` for one blob. If it is not possible, for example because the store is open for
reading only, the disk is full, or the files belong to another user, the load uses the downloaded bytes. A store without
remotes repairs nothing automatically, since a person should decide which files are moved to its quarantine.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from weakref import WeakKeyDictionary

from ckstore.errors import CkstoreError, DamagedBlob, InUse, RemoteError
from ckstore.fs import dirfd_stat, files, links, locks
from ckstore.fs.dirfd_stat import StorePath
from ckstore.model.digest import is_digest
from ckstore.model.manifest.manifest import MANIFEST_MAX_BYTES, BlobRecord
from ckstore.model.names import CheckpointKey, key_of
from ckstore.model.reports.verify_report import Damage
from ckstore.model.settings.free_space import Amount
from ckstore.objects import blobs
from ckstore.objects.checkpoints import CheckpointDirectory, Rescued, look, may_lack_blobs
from ckstore.objects.documents import marks
from ckstore.objects.layout import BLOBS, MANIFEST, PLAIN
from ckstore.ops.api_calls import why_of
from ckstore.ops.call_threads import for_each
from ckstore.ops.check.verifier import Verifier
from ckstore.ops.context import Context, CopyAnswer, CopySource
from ckstore.ops.index.reconcile import update_row
from ckstore.ops.notices import warn
from ckstore.ops.verify.blob_copies import BlobRequest, Copies
from ckstore.ops.verify.repair import repair

# The maximum wait for another process that repairs the same blob, enough for a download. After that, this process reads
# the blob from the remote and repairs nothing.
_LOCK_S = 60.0
_AGAIN_S = 60.0
# The space that a repaired blob takes in addition to its bytes: inodes, and names in staging and in quarantine.
_BESIDE_BYTES = 64 * 2**10
_BESIDE_INODES = 8
# If a store has at most this number of other checkpoints, they are searched for the same missing blobs. If it has more,
# none is searched, and `verify --repair` finds the blobs.
_SEARCHED_MOST = 1000
_SHOWN = 5
_DIGEST = re.compile(rb"[a-z0-9]+-[0-9a-f]{32,64}")


class RemoteRescuer:
    """See `ckstore.ops.context.Rescuer`."""

    def __init__(self, context: Context, remotes: CopySource) -> None:
        self._context = context
        self._remotes = remotes
        self._failed_s: dict[CheckpointKey, float] = {}
        # Open checkpoint -> all checkpoints that got a blob from its repairs.
        self._repaired: WeakKeyDictionary[CheckpointDirectory, set[CheckpointKey]] = WeakKeyDictionary()
        # Open checkpoint -> digest of a blob that it lacks -> other checkpoints that also lack the blob.
        self._lacking: WeakKeyDictionary[CheckpointDirectory, dict[str, list[CheckpointKey]]] = WeakKeyDictionary()

    def blob(
        self, directory: CheckpointDirectory, error: DamagedBlob | RemoteError, blob: BlobRecord, *, first: bool
    ) -> memoryview | None:
        """Repair the file that an error names. Return None if the repair succeeded, otherwise the bytes of the blob.

        After None, the reader reads the file again. `first` is False if the reader has already done so.

        Raises:
            DamagedBlob, RemoteError: No remote has the blob. This is `error`, extended with the answers of the remotes.
        """
        # For an evicted blob, the remotes that should have it were already queried. Only another remote can help.
        if not self._remotes or (isinstance(error, RemoteError) and len(self._remotes) < 2):
            raise error
        problem = "the checkpoint is evicted" if isinstance(error, RemoteError) else "it was damaged after the repair"
        answers: dict[str, CopyAnswer] = {}
        if first and isinstance(error, DamagedBlob):
            problem = self._repair(directory, error, answers)
            if not problem:
                return None
            # Saves must not reuse the damaged file. But the checkpoint is not marked as damaged, because loads can read
            # the bytes from a remote, and `latest-valid` need not use an older checkpoint.
            if error.blob and not self._context.readonly:
                with suppress(OSError):  # it belongs to another user, or is missing
                    blobs.distrust(directory.lock.inside / BLOBS / error.blob)
        # If the repair has already downloaded the bytes, the load uses them.
        answer = answers.get(blob.digest) or self._remotes.blob(blob, [_place_of(directory)])
        if answer.data is None:
            problems = "; ".join(answer.problems)
            error.args = (f"{error.message}. No remote has an intact copy: {problems}", *error.args[1:])
            raise error
        directory.rescued.setdefault(blob.digest, Rescued(answer.source, problem))
        return memoryview(answer.data)

    def checkpoint(self, key: CheckpointKey) -> bool:
        """Repair the missing and marked blobs of a checkpoint. Return whether it is then complete and has no mark."""
        context = self._context
        if not self._remotes or context.readonly or context.writes_disabled_because:
            return False
        # A training may request its newest checkpoint repeatedly. A failed repair is not attempted again in each call.
        if time.monotonic() - self._failed_s.get(key, -math.inf) < _AGAIN_S:
            return False
        with suppress(CkstoreError, OSError):  # the caller reports the problem of the checkpoint
            if self._repair_checkpoint(key, context.layout.checkpoint(key)):
                return True
        self._failed_s[key] = time.monotonic()
        return False

    def _repair_checkpoint(self, key: CheckpointKey, path: StorePath) -> bool:
        try:
            directory = CheckpointDirectory.at(path, self._context.layout.hash_prefix)
        except DamagedBlob as error:
            damage = Damage(*key.run_step, (), "", error.message, directory=key.directory)
            if not repair(self._context, [damage], (), asked=self._remotes).repaired:
                return False
            directory = CheckpointDirectory.at(path, self._context.layout.hash_prefix)
        with directory:
            wrong = {*marks.blobs_of(path), *_lacking(directory)}
            damaged = [blob for blob in directory.manifest.stored if blob.digest in wrong]

            def mend(blob: BlobRecord) -> None:
                what = f"{path}: blob {blob.digest} is damaged or missing"
                if problem := self._repair(directory, DamagedBlob(what, blob=blob.digest), {}):
                    raise DamagedBlob(f"{what}: {problem}")

            try:
                for_each(mend, damaged, threads=self._context.threads)
            finally:
                self.tell(directory)
        if marks.is_marked(path):  # a mark that remains is removed only after the whole checkpoint was read
            with Verifier(self._context) as checker:
                checker.checkpoint(key, None)
        if look(self._context.layout, key).published is None or marks.is_marked(path):
            return False
        update_row(self._context, key)
        return True

    def tell(self, directory: CheckpointDirectory) -> None:
        """Report the sources of repaired blobs when a checkpoint is closed."""
        found, directory.rescued = directory.rescued, {}
        if not found:
            return
        for key in self._repaired.pop(directory, ()):
            # A catalog that was rebuilt meanwhile does not list checkpoints that lacked a blob.
            update_row(self._context, key)
        name = directory.manifest.name
        healed = [f"{digest} from {one.source}" for digest, one in found.items() if not one.problem]
        read = [f"{digest} from {one.source} ({one.problem})" for digest, one in found.items() if one.problem]
        said = [f"repaired damaged or missing blobs: {_some(healed)}"] if healed else []
        said += [f"read damaged or missing blobs without a repair: {_some(read)}"] if read else []
        warn(f"{name}: {'; '.join(said)}. Check the disk; ckstore verify reads everything")

    def _repair(self, directory: CheckpointDirectory, error: DamagedBlob, answers: dict[str, CopyAnswer]) -> str:
        """Repair a file of a checkpoint. Return the reason if that failed, otherwise an empty string.

        The answers of the remotes are added to `answers`, by digest.
        """
        context, digest = self._context, error.blob
        if context.readonly:
            return "the store is open for reading only"
        if context.writes_disabled_because:
            return context.writes_disabled_because
        key = key_of(*directory.lock.path.rsplit("/", 2)[-2:])
        record = next((blob for blob in directory.manifest.stored if blob.digest == digest), None)
        if key is None or record is None:
            return "no file of the checkpoint has that name"
        need = context.measure(Amount(record.nbytes + _BESIDE_BYTES, _BESIDE_INODES))
        if not need.fits:
            return f"no room: {need}"
        try:
            folder = context.layout.blob(digest).parent
            links.make_directory(folder)
            # If several ranks and processes find the same damage, one downloads the blob, and the others find it
            # locally.
            with locks.lock_exclusive(folder, timeout_s=_LOCK_S):
                return self._repair_locked(directory, key, record, error, answers)
        except InUse:
            return "another process has been repairing it for too long"
        except (CkstoreError, OSError) as failed:
            return why_of(failed)

    def _repair_locked(
        self,
        directory: CheckpointDirectory,
        key: CheckpointKey,
        record: BlobRecord,
        error: DamagedBlob,
        answers: dict[str, CopyAnswer],
    ) -> str:
        context = self._context
        remotes: CopySource = self._remotes
        right = Copies(context, ()).whole(BlobRequest(*record))
        # Find intact bytes first, so that no file is moved to quarantine for a repair that is not possible. If the
        # checkpoint is compacted, `repair` itself requests the plain blobs, because remotes lack its encoded files.
        if right is None and directory.manifest.form.is_plain:
            answer = answers[record.digest] = self._remotes.blob(record, [_place_of(directory)])
            if answer.data is None:
                return "; ".join(answer.problems)
            remotes = _DownloadedBlob(record.digest, answer)
        others = self._others_lacking(directory, key).get(record.digest, ())
        damage = [
            Damage(one.run, one.step, error.names, record.digest, error.message, directory=one.directory)
            for one in (key, *others)
        ]
        done = repair(context, damage, (), asked=remotes)
        if not done.repaired:
            return "; ".join(one.why for one in done.unrepaired) or "; ".join(one.message for one in done.held.values())
        directory.rescued.setdefault(record.digest, Rescued(done.repaired[0].source, ""))
        self._repaired.setdefault(directory, set()).update((key, *others))
        return ""

    def _others_lacking(self, directory: CheckpointDirectory, key: CheckpointKey) -> dict[str, list[CheckpointKey]]:
        """Return, for each blob that an open checkpoint lacks, the other checkpoints that also lack it."""
        # The result is computed once for all blobs of the checkpoint, because this reads every manifest of the store.
        if directory not in self._lacking:
            layout, lost = self._context.layout, set(_lacking(directory))
            keys = [other for other, _ in layout.published() if other != key] if lost else []
            found: dict[str, list[CheckpointKey]] = {}
            for other in keys if len(keys) <= _SEARCHED_MOST else ():
                path = layout.checkpoint(other)
                with suppress(CkstoreError, OSError):  # it was removed, or belongs to another user
                    if not may_lack_blobs(path):
                        for digest in lost & _named_in(path):
                            if not dirfd_stat.exists(path / BLOBS / digest):
                                found.setdefault(digest, []).append(other)
            self._lacking[directory] = found
        return self._lacking[directory]


class _DownloadedBlob:
    """A source with a single blob, which was already downloaded from a remote."""

    def __len__(self) -> int:
        return 1

    def __init__(self, digest: str, answer: CopyAnswer) -> None:
        self._digest, self._answer = digest, answer

    def blob(self, blob: BlobRecord, places: Sequence[tuple[str, int, str]]) -> CopyAnswer:
        del places
        return self._answer if blob.digest == self._digest else CopyAnswer(None, "", ())

    def manifest(self, key: CheckpointKey) -> CopyAnswer:
        del key
        return CopyAnswer(None, "", ())


def _place_of(directory: CheckpointDirectory) -> tuple[str, int, str]:
    return directory.manifest.run, directory.manifest.step, directory.manifest_id


def _lacking(directory: CheckpointDirectory) -> Iterable[str]:
    """Yield the digests of the blobs that an open checkpoint lacks, or has with another size."""
    folder = directory.lock.inside / BLOBS
    for blob in directory.manifest.stored:
        found = dirfd_stat.find(folder / blob.digest)
        if (found is None or not blobs.has_size(found, blob.nbytes)) and directory.must_have(blob.digest):
            yield blob.digest


def _named_in(path: StorePath) -> set[str]:
    """Return every digest in the documents of a checkpoint."""
    found: set[str] = set()
    for name in (MANIFEST, PLAIN):
        with suppress(FileNotFoundError):
            data = files.read_file(path / name, most_bytes=MANIFEST_MAX_BYTES)
            found |= {text for match in _DIGEST.findall(data) if is_digest(text := match.decode("ascii"))}
    return found


def _some(texts: list[str]) -> str:
    more = len(texts) - _SHOWN
    return ", ".join(texts[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
