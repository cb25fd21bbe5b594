"""A loop that goes back to an older checkpoint and on from there: each recipe, with states and with files."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import CheckpointInfo, Store
from ckstore.errors import StepExists
from tests.support.look import files_of

Saving = Callable[[Store, np.ndarray, int, dict[str, Any]], CheckpointInfo]
LAST = 6


def save(store: Store, w: np.ndarray, step: int, how: dict[str, Any]) -> CheckpointInfo:
    info: CheckpointInfo = store.save({"w": w, "step": step}, step, **how)
    return info


def save_async(store: Store, w: np.ndarray, step: int, how: dict[str, Any]) -> CheckpointInfo:
    return store.save_async({"w": w, "step": step}, step, **how).result(120)


def commit(store: Store, w: np.ndarray, step: int, how: dict[str, Any]) -> CheckpointInfo:
    folder = store.path.parent / f"checkpoint-{step}"
    folder.mkdir(exist_ok=True)
    np.save(folder / "w.npy", w)
    (folder / "step").write_text(str(step), encoding="utf-8")
    info: CheckpointInfo = store.commit(folder, **how)
    return info


def held(store: Store, ref: str | CheckpointInfo) -> tuple[float, int]:
    """Return what the checkpoint has, of either kind: the first weight and the step."""
    info = store.info(ref)
    if not files_of(store, info):
        state = store.load(info)
        return float(state["w"][0]), state["step"]
    with tempfile.TemporaryDirectory() as out:
        store.checkout(info, out)
        return float(np.load(Path(out, "w.npy"))[0]), int(Path(out, "step").read_text("utf-8"))


def train(store: Store, saving: Saving, first: int, way: float, **how: Any) -> list[CheckpointInfo]:
    """Run a loop from a step to the last, whose weights are those of the step before and the rate of this way."""
    before, _ = held(store, "latest") if store.latest() else (0.0, 0)
    made = []
    for step in range(first, LAST + 1):
        before += way
        made.append(saving(store, np.full(1000, before), step, how))
    return made


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.init(tmp_path / "s", run="gpt")


@pytest.mark.parametrize("saving", [save, save_async, commit])
def test_a_loop_that_went_back_replaces_its_steps_and_what_it_saved_is_the_newest(saving: Saving, store: Store) -> None:
    train(store, saving, 1, 1.0)

    weight, step = held(store, "3")
    with pytest.raises(StepExists, match="run gpt has another checkpoint at step 4") as refused:
        saving(store, np.full(1000, weight + 0.5), step + 1, {})
    assert held(store, "latest") == (6.0, 6)
    for at in (4, 5):
        weight += 0.5
        info = saving(store, np.full(1000, weight), at, {"if_exists": "replace"})
        assert store.latest() == info
        assert held(store, "latest-valid") == (weight, at)

    assert "replace" in str(refused.value.hint)
    assert [held(store, str(at)) for at in range(1, 7)] == [(1, 1), (2, 2), (3, 3), (3.5, 4), (4, 5), (6, 6)]
    assert [info.step for info in store.checkpoints()] == [1, 2, 3, 6, 4, 5]  # in the order of saving
    assert store.verify().ok


@pytest.mark.parametrize("saving", [save, save_async, commit])
def test_a_second_way_in_a_run_of_its_own_leaves_the_first_as_it_was(saving: Saving, store: Store) -> None:
    first = train(store, saving, 1, 1.0)

    branch = Store.open(store.path, run="gpt-low-lr")
    weight, _ = held(branch, "gpt@3")
    made = [saving(branch, np.full(1000, weight + 0.5), 4, {"parent": "gpt@3"})]
    made += train(branch, saving, 5, 0.5)

    assert made[0].parent == store.info(3).id
    assert [one.parent for one in made[1:]] == [one.id for one in made[:-1]]
    assert branch.latest() == made[-1]
    assert held(branch, "latest") == (4.5, 6)
    assert store.latest() == first[-1]
    assert held(store, "latest") == (6.0, 6)
