"""``python -m tests.bench.remote_requests``: what tiny checkpoints cost at a bucket, beside a copy of the same files.

The service is the small S3 of the tests, in a process of its own, which counts its requests; or Ceph RGW, which takes
the time that a real one takes (`--service ceph`). The copy sends each file of the store's checkpoints by one request
with as many threads, as ``rclone copy`` does; ``rclone copy`` itself is measured too where it is installed. Push and
copies are run in turn, each first in one round; figures are medians, ratios those of pairs in one round.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path

from ckstore import Store
from ckstore.remote.objects import THREADS
from ckstore.remote.service.engine import ServiceObjects
from ckstore.remote.service.target import Target
from tests.support.object_services import CephService, ceph_service, rclone_program
from tests.support.s3_server import BUCKET, KEY, SECRET, s3_service

Peer = Callable[[Path, Target], None]
_SPAWN = multiprocessing.get_context("spawn")


def serve(asked: Connection) -> None:
    """Serve an empty bucket; tell its port, and its requests whenever it is asked."""
    with s3_service() as service:
        asked.send(service.port)
        while asked.recv():
            asked.send(dict(service.requests))
            service.requests.clear()


class Bucket:
    """The small S3 in a process of its own."""

    def __init__(self) -> None:
        self._ours, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=serve, args=(theirs,), daemon=True)
        self._process.start()
        self.endpoint = f"http://127.0.0.1:{self._ours.recv()}"

    def requests(self) -> Counter[str]:
        """Return the requests since it was asked last, by their methods."""
        self._ours.send(True)
        return Counter(self._ours.recv())

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.join()


class CephBucket:
    """Ceph RGW, which runs until all rounds are over; its requests are not counted."""

    def __init__(self, service: CephService) -> None:
        self.endpoint = service.target().endpoint

    def requests(self) -> Counter[str]:
        """Return nothing."""
        return Counter()

    def close(self) -> None:
        """Let the service run."""


def _copy(store: Path, target: Target) -> None:
    objects = ServiceObjects(target)
    files = [path for path in (store / "checkpoints").rglob("*") if path.is_file()]
    with ThreadPoolExecutor(THREADS) as threads:
        sent = [threads.submit(objects.send, str(path.relative_to(store)), path.read_bytes()) for path in files]
    for one in sent:
        one.result()


def _rclone(store: Path, target: Target) -> None:
    keys = {"ACCESS_KEY_ID": KEY, "SECRET_ACCESS_KEY": SECRET, "ENDPOINT": target.endpoint}
    environment = {f"RCLONE_CONFIG_S_{name}": value for name, value in keys.items()}
    environment |= {"RCLONE_CONFIG_S_TYPE": "s3", "RCLONE_CONFIG_S_PROVIDER": "Other", "PATH": os.environ["PATH"]}
    where = f"s:{target.bucket}/{target.prefix}"
    command = [rclone_program() or "rclone", "copy", f"--transfers={THREADS}", "--s3-no-check-bucket"]
    subprocess.run([*command, str(store / "checkpoints"), where], check=True, env=environment, capture_output=True)


def run(
    store: Store, folder: Path, number: int, bucket: Bucket | CephBucket, peers: dict[str, Peer], *, clones: bool
) -> dict[str, float]:
    """Return the requests of each act, and the seconds of the push and of its peers."""
    found = dict[str, float]()
    try:
        target = Target("url", f"s3://{BUCKET}/run-{number}", bucket.endpoint)
        name = f"cold-{number}"
        store.remotes.add(name, target.address, endpoint=target.endpoint)
        bucket.requests()

        def counted(what: str, act: Callable[[], object]) -> None:
            begun_s = time.monotonic()
            act()
            found[f"{what}, s"] = time.monotonic() - begun_s
            found[what] = bucket.requests().total()

        acts: list[tuple[str, Callable[[], object]]] = [("push", lambda: store.push(all=True, remote=name))]
        for peer, copy in peers.items():
            there = Target("url", f"s3://{BUCKET}/{peer.replace(' ', '-')}-{number}", bucket.endpoint)
            acts.append((peer, lambda copy=copy, there=there: copy(store.path, there)))  # type: ignore[misc]
        at = number % len(acts)
        for what, act in acts[at:] + acts[:at]:
            counted(what, act)
        counted("push of nothing new", lambda: store.push(all=True, remote=name))
        clone = folder / f"clone-{number}"
        for what in ("clone", "second clone") if clones else ():
            counted(what, lambda: Store.clone(target.address, clone, endpoint=target.endpoint).close())
        shutil.rmtree(clone, ignore_errors=True)
    finally:
        bucket.close()
    return found


def main() -> int:
    """Push some checkpoints a few times and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.remote_requests", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--push-only", action="store_true", help="leave out the clones, which take the longest")
    parser.add_argument("--service", choices=("small", "ceph"), default="small")
    options = parser.parse_args()
    os.environ |= {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ALLOW_HTTP": "true"}
    peers: dict[str, Peer] = {"copy by the same engine": _copy}
    if rclone_program() is not None:
        peers["rclone copy"] = _rclone
    with (
        ExitStack() as opened,
        tempfile.TemporaryDirectory(prefix="ckstore-bench-") as folder,
        warnings.catch_warnings(action="ignore"),
        Store.init(Path(folder) / "store") as store,
    ):
        for step in range(options.count):
            store.save({"w": b"%d" % step * 500, "step": step}, step=step)
        ceph, clones = None, not options.push_only
        if options.service == "ceph":
            root = opened.enter_context(tempfile.TemporaryDirectory(prefix="ckstore-ceph-", dir="/var/tmp"))
            ceph = opened.enter_context(ceph_service(Path(root)))
        rounds = [
            run(store, Path(folder), number, Bucket() if ceph is None else CephBucket(ceph), peers, clones=clones)
            for number in range(options.rounds)
        ]
    print(f"| act, {options.count:,} checkpoints | requests | for each checkpoint | s |")
    print("| --- | --- | --- | --- |")
    acts = ["push", *peers, "push of nothing new", *(("clone", "second clone") if clones else ())]
    for what in acts:
        count, passed_s = (statistics.median(one[name] for one in rounds) for name in (what, f"{what}, s"))
        requests = f"{count:g} | {count / options.count:.2f}" if ceph is None else "– | –"
        print(f"| {what} | {requests} | {passed_s:.1f} |")
    for peer in peers:
        ratios = sorted(one["push, s"] / one[f"{peer}, s"] for one in rounds)
        print(f"push / {peer}: {statistics.median(ratios):.2f} ({ratios[0]:.2f} – {ratios[-1]:.2f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
