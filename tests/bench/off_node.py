"""``python -m tests.bench remote``: push and pull beside rclone and boto3, against a service that this starts.

*engine* is obstore alone: the same requests for the same bytes, and nothing that makes a checkpoint of them.

It needs what ``make remote`` installs: ``build/remote/bin/python -m tests.bench remote``.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.bench.case import sync_tree
from tests.bench.sizes import size
from tests.support.object_services import ceph_service, rclone_service
from tests.support.s3_proxy import faulty_proxy
from tests.support.s3_server import BUCKET, KEY, SECRET, Service

CHUNK_BYTES = 32 * 2**20
# As many as a push has on their way, so that no peer is slower for fewer of them.
_THREADS = 8
_WANTED = {"rclone": 1.5, "boto3": 1.0, "engine": 0.0}
_UNCHANGED_BYTES = 2**30
_MEMORY_CHUNKS = 64
_PROCESSES = ("radosgw", "ceph-osd", "ceph-mon")
_SERVICES: dict[str, Callable[[Path], Any]] = {"ceph": ceph_service, "rclone": rclone_service}


def main(arguments: Sequence[str]) -> int:
    """Measure, and print a table; a JSON with ``--out``."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench remote", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=size, default=512 * 2**20, help="of what is moved; chunks of 32 MiB")
    parser.add_argument("--service", choices=_SERVICES, default="ceph")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="for the service and all files")
    parser.add_argument("--out", type=Path, help="a file for the figures")
    given = parser.parse_args(arguments)
    try:
        importlib.import_module("boto3")
    except ImportError:
        print("error: boto3 is not installed\nhint: make remote, then build/remote/bin/python -m tests.bench remote")
        return 1
    os.environ.update(AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET, AWS_REGION="us-east-1")
    with tempfile.TemporaryDirectory(prefix="ckstore-bench-remote-", dir=given.dir) as folder:
        root = Path(folder)
        with _SERVICES[given.service](root / "service") as service:
            found = {
                "service": given.service,
                "laps": _beside(root, service, given.rounds, given.size),
                "unchanged": _unchanged(root, service),
                "memory": _memory(root, service),
            }
    print("\n".join(lines(found)))
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def lines(found: dict[str, Any]) -> Iterator[str]:
    """Give the lines of a table of what was found."""
    yield "| Act | of ckstore's time | wanted |"
    yield "| --- | --- | --- |"
    for act, laps in found["laps"].items():
        for peer, wanted in _WANTED.items():
            pairs = zip(laps[peer], laps["ckstore"], strict=True)
            ratios = [theirs["seconds"] / ours["seconds"] for theirs, ours in pairs]
            spread, least = f"{min(ratios):.2f} – {max(ratios):.2f}", f"at least {wanted:g}" if wanted else ""
            yield f"| {act}: {peer} | {statistics.median(ratios):.2f} ({spread}) | {least} |"
    for act, laps in found["laps"].items():
        for name, taken in laps.items():
            own, service = (statistics.median(lap[what] for lap in taken) for what in ("own", "service"))
            yield f"| {act}: {name}, seconds of a processor | {own:.2f}, and {service:.2f} of the service | |"
    unchanged = found["unchanged"]
    share = unchanged["bytes"] / _UNCHANGED_BYTES
    yield f"| second push of an unchanged 1 GiB: bytes | {share:.4%} | at most 1 % |"
    yield f"| the same: requests beside listings | {unchanged['requests']} | at most 20 |"
    for act, mib in found["memory"].items():
        yield f"| {act} of {_MEMORY_CHUNKS} chunks: MiB of memory | {mib:.0f} | at most 256 |"


Laps = dict[str, dict[str, list[dict[str, float]]]]


