"""``python -m tests.bench.remote_prune``: what it costs to prune a bucket of unreferenced blobs.

The service is the small S3 of the tests, in a process of its own. The blobs are condemned by a first prune and removed
by a second one, two days later by the clock that the pruner sees. Each size is run in turn; the figures are medians.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections import Counter
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection
from pathlib import Path

from ckstore import Store
from ckstore.model.digest import ALGORITHMS
from ckstore.remote import key_lookup, keys
from ckstore.remote.objects import Remote
from ckstore.remote.pruning import prune as pruning
from ckstore.remote.service.engine import ServiceObjects
from ckstore.remote.service.target import Target
from tests.support.s3_server import BUCKET, KEY, SECRET, s3_service

_COUNTS = (10_000, 30_000, 100_000)
_DAY_S = 86_400.0
_SPAWN = multiprocessing.get_context("spawn")
_CLOCK = key_lookup.server_time


def serve(count: int, asked: Connection) -> None:
    """Serve a bucket that has so many blobs; tell its port, and its requests whenever it is asked."""
    with s3_service() as service:
        for number in range(count):
            name = f"xxh3-{number * 7919 % 2**32:08x}{number:024x}"
            service.objects[f"run/{keys.blob(name)}"] = (b"dead", '"1"', datetime.now(UTC))
        asked.send(service.port)
        while asked.recv():
            asked.send(dict(service.requests))
            service.requests.clear()


def run(count: int, folder: Path) -> list[float]:
    """Return the requests of the removing prune beside those that delete, its seconds, and its own processor time."""
    ours, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=serve, args=(count, theirs), daemon=True)
    process.start()
    try:
        target = Target("url", f"s3://{BUCKET}/run", f"http://127.0.0.1:{ours.recv()}")
        with warnings.catch_warnings(action="ignore"), Store.init(folder / str(count)) as store:
            store.save({"x": b"needed" * 1000})
            store.remotes.add("cold", target.address, endpoint=target.endpoint)
            store.push(remote="cold", all=True)
        remote = Remote("cold", ServiceObjects(target))
        _prune(remote, days=2)
        ours.send(True)
        ours.recv()
        begun_s, used_s = time.monotonic(), time.process_time()
        removed_count = _prune(remote, days=4)
        passed_s, own_s = time.monotonic() - begun_s, time.process_time() - used_s
        ours.send(True)
        requests = Counter(ours.recv())
        if removed_count != count:
            raise RuntimeError(f"{removed_count} of {count} blobs were removed")
        ours.send(False)
    finally:
        process.terminate()
        process.join()
    return [requests.total() - requests["POST"], requests["POST"], passed_s, own_s]


def _prune(remote: Remote, *, days: float) -> int:
    """Prune so many days later; return how many blobs were removed."""
    key_lookup.server_time = lambda objects: _CLOCK(objects) + timedelta(days=days)
    return pruning.prune(remote, ALGORITHMS["xxh3_128"], grace_s=_DAY_S).removed_count


def main() -> int:
    """Run the sizes in turn and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.remote_prune", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--counts", type=int, nargs="+", default=_COUNTS)
    options = parser.parse_args()
    os.environ |= {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    found: dict[int, list[list[float]]] = {count: [] for count in options.counts}
    for _ in range(options.rounds):
        for count in options.counts:
            with tempfile.TemporaryDirectory(prefix="ckstore-bench-") as folder:
                found[count].append(run(count, Path(folder)))
    print("| unreferenced blobs | requests beside deletes | for each 1,000 | deletes | s | own processor s |")
    print("| --- | --- | --- | --- | --- | --- |")
    for count, rounds in found.items():
        others, deletes, passed_s, own_s = (statistics.median(column) for column in zip(*rounds, strict=True))
        each = others * 1000 / count
        print(f"| {count:,} | {others:g} | {each:.2f} | {deletes:g} | {passed_s:.1f} | {own_s:.1f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
