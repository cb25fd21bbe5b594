"""Push: copy checkpoints to a remote on object storage. Source: docs/format/remote-v1.md, "Push".

A push looks up each blob by its digest and sends only missing ones, so an interrupted push can be repeated. The
manifest of a checkpoint is written last. Bytes are read into memory, compared with their digest, and sent from memory,
so that damaged local bytes are never stored under that digest on a remote.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ckstore.errors import BytesElsewhere, CkstoreError, DamagedBlob, RemoteError
from ckstore.fs import direct, dirfd_stat, files, mapping
from ckstore.model.digest import algorithm_of
from ckstore.model.manifest.manifest import MANIFEST_MAX_BYTES
from ckstore.model.remote.transfer import TransferReport
from ckstore.model.times import text_of_time
from ckstore.objects.layout import MANIFEST
from ckstore.objects.pieces import read_unless_file
from ckstore.ops.api_calls import why_of
from ckstore.ops.call_threads import for_each
from ckstore.ops.config_file import PUSH_DELTAS, setting_of
from ckstore.ops.failures import failure_of, joined
from ckstore.ops.pace import RateLimiter
from ckstore.ops.refs.find import open_listed
from ckstore.remote import keys, record
from ckstore.remote.budget import MemoryBudget, whole_blocks
from ckstore.remote.deltas.encode import delta_of
from ckstore.remote.documents.condemned_names import unmark_needed
from ckstore.remote.intents import LIFE_S, Intent, VoidIntent
from ckstore.remote.key_lookup import ask, look
from ckstore.remote.keys import Place
from ckstore.remote.metadata_sync import MetadataPusher
from ckstore.remote.objects import OF_ALL, THREADS
from ckstore.remote.push_plan import believe, inspect_remote, only_elsewhere, place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ckstore.model.manifest.info import CheckpointInfo
    from ckstore.model.manifest.manifest import BlobRecord
    from ckstore.model.reports.progress import Progress
    from ckstore.objects.checkpoints import CheckpointDirectory
    from ckstore.ops.context import Context
    from ckstore.remote.deltas.spool import Delta, Spool
    from ckstore.remote.metadata_sync import MetadataObject
    from ckstore.remote.objects import ObjectEntry, Remote
    from ckstore.remote.push_plan import RemoteState

T = TypeVar("T")
# The maximum number of checkpoints in a batch, which needs only one intent and one listing. Each checkpoint of a batch
# stays open during its push, and a trainer has few file descriptors.
_BATCH = 32
# The maximum size of the blobs and manifests of a batch. All blobs of a batch are sent before its first manifest. So a
# large checkpoint is pushed alone, and the newest checkpoint is complete on the remote before an older one is begun.
# Also, the intent of a batch contains all of its manifests, and readers refuse an intent above 512 MiB.
_BATCH_BYTES = 32 * 2**20
# The maximum number of attempts of a push. It starts again if a pruner voided its intent or if it was suspended. More
# attempts than this are not a coincidence.
_BEGINNINGS = 5
# The number of attempts to write an object. The engine already repeats requests that a service refuses temporarily.
# These attempts cover lost responses and truncated bodies.
_SENDS = 3
_PAUSE_S = 0.5
# A larger blob is sent from a mapping of its file.
_MAPPED_FROM_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class TransferLimits:
    """Limits of a transfer, and how it reports progress.

    Attributes:
        bytes_s: Limit in bytes per second. If None, there is no limit.
        progress: Called regularly with the number of bytes transferred so far and the total number of bytes.
        threads: The number of blobs that are transferred concurrently, if memory allows.
        clock: A clock in seconds that also advances while the machine is suspended.
        lacks_all: The caller has just checked that the remote has none of the checkpoints. The plan then relies on
            earlier records, and lists nothing.
    """

    bytes_s: float | None = None
    progress: Progress | None = None
    threads: int = THREADS
    clock: Callable[[], float] = field(default=lambda: time.clock_gettime(time.CLOCK_BOOTTIME))
    lacks_all: bool = False


def push(context: Context, infos: Sequence[CheckpointInfo], remote: Remote, manner: TransferLimits) -> TransferReport:
    """Push checkpoints to a remote, the newest first.

    Raises:
        CkstoreError: Some checkpoints could not be pushed, such as one that is damaged locally. All others were pushed,
            and the message names each failure.
        RemoteDenied, RemoteFull, RemoteUnavailable: The remote accepts nothing now. A repeated push continues where
            this one stopped.
    """
    begun_s = time.monotonic()
    known = record.read_record(context.layout, remote.name)
    # Encoding chooses bases among all checkpoints on the remote, so it needs a listing.
    if manner.lacks_all and not setting_of(context.layout, PUSH_DELTAS):
        found = believe(context, infos, remote, known)
    else:
        found = inspect_remote(context, infos, remote, known)
    plan, work = found.plan, Push(context, remote, manner, found)
    try:
        work.send_all()
        work.beside()
    finally:
        # The record is also saved after an error, so that the next push sends and reads less.
        work.keep_record()
    if work.failures:
        raise joined(work.failures)
    moved = work.sent_bytes
    return TransferReport(
        "push",
        remote.name,
        plan.checkpoints,
        plan.new,
        work.sent_count,
        moved,
        max(0, plan.all_bytes - moved),
        time.monotonic() - begun_s,
        tuple(work.warnings),
    )


class PushedMetadata(NamedTuple):
    """The result of pushing metadata.

    Attributes:
        failed: Errors by key.
        missing: Ids of checkpoints whose manifest is missing on the remote. Their metadata was not pushed.
        removed: Ids of checkpoints that a policy or a user removed from the remote. Their metadata was not pushed.
    """

    failed: dict[str, CkstoreError]
    missing: frozenset[str]
    removed: frozenset[str]


def push_metadata(context: Context, remote: Remote, said: Sequence[MetadataObject]) -> PushedMetadata:
    """Push metadata of checkpoints, except for checkpoints that the remote lacks."""
    places = {one.info.id: place_of(one.info) for one in said}
    found = ask(remote.objects, {key for place in places.values() for key in (place.manifest, place.dropped)})
    removed = frozenset(id for id, place in places.items() if place.dropped in found)
    missing = frozenset(id for id, place in places.items() if place.manifest not in found) - removed
    known = record.read_record(context.layout, remote.name)
    try:
        there = [one for one in said if one.info.id not in missing | removed]
        return PushedMetadata(MetadataPusher(context, remote, known).bring(there), missing, removed)
    finally:
        record.write_record(context.layout, remote.name, known)


def end_intents(remote: Remote, keys: Sequence[str]) -> None:
    """Delete intents of finished pushes. Intents that cannot be deleted become stale."""
    with suppress(RemoteError):
        remote.objects.delete(keys)


class Push:
    """A push of checkpoints to one remote.

    Attributes:
        may_exist: Whether the last checkpoint may exist on the remote although an error was raised.
        failures: Errors of checkpoints that were not pushed, by name, and the error of the metadata.
    """

    def __init__(self, context: Context, remote: Remote, manner: TransferLimits, there: RemoteState) -> None:
        self.may_exist = False
        self.failures: dict[str, CkstoreError] = dict(there.unreadable)
        self.sent_bytes = self.sent_count = 0
        self.warnings: list[str] = []
        self._context, self._remote, self._manner, self._plan = context, remote, manner, there.plan
        self._there = there
        self._encodes = setting_of(context.layout, PUSH_DELTAS)
        self._record = there.known
        self._before = self._record.render()
        self._left_out: set[str] = set()
        self._intent: Intent | None = None
        self._sent: set[str] = set()
        self._begin()

    def _begin(self) -> None:
        self._budget = MemoryBudget()
        bytes_s, clock = self._manner.bytes_s, self._manner.clock
        self._limiter = None if bytes_s is None else RateLimiter(bytes_s, clock=clock, sleep=self._wait_for_rate)
        self._end = self._budget.ending(self._remote.objects.close)

    def send_all(self) -> None:
        """Push the checkpoints of the plan in batches. A locally incomplete checkpoint does not block the others."""
        # The newest checkpoint comes first. If the machine dies during the push, the remote then has the latest state.
        todo = sorted(self._plan.checkpoints, key=lambda info: info.order, reverse=True)
        todo = [info for info in todo if info.id in self._there.lacking]
        for batch in self._batches(todo):
            self._send_whole(batch)
        self._report_progress()

    def _batches(self, todo: Iterable[CheckpointInfo]) -> Iterator[list[CheckpointInfo]]:
        """Yield the batches of checkpoints that are pushed together."""
        batch: list[CheckpointInfo] = []
        nbytes = 0
        for info in todo:
            manifest = dirfd_stat.find(self._context.layout.checkpoint(info.key) / MANIFEST)
            new_bytes = self._there.nbytes.get(info.id, 0) + (0 if manifest is None else manifest.st_size)
            # If differences are pushed, each checkpoint can be a base of the next one, so they are pushed one by one.
            if batch and (self._encodes or len(batch) == _BATCH or nbytes + new_bytes > _BATCH_BYTES):
                yield batch
                batch, nbytes = [], 0
            batch.append(info)
            nbytes += new_bytes
        if batch:
            yield batch

    def _send_whole(self, batch: Sequence[CheckpointInfo]) -> None:
        try:
            self._send(batch)
        except OF_ALL:
            raise
        except (CkstoreError, OSError) as error:  # an `OSError` is local, because the engine translates its own
            self._begin()  # the error has stopped the shared limiter and memory budget
            if len(batch) == 1:
                if isinstance(error, BytesElsewhere):
                    error = only_elsewhere(self._context, batch[0], self._remote.name) or error
                self.failures[batch[0].name] = failure_of(batch[0].name, error)
                self._left_out.add(batch[0].id)
                return
            for info in batch:
                self._send_whole([info])

    def _send(self, batch: Sequence[CheckpointInfo]) -> None:
        with ExitStack() as opened:
            # The directories stay open until the manifests are written, so that a checkpoint is not dropped locally
            # during its push (law L1).
            directories = [opened.enter_context(open_listed(self._context, info)) for info in batch]
            delta = self._delta(batch[0], directories[0])
            if delta is not None:
                opened.enter_context(delta)
            self.send(directories, delta)

    def send(
        self, directories: Sequence[CheckpointDirectory], delta: Delta | None = None, *, is_part: bool = False
    ) -> list[str]:
        """Push the checkpoints in directories that the caller keeps open. For a part, do not push the manifest.

        Returns:
            For a part, the keys of the intents that protect it. For checkpoints, an empty list.
        """
        for _ in range(_BEGINNINGS):
            wanted = _required_files(directories, delta)
            manifests = [(one.manifest, "" if is_part else one.manifest_id) for one in directories]
            intent = Intent.of(
                (Place(manifest.run, manifest.step, id) for manifest, id in manifests), wanted, self._manner.clock
            )
            kept: list[str] = []
            try:
                self._send_under(directories, intent, wanted, delta, is_part=is_part)
                kept = [intent.key] if is_part else []
            except VoidIntent:
                self.may_exist = False
                # The threads were stopped. The next attempt needs a new rate limiter and memory budget.
                self._begin()
                continue
            except _MissingBase:
                delta = None
                continue
            except BaseException:
                # After an interrupt, the cleanup below must not wait for a response.
                self._end()
                raise
            else:
                return kept
            finally:
                # This is only best effort, because a pruner later deletes an intent that remains.
                if not kept:
                    end_intents(self._remote, [intent.key])
        msg = f"a pruner voided the intent of the push to {self._remote.name} {_BEGINNINGS} times"
        raise RemoteError(msg, hint="was this machine suspended? push again")

    def _delta(self, info: CheckpointInfo, directory: CheckpointDirectory) -> Delta | None:
        """Return the differences to send in place of a checkpoint, or None to send its plain blobs."""
        there = self._there
        if not self._encodes or place_of(info) in there.places:
            return None
        try:
            return delta_of(self._context, directory, there.source.form, there.places, there.sizes)
        except (CkstoreError, OSError) as error:  # such as a missing package or a damaged local base
            self.warnings.append(f"{info.name} was sent without differences: {why_of(error)}")
            return None

    def _send_under(
        self,
        directories: Sequence[CheckpointDirectory],
        intent: Intent,
        wanted: Mapping[str, _RequiredFile],
        delta: Delta | None,
        *,
        is_part: bool,
    ) -> None:
        objects = self._remote.objects
        intent.write(objects)
        self._intent = intent
        # This call must follow the write of the intent. If a pruner has not read the intent, then either the pruner's
        # swap fails, or this call removes the pruner's marks.
        condemned = unmark_needed(objects, wanted, cas=self._remote.cas)
        names = {digest: str(condemned.name(digest)) for digest in wanted}
        # All blobs are looked up after the last one was sent. Before that, only blobs that the plan found on the remote
        # or that an earlier batch sent are looked up.
        is_new = delta is None and self._there.has_looked
        doubtful = {*self._there.sizes, *self._sent} if is_new else wanted
        there = self._find_blobs({digest: name for digest, name in names.items() if digest in doubtful}, wanted)
        lacking = [digest for digest in wanted if digest not in there]
        if any(wanted[digest].read is None for digest in lacking):
            raise _MissingBase
        # The largest blob is sent first. Otherwise one thread might still be sending it when the others have finished.
        lacking.sort(key=lambda digest: wanted[digest].nbytes, reverse=True)
        tags: dict[str, str] = {}

        def send(digest: str) -> None:
            self._renew()
            tags[digest] = self._send_blob(wanted[digest], keys.blob(names[digest]))

        for_each(send, lacking, threads=self._manner.threads, say=self._watch, stopping=self._end)
        self._sent.update(lacking)
        there = self._find_blobs(names, wanted) if lacking else there
        gone = [digest for digest in wanted if digest not in there]
        if gone:
            msg = f"{len(gone)} blobs are missing on {self._remote.name} just after they were sent, such as {gone[0]}"
            raise RemoteError(msg, hint="does another program delete objects there? push again")
        if not is_part:
            self._publish(directories, intent, delta)
            self._there.places.update(intent.places)
        for digest, tag in tags.items():
            # A version is recorded only if its tag shows that this push wrote it. Another client may have written the
            # same name since then.
            if there[digest].tag == tag:
                self._record.blobs[digest] = record.seen(there[digest], "sent")

    def _watch(self) -> None:
        """Renew the intent and report progress, in the caller's thread while other threads send."""
        # On a slow link, sending one blob can take longer than the life of an intent, and a thread does not renew the
        # intent while it sends.
        self._renew()
        self._report_progress()

    def _renew(self) -> None:
        if self._intent is not None:
            self._intent.renew(self._remote.objects, cas=self._remote.cas)

    def _wait_for_rate(self, seconds: float) -> None:
        """Wait for the rate limiter. Renew the intent meanwhile, since the wait may exceed the life of the intent."""
        until_s = self._manner.clock() + seconds
        while not self._budget.is_ended and (left_s := until_s - self._manner.clock()) > 0:
            self._budget.sleep(min(left_s, LIFE_S / 8))
            self._renew()

    def _find_blobs(self, names: Mapping[str, str], wanted: Mapping[str, _RequiredFile]) -> dict[str, ObjectEntry]:
        """Return the entries of the blobs that exist under their current name with the right size.

        A blob in which a verification found wrong bytes is left out, so that it is sent again.
        """
        by_key = {keys.blob(name): digest for digest, name in names.items()}
        there, self._record.blob_count = look(self._remote.objects, by_key, self._record.blob_count)
        found = {by_key[key]: listed for key, listed in there.items()}
        return {
            digest: listed
            for digest, listed in found.items()
            if listed.nbytes == wanted[digest].nbytes and not self._record.is_damaged(digest, listed)
        }

    def _send_blob(self, blob: _RequiredFile, key: str) -> str:
        """Send a file, and return the tag of the new version."""
        with self._budget.taking(blob.nbytes):
            # Each blob gets new memory, because the engine may keep the buffer. A remote in memory does so.
            memory = whole_blocks(blob.nbytes)
            data = memory[:0] if blob.read is None else blob.read(memory)
            if self._limiter is not None:
                self._limiter.wait(blob.nbytes)
            # The blob is looked up together with all others, after the last one was sent.
            mark = self._retry(lambda: self._remote.objects.send(key, data))
        self.sent_bytes += blob.nbytes
        self.sent_count += 1
        return mark

    def _retry(self, write: Callable[[], T]) -> T:
        """Retry a request that can be repeated, so that a lost response or a closed connection does not fail a push."""
        for attempt in range(_SENDS - 1):
            try:
                return write()
            except RemoteError:
                if self._budget.is_ended:
                    raise
            self._budget.sleep(_PAUSE_S * attempt)
        return write()

    def _publish(self, directories: Sequence[CheckpointDirectory], intent: Intent, delta: Delta | None) -> None:
        objects, places = self._remote.objects, intent.places
        if delta is not None:
            plain = delta.plain
            self._retry(lambda: objects.send(places[0].plain, plain))
            manifests = [delta.text]
        else:
            manifests = [
                files.read_file(one.manifest_file, most_bytes=MANIFEST_MAX_BYTES, dir_fd=one.lock.fd)
                for one in directories
            ]
        # All blobs are on the remote. From here on, the checkpoints may come into existence even if this process dies.
        self.may_exist = True
        if self._remote.cas:
            intent.commit(objects, manifests)
        else:
            intent.renew(objects, cas=False)
        removed = self._deletion_marks(places)
        if removed:
            # Only existing marks are deleted. A delayed request could otherwise remove the mark of a later deletion,
            # and a mirror might push that checkpoint again.
            self._retry(lambda: objects.delete(removed))

        def write(one: tuple[Place, bytes]) -> None:
            self._retry(lambda: objects.send(one[0].manifest, one[1]))

        written = zip(places, manifests, strict=True)
        for_each(write, written, threads=self._manner.threads, say=self._watch, stopping=self._end)
        now = text_of_time(datetime.now(UTC))
        self._record.checkpoints.update((place.id, now) for place in places)

    def _deletion_marks(self, places: Sequence[Place]) -> list[str]:
        """Return the keys of the deletion marks that these checkpoints have."""
        objects, marks = self._remote.objects, {place.dropped for place in places}
        runs = {f"{keys.CHECKPOINTS}{place.run}/" for place in places}
        # Steps that differ only in their last two digits share a prefix, so the cost of a batch does not grow with the
        # size of the run. If the whole run were listed for each batch, a push of 5,000 checkpoints would list 400,000
        # keys.
        hundreds = {f"{keys.CHECKPOINTS}{place.run}/{str(place.step)[:-2]}" for place in places}
        # A listing of a run has about one key per checkpoint, and takes one request per thousand keys.
        request_count = len(runs) + len(self._record.checkpoints) // 1000
        if len(marks) <= min(request_count, len(hundreds)):
            return [*ask(objects, marks)]
        folders = hundreds if len(hundreds) <= max(2 * len(runs), request_count) else runs
        return sorted({one.key for folder in folders for one in objects.list(folder)} & marks)

    def beside(self) -> None:
        """Push the annotations, tags and pins of the pushed checkpoints."""
        there = [info for info in self._plan.checkpoints if info.id not in self._left_out]
        try:
            MetadataPusher(self._context, self._remote, self._record).push(there)
        except OF_ALL:
            raise
        except CkstoreError as error:
            self.failures["tags, pins and annotations"] = error

    def keep_record(self) -> None:
        """Save the record of the remote. If the store is read-only, do nothing."""
        if self._record.render() == self._before or self._context.readonly:
            return
        try:
            record.write_record(self._context.layout, self._remote.name, self._record)
        except (CkstoreError, OSError) as error:
            self.warnings.append(f"the record of {self._remote.name} could not be saved: {error}")

    def _report_progress(self) -> None:
        if self._manner.progress is not None:
            self._manner.progress(self.sent_bytes, max(self._plan.missing_bytes, self.sent_bytes))


