"""No order of steps, kills and power cuts leads to a bad state; without any one of the rules one does.

``CKSTORE_CRASH=full`` looks at larger worlds; the numbers of states are printed.
"""

from __future__ import annotations

import pkgutil

import pytest

from tests.protocol.bounds import Scenario
from tests.protocol.one_blob import Model
from tests.protocol.rules import NAMES, Rules
from tests.protocol.scenarios import FULL, MUTANTS, SHORT, Mutant
from tests.protocol.world import Mode
from tests.support.coverage import covered, sample_seed
from tests.support.requirements import CRASH_FULL, representatives

pytestmark = pytest.mark.crash

_TURN = (sample_seed() or 0) % 3
"""Of a short run: one in three cases, others for each commit."""
_CASES = [(scenario, mode) for scenario, modes in (FULL if CRASH_FULL else SHORT) for mode in modes]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "scenario, mode",
    representatives(_CASES, *_CASES[_TURN::3]),
    ids=[f"{scenario.name}, {mode}" for scenario, mode in _CASES],
)
def test_no_order_of_steps_leads_to_a_bad_state(
    scenario: Scenario, mode: Mode, capsys: pytest.CaptureFixture[str]
) -> None:
    found = Model(scenario.under(Rules(), mode)).explore()

    with capsys.disabled():
        violations = int(bool(found.problem))
        print("\n" + covered("protocol model", f"{scenario.name}, {mode}", violations=violations, states=found.states))
    assert not found.problem, str(found)
    assert found.states > 100
    # So that the model does not stay behind when the code changes.
    assert [name for name in found.functions if not resolved(name)] == []


@pytest.mark.parametrize(
    "mutant", representatives(MUTANTS, *MUTANTS[_TURN::3]), ids=["+".join(mutant.rules) for mutant in MUTANTS]
)
def test_without_a_rule_there_is_a_way_to_a_bad_state(mutant: Mutant, capsys: pytest.CaptureFixture[str]) -> None:
    lacking = Rules().without(*mutant.rules)
    found = Model(mutant.scenario.under(lacking, mutant.mode)).explore()

    with capsys.disabled():
        what = f"without {' and '.join(mutant.rules)}: {found.problem}"
        print("\n" + covered("protocol model", what, mutants=1, steps=len(found.trace)))
    assert found.problem, f"nothing bad in {found.states} states"


def test_the_scenario_of_every_mutant_is_looked_at_with_all_rules() -> None:
    assert {(mutant.scenario, mutant.mode) for mutant in MUTANTS} <= {
        (one, mode) for one, modes in SHORT for mode in modes
    }


def test_every_rule_is_in_a_mutant() -> None:
    assert {name for mutant in MUTANTS for name in mutant.rules} == set(NAMES)


def resolved(name: str) -> bool:
    """Whether ckstore has a function of that dotted name."""
    try:
        return callable(pkgutil.resolve_name(f"ckstore.{name}"))
    except AttributeError:
        return False
