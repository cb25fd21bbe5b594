"""Converts a store to a remote. An earlier draft of ckstore pushed to stores instead of remotes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from uuid import uuid4

from ckstore.errors import CkstoreError, NoSuchRef, RemoteError
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.remote.remote_only import RemoteHolder
from ckstore.model.remote.transfer import TransferReport
from ckstore.objects.remote.remote_only import holders_at, read_remote_only, touch, write_remote_only
from ckstore.ops.config_file import edit, setting_of
from ckstore.ops.context import Context
from ckstore.ops.failures import failure_of, joined
from ckstore.ops.mirror_settings import MIRROR
from ckstore.ops.refs.find import open_directory
from ckstore.ops.refs.listing import current_or_named, infos
from ckstore.remote.documents.remote_info import check_takes
from ckstore.remote.objects import OF_ALL, Remote
from ckstore.remote.push import TransferLimits, push
from ckstore.remote.push_plan import place_of
from ckstore.remote.remote_only.evict import Eviction, alone, say_elsewhere
from ckstore.remote.remote_only.remote_presence import PresenceCheck
from ckstore.remote.remote_opener import OtherStore


def convert(context: Context, old: OtherStore, new: Remote) -> TransferReport:
    """Push all checkpoints of the store `old` to a remote. Checkpoints evicted to `old` are then read from the remote.

    A call that was killed can be repeated. The store `old` is not changed.

    Raises:
        CkstoreError: Some checkpoints could not be copied, or are incomplete on the remote. They are still read from
            `old`.
    """
    uuid = check_takes(new, context.settings).uuid
    report = push(old.context, current_or_named(old.context), new, TransferLimits())
    old_uuid, attest = old.context.settings.uuid, PresenceCheck(context, new, TransferLimits())
    failures: dict[str, CkstoreError] = {}
    going: list[Eviction] = []

    def each(act: Callable[[], None], info: CheckpointInfo) -> None:
        try:
            with suppress(NoSuchRef):  # it was dropped meanwhile
                act()
        except OF_ALL:
            raise
        except (CkstoreError, OSError) as error:
            failures[info.name] = failure_of(f"converting {info.name}", error)

    for info in infos(context, superseded=True):
        if any(holder.uuid == old_uuid for holder in holders_at(context.layout.checkpoint(info.key))):
            each(partial(_begin, context, info, new, uuid, attest, going), info)
    attest.claim([(place_of(one.info), one.holder.claim, one.manifest.blobs) for one in going])
    for one in going:
        each(partial(_end, context, one, old_uuid, attest), one.info)
    attest.keep()
    if failures:
        raise joined(failures)
    if setting_of(context.layout, MIRROR) == old.name:
        edit(context.layout, MIRROR.name, lambda found: new.name if found == old.name else found)
    return report


def _begin(  # noqa: PLR0917
    context: Context, info: CheckpointInfo, new: Remote, uuid: str, attest: PresenceCheck, going: list[Eviction]
) -> None:
    """Add the remote to the places from which a checkpoint is read."""
    with open_directory(context, info) as directory:
        manifest = directory.manifest
    if not attest.finds(place_of(info)):
        raise RemoteError(f"neither {new.name} nor the store has {info.name}")
    one = Eviction(info, manifest, RemoteHolder(uuid, new.name, uuid4().hex))
    say_elsewhere(context, one)
    going.append(one)


def _end(context: Context, one: Eviction, old_uuid: str, attest: PresenceCheck) -> None:
    """Verify every byte of a checkpoint on the remote. Then remove the old store from the places to read it from."""
    if problem := attest.lacks(place_of(one.info), one.manifest.blobs, read=True):
        raise RemoteError(problem, hint="convert it again")
    with alone(context, one.info) as lock:
        document = read_remote_only(lock.fd)
        if document is None:  # its bytes were restored meanwhile
            return
        rest = tuple(holder for holder in document.remotes if holder.uuid != old_uuid)
        write_remote_only(context.layout, lock, replace(document, remotes=rest))
        touch(lock)
