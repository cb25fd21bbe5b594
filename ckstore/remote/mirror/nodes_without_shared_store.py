"""Lets ranks on nodes with separate stores save one checkpoint to the common mirror of these stores.

Implements `ckstore.ranks.separate_stores.SeparateStores`. The checkpoint exists once it is on the remote. Each node
then lists the checkpoint in its own store, with the parts of its own ranks. Source: docs/format/remote-v1.md, "Parts of
several nodes".
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from ckstore.errors import CkstoreError, NoSuchRef, ReadOnlyStore, RemoteUnavailable, UnknownOutcome
from ckstore.fs import files
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.manifest.manifest import MANIFEST_MAX_BYTES, Manifest
from ckstore.model.manifest.parse import parse_manifest
from ckstore.model.remote.remote_only import RemoteHolder, RemoteOnly
from ckstore.model.settings.settings import ELSEWHERE
from ckstore.model.times import text_of_time
from ckstore.objects import publish as publishing
from ckstore.objects.checkpoints import published_of_step
from ckstore.objects.layout import MANIFEST
from ckstore.objects.publish import Rule
from ckstore.objects.remote.remote_only import stage_remote_only
from ckstore.objects.staging import Staging
from ckstore.ops.api_calls import why_of
from ckstore.ops.config_file import setting_or_none
from ckstore.ops.context import Context, Publication, info_of
from ckstore.ops.free import reclaim
from ckstore.ops.index.reconcile import update_row
from ckstore.ops.index.sequence import next_sequence
from ckstore.ops.mirror_settings import MIRROR
from ckstore.ops.notices import warn
from ckstore.ops.refs.find import AnyRef, open_directory, text_of
from ckstore.ops.refs.labels import tag
from ckstore.ops.requires import require
from ckstore.ops.save.restore_blobs import restore_blobs
from ckstore.ops.save.save import Request
from ckstore.ops.save.subscribers import tell_subscribers
from ckstore.ranks.merged_checkpoint import MergedCheckpoint
from ckstore.ranks.outcome import with_news
from ckstore.ranks.rank_identity import Document
from ckstore.ranks.separate_stores import JointCheckpoint
from ckstore.ranks.work import RankWork, WorkWatch
from ckstore.remote.objects import Remote
from ckstore.remote.parts import PushedPart, common_remote, list_step, push_part, push_whole
from ckstore.remote.pull import is_here
from ckstore.remote.push import TransferLimits, end_intents
from ckstore.remote.push_plan import place_of
from ckstore.remote.remote_only.clone import list_remote, publish_manifest
from ckstore.remote.remote_opener import open_source, source_of
from ckstore.remote.remote_refs import find_on_remote
from ckstore.remote.source import SourceManifest


def elsewhere_at(holder: RemoteHolder) -> RemoteOnly:
    """Return the record with which a store lists blobs that only a remote has."""
    return RemoteOnly(text_of_time(datetime.now(UTC)), (holder,))


def has_place(context: Context) -> bool:
    """Whether a store has a mirror, and its settings can be read."""
    return setting_or_none(context.layout, MIRROR) is not None


def push_staged(context: Context, staging: Staging, work: RankWork) -> tuple[PushedPart, Document]:
    """Push the staged part of a rank. Return the pushed part, and the document for the rank that merges the parts."""
    # If the push fails, the staged data is freed.
    try:
        work.doing("inspected the mirror")
        remote, holder = common_remote(context)
        pushed = push_part(context, staging, remote, TransferLimits(progress=lambda *_: work.doing("pushed its part")))
        manifest = files.read_file(MANIFEST, most_bytes=MANIFEST_MAX_BYTES, dir_fd=staging.lock.fd)
        sequence = next_sequence(context)
    except BaseException as error:
        reclaim.discard(context, staging, error)
        raise
    return pushed, {"remote": holder.uuid, "manifest": manifest, "sequence": sequence, "intents": pushed.intents}


def publish_apart(
    context: Context, request: Request, whole: MergedCheckpoint, work: RankWork, sequence: int
) -> JointCheckpoint:
    """Merge the parts of all nodes, and publish the checkpoint on the remote and then in the store of this node."""
    # No checkpoint in the store of any node has the number `sequence`. After `UnknownOutcome`, the checkpoint may exist
    # on the remote. After any other error, it does not exist.
    remote, holder = common_remote(context)
    require(context, ELSEWHERE)
    if request.step is not None:
        list_step(context, remote, request.run, request.step)
    context.known.greatest_sequence.raise_to(sequence - 1)
    watch = _RemotePublication(context, work, remote)
    try:
        stage_places = partial(stage_remote_only, elsewhere_at(holder))
        info = replace(whole, stage_places=stage_places).publish(context, request, watch)
    except (CkstoreError, OSError) as error:
        if watch.unknown is not None:
            raise watch.unknown from error
        if watch.pushed is None:
            raise
        # The checkpoint exists on the remote, so the save has not failed.
        warning = f"{watch.pushed.info.name} is on {remote.name}, but this store does not list it: {why_of(error)}"
        return replace(watch.pushed, info=replace(watch.pushed.info, warnings=(warning,)))
    # The intents of all nodes are deleted here, because some ranks are not notified of the end of the save. This is the
    # case if torch itself calls their writer, or if the writer runs in another process.
    end_intents(remote, [key for part in whole.parts.values() for key in part["intents"]])
    if watch.pushed is None and place_of(info) not in source_of(remote).places(f"{info.run}/{info.step}/"):
        return JointCheckpoint(info, b"")
    with open_directory(context, info) as directory:
        manifest = files.read_file(directory.manifest_file, most_bytes=MANIFEST_MAX_BYTES, dir_fd=directory.lock.fd)
    return JointCheckpoint(info, manifest)


class _RemotePublication(WorkWatch):
    """Publishes the checkpoint on the remote immediately before its rename in the store."""

    def __init__(self, context: Context, work: RankWork, remote: Remote) -> None:
        super().__init__(work)
        self.pushed: JointCheckpoint | None = None  # the checkpoint on the mirror, if it exists there
        self.unknown: UnknownOutcome | None = None  # set if it is unknown whether the checkpoint exists
        self._context, self._remote = context, remote

    def sealed(self, staging: Staging, manifest: Manifest, rule: Rule) -> None:
        """Push the checkpoint, unless an existing one is kept. Raise the same errors as the rename would."""
        layout = self._context.layout
        # The rules of the rename are applied before the push, because a refusal after the push would be too late.
        of_step = layout.of_step(manifest.run, manifest.step)
        if publishing.existing_of_step(layout, manifest, rule, of_step) is not None:
            return
        data = files.read_file(MANIFEST, most_bytes=MANIFEST_MAX_BYTES, dir_fd=staging.lock.fd)
        manifest_id = parse_manifest(data, where=str(staging.path), hash_prefix=layout.hash_prefix)[1]
        try:
            push_whole(
                self._context, staging, self._remote, TransferLimits(progress=lambda *_: self._work.doing("pushed"))
            )
        except UnknownOutcome as error:
            self.unknown = error
            # `UnknownOutcome` would disable writes to this store. Its state is known, so another error is raised.
            raise RemoteUnavailable(error.message, hint=error.hint) from error
        self.pushed = JointCheckpoint(CheckpointInfo.of(manifest, manifest_id), data)


def adopt(context: Context, joined: JointCheckpoint, staging: Staging | None) -> CheckpointInfo:
    """Add a checkpoint of all nodes to the list of this node's store, with the blobs that this rank staged."""
    # If `staging` is None, for example because another process staged the part, the blobs of the part are found in the
    # store by their digests.
    if not joined.manifest:
        return joined.info
    info = joined.info
    try:
        return _adopt(context, joined, staging)
    except (CkstoreError, OSError) as error:
        # The checkpoint exists on the remote, and a load can list and download it, so the save has not failed.
        warning = f"{info.name} exists, but this store does not keep its part of it: {why_of(error)}"
        return replace(info, warnings=(*info.warnings, warning))


