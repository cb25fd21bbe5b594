"""Pull: copy checkpoints of a source to the store, with the same protocol as a save.

The manifest is read first, with the usual limits of manifests. Missing blobs are read into memory, compared with their
digests, and written from memory. One rename makes the checkpoint visible. It keeps its id and its position in the
commit order. Blobs that a failed pull downloaded remain until the next gc, so that the next pull can use them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from ckstore.errors import (
    CkstoreError,
    InsufficientSpace,
    InUse,
    ReadOnlyStore,
    RemoteError,
    StepExists,
)
from ckstore.fs import dirfd_stat, files
from ckstore.model.canonical import encode_metric
from ckstore.model.checkpoint.annotations import Annotations, parse_annotations
from ckstore.model.digest import algorithm_of, short_id
from ckstore.model.manifest.info import CheckpointInfo, Published
from ckstore.model.manifest.manifest import BlobRecord, Manifest
from ckstore.model.manifest.stored import StoredForm
from ckstore.model.names import CheckpointKey
from ckstore.model.remote.transfer import TransferPlan, TransferReport
from ckstore.model.seal import read, seal
from ckstore.model.settings.free_space import Amount
from ckstore.objects import publish as publishing
from ckstore.objects.checkpoints import id_at, judge_blobs, key_with_id, look, published_of_step
from ckstore.objects.documents.annotations import add_annotations, read_annotations
from ckstore.objects.layout import ANNOTATIONS, ELSEWHERE
from ckstore.objects.publish import IfExists, Outcome, Rule
from ckstore.objects.remote.remote_only import remove_remote_only
from ckstore.objects.staging import Staging
from ckstore.ops.call_threads import for_each
from ckstore.ops.config_file import save_checks_or_all
from ckstore.ops.context import Context, info_of, tags_by_checkpoint
from ckstore.ops.failures import failure_of, joined
from ckstore.ops.free import reclaim
from ckstore.ops.free.drop import check_droppable
from ckstore.ops.free.make_room import how_to_free, purge
from ckstore.ops.free.superseded_checkpoints import drop_older, is_undone
from ckstore.ops.index.reconcile import update_row
from ckstore.ops.pace import RateLimiter
from ckstore.ops.refs.find import open_directory
from ckstore.ops.refs.protection import held
from ckstore.ops.save.restore_blobs import restore_blobs
from ckstore.ops.save.save import failing_as_save
from ckstore.remote.budget import MemoryBudget
from ckstore.remote.keys import Place
from ckstore.remote.metadata_sync import merged, take_names
from ckstore.remote.objects import OF_ALL
from ckstore.remote.push import TransferLimits
from ckstore.remote.remote_refs import facts_of
from ckstore.remote.source import Source, SourceManifest, read_manifest

# The number of attempts to read a blob. One read may fail because of a lost connection or a flipped bit. A blob that is
# wrong each time is damaged on the remote.
_READS = 3
_PAUSE_S = 0.5
# The overhead of a blob, in bytes: an inode, and names in two directories.
_BESIDE_BYTES = 4096


def plan_pull(context: Context, source: Source, places: Sequence[Place], if_exists: IfExists) -> TransferPlan:
    """Return the checkpoints and blobs that a pull would download now.

    The warnings of the plan name the checkpoints that the pull would refuse or replace, and those it would keep
    instead.
    """
    wanted_ids = frozenset(place.id for place in places)
    warnings: list[str] = []
    wanted: dict[str, int] = {}
    missing: dict[str, int] = {}
    facts = facts_of(source, places, context.layout.hash_prefix)
    new = []
    for place in facts:
        key = key_with_id(context.layout, *place, context.of_step)
        here = None if key is None else look(context.layout, key).published
        lacking = None if here is None else here.elsewhere
        found = read_manifest(source, place, context.layout.hash_prefix)
        if found is None:
            continue
        of_step = published_of_step(context.layout, *place.run_step, context.of_step)
        is_known = is_here(context, place) or (bool(of_step) and of_step[-1].manifest_id in wanted_ids)
        others = [one for one in of_step if one.manifest_id not in wanted_ids]
        refusal = _refusal(context, found.manifest, others, "beside" if is_known else if_exists)
        if refusal:
            warnings.append(refusal)
            continue
        if if_exists == "replace":
            warnings += _replaced(context, found.manifest, others)
        new += [place] if lacking is None else []
        for blob in found.manifest.blobs:
            wanted[blob.digest] = blob.nbytes
            # If the checkpoint is local, only its evicted blobs are downloaded again.
            is_wanted = lacking is None or blob.digest in lacking
            if is_wanted and not dirfd_stat.exists(context.layout.blob(blob.digest)):
                missing[blob.digest] = blob.nbytes
    infos = tuple(facts[place] for place in facts)
    new_infos = tuple(facts[place] for place in new)
    blobs = tuple(sorted(missing.items()))
    return TransferPlan("pull", source.name, infos, new_infos, blobs, sum(wanted.values()), tuple(warnings))


def _refusal(context: Context, manifest: Manifest, others: Sequence[Published], rule: Rule) -> str:
    """Return why a pull would not publish a checkpoint, given the others of its step, or an empty string."""
    try:
        kept = publishing.existing_of_step(context.layout, manifest, rule, [one.key for one in others])
    except StepExists as error:
        return f"{manifest.name} would be refused: {error.message}"
    if kept is None:
        return ""
    return f"{manifest.name} would not be pulled: {short_id(kept.manifest_id)} of this store would be kept"


def _replaced(context: Context, manifest: Manifest, others: Sequence[Published]) -> list[str]:
    """Return a sentence for each other checkpoint of a step, on whether a pull that replaces it would drop it."""
    said = []
    for one in others:
        info = info_of(context, one.manifest, one.manifest_id, key=one.key)
        try:
            check_droppable(context, info)
        except InUse as error:
            said.append(f"another checkpoint of {manifest.name} would be kept: {error.message}")
        else:
            said.append(f"{manifest.name} would replace {short_id(info.id)} of this store")
    return said


def steps_taken(context: Context, places: Iterable[Place]) -> set[tuple[str, int]]:
    """Return the run and step of every local checkpoint in the runs of some checkpoints.

    A single listing per run is faster than a lookup for each of, say, 10,000 checkpoints.
    """
    return {key.run_step for run in {place.run for place in places} for key, _ in context.layout.published(run)}


def is_here(context: Context, place: Place) -> bool:
    """Whether the store lists this checkpoint as undamaged. Its bytes may be only on a remote."""
    return _key_here(context, place) is not None


def _key_here(context: Context, place: Place) -> CheckpointKey | None:
    key = key_with_id(context.layout, *place, context.of_step)
    found = None if key is None else look(context.layout, key).published
    # A damaged checkpoint does not count, because a pull adds another generation of it.
    return key if found is not None and publishing.is_sound(context.layout, found) else None


@dataclass
class Pull:
    """A pull of checkpoints from one source.

    Attributes:
        context: The store that receives the checkpoints.
        source: The source of the checkpoints.
        manner: Limits of the transfer.
        if_exists: What to do if another checkpoint has the run and step.
        warnings: Messages for the user.
        brought_back: Whether evicted bytes were restored, or the record of a killed eviction was removed.
    """

    context: Context
    source: Source
    manner: TransferLimits
    if_exists: IfExists = "error"
    warnings: list[str] = field(default_factory=list)
    brought_back: bool = field(default=False, init=False)
    _wanted: frozenset[str] = frozenset()  # ids of the checkpoints of this pull
    _taken: set[tuple[str, int]] = field(default_factory=set)  # steps that may have a local checkpoint
    _moved_bytes: int = 0
    _moved_count: int = 0
    _all_bytes: int = 0
    _expected_bytes: int = 0

    def __post_init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._budget = MemoryBudget()
        bytes_s = self.manner.bytes_s
        self._limiter = None if bytes_s is None else RateLimiter(bytes_s, sleep=self._budget.sleep)

    def bring(self, places: Sequence[Place]) -> TransferReport:
        """Pull checkpoints, one after another. Failures are reported together, in one error at the end.

        If `places` has several checkpoints of a step, the newest supersedes the others locally, as it does on the
        source.

        Raises:
            RemoteError: A checkpoint is missing or damaged on the source, or the source does not answer.
            StepExists, Protected: Another checkpoint has the step.
            InsufficientSpace, ReadOnlyStore: The store cannot take any further checkpoint. The remaining checkpoints
                were not attempted.
            CkstoreError: A checkpoint could not be pulled for another reason.
        """
        self.context.check_writable()
        begun_s = time.monotonic()
        self._wanted = frozenset(place.id for place in places)
        self._taken = steps_taken(self.context, places)
        infos = []
        new: set[CheckpointKey] = set()
        failures: dict[str, CkstoreError] = {}
        for place in places:
            try:
                info, is_new = self._pull_one(place)
            except (*OF_ALL, InsufficientSpace, ReadOnlyStore):  # the next checkpoint would also fail
                raise
            except (CkstoreError, OSError) as error:
                failures[place.name] = failure_of(f"pulling {place.name} from {self.source.name}", error)
                self._begin()  # the error has stopped the shared limiter and memory budget
                continue
            infos.append(info)
            new |= {info.key} if is_new else set()
        take_names(self.context, self.source, infos, self.warnings, new=new)
        if failures:
            raise joined(failures)
        # The tags are read once for all checkpoints, because finding the tags of one checkpoint among a hundred
        # thousand takes half a second.
        tags = tags_by_checkpoint(self.context.layout)
        tagged = tuple(replace(info, tags=tags.get(info.key.any_generation, ())) for info in infos)
        return TransferReport(
            "pull",
            self.source.name,
            tagged,
            tuple(info for info in tagged if info.key in new),
            self._moved_count,
            self._moved_bytes,
            max(0, self._all_bytes - self._moved_bytes),
            time.monotonic() - begun_s,
            tuple(self.warnings),
        )

    def _pull_one(self, place: Place) -> tuple[CheckpointInfo, bool]:
        found = read_manifest(self.source, place, self.context.layout.hash_prefix)
        if found is None:
            msg = f"{place.name} is no longer at {self.source.name}"
            raise RemoteError(msg, hint="it was deleted there meanwhile")
        manifest, manifest_id = found.manifest, found.id
        self._all_bytes += sum(blob.nbytes for blob in manifest.blobs)
        annotations = self.annotations_of(place)
        key = _key_here(self.context, place) if place.run_step in self._taken else None
        if key is not None:
            info = info_of(self.context, manifest, manifest_id, tags=(), key=key)
            if not info.elsewhere:
                self._end_eviction(info)
            else:
                with failing_as_save(self.context, f"pulling {place.name} from {self.source.name}"):
                    self._restore_bytes(place, manifest, found.form, info)
            self._annotate(info, annotations)
            if self.if_exists == "replace":
                self._drop_others(info, self.context.of_step(*place.run_step))
            return info_of(self.context, manifest, manifest_id, tags=(), key=key), False
        with failing_as_save(self.context, f"pulling {place.name} from {self.source.name}"):
            return self._publish(place, found, annotations)

    def annotations_of(self, place: Place) -> Annotations | None:
        """Return the annotations of a checkpoint on the source.

        Return None if the source has no annotations. If they cannot be read, add a warning and return None.
        """
        data = self.source.annotations(place)
        if data is None:
            return None
        where = f"the annotations of {place.name} at {self.source.name}"
        try:
            return read(data, parse_annotations, where)
        except CkstoreError as error:  # the state itself is intact, and more important than its annotations
            self.warnings.append(f"ignored {error.message}")
            return None

    def _annotate(self, info: CheckpointInfo, other: Annotations | None) -> None:
        """Add the annotations of the source to the local ones."""
        if other is None:
            return
        with held(self.context, info) as lock:
            own = read_annotations(lock.inside) or Annotations()
            both = merged(own, other)
            known = frozenset(own.notes)  # a set, since a hostile remote may have a hundred thousand notes
            notes = tuple(note for note in both.notes if note not in known)
            # Metrics are compared as text, because NaN does not equal itself and would be written again each time.
            known_metrics = {name: encode_metric(value) for name, value in own.metrics.items()}
            new = {
                name: value for name, value in both.metrics.items() if known_metrics.get(name) != encode_metric(value)
            }
            if notes or new:
                add_annotations(self.context.layout, lock, Annotations(new, notes))

    def _publish(
        self, place: Place, found: SourceManifest, annotations: Annotations | None
    ) -> tuple[CheckpointInfo, bool]:
        context, manifest = self.context, found.manifest
        read_back = save_checks_or_all(context.layout).read_back
        staging = Staging.create(context.layout, manifest.run, manifest.step, read_back=read_back)
        rule = self._rule(place)
        try:
            # Decide before the download. `publish` decides again, because another process may publish meanwhile.
            of_step = context.of_step(*place.run_step)
            kept = publishing.existing_of_step(context.layout, manifest, rule, of_step)
            if kept is None:
                self._stage(place, found, annotations, staging)
                runs = publishing.KnownRuns(context.known.synced_runs, context.of_step)
                outcome = publishing.publish(staging, manifest, found.id, rule, runs)
            else:
                self._all_bytes -= sum(blob.nbytes for blob in manifest.blobs)
                outcome = Outcome(kept.key, existing=kept)
        except BaseException as error:
            # Downloaded blobs remain for the next attempt until the next gc, unless the disk is full.
            if not reclaim.is_full(error):
                staging.written.clear()
            reclaim.abandon(context, staging, error)
            if isinstance(error, StepExists):  # unlike a save, a pull cannot choose another step
                error.hint = "if_exists='replace' replaces that one; if_exists='keep' skips this checkpoint"
            raise
        return self._follow_up(staging, manifest, place, outcome)

    def _stage(self, place: Place, found: SourceManifest, annotations: Annotations | None, staging: Staging) -> None:
        """Download a checkpoint into a staging directory, and make the directory ready to be published."""
        self._fill(place, found.manifest, found.form, staging)
        if annotations is not None:
            # The file is in the staging directory, so that the one rename publishes it together with the state.
            path = staging.lock.inside / ANNOTATIONS
            files.create_file(path, seal(annotations.render()), mode=files.mode_in(staging.lock.fd))
        staging.seal(found.data)

    def _rule(self, place: Place) -> Rule:
        if place.run_step not in self._taken:
            self._taken.add(place.run_step)
            return self.if_exists
        of_step = published_of_step(self.context.layout, *place.run_step, self.context.of_step)
        # Checkpoints of one step that this call pulls together do not conflict with each other.
        is_known = bool(of_step) and of_step[-1].manifest_id in self._wanted
        return "beside" if is_known else self.if_exists

    def _restore_bytes(self, place: Place, manifest: Manifest, form: StoredForm, info: CheckpointInfo) -> None:
        """Restore the blobs of an evicted checkpoint, which remains listed and readable meanwhile."""
        context = self.context
        read_back = save_checks_or_all(context.layout).read_back
        staging = Staging.create(context.layout, manifest.run, manifest.step, read_back=read_back)
        try:
            # A local blob of another checkpoint replaces an intact copy on the remote, so its bytes are compared first.
            self._fill(place, manifest, form, staging, compares=True)
            restore_blobs(context, info, manifest, staging)
            self.brought_back = True
            self._update_row(info.key)
        except BaseException as error:
            if not reclaim.is_full(error):
                staging.written.clear()
            reclaim.discard(context, staging, error)
            raise
        reclaim.discard(context, staging)

    def _end_eviction(self, info: CheckpointInfo) -> None:
        """Remove the record of an eviction that has freed nothing, for example because it was killed."""
        if not dirfd_stat.exists(self.context.layout.checkpoint(info.key) / ELSEWHERE):
            return
        with open_directory(self.context, info) as directory:
            lock = directory.lock
            if not judge_blobs(lock.inside, lock.fd, directory.manifest).elsewhere:
                remove_remote_only(lock)
                self.brought_back = True

    def _follow_up(
        self, staging: Staging, manifest: Manifest, place: Place, outcome: Outcome
    ) -> tuple[CheckpointInfo, bool]:
        """Do the work after the commit, and turn its errors into warnings.

        Returns:
            The checkpoint, and whether it is new in the store.
        """
        context = self.context
        if outcome.existing is not None:
            reclaim.discard(context, staging)
            kept = outcome.existing
            if kept.manifest.content != manifest.content:
                self.warnings.append(f"{place.name} of this store has other content, and was kept")
            return info_of(context, kept.manifest, kept.manifest_id, tags=(), key=kept.key), False
        # Without this call, the pull of the next checkpoint would list the run again.
        context.known.directories.changed(outcome.key, staging.inode, outcome.change)
        info = info_of(context, manifest, place.id, tags=(), key=outcome.key)
        try:
            self._drop_others(info, outcome.older)
            # The sequence number comes from the source and was not assigned by this process. So the checkpoint is
            # entered in the catalog like one that was found in the directory of its run.
            self._update_row(info.key)
        finally:
            staging.lock.release()
        return info, True

    def _drop_others(self, info: CheckpointInfo, keys: Iterable[CheckpointKey]) -> None:
        """Drop the other checkpoints of the step of `info`, except those that `_is_kept` keeps."""
        going = [key for key in keys if key != info.key and not self._is_kept(key, info)]
        if not going:
            return
        published = [look(self.context.layout, key).published for key in going]
        newer = [one for one in published if one is not None and one.order > info.order]
        # With `replace`, the user requested this checkpoint. It replaces local ones even if they are newer.
        self.warnings += drop_older(self.context, info, going, newer=self.if_exists == "replace")
        undo = "ckstore undo can restore it" if is_undone(self.context) else "it cannot be restored"
        for one in newer:
            if not dirfd_stat.exists(self.context.layout.checkpoint(one.key)):
                dropped = f"{info.name}: dropped {short_id(one.manifest_id)} of this store"
                self.warnings.append(f"{dropped}, which was newer than {short_id(info.id)}; {undo}")
        for key in going:
            self._update_row(key)
        reclaim.free_unused(self.context)
        newest = published_of_step(self.context.layout, info.run, info.step, self.context.of_step)[-1:]
        if self.if_exists == "replace" and newest and newest[0].manifest_id not in self._wanted:
            said = f"{info.name} still names {short_id(newest[0].manifest_id)}, which is newer than {short_id(info.id)}"
            self.warnings.append(f"{said}; tag the pulled checkpoint, or gc drops it")

    def _is_kept(self, key: CheckpointKey, info: CheckpointInfo) -> bool:
        """Whether the directory `key` at the step of `info` is kept. It may be older or newer than `info`."""
        id = id_at(self.context.layout.checkpoint(key))
        if id != info.id and id in self._wanted:  # this call also pulls it from the source
            return True
        if id != info.id and self.if_exists == "replace":
            return False
        found = look(self.context.layout, key).published
        return found is not None and publishing.is_sound(self.context.layout, found)

    def _update_row(self, key: CheckpointKey) -> None:
        if why := update_row(self.context, key):
            self.warnings.append(f"the catalog is not yet up to date for {key.name}: {why}")

    def _fill(
        self, place: Place, manifest: Manifest, form: StoredForm, staging: Staging, *, compares: bool = False
    ) -> None:
        claim = staging.claim_compared if compares else staging.claim
        # Local blobs are claimed before anything is downloaded, so that they are not freed meanwhile. If a claim fails
        # because of damage, the downloaded bytes heal the blob.
        missing = [blob for blob in manifest.blobs if not claim(blob.digest, blob.nbytes)]
        self._check_room(place, missing)
        self._expected_bytes = self._moved_bytes + sum(blob.nbytes for blob in missing)
        missing.sort(key=lambda blob: blob.nbytes, reverse=True)
        fetch = partial(self._fetch, place, staging)
        stopping = self._budget.ending(self.source.close)
        # Blobs that are bases of other blobs of the checkpoint are fetched first. They are then available locally, and
        # are downloaded only once.
        own = {blob.digest for blob in missing}
        depth = {blob.digest: len(own & set(form.path(blob.digest))) for blob in missing}
        for level in sorted(set(depth.values())):
            batch = [blob for blob in missing if depth[blob.digest] == level]
            for_each(fetch, batch, threads=self.manner.threads, say=self._report_progress, stopping=stopping)
        self._report_progress()

    def _check_room(self, place: Place, missing: Sequence[BlobRecord]) -> None:
        new = Amount(sum(blob.nbytes + _BESIDE_BYTES for blob in missing), 2 * len(missing) + 4)
        need = self.context.measure(new)
        if not need.fits and purge(self.context):
            need = self.context.measure(new)
        if not need.fits:
            msg = f"pulling {place.name} needs {need} on the filesystem of {self.context.layout.root}"
            raise InsufficientSpace(f"{msg}; nothing was fetched", hint=how_to_free(self.context, need.missing))

    def _fetch(self, place: Place, staging: Staging, blob: BlobRecord) -> None:
        # The buffer is aligned, so that the write of the blob bypasses the page cache, as in a save.
        with self._budget.lending(blob.nbytes) as buffer:
            came = fetch_checked(self.source, place, blob, buffer, budget=self._budget, limiter=self._limiter)
            staging.put(blob.digest, buffer)
        self._moved_bytes += came
        self._moved_count += 1

    def _report_progress(self) -> None:
        if self.manner.progress is not None:
            self.manner.progress(self._moved_bytes, max(self._expected_bytes, self._moved_bytes))


def fetch_checked(
    source: Source,
    place: Place,
    blob: BlobRecord,
    buffer: memoryview,
    *,
    budget: MemoryBudget,
    limiter: RateLimiter | None = None,
) -> int:
    """Fill memory with a blob of a checkpoint, compared with its digest. Return the number of bytes received.

    Raises:
        RemoteError: The source lacks the blob, or has damaged bytes.
    """
    algorithm = algorithm_of(blob.digest)
    for attempt in range(_READS):
        budget.sleep(_PAUSE_S * attempt)
        try:
            came = source.read_into(place, blob.digest, 0, buffer)
        except RemoteError:
            # The connection was lost. Partial bytes are discarded.
            if attempt + 1 == _READS or budget.is_ended:
                raise
            continue
        if came is None:
            msg = f"blob {blob.digest} of {place.name} is missing at {source.name}"
            raise RemoteError(msg, hint=source.restoring(place))
        if limiter is not None:
            # The number of bytes is known only after the read. So the wait delays the next reads instead of this one.
            limiter.wait(came)
        if algorithm.digest(buffer) == blob.digest:
            return came
    msg = f"blob {blob.digest} of {place.name} at {source.name} is damaged: {_READS} reads gave other bytes"
    raise RemoteError(msg, hint=source.mending(place, blob.digest))
