"""Push: bring checkpoints to a remote on object storage. Source: docs/format/remote-v1.md, "Push".

What is missing is found by digest, so a push that was cut off anywhere is repeated as it is. The manifest of a
checkpoint is its last object. Bytes are read into memory, compared with their digest there, and sent from there: what
is damaged here never gets a name elsewhere.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ckstore.errors import CkstoreError, DamagedBlob, RemoteError
from ckstore.fs import direct, dirfd_stat, files, mapping
from ckstore.model.digest import algorithm_of
from ckstore.model.manifest.manifest import MANIFEST_MAX_BYTES
from ckstore.model.reports.transfer import TransferReport
from ckstore.model.times import text_of_time
from ckstore.objects.encoded import decoded
from ckstore.objects.layout import MANIFEST
from ckstore.ops.api_calls import why_of
from ckstore.ops.call_threads import for_each
from ckstore.ops.config_file import PUSH_DELTAS, setting_of
from ckstore.ops.failures import OF_ALL, failure_of, joined
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
from ckstore.remote.objects import THREADS
from ckstore.remote.push_plan import believe, inspect_remote, place_of

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
# A batch needs one intent and one listing. Each of its checkpoints stays open, and a trainer has few descriptors.
_BATCH = 32
# Bytes of blobs and manifests. No manifest of a batch is written before its last blob, so a large checkpoint is a batch
# of its own: the newest one is then complete on the remote before older ones are begun. The intent of a batch holds all
# of its manifests, and readers refuse an intent above 512 MiB.
_BATCH_BYTES = 32 * 2**20
# A push begins again when a pruner took its intent, or it slept: more often than this is no accident.
_BEGINNINGS = 5
# The engine repeats what a service refuses for a moment; this is for an answer that was lost, or a body cut on the way.
_SENDS = 3
_PAUSE_S = 0.5
# A larger blob is sent from its mapping instead of from memory.
_MAPPED_FROM_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class TransferLimits:
    """How a transfer goes.

    Attributes:
        bytes_s: Limit in bytes a second; None: as fast as it goes.
        progress: Called now and then with the bytes that were moved and those to be moved.
        threads: So many blobs are on their way at once, as far as memory allows.
        clock: Seconds that also pass while the machine sleeps.
        lacks_all: The remote has none of the checkpoints, as the caller has just asked: the plan believes what was
            seen there before, and lists nothing.
    """

    bytes_s: float | None = None
    progress: Progress | None = None
    threads: int = THREADS
    clock: Callable[[], float] = field(default=lambda: time.clock_gettime(time.CLOCK_BOOTTIME))
    lacks_all: bool = False


def push(context: Context, infos: Sequence[CheckpointInfo], remote: Remote, manner: TransferLimits) -> TransferReport:
    """Bring checkpoints to a remote, the newest first.

    Raises:
        CkstoreError: Some checkpoints could not be sent, such as one that is damaged locally; all others are there,
            and the message names each.
        RemoteDenied, RemoteUnavailable: The remote takes nothing now; the push can be repeated, and goes on where it
            ended.
    """
    begun_s = time.monotonic()
    known = record.read_record(context.layout, remote.name)
    # Encoding looks for bases among all that is there.
    if manner.lacks_all and not setting_of(context.layout, PUSH_DELTAS):
        found = believe(context, infos, remote, known)
    else:
        found = inspect_remote(context, infos, remote, known)
    plan, work = found.plan, Push(context, remote, manner, found)
    try:
        work.send_all()
        work.beside()
    finally:
        # Also after an error: what was seen there need not be sent or read again.
        work.keep_record()
    if work.failures:
        raise joined(work.failures)
    moved = work.sent_bytes
    return TransferReport(
        "push",
        remote.name,
        plan.checkpoints,
        len(plan.new),
        work.sent_count,
        moved,
        max(0, plan.all_bytes - moved),
        time.monotonic() - begun_s,
        tuple(work.warnings),
    )


def push_metadata(context: Context, remote: Remote, said: Sequence[MetadataObject]) -> dict[str, CkstoreError]:
    """Bring what was said of checkpoints; of one that is not there, or was removed, nothing. Return what failed."""
    places = {place_of(one.info) for one in said}
    found = ask(remote.objects, {key for place in places for key in (place.manifest, place.dropped)})
    there = {place for place in places if place.manifest in found and place.dropped not in found}
    known = record.read_record(context.layout, remote.name)
    try:
        return MetadataPusher(context, remote, known).bring([one for one in said if place_of(one.info) in there])
    finally:
        record.write_record(context.layout, remote.name, known)


def end_intents(remote: Remote, keys: Sequence[str]) -> None:
    """Remove intents of pushes that have ended; those that stay go stale."""
    with suppress(RemoteError):
        remote.objects.delete(keys)


class Push:
    """A push under way.

    Attributes:
        may_exist: Whether the last checkpoint may be at the remote, whatever error was raised.
        failures: Name of a checkpoint that was left out -> why.
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
        self._limiter = None if bytes_s is None else RateLimiter(bytes_s, clock=clock, sleep=self._rest)
        self._end = self._budget.ending(self._remote.objects.close)

    def send_all(self) -> None:
        """Send what the plan says, in batches; one that is not whole here does not keep the others back."""
        # Newest first: if the machine dies in the middle, the latest state is the one that is there.
        todo = sorted(self._plan.checkpoints, key=lambda info: info.order, reverse=True)
        todo = [info for info in todo if info.id in self._there.lacking]
        for batch in self._batches(todo):
            self._send_whole(batch)
        self._say()

    def _batches(self, todo: Iterable[CheckpointInfo]) -> Iterator[list[CheckpointInfo]]:
        """Yield the checkpoints that are pushed together."""
        batch: list[CheckpointInfo] = []
        nbytes = 0
        for info in todo:
            manifest = dirfd_stat.find(self._context.layout.checkpoint(info.key) / MANIFEST)
            new_bytes = self._there.nbytes.get(info.id, 0) + (0 if manifest is None else manifest.st_size)
            # One by one where each is what the next is encoded against.
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
        except (CkstoreError, OSError) as error:  # an `OSError` is one of the local disk: the engine's are translated
            self._begin()  # the error has ended what the others share
            if len(batch) == 1:
                self.failures[batch[0].name] = failure_of(batch[0].name, error)
                self._left_out.add(batch[0].id)
                return
            for info in batch:
                self._send_whole([info])

    def _send(self, batch: Sequence[CheckpointInfo]) -> None:
        with ExitStack() as opened:
            # Open until their manifests are there: what is being pushed is not dropped here meanwhile (rule L).
            directories = [opened.enter_context(open_listed(self._context, info)) for info in batch]
            delta = self._delta(batch[0], directories[0])
            if delta is not None:
                opened.enter_context(delta)
            self.send(directories, delta)

    def send(
        self, directories: Sequence[CheckpointDirectory], delta: Delta | None = None, *, is_part: bool = False
    ) -> list[str]:
        """Send what is in directories that stay open; of a part all but its manifest.

        Returns:
            The keys of the intents that keep a part; else there is none any more.
        """
        for _ in range(_BEGINNINGS):
            wanted = _wanted(directories, delta)
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
                # The threads were told to end: what is begun again keeps to the rate, and to the memory.
                self._begin()
                continue
            except _MissingBase:
                delta = None
                continue
            except BaseException:
                # A Ctrl-C must not wait for an answer below.
                self._end()
                raise
            else:
                return kept
            finally:
                # Best effort: one that stays goes stale, and a pruner takes it away.
                if not kept:
                    end_intents(self._remote, [intent.key])
        msg = f"the push to {self._remote.name} was overtaken by a pruner {_BEGINNINGS} times"
        raise RemoteError(msg, hint="was this machine asleep? push again")

    def _delta(self, info: CheckpointInfo, directory: CheckpointDirectory) -> Delta | None:
        """Return a checkpoint in the form in which little of it has to be sent; None: as it is here."""
        there = self._there
        if not self._encodes or place_of(info) in there.places:
            return None
        try:
            return delta_of(self._context, directory, there.source, there.places, there.sizes)
        except (CkstoreError, OSError) as error:  # such as no package, no room for it, or a base that is damaged here
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
        # After the intent: a pruner that has not seen it finds its own list changed, or is found in it here.
        condemned = unmark_needed(objects, wanted, cas=self._remote.cas)
        names = {digest: str(condemned.name(digest)) for digest in wanted}
        # The remote is asked for all of them after the last was sent. Before that it is asked only for those that the
        # plan did not find missing.
        is_new = delta is None and self._there.has_looked
        doubtful = {*self._there.sizes, *self._sent} if is_new else wanted
        there = self._look({digest: name for digest, name in names.items() if digest in doubtful}, wanted)
        lacking = [digest for digest in wanted if digest not in there]
        if any(wanted[digest].read is None for digest in lacking):
            raise _MissingBase
        # The largest first, or one thread sends it long after the others have ended.
        lacking.sort(key=lambda digest: wanted[digest].nbytes, reverse=True)
        tags: dict[str, str] = {}

        def send(digest: str) -> None:
            self._renew()
            tags[digest] = self._send_blob(wanted[digest], keys.blob(names[digest]))

        for_each(send, lacking, threads=self._manner.threads, say=self._watch, stopping=self._end)
        self._sent.update(lacking)
        there = self._look(names, wanted) if lacking else there
        gone = [digest for digest in wanted if digest not in there]
        if gone:
            msg = f"{len(gone)} blobs are not at {self._remote.name} after they were sent, such as {gone[0]}"
            raise RemoteError(msg, hint="does another program remove objects there? push again")
        if not is_part:
            self._publish(directories, intent, delta)
            self._there.places.update(intent.places)
        for digest, tag in tags.items():
            # Of this push's own write, by its mark: another client may have written the same name since.
            if there[digest].tag == tag:
                self._record.blobs[digest] = record.seen(there[digest], "sent")

    def _watch(self) -> None:
        """Renew the intent, and say how far it is, in the caller's thread while others send."""
        # On a slow link one blob takes longer than an intent lives, and no thread that sends looks at it meanwhile.
        self._renew()
        self._say()

    def _renew(self) -> None:
        if self._intent is not None:
            self._intent.renew(self._remote.objects, cas=self._remote.cas)

    def _rest(self, seconds: float) -> None:
        """Wait until the rate allows more. At a low one that takes longer than an intent lives: it is renewed."""
        until_s = self._manner.clock() + seconds
        while not self._budget.is_ended and (left_s := until_s - self._manner.clock()) > 0:
            self._budget.sleep(min(left_s, LIFE_S / 8))
            self._renew()

    def _look(self, names: Mapping[str, str], wanted: Mapping[str, _RequiredFile]) -> dict[str, ObjectEntry]:
        """Return the blobs whose current names are there with their sizes."""
        by_key = {keys.blob(name): digest for digest, name in names.items()}
        there, self._record.blob_count = look(self._remote.objects, by_key, self._record.blob_count)
        found = {by_key[key]: listed for key, listed in there.items()}
        return {digest: listed for digest, listed in found.items() if listed.nbytes == wanted[digest].nbytes}

    def _send_blob(self, blob: _RequiredFile, key: str) -> str:
        """Send a file, and return the mark of this write."""
        with self._budget.taking(blob.nbytes):
            # Fresh: the engine may keep what it was given, as its objects in memory do.
            memory = whole_blocks(blob.nbytes)
            data = memory[:0] if blob.read is None else blob.read(memory)
            if self._limiter is not None:
                self._limiter.wait(blob.nbytes)
            # It is looked at with all others, after the last of them.
            mark = self._again(lambda: self._remote.objects.send(key, data))
        self.sent_bytes += blob.nbytes
        self.sent_count += 1
        return mark

    def _again(self, write: Callable[[], T]) -> T:
        """Do what may be done again: an answer that was lost is no failure, nor is a connection that had ended."""
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
            self._again(lambda: objects.send(places[0].plain, plain))
            manifests = [delta.text]
        else:
            manifests = [
                files.read_file(one.manifest_file, most_bytes=MANIFEST_MAX_BYTES, dir_fd=one.lock.fd)
                for one in directories
            ]
        # After all blobs were seen: from here the checkpoints exist whatever becomes of this process.
        self.may_exist = True
        if self._remote.cas:
            intent.commit(objects, manifests)
        else:
            intent.renew(objects, cas=False)
        removed = self._removed(places)
        if removed:
            # One that comes late takes away the mark of a later removal, and a mirror may push that checkpoint again.
            self._again(lambda: objects.delete(removed))

        def write(one: tuple[Place, bytes]) -> None:
            self._again(lambda: objects.send(one[0].manifest, one[1]))

        written = zip(places, manifests, strict=True)
        for_each(write, written, threads=self._manner.threads, say=self._watch, stopping=self._end)
        now = text_of_time(datetime.now(UTC))
        self._record.checkpoints.update((place.id, now) for place in places)

    def _removed(self, places: Sequence[Place]) -> list[str]:
        """Return the keys of the removal marks that these checkpoints have."""
        objects, marks = self._remote.objects, {place.dropped for place in places}
        runs = {f"{keys.CHECKPOINTS}{place.run}/" for place in places}
        # A hundred steps have one beginning, so what a batch costs does not grow with its run: with all of the run for
        # each batch, 5,000 checkpoints would list 400,000 keys.
        hundreds = {f"{keys.CHECKPOINTS}{place.run}/{str(place.step)[:-2]}" for place in places}
        # A run lists about one key for each checkpoint, a thousand for each request.
        request_count = len(runs) + len(self._record.checkpoints) // 1000
        if len(marks) <= min(request_count, len(hundreds)):
            return [*ask(objects, marks)]
        folders = hundreds if len(hundreds) <= max(2 * len(runs), request_count) else runs
        return sorted({one.key for folder in folders for one in objects.list(folder)} & marks)

    def beside(self) -> None:
        """Bring what was said about the checkpoints later, and their tags and pins."""
        there = [info for info in self._plan.checkpoints if info.id not in self._left_out]
        try:
            MetadataPusher(self._context, self._remote, self._record).push(there)
        except OF_ALL:
            raise
        except CkstoreError as error:
            self.failures["tags, pins and annotations"] = error

    def keep_record(self) -> None:
        """Keep what was seen, as far as this process may write: a push from a store that is only read is one, too."""
        if self._record.render() == self._before or self._context.readonly:
            return
        try:
            record.write_record(self._context.layout, self._remote.name, self._record)
        except (CkstoreError, OSError) as error:
            self.warnings.append(f"what was seen at {self._remote.name} could not be noted: {error}")

    def _say(self) -> None:
        if self._manner.progress is not None:
            self._manner.progress(self.sent_bytes, max(self._plan.missing_bytes, self.sent_bytes))


