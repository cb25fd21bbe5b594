"""Push and pull as callers mean them: which checkpoints, where to, how fast."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckstore.errors import BadInput
from ckstore.model.sizes import parse_size
from ckstore.remote import push as pushing
from ckstore.remote.push import Manner
from ckstore.remote.reach import RemoteLike, reach

if TYPE_CHECKING:
    from ckstore.model.reports.progress import Progress
    from ckstore.model.reports.transfer import TransferPlan, TransferReport
    from ckstore.ops.context import Context
    from ckstore.remote.choice import Choice


def manner(bwlimit: int | str | None, progress: Progress | None) -> Manner:
    """Return how a transfer goes; `bwlimit` is a number of bytes a second, or a size.

    Raises:
        BadInput: It is not above 0.
    """
    bytes_s = parse_size(bwlimit) if isinstance(bwlimit, str) else bwlimit
    if bytes_s is not None and bytes_s <= 0:
        raise BadInput(f"bwlimit is a number of bytes a second above 0, got {bwlimit!r}")
    return Manner(bytes_s, progress)


def plan_push(context: Context, choice: Choice, remote: RemoteLike | None) -> TransferPlan:
    """See `ckstore.Store.plan_push`."""
    return pushing.plan_push(context, choice.of(context), reach(context, remote))


def push(
    context: Context,
    choice: Choice,
    remote: RemoteLike | None,
    *,
    bwlimit: int | str | None = None,
    progress: Progress | None = None,
) -> TransferReport:
    """See `ckstore.Store.push`."""
    how = manner(bwlimit, progress)
    return pushing.push(context, choice.of(context), reach(context, remote), how)
