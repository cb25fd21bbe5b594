"""A run is followed at a remote, and a remote is opened by its URL."""

from __future__ import annotations

import atexit
import os
import shutil
import threading
from pathlib import Path

import pytest

from ckstore import BadInput, CkstoreWarning, NoSuchRemote, SaveFailed, Store
from tests.remote.test_pull import same
from tests.remote.test_push import MIB, state
from tests.support.s3_proxy import Proxy
from tests.support.s3_server import Service


@pytest.fixture
def store(service: Service, tmp_path: Path) -> Store:
    made = Store.init(tmp_path / "store", chunk_bytes=MIB)
    target = service.target("run")
    made.remotes.add("cloud", target.address, endpoint=target.endpoint, region=target.region)
    made.save(state(1), step=1)
    made.push()
    return made


def test_following_a_run_at_a_remote_costs_one_request_per_poll(
    store: Store, service: Service, proxy: Proxy, tmp_path: Path
) -> None:
    target = service.target("run", proxy.port)
    other = Store.clone(target.address, tmp_path / "other", endpoint=target.endpoint, region=target.region)
    with other.follow("main", remote="origin", poll_s=0.01, timeout_s=30) as follower:
        first = next(follower)
        report = other.load_into(after := state(9), first)
        proxy.seen.clear()
        timer = threading.Timer(2.5, lambda: (store.save({**state(1), "new": 1}, step=2), store.push()))
        timer.start()
        second = next(follower)
        looks = [line for line in proxy.seen if "list-type=2" in line]

    assert (first.step, second.step) == (1, 2)
    assert len(looks) >= 2
    # The first request of anything else comes with the checkpoint that is new.
    begun = next(at for at, line in enumerate(proxy.seen) if "list-type=2" not in line)
    assert begun >= 2
    other.load_into({**after, "new": 0}, second, since=report)
    assert same(other.load(2), {**state(1), "new": 1})


def test_a_temporary_failure_of_the_remote_does_not_end_a_follower(
    store: Store, service: Service, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ckstore import RemoteUnavailable
    from ckstore.remote.source import ObjectSource

    target = service.target("run", proxy.port)
    other = Store.clone(target.address, tmp_path / "other", endpoint=target.endpoint, region=target.region)
    store.save(state(2), step=2)
    store.push()
    failures = [RemoteUnavailable("no route")]
    real = ObjectSource.places

    def places(self: ObjectSource, under: str = "") -> object:
        if failures:
            raise failures.pop()
        return real(self, under)

    monkeypatch.setattr(ObjectSource, "places", places)
    with pytest.warns(CkstoreWarning, match="no route"), other.follow("main", remote="origin", poll_s=0.01) as found:
        assert [next(found).step, next(found).step] == [1, 2]


def test_a_remote_can_be_read_by_its_url(store: Store, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    target = service.target("run")
    monkeypatch.setenv("AWS_ENDPOINT_URL", target.endpoint)
    there = Store.open(target.address)

    assert [info.step for info in there.checkpoints()] == [1]
    assert same(there.load("latest"), state(1))
    with pytest.raises(SaveFailed, match="read"):
        there.save(state(3))
    follower = there.follow(poll_s=0.01, timeout_s=30)
    assert next(follower).step == 1
    store.save(state(2), step=2)
    store.push()
    assert next(follower).step == 2
    assert same(there.load(2), state(2))
    assert there.diff(1, 2).changed
    follower.close()
    store.save(state(3), step=3)
    store.push()
    assert there.info("latest").step == 2  # only `follow` asks the remote
    assert [info.step for info in there.follow("main", timeout_s=0)] == [1, 2, 3]
    assert there.info("latest").step == 3
    folder = there.path.parent
    child = os.fork()
    if not child:
        atexit._run_exitfuncs()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert there.info(2).step == 2
    del there, follower
    import gc

    gc.collect()
    assert not folder.exists()


def test_a_poll_interval_of_zero_is_refused(store: Store) -> None:
    with pytest.raises(BadInput, match="poll_s"):
        store.follow(remote="cloud", poll_s=0)


def test_following_a_remote_that_was_emptied_fails(tmp_path: Path) -> None:
    store = Store.init(tmp_path / "store", chunk_bytes=MIB)
    store.remotes.add("cold", tmp_path / "cold")
    store.save(state(1), step=1)
    store.push()
    other = Store.clone(tmp_path / "cold", tmp_path / "other")
    with other.follow("main", remote="origin", poll_s=0.01, timeout_s=3) as follower:
        assert next(follower).step == 1
        for path in (tmp_path / "cold").iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        with pytest.raises(NoSuchRemote, match=r"no remote at origin: remote.json is missing"):
            next(follower)
    with pytest.raises(NoSuchRemote):
        other.follow("main", remote="origin", timeout_s=30)
