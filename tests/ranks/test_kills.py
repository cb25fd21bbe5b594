"""A rank is killed at every change that it makes on the filesystem, up to the publish and beyond; another try follows.

``CKSTORE_CRASH=full`` kills before each, else before some.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import Store
from tests.support.crashing import run_and_kill

LONG = os.environ.get("CKSTORE_CRASH") == "full"
MOST = 80
STATE = {"w": np.arange(300)}


def save(store: Store, attempt: str) -> Any:
    return store.save(STATE, 5, rank=0, world_size=1, attempt=attempt, timeout=60.0)


@pytest.mark.crash
def test_a_kill_while_one_publishes_leaves_all_or_nothing_and_another_try_goes_through(
    tmp_path: Path,
) -> None:
    for at in range(1, MOST, 1 if LONG else 7):
        store = Store.init(tmp_path / f"store-{at}")
        died = run_and_kill(functools.partial(save, store, "first"), at=at, before=True)

        again = Store.open(store.path)
        assert len(again.checkpoints()) <= 1
        info = save(again, "second")
        assert np.array_equal(again.load(5, rank=0)["w"], STATE["w"])
        assert [one.id for one in again.checkpoints()] == [info.id]
        again.gc()
        assert list((store.path / "staging").iterdir()) == []
        assert again.verify().ok
        if not died:
            assert at > 20
            return
    pytest.fail(f"more than {MOST} changes")
