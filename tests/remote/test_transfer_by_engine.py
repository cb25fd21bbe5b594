"""Push, evict, read through and pull by the engine, against a small S3 service."""

from __future__ import annotations

from pathlib import Path

from ckstore import Store
from tests.remote.test_pull import same
from tests.remote.test_push import MIB, state
from tests.support.s3_server import Service


def test_a_checkpoint_goes_to_a_service_is_let_go_and_comes_back(service: Service, tmp_path: Path) -> None:
    target = service.target("run")
    store = Store.init(tmp_path / "store", chunk_bytes=MIB)
    store.remotes.add("cloud", target.address, endpoint=target.endpoint, region=target.region)
    store.save(state(1), step=1, metrics={"loss": 1.0})
    store.tag("best", 1)
    assert store.push().moved_bytes > 3 * MIB
    assert store.push().moved_bytes == 0
    assert store.evict(1, "cloud").freed_bytes > 3 * MIB
    assert same(Store.open(store.path).load("best"), state(1))
    other = Store.init(tmp_path / "other", chunk_bytes=MIB)
    other.remotes.add("cloud", target.address, endpoint=target.endpoint, region=target.region)
    assert other.pull("best").checkpoints[0].id == store.info(1).id
    assert same(other.load(1), state(1))
    assert store.pull(1).moved_bytes > 3 * MIB
    assert not store.info(1).elsewhere
