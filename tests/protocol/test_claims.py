"""No order of evictions, removals, prunes and pushes loses what a store relies on; without any one rule one does."""

from __future__ import annotations

import pytest

from tests.protocol.claims import NAMES, Scenario
from tests.protocol.lanes import no_order_is_bad, rule_is_needed
from tests.support.requirements import CRASH_FULL

pytestmark = pytest.mark.crash

_ONE = Scenario("an eviction, a removal, a pruner", passes=3)
_MARKED = Scenario("an eviction, a removal that died, a pruner", passes=3, marked=True)
_PUSHED = Scenario("an eviction, two removals, a push, a pruner", removals=2, passes=3, pushes=True)
_TWICE = Scenario("two evictions and a process that ends claims", evictions=(2,), endings=2, returns=1, passes=2)
_BESIDE = Scenario("two processes evict", evictions=(1, 1), passes=2)
_SHORT = (_ONE, _MARKED, _PUSHED, _TWICE, _BESIDE)
_FULL = (
    *_SHORT,
    Scenario("all", evictions=(2,), removals=2, endings=1, returns=1, passes=3, pushes=True),
    Scenario("two processes evict, others end claims", evictions=(2, 1), removals=1, endings=2, returns=1, passes=2),
)

MUTANTS = {
    "word_first": _TWICE,
    "claim_first": _ONE,
    "looks_for_mark": _ONE,
    "looks_for_blob": _PUSHED,
    "strike": _PUSHED,
    "same_word": _BESIDE,
    "new_name": _TWICE,
    "mark_first": _ONE,
    "looks_for_claim": _ONE,
    "lists_first": _TWICE,
    "claimed_exists": _ONE,
    "names_claims": _PUSHED,
    "look_again": _PUSHED,
}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scenario", _FULL if CRASH_FULL else _SHORT, ids=lambda scenario: scenario.name)
def test_no_order_of_requests_loses_what_a_store_relies_on(
    scenario: Scenario, capsys: pytest.CaptureFixture[str]
) -> None:
    no_order_is_bad(scenario, "claims", capsys, more_than=100)


@pytest.mark.parametrize("rule", NAMES)
def test_without_a_rule_the_bytes_are_lost(rule: str, capsys: pytest.CaptureFixture[str]) -> None:
    rule_is_needed(MUTANTS[rule], rule, "claims", capsys)


def test_every_rule_has_a_mutant() -> None:
    assert tuple(MUTANTS) == NAMES