class _MissingBase(Exception):
    """What a checkpoint was encoded against is no longer at the remote: it is sent as it is."""


class _RequiredFile(NamedTuple):
    """A file that the remote needs for a checkpoint.

    Attributes:
        nbytes: Its size.
        read: Returns its bytes, compared, in the memory that it is given or elsewhere; None: it is not here.
    """

    nbytes: int
    read: Callable[[memoryview], memoryview] | None


def _wanted(directories: Sequence[CheckpointDirectory], delta: Delta | None) -> dict[str, _RequiredFile]:
    found = {
        blob.digest: _RequiredFile(blob.nbytes, partial(_read_checked, directory, blob))
        for directory in directories
        for blob in directory.manifest.blobs
    }
    if delta is None:
        return found
    new = delta.spool
    return {
        file.digest: _RequiredFile(file.nbytes, partial(_spooled, new, file.digest))
        if file.digest in new
        else found.get(file.digest, _RequiredFile(file.nbytes, None))
        for file in delta.encoding.files
    }


def _spooled(spool: Spool, digest: str, _: memoryview) -> memoryview:
    return spool.get(digest)


def _read_checked(directory: CheckpointDirectory, blob: BlobRecord, data: memoryview) -> memoryview:
    """Return the bytes of a blob, which have its digest, in `data` or in a mapping."""
    what = f"the push of {directory.manifest.name}"
    with directory.reporting_damage():
        # The plain bytes: at a remote nothing is encoded yet.
        if decoded(directory, blob.digest, 0, data, what):
            return _checked(directory, blob, data)
        fd = directory.open_blob(blob, what, whole=True)
    try:
        if blob.nbytes > _MAPPED_FROM_BYTES:
            data = mapping.map_file(fd, blob.nbytes)
        else:
            # What a save wrote is not in the page cache, and what a training has there stays in it.
            done = direct.read_past_cache(fd, data) if blob.nbytes >= files.DIRECT_FROM_BYTES else 0
            files.read_into(fd, done, data[done:], f"{directory.path}: blob {blob.digest}")
    finally:
        os.close(fd)
    return _checked(directory, blob, data)


def _checked(directory: CheckpointDirectory, blob: BlobRecord, data: memoryview) -> memoryview:
    found = algorithm_of(blob.digest).digest(data)
    if found != blob.digest:
        msg = f"{directory.path}: blob {blob.digest} is damaged: its bytes have the digest {found}; it was not sent"
        raise DamagedBlob(
            msg,
            hint="repair the store: what has a right copy is healed",
            blob=blob.digest,
        )
    return data
