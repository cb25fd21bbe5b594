"""Fixtures of the tests of remotes: doubles in memory, a small S3 service, a proxy for it, and credentials."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckstore import Store
from ckstore.ops.context import Context
from ckstore.remote import remote_opener
from ckstore.remote.objects import Remote
from ckstore.remote.service.target import Target
from ckstore.saver import helper_start
from tests.remote.double import REMOTES
from tests.support.object_services import CephService, ceph_service
from tests.support.s3_proxy import Proxy, faulty_proxy
from tests.support.s3_server import KEY, SECRET, Service, s3_service


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)


@pytest.fixture(autouse=True)
def _interrupts() -> Iterator[None]:
    """Restore the handler of SIGINT, which is ignored if the tests were started in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def _doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resolve the names of doubles to the doubles, and other names by the settings."""
    REMOTES.clear()
    real = remote_opener.open_remote

    def open_remote(context: Context, name: str, *, writing: bool = False) -> Remote:
        return REMOTES.get(name) or real(context, name, writing=writing)

    monkeypatch.setattr(remote_opener, "open_remote", open_remote)


@pytest.fixture
def no_mirror_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no mirror process, because the tests run its steps themselves."""
    monkeypatch.setattr(helper_start, "start", lambda *_: None)


@pytest.fixture(params=["url", "directory"])
def store_with_mirror(request: pytest.FixtureRequest, tmp_path: Path, memory: Target) -> Store:
    """Return a store whose mirror, ``cold``, is on object storage, or in a directory."""
    made = Store.init(tmp_path / "store", chunk_bytes=2**20)
    made.remotes.add("cold", memory.address if request.param == "url" else tmp_path / "m")
    made.config.mirror = "cold"
    return made


@pytest.fixture
def service() -> Iterator[Service]:
    """Return a service that behaves like S3."""
    with s3_service() as running:
        yield running


@pytest.fixture
def proxy(service: Service) -> Iterator[Proxy]:
    """Return a proxy for the service."""
    with faulty_proxy(service.port) as running:
        yield running


@pytest.fixture
def through(service: Service, proxy: Proxy) -> Target:
    """Return the service as a target behind the proxy."""
    return service.target("run", proxy.port)


@pytest.fixture
def memory(request: pytest.FixtureRequest) -> Iterator[Target]:
    """Return objects in memory that only this test uses."""
    from ckstore.remote.service import engine_clients

    target = Target("url", f"memory://{abs(hash(request.node.nodeid))}/run")
    yield target
    engine_clients._memory.pop(target.bucket, None)


@pytest.fixture(scope="session")
def ceph() -> Iterator[CephService]:
    """Return a real S3 service: Ceph RGW, with two gateways."""
    # bluestore writes past the page cache, which a directory in memory does not take.
    with (
        tempfile.TemporaryDirectory(prefix="ckstore-ceph-", dir="/var/tmp") as root,
        ceph_service(Path(root), gateways=2) as running,
    ):
        yield running
