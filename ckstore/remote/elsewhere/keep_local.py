"""Which checkpoints keep their bytes here: `keep_local`, once the mirror has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ckstore.errors import BadInput
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.reports.transfer import EvictReport
from ckstore.ops.config_file import KEEP_LOCAL, MIRROR, policy_of, setting_of
from ckstore.ops.context import Context
from ckstore.ops.free.retain import plan_local
from ckstore.remote.elsewhere.evict import evict
from ckstore.remote.reach import reach


def evict_by_rule(context: Context, *, dry_run: bool = False) -> EvictReport:
    """Let go of the bytes that `keep_local` does not keep here, of checkpoints that the mirror has."""
    policy, mirror = policy_of(context.layout, KEEP_LOCAL), setting_of(context.layout, MIRROR)
    if policy is None:
        raise BadInput(
            f"{context.layout.root} has no policy keep_local",
            hint="set one: store.config.keep_local = RetentionPolicy(keep_last=3)",
            command_hint="set one: ckstore config keep-local --keep-last 3",
        )
    if mirror is None:
        raise BadInput(f"{context.layout.root} has no mirror", hint="ckstore config mirror NAME")
    plan = plan_local(context, policy, mirror)
    going = [entry.info for entry in plan.dropped]
    why = {entry.info.name: f"keep_local: {'; '.join(entry.reasons)}" for entry in plan.dropped}
    if not going:  # as after most pushes; then no request is made
        return EvictReport(mirror, dry_run, (), (), 0, 0, plan)
    there = reach(context, mirror)
    return replace(evict(context, going, there, dry_run=dry_run, why=why), plan=plan)


def evict_mirrored(context: Context, infos: Sequence[CheckpointInfo]) -> EvictReport:
    """Let go of the bytes of checkpoints that the mirror has, for a save that lacks space."""
    mirror = setting_of(context.layout, MIRROR) or ""
    why = "a save needed the space"
    return evict(context, infos, reach(context, mirror), why={info.name: why for info in infos})


def keep_local(context: Context) -> EvictReport | None:
    """As `evict_by_rule`, after a push; None: there is no such policy."""
    return None if policy_of(context.layout, KEEP_LOCAL) is None else evict_by_rule(context)
