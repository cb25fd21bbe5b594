"""``python -m tests.bench.remote_requests``: what tiny checkpoints cost at a bucket, beside a copy of the same files.

The service is the small S3 of the tests, in a process of its own, which counts its requests. The copy sends each file
of the store's checkpoints by one request with as many threads, as ``rclone copy`` does; ``rclone copy`` itself is
measured too where it is installed. Push and copy are run in turn; the figures are medians.
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
from multiprocessing.connection import Connection
from pathlib import Path

from ckstore import Store
from ckstore.remote.objects import THREADS
from ckstore.remote.service.engine import ServiceObjects
from ckstore.remote.service.target import Target
from tests.support.s3_server import BUCKET, KEY, SECRET, s3_service

_SPAWN = multiprocessing.get_context("spawn")


def serve(asked: Connection) -> None:
    """Serve an empty bucket; tell its port, and its requests whenever it is asked."""
    with s3_service() as service:
        asked.send(service.port)
        while asked.recv():
            asked.send(dict(service.requests))
            service.requests.clear()


class Bucket:
    """A service in a process of its own."""

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
    command = ["rclone", "copy", f"--transfers={THREADS}", str(store / "checkpoints"), where]
    subprocess.run(command, check=True, env=environment, capture_output=True)


def run(store: Store, folder: Path, number: int, peers: dict[str, Callable[[Path, Target], None]]) -> dict[str, float]:
    """Return the requests of each act, and the seconds of the push and of its peers."""
    bucket, found = Bucket(), dict[str, float]()
    try:
        target = Target("url", f"s3://{BUCKET}/run", bucket.endpoint)
        name = f"cold-{number}"
        store.remotes.add(name, target.address, endpoint=target.endpoint)
        bucket.requests()

        def counted(what: str, act: Callable[[], object]) -> None:
            begun_s = time.monotonic()
            act()
            found[f"{what}, s"] = time.monotonic() - begun_s
            found[what] = bucket.requests().total()

        counted("push", lambda: store.push(all=True, remote=name))
        for peer, copy in peers.items():
            there = Target("url", f"s3://{BUCKET}/{peer.replace(' ', '-')}", bucket.endpoint)
            counted(peer, lambda copy=copy, there=there: copy(store.path, there))  # type: ignore[misc]
        counted("push of nothing new", lambda: store.push(all=True, remote=name))
        clone = folder / f"clone-{number}"
        for what in ("clone", "second clone"):
            counted(what, lambda: Store.clone(target.address, clone, endpoint=target.endpoint).close())
        shutil.rmtree(clone)
    finally:
        bucket.close()
    return found


def main() -> int:
    """Push some checkpoints a few times and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.remote_requests", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=5000)
    options = parser.parse_args()
    os.environ |= {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ALLOW_HTTP": "true"}
    peers: dict[str, Callable[[Path, Target], None]] = {"copy by the same engine": _copy}
    if shutil.which("rclone"):
        peers["rclone copy"] = _rclone
    with (
        tempfile.TemporaryDirectory(prefix="ckstore-bench-") as folder,
        warnings.catch_warnings(action="ignore"),
        Store.init(Path(folder) / "store") as store,
    ):
        for step in range(options.count):
            store.save({"w": b"%d" % step * 500, "step": step}, step=step)
        rounds = [run(store, Path(folder), number, peers) for number in range(options.rounds)]
    print(f"| act, {options.count:,} checkpoints | requests | for each checkpoint | s |")
    print("| --- | --- | --- | --- |")
    for what in [name for name in rounds[0] if not name.endswith(", s")]:
        count, passed_s = (statistics.median(one[name] for one in rounds) for name in (what, f"{what}, s"))
        print(f"| {what} | {count:g} | {count / options.count:.2f} | {passed_s:.1f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
