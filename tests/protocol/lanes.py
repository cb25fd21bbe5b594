"""What the tests of a model say of a search: nothing in any state is bad, or without a rule something is."""

from __future__ import annotations

import pytest

from tests.protocol.search import Explored
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