def _adopt(context: Context, joined: JointCheckpoint, staging: Staging | None) -> CheckpointInfo:
    layout, info = context.layout, joined.info
    manifest, manifest_id = parse_manifest(joined.manifest, where=info.name, hash_prefix=layout.hash_prefix)
    new = False
    of_step = published_of_step(layout, info.run, info.step)
    # A rank that was suspended may call this after a restart of the job has saved the step again. The newer checkpoint
    # is then kept.
    if not of_step or of_step[-1].order < info.order:
        _, holder = common_remote(context)
        require(context, ELSEWHERE)
        document = elsewhere_at(holder)
        whole = SourceManifest(manifest, manifest_id, joined.manifest)
        new = publish_manifest(context, whole, None, document, rule="replace", drops=True) is not None
    of_step = published_of_step(layout, info.run, info.step)
    found = of_step[-1] if of_step else None
    if found is not None:
        update_row(context, found.key)
    # The same state may already be in the store, under the id of an earlier attempt.
    if found is not None and found.manifest.content == manifest.content:
        there = info_of(context, found.manifest, found.manifest_id, key=found.key)
        if staging is not None:
            restore_blobs(context, there, manifest, staging)
            update_row(context, there.key)
        elif there.elsewhere:
            _give_claimed(context, there, manifest)
    for name in info.tags if new else ():
        tag(context, name, CheckpointInfo.of(manifest, manifest_id))
    publication = Publication(context, info, "joined")
    if new:
        tell_subscribers(publication)
    info = with_news(info, found)
    return replace(info, warnings=(*info.warnings, *publication.notes))


def _give_claimed(context: Context, info: CheckpointInfo, manifest: Manifest) -> None:
    claimed = Staging.create(context.layout, info.run, info.step)
    try:
        for blob in manifest.blobs:
            if not claimed.claim_compared(blob.digest, blob.nbytes):
                claimed.unclaim(blob.digest)
        restore_blobs(context, info, manifest, claimed)
        update_row(context, info.key)
    finally:
        reclaim.discard(context, claimed)


def list_there(context: Context, ref: AnyRef) -> None:
    """Add the checkpoint that a ref names on the mirror to the list of this store, unless the store has it."""
    name = setting_or_none(context.layout, MIRROR)
    if name is None:
        return
    try:
        there = open_source(context, name)
        text = ref.id if isinstance(ref, CheckpointInfo) else text_of(ref)
        place = find_on_remote(source_of(there), text, run=context.run, hash_prefix=context.layout.hash_prefix)
        if not is_here(context, place):
            list_remote(context, there, [place])
    except (NoSuchRef, ReadOnlyStore):
        return  # the ref is then resolved among the checkpoints that the store lists
    except RemoteUnavailable as error:  # the local checkpoints may be sufficient
        warn(f"{name} was not queried for {ref}: {error.message}")
