"""A signal at any call of an act, whose handler saves to the same store, raises or exits, hangs and leaves nothing.

``CKSTORE_CRASH=full`` tries every call of ckstore and one in four of SQLite's, else a sample that is another
one for each commit; the counts are printed.
What is looked at is in `signals.py` (the process that got the signal) and `checker.py` (the store that it left).
"""

from __future__ import annotations

import sys

import pytest

from tests.faults.harness import Faults, Tally, sample, split
from tests.faults.shim import EVERY_CALL
from tests.faults.signals import HANDLERS, SIGNALLED, Handler
from tests.support.coverage import covered, sample_seed

pytestmark = pytest.mark.crash

_SAMPLE = 2
_ONE_CATALOG_CALL_IN = 4


@pytest.mark.crossed
@pytest.mark.parametrize("handler", HANDLERS)
@pytest.mark.parametrize("scenario", SIGNALLED)
def test_a_signal_at_any_call_hangs_and_leaves_nothing(
    faults: Faults, capfd: pytest.CaptureFixture[str], scenario: str, handler: Handler
) -> None:
    calls = faults.calls(scenario, EVERY_CALL)
    tally = Tally(f"{scenario} ({len(calls)} calls), a handler that is to {handler}")
    own, of_catalog = split(calls)

    seed = sample_seed()
    if seed is None:
        chosen = sorted([*own, *of_catalog[::_ONE_CATALOG_CALL_IN]])
    else:
        # The first of its own calls, too: two others may both come after the last one at which the act can be ended.
        chosen = sorted({own[0], *sample(calls, _SAMPLE, seed + HANDLERS.index(handler))})

    for at in chosen:
        tally.add(at, faults.case(scenario, "signal", at, families=EVERY_CALL, handler=handler))

    counts = {"signals": tally.points, "ended_the_act": tally.refused, "alike": tally.alike}
    line = covered("signals", tally.what, violations=len(tally.violations), seed=seed, **counts)
    with capfd.disabled():
        print(f"\n{line}", file=sys.stderr, flush=True)
    if tally.violations:
        pytest.fail("\n\n".join([str(tally), *tally.violations[:5]]), pytrace=False)
    assert tally.points > 0
    assert tally.killed == 0
    assert (tally.refused == 0) == (handler == "save")
