"""Push, evict, read and pull by the engine, against a small S3 service."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ckstore import Store
from ckstore.remote.service.target import Target
from tests.remote.test_pull import same
from tests.remote.test_push import MIB, state
from tests.support.requirements import representatives
from tests.support.s3_proxy import Fault, Proxy
from tests.support.s3_server import Service

# 0.3 s are promised; the rest is for a machine with other work. Without it they would stand still for 30 s or more.
_ENDED_S = 20.0


def test_a_checkpoint_is_pushed_evicted_and_pulled(service: Service, tmp_path: Path) -> None:
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


def _interrupted(act: Callable[..., object], proxy: Proxy, fault: Fault, of: str, **options: object) -> float:
    """Send Ctrl-C during a stalled transfer; return how long the transfer continued."""
    asked = proxy.interrupt(fault, of)
    with pytest.raises(KeyboardInterrupt):
        act(all=True, **options)
    return time.monotonic() - asked[0]


@pytest.mark.parametrize("still", representatives(["blobs/", "intents/", "manifest.json", ""], "blobs/", ""))
def test_ctrl_c_ends_a_push_with_stalled_requests(through: Target, proxy: Proxy, tmp_path: Path, still: str) -> None:
    store = Store.init(tmp_path / "store", chunk_bytes=MIB)
    store.remotes.add("cloud", through.address, endpoint=through.endpoint, region=through.region)
    store.save(state(1), step=1)

    assert _interrupted(store.push, proxy, "stall", still) < _ENDED_S
    proxy.always("")
    store.push(all=True)
    # Not that it was new: the request whose answer was not waited for may have arrived.
    assert store.push(all=True, dry_run=True).new == ()


@pytest.mark.parametrize("still", representatives(["blobs/", "manifest.json"], "blobs/"))
def test_ctrl_c_ends_a_pull_with_stalled_requests(through: Target, proxy: Proxy, tmp_path: Path, still: str) -> None:
    store, other = (Store.init(tmp_path / name, chunk_bytes=MIB) for name in ("store", "other"))
    for one in (store, other):
        one.remotes.add("cloud", through.address, endpoint=through.endpoint, region=through.region)
    store.save(state(1), step=1)
    store.push()

    assert _interrupted(other.pull, proxy, "stall", still) < _ENDED_S
    proxy.always("")
    assert other.pull(all=True).new_count == 1


def test_ctrl_c_ends_the_wait_for_a_limited_rate(through: Target, proxy: Proxy, tmp_path: Path) -> None:
    store = Store.init(tmp_path / "store", chunk_bytes=MIB)
    store.remotes.add("cloud", through.address, endpoint=through.endpoint, region=through.region)
    store.save(state(1), step=1)

    assert _interrupted(store.push, proxy, "", "", bwlimit=MIB // 100) < _ENDED_S
