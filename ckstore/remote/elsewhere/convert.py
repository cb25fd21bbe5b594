"""Copy a store that an earlier draft pushed to into a remote, and let what was evicted to it be read from there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from uuid import uuid4

from ckstore.errors import CkstoreError, NoSuchRef, RemoteError
from ckstore.model.checkpoint.elsewhere import Holder
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.reports.transfer import TransferReport
from ckstore.objects.documents.elsewhere import holders_at, read_elsewhere, touch, write_elsewhere
from ckstore.ops.config_file import MIRROR, edit, setting_of
from ckstore.ops.context import Context
from ckstore.ops.failures import OF_ALL, failure_of, joined
from ckstore.ops.refs.find import open_directory
from ckstore.ops.refs.listing import current_or_named, infos
from ckstore.remote.documents.info import check_takes
from ckstore.remote.elsewhere.attest import Attest
from ckstore.remote.elsewhere.evict import Going, alone, say_elsewhere
from ckstore.remote.objects import Remote
from ckstore.remote.push import Manner, push
from ckstore.remote.push_plan import place_of
from ckstore.remote.reach import OtherStore


def convert(context: Context, old: OtherStore, new: Remote) -> TransferReport:
    """Let a remote have everything that a store has, and what relied on that store rely on the remote.

    Killed anywhere, it is repeated as it is. Nothing in the store `old` is changed.

    Raises:
        CkstoreError: Some checkpoints could not be copied, or are not whole there; the store is still read for them.
    """
    uuid = check_takes(new, context.settings).uuid
    report = push(old.context, current_or_named(old.context), new, Manner())
    old_uuid, attest = old.context.settings.uuid, Attest(context, new, Manner())
    failures: dict[str, CkstoreError] = {}
    going: list[Going] = []

    def each(act: Callable[[], None], info: CheckpointInfo) -> None:
        try:
            act()
        except OF_ALL:
            raise
        except NoSuchRef:  # it was dropped meanwhile
            pass
        except (CkstoreError, OSError) as error:
            failures[info.name] = failure_of(f"converting {info.name}", error)

    for info in infos(context, superseded=True):
        if any(holder.uuid == old_uuid for holder in holders_at(context.layout.checkpoint(info.key))):
            each(partial(_begin, context, info, new, uuid, attest, going), info)
    attest.claim([(place_of(one.info), one.holder.claim, one.blobs) for one in going])
    for one in going:
        each(partial(_end, context, one, old_uuid, attest), one.info)
    attest.keep()
    if failures:
        raise joined(failures)
    if setting_of(context.layout, MIRROR) == old.name:
        edit(context.layout, MIRROR.name, lambda _: new.name)
    return report


def _begin(  # noqa: PLR0917
    context: Context, info: CheckpointInfo, new: Remote, uuid: str, attest: Attest, going: list[Going]
) -> None:
    """Say in a checkpoint that the remote has it as well."""
    with open_directory(context, info) as directory:
        blobs = directory.manifest.blobs
    if not attest.finds(place_of(info)):
        raise RemoteError(f"{new.name} does not have {info.name}, which the store did not have either")
    one = Going(info, blobs, Holder(uuid, new.name, uuid4().hex))
    say_elsewhere(context, one)
    going.append(one)


def _end(context: Context, one: Going, old_uuid: str, attest: Attest) -> None:
    """Say no more that the store has a checkpoint, once every byte was seen at the remote."""
    if problem := attest.lacks(place_of(one.info), one.blobs, read=True):
        raise RemoteError(problem, hint="convert it again")
    with alone(context, one.info) as lock:
        document = read_elsewhere(lock.fd)
        if document is None:  # its bytes were brought back meanwhile
            return
        rest = tuple(holder for holder in document.remotes if holder.uuid != old_uuid)
        write_elsewhere(context.layout, lock, replace(document, remotes=rest))
        touch(lock)
