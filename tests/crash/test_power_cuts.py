"""The power goes after any step of any act: nothing acknowledged is lost, on ext4 and on XFS.

The act goes on, as far as it gets on a filesystem that is gone: whatever it acknowledges then must be there as well.
``CKSTORE_CRASH=full`` tries every step, else a sample. What is looked at afterwards is in `tests/faults/checker.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.crash.harness import KINDS, Cut, Machine, Tally, moments, steps_of
from tests.crash.scenarios import CHANGING
from tests.support.requirements import CRASH_FULL
from tests.support.volume import Kind

pytestmark = [pytest.mark.crash, pytest.mark.root]

_SHORT = (("deduplicated_save", "ext4"), ("replace", "xfs"), ("compact", "xfs"), ("undo", "ext4"))
_SHORT_CUTS = 2
_MOMENTS = 6
_ONE_CATALOG_CALL_IN = 16
_LONG = [(scenario, kind) for scenario in CHANGING for kind in KINDS]


@pytest.mark.parametrize("scenario, kind", _LONG if CRASH_FULL else _SHORT)
def test_a_power_cut_at_any_step_loses_nothing(
    machine: Machine, whole: Callable[[Tally], None], seed: int, scenario: str, kind: Kind
) -> None:
    drawn = random.Random(f"{seed} {scenario} {kind}")
    calls, took_s = machine.calls(kind, scenario)
    steps = [Cut(flush_log, at) for at in steps_of(calls, _ONE_CATALOG_CALL_IN) for flush_log in (False, True)]
    sudden = [*moments(drawn, took_s, _MOMENTS)]
    if not CRASH_FULL:
        steps, sudden = drawn.sample(steps, _SHORT_CUTS), sudden[:1]
    tally = Tally("power cuts", f"{scenario} on {kind}")

    for cut in [*steps, *sudden]:
        answer = machine.cut(kind, scenario, cut)
        # An act whose threads take another order may be over before that call.
        was_cut = cut.after_s is not None or answer["hits"] > 0
        outcome = "died" if answer.get("died") else "reported" if answer["error"] else "acknowledged"
        tally.add(cut, answer, *(["cuts", outcome] if was_cut else ["not_reached"]))

    whole(tally)
    assert tally.counts["cuts"] >= len(steps) // 2
