"""Services of object storage on loopback, for `make remote`: Ceph RGW, rclone, moto, Azurite."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.requirements import require
from tests.support.s3_server import BUCKET, KEY, SECRET, Service

_START_S = 120.0
_TRIES = 10
ROOT = Path(__file__).parents[2]

_CEPH_CONF = """
[global]
fsid = {fsid}
mon host = v1:127.0.0.1:{mon_port}/0
public addr = 127.0.0.1
ms bind msgr2 = false
auth cluster required = none
auth service required = none
auth client required = none
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd crush chooseleaf type = 0
osd pool default pg autoscale mode = off
mon allow pool size one = true
mon data avail crit = 1
mon data avail warn = 2
run dir = {root}/run
admin socket = {root}/run/$name.asok
log file = {root}/log/$name.log
pid file = {root}/run/$name.pid
keyring = {root}/keyring
[mon.a]
mon data = {root}/mon
[osd.0]
osd data = {root}/osd
osd objectstore = bluestore
bluestore block size = 24G
osd memory target = 1G
# Of all clients: the commands of an administrator as well.
[client]
rgw enable usage log = false
# A day of a lifecycle rule, in seconds.
rgw lc debug interval = 1
# How long a gateway believes what it counted for a quota, in seconds.
rgw bucket quota ttl = 0
rgw user quota bucket sync interval = 0
"""
_CEPH_GATEWAY = """
[client.rgw.{name}]
rgw frontends = beast endpoint=127.0.0.1:{port} tcp_nodelay=1
"""


def rclone_program() -> str | None:
    """Return rclone: that of this environment, or else that of the machine, which may be years older."""
    own = Path(sys.executable).with_name("rclone")
    return str(own) if own.exists() else shutil.which("rclone")


def free_port() -> int:
    """Return a port that no process listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _wait_for(port: int, what: str, host: str = "127.0.0.1") -> None:
    end_s = time.monotonic() + _START_S
    while time.monotonic() < end_s:
        with suppress(OSError), socket.create_connection((host, port), timeout=1):
            return
        time.sleep(0.1)
    raise TimeoutError(f"{what} did not listen on port {port} within {_START_S:g} s")


@dataclass
class CephService(Service):
    """A cluster with gateways that serve the same buckets; `port` is that of the first.

    Attributes:
        conf: Its configuration, for its own commands.
        ports: Of all gateways.
    """

    conf: Path = Path()
    ports: tuple[int, ...] = ()

    def admin(self, *command: object) -> None:
        """Do what an administrator does with ``radosgw-admin``."""
        _call("radosgw-admin", "-c", self.conf, *command)


def _call(*command: object) -> None:
    for left in reversed(range(_TRIES)):
        done = subprocess.run([*map(str, command)], check=False, capture_output=True, text=True, timeout=60)
        if done.returncode == 0:
            return
        # On a busy machine a client asks before the monitor has told it which cluster this is.
        if not left or "wrong fsid" not in done.stderr:
            raise RuntimeError(f"{' '.join(map(str, command))} ended with {done.returncode}: {done.stderr[-1000:]}")
        time.sleep(0.5)


