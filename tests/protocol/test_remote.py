"""No order of pushes, pruners, sleeps and late removals loses a blob of a remote; without any one rule one does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.protocol.lanes import no_order_is_bad, rule_is_needed
from tests.protocol.remote import NAMES, Scenario
from tests.support.requirements import CRASH_FULL

pytestmark = pytest.mark.crash

_ONE = Scenario("a push, a pruner", pushes=1, passes=(3,))
_NEW = Scenario("a push of a new blob, a pruner", pushes=1, passes=(3,), there=False)
_TWO_PRUNERS = Scenario("a push, two pruners", pushes=1, passes=(2, 2), again=0, others=0)
_TWO_PUSHES = Scenario("two pushes, a pruner", pushes=2, passes=(2,), again=0)
_SHORT = (_ONE, _NEW, _TWO_PRUNERS, _TWO_PUSHES)
_FULL = (
    *_SHORT,
    Scenario("a push, a pruner, long", pushes=1, passes=(5,), losses=2, again=2),
    replace(_TWO_PRUNERS, name="a push, two pruners with other blobs", others=1),
    Scenario("a push, two pruners, long", pushes=1, passes=(3, 2), others=0),
    Scenario("two pushes, two pruners", pushes=2, passes=(2, 1), again=0, others=0),
)

MUTANTS = {
    "intent_first": _ONE,
    "strike": _ONE,
    "burn_needed": _ONE,
    "commit_by_intent": _ONE,
    "manifest_last": _NEW,
    "intents_before_manifests": _ONE,
    "look_again": _ONE,
    "version_first": _TWO_PRUNERS,
    "own_version": _TWO_PRUNERS,
    "void_by_swap": _ONE,
    "finish": _ONE,
    "burn_unknown": _ONE,
    "burn_foreign": _TWO_PRUNERS,
    "unique_writes": _TWO_PRUNERS,
}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scenario", _FULL if CRASH_FULL else _SHORT, ids=lambda scenario: scenario.name)
def test_no_order_of_requests_loses_a_blob(scenario: Scenario, capsys: pytest.CaptureFixture[str]) -> None:
    no_order_is_bad(scenario, "remote", capsys, more_than=100)


@pytest.mark.parametrize("rule", NAMES)
def test_without_a_rule_a_blob_is_lost(rule: str, capsys: pytest.CaptureFixture[str]) -> None:
    rule_is_needed(MUTANTS[rule], rule, "remote", capsys)


def test_every_rule_has_a_mutant() -> None:
    assert tuple(MUTANTS) == NAMES
