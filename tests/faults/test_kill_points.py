"""A process that is killed before or after any call that changes the store leaves a whole store.

``CKSTORE_CRASH=full`` kills before every call and after each of ckstore's own (after one of SQLite's is before the
next), else half of the scenarios, each in one way, at a sample that is another one for each commit; the counts are
printed. What is looked at afterwards is in `checker.py`.
"""

from __future__ import annotations

import pytest

from tests.faults.harness import Faults, Tally, Whole, every_point, sample, split
from tests.faults.scenarios import SCENARIOS
from tests.faults.shim import Mode
from tests.support.coverage import drawn, sample_seed

pytestmark = pytest.mark.crash

_SAMPLE = 2


@pytest.mark.crossed
@pytest.mark.parametrize("mode", ["kill-before", "kill-after"])
@pytest.mark.parametrize("scenario", drawn(SCENARIOS, 2))
def test_a_kill_at_any_call_leaves_a_whole_store(faults: Faults, whole: Whole, scenario: str, mode: Mode) -> None:
    calls = faults.calls(scenario)
    tally = Tally(f"{scenario} ({len(calls)} calls), {mode}")

    def run(at: int) -> dict[str, object]:
        return faults.case(scenario, mode, at)

    seed = sample_seed()
    if seed is None and mode == "kill-before":
        every_point(tally, run)
    else:
        for at in split(calls)[0] if seed is None else sample(calls, _SAMPLE, seed + (mode == "kill-after")):
            tally.add(at, run(at))

    whole(tally, seed)
    assert tally.killed == tally.points > 0
