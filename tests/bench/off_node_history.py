"""A training that goes on, off the node: ckstore beside restic, `rclone copy` and copying as `aws s3 sync` does.

An eighth of the state changes from one checkpoint to the next. The others copy a folder with a safetensors file for
each checkpoint, which was written before the clock runs.
"""

from __future__ import annotations

import importlib
import os
import shutil
import statistics
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.bench.off_node_peers import add, child, measured, push, rclone_up, s3_client
from tests.support.s3_proxy import faulty_proxy
from tests.support.s3_server import BUCKET, KEY, SECRET, Service

ACTS = ("the first", "the next", "nothing new")
_TENSORS = 16

Sent = dict[str, dict[str, dict[str, Any]]]


def compared(root: Path, service: Service, rounds: int, nbytes: int) -> Sent:
    """Return for each system and act the seconds of each round, and the requests and bytes that it sent."""
    folder = root / "history"
    systems: dict[str, Callable[..., list[float]]] = {
        "ckstore": _push,
        "restic": _restic,
        "rclone copy": _rclone,
        "as aws s3 sync": _sync,
    }
    if shutil.which("restic") is None:
        print("restic is not installed, and is left out")
        del systems["restic"]
    found: Sent = {name: {act: {"seconds": []} for act in ACTS} for name in systems}
    for at in range(rounds):
        names = [*systems]
        for name in names[at % len(names) :] + names[: at % len(names)]:
            for act, seconds in _acts(folder, service.port, f"history-{name.split()[0]}-{at}", systems[name], nbytes):
                found[name][act]["seconds"].append(seconds)
                print(f"{name}: {act} {seconds:.2f} s", flush=True)
    with faulty_proxy(service.port) as proxy:

        def clear() -> None:
            proxy.seen.clear()
            proxy.lengths.clear()

        for name, function in systems.items():
            # Sent before the clock of the first: what a repository or a remote is made with.
            for act, _ in _acts(
                folder, proxy.port, f"history-{name.split()[0]}-counted", function, nbytes, begin=clear
            ):
                found[name][act] |= {"requests": len(proxy.seen), "bytes": sum(proxy.lengths)}
    return found


def lines(found: Sent) -> Iterator[str]:
    """Give the lines of a table of what was found."""
    yield "| | " + " | ".join(f"{act}: MiB sent, requests, s" for act in ACTS) + " |"
    yield "| --- |" + " --- |" * len(ACTS)
    for name, acts in found.items():
        cells = (
            f"{taken['bytes'] / 2**20:.2f}, {taken['requests']}, {statistics.median(taken['seconds']):.2f}"
            for taken in acts.values()
        )
        yield f"| {name} | " + " | ".join(cells) + " |"


def _acts(
    folder: Path,
    port: int,
    prefix: str,
    function: Callable[..., list[float]],
    nbytes: int,
    *,
    begin: Callable[[], None] = lambda: None,
) -> Iterator[tuple[str, float]]:
    """Give each act with its seconds, and call `begin` before it; a training is one process."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "files").mkdir(parents=True)
    with child() as call:
        call(_start, folder, port, prefix)
        for at, act in enumerate(ACTS):
            if at < 2:
                call(_grow, folder, nbytes, at + 1)
            begin()  # after what a repository or a remote is made with
            yield act, call(function, folder, port, prefix, min(at + 1, 2))[0]
    shutil.rmtree(folder)


def _start(folder: Path, port: int, prefix: str) -> None:
    """Make a store with its remote, and restic's repository: once for a training."""
    from ckstore import Store

    Store.init(folder / "store")
    add(folder / "store", port, prefix)
    if "restic" in prefix:
        _run_restic(folder, port, prefix, "init")


def _grow(folder: Path, nbytes: int, step: int) -> None:
    """Write the checkpoint of a step into the store and as a file."""
    import torch
    from safetensors.torch import save_file

    from ckstore import Store

    seeds = [at + 1000 * (step if at < _TENSORS // 8 else 1) for at in range(_TENSORS)]
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    state = {
        f"tensor-{at:03}": torch.randint(0, 256, (nbytes // _TENSORS,), dtype=torch.uint8, generator=generator)
        for at, generator in enumerate(generators)
    }
    Store.open(folder / "store").save(state, step)
    save_file(state, folder / "files" / f"step-{step}.safetensors")


def _push(folder: Path, port: int, prefix: str, step: int) -> list[float]:
    return push(folder / "store", port, prefix, step)


def _rclone(folder: Path, port: int, prefix: str, _step: int) -> list[float]:
    return rclone_up(folder / "files", port, prefix)


def _restic(folder: Path, port: int, prefix: str, _step: int) -> list[float]:
    taken: list[float] = []
    with measured(taken):
        _run_restic(folder, port, prefix, "backup", str(folder / "files"))
    return taken


def _run_restic(folder: Path, port: int, prefix: str, *arguments: str) -> None:
    environment = os.environ | {
        "RESTIC_REPOSITORY": f"s3:http://127.0.0.1:{port}/{BUCKET}/{prefix}",
        "RESTIC_PASSWORD": "bench",
        "RESTIC_CACHE_DIR": str(folder / "cache"),
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }
    command = ["restic", "-q", *arguments]
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=1800)
    if done.returncode:
        raise RuntimeError(f"restic {arguments[0]} ended with {done.returncode}: {done.stderr.strip()[-400:]}")


def _sync(folder: Path, port: int, prefix: str, _step: int) -> list[float]:
    """Send each file that is not there with the same length, in parts, as the command does."""
    client, _ = s3_client(port)
    transfer = importlib.import_module("boto3.s3.transfer").TransferConfig()
    taken: list[float] = []
    with measured(taken):
        listed = client.list_objects_v2(Bucket=BUCKET, Prefix=f"{prefix}/").get("Contents", [])
        there = {entry["Key"]: entry["Size"] for entry in listed}
        for file in sorted((folder / "files").iterdir()):
            key = f"{prefix}/{file.name}"
            if there.get(key) != file.stat().st_size:
                client.upload_file(str(file), BUCKET, key, Config=transfer)
    return taken
