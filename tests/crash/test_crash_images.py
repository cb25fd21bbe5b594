"""Whatever a disk may hold after a power cut is a whole store: every order of its writes that the flushes allow.

The writes are those of a real filesystem to a disk that logs them. ``CKSTORE_CRASH=full`` tries thousands of images,
else a sample; which ones is told in `images.py`, what is looked at in `tests/faults/checker.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.crash.harness import KINDS, Machine, Tally
from tests.crash.images import choose
from tests.crash.scenarios import CHANGING
from tests.support.requirements import CRASH_FULL
from tests.support.volume import Kind

pytestmark = [pytest.mark.crash, pytest.mark.root]

_HISTORIES = 4
_WANTED = 70
_WANTED_OF_A_HISTORY = 280
_SHORT = (("deduplicated_save", "xfs"), ("gc", "ext4"))
_SHORT_IMAGES = 4
_NAMES = [*CHANGING, *(f"history {number}" for number in range(_HISTORIES))]
_LONG = [(scenario, kind) for scenario in _NAMES for kind in KINDS]


@pytest.mark.parametrize("scenario, kind", _LONG if CRASH_FULL else _SHORT)
def test_any_order_of_writes_that_the_flushes_allow_is_a_whole_store(
    recording_machine: Machine, whole: Callable[[Tally], None], seed: int, scenario: str, kind: Kind
) -> None:
    name, wanted = scenario, _WANTED
    if scenario.startswith("history "):
        name, wanted = f"history-{seed + int(scenario.split()[1])}", _WANTED_OF_A_HISTORY
    path, log = recording_machine.record(kind, name)
    cases = choose(log, seed, wanted if CRASH_FULL else _SHORT_IMAGES, sampled=not CRASH_FULL)
    tally = Tally("crash images", f"{name} on {kind}")
    tally.counts["writes"] = sum(entry.what == "write" for entry in log.entries)
    tally.counts["flushes"] = sum(entry.what == "flush" for entry in log.entries)

    for case in cases:
        answer = recording_machine.image(kind, name, path, log.contents(case.image), case)
        tally.add(case.image, answer, "images")

    whole(tally)
    assert tally.counts["images"] == len(cases) > 0
