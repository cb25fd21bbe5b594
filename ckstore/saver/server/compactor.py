"""The process that compacts by itself: what is old enough, at its share, until nothing is left.

Started by a save, as the process that mirrors is. What fails is tried again after a later save.
"""

from __future__ import annotations

import sys

from ckstore.errors import CkstoreError
from ckstore.ops.compact.by_rule import compact_due, rule_of
from ckstore.ops.context import Context
from ckstore.saver.compactor import lock_compaction
from ckstore.saver.server.mirror import begin
from ckstore.saver.server.status_page import StatusPage


def main(about: str) -> None:
    """Compact what is old enough in the store that `about` names."""
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
                print(error, file=sys.stderr)  # noqa: T201 - no one else is there to be told


def compact_all(context: Context) -> None:
    """Compact until nothing more is old enough, or the settings do not say so any more."""
    while (rule := rule_of(context.layout)) is not None:
        # What became old enough meanwhile has its turn, too: a long compaction outlasts many saves.
        if not compact_due(context, rule).compacted:
            return
