"""What moves checkpoints to a service of object storage and back, each a function that runs in a fresh process."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.bench.case import sync_tree
from tests.support.object_services import rclone_program
from tests.support.s3_server import BUCKET, KEY, SECRET, Service

CHUNK_BYTES = 32 * 2**20
# As many as a push has on their way, so that no peer is slower for fewer of them.
_THREADS = 8


@contextmanager
def child() -> Iterator[Callable[..., Any]]:
    """Give a call in a fresh process: the engine does not survive a fork, and memory is its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        yield lambda function, *arguments: pool.apply(function, arguments)


def in_child(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function gives in a fresh process of its own."""
    with child() as call:
        return call(function, *arguments)


def make(folder: Path, nbytes: int, steps: int) -> None:
    import torch

    from ckstore import Store

    store = Store.init(folder)
    # Each tensor is one chunk.
    state = {
        str(at): torch.randint(0, 256, (CHUNK_BYTES,), dtype=torch.uint8, generator=torch.Generator().manual_seed(at))
        for at in range(nbytes // CHUNK_BYTES)
    }
    for step in range(1, steps + 1):
        store.save(state, step=step)


@contextmanager
def measured(taken: list[float]) -> Iterator[None]:
    """Add to a list the seconds of a block, the MiB that its memory grew by, and its seconds of processors."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins again
    before, begun_s, cpu_s = _status("VmRSS"), time.monotonic(), sum(os.times()[:4])
    yield
    taken += [time.monotonic() - begun_s, (_status("VmHWM") - before) / 1024, sum(os.times()[:4]) - cpu_s]


def _status(name: str) -> int:
    text = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(name))


def add(folder: Path, port: int, prefix: str) -> None:
    from ckstore import Store

    store = Store.open(folder)
    if prefix in {entry.name for entry in store.remotes}:
        store.remotes.remove(prefix)
    target = Service(port).target(prefix)
    store.remotes.add(prefix, target.address, endpoint=target.endpoint)


def push(folder: Path, port: int, prefix: str, step: int = 1) -> list[float]:
    from ckstore import Store

    store = Store.open(folder)
    if prefix not in {entry.name for entry in store.remotes}:
        add(folder, port, prefix)
    taken: list[float] = []
    with measured(taken):
        store.push(step, prefix)
    return taken


def pull(folder: Path, port: int, prefix: str) -> list[float]:
    from ckstore import Store

    store = Store.init(folder)
    target = Service(port).target(prefix)
    store.remotes.add(prefix, target.address, endpoint=target.endpoint)
    taken: list[float] = []
    with measured(taken):
        store.pull(remote=prefix)
    return taken


def _rclone(port: int, *arguments: str) -> None:
    program = rclone_program() or "rclone"
    options = {
        "provider": "Other",
        "endpoint": f"http://127.0.0.1:{port}",
        "access-key-id": KEY,
        "secret-access-key": SECRET,
    }
    command = [program, "copy", *arguments, "--transfers", str(_THREADS), "--s3-no-check-bucket", "--config", ""]
    command += [part for name, value in options.items() for part in (f"--s3-{name}", value)]
    subprocess.run(command, check=True, capture_output=True, timeout=1800)


def rclone_up(folder: Path, port: int, prefix: str) -> list[float]:
    taken: list[float] = []
    with measured(taken):
        _rclone(port, str(folder), f":s3:{BUCKET}/{prefix}")
    return taken


def rclone_down(folder: Path, port: int, prefix: str) -> list[float]:
    taken: list[float] = []
    with measured(taken):
        _rclone(port, f":s3:{BUCKET}/{prefix}", str(folder))
        sync_tree(folder)  # a pull is durable
    return taken


def s3_client(port: int) -> tuple[Any, Any]:
    """Return a client of boto3, and how it transfers: each file by one request, as a push and rclone send it."""
    boto3, config = importlib.import_module("boto3"), importlib.import_module("botocore.config")
    transfer = importlib.import_module("boto3.s3.transfer")
    client = boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{port}",
        config=config.Config(max_pool_connections=_THREADS, s3={"addressing_style": "path"}),
    )
    return client, transfer.TransferConfig(use_threads=False, multipart_threshold=2 * CHUNK_BYTES)


def boto3_up(folder: Path, port: int, prefix: str) -> list[float]:
    client, how = s3_client(port)

    def send(file: Path) -> None:
        client.upload_file(str(file), BUCKET, f"{prefix}/{file.name}", Config=how)

    taken: list[float] = []
    with measured(taken), ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(send, sorted(folder.iterdir())))
    return taken


def boto3_down(folder: Path, port: int, prefix: str) -> list[float]:
    client, how = s3_client(port)
    folder.mkdir()

    def fetch(listed: dict[str, Any]) -> None:
        client.download_file(BUCKET, listed["Key"], str(folder / Path(listed["Key"]).name), Config=how)

    taken: list[float] = []
    with measured(taken):
        found = client.list_objects_v2(Bucket=BUCKET, Prefix=f"{prefix}/")["Contents"]
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(fetch, found))
        sync_tree(folder)
    return taken


def engine_up(folder: Path, port: int, prefix: str) -> list[float]:
    import obstore

    from ckstore.remote.service.engine_clients import _CLIENT_OPTIONS, _make

    client, _ = _make(Service(port).target(prefix), _CLIENT_OPTIONS)

    def send(file: Path) -> None:
        obstore.put(client, f"{prefix}/{file.name}", memoryview(file.read_bytes()), use_multipart=False)

    taken: list[float] = []
    with measured(taken), ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(send, sorted(folder.iterdir())))
    return taken


def engine_down(folder: Path, port: int, prefix: str) -> list[float]:
    import obstore

    from ckstore.remote.service.engine_clients import _CLIENT_OPTIONS, _make

    client, _ = _make(Service(port).target(prefix), _CLIENT_OPTIONS)
    folder.mkdir()

    def fetch(path: str) -> None:
        (folder / Path(path).name).write_bytes(obstore.get(client, path).bytes())

    taken: list[float] = []
    with measured(taken):
        found = [meta["path"] for part in obstore.list(client, prefix=prefix) for meta in part]
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(fetch, found))
        sync_tree(folder)
    return taken
