"""The law of evictions: whatever happens at two remotes, no local operation loses bytes."""

from __future__ import annotations

import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckstore import CkstoreError, Store
from ckstore.model.digest import ALGORITHMS
from ckstore.remote import keys
from ckstore.remote.keys import Place
from ckstore.remote.pruning.keep_remote import remove_there
from ckstore.remote.pruning.prune import prune
from tests.remote.double import REMOTES, Double, new_remote
from tests.remote.test_pull import same

_NAMES = ("a", "b")
_STEPS = 3
_ACTS = st.tuples(
    st.sampled_from(["push", "evict", "evict", "pull", "remove", "prune", "harm", "heal"]),
    st.sampled_from(_NAMES),
    st.integers(0, _STEPS - 1),
    st.sampled_from(["delete", "flip", "short"]),
)


def state(step: int) -> dict[str, Any]:
    """Return a state that shares a blob with every other state."""
    return {
        "own": np.random.default_rng(step).integers(0, 255, 100_000, dtype=np.uint8),
        "base": np.random.default_rng(99).integers(0, 255, 100_000, dtype=np.uint8),
    }


class World:
    """A store with two remotes, and the bytes that may be lost because a trusted remote lost them."""

    def __init__(self, root: Path) -> None:
        self.store = Store.init(root / "store")
        # What was fetched once would hide what is lost.
        self.store.config.cache_bytes = 0
        self.remotes: dict[str, Double] = {name: new_remote(self.store.settings, name)[0] for name in _NAMES}
        self.ids = [self.store.save(state(step), step=step).id for step in range(_STEPS)]
        self.excused: set[int] = set()

    def held_by(self, name: str) -> set[int]:
        """Return the steps whose bytes only this remote has."""
        listed = [self.store.info(info) for info in self.store.checkpoints() if info.elsewhere]
        return {info.step for info in listed if name in info.remotes}

    def act(self, kind: str, name: str, step: int, how: str) -> None:
        objects = self.remotes[name]
        remote = REMOTES[name]
        if kind in {"push", "evict", "pull"}:
            try:
                getattr(self.store, kind)(step, name)
            except CkstoreError:  # such as a pull of what the remote does not have, or a push of what is elsewhere
                return
        elif kind == "remove":
            if any(key.endswith(f"{self.ids[step]}/manifest.json") for key in objects.held):
                # Nothing is excused: what the store let go of is claimed, and stays.
                remove_there(remote, [Place("main", step, self.ids[step])])
        elif kind == "prune":
            for _ in range(2):
                objects.now += timedelta(days=2)
                prune(remote, ALGORITHMS["xxh3_128"], grace_s=3600)
        elif kind == "harm":
            found = sorted(key for key in objects.held if key.startswith(keys.BLOBS))
            if found:
                # What was trusted to this remote before may be gone; what is let go from now on must not be.
                self.excused |= self.held_by(name)
                self._harm(objects, found[step % len(found)], how)
        else:
            self.store.push(all=True, remote=name) if not self.held_by("a") | self.held_by("b") else None

    @staticmethod
    def _harm(objects: Double, key: str, how: str) -> None:
        data = objects.held[key]
        if how == "delete":
            objects.delete([key])
        elif how == "short":
            objects.put(key, data[:-1])
        else:
            objects.held[key] = data[:-1] + bytes([data[-1] ^ 1])  # the service still lists the same version

    def check(self) -> None:
        listed = {info.step: info for info in self.store.checkpoints()}
        assert listed.keys() == set(range(_STEPS))
        for step in range(_STEPS):
            if step not in self.excused:
                assert same(self.store.load(step), state(step)), step
        assert self.store.verify(quick=True).ok


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(_ACTS, min_size=3, max_size=12))
def test_no_local_operation_deletes_the_last_copy(acts: list[tuple[str, str, int, str]]) -> None:
    REMOTES.clear()
    with tempfile.TemporaryDirectory(prefix="ckstore-far-", dir="/dev/shm") as root:
        world = World(Path(root))
        for act in acts:
            world.act(*act)
            world.check()


def test_the_law_detects_a_remote_that_lost_trusted_bytes(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.act("push", "a", 1, "")
    world.act("evict", "a", 1, "")
    assert world.held_by("a") == {1}
    key = next(key for key in world.remotes["a"].held if key.startswith(keys.BLOBS))
    World._harm(world.remotes["a"], key, "delete")
    with pytest.raises(CkstoreError):
        world.check()