def _beside(root: Path, service: Service, rounds: int, nbytes: int) -> Laps:
    """Return what each system took in each round: time, and of processors itself and the service."""
    store, files = root / "store", root / "files"
    _in_child(_make, store, nbytes, 1)
    files.mkdir()
    for blob in sorted((store / "blobs").rglob("*")):
        if blob.is_file():
            os.link(blob, files / blob.name)
    laps: Laps = {act: {} for act in ("push", "pull")}
    systems = {
        "ckstore": (_push, _pull),
        "rclone": (_rclone_up, _rclone_down),
        "boto3": (_boto3_up, _boto3_down),
        "engine": (_engine_up, _engine_down),
    }
    for at in range(rounds):
        names = [*systems]
        # Turned each round, so that none always follows the same other one.
        for name in names[at % len(names) :] + names[: at % len(names)]:
            up, down = systems[name]
            source = store if name == "ckstore" else files
            for act, function, folder in (("push", up, source), ("pull", down, root / "pulled")):
                before_s = _service_s()
                took_s, _, own_s = _in_child(function, folder, service.port, f"{name}-{at}")
                lap = {"seconds": took_s, "own": own_s, "service": _service_s() - before_s}
                laps[act].setdefault(name, []).append(lap)
                print(f"{name}: {act} {took_s:.2f} s, of a processor {own_s:.2f} s", flush=True)
            shutil.rmtree(root / "pulled")
    return laps


def _service_s() -> float:
    """Return the seconds of processors that the processes of services took so far."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            name, _, rest = path.read_text().partition("(")[2].rpartition(")")
            fields = rest.split()
            ticks += int(fields[11]) + int(fields[12]) if name in _PROCESSES else 0
    return ticks / os.sysconf("SC_CLK_TCK")


def _unchanged(root: Path, service: Service) -> dict[str, int]:
    """Return what a second push of an unchanged state took."""
    store = root / "unchanged"
    _in_child(_make, store, _UNCHANGED_BYTES, 2)
    _in_child(_push, store, service.port, "unchanged", 1)
    with faulty_proxy(service.port) as proxy:
        _in_child(_add, store, proxy.port, "unchanged")
        proxy.seen.clear()
        proxy.lengths.clear()
        _in_child(_push, store, proxy.port, "unchanged", 2)
        asked = [line for line in proxy.seen if "list-type=2" not in line]
        return {"bytes": sum(proxy.lengths), "requests": len(asked)}


def _memory(root: Path, service: Service) -> dict[str, float]:
    """Return the MiB that a push and a pull of many chunks took beside what the process had."""
    store = root / "large"
    _in_child(_make, store, _MEMORY_CHUNKS * CHUNK_BYTES, 1)
    _, up, _ = _in_child(_push, store, service.port, "large")
    _, down, _ = _in_child(_pull, root / "large-pulled", service.port, "large")
    return {"push": up, "pull": down}


def _in_child(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function gives in a fresh process: the engine does not survive a fork, and memory is its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def _make(folder: Path, nbytes: int, steps: int) -> None:
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
def _measured(taken: list[float]) -> Iterator[None]:
    """Add to a list the seconds of a block, the MiB that its memory grew by, and its seconds of processors."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins again
    before, begun_s, cpu_s = _status("VmRSS"), time.monotonic(), sum(os.times()[:4])
    yield
    taken += [time.monotonic() - begun_s, (_status("VmHWM") - before) / 1024, sum(os.times()[:4]) - cpu_s]


def _status(name: str) -> int:
    text = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(name))


def _add(folder: Path, port: int, prefix: str) -> None:
    from ckstore import Store

    store = Store.open(folder)
    if prefix in {entry.name for entry in store.remotes}:
        store.remotes.remove(prefix)
    target = Service(port).target(prefix)
    store.remotes.add(prefix, target.address, endpoint=target.endpoint)


def _push(folder: Path, port: int, prefix: str, step: int = 1) -> list[float]:
    from ckstore import Store

    store = Store.open(folder)
    if prefix not in {entry.name for entry in store.remotes}:
        _add(folder, port, prefix)
    taken: list[float] = []
    with _measured(taken):
        store.push(step, prefix)
    return taken


