"""Rounds of saves from a process group in which a rank is late, means another step, cannot store its state, or dies.

Each step is complete and visible once, or absent with an error that names the rank, and no round trips over what an
earlier one left. There is no duplicate rank: the group numbers its processes. ``CKSTORE_CRASH=full``: 200 rounds of 8.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
import torch

from ckstore import RankFailed, RankMismatch, Store
from tests.integrations.dcp_cases import whole
from tests.support.gloo import Group

CASES = Path(__file__).with_name("dcp_cases.py")
LONG = os.environ.get("CKSTORE_CRASH") == "full"
ROUNDS, RANKS = (200, 8) if LONG else (6, 2)
DEAD_EVERY = 10 if LONG else ROUNDS
"""After a death all processes start again, which takes seconds."""
WAITS_S = 60
"""A rank that waits for one which has given up already learns of it by this."""


@pytest.mark.crash
@pytest.mark.whole  # rounds without a process group are in tests/ranks, and each fault alone in test_dcp
@pytest.mark.timeout(7200 if LONG else 300)
def test_each_round_is_complete_or_absent_with_the_rank_named(tmp_path: Path) -> None:
    store = Store.init(tmp_path / "store")
    seed = int(os.environ.get("CKSTORE_CRASH_SEED", "27"))
    draw = random.Random(seed)
    group = Group(RANKS, tmp_path, CASES, WAITS_S)
    try:
        for step in range(1, ROUNDS + 1):
            what = "dead" if step % DEAD_EVERY == 0 else draw.choice(["all", "late", "late", "another step", "bad"])
            play(group, store, step, what, draw)
            if what == "dead" and step < ROUNDS:
                group.__exit__(ValueError, None, None)
                group = Group(RANKS, tmp_path, CASES, WAITS_S)
    finally:
        group.__exit__(ValueError, None, None)
    opened = Store.open(store.path)
    assert opened.verify().ok
    opened.gc()
    assert list((store.path / "staging").iterdir()) == []


def play(group: Group, store: Store, step: int, what: str, draw: random.Random) -> None:
    victim, moment_s = draw.randrange(RANKS), draw.random() / 5
    arguments = [{"store": str(store.path), "step": step} for _ in range(RANKS)]

    def kill() -> None:
        time.sleep(moment_s)
        group.kill(victim)

    if what == "late":
        arguments[victim]["late_s"] = moment_s
    if what == "another step":
        arguments[victim]["step"] = step + 1000
    if what == "bad":
        arguments[victim]["bad"] = True
    answers = group.call_each("save_late", arguments, kill if what == "dead" else lambda: None)

    said = (step, what, victim, *(f"{answer!r}\n{notes_of(answer)}" for answer in answers))
    there = {info.step: info.id for info in store.checkpoints()}
    assert step + 1000 not in there, said
    told = [answer for rank, answer in enumerate(answers) if what != "dead" or rank != victim]
    if step in there:
        assert what in ("all", "late", "dead"), said
        loaded = store.load(step)
        assert torch.equal(loaded["w"], whole("odd") + step), said
        assert torch.equal(loaded["same"], whole("wide")), said
        assert loaded["step"] == step, said
    if what in ("all", "late"):
        assert told == [there[step]] * RANKS, said
    elif what == "another step":
        assert {type(answer) for answer in told} == {RankMismatch}, said
        assert all(f"rank {victim}" in str(answer) for answer in told), said
    elif what == "bad":
        assert {type(answer) for answer in told} == {RankFailed}, said
        assert all(list(answer.causes) == [victim] for answer in told), said
    else:
        for answer in told:
            is_lost = isinstance(answer, RankFailed) and f"rank {victim}" in str(answer)
            assert is_lost or answer == there.get(step), said


def notes_of(answer: object) -> str:
    """Return where an error was raised in the process that raised it."""
    return "".join(getattr(answer, "__notes__", ()))
