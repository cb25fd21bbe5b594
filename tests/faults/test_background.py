"""Whatever call of a saver kills it or fails: what the trainer is told is so, and the next save works.

``CKSTORE_CRASH=full`` tries every call, else a sample that is another one for each commit; the counts are printed.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.faults.background import Prepared, case
from tests.faults.harness import Tally, Whole, sample, split
from tests.faults.shim import Family, Fault, Mode
from tests.faults.test_single_failures import WAYS
from tests.support.coverage import sample_seed
from tests.support.memory import memory_folder
from tests.support.requirements import CRASH_FULL, representatives

pytestmark = [pytest.mark.crash, pytest.mark.timeout(3600 if CRASH_FULL else 900)]

_KILLS: tuple[tuple[Mode, bool, int], ...] = (
    ("kill-before", False, 1),
    ("kill-after", False, 1),
    ("kill-before", True, 1),
    ("kill-after", True, 1),
)
_SHORT = {"changing": 1, "disk gone": 1}


@pytest.fixture(scope="module")
def prepared() -> Iterator[Prepared]:
    with tempfile.TemporaryDirectory(prefix="ckstore-faults-", dir=memory_folder()) as folder:
        (Path(folder) / "prepared").mkdir()
        yield Prepared.made(Path(folder) / "prepared")


@cache
def calls_of(prepared: Prepared, families: Family) -> list[str]:
    counted = case(prepared, Fault("count", 0, families=families), both=False)
    assert not counted["violations"], counted
    calls: list[str] = counted["calls"]
    return calls


@pytest.mark.parametrize("mode, both, wanted", representatives(_KILLS, _KILLS[0], _KILLS[3]))
def test_a_saver_that_is_killed_at_any_call_does_no_harm(
    prepared: Prepared, whole: Whole, mode: Mode, both: bool, wanted: int
) -> None:
    calls, seed = calls_of(prepared, Family.MUTATING), sample_seed()
    tally = Tally(f"save_async ({len(calls)} calls), {mode}{' in both savers' if both else ''}")
    number = _KILLS.index((mode, both, wanted))
    drawn = [*(split(calls)[0] if seed is None else sample(calls, wanted, seed + number))]
    for at in drawn:
        tally.add(at, case(prepared, Fault(mode, at), both=both))
    if not tally.points:  # the saver that was counted was slow, and so made more calls than this one
        tally.add(drawn[0] // 2, case(prepared, Fault(mode, drawn[0] // 2), both=both))
    whole(tally, seed)
    assert tally.killed == tally.points > 0


def test_two_savers_that_are_killed_when_it_is_published_leave_what_is_unknown(
    prepared: Prepared,
) -> None:
    # Only calls that change names are counted: a slow saver opens the catalog once more, which shifts the other counts.
    lines = calls_of(prepared, Family.NAME)
    at = next(int(line.split()[0]) for line in lines if re.search(r" checkpoints/main/2(\.[0-9a-f.]+)?$", line))
    answer = case(prepared, Fault("kill-after", at, families=Family.NAME), both=True)
    assert answer["violations"] == []
    assert answer["error"].startswith("UnknownOutcome")


@pytest.mark.parametrize("way", WAYS if sample_seed() is None else _SHORT)
def test_a_call_of_a_saver_that_fails_does_no_harm(prepared: Prepared, whole: Whole, way: str) -> None:
    how, seed = WAYS[way], sample_seed()
    calls = calls_of(prepared, how.families)
    tally = Tally(f"save_async ({len(calls)} calls), {way}")
    for at in split(calls)[0][:: how.one_in] if seed is None else sample(calls, _SHORT[way], seed):
        error = how.errors[(at + (seed or 0)) % len(how.errors)]
        fault = Fault(how.mode, at, error, sticky=how.sticky, families=how.families)
        tally.add(at, case(prepared, fault, both=True))
    whole(tally, seed)
    assert tally.refused + tally.survived == tally.points
