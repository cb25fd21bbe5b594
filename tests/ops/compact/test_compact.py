"""Compaction of a history: what comes back, what it takes, what stays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ckstore import Store

STEPS = 12


def history(seed: int = 0, count: int = 300_000) -> Iterator[dict[str, Any]]:
    """Give the states of a run in which one in fifty of the bfloat16 weights moves a step, beside float32 masters."""
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(seed)
    master = torch.randn(count, generator=generator) * 0.02
    small = torch.randn(100, generator=generator)
    while True:
        yield {
            "master": master.clone(),
            "copy": master.to(torch.bfloat16),
            "small": small.clone(),
            "frozen": torch.arange(1000),
            "step": 1,
        }
        moved = torch.rand(count, generator=generator) < 0.02
        master = torch.where(moved, master + 1e-4 * torch.randn(count, generator=generator), master)
        small = small + 1e-3


def saved(store: Store, steps: int = STEPS, **options: Any) -> list[dict[str, Any]]:
    states = []
    for step, state in zip(range(steps), history(), strict=False):
        store.save(state, step=step, **options)
        states.append(state)
    return states


def same(one: Any, other: Any) -> bool:
    import torch

    return one.keys() == other.keys() and all(
        torch.equal(value, other[name]) if isinstance(value, torch.Tensor) else value == other[name]
        for name, value in one.items()
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.init(tmp_path / "store") as opened:
        yield opened


def test_every_checkpoint_comes_back_from_less_space(store: Store) -> None:
    states = saved(store)
    infos = store.checkpoints()
    before = store.du().disk_bytes

    report = store.compact()

    assert len(report.compacted) == STEPS - 3
    assert not report.skipped
    assert store.du().disk_bytes < before / 2.5
    assert store.checkpoints() == infos
    for step, state in enumerate(states):
        assert same(store.load(step), state), step
    assert store.verify().ok
    with Store.open(store.path) as again:
        assert same(again.load(0), states[0])
        again.reindex()
        assert again.verify().ok
