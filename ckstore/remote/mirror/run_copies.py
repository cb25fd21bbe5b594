"""The copies that remotes have of a run that is renamed. Implements `ckstore.ops.rename_run.RunCopies`."""

from __future__ import annotations

from collections.abc import Sequence

from ckstore.errors import BytesElsewhere
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.words import arguments, counted, some_of
from ckstore.objects.checkpoints import holder_names_at, may_lack_blobs
from ckstore.ops.config_file import policy_of, setting_of
from ckstore.ops.context import Context
from ckstore.ops.mirror_record import read_mirrored
from ckstore.ops.mirror_settings import KEEP_REMOTE, MIRROR


def check_local(context: Context, infos: Sequence[CheckpointInfo]) -> None:
    """Raise `BytesElsewhere` if data of a checkpoint is only on a remote, or if an eviction has begun."""
    if lacking := [info for info in infos if info.elsewhere]:
        names = [info.name for info in lacking]
        (remote, *_) = holder_names_at(context.layout.checkpoint(lacking[0].key)) or ("NAME",)
        raise BytesElsewhere(
            f"data of {some_of(names)} is on a remote only",
            hint=f"first download it: store.pull(ref, {remote!r}) for each",
            command_hint=f"first download it: ckstore pull --remote {remote} {arguments(*names)}",
        )
    for info in infos:  # the claim of an eviction names the run
        if may_lack_blobs(context.layout.checkpoint(info.key)):
            msg = f"an eviction of {info.name} has begun and has not ended"
            quoted = arguments(info.name)
            raise BytesElsewhere(msg, hint=f"ckstore evict {quoted} or ckstore pull {quoted} ends it")


def left_behind(context: Context, infos: Sequence[CheckpointInfo]) -> str:
    """Return a message about the checkpoints that a rename leaves on the mirror.

    The message is empty if no checkpoint remains there, or if the mirror has a policy.
    """
    mirror = setting_of(context.layout, MIRROR)
    if mirror is None or policy_of(context.layout, KEEP_REMOTE) is not None:  # the policy removes them
        return ""
    ids = read_mirrored(context.layout, mirror).ids
    there = [info for info in infos if info.id in ids or mirror in holder_names_at(context.layout.checkpoint(info.key))]
    return f"the mirror {mirror} keeps {counted(len(there), 'checkpoint')}" if there else ""
