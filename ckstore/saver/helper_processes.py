"""Start the process that compacts during a training.

A subscriber of an open store starts this process after a save. The module `compactor` is imported only if the settings
request compaction, because few stores use compaction, and the import takes 20 ms.
"""

from __future__ import annotations

from collections.abc import Sequence

from ckstore.ops.config_file import COMPACT_AFTER
from ckstore.ops.context import Publication, Subscriber


def _compact(publication: Publication) -> Sequence[str]:
    if publication.asks_for(COMPACT_AFTER):
        from ckstore.saver import compactor

        compactor.wake(publication.context)
    return ()


COMPACTION = Subscriber("compaction", _compact)
