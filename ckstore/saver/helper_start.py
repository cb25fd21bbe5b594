"""Start a process that works on a store during a training and after it."""

from __future__ import annotations

import json
import os
import subprocess

from ckstore.fs.dirfd_stat import open_descriptor
from ckstore.ops.context import Context
from ckstore.saver.client.process import reap, start


def start_beside(entry: str, context: Context) -> subprocess.Popen[bytes]:
    """Start a process that works on a store independently, and outlives this process."""
    reap()
    catalog_path = None if context.catalog_path is None else str(context.catalog_path)
    about = {"path": str(context.layout.path), "catalog_path": catalog_path}
    nowhere = open_descriptor(os.devnull, os.O_WRONLY)
    try:
        # The output of the process is discarded, because the process reports to the store. Credentials are passed in
        # the environment, never as arguments.
        return start(entry, json.dumps(about), nowhere)
    finally:
        os.close(nowhere)
