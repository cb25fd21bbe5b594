"""What the owner of a run saves comes last there, in every order of requests; without any one rule it may not."""

from __future__ import annotations

import pytest

from tests.protocol.lanes import no_order_is_bad, rule_is_needed
from tests.protocol.owners import NAMES, Scenario
from tests.support.requirements import CRASH_FULL

pytestmark = pytest.mark.crash

_TWO = Scenario("two stores")
_OLD = Scenario("a remote with checkpoints from before", before=2, saves=(2, 1), takeovers=2)
_SHORT = (_TWO, _OLD, Scenario("more saves", saves=(3, 2)))
_FULL = (*_SHORT, Scenario("more takeovers", before=1, saves=(4, 4), takeovers=6))

MUTANTS = {
    "by_swap": _TWO,
    "promise_first": _OLD,
    "raise_on_taking": _OLD,
    "looks_on_making": _OLD,
    "owns_to_bring": _TWO,
}


@pytest.mark.parametrize("scenario", _FULL if CRASH_FULL else _SHORT, ids=lambda scenario: scenario.name)
def test_what_the_owner_of_a_run_saves_comes_last(scenario: Scenario, capsys: pytest.CaptureFixture[str]) -> None:
    no_order_is_bad(scenario, "owners", capsys, more_than=50, most=1_000_000)


@pytest.mark.parametrize("rule", NAMES)
def test_without_a_rule_the_order_is_wrong(rule: str, capsys: pytest.CaptureFixture[str]) -> None:
    rule_is_needed(MUTANTS[rule], rule, "owners", capsys)


def test_every_rule_has_a_mutant() -> None:
    assert tuple(MUTANTS) == NAMES