@contextmanager
def ceph_service(root: Path, gateways: int = 1) -> Iterator[CephService]:
    """Run one monitor, one OSD on bluestore, and some gateways, below a directory."""
    require(shutil.which("radosgw") and shutil.which("ceph-osd"), "Ceph is not installed (radosgw ceph-mon ceph-osd)")
    for name in ("mon", "osd", "log", "run"):
        (root / name).mkdir(parents=True)
    ports, mon_port = [free_port() for _ in range(gateways)], free_port()
    fsid, osd = str(uuid.uuid4()), str(uuid.uuid4())
    conf, keyring, monmap = root / "ceph.conf", root / "keyring", root / "monmap"
    served = [_CEPH_GATEWAY.format(name=f"g{port}", port=port) for port in ports]
    conf.write_text(_CEPH_CONF.format(root=root, mon_port=mon_port, fsid=fsid) + "".join(served))

    try:
        _call("ceph-authtool", "--create-keyring", keyring, "--gen-key", "-n", "mon.", "--cap", "mon", "allow *")
        monitor = f"[v1:127.0.0.1:{mon_port}]"
        _call("monmaptool", "--create", "--clobber", "--fsid", fsid, "--addv", "a", monitor, monmap)
        _call("ceph-mon", "-c", conf, "--mkfs", "-i", "a", "--monmap", monmap, "--keyring", keyring)
        _call("ceph-mon", "-c", conf, "-i", "a")
        # One uuid in all three places, or the OSD finds another filesystem than it expects.
        _call("ceph-osd", "-c", conf, "-i", 0, "--mkfs", "--osd-uuid", osd)
        _call("ceph", "-c", conf, "osd", "new", osd, 0)
        _call("ceph", "-c", conf, "osd", "crush", "add", "osd.0", "1.0", "root=default", "host=h")
        _call("ceph-osd", "-c", conf, "-i", 0, "--osd-uuid", osd)
        for port in ports:
            _call("radosgw", "-c", conf, "-n", f"client.rgw.g{port}")
            _wait_for(port, "radosgw")
        user = ("--uid", "ck", "--display-name", "ck", "--access-key", KEY, "--secret-key", SECRET)
        _call("radosgw-admin", "-c", conf, "user", "create", *user)
        make_bucket(ports[0])
        yield CephService(ports[0], conf=conf, ports=(*ports,))
    finally:
        for pid_file in (root / "run").glob("*.pid"):
            with suppress(OSError, ValueError):
                os.kill(int(pid_file.read_text()), signal.SIGKILL)


@contextmanager
def rclone_service(root: Path, host: str = "127.0.0.1") -> Iterator[Service]:
    """Run ``rclone serve s3``, which ignores conditions."""
    program = rclone_program()
    require(program is not None, "rclone is not installed")
    (root / BUCKET).mkdir(parents=True)
    port = free_port()
    command = [program, "serve", "s3", root, "--addr", f"{host}:{port}", "--auth-key", f"{KEY},{SECRET}"]
    with _running([*command, "--vfs-cache-mode", "off"], port, host):
        yield Service(port)


@contextmanager
def moto_service(root: Path, host: str = "127.0.0.1") -> Iterator[Service]:
    """Run moto, whose compare-and-swap loses updates."""
    program = Path(sys.executable).with_name("moto_server")
    require(program.exists(), "moto is not installed")
    port = free_port()
    with _running([program, "-H", host, "-p", str(port)], port, host):
        make_bucket(port, host)
        yield Service(port)


@contextmanager
def azurite_service(root: Path) -> Iterator[int]:
    """Run Azurite, and return its port."""
    program = ROOT / "build/remote/node/node_modules/.bin/azurite-blob"
    require(program.exists(), "Azurite is not installed")
    port = free_port()
    command = [program, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", root]
    with _running([*command, "--silent", "--skipApiVersionCheck", "--disableTelemetry"], port):
        yield port


@contextmanager
def _running(command: list[object], port: int, host: str = "127.0.0.1") -> Iterator[None]:
    with subprocess.Popen(
        [str(part) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            _wait_for(port, str(command[0]), host)
            yield
        finally:
            process.kill()


def make_bucket(port: int, host: str = "127.0.0.1") -> None:
    """Make the bucket of the tests; the engine makes none."""
    from ckstore.remote.service import wrong_body
    from ckstore.remote.service.target import Target

    target = Target("url", f"s3://{BUCKET}", f"http://{host}:{port}")
    end_s = time.monotonic() + _START_S
    while True:
        status = wrong_body._put(target, target.endpoint, "", b"", (KEY, SECRET, "us-east-1"), digest_of=b"")
        if status in (200, 409):
            return
        if time.monotonic() > end_s:
            raise TimeoutError(f"no bucket could be made: status {status}")
        time.sleep(0.5)
