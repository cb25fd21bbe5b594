"""A process that is killed before or after any call that changes the store leaves a whole store.

``CKSTORE_CRASH=full`` kills before every call and after each of ckstore's own (after one of SQLite's is before the
next), else a sample; the counts are printed. What is looked at
afterwards is in `checker.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.faults.harness import Faults, Tally, every_point, sample, split
from tests.faults.scenarios import SCENARIOS
from tests.faults.shim import Mode
from tests.support.requirements import CRASH_FULL

pytestmark = pytest.mark.crash

_SAMPLE = {"kill-before": 20, "kill-after": 10}


@pytest.mark.parametrize("mode", ["kill-before", "kill-after"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_kill_at_any_call_leaves_a_whole_store(
    faults: Faults, whole: Callable[[Tally], None], scenario: str, mode: Mode
) -> None:
    calls = faults.calls(scenario)
    tally = Tally(f"{scenario} ({len(calls)} calls), {mode}")

    def run(at: int) -> dict[str, object]:
        return faults.case(scenario, mode, at)

    if CRASH_FULL and mode == "kill-before":
        every_point(tally, run)
    else:
        for at in split(calls)[0] if CRASH_FULL else sample(calls, _SAMPLE[mode]):
            tally.add(at, run(at))

    whole(tally)
    assert tally.killed == tally.points > 0
