"""``python -m tests.bench remote``: push and pull beside rclone and boto3, against a service that this starts.

*engine* is obstore alone: the same requests for the same bytes, and nothing that makes a checkpoint of them.

It needs what ``make remote`` installs: ``build/remote/bin/python -m tests.bench remote``.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.bench import off_node_history
from tests.bench.off_node_peers import (
    CHUNK_BYTES,
    add,
    boto3_down,
    boto3_up,
    engine_down,
    engine_up,
    in_child,
    make,
    pull,
    push,
    rclone_down,
    rclone_up,
)  # fmt: skip
from tests.bench.sizes import size
from tests.support.object_services import ceph_service, rclone_service
from tests.support.s3_proxy import faulty_proxy
from tests.support.s3_server import KEY, SECRET, Service

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
                "history": off_node_history.compared(root, service, given.rounds, given.size),
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
    yield ""
    yield from off_node_history.lines(found["history"])


Laps = dict[str, dict[str, list[dict[str, float]]]]


def _beside(root: Path, service: Service, rounds: int, nbytes: int) -> Laps:
    """Return what each system took in each round: time, and of processors itself and the service."""
    store, files = root / "store", root / "files"
    in_child(make, store, nbytes, 1)
    files.mkdir()
    for blob in sorted((store / "blobs").rglob("*")):
        if blob.is_file():
            os.link(blob, files / blob.name)
    laps: Laps = {act: {} for act in ("push", "pull")}
    systems = {
        "ckstore": (push, pull),
        "rclone": (rclone_up, rclone_down),
        "boto3": (boto3_up, boto3_down),
        "engine": (engine_up, engine_down),
    }
    for at in range(rounds):
        names = [*systems]
        # Turned each round, so that none always follows the same other one.
        for name in names[at % len(names) :] + names[: at % len(names)]:
            up, down = systems[name]
            source = store if name == "ckstore" else files
            for act, function, folder in (("push", up, source), ("pull", down, root / "pulled")):
                before_s = _service_s()
                took_s, _, own_s = in_child(function, folder, service.port, f"{name}-{at}")
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
    in_child(make, store, _UNCHANGED_BYTES, 2)
    in_child(push, store, service.port, "unchanged", 1)
    with faulty_proxy(service.port) as proxy:
        in_child(add, store, proxy.port, "unchanged")
        proxy.seen.clear()
        proxy.lengths.clear()
        in_child(push, store, proxy.port, "unchanged", 2)
        asked = [line for line in proxy.seen if "list-type=2" not in line]
        return {"bytes": sum(proxy.lengths), "requests": len(asked)}


def _memory(root: Path, service: Service) -> dict[str, float]:
    """Return the MiB that a push and a pull of many chunks took beside what the process had."""
    store = root / "large"
    in_child(make, store, _MEMORY_CHUNKS * CHUNK_BYTES, 1)
    _, up, _ = in_child(push, store, service.port, "large")
    _, down, _ = in_child(pull, root / "large-pulled", service.port, "large")
    return {"push": up, "pull": down}
