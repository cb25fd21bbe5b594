"""Pushes a checkpoint whose parts are in the stores of several nodes to the common mirror of these stores.

Each rank pushes its part, and keeps its intent until the save has ended. One rank then pushes the manifest. That rank
checks the remote itself, and does not rely on the checks of the other ranks. Source: docs/format/remote-v1.md, "Parts
of several nodes".
"""

from __future__ import annotations

from dataclasses import dataclass

from ckstore.errors import BadInput, CkstoreError, UnknownOutcome
from ckstore.model.remote.remote_only import RemoteHolder
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.objects.staging import Staging
from ckstore.ops.config_file import setting_of
from ckstore.ops.context import Context
from ckstore.ops.mirror_settings import MIRROR
from ckstore.remote.documents.remote_info import check_takes
from ckstore.remote.objects import Remote
from ckstore.remote.push import Push, TransferLimits, end_intents
from ckstore.remote.push_plan import RemoteState
from ckstore.remote.remote_only.clone import list_remote
from ckstore.remote.remote_opener import named_remote
from ckstore.remote.source import ObjectSource


def common_remote(context: Context) -> tuple[Remote, RemoteHolder]:
    """Return the mirror that the nodes share, and the `RemoteHolder` that identifies this mirror on all nodes."""
    name = setting_of(context.layout, MIRROR)
    if name is None:
        msg = f"the store {context.layout.path} has no mirror, and the ranks have stores of their own"
        raise BadInput(
            msg,
            hint="Store.open_or_init(…, mirror='s3://BUCKET/PREFIX') on each node",
            command_hint="ckstore config mirror NAME on each node",
        )
    there = named_remote(context, name)
    return there, RemoteHolder(check_takes(there, context.settings).uuid, name)


@dataclass(frozen=True, slots=True)
class PushedPart:
    """A part whose blobs are on the remote, protected by intents."""

    remote: Remote  # the remote that has the blobs
    intents: list[str]  # keys of the intents

    def end(self) -> None:
        """Delete the intents, after the checkpoint was published or the save failed."""
        end_intents(self.remote, self.intents)


def push_part(context: Context, staging: Staging, remote: Remote, manner: TransferLimits) -> PushedPart:
    """Push the blobs of a sealed part to the remote."""
    with CheckpointDirectory.at(staging.path, context.layout.hash_prefix) as directory:
        push = Push(context, remote, manner, RemoteState.nothing(context, remote))
        part = PushedPart(remote, push.send([directory], is_part=True))
        push.keep_record()
    return part


def push_whole(context: Context, staging: Staging, remote: Remote, manner: TransferLimits) -> None:
    """Publish a sealed checkpoint on the remote, which already has the blobs of all parts.

    Raises:
        UnknownOutcome: The push failed so late that the checkpoint may exist on the remote.
    """
    with CheckpointDirectory.at(staging.path, context.layout.hash_prefix) as directory:
        push = Push(context, remote, manner, RemoteState.nothing(context, remote))
        try:
            push.send([directory])
        except CkstoreError as error:
            if not push.may_exist:
                raise
            name = directory.manifest.name
            msg = f"it is unknown whether {name} is on {remote.name}: {error.message}"
            raise UnknownOutcome(msg, hint="save it again: if the remote has the checkpoint, it is kept") from error
        push.keep_record()


def list_step(context: Context, remote: Remote, run: str, step: int) -> None:
    """Add the remote's checkpoints of a step to the list of the store, if the store has no checkpoint of that step.

    Another node may have saved them, and `if_exists` considers only checkpoints that the store lists.
    """
    places = ObjectSource(remote.objects, remote.name).places(f"{run}/{step}/")
    if places and not context.of_step(run, step):
        list_remote(context, remote, places)
