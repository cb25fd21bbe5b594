"""Nodes with stores of their own save a checkpoint whole or not at all, whatever is killed or lost."""

from __future__ import annotations

import pytest

from tests.protocol.lanes import nothing_is_bad, something_is_bad
from tests.protocol.nodes import NAMES, NodesModel, Rules

pytestmark = pytest.mark.crash


def test_no_kill_and_no_lost_answer_leaves_a_part_of_a_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    found = NodesModel(Rules()).explore()

    nothing_is_bad(found, "nodes and a remote", capsys, more_than=1000)


@pytest.mark.parametrize("rule", NAMES)
def test_without_a_rule_there_is_a_bad_state(rule: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = NodesModel(Rules().without(rule)).explore()

    something_is_bad(found, f"nodes without {rule}", capsys)
