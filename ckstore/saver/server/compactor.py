"""The process that compacts old checkpoints automatically, with a limited share of a processor, until none is left.

A save starts this process, like the process that mirrors. A failed compaction is tried again after a later save.
"""

from __future__ import annotations

import sys

from ckstore.errors import CkstoreError
from ckstore.ops.compact.compaction_rule import compact_due, rule_of
from ckstore.ops.context import Context
from ckstore.saver.compactor import lock_compaction
from ckstore.saver.server.helper_begin import begin
from ckstore.saver.server.status_page import StatusPage


def main(about: str) -> None:
    """Compact old checkpoints in the store that `about` names."""
    context = begin(about)
    with StatusPage(str(context.layout.path)) as page:
        lock = lock_compaction(context)
        if lock is None:
            return
        with lock:
            page.at("compacting")
            try:
                compact_all(context)
            except (CkstoreError, OSError) as error:
                print(error, file=sys.stderr)  # noqa: T201 - this process has no caller to report to


def compact_all(context: Context) -> None:
    """Compact until no checkpoint is old enough, or the settings no longer request it."""
    while (rule := rule_of(context.layout)) is not None:
        # A long compaction outlasts many saves, so checkpoints that became old enough meanwhile are also compacted.
        if not compact_due(context, rule).compacted:
            return
