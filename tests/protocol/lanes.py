"""What the tests of a model say of a search: nothing in any state is bad, or without a rule something is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.protocol.search import Explored, explore
from tests.protocol.test_one_blob import resolved
from tests.support.coverage import covered


def nothing_is_bad(found: Explored, what: str, capsys: pytest.CaptureFixture[str], *, more_than: int) -> None:
    """Print how much was searched, and fail if a state was bad, few were reached, or a step stands for no function."""
    with capsys.disabled():
        bad = int(bool(found.problem))
        print("\n" + covered("protocol model", what, violations=bad, states=found.states))
    assert not found.problem, str(found)
    assert found.states > more_than
    # So that the model does not stay behind when the code changes.
    assert [name for name in found.functions if not resolved(name)] == []


def something_is_bad(found: Explored, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Print the bad state that a search without a rule found; fail if it found none."""
    with capsys.disabled():
        print("\n" + covered("protocol model", f"{what}: {found.problem}", mutants=1, steps=len(found.trace)))
    assert found.problem, f"nothing bad in {found.states} states"


def no_order_is_bad(
    scenario: Any, model: str, capsys: pytest.CaptureFixture[str], *, more_than: int, most: int = 5_000_000
) -> None:
    """Search a scenario to its end, and fail as `nothing_is_bad` does."""
    found = explore(scenario.start(), scenario.steps, scenario.wrong, most=most)
    nothing_is_bad(found, f"{model}: {scenario.name}", capsys, more_than=more_than)


def rule_is_needed(scenario: Any, rule: str, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Search a scenario without a rule, and fail as `something_is_bad` does."""
    scenario = replace(scenario, rules=scenario.rules.without(rule))
    found = explore(scenario.start(), scenario.steps, scenario.wrong)
    something_is_bad(found, f"{model} without {rule}", capsys)
