"""No order of steps beside a compaction loses a checkpoint, a note or what one is decoded with; each rule is needed."""

from __future__ import annotations

import pytest

from tests.protocol.compaction import CompactModel, CompactRules
from tests.protocol.test_one_blob import resolved
from tests.support.coverage import covered
from tests.support.requirements import CRASH_FULL

pytestmark = pytest.mark.crash


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("actors", ["QSrn", "QRr", "SRrn", *(["QSRrn"] if CRASH_FULL else [])])
def test_saves_gc_reads_and_drops_beside_a_compaction_lose_nothing(
    actors: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = CompactModel(CompactRules(), actors).explore()

    with capsys.disabled():
        what = f"compact, gc, and {actors}"
        print("\n" + covered("protocol model", what, violations=int(bool(found.problem)), states=found.states))
    assert not found.problem, str(found)
    assert found.states > 1000
    assert [name for name in found.functions if not resolved(name)] == []


@pytest.mark.parametrize(
    "lacking, actors, problem",
    [
        (("linked",), "QRr", "E is visible without what it is decoded with"),
        (("synced",), "QRr", "E is visible and its encoded form is short"),
        # Of these two each is enough alone.
        (("held", "looks"), "QRr", "what was dropped is back"),
        (("alone",), "SRrn", "a note was acknowledged and is lost"),
        (("notes",), "SRrn", "a note was acknowledged and is lost"),
        (("all_generations",), "QRr", "what was dropped is back"),
        # Of these each is enough alone.
        (("drop_locks", "empty_locks"), "QRr", "an open checkpoint lost its names"),
        (("lacking", "drop_locks", "empty_locks"), "R", "E is visible without what it is decoded with"),
    ],
)
def test_without_a_rule_a_checkpoint_or_a_note_is_lost(lacking: tuple[str, ...], actors: str, problem: str) -> None:
    assert CompactModel(CompactRules().without(*lacking), actors).explore().problem == problem
