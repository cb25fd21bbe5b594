"""The memory of a snapshot is that of the trainer: a saver gives it back with each save."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ckstore import Store
from tests.saver.conftest import DEADLINE_S, wait_for


def test_a_saver_keeps_no_snapshot(store: Store) -> None:
    for n in range(5):  # each is larger, so each has a snapshot of its own
        state = {"large": np.full(700_000 * (n + 1), n, np.float32), "small": [np.full(5, n)], "long": "x" * 5000}
        store.save_async(state).result(DEADLINE_S)

    maps = Path(f"/proc/{store._client().pid()}/maps")
    wait_for(lambda: "ckstore-snapshot" not in maps.read_text(), "the saver has no snapshot mapped")
