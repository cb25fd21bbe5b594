"""A bucket of the Hub: its gateway answers reads with the URL of another host, and has the namespace in its path.

The habits are those of its documentation (huggingface/hub-docs 3f1c1bef, docs/hub/storage-buckets-s3.md).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from ckstore import Store
from ckstore.remote.service import target
from tests.support.s3_server import BUCKET, Habits, Service, s3_service
from tests.support.stores import check_store


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """A gateway; no header with credentials may reach the host to which it redirects."""
    with s3_service(Habits(namespace="org", redirects=True)) as service:
        monkeypatch.setattr(target, "HUB_ENDPOINT", f"http://127.0.0.1:{service.port}")
        yield service
        assert service.exposed == []


URL = f"hf://buckets/org/{BUCKET}/gpt"


def state(step: int) -> dict[str, np.ndarray]:
    """A state with a part that never changes."""
    return {"frozen": np.arange(200_000), "w": np.full(50_000, step, np.float32)}


def same(store: Store, step: int) -> bool:
    """Whether a step loads as it was saved."""
    loaded = store.load(f"gpt@{step}")
    return all(np.array_equal(loaded[name], value) for name, value in state(step).items())


def test_push_pull_evict_follow_and_prune(hub: Service, tmp_path: Path) -> None:
    store = Store.init(tmp_path / "store", run="gpt")
    store.remotes.add("hub", URL)
    for step in (1, 2, 3):
        store.push(store.save(state(step), step), "hub")
    store.tag("best", 2)
    store.push("best", "hub")

    other = Store.init(tmp_path / "other")
    other.remotes.add("hub", URL)
    other.pull("gpt@3", "hub")
    assert same(other, 3)
    assert hub.followed > 0

    store.evict(1)
    assert store.info(1).elsewhere
    assert same(store, 1)
    assert store.remotes.verify("hub").ok

    with Store.open(URL) as reader:
        seen = [info.step for info in reader.follow("gpt", timeout_s=0)]
        assert seen == [1, 2, 3]
        assert same(reader, 2)

    # Another program removes a checkpoint in the bucket. Its blobs are marked, and go by a later prune.
    del hub.objects[next(key for key in hub.objects if key.startswith("gpt/checkpoints/gpt/3"))]
    for key, (body, tag, when) in [*hub.objects.items()]:
        hub.objects[key] = body, tag, when - timedelta(days=9)
    assert store.remotes.prune("hub").condemned_count > 0
    assert same(store, 1)
    for each in (store, other):
        check_store(each.path)


def test_a_mirror_and_a_clone(hub: Service, tmp_path: Path) -> None:
    store = Store.init(tmp_path / "store", run="gpt")
    store.remotes.add("hub", URL)
    store.config.mirror = "hub"
    for step in (1, 2):
        store.save(state(step), step)
    until_s = time.monotonic() + 60
    while (status := store.mirror_status()) is None or status.behind:
        assert time.monotonic() < until_s, status
        time.sleep(0.05)
    clone = Store.clone(URL, tmp_path / "clone")
    assert same(clone, 2)
    check_store(clone.path)
    check_store(store.path)
