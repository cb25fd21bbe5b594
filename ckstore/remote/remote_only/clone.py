"""Clone: a new store that lists all checkpoints of a remote. Blobs are downloaded when they are read.

A clone itself downloads only manifests, annotations, tags and pins. Each manifest is published with the same protocol
as a save, together with an ``elsewhere.json``.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from ckstore.errors import (
    CkstoreError,
    NoSuchRemote,
    RemoteDenied,
    RemoteError,
    RemoteUnavailable,
)
from ckstore.fs import files, locks
from ckstore.model.checkpoint.annotations import Annotations
from ckstore.model.manifest.info import CheckpointInfo, Published
from ckstore.model.names import CheckpointKey
from ckstore.model.remote.remote_only import RemoteHolder, RemoteOnly
from ckstore.model.seal import seal
from ckstore.model.settings import settings
from ckstore.model.times import text_of_time
from ckstore.model.words import counted
from ckstore.objects import publish as publishing
from ckstore.objects.checkpoints import published_of_step
from ckstore.objects.layout import ANNOTATIONS
from ckstore.objects.publish import Rule
from ckstore.objects.remote.remote_only import read_remote_only, stage_remote_only
from ckstore.objects.staging import Staging
from ckstore.ops.call_threads import for_each
from ckstore.ops.context import Context
from ckstore.ops.free import reclaim
from ckstore.ops.free.superseded_checkpoints import drop_older
from ckstore.ops.index.catalog_update import catch_up
from ckstore.ops.index.reconcile import update_row
from ckstore.ops.notices import warn
from ckstore.ops.refs.listing import infos
from ckstore.ops.requires import require
from ckstore.remote import keys
from ckstore.remote.budget import MemoryBudget
from ckstore.remote.keys import Place
from ckstore.remote.metadata_sync import named_at, take_names
from ckstore.remote.objects import Remote
from ckstore.remote.pull import Pull, is_here, steps_taken
from ckstore.remote.push import TransferLimits
from ckstore.remote.remote_opener import OtherStore, RemoteLike, open_source, settings_there, source_of, uuid_of
from ckstore.remote.service.folder import target_at
from ckstore.remote.service.remote_entries import entries
from ckstore.remote.service.target import parse_target
from ckstore.remote.source import Source, SourceManifest, read_manifest

# The number of manifests that are read together, to hide the latency. They are kept in memory until they are published.
_BATCH = 16
_SAID = 5
POLL_S = 5.0
"""The default interval between polls of a remote. Evaluations take longer, and twelve requests a minute cost little."""


def new_settings(
    source: str | os.PathLike[str], name: str, *, endpoint: str | None, region: str | None
) -> tuple[str, int]:
    """Return the hash and the chunk size for a clone of the store or remote at a target, without creating a remote."""
    target = parse_target(source, endpoint=endpoint, region=region)
    found = settings_there(target, name)
    if found is None and target.kind != "url":
        msg = f"there is neither a store nor a remote at {target}"
        raise NoSuchRemote(msg, hint="check the path, and that its filesystem is mounted")
    if found is None:
        hint = "check the address; ckstore remote add NAME URL, in a store with checkpoints, makes a remote there"
        raise NoSuchRemote(f"there is no remote at {target}: it has no {keys.INFO}", hint=hint)
    return found


def has_remote(
    context: Context, name: str, source: str | os.PathLike[str], endpoint: str | None, region: str | None
) -> bool:
    """Whether a store has a remote with this name and target, and the remote still exists. Then no probe is needed."""
    target = target_at(parse_target(source, endpoint=endpoint, region=region))
    entry = entries(context.layout).get(name)
    return entry is not None and entry.target == target and uuid_of(open_source(context, name)) == entry.uuid


def list_remote(
    context: Context, remote: Remote | OtherStore, places: Iterable[Place] | None = None
) -> tuple[int, list[str]]:
    """List the checkpoints of a remote in a store, except those that the store already lists.

    Args:
        context: The store.
        remote: The remote or other store to list.
        places: The checkpoints to add. If None, all checkpoints of the remote.

    Returns:
        The number of checkpoints that were added, and messages for the user.
    """
    context.check_writable()
    holder = RemoteHolder(uuid_of(remote), remote.name)
    require(context, settings.ELSEWHERE)
    source = source_of(remote)
    pull = Pull(context, source, TransferLimits())
    document = RemoteOnly(text_of_time(datetime.now(UTC)), (holder,))
    listed: set[CheckpointKey] = set()
    unlisted: list[str] = []
    places = source.places() if places is None else [*places]
    taken = steps_taken(context, places)
    waiting = [place for place in places if place.run_step not in taken or not is_here(context, place)]
    count = Counter(place.run_step for place in waiting)
    taken |= {run_step for run_step in count if count[run_step] > 1}
    named = named_at(source) if taken & count.keys() else set()
    for start in range(0, len(waiting), _BATCH):
        read: list[tuple[CheckpointInfo, SourceManifest, Annotations | None]] = []

        def fetch(place: Place, read: list[Any] = read) -> None:
            try:
                found = _read_twice(source, place, context.layout.hash_prefix)
            except (RemoteDenied, RemoteUnavailable):
                raise
            except RemoteError as error:  # a damaged manifest must not prevent the listing of the other checkpoints
                unlisted.append(f"{place.name} was not listed: {error.message}")
                return
            if found is not None:  # otherwise it was deleted meanwhile
                read.append((CheckpointInfo.of(found.manifest, found.id), found, pull.annotations_of(place)))

        batch = waiting[start : start + _BATCH]
        for_each(fetch, batch, threads=pull.manner.threads, stopping=MemoryBudget().ending(source.close))
        # The newest of several checkpoints at a step is published first. Older ones are listed only if a tag or pin
        # names them.
        read.sort(key=lambda one: one[0].order, reverse=True)
        for info, found, said in read:
            is_alone = info.key.run_step not in taken
            of_step = [] if is_alone else published_of_step(context.layout, info.run, info.step, context.of_step)
            if info.id not in named and any(one.order > info.order for one in of_step):
                continue
            # An existing checkpoint of the step that has bytes locally or on another remote remains the current one.
            # Nothing is dropped here, because gc drops superseded checkpoints.
            may_join = all(one.order > info.order or _is_only_at(context, one, holder) for one in of_step)
            rule: Rule = "beside" if may_join and not is_alone else "keep"
            key = publish_manifest(context, found, said, document, rule=rule)
            if key is not None:
                listed.add(key)
    pull.warnings += unlisted[:_SAID]
    if len(unlisted) > _SAID:
        more = len(unlisted) - _SAID
        failed = f"{counted(more, 'more checkpoint')} of {source.name} could not be read from the remote"
        pull.warnings.append(f"{failed}, and {'was' if more == 1 else 'were'} not listed")
    # The catalog is updated once, because a transaction for each of thousands of checkpoints would take longer than
    # everything else.
    catch_up(context, "all")
    # This includes checkpoints that an earlier call listed, because that call may have been killed before it copied
    # their tags and pins.
    ids = {place.id for place in places}
    take_names(
        context, source, [info for info in infos(context, superseded=True) if info.id in ids], pull.warnings, new=listed
    )
    return len(listed), pull.warnings


def _read_twice(source: Source, place: Place, hash_prefix: str) -> SourceManifest | None:
    # A failed read is repeated, because a bit may flip during the transfer. A store that is created from a mirror lists
    # the mirror only once. If that store missed the newest checkpoint, the training would resume from an earlier one.
    with suppress(RemoteError):
        return read_manifest(source, place, hash_prefix)
    return read_manifest(source, place, hash_prefix)


def _is_only_at(context: Context, published: Published, holder: RemoteHolder) -> bool:
    """Whether this remote has all blobs of a checkpoint, and neither this store nor another remote has any."""
    try:
        with locks.lock_shared(context.layout.checkpoint(published.key)) as lock:
            there = read_remote_only(lock.fd)
    except (FileNotFoundError, CkstoreError):
        return False
    is_whole_there = len(published.elsewhere) == len(published.manifest.blobs)
    return there is not None and is_whole_there and {one.uuid for one in there.remotes} == {holder.uuid}


def publish_manifest(
    context: Context,
    found: SourceManifest,
    annotations: Annotations | None,
    document: RemoteOnly,
    *,
    rule: Rule,
    drops: bool = False,
) -> CheckpointKey | None:
    """Publish a checkpoint without blobs. Return None if an existing checkpoint is kept instead.

    Args:
        context: The store.
        found: The manifest.
        annotations: The annotations of the checkpoint, if any.
        document: The remotes that have the blobs.
        rule: What to do if the step has another checkpoint.
        drops: Whether superseded checkpoints are dropped immediately. Otherwise gc drops them.
    """
    manifest = found.manifest
    staging = Staging.create(context.layout, manifest.run, manifest.step)
    try:
        own = staging.lock.inside
        stage_remote_only(document, staging.lock)
        if annotations is not None:
            files.create_file(own / ANNOTATIONS, seal(annotations.render()), mode=files.mode_in(staging.lock.fd))
        staging.seal(found.data)
        runs = publishing.KnownRuns(context.known.synced_runs, context.of_step)
        outcome = publishing.publish(staging, manifest, found.id, rule, runs)
    except BaseException as error:
        reclaim.abandon(context, staging, error)
        raise
    if outcome.existing is not None:
        reclaim.discard(context, staging)
        return None
    # Without this call, the next publication would list the run again.
    context.known.directories.changed(outcome.key, staging.inode, outcome.change)
    staging.lock.release()
    if drops and outcome.older:
        info = CheckpointInfo.of(manifest, found.id, directory=outcome.key.directory)
        for text in drop_older(context, info, outcome.older):
            warn(text)
        for key in outcome.older:
            update_row(context, key)
        reclaim.free_unused(context)
    return outcome.key


class News:
    """Lists new checkpoints of a remote in a store, for one run or all runs. Polls at most every `poll_s` seconds."""

    def __init__(self, context: Context, remote: RemoteLike, run: str | None, poll_s: float) -> None:
        context.check_writable()
        self._context = context
        self._there = open_source(context, remote)
        self._source = source_of(self._there)
        self._under = "" if run is None else f"{run}/"
        self._poll_s = poll_s
        self._seen: set[Place] = set()
        self._again_s = 0.0

    def __call__(self) -> None:
        """Poll the remote for new checkpoints, unless the last poll was less than `poll_s` seconds ago."""
        if time.monotonic() < self._again_s:
            return
        try:
            places = {*self._source.places(self._under)}
            if not places:
                uuid_of(self._there)  # raises if the remote was emptied, since no new checkpoint would ever appear
            if new := places - self._seen:
                for text in list_remote(self._context, self._there, sorted(new))[1]:
                    warn(text)
            self._seen = places
        except RemoteUnavailable as error:  # a temporary network failure must not end an evaluator
            warn(f"{self._source.name} was not queried for new checkpoints: {error.message}")
        self._again_s = time.monotonic() + self._poll_s
