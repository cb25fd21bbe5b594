"""Carry out a compaction, one checkpoint after another, beginning with the newest.

Each checkpoint gets a new directory, which is staged like the directory of a save. The new directory has links to the
files that the checkpoint keeps, and encoded files instead of the replaced plain ones. One rename publishes this
directory as the next generation of the checkpoint. The former generation is kept and locked as long as older
checkpoints may be encoded against its plain bytes. Then the former generation is moved to trash, and the files that no
directory uses are freed. If the process is killed at any step, each checkpoint exists in its former form, in its new
form, or in both.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from functools import partial
from typing import Self

from ckstore.errors import CkstoreError, DamagedBlob, InUse, UnknownOutcome
from ckstore.fs import locks
from ckstore.model.manifest.encoding import Encoding
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.manifest.manifest import Manifest
from ckstore.model.names import CheckpointKey
from ckstore.model.reports.compaction import Compacted, CompactionEntry, CompactionPlan, CompactionReport, Uncompacted
from ckstore.model.sizes import size_text
from ckstore.objects.checkpoints import CheckpointDirectory, judge_blobs
from ckstore.objects.generations import publish_generation
from ckstore.objects.staging import Staging
from ckstore.ops import events
from ckstore.ops.api_calls import why_of
from ckstore.ops.compact.directory import BaseCheckpoints, gather, same, seal
from ckstore.ops.compact.encode import BlobSource
from ckstore.ops.compact.encoding_table import EncodingPlanner, EncodingTable, EncodingTotals
from ckstore.ops.compact.plan import opened
from ckstore.ops.compact.shares import Orphans, Owners, own_blobs
from ckstore.ops.context import Context
from ckstore.ops.free import reclaim
from ckstore.ops.free.drop import tell_unfreed
from ckstore.ops.free.superseded_checkpoints import drop_superseded
from ckstore.ops.index.reconcile import update_row
from ckstore.ops.notices import warn
from ckstore.ops.pace import Share


def compact(context: Context, plan: CompactionPlan, share: Share | None = None) -> CompactionReport:
    """Carry out a plan, using at most `share` of a processor, and return the report.

    Checkpoints are skipped if a process uses them or if they changed after the plan was made. After an error, the
    checkpoints that are already compacted remain compacted.
    """
    context.check_writable()
    left = drop_superseded(context, forms_only=True).digests  # former generations left by a killed compaction
    with _Compaction(context, plan, share) as work:
        work.let_go |= left
        for entry in plan.compacted:
            work.one(entry)
        for entry in plan.entries:
            work.share(entry)
    reclaim.free_unused(context, work.let_go)
    if note := tell_unfreed(context):
        warn(note)
    return CompactionReport(
        plan,
        compacted=tuple(work.compacted.values()),
        skipped=tuple(work.skipped),
        encoded_count=work.encoded.count,
        plain_bytes=work.encoded.plain_bytes,
        encoded_bytes=work.encoded.encoded_bytes,
    )


class _Compaction:
    def __init__(self, context: Context, plan: CompactionPlan, share: Share | None) -> None:
        self._share = share
        self.compacted: dict[str, Compacted] = {}
        self.skipped: list[Uncompacted] = []
        self.let_go: set[str] = set()
        self._context = context
        self._forms = EncodingTable()
        self._bases = BaseCheckpoints(context, plan)
        self._orphans = Orphans()
        self._settler = EncodingPlanner(self._forms, self._orphans)
        self._owners = Owners()
        # The checkpoints with old packs that will be encoded with an older checkpoint. The key is the name of the
        # checkpoint. The value is its staging directory if that directory already has encoded files, otherwise None.
        self._later: dict[str, Staging | None] = {}
        for entry in plan.compacted:
            # If a checkpoint cannot be opened, `one` later reports it as skipped.
            unread = suppress(CkstoreError, FileNotFoundError, NotADirectoryError, PermissionError)
            with unread, opened(self._context, entry.info) as directory:
                self._owners.note(entry.info.key, directory.manifest)
                self._orphans.note(directory.manifest)
        self._note_others(plan)

    def _note_others(self, plan: CompactionPlan) -> None:
        """Settle the present forms of the blobs in all other checkpoints, since their files are kept."""
        mine = {entry.info.key.any_generation for entry in plan.compacted}
        shares = {entry.info.key for entry in plan.entries if entry.shares}
        # A former generation is dropped soon, so a blob that is plain only in this generation need not remain plain.
        latest: dict[CheckpointKey, CheckpointKey] = {}
        for key, _ in self._context.layout.published():
            first = key.any_generation
            latest[first] = max(latest.get(first, key), key, key=lambda one: one.generation)
        for first, key in latest.items():
            if first in mine:
                continue
            try:
                with CheckpointDirectory.at(self._context.layout.checkpoint(key)) as directory:
                    manifest = directory.manifest
                    # An evicted checkpoint has a plain manifest but lacks blobs. Do not settle these blobs as plain,
                    # because other directories may have them only in encoded form.
                    if not judge_blobs(directory.lock.inside, directory.lock.fd, manifest).is_local:
                        continue
                    self._orphans.note(manifest)
                    if key in shares:
                        # Keep the plain blobs that count as the checkpoint's own. `share` replaces the checkpoint's
                        # other blobs with the encoded forms that older checkpoints have.
                        self._forms.keep_plain(
                            blob for blob in own_blobs(manifest) if manifest.form.has_file(blob.digest)
                        )
                    else:
                        self._forms.adopt(manifest)
            except (FileNotFoundError, NotADirectoryError, DamagedBlob, InUse, PermissionError):
                continue  # the checkpoint was deleted, or is unreadable but has its own links to the files it needs

    def one(self, entry: CompactionEntry) -> None:
        """Compact one checkpoint, or record why it was skipped."""
        before: set[str] = set()
        try:
            with ExitStack() as held:
                directory = held.enter_context(opened(self._context, entry.info))
                before = {blob.digest for blob in directory.manifest.blobs if self._forms.is_settled(blob.digest)}
                self._one(entry, directory, held)
        except UnknownOutcome as error:
            # It is unknown whether the new generation is durable, so start no other checkpoint, and free nothing.
            self._tell("unknown", entry, error)
            raise
        except (CkstoreError, FileNotFoundError, PermissionError) as error:
            self._skip(entry, error)
            self._forget(entry.info, before)
        finally:
            self._bases.used(entry.base)

    def _skip(self, entry: CompactionEntry, error: CkstoreError | OSError) -> None:
        self.skipped.append(Uncompacted(entry.info, why_of(error)))
        if not isinstance(error, InUse | FileNotFoundError):  # a checkpoint in use or deleted needs no event
            self._tell("uncompacted", entry, error)

    def _tell(self, kind: str, entry: CompactionEntry, error: CkstoreError | OSError) -> None:
        events.note(self._context, kind, entry.info.key.run_step, id=entry.info.id, why=f"compaction: {why_of(error)}")

    def _forget(self, info: CheckpointInfo, before: set[str]) -> None:
        """Settle the present forms of the blobs of a skipped checkpoint, since other checkpoints may use the blobs."""
        try:
            with opened(self._context, info) as directory:
                manifest = directory.manifest
        except (CkstoreError, FileNotFoundError, NotADirectoryError):
            return
        self._forms.forget(blob.digest for blob in manifest.blobs if blob.digest not in before)
        self._forms.adopt(manifest)

    def _one(self, entry: CompactionEntry, directory: CheckpointDirectory, held: ExitStack) -> None:
        info, manifest = entry.info, directory.manifest
        base = self._bases.open(entry.base)
        source = BlobSource(partial(self._rest, directory))
        held.callback(source.close)
        source.add(base)
        source.add(directory)
        staging = Staging.create(self._context.layout, info.run, info.step)
        try:
            count = self.encoded.count
            mine = {blob.digest for blob in manifest.blobs if self._owners.is_of(blob.digest, info.key)}
            self._settler.settle(manifest, mine, base.manifest, source, staging)
            source.close()
            open_ones = [blob.digest for blob in manifest.blobs if not self._forms.is_settled(blob.digest)]
            if open_ones:
                self._later[info.name] = None
            if not all(manifest.form.has_file(digest) for digest in open_ones):
                # An unsettled blob that this checkpoint has only in encoded form will get another encoded form. Finish
                # this checkpoint after the checkpoint that owns the blob is encoded.
                if self.encoded.count > count or staging.written:
                    self._later[info.name] = staging
                else:
                    reclaim.discard(self._context, staging)
                return
        except BaseException as error:
            # Do not free dropped checkpoints that can still be restored: the only aim of compaction is to save space.
            reclaim.discard(self._context, staging, error, purge=False)
            raise
        self._publish(entry, directory, staging, base)

    def _rest(self, directory: CheckpointDirectory) -> None:
        """Pause if a pause is due, and unlock the checkpoints during the pause, so that they can be deleted.

        Raises:
            FileNotFoundError: One of the checkpoints was dropped or replaced.
            InUse: Another process has locked one of the checkpoints.
        """
        # If the share is small, the pauses take nearly all of the time, so locks must not be held during them.
        if self._share is None or not self._share.is_due:
            return
        try:
            with ExitStack() as resting:
                for read in (directory, *self._bases.published()):
                    resting.enter_context(read.lock.let_go())
                self._share.rest()
        except (FileNotFoundError, InUse):
            self._bases.close_published()
            raise

    def share(self, entry: CompactionEntry) -> None:
        """Replace old packs in the directory of a checkpoint with the encoded forms that older checkpoints have."""
        name = entry.info.name
        if not entry.shares and name not in self._later:
            return
        staging = self._later.pop(name, None)
        try:
            with opened(self._context, entry.info) as directory:
                self._forms.adopt(directory.manifest)
                self._publish(entry, directory, staging)
                staging = None
        except UnknownOutcome as error:
            self._tell("unknown", entry, error)
            raise
        except (CkstoreError, FileNotFoundError, PermissionError) as error:
            self._skip(entry, error)
        finally:
            if staging is not None:
                reclaim.discard(self._context, staging)

    def _publish(
        self,
        entry: CompactionEntry,
        directory: CheckpointDirectory,
        staging: Staging | None,
        *others: CheckpointDirectory,
    ) -> None:
        """Publish the wanted form of a checkpoint, unless it is the present form."""
        info, manifest = entry.info, directory.manifest
        wanted = self._forms.encoding(directory.manifest_id, manifest.blobs, entry.place)
        is_plain = not any(blob.digest in wanted.encoded for blob in manifest.blobs)
        if (is_plain and manifest.form.is_plain) or same(wanted, manifest.form):
            if staging is not None:
                reclaim.discard(self._context, staging)
            return
        staging = staging or Staging.create(self._context.layout, info.run, info.step)
        try:
            gather(staging, wanted, (directory, *others))
            seal(staging, wanted, directory, self._context.algorithm)
            former = CheckpointKey(info.run, info.step, directory.lock.inside.name)
            directory.close()
            key, lock = publish_generation(self._context.layout, staging, former, info.id)
        except BaseException as error:
            reclaim.abandon(self._context, staging, error, purge=False)
            raise
        staging.lock.release()
        self._published(entry, manifest, wanted, (former, lock), (key, staging.inode))

    @property
    def encoded(self) -> EncodingTotals:
        """The number and the sizes of the blobs encoded so far."""
        return self._settler.encoded

    def _published(
        self,
        entry: CompactionEntry,
        manifest: Manifest,
        wanted: Encoding,
        former: tuple[CheckpointKey, locks.DirectoryLock],
        new: tuple[CheckpointKey, int],
    ) -> None:
        info, (former_key, lock), (key, inode) = entry.info, former, new
        old = self._context.layout.checkpoint(former_key)
        try:
            directory = CheckpointDirectory.locked(old, lock)
        except BaseException:
            lock.release()
            raise
        self._bases.put_old(info.name, directory, old)  # first, so that it is closed after an error
        kept = {file.digest for file in wanted.files}
        self.let_go |= {blob.digest for blob in manifest.stored if blob.digest not in kept}
        sizes = dict(wanted.files)
        before = dict(manifest.stored)
        own = [blob.digest for blob in manifest.blobs]
        was_bytes = sum(before[digest] for digest in dict.fromkeys(map(manifest.form.file_of, own)))
        now_bytes = sum(sizes[digest] for digest in dict.fromkeys(map(wanted.file_of, own)))
        if not entry.shares:
            first = self.compacted.get(info.name)
            self.compacted[info.name] = Compacted(info, first.before_bytes if first else was_bytes, now_bytes)
        self._context.known.directories.changed(key, inode, None)
        update_row(self._context, key)
        self._bases.drop_unused(info.name)
        if not entry.shares:
            why = f"{size_text(was_bytes)} became {size_text(now_bytes)}"
            events.note(
                self._context, "compacted", info.key.run_step, id=info.id, nbytes=was_bytes - now_bytes, why=why
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._bases.close()
        finally:
            while self._later:
                if staging := self._later.popitem()[1]:
                    reclaim.discard(self._context, staging)
