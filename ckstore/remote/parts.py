"""A checkpoint whose parts lie in the stores of several nodes, at the remote that is the mirror of all of them.

Each rank pushes its part, and keeps its intent until the save has ended; one rank pushes the whole, which relies on
nothing that the others saw. Source: docs/format/remote-v1.md, "Parts of several nodes".
"""

from __future__ import annotations

from dataclasses import dataclass

from ckstore.errors import BadInput, CkstoreError, UnknownOutcome
from ckstore.model.checkpoint.remote_only import RemoteHolder
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.objects.staging import Staging
from ckstore.ops.config_file import MIRROR, setting_of
from ckstore.ops.context import Context
from ckstore.remote.documents.remote_info import check_takes
from ckstore.remote.objects import Remote
from ckstore.remote.push import Push, TransferLimits, end_intents
from ckstore.remote.push_plan import RemoteState
from ckstore.remote.remote_only.clone import list_remote
from ckstore.remote.remote_opener import named_remote
from ckstore.remote.source import ObjectSource


def common_remote(context: Context) -> tuple[Remote, RemoteHolder]:
    """Return the mirror of a store, by which nodes save together, and what says that it is the same for all."""
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
    """A part whose blobs are at the remote, and kept there."""

    remote: Remote  # where
    intents: list[str]  # the keys of what keeps them

    def end(self) -> None:
        """Keep them no more: the checkpoint exists, or was given up."""
        end_intents(self.remote, self.intents)


def push_part(context: Context, staging: Staging, remote: Remote, manner: TransferLimits) -> PushedPart:
    """Bring the blobs of a sealed part to the remote."""
    with CheckpointDirectory.at(staging.path, context.layout.hash_prefix) as directory:
        push = Push(context, remote, manner, RemoteState.nothing(context, remote))
        part = PushedPart(remote, push.send([directory], is_part=True))
        push.keep_record()
    return part


def push_whole(context: Context, staging: Staging, remote: Remote, manner: TransferLimits) -> None:
    """Let a checkpoint exist at the remote that has the blobs of all its parts; it lies sealed in `staging`."""
    with CheckpointDirectory.at(staging.path, context.layout.hash_prefix) as directory:
        push = Push(context, remote, manner, RemoteState.nothing(context, remote))
        try:
            push.send([directory])
        except CkstoreError as error:
            if not push.may_exist:
                raise
            name = directory.manifest.name
            msg = f"whether {name} is at {remote.name} is not known: {error.message}"
            raise UnknownOutcome(msg, hint="save it again: a checkpoint that is there by then stays") from error
        push.keep_record()


def list_step(context: Context, remote: Remote, run: str, step: int) -> None:
    """Let a store list what the remote has at a step: another node may have saved it, and rules look here alone."""
    places = ObjectSource(remote.objects, remote.name).places(f"{run}/{step}/")
    if places and not context.of_step(run, step):
        list_remote(context, remote, places)
