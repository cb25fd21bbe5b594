"""Two stores that mirror one run lose nothing to one another; without any one rule they do."""

from __future__ import annotations

import pytest

from tests.protocol.lanes import no_order_is_bad, rule_is_needed
from tests.protocol.two_stores import NAMES, Scenario
from tests.support.requirements import CRASH_FULL

pytestmark = pytest.mark.crash

_BEGIN = Scenario("two stores begin, one applies a policy", saves=(2, 2), policies=(1, 0))
_OLD = Scenario(
    "checkpoints were pushed by hand before there was an owner",
    before=(0, 0),
    no_owner=True,
    saves=(0, 2),
    policies=(1, 0),
    takeovers=1,
)
_TAKEN = Scenario("a run is taken over and back", before=(0, 0), saves=(1, 2), takeovers=3)
_JUDGED = Scenario("a run is taken over beside policies", before=(0,), saves=(0, 3), policies=(1, 1))
_BY_HAND = Scenario("the former owner pushes by hand", before=(0,), saves=(1, 2), by_hand=(1, 0), policies=(1, 1))
_UNPUSHED = Scenario(
    "the owner has saved more than it has pushed",
    before=(1,),
    saves=(1, 2),
    by_hand=(1, 0),
    policies=(0, 2),
    evictions=(0, 1),
    takeovers=1,
)
_EVICTED = Scenario(
    "a store evicts, the owner applies a policy, a pruner",
    before=(1, 0, 0),
    saves=(0, 0),
    evictions=(1, 1),
    policies=(2, 0),
    looks=3,
)
_AGAIN = Scenario(
    "a store pushes again what was removed, and evicts it",
    before=(1, 0),
    saves=(0, 0),
    by_hand=(0, 1),
    evictions=(0, 1),
    policies=(1, 0),
    looks=3,
    again=True,
)
_ALL = Scenario("all, with one takeover", before=(0, 0), saves=(0, 1), evictions=(1, 1), policies=(1, 1), looks=2)
_FULL_ALL = Scenario(
    "all, with a takeover and a new save",
    before=(0, 0),
    saves=(0, 2),
    evictions=(1, 1),
    policies=(1, 1),
    looks=1,
)
_SHORT = (_BEGIN, _OLD, _TAKEN, _JUDGED, _BY_HAND, _UNPUSHED, _EVICTED, _AGAIN, _ALL)
_FULL = (*_SHORT, _FULL_ALL)

MUTANTS = {
    "by_swap": _BEGIN,
    "promise_first": _TAKEN,
    "owns_to_push": _TAKEN,
    "raises_order": _TAKEN,
    "raises_first": _TAKEN,
    "looks_on_making": _OLD,
    "claims_first": _EVICTED,
    "looks_for_mark": _EVICTED,
    "judges_own": _JUDGED,
    "judges_last": _JUDGED,
    "spares_own": _UNPUSHED,
    "spares_pushed": _UNPUSHED,
    "ends_unneeded": _EVICTED,
    "marks_first": _EVICTED,
    "looks_for_claims": _EVICTED,
    "claimed_exists": _EVICTED,
    "names_claims": _AGAIN,
}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scenario", _FULL if CRASH_FULL else _SHORT, ids=lambda scenario: scenario.name)
def test_no_order_of_requests_loses_what_a_store_saved(scenario: Scenario, capsys: pytest.CaptureFixture[str]) -> None:
    no_order_is_bad(scenario, "two stores", capsys, more_than=100)


@pytest.mark.parametrize("rule", NAMES)
def test_without_a_rule_something_is_lost(rule: str, capsys: pytest.CaptureFixture[str]) -> None:
    rule_is_needed(MUTANTS[rule], rule, "two stores", capsys)


def test_every_rule_has_a_mutant() -> None:
    assert tuple(MUTANTS) == NAMES
