"""Remotes on real services: the probe detects their features, and pushes, pulls and prunes work on all."""

from __future__ import annotations

import base64
import hmac
import http.client
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ckstore import RemoteError, Store
from ckstore.remote.service.abilities import Abilities
from ckstore.remote.service.engine import ServiceObjects
from ckstore.remote.service.service_probe import probe
from ckstore.remote.service.target import Target
from tests.support.object_services import azurite_service, moto_service, rclone_service
from tests.support.s3_server import BUCKET, Service

pytestmark = [pytest.mark.remote, pytest.mark.timeout(300)]

# Published for every installation of the emulator; it opens nothing else.
_EMULATOR_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
SEEN = {
    "ceph": Abilities(cas="unquoted", checks_bodies=True),
    "rclone": Abilities(create=False, cas="no", ranges=False, checks_bodies=False),
    "moto": Abilities(cas="yes", checks_bodies=False),
    "azurite": Abilities(cas="yes", checks_bodies=None),
}


@pytest.fixture(scope="session")
def targets(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Callable[[str], Target]]:
    """Return a function that returns a service and starts it at its first use."""
    running: dict[str, Target] = {}
    stack = ExitStack()

    def target(name: str) -> Target:
        if name == "ceph":
            service: Service = request.getfixturevalue("ceph")
            return service.target(name)
        if name not in running:
            root = tmp_path_factory.mktemp(name)
            if name == "azurite":
                port = stack.enter_context(azurite_service(root))
                running[name] = azure(port)
            else:
                start = {"rclone": rclone_service, "moto": moto_service}[name]
                running[name] = stack.enter_context(start(root)).target(name)
        return running[name]

    with stack:
        yield target


def azure(port: int) -> Target:
    """Return a container of Azurite, made for the tests: a PUT that is signed with the emulator's well-known key."""
    date = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    headers = {"x-ms-date": date, "x-ms-version": "2021-08-06"}
    lines = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
    text = f"PUT{chr(10) * 12}{lines}/devstoreaccount1/devstoreaccount1/{BUCKET}\nrestype:container"
    signature = base64.b64encode(hmac.digest(base64.b64decode(_EMULATOR_KEY), text.encode(), "sha256")).decode()
    headers["Authorization"] = f"SharedKey devstoreaccount1:{signature}"
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("PUT", f"/devstoreaccount1/{BUCKET}?restype=container", b"", {**headers, "Content-Length": "0"})
    status = connection.getresponse().status
    connection.close()
    assert status == 201
    return Target("url", f"az://{BUCKET}/azurite", f"http://127.0.0.1:{port}/devstoreaccount1")


@pytest.mark.parametrize("name", SEEN)
def test_a_probe_detects_the_features_of_a_real_service(targets: Callable[[str], Target], name: str) -> None:
    seen = probe(targets(name))[0]
    # moto's compare-and-swap loses updates now and then, and the probe sees that now and then.
    assert (replace(seen, cas="yes") if name == "moto" else seen) == SEEN[name]


@pytest.mark.parametrize("name", SEEN)
def test_objects_on_a_real_service(targets: Callable[[str], Target], name: str) -> None:
    objects = ServiceObjects(targets(name), SEEN[name])
    data = random.Random(1).randbytes(2_000_000)
    listed = objects.put("t/ab/d", data)
    for key in ("t/ab/d.1", "t/ab/d.2", "t/ac/x"):
        objects.put(key, b"1")
    into = bytearray(100_000)

    assert listed.nbytes == len(data)
    assert objects.get("t/ab/d", len(data)) == data
    assert objects.read_into("t/ab/d", 500_000, memoryview(into))
    assert bytes(into) == data[500_000:600_000]
    assert [one.key for one in objects.list("t/ab/d.")] == ["t/ab/d.1", "t/ab/d.2"]
    assert objects.get("t/none", 1) is None
    assert objects.head("t/none") is None
    objects.delete(["t/ab/d", "t/ab/d.1", "t/ab/d.2", "t/ac/x", "t/none"])
    assert list(objects.list("t/")) == []


@pytest.mark.parametrize("name", SEEN)
def test_checkpoints_are_pushed_to_a_real_service_and_pulled(
    targets: Callable[[str], Target], tmp_path: Path, name: str
) -> None:
    target = targets(name)
    store = Store.init(tmp_path / "store", chunk_bytes=2**20)
    entry = store.remotes.add("cold", target.address, endpoint=target.endpoint)
    cas = entry.abilities is not None and entry.abilities.cas != "no"
    for step in range(3):
        store.save({"x": random.Random(step).randbytes(3 * 2**20), "y": list(range(500))}, step=step)
    first, second = store.push(all=True), store.push(all=True)
    other = Store.init(tmp_path / "other")
    other.remotes.add("cold", target.address, endpoint=target.endpoint)
    other.pull(all=True)

    assert entry.abilities is not None
    assert first.moved_bytes >= 9 * 2**20
    assert second.moved_bytes == 0
    for step in range(3):
        assert other.load(step) == store.load(step)
    assert other.verify().ok
    if not cas:
        with pytest.raises(RemoteError, match="cannot run at the same time as pushes"):
            store.remotes.prune("cold")
    assert store.remotes.prune("cold", exclusive=not cas).removed_count == 0
