"""Changes of a bucket by its service or its users, on a real service: all reports about it stay true.

Two stores mirror one run each to one bucket, by two gateways of Ceph RGW. Then objects leave by a lifecycle rule, a
quota is used up, a user empties the bucket, or an administrator restores it from a backup.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ckstore import CkstoreError, NoSuchRemote, RemoteFull, RetentionPolicy, Store
from ckstore.ops import mirror_record
from ckstore.ops.api_calls import describe_error
from ckstore.remote.documents.claims import claims_at
from ckstore.remote.mirror import mirror_step
from ckstore.remote.mirror.mirror_step import Mirror
from ckstore.remote.service.engine import ServiceObjects
from ckstore.store import context_of
from tests.bench.off_node_peers import s3_client
from tests.remote.test_pull import same
from tests.remote.test_push import MIB, state
from tests.support.object_services import CephService
from tests.support.s3_server import BUCKET
from tests.support.stores import check_store

pytestmark = [pytest.mark.remote, pytest.mark.timeout(300), pytest.mark.usefixtures("no_mirror_process")]

_WAIT_S = 120.0


class Bucket:
    """The bucket of two stores, as an administrator sees it, below a prefix that only this test uses."""

    def __init__(self, ceph: CephService, prefix: str, folder: Path) -> None:
        self.ceph, self.prefix, self.folder = ceph, prefix, folder
        self.client: Any = s3_client(ceph.port)[0]
        self.objects = ServiceObjects(ceph.target(prefix))
        self.nodes = [self._node("a", ceph.ports[0]), self._node("b", ceph.ports[1])]

    def _node(self, run: str, port: int) -> Store:
        store = Store.init(self.folder / run, chunk_bytes=MIB)
        self.add(store, port)
        store.config.mirror = "cold"
        store.config.keep_local = RetentionPolicy(keep_last=2)
        return Store.open(store.path, run=run)

    def add(self, store: Store, port: int) -> None:
        """Add the bucket as the remote of a store, as a user does."""
        target = self.ceph.target(self.prefix, port)
        store.remotes.add("cold", target.address, endpoint=target.endpoint)

    def save(self, step: int) -> None:
        """Save a step in both stores."""
        for node in self.nodes:
            node.save(state(step + 100 * self.nodes.index(node)), step=step)

    def keys(self, under: str = "") -> list[str]:
        """Return the keys in the bucket, without the prefix."""
        return [one.key for one in self.objects.list(under)]

    def wait(self, holds: Callable[[], bool]) -> None:
        """Wait until the service has applied a change."""
        deadline = time.monotonic() + _WAIT_S
        while not holds():
            assert time.monotonic() < deadline
            time.sleep(0.1)


def mirror(store: Store) -> CkstoreError | None:
    """Run the steps of the mirror process until nothing is left; return the reason if it failed."""
    steps = Mirror(context_of(store))
    problem: CkstoreError | None
    try:
        while steps.step():
            pass
        steps.tidy()
        while steps.step():
            pass
        problem = steps.problem
    except CkstoreError as error:
        problem = error
    mirror_record.note_problem(context_of(store).layout, "cold", "" if problem is None else describe_error(problem))
    return problem


def next_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """Move the clock of the daily listing forward by a day."""
    before = mirror_record.now
    for module in (mirror_record, mirror_step):
        monkeypatch.setattr(module, "now", lambda: before() + timedelta(days=1.1))


def check_statements(store: Store, number: int, lost: Collection[int] = (), *, is_listed: bool = True) -> None:
    """Check that `verify`, `doctor` and metrics agree with loads of each checkpoint.

    Args:
        store: The store.
        number: The number of the node, by which its states differ.
        lost: Steps whose bytes are lost.
        is_listed: Whether the bucket was listed since the last change.
    """
    store.gc()  # empties the download cache: what loads now is here or in the bucket
    infos = store.checkpoints()
    fails = set()
    for info in infos:
        try:
            assert same(store.load(info), state(info.step + 100 * number))
        except CkstoreError:
            fails.add(info.step)
    assert fails == {*lost}
    report = store.verify()
    assert {one.step for one in report.elsewhere if one.missing} == {*lost}
    assert {one.step for one in report.elsewhere if one.as_of} == {info.step for info in infos if info.elsewhere}
    assert report.ok == (not lost)
    assert not report.damage
    if not is_listed:
        return
    status = store.mirror_status()
    assert status is not None
    assert {name.partition("@")[2] for name in status.missing} == {str(step) for step in lost}
    assert ("has every checkpoint" in str(status)) == (not lost and not status.behind)
    levels = {finding.what: finding.level for finding in store.doctor().findings}
    assert (levels["mirror"] == "ok") == (not lost and not status.problem)
    assert (levels.get("elsewhere", "ok") == "ok") == (not lost)
    metrics = store.metrics()
    samples = f'{{remote="cold",store="{store.path}"}}'
    assert f"ckstore_mirror_missing{samples} {len(lost)}\n" in metrics
    assert f"ckstore_mirror_behind{samples} {len(status.behind)}\n" in metrics
    assert f'ckstore_run_damaged{{run="{store.run}",store="{store.path}"}} 0\n' in metrics


@pytest.fixture
def bucket(ceph: CephService, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bucket]:
    """Return the bucket of two stores with four checkpoints each, of which each keeps the bytes of two."""
    found = Bucket(ceph, request.node.name.replace("_", "-"), tmp_path)
    for step in range(1, 5):
        found.save(step)
        for node in found.nodes:
            assert mirror(node) is None
    yield found
    for node in found.nodes:
        check_store(node.path)


def test_objects_removed_by_a_lifecycle_rule_are_named_and_pushed_again(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, node in enumerate(bucket.nodes):
        check_statements(node, number)
    rule = {
        "ID": "cold",
        "Status": "Enabled",
        "Filter": {"Prefix": f"{bucket.prefix}/blobs/"},
        "Expiration": {"Days": 1},
    }
    bucket.client.put_bucket_lifecycle_configuration(Bucket=BUCKET, LifecycleConfiguration={"Rules": [rule]})
    try:
        bucket.wait(lambda: not bucket.keys("blobs/"))
    finally:
        bucket.client.delete_bucket_lifecycle(Bucket=BUCKET)
    for number, node in enumerate(bucket.nodes):
        check_statements(node, number, {1, 2}, is_listed=False)
    next_day(monkeypatch)
    for number, node in enumerate(bucket.nodes):
        assert mirror(node) is None
        check_statements(node, number, {1, 2})
        fresh = Store.clone(
            bucket.ceph.target(bucket.prefix).address,
            bucket.folder / f"fresh-{number}",
            endpoint=bucket.ceph.target(bucket.prefix).endpoint,
        )
        for step in (3, 4):
            assert same(fresh.load(f"{node.run}@{step}"), state(step + 100 * number))


def test_a_full_bucket_is_reported_and_pushes_resume_when_its_quota_is_raised(bucket: Bucket) -> None:
    quota = ("--quota-scope=bucket", "--uid=ck")
    bucket.ceph.admin("quota", "set", *quota, "--max-size=1")
    bucket.ceph.admin("quota", "enable", *quota)
    try:
        bucket.save(5)
        for number, node in enumerate(bucket.nodes):
            bucket.wait(lambda node=node: isinstance(mirror(node), RemoteFull))  # type: ignore[misc]
            check_statements(node, number)
            status = node.mirror_status()
            assert status is not None
            assert [info.step for info in status.behind] == [5]
            assert "the bucket is full" in status.problem
            assert "raise its quota" in status.problem
            with pytest.raises(RemoteFull):
                node.push(5)
            with pytest.raises(RemoteFull):
                node.evict(3, "cold")
            assert not node.info(3).elsewhere
    finally:
        bucket.ceph.admin("quota", "disable", *quota)
    for number, node in enumerate(bucket.nodes):
        bucket.wait(lambda node=node: mirror(node) is None)  # type: ignore[misc]
        check_statements(node, number)
        status = node.mirror_status()
        assert status is not None
        assert status.ok
        assert not status.behind
    assert bucket.keys("intents/") == []


def test_an_emptied_bucket_is_reported_and_can_be_added_again(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.objects.delete(bucket.keys())
    bucket.save(5)
    for number, node in enumerate(bucket.nodes):
        assert isinstance(mirror(node), NoSuchRemote)
        check_statements(node, number, {1, 2}, is_listed=False)
    next_day(monkeypatch)
    for number, node in enumerate(bucket.nodes):
        assert isinstance(mirror(node), NoSuchRemote)
        check_statements(node, number, {1, 2})
        status = node.mirror_status()
        assert status is not None
        assert [info.step for info in status.behind] == [5, 4, 3]
        assert "ckstore remote add cold URL" in status.problem
    for number, node in enumerate(bucket.nodes):
        bucket.add(node, bucket.ceph.ports[number])  # the command of the hint
        assert mirror(node) is None
        check_statements(node, number, {1, 2})
        for step in (1, 2):  # as the hint of doctor says
            node.delete(step)
        check_statements(node, number)


def test_a_bucket_restored_from_a_backup_gets_the_later_checkpoints_again(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = {
        one["Key"]: bucket.client.get_object(Bucket=BUCKET, Key=one["Key"])["Body"].read()
        for one in bucket.client.list_objects_v2(Bucket=BUCKET, Prefix=f"{bucket.prefix}/")["Contents"]
    }
    for step in range(5, 8):
        bucket.save(step)
        for node in bucket.nodes:
            assert mirror(node) is None
    bucket.objects.delete(bucket.keys())
    for key, data in backup.items():
        bucket.client.put_object(Bucket=BUCKET, Key=key, Body=data)
    # Of 1 to 5 the bytes are there alone, and the backup has 1 to 4: 3 and 4 without a claim.
    for number, node in enumerate(bucket.nodes):
        check_statements(node, number, {5}, is_listed=False)
    assert {claim.place.step for claim in claims_at(bucket.objects)} == {1, 2}
    next_day(monkeypatch)
    for number, node in enumerate(bucket.nodes):
        assert mirror(node) is None
        check_statements(node, number, {5})
    claimed = {(claim.place.run, claim.place.step) for claim in claims_at(bucket.objects)}
    assert claimed == {(run, step) for run in "ab" for step in range(1, 5)}
    # What is claimed stays, whatever rule the other store has.
    bucket.nodes[1].config.keep_remote = RetentionPolicy(keep_last=1)
    bucket.nodes[1].remotes.prune("cold")
    for number, node in enumerate(bucket.nodes):
        check_statements(node, number, {5})
