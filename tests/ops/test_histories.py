"""Any history of saves, deletes, reopenings and crashes, against a plain dict."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from ckstore import Store
from ckstore.errors import StepExists
from ckstore.ops.free import reclaim
from tests.support.coverage import covered, lane_seed
from tests.support.crashing import run_and_kill
from tests.support.memory import memory_folder
from tests.support.requirements import CRASH_FULL
from tests.support.stores import check_links, check_store, references_of_manifests

# Crashes of processes need no disk, and on tmpfs a history takes a third of the time.
_FOLDER = memory_folder()
RUNS = st.sampled_from(["main", "b"])
STEPS = st.integers(0, 4)
BIG = st.integers(0, 3)
SMALL = st.lists(st.integers(0, 5), max_size=4)
PICK = st.integers(0, 20)
IF_EXISTS = st.sampled_from(["error", "replace", "keep"])
MIB = 2**20
_BIG = [np.random.default_rng(seed).integers(0, 256, MIB + 10, dtype=np.uint8) for seed in range(4)]

State = tuple[int, tuple[int, ...]]


def state_of(what: State) -> dict[str, Any]:
    big, small = what
    return {"big": _BIG[big], "small": [np.full(50 + value, value, dtype=np.int16) for value in small]}


def same(loaded: Any, what: State) -> bool:
    wanted = state_of(what)
    return np.array_equal(loaded["big"], wanted["big"]) and all(
        np.array_equal(one, other) for one, other in zip(loaded["small"], wanted["small"], strict=True)
    )


class Histories(RuleBasedStateMachine):
    @initialize()
    def make(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ckstore-history-", dir=_FOLDER))
        self.root = self.folder / "store"
        self.store = Store.init(self.root, chunk_bytes=MIB)
        self.model: dict[tuple[str, int], State] = {}

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            try:
                Store.open(self.root)
                check_store(self.root)
            finally:
                shutil.rmtree(self.folder)

    @rule(run=RUNS, step=STEPS, big=BIG, small=SMALL, if_exists=IF_EXISTS)
    def save(self, run: str, step: int, big: int, small: list[int], if_exists: Any) -> None:
        what = (big, tuple(small))
        there = self.model.get((run, step))
        if there not in (None, what) and if_exists == "error":
            with pytest.raises(StepExists):
                self.store.save(state_of(what), step, run)
            return
        info = self.store.save(state_of(what), step, run, if_exists=if_exists)
        assert info.catalogued
        if there is None or if_exists == "replace":
            self.model[run, step] = what

    @rule(run=RUNS, big=BIG, small=SMALL)
    def save_next(self, run: str, big: int, small: list[int]) -> None:
        info = self.store.save(state_of((big, tuple(small))), run=run)
        assert info.step == max((step for name, step in self.model if name == run), default=-1) + 1
        self.model[run, info.step] = (big, tuple(small))
        latest = self.store.latest(run)
        assert latest is not None
        assert latest.name == info.name

    @rule(pick=PICK)
    def delete(self, pick: int) -> None:
        if not self.model:
            return
        run, step = self._picked(pick)
        self.store.delete(f"{run}@{step}")
        del self.model[run, step]

    @rule()
    def reopen(self) -> None:
        self.store = Store.open(self.root)
        check_store(self.root)

    @rule(held=st.booleans(), pick=PICK)
    def gc(self, held: bool, pick: int) -> None:
        blobs = sorted((self.root / "blobs").rglob("xxh3-*"))
        with blobs[pick % len(blobs)].open("rb") if held and blobs else nullcontext() as file:
            report = self.store.gc()
            assert file is None or os.stat(file.fileno()).st_nlink > 0
            assert len(report.held) <= int(held)
        left = {path.name for path in (self.root / "blobs").rglob("xxh3-*")}
        assert left <= set(references_of_manifests(self.root)) | {one.digest for one in report.held}
        assert os.listdir(self.root / "trash") == []

    @rule(at=st.integers(1, 20), before=st.booleans())
    def crash_in_gc(self, at: int, before: bool) -> None:
        run_and_kill(self.store.gc, at=at, before=before)

    @rule(pick=PICK)
    def drop_without_giving_back(self, pick: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reclaim, "free_unused", lambda *_: None)
            self.delete(pick)

    @rule(  # after the crash the store is opened again, or a process that had it open all the time runs gc
        run=RUNS,
        step=STEPS,
        big=BIG,
        small=SMALL,
        if_exists=IF_EXISTS,
        at=st.integers(1, 30),
        before=st.booleans(),
        afresh=st.booleans(),
    )
    def crash_in_save(  # noqa: PLR0917
        self, run: str, step: int, big: int, small: list[int], if_exists: Any, at: int, before: bool, afresh: bool
    ) -> None:
        what = (big, tuple(small))
        run_and_kill(lambda: self.store.save(state_of(what), step, run, if_exists=if_exists), at=at, before=before)
        if afresh:
            self.store = Store.open(self.root)
        else:
            self.gc(held=False, pick=0)
        self._accept(run, step, what)

    @rule(pick=PICK, at=st.integers(1, 12), before=st.booleans())
    def crash_in_delete(self, pick: int, at: int, before: bool) -> None:
        if not self.model:
            return
        run, step = self._picked(pick)
        run_and_kill(lambda: self.store.delete(f"{run}@{step}"), at=at, before=before)
        self.store = Store.open(self.root)
        self._accept(run, step, None)

    def _picked(self, pick: int) -> tuple[str, int]:
        # What is drawn must not depend on the model: whether a cut call happened varies with the order of threads.
        return sorted(self.model)[pick % len(self.model)]

    def _accept(self, run: str, step: int, what: State | None) -> None:
        """A call that was cut happened or did not; both are right, anything else is not."""
        there = [info for info in self.store.checkpoints() if (info.run, info.step) == (run, step)]
        before = self.model.get((run, step))
        if not there:
            assert before is None or what is None
            self.model.pop((run, step), None)
            return
        loaded = self.store.load(there[0])
        if what is not None and same_shape(loaded, what) and same(loaded, what):
            self.model[run, step] = what
        else:
            assert before is not None
            assert same(loaded, before)

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "model"):
            return
        check_links(self.root)
        infos = self.store.checkpoints()
        assert {(info.run, info.step) for info in infos} == set(self.model)
        sequences = [info.sequence for info in infos]
        assert sequences == sorted(set(sequences))

    @rule(pick=PICK)
    def load(self, pick: int) -> None:
        if not self.model:
            return
        run, step = self._picked(pick)
        assert same(self.store.load(f"{run}@{step}"), self.model[run, step])


def same_shape(loaded: Any, what: State) -> bool:
    return len(loaded["small"]) == len(what[1])


@pytest.mark.property
@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.parametrize("part", range(4 if CRASH_FULL else 2))
def test_any_history_leaves_what_a_dict_would_and_counts_that_agree(
    part: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """Histories of 30 steps: 4 in two parts, or in full 200 in four; each part draws others."""
    count = 50 if CRASH_FULL else 2
    profile = settings(
        max_examples=count,
        stateful_step_count=30,
        deadline=None,
        derandomize=False,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    drawn = lane_seed() + part
    machine = seed(drawn)(Histories)
    run_state_machine_as_test(machine, settings=profile)
    with capfd.disabled():
        print("\n" + covered("histories", f"part {part}", seed=drawn, histories=count))