class _MissingBase(Exception):
    """The remote no longer has a base of an encoded checkpoint, so the plain blobs of the checkpoint are sent."""


class _RequiredFile(NamedTuple):
    """A file that the remote needs for a checkpoint.

    Attributes:
        nbytes: Its size.
        read: Returns its bytes, compared with the digest, in the given buffer or in another one. None if the file is
            not local.
    """

    nbytes: int
    read: Callable[[memoryview], memoryview] | None


def _required_files(directories: Sequence[CheckpointDirectory], delta: Delta | None) -> dict[str, _RequiredFile]:
    found = {
        blob.digest: _RequiredFile(blob.nbytes, partial(_read_checked, directory, blob))
        for directory in directories
        for blob in directory.manifest.blobs
    }
    if delta is None:
        return found
    new = delta.spool
    return {
        file.digest: _RequiredFile(file.nbytes, partial(_read_spooled, new, file.digest))
        if file.digest in new
        else found.get(file.digest, _RequiredFile(file.nbytes, None))
        for file in delta.files
    }


def _read_spooled(spool: Spool, digest: str, _: memoryview) -> memoryview:
    return spool.get(digest)


def _read_checked(directory: CheckpointDirectory, blob: BlobRecord, data: memoryview) -> memoryview:
    """Return the bytes of a blob, compared with its digest, in `data` or in a mapping."""
    what = f"the push of {directory.manifest.name}"
    with directory.reporting_damage():
        # A blob that is encoded locally is sent plain, because the remote may lack the files that decode it.
        if read_unless_file(directory, blob.digest, 0, data, what):
            return _checked(directory, blob, data)
        fd = directory.open_blob(blob, what, whole=True)
    try:
        if blob.nbytes > _MAPPED_FROM_BYTES:
            data = mapping.map_file(fd, blob.nbytes)
        else:
            # Saved blobs are not in the page cache, and reading them must not evict pages of the training.
            done = direct.read_past_cache(fd, 0, data) if blob.nbytes >= files.DIRECT_FROM_BYTES else 0
            files.read_into(fd, done, data[done:], f"{directory.path}: blob {blob.digest}")
    finally:
        os.close(fd)
    return _checked(directory, blob, data)


def _checked(directory: CheckpointDirectory, blob: BlobRecord, data: memoryview) -> memoryview:
    found = algorithm_of(blob.digest).digest(data)
    if found != blob.digest:
        msg = f"{directory.path}: blob {blob.digest} is damaged and was not sent. The digest of its bytes is {found}"
        raise DamagedBlob(
            msg,
            hint="repair the store: blobs with an intact copy are healed",
            blob=blob.digest,
        )
    return data
