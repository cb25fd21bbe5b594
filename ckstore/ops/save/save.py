"""Save a state as a checkpoint, in the steps of the save protocol.

Format: docs/format/v1.md, "Durability". Laws, such as N1: docs/protocol.md, "The law".

1. Create and lock a staging directory, and refuse the save early if the filesystem has no room.
2. Hash each chunk. If the store has its blob, claim the blob with a link.
3. Otherwise write the blob, make it durable, and link it into the store.     (ops.save.write)
4. Write the manifest, and make the staging directory durable.
5. Commit: rename the staging directory, and make the parents durable.        (objects.publish)
6. Write the tags and the rows of the catalog.
7. Call retention and the other subscribers; then the save returns.           (ops.save.subscribers)

Until the rename, nothing is visible. After a crash before the rename, the next process that opens the store moves the
staging directory to trash. After the rename, the save cannot fail any more, and the next process that opens the store
completes unfinished steps.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from ckstore.errors import (
    BadInput,
    CannotStore,
    CkstoreError,
    InsufficientSpace,
    SaveFailed,
    StepExists,
    UnknownOutcome,
)
from ckstore.fs import files
from ckstore.interpreter import GC_PAUSED_MOST_S, python_gc_paused
from ckstore.model.manifest.info import CheckpointInfo, Published, SaveCounters
from ckstore.model.manifest.lineage import CountedPieces
from ckstore.model.manifest.manifest import (
    MANIFEST_MAX_BYTES,
    NAMES_MOST_CHARS,
    NAMES_MOST_TIMES,
    Description,
    Manifest,
    StateTexts,
    content_digest,
    render,
)
from ckstore.model.manifest.parse import parse_manifest
from ckstore.model.names import MAX_STEP, CheckpointKey, check_run, check_step, check_tag
from ckstore.model.settings.patience import AS_SET, AskedPatience
from ckstore.model.sizes import sizes_apart
from ckstore.model.times import text_of_time
from ckstore.model.training_identity import IfRunInUse, Parent
from ckstore.model.words import arguments
from ckstore.objects import publish as publishing
from ckstore.objects.checkpoints import look
from ckstore.objects.documents import marks
from ckstore.objects.staging import Staging
from ckstore.ops import events
from ckstore.ops.api_calls import describe_os_error, why_of
from ckstore.ops.config_file import save_checks_or_all
from ckstore.ops.context import Context, Publication, SaveWatch, info_of, tags_by_checkpoint
from ckstore.ops.free import reclaim
from ckstore.ops.free.make_room import how_to_free
from ckstore.ops.free.superseded_checkpoints import drop_older
from ckstore.ops.index.sequence import next_sequence
from ckstore.ops.manifest_cache import file_stamp
from ckstore.ops.notices import tell_left_out, tell_not_durable
from ckstore.ops.pace import PhaseTimer
from ckstore.ops.refs.labels import write_tag
from ckstore.ops.refs.protection import held
from ckstore.ops.save.admission import check_space
from ckstore.ops.save.continuation import (
    ParentAtCall,
    RunGuard,
    changed_configuration,
    continue_saved,
    described,
    parent_in,
    training_of,
)
from ckstore.ops.save.health import HealthVerdict, check_of, judged, lineage_of
from ckstore.ops.save.patience import Patience
from ckstore.ops.save.recheck import Recheck
from ckstore.ops.save.recorded_chunks import RecordedSource, state_changed
from ckstore.ops.save.restore_blobs import restore_blobs
from ckstore.ops.save.step_author import with_author
from ckstore.ops.save.subscribers import tell_subscribers
from ckstore.ops.save.write import StorageLocations, store_sources
from ckstore.ops.touch import renew_used
from ckstore.tensors.state_capture import Captured, capture
from ckstore.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ckstore.catalog.queries import Counted
    from ckstore.model.reports.progress import Progress
    from ckstore.objects.publish import IfExists, Outcome, Rule
    from ckstore.ops.context import Origin

# The save is already durable, and the next opening adds the row. Therefore a locked catalog must not delay the trainer.
CATALOG_TIMEOUT_S = 5.0
# A try fails if another process publishes the same step first. This number of failures in a row would be an endless
# loop and not a race.
_AUTO_STEP_TRIES = 100
_MARK_S = 8e-6  # the time to check one checkpoint for a mark


@dataclass(frozen=True, slots=True)
class Request:
    """The arguments of a save; `check` validates them."""

    run: str
    step: int | None
    about: Description
    tags: tuple[str, ...]
    if_exists: IfExists
    progress: Progress | None = None
    patience: AskedPatience = AS_SET
    # The parent that the caller names, whose id is in `about`. If None, the save continues the checkpoint that the
    # process last loaded or saved.
    parent: Parent | None = None
    if_run_in_use: IfRunInUse = "append"
    at_call: ParentAtCall | None = None  # only for a save that runs after its call has returned
    facts: Mapping[str, Any] = field(default_factory=dict)  # the metadata members that subscribers add by name

    def continued(self, context: Context) -> Parent | None:
        """Return the parent of the save, or None if this process knows none."""
        if self.parent is not None:
            return self.parent
        at_call = self.at_call
        return parent_in(context, self.run) if at_call is None else at_call.parent_now(context, self.run)

    def check(self) -> None:
        """Raise if an argument is invalid."""
        self.patience.check()
        check_run(self.run)
        if self.step is not None:
            check_step(self.step)
        for tag in self.tags:
            check_tag(tag)
        if self.if_exists not in ("error", "replace", "keep"):
            raise BadInput(f"if_exists must be 'error', 'replace' or 'keep', got {self.if_exists!r}")
        if self.if_run_in_use not in ("error", "append"):
            raise BadInput(f"if_run_in_use must be 'error' or 'append', got {self.if_run_in_use!r}")


def save(context: Context, state: object, request: Request) -> CheckpointInfo:
    """Save `state` durably; see `ckstore.Store.save`."""
    # Check the arguments before the state is walked or staged, so that an invalid tag does not cost minutes of work.
    request.check()
    context.check_writable()
    with python_gc_paused():
        captured = capture(state)
    tell_left_out(captured.left_out)
    return save_captured(context, captured, request)


def _never(_: BaseException) -> bool:
    return False


def save_captured(
    context: Context, captured: Captured, request: Request, is_tried_again: Callable[[BaseException], bool] = _never
) -> CheckpointInfo:
    """Save a captured state or captured files, for a checked request; `is_tried_again` is as in `save_staged`."""
    # The settings are read once, at the first use below.
    checks = cache(partial(save_checks_or_all, context.layout))

    def stage(staging: Staging, notes: list[str]) -> StagedCheckpoint:
        # `check_space` needs the staging directory to claim the existing blobs that it finds, so that gc does not
        # delete them before the save uses them.
        notes += check_space(context, staging, captured)
        state_bytes = sum(source.nbytes for source in captured.sources)
        # If the settings cannot be read, make all checks, because the settings may have requested them. An error would
        # stop a training because of a config file.
        if (error := checks().unread) is not None:
            reason = why_of(error)
            notes.append(f"the settings cannot be read, so this save reads again every blob that it reuses: {reason}")
        recheck = Recheck(context, staging, request.run, state_bytes, checks().recheck_share)
        staged = _stage_captured(context, staging, captured, request, recheck, health_share=checks().health_share)
        return replace(staged, least_sequence=checks().least_sequence)

    def create() -> Staging:
        return Staging.create(context.layout, request.run, request.step, read_back=checks().read_back)

    return save_staged(context, request, create, stage, is_tried_again=is_tried_again)


@dataclass(frozen=True, slots=True)
class StagedCheckpoint:
    """The content of a staging directory that is to be published."""

    draft: Manifest  # the manifest without its step and its sequence number
    texts: StateTexts  # the texts of its leaves and state
    readings: Callable[[], dict[str, tuple[int, int]]] = dict  # when its blobs were last read, for the catalog
    warnings: Callable[[], Sequence[str]] = tuple  # warnings about blobs that were read again
    # Whether its names and values come from other programs, so that the manifest is parsed strictly before publishing.
    by_others: bool = False
    # How many bytes of the state were not read; None if unknown, as for parts that several ranks staged.
    kept_bytes: int | None = None
    counted: Counted | None = None  # the count of checkpoints from the catalog, if it was queried for pieces
    parent: Parent | None = None  # the checkpoint that it continues
    least_sequence: int | None = None  # as in `SaveChecks`; None if the settings were not read
    judged: HealthVerdict | None = None  # the facts about its tensors; None if they were not checked

    def counters(self, staging: Staging, retry_count: int) -> SaveCounters | None:
        """Return how many bytes and blobs the save hashed, reused and wrote, or None if this is not known."""
        if self.kept_bytes is None:
            return None
        written_count = sum(blob.digest in staging.written for blob in self.draft.blobs)
        return SaveCounters(
            hashed_bytes=self.draft.logical_bytes - self.kept_bytes,
            kept_bytes=self.kept_bytes,
            written_count=written_count,
            reused_count=len(self.draft.blobs) - written_count,
            retry_count=retry_count,
        )


def save_staged(
    context: Context,
    request: Request,
    create: Callable[[], Staging],
    stage: Callable[[Staging, list[str]], StagedCheckpoint],
    watch: SaveWatch | None = None,
    *,
    is_tried_again: Callable[[BaseException], bool] = _never,
) -> CheckpointInfo:
    """Create a staging directory, fill it with `stage`, publish it, and run the steps after the commit.

    Args:
        context: The store.
        request: The arguments, checked already.
        create: Creates and locks the directory.
        stage: Called with the directory and the notes to the user, to which it may add.
        watch: Called during the save. If None, the watch of the store is called.
        is_tried_again: Returns whether the caller retries after an error.
    """
    watch = watch or context.watch
    # Warn at the first save, before anything is written, so that the user knows of the risk before a power cut.
    tell_not_durable(context.not_durable_because, context.settings)
    patience = Patience(context, (request.run, request.step), request.patience, watch)
    with _telling_failure(context, request, is_tried_again):
        made = patience.run(lambda: _publish_once(context, request, create, stage, watch, patience))
    # These steps are not retried. A retry of a committed save whose step the store chose would save the state twice.
    return _finish(context, request, made, watch, patience.count)


@dataclass(frozen=True, slots=True)
class _CommittedSave:
    """A save that is committed or needs no commit, with the data for the steps after the commit."""

    staging: Staging
    staged: StagedCheckpoint
    manifest: Manifest
    manifest_id: str
    outcome: Outcome
    notes: list[str]
    laps: PhaseTimer


def _publish_once(  # noqa: PLR0917
    context: Context,
    request: Request,
    create: Callable[[], Staging],
    stage: Callable[[Staging, list[str]], StagedCheckpoint],
    watch: SaveWatch,
    patience: Patience,
) -> _CommittedSave:
    """Try once to stage and publish the save; after an error, the staging directory is discarded."""
    act_name = f"saving {request.run}@{'next step' if request.step is None else request.step}"
    notes = patience.notes()
    laps = PhaseTimer()
    with failing_as_save(context, act_name), python_gc_paused(most_s=GC_PAUSED_MOST_S):
        # On a full disk, this mkdir fails first. `failing_as_save` turns its error into `InsufficientSpace`.
        staging = create()
        try:
            watch.staged()
            laps.end("staging_s")
            staged = stage(staging, notes)
            laps.end("storing_s")
            manifest, manifest_id, outcome = _publish(context, staging, staged, request, notes, laps, watch)
            # Restore evicted blobs of the existing checkpoint before the save is acknowledged, since the staged blobs
            # may be their only good copies.
            if outcome.existing is not None and not outcome.existing.is_local:
                notes += _restored(context, staging, manifest, outcome.existing)
            laps.end("publishing_s")
        except BaseException as error:
            patience.freed_by_end = reclaim.frees_undo(context, error)
            reclaim.abandon(context, staging, error)
            raise
    return _CommittedSave(staging, staged, manifest, manifest_id, outcome, notes, laps)


def _finish(
    context: Context, request: Request, made: _CommittedSave, watch: SaveWatch, retry_count: int
) -> CheckpointInfo:
    """Write tags and catalog rows, drop replaced checkpoints, and call the subscribers, all after the commit."""
    # The save is committed, so errors become notes: a caller that got an error would save again.
    staging, staged, outcome, notes = made.staging, made.staged, made.outcome, made.notes
    is_own = outcome.existing is None
    published = outcome.existing or Published(
        manifest=made.manifest, manifest_id=made.manifest_id, key=outcome.key, stamp=staging.stamp
    )
    manifest = published.manifest
    if is_own:
        # Without this call, the next save would list the run again, which takes 12 ms for 10,000 checkpoints.
        context.known.directories.changed(outcome.key, staging.inode, outcome.change)
    elif manifest.content != made.manifest.content:
        notes.append(
            f"{manifest.name} of {manifest.created} has other content and was kept, "
            "so the state of this step is not saved"
        )
    # Notify the trainer before tags and retention, so that it knows that the save succeeded even if the saver process
    # dies during these steps.
    committed = CheckpointInfo.of(manifest, published.manifest_id, directory=published.key.directory)
    try:
        watch.committed(replace(committed, durable=context.durable))
    except (CkstoreError, OSError) as error:
        notes.append(f"{committed.name} is saved, but waiting processes could not be notified: {why_of(error)}")
    try:
        # Write the tags first: the catalog reads them from `refs/`, and retention must know which checkpoints they
        # protect.
        tags = _tag(context, published, request.tags, notes, is_durable=is_own)
        info = info_of(context, manifest, published.manifest_id, tags=tags, key=published.key)
        # Drop older checkpoints after the tags are written, because an older checkpoint whose tag moved to the new one
        # is no longer protected.
        notes += drop_older(context, info, outcome.older)
        why_not_catalogued = _catalogue(context, (published.key, *outcome.older), published if is_own else None, staged)
    finally:
        # If the store already had the content, the staging directory was not renamed. Its links would prevent blobs
        # from being freed until the next process opens the store.
        if not is_own:
            reclaim.discard(context, staging)
        # This lock was held until now, so that no other process could drop the checkpoint before its tags and rows
        # existed (law L2).
        staging.lock.release()
    before = context.known.last_parents.get(manifest.run, context.known.last_parents.get(""))
    if before is not None and before.origin == "lost" and manifest.description.parent is None:
        notes.append(f"{manifest.name} has no parent because the preceding load failed midway. Set it with parent=")
    if is_own and (news := changed_configuration(context, manifest, staged.parent)):
        notes.append(news)
    # If the existing checkpoint with equal content belongs to another training, the next save must not continue it.
    if made.manifest.training == manifest.training:
        continue_saved(context, info, request.at_call)
    if outcome.older:
        reclaim.free_unused(context)
    try:
        renew_used(context, None if is_own else published.key)
    except OSError as error:
        notes.append(f"{info.name} is saved, but file times could not be renewed: {why_of(error)}")
    notes += staged.warnings()
    if is_own and staged.judged is not None:
        notes += staged.judged.warnings(manifest.name)
    if why_not_catalogued:
        notes.append(
            f"{info.name} is saved, but is not in the catalog yet: {why_not_catalogued}. The next "
            "opening of the store adds it"
        )
    origin: Origin = "existing" if not is_own else "replaced" if outcome.older else "saved"
    # Call the subscribers last. Retention must see the new checkpoint with its tags, and must not harm the checkpoint
    # if it fails.
    return tell_subscribers(
        Publication(
            context,
            replace(info, catalogued=not why_not_catalogued),
            origin,
            notes,
            made.laps,
            staged.counters(staging, retry_count),
        )
    )


def _restored(context: Context, staging: Staging, manifest: Manifest, existing: Published) -> list[str]:
    """Link the staged blobs into an existing checkpoint of equal content whose data is on a remote; return notes."""
    if existing.manifest.content != manifest.content:
        return []
    info = info_of(context, existing.manifest, existing.manifest_id, tags=(), key=existing.key)
    with suppress(PermissionError):  # the checkpoint belongs to another member of the group
        if restore_blobs(context, info, existing.manifest, staging):
            return []
    return [f"{info.name} was saved before with the same content, but its data is on a remote and not in this store"]


def _stage_captured(
    context: Context, staging: Staging, captured: Captured, request: Request, recheck: Recheck, *, health_share: float
) -> StagedCheckpoint:
    parent = request.continued(context)
    description = described(request.about, parent)
    before = lineage_of(context, request.run, description.parent) if health_share else None
    # Blobs are compared byte by byte only for files, which may come from an adversary who chose bytes with colliding
    # digests. The bytes of a state result from training and are not chosen to collide.
    stored = store_sources(
        context,
        staging,
        captured,
        recheck,
        compare=bool(captured.files),
        progress=request.progress,
        health=check_of(captured, CountedPieces() if before is None else before.counted, health_share),
    )
    # The search for marks takes 4 to 8 µs per checkpoint, so in a large store only some saves do it (`DutyCycle`).
    expected_s = context.known.directories.known_count * _MARK_S
    staging.heal_marked(
        context.known.marks_duty.do(lambda: [*marks.marked(context.layout)], expected_s=expected_s) or ()
    )
    # Check for changes after the last byte was read, since torch's counter of writes also detects a tensor that changed
    # between the reads of two of its chunks.
    changed = captured.first_changed()
    if changed is not None:
        raise state_changed(changed)
    texts = StateTexts.of(captured.leaves, captured.state)
    most = NAMES_MOST_CHARS + NAMES_MOST_TIMES * len(texts.state)
    if captured.name_chars > most:
        reason = f"the paths to its values have {captured.name_chars} characters, at most {most} can be read"
        raise CannotStore("", reason, hint="use shorter keys, or keep long lists of numbers in tensors or arrays")
    draft = draft_of(context, captured, stored, texts, request.run, description, parent)
    found = None if stored.found is None else judged(draft, stored.found, before, request.step)
    if found is not None:
        draft = replace(draft, health=found.lineage.health)
    recorded = [source.nbytes for source in captured.sources if isinstance(source, RecordedSource)]
    kept_bytes = sum(recorded) + stored.kept_bytes
    return StagedCheckpoint(
        draft,
        texts,
        recheck.readings,
        recheck.warnings,
        by_others=bool(captured.files),
        kept_bytes=kept_bytes,
        counted=stored.counted,
        judged=found,
        parent=parent,
    )


def _publish(  # noqa: PLR0917
    context: Context,
    staging: Staging,
    staged: StagedCheckpoint,
    request: Request,
    notes: list[str],
    laps: PhaseTimer,
    watch: SaveWatch,
) -> tuple[Manifest, str, Outcome]:
    step = request.step
    if step is None:
        # Use the highest step and not the step of the newest checkpoint. After a resume from an earlier checkpoint, the
        # newest checkpoint may have a lower step, and the step after it may already exist.
        known = context.known.directories.look(context.layout).get(request.run)
        step = _step_after(max((key.step for key in known.published), default=-1) if known else -1, request.run)
    # Another process may use the same step or sequence number first. Then the next try uses the next number.
    counted = staged.counted
    least = 1
    for _ in range(_AUTO_STEP_TRIES):
        sequence = max(least, next_sequence(context, counted, staged.least_sequence))
        manifest = replace(staged.draft, step=step, sequence=sequence)
        manifest_id, data = render(manifest, context.algorithm, staged.texts)
        # Readers refuse a larger manifest, so the save would be acknowledged but could never be loaded.
        if len(data) > MANIFEST_MAX_BYTES:
            size, most = sizes_apart(len(data), MANIFEST_MAX_BYTES)
            reason = f"its manifest would have {size}, at most {most} can be read"
            raise CannotStore("", reason, hint="keep long lists of numbers in tensors or arrays")
        # The manifest contains names and values from foreign files. If the strict parser refuses the manifest, the save
        # must fail now, and not a later load.
        if staged.by_others:
            parse_manifest(data, where=f"the manifest of {request.run}@{step}")
        # The rename may only expose a complete checkpoint, so `seal` fsyncs the manifest and then the two directories
        # (law N1).
        watch.syncing()
        staging.seal(data)
        # Take the stamp from the descriptor and before the rename, because another process may replace the directory at
        # that path afterwards.
        context.known.manifests.remember(file_stamp(staging.lock.fd), manifest, manifest_id)
        if staged.judged is not None:
            context.known.remember_lineage(manifest.run, staged.judged.of_published(manifest, manifest_id))
        try:
            # If the store chose the step, an existing checkpoint at that step is never accepted as this save, even if
            # its content is equal (docs/adr/0003).
            rule: Rule = "taken" if request.step is None else request.if_exists
            laps.end("sealing_s")
            # Ask the trainer immediately before the rename, which must not happen if the trainer refuses or has given
            # up (docs/adr/0014).
            watch.publishing(step)
            watch.sealed(staging, manifest, rule)
            runs = publishing.KnownRuns(context.known.synced_runs, context.of_step)
            guard = RunGuard(context, manifest, staged.parent, request.if_run_in_use, notes)
            outcome = publishing.publish(
                staging, manifest, manifest_id, rule, runs, as_newest=True, may_publish=guard.check
            )
        except StepExists as error:
            if request.step is not None:
                raise with_author(context, error, request.run) from None
            step = _step_after(step, request.run)  # another process has just taken the step
            counted = None
        except publishing.Overtaken as error:  # another process used the same sequence number for this step
            least, counted = error.sequence + 1, None
        else:
            return manifest, manifest_id, outcome
    msg = f"run {request.run}: {_AUTO_STEP_TRIES} steps were taken by other processes, one after another"
    raise SaveFailed(msg, hint="pass a step with step=")


def _step_after(step: int, run: str) -> int:
    if step >= MAX_STEP:
        msg = f"the run {run} has a checkpoint at step {step}, the highest possible step"
        raise BadInput(msg, hint="pass step=, or another run=")
    return step + 1


def draft_of(  # noqa: PLR0917
    context: Context,
    captured: Captured,
    stored: StorageLocations,
    texts: StateTexts,
    run: str,
    description: Description,
    parent: Parent | None = None,
) -> Manifest:
    """Return the manifest of the stored state without its step and its sequence number."""
    return Manifest(
        run=run,
        step=0,
        sequence=0,
        created=text_of_time(datetime.now(UTC)),
        writer=f"ckstore {__version__}",
        description=description,
        logical_bytes=stored.logical_bytes,
        new_bytes=stored.new_bytes,
        reused_bytes=stored.reused_bytes,
        content=content_digest(texts, stored.storages, context.algorithm, captured.files),
        blobs=stored.blobs,
        storages=stored.storages,
        leaves=captured.leaves,
        state=captured.state,
        files=captured.files,
        training=training_of(context, parent, run),
    )


def _tag(
    context: Context, published: Published, tags: tuple[str, ...], notes: list[str], *, is_durable: bool
) -> tuple[str, ...]:
    """Point the tags to a published checkpoint, and return the tags that it has.

    A tag that could not be written is not returned, and the reason is added to `notes`.
    """
    failed: set[str] = set()
    try:
        if tags:
            info = CheckpointInfo.of(published.manifest, published.manifest_id, directory=published.key.directory)
            # Without the lock, another process could drop the checkpoint after its id was checked and before the
            # symlink is created (law L2).
            with held(context, info, is_durable=is_durable):
                for tag in tags:
                    try:
                        write_tag(context.layout, tag, published.key)
                    # A failure to write one tag must not prevent the other tags.
                    except OSError as error:
                        failed.add(tag)
                        notes.append(_untagged(published.manifest, tag, describe_os_error(error)))
        found = tags_by_checkpoint(context.layout).get(published.key.any_generation, ())
        return tuple(tag for tag in found if tag not in failed)
    except (CkstoreError, OSError) as error:  # for example, another process is dropping the checkpoint
        reason = why_of(error)
        notes.extend(_untagged(published.manifest, tag, reason) for tag in tags if tag not in failed)
        return ()


def _untagged(manifest: Manifest, tag: str, reason: str) -> str:
    name = manifest.name
    return f"{name} is saved, but its tag {tag!r} is not: {reason}. To retry: ckstore tag {arguments(tag, name)}"


def _catalogue(context: Context, keys: Iterable[CheckpointKey], own: Published | None, staged: StagedCheckpoint) -> str:
    """Update the catalog within a deadline; return the reason if that fails, and an empty string otherwise."""

    def look_at(key: CheckpointKey) -> Published | None:
        if own is not None and key == own.key and context.layout.stamp(key) == own.stamp:
            return own  # the directory is unchanged since its publication, so it need not be read
        return look(context.layout, key).published

    try:
        context.catalog.reconcile(
            keys,
            look_at,
            timeout_s=CATALOG_TIMEOUT_S,
            tags=context.layout.tags,
            readings=staged.readings(),
            # The catalog is only an index and needs no fsync: after a power cut, the next opening adds the row from
            # the directory.
            durable=False,
        )
    except (CkstoreError, OSError) as error:  # the next opening adds the missing rows, or reports why it cannot
        return why_of(error)
    return ""


@contextmanager
def _telling_failure(
    context: Context, request: Request, is_tried_again: Callable[[BaseException], bool]
) -> Iterator[None]:
    """Count and record a failed save with its reason, unless it is retried."""
    try:
        yield
    except BaseException as error:
        if not is_tried_again(error):
            context.totals.not_saved("failed")
            if isinstance(error, CkstoreError):
                # After `UnknownOutcome`, the checkpoint may be published, so the journal must not record a failed save.
                kind = "unknown" if isinstance(error, UnknownOutcome) else "failed"
                why = f"{type(error).__name__}: {error.message}"
                events.note(context, kind, (request.run, request.step), why=why)
        raise


@contextmanager
def failing_as_save(context: Context, act_name: str) -> Iterator[None]:
    """Turn system errors into errors of the save, with the cause attached."""
    try:
        yield
    except CkstoreError:
        raise
    except OSError as error:
        msg = (
            f"{act_name} failed: {describe_os_error(error)}. Nothing was published, every earlier checkpoint is intact"
        )
        # ENOSPC and EDQUOT have the same remedy, so both raise the same class.
        if error.errno in files.NO_SPACE:
            raise InsufficientSpace(msg, hint=how_to_free(context)) from error
        raise SaveFailed(msg, hint="see the cause above; you can continue to use the store") from error
    except MemoryError as error:
        msg = f"{act_name} failed: not enough memory for the buffers of the save. Nothing was published"
        raise SaveFailed(msg) from error
