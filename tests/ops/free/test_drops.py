"""What a policy drops after a save is what its whole plan drops, and costs no look at those kept for good."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckstore import RetentionPolicy, Store
from ckstore.ops.free import retain
from ckstore.ops.free.retain import plan_drops
from tests.support.checkpoint_dirs import blobs_dir
from tests.support.examples import examples
from tests.support.plans import plan_of


def state(value: int) -> dict[str, Any]:
    return {"w": np.full(10, value, dtype=np.int32)}


def damage(store: Store, step: int) -> None:
    for blob in blobs_dir(store.path, "main", step).iterdir():
        blob.unlink()


@settings(max_examples=examples(6), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(st.integers(0, 30), min_size=1, max_size=14, unique=True),
    damaged=st.sets(st.integers(0, 30), max_size=6),
    tagged=st.sets(st.integers(0, 30), max_size=2),
    last=st.none() | st.integers(1, 3),
    every=st.integers(1, 4),
    within=st.none() | st.sampled_from(["1s", "1h"]),
)
def test_it_drops_what_the_whole_plan_drops(  # noqa: PLR0917 - what is drawn
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[int],
    damaged: set[int],
    tagged: set[int],
    last: int | None,
    every: int,
    within: str | None,
) -> None:
    if os.environ.get("CKSTORE_ODD") == "clock":
        within = None  # each of the two plans is made at its own time, which jumps there
    policy = RetentionPolicy(keep_last=last, keep_every=every, keep_within=within)
    with Store.init(tmp_path_factory.mktemp("drops") / "s") as store:
        for step in steps:
            store.save(state(step), step)
        for step in tagged & set(steps):
            store.tag(f"t{step}", step)
        for step in damaged & set(steps):
            damage(store, step)

        everything = plan_of(store, policy, "main")
        made = plan_drops(store._context, policy, "main")

        assert [entry.step for entry in made.dropped] == [entry.step for entry in everything.dropped]
        assert all(entry in everything.entries for entry in made.entries)


def test_those_that_stay_for_their_step_are_not_looked_at(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in range(0, 60, 2):
        store.save(state(step), step)
    store.save(state(3), 3)
    store.save(state(60), 60)
    looked_at: list[int] = []
    whole = vars(retain)["infos"]

    def looking(*given: Any, **named: Any) -> Any:
        found = whole(*given, **named)
        looked_at.extend(info.step for info in found)
        return found

    monkeypatch.setattr(retain, "infos", looking)
    store.config.retention = RetentionPolicy(keep_last=1, keep_every=2)

    store.save(state(62), 62)

    assert 3 not in [info.step for info in store.checkpoints()]
    assert len(store.checkpoints()) == 32
    assert set(looked_at) <= {3, 54, 56, 58, 60, 62}
