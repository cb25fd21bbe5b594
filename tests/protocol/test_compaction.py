"""No order of steps beside a compaction loses a checkpoint, a note or what one is decoded with; each rule is needed."""

from __future__ import annotations

import pytest

from tests.protocol.compaction import CompactModel, CompactRules
from tests.protocol.test_one_blob import resolved
from tests.support.coverage import covered

pytestmark = pytest.mark.crash


def test_saves_gc_reads_and_drops_beside_a_compaction_lose_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    found = CompactModel(CompactRules()).explore()

    with capsys.disabled():
        what = "compact, save, replace, drop, gc, read, note"
        print("\n" + covered("protocol model", what, violations=int(bool(found.problem)), states=found.states))
    assert not found.problem, str(found)
    assert found.states > 1000
    assert [name for name in found.functions if not resolved(name)] == []


@pytest.mark.parametrize(
    "lacking, problem",
    [
        (("linked",), "E is visible without what it is decoded with"),
        (("synced",), "E is visible and its encoded form is short"),
        (("same",), "a save was acknowledged and is lost"),
        (("alone",), "a note was acknowledged and is lost"),
        (("notes",), "a note was acknowledged and is lost"),
        # Of these each is enough alone.
        (("drop_locks", "empty_locks"), "an open checkpoint lost its names"),
        (("lacking", "drop_locks", "empty_locks", "reads"), "E is visible without what it is decoded with"),
    ],
)
def test_without_a_rule_a_checkpoint_or_a_note_is_lost(lacking: tuple[str, ...], problem: str) -> None:
    assert CompactModel(CompactRules().without(*lacking)).explore().problem == problem
