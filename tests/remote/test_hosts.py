"""Nodes as separate hosts, each with a network namespace and a disk, and a real service that all can reach."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from ckstore import Store
from ckstore.saver import helper_start
from tests.support.gloo import ROOT
from tests.support.object_services import free_port, moto_service, rclone_service
from tests.support.requirements import require, require_root
from tests.support.s3_server import BUCKET, Service

pytestmark = [pytest.mark.remote, pytest.mark.root, pytest.mark.timeout(1200)]

PROGRAM = Path(__file__).with_name("on_node.py")
# Of this process, so that another run beside it is not met.
_PID = os.getpid()
_NET = f"10.{200 + _PID % 50}.{_PID // 50 % 250}"
_BRIDGE = f"ckb{_PID}"
_HOSTS = 3
_OF_RUN = re.compile(r"ck[bhv]([0-9]+)(?:\.[0-9]+)?\Z")


def ip(*words: object) -> None:
    subprocess.run(["ip", *map(str, words)], check=True, capture_output=True, timeout=30)


def remove_left_behind() -> None:
    """Remove namespaces and bridges of ended test runs, since a killed one removes nothing itself."""
    kinds = {"netns": Path("/run/netns"), "link": Path("/sys/class/net")}
    for kind, folder in kinds.items():
        # A device of a pair goes with its namespace, perhaps before its turn comes.
        for name in sorted(path.name for path in folder.glob("ck[bhv]*")):
            run = _OF_RUN.match(name)
            if run is not None and not Path("/proc", run[1]).exists():
                with suppress(subprocess.CalledProcessError):
                    ip(kind, "del", name)


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[str]]:
    """Return network namespaces that reach one another and this machine by a bridge."""
    require_root()
    require(shutil.which("ip"), "ip is not installed (iproute2)")
    remove_left_behind()
    names = [f"ckh{_PID}.{number}" for number in range(_HOSTS)]
    with ExitStack() as stack:
        ip("link", "add", _BRIDGE, "type", "bridge")
        stack.callback(ip, "link", "del", _BRIDGE)
        ip("addr", "add", f"{_NET}.1/24", "dev", _BRIDGE)
        ip("link", "set", _BRIDGE, "up")
        for number, name in enumerate(names):
            ip("netns", "add", name)
            stack.callback(ip, "netns", "del", name)
            ip("link", "add", f"ckv{_PID}.{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", f"ckv{_PID}.{number}", "master", _BRIDGE, "up")
            ip("-n", name, "addr", "add", f"{_NET}.{10 + number}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names


@pytest.fixture(params=["moto", "rclone"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Service]:
    """Return a real service that the hosts can reach, with compare-and-swap or one that ignores conditions."""
    start = {"moto": moto_service, "rclone": rclone_service}[request.param]
    with start(tmp_path / "service", f"{_NET}.1") as running:
        yield running


def run(hosts: list[str], service: Service, folder: Path, *acts: str) -> list[list[Any]]:
    """Run one rank with operations on each host; return the output of each."""
    meeting = f"{_NET}.10:{free_port()}"
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}",
        "GLOO_SOCKET_IFNAME": "eth0",
        "OMP_NUM_THREADS": "1",
        "AWS_ENDPOINT_URL_S3": f"http://{_NET}.1:{service.port}",
    }
    processes = [
        subprocess.Popen(
            [
                *("ip", "netns", "exec", host, sys.executable, "-W", "ignore", str(PROGRAM)),
                *(str(rank), str(len(hosts)), meeting, str(folder / host), f"s3://{BUCKET}/run", *acts),
            ],
            stdout=subprocess.PIPE,
            env=environment,
        )
        for rank, host in enumerate(hosts)
    ]
    try:
        said = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [[json.loads(line) for line in lines.splitlines()] for lines in said]


def test_two_hosts_save_three_load_and_a_killed_host_leaves_nothing(
    hosts: list[str], served: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(helper_start, "start", lambda *_: None)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://{_NET}.1:{served.port}")
    pair = hosts[:2]

    first, second = run(pair, served, tmp_path, "save=1", "load=1")
    assert first == second
    assert first[0][1] == []
    assert first[1] is True
    assert run(hosts, served, tmp_path, "load=1") == [[True], [True], [True]]

    assert run(pair, served, tmp_path, "die=2") == [[], []]
    with Store.open_or_init(tmp_path / "look", mirror=f"s3://{BUCKET}/run") as look:
        assert [info.step for info in look.checkpoints()] == [1]
    for host in pair:
        with Store.open(tmp_path / host) as store:
            assert [info.step for info in store.checkpoints()] == [1]

    assert run(hosts, served, tmp_path, "save=2", "load=2", "load=1")[2][1:] == [True, True]
    with Store.open_or_init(tmp_path / "later", mirror=f"s3://{BUCKET}/run") as later:
        assert [info.step for info in later.checkpoints()] == [1, 2]
        assert later.verify().ok
        assert later.load(2)["step"] == 2
