"""Make files that hold the same blob one inode again, in the whole store."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ckstore.model.reports.reindex_report import RelinkReport
from ckstore.objects.relink import Relinker
from ckstore.objects.staging import Staging
from ckstore.ops.free import reclaim

if TYPE_CHECKING:
    from ckstore.ops.context import Context


def relink(context: Context, report: Callable[[int], None]) -> RelinkReport:
    """Relink every checkpoint; what is left over goes to trash, and is freed as far as no process has it open.

    Raises:
        OSError: The system refused; what was done before is done, and the store is as sound as it was.
    """
    staging = Staging.create(context.layout, "relink", None)
    try:
        relinker = Relinker(context.layout, staging.path, report)
        places = sorted((run, step) for run, step, _ in context.layout.published())
        for run, step in places:
            relinker.checkpoint(run, step)
        if relinker.found_damage:  # a right file may have turned up after a checkpoint that lacks one
            for run, step in places:
                relinker.checkpoint(run, step)
    finally:
        reclaim.discard(context, staging)
    done = relinker.done
    return RelinkReport(done.checked_bytes, done.relinked_count, done.spare_bytes, tuple(sorted(done.damaged)))