def _pull(folder: Path, port: int, prefix: str) -> list[float]:
    from ckstore import Store

    store = Store.init(folder)
    target = Service(port).target(prefix)
    store.remotes.add(prefix, target.address, endpoint=target.endpoint)
    taken: list[float] = []
    with _measured(taken):
        store.pull(remote=prefix)
    return taken


def _rclone(port: int, *arguments: str) -> None:
    program = shutil.which("rclone") or str(Path(sys.executable).with_name("rclone"))
    options = {
        "provider": "Other",
        "endpoint": f"http://127.0.0.1:{port}",
        "access-key-id": KEY,
        "secret-access-key": SECRET,
    }
    command = [program, "copy", *arguments, "--transfers", str(_THREADS), "--s3-no-check-bucket", "--config", ""]
    command += [part for name, value in options.items() for part in (f"--s3-{name}", value)]
    subprocess.run(command, check=True, capture_output=True, timeout=1800)


def _rclone_up(folder: Path, port: int, prefix: str) -> list[float]:
    taken: list[float] = []
    with _measured(taken):
        _rclone(port, str(folder), f":s3:{BUCKET}/{prefix}")
    return taken


def _rclone_down(folder: Path, port: int, prefix: str) -> list[float]:
    taken: list[float] = []
    with _measured(taken):
        _rclone(port, f":s3:{BUCKET}/{prefix}", str(folder))
        sync_tree(folder)  # a pull is durable
    return taken


def _client(port: int) -> tuple[Any, Any]:
    """Return a client of boto3, and how it transfers: each file by one request, as a push and rclone send it."""
    boto3, config = importlib.import_module("boto3"), importlib.import_module("botocore.config")
    transfer = importlib.import_module("boto3.s3.transfer")
    client = boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{port}",
        config=config.Config(max_pool_connections=_THREADS, s3={"addressing_style": "path"}),
    )
    return client, transfer.TransferConfig(use_threads=False, multipart_threshold=2 * CHUNK_BYTES)


def _boto3_up(folder: Path, port: int, prefix: str) -> list[float]:
    client, how = _client(port)

    def send(file: Path) -> None:
        client.upload_file(str(file), BUCKET, f"{prefix}/{file.name}", Config=how)

    taken: list[float] = []
    with _measured(taken), ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(send, sorted(folder.iterdir())))
    return taken


def _boto3_down(folder: Path, port: int, prefix: str) -> list[float]:
    client, how = _client(port)
    folder.mkdir()

    def fetch(listed: dict[str, Any]) -> None:
        client.download_file(BUCKET, listed["Key"], str(folder / Path(listed["Key"]).name), Config=how)

    taken: list[float] = []
    with _measured(taken):
        found = client.list_objects_v2(Bucket=BUCKET, Prefix=f"{prefix}/")["Contents"]
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(fetch, found))
        sync_tree(folder)
    return taken


def _engine_up(folder: Path, port: int, prefix: str) -> list[float]:
    import obstore

    from ckstore.remote.service.engine import _stores

    client, _ = _stores(Service(port).target(prefix))

    def send(file: Path) -> None:
        obstore.put(client, f"{prefix}/{file.name}", memoryview(file.read_bytes()), use_multipart=False)

    taken: list[float] = []
    with _measured(taken), ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(send, sorted(folder.iterdir())))
    return taken


def _engine_down(folder: Path, port: int, prefix: str) -> list[float]:
    import obstore

    from ckstore.remote.service.engine import _stores

    client, _ = _stores(Service(port).target(prefix))
    folder.mkdir()

    def fetch(path: str) -> None:
        (folder / Path(path).name).write_bytes(obstore.get(client, path).bytes())

    taken: list[float] = []
    with _measured(taken):
        found = [meta["path"] for part in obstore.list(client, prefix=prefix) for meta in part]
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(fetch, found))
        sync_tree(folder)
    return taken
