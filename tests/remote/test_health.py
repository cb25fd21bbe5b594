"""The health found by a save is in the manifest, so that remotes, clones and pulls also have it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ckstore import NoSuchRef, Store
from tests.support.stores import check_store


def save(store: Store, step: int, *, sick: bool) -> None:
    w = torch.full((1000,), float(step))
    if sick:
        w[7] = float("nan")
    store.save({"w": w}, step=step, metrics={"loss": 1.0 / step})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store.init(tmp_path / "store")
    for step in range(1, 5):
        save(made, step, sick=step > 2)
    return made


def test_clones_and_pulled_checkpoints_have_the_health_of_the_store(store: Store, tmp_path: Path) -> None:
    store.remotes.add("disk", tmp_path / "remote")
    store.push(all=True)

    clone = Store.clone(tmp_path / "remote", tmp_path / "clone")
    other = Store.init(tmp_path / "other")
    other.remotes.add("disk", tmp_path / "remote")
    other.pull(remote="disk", ref="latest-healthy")

    assert [info.unhealthy for info in clone.checkpoints()] == [info.unhealthy for info in store.checkpoints()]
    assert clone.info("latest-healthy").step == clone.info("best:loss").step == 2
    assert torch.equal(clone.load("latest-healthy")["w"], torch.full((1000,), 2.0))
    assert [info.step for info in other.checkpoints()] == [2]
    for one in (clone, other):
        with one.open_checkpoint(2) as checkpoint:
            assert checkpoint.health is not None
    clone.save({"w": torch.full((1000,), float("inf"))}, step=5)  # usual to no parent
    check_store(other.path)


def test_a_remote_without_a_healthy_checkpoint_is_reported(store: Store, tmp_path: Path) -> None:
    for step in (1, 2):
        store.delete(step)
    store.remotes.add("disk", tmp_path / "remote")
    store.push(all=True)
    other = Store.init(tmp_path / "other")
    other.remotes.add("disk", tmp_path / "remote")

    with pytest.raises(NoSuchRef, match=r"every checkpoint at disk is skipped, such as .* .unhealthy, since "):
        other.pull(remote="disk", ref="latest-healthy")
