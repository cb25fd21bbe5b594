"""A rank of a process group that does not come, hangs, or is stopped is named, though its process is there."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from ckstore import RankFailed, Store
from tests.support.gloo import Group
from tests.support.requirements import representatives

CASES = Path(__file__).with_name("dcp_cases.py")
WAITS_S = 4
"""What the others wait, by the timeout of their group."""
LATE_S = 120.0


@pytest.mark.parametrize(
    "victim, what, said",
    representatives(
        [
            (1, "does not come", "did not arrive"),
            (2, "hangs", "has not returned from its state_dict()"),
            (0, "is stopped", "is stopped (SIGSTOP, or Ctrl-Z)"),
        ],
        (0, "is stopped", "is stopped (SIGSTOP, or Ctrl-Z)"),
    ),
)
def test_a_rank_that_is_there_and_does_not_take_part_is_named(
    warm: Path, tmp_path: Path, victim: int, what: str, said: str
) -> None:
    store = Store.init(tmp_path / "store")
    arguments = [{"store": str(store.path), "step": 2, "late_s": 0.0, "inside": True} for _ in range(3)]
    arguments[victim] |= {"late_s": LATE_S, "inside": what == "hangs"}
    group = Group(3, tmp_path, CASES, WAITS_S, warm / "python")
    try:
        group.run("save_given", store=str(store.path), step=1)
        group.ask("save_after", arguments)
        if what == "is stopped":
            group.signal(victim, signal.SIGSTOP)
        begun = time.monotonic()
        answers = [group.answer(rank) for rank in range(3) if rank != victim]
        waited_s = time.monotonic() - begun
    finally:
        group.__exit__(ValueError, None, None)

    assert [type(answer) for answer in answers] == [RankFailed, RankFailed]
    for answer in answers:
        assert f"rank {victim} ({os.uname().nodename}, process " in str(answer)
        assert said in str(answer)
        assert list(answer.causes) == [victim]
    assert waited_s < LATE_S / 2
    assert [info.step for info in store.checkpoints()] == [1]


@pytest.mark.whole  # a disk that hangs is tried with files, too: tests/ranks/test_standing_still.py
def test_a_rank_whose_disk_hangs_fails_the_save_on_all_before_the_group_is_lost(warm: Path, tmp_path: Path) -> None:
    store = Store.init(tmp_path / "store")
    with Group(2, tmp_path, CASES, WAITS_S, warm / "python") as group:
        for rank, where, said in ((1, "create_blob", "was not published"), (0, "sync_open_directory", "it is unknown")):
            hangs = {"store": str(store.path), "step": 1 + rank, "rank": rank, "where": where}
            answers = group.call("save_on_a_disk_that_hangs", **hangs)

            assert [type(answer) for answer in answers] == [RankFailed, RankFailed]
            assert all(list(answer.causes) == [rank] for answer in answers)
            assert all(said in str(answer) and "has not responded" in str(answer) for answer in answers)
        group.run("save_given", store=str(store.path), step=5)
    assert store.info(5).step == 5
