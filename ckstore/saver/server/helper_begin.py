"""Set up a process that works on a store during a training and after it."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from pathlib import Path

from ckstore.ops.context import Context
from ckstore.saver.server.ending import Ending

# The priority is below that of the training, whose cores and network the process shares.
_NICE = 10


def begin(about: str, ending: Ending | None = None) -> Context:
    """Detach this process, so that it outlives the training, and open the store that `about` names."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # these signals are meant for the trainer
        signal.signal(number, signal.SIG_IGN)
    if ending is not None:
        ending.begin()
    with suppress(OSError):  # forbidden in a sandbox
        os.nice(_NICE)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    from ckstore.ops.open.opening import open_context

    asked = json.loads(about)
    catalog_path = None if asked["catalog_path"] is None else Path(asked["catalog_path"])
    return open_context(Path(asked["path"]), readonly=False, recover=False, catalog_path=catalog_path)[0]
