"""A budget over many saves, with tags, pins, readers, deletes, rules and undo in between."""

from __future__ import annotations

import hashlib
import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckstore import Budget, NoSuchRef, RetentionPolicy, Store
from ckstore.objects.layout import BLOBS
from tests.support.examples import examples
from tests.support.look import directory_of
from tests.support.stores import check_store

if TYPE_CHECKING:
    from ckstore import CheckpointInfo, OpenCheckpoint

MIB = 2**20
MOST = 2_600_000
RUNS = ("run0", "run1", "run2")
RULED = "run2"


@pytest.mark.property
@settings(max_examples=examples(2))
@given(seed=st.integers(0, 2**20))
def test_a_budget_holds_over_random_saves_and_acts(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Trial(Path(folder, "store"), seed).go(25)


@pytest.mark.whole
@pytest.mark.slow
@pytest.mark.timeout(1500)  # 20 s of processor time, on a machine that other tests share
def test_a_budget_holds_over_500_random_saves_and_acts(tmp_path: Path) -> None:
    trial = Trial(tmp_path / "store", 11)

    trial.go(500)

    assert trial.happened["within the budget"] > 100
    assert min(trial.happened[act] for act in ("above it", "over budget", "by the rule", "by hand", "undone")) > 10


class Trial:
    """A store with a budget, and what must be true of it.

    Attributes:
        there: Name -> digest of all files of each checkpoint that is in the store.
        waiting: The same of those that can be brought back.
    """

    def __init__(self, root: Path, seed: int) -> None:
        self.draw = random.Random(seed)
        self.store = Store.init(root, chunk_bytes=MIB)
        self.store.config.undo_by_hand_s = 86400
        self.store.config.undo_by_rule_s = 3600
        self.store.config.budget = Budget(MOST, low_bytes=MOST * 3 // 4)
        self.store.config.retention_by_run = {RULED: RetentionPolicy(keep_last=3)}
        self.there: dict[str, str] = {}
        self.waiting: dict[str, str] = {}
        self.tags: dict[str, str] = {}
        self.pins: dict[str, str] = {}
        self.readers: dict[str, OpenCheckpoint] = {}
        self.happened: Counter[str] = Counter()

    def go(self, save_count: int) -> None:
        try:
            for step in range(save_count):
                if self.there:
                    self.draw.choice([self.tag, self.pin, self.read, self.delete, self.undo, self.undo, self.purge])()
                self.save(step)
        finally:
            for reader in self.readers.values():
                reader.close()
        assert self.store.verify().ok
        check_store(self.store.path)

    def save(self, step: int) -> None:
        run = self.draw.choice(RUNS)
        rng = np.random.default_rng(step)
        own = rng.integers(0, 255, self.draw.randrange(1, 400_000), dtype=np.uint8)
        info = self.store.save({"base": np.arange(37_500), "own": own}, step, run)
        self.there[info.name] = self.digest(info.name)
        self.look(info)

    def look(self, info: CheckpointInfo) -> None:
        """After a save: what is never dropped is there, the rest is within the budget, and what can be undone waits."""
        live = {one.name: self.digest(one.name) for one in self.store.checkpoints()}
        safe = {*self.tags.values(), *self.pins, *self.readers, *newest_of(self.there)}
        assert {name: self.there[name] for name in safe} == {name: live.get(name) for name in safe}
        assert live.items() <= self.there.items()
        above = self.used_bytes(live) > MOST
        assert not above or live.keys() == safe
        assert any("stays above its budget" in warning for warning in info.warnings) == above
        self.happened["above it" if above else "within the budget"] += 1

        gone = {name: self.there[name] for name in self.there.keys() - live.keys()}
        listed = {one.ref for one in self.store.undoable()}
        assert self.waiting.keys() <= listed <= self.waiting.keys() | gone.keys()
        by_rule = {name: digest for name, digest in gone.items() if name in listed}
        assert all(name.startswith(RULED) for name in by_rule)
        over_budget = gone.keys() - by_rule.keys()
        for name in over_budget:
            with pytest.raises(NoSuchRef):
                self.store.undo(name)
        self.happened.update({"by the rule": len(by_rule), "over budget": len(over_budget)})
        self.waiting |= by_rule
        self.there = live

    def tag(self) -> None:
        name = self.draw.choice(sorted(self.there))
        self.store.tag("good", name)
        self.tags["good"] = name

    def pin(self) -> None:
        if len(self.pins) == 3:
            self.store.unpin(self.pins.pop(self.draw.choice(sorted(self.pins))))
        elif (name := self.draw.choice(sorted(self.there))) not in self.pins:
            self.pins[name] = self.store.pin(name, reason="trial").id

    def read(self) -> None:
        if len(self.readers) == 3:
            self.readers.pop(self.draw.choice(sorted(self.readers))).close()
        elif (name := self.draw.choice(sorted(self.there))) not in self.readers:
            self.readers[name] = self.store.open_checkpoint(name)

    def delete(self) -> None:
        able = self.there.keys() - {*self.tags.values(), *self.pins, *self.readers, *newest_of(self.there)}
        if able:
            name = self.draw.choice(sorted(able))
            self.store.delete(name)
            self.waiting[name] = self.there.pop(name)
            self.happened["by hand"] += 1

    def undo(self) -> None:
        if self.waiting:
            name = self.draw.choice(sorted(self.waiting))
            self.store.undo(name)
            self.there[name] = self.waiting.pop(name)
            assert self.digest(name) == self.there[name]
            self.happened["undone"] += 1

    def purge(self) -> None:
        self.store.gc(now=True)
        for name in self.waiting:
            with pytest.raises(NoSuchRef):
                self.store.undo(name)
        self.waiting.clear()

    def digest(self, name: str) -> str:
        folder = directory_of(self.store, name)
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        found = hashlib.sha256()
        for path in paths:
            found.update(f"{path.relative_to(folder)} {path.stat().st_size}\n".encode() + path.read_bytes())
        return found.hexdigest()

    def used_bytes(self, names: dict[str, str]) -> int:
        folders = [directory_of(self.store, name) / BLOBS for name in names]
        return sum({path.name: path.stat().st_size for folder in folders for path in folder.iterdir()}.values())


def newest_of(names: dict[str, str]) -> set[str]:
    """Return the newest of each run, by step: here steps grow with each save."""
    newest: dict[str, int] = {}
    for name in names:
        run, _, step = name.partition("@")
        newest[run] = max(int(step), newest.get(run, 0))
    return {f"{run}@{step}" for run, step in newest.items()}
