"""What it costs to renew times: ``python -m tests.bench.renewal FOLDER [BLOBS]``.

Saves of an unchanged state, in turn one that finds blobs whose times are two days old, and one that finds current ones.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch

from ckstore import CkstoreWarning, Store

_ROUNDS = 20
_TWO_DAYS_NS = 2 * 86400 * 10**9


def main(folder: str, blob_count: int = 200) -> int:
    """Print the processor time of a save of each kind, the median of several, and their ratio."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", CkstoreWarning)
    state = {f"w{number}": torch.randn(300_000) for number in range(blob_count)}
    took_s: dict[str, list[float]] = {"due": [], "current": []}
    with tempfile.TemporaryDirectory(dir=folder) as place, Store.init(Path(place) / "store") as store:
        store.save(state, step=0)
        for step in range(1, 2 * _ROUNDS + 1):
            kind = "due" if step % 2 else "current"
            for path in store.path.glob("blobs/*/*") if kind == "due" else ():
                status = path.stat()
                os.utime(path, ns=(status.st_atime_ns - _TWO_DAYS_NS, status.st_mtime_ns - _TWO_DAYS_NS))
            began_s = time.process_time()
            store.save(state, step=step)
            took_s[kind].append(time.process_time() - began_s)
    due_s, current_s = (statistics.median(took_s[kind]) for kind in ("due", "current"))
    print(
        f"{blob_count} blobs: {due_s * 1e3:.1f} ms with old times, {current_s * 1e3:.1f} ms with current ones, ", end=""
    )
    print(f"{due_s / current_s - 1:+.1%}, paid once a day: {(due_s - current_s) / blob_count * 1e6:.1f} µs a blob")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:])))
