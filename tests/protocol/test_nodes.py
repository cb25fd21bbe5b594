"""Nodes with stores of their own save a checkpoint whole or not at all, whatever is killed or lost."""

from __future__ import annotations

import pytest

from tests.protocol.nodes import NAMES, NodesModel, Rules
from tests.protocol.test_one_blob import resolved
from tests.support.coverage import covered

pytestmark = pytest.mark.crash


def test_no_kill_and_no_lost_answer_leaves_a_part_of_a_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    found = NodesModel(Rules()).explore()

    with capsys.disabled():
        bad = int(bool(found.problem))
        print("\n" + covered("protocol model", "nodes and a remote", violations=bad, states=found.states))
    assert not found.problem, str(found)
    assert found.states > 1000
    assert [name for name in found.functions if not resolved(name)] == []


@pytest.mark.parametrize("rule", NAMES)
def test_without_a_rule_there_is_a_bad_state(rule: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = NodesModel(Rules().without(rule)).explore()

    with capsys.disabled():
        what = f"nodes without {rule}: {found.problem}"
        print("\n" + covered("protocol model", what, mutants=1, steps=len(found.trace)))
    assert found.problem, f"nothing bad in {found.states} states"
