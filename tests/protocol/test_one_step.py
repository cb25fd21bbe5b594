"""No order of saves, replacements, tags, reads, compactions, undos, deletes and gc loses a checkpoint of a step.

Searched to the end, with kills and power cuts. ``CKSTORE_CRASH=full`` searches more pairs of savers and larger worlds.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from tests.protocol.one_step import NAMES, IfExists, Mode, OneStepModel, Scenario, StepRules
from tests.protocol.test_one_blob import resolved
from tests.support.coverage import covered
from tests.support.requirements import CRASH_FULL

pytestmark = pytest.mark.crash

_NEW = Scenario("a new step", a="error", b="error", old="-")
_HOSTS = replace(_NEW, name="a new step, two hosts", cluster=False)
_KEPT = replace(_HOSTS, name="a new step, one is enough", a="keep", b="keep")
_SAME = replace(_HOSTS, name="the same content", contents="kaa", old="P", undo=True, undos=1, deletes=1)
_COLLECTED = replace(_HOSTS, name="a new step, gc", gcs=1, ticks=1)
_TAGGED = replace(_HOSTS, name="a new step, read and tagged", b="keep", reads=True, tags=True)
_CUT = replace(_TAGGED, name="a new step, read and tagged, power cut", cuts=1)
_TWO_REPLACE = Scenario("two replace", a="replace", b="replace", ties="BAK", kills=1, cuts=1)
_READ = replace(_TWO_REPLACE, name="two replace beside a reader", cluster=False, reads=True)
_BACK_AGAIN = replace(_READ, name="replaced by what was there before", cluster=True, contents="aab", cuts=0)
_REPLACED = Scenario("replaced", a="replace", b="error", mode="weak", kills=1, cuts=1, gcs=1, tags=True)
_COMPACTED = Scenario("compacted", a="replace", kills=1, compacts=True, deletes=1, reads=True, tags=True)
_COMPACTED_CUT = Scenario("compacted, power cut", a="replace", mode="weak", cuts=1, compacts=True, gcs=1)
_RESTORED = Scenario(
    "deleted, saved, brought back", a="error", ties="ABK", kills=1, undo=True, undos=1, deletes=2, ticks=1, gcs=1
)
_DAMAGED = Scenario("damaged", a="error", b="error", old="D", mode="weak", cuts=1, gcs=1, tags=True)

_POLICIES: tuple[tuple[IfExists, IfExists], ...] = (
    ("error", "error"),
    ("error", "keep"),
    ("keep", "keep"),
    ("error", "replace"),
    ("replace", "replace"),
)
_MODES: tuple[Mode, ...] = ("weak", "ordered")
_PAIRS = [
    Scenario(f"{contents}, old {old}", a, b, cluster, contents, ties, old, mode, kills=1, cuts=1, gcs=1)
    for (a, b), cluster, old, contents, ties, mode in product(
        _POLICIES,
        (True, False),
        "P-",
        ("kab", "kaa") if CRASH_FULL else ("kab",),
        ("KAB", "BAK") if CRASH_FULL else ("BAK",),
        _MODES if CRASH_FULL else _MODES[:1],
    )
]
_SHORT = [
    *_PAIRS,
    *(_NEW, _SAME, _KEPT, _COLLECTED, _TAGGED, _CUT, _TWO_REPLACE, _READ, _BACK_AGAIN, _REPLACED),
    *(_COMPACTED, _COMPACTED_CUT, _RESTORED, _DAMAGED),
]
_FULL = [
    replace(one, a=a, b=b, cluster=cluster)
    for (a, b), cluster, one in product(
        _POLICIES,
        (True, False),
        (
            Scenario("read, undo window", cuts=1, reads=True, gcs=1, undo=True, ticks=1),
            Scenario("compacted beside a reader", kills=1, reads=True, compacts=True, gcs=1),
            Scenario("brought back", ties="BAK", kills=1, undo=True, undos=1, deletes=1, ticks=1, gcs=1),
            Scenario("new, brought back", ties="BAK", old="-", undo=True, undos=1, deletes=1, ticks=1, gcs=1),
            Scenario("brought back, power cut", mode="weak", cuts=1, undo=True, undos=1, deletes=1, gcs=2),
            Scenario("compacted, deleted", mode="weak", cuts=1, compacts=True, deletes=1, gcs=1),
            Scenario("damaged, deleted", old="D", mode="weak", cuts=1, gcs=1, deletes=1),
        ),
    )
] + [
    replace(_REPLACED, name="replaced, read and tagged", reads=True, undo=True, ticks=1),
    replace(_TWO_REPLACE, name="two replace, read and tagged", reads=True, tags=True, undo=True, ticks=1, gcs=1),
]

_LOST = "A was acknowledged and is lost"
_BOTH = "A and B were both acknowledged, and neither was to be replaced"
_NO_TAG = "a tag names nothing"
_BACK = "K was deleted and is back"
_MUTANTS = [
    (_NEW, "run_locks", _BOTH),
    (_NEW, "lists", _BOTH),
    (_KEPT, "hidden_first", "B was acknowledged and is lost"),
    (_SAME, "hidden_first", _LOST),
    (_COLLECTED, "hidden_first", _LOST),
    (_TAGGED, "hidden_first", _NO_TAG),
    (_BACK_AGAIN, "shown_only", "A gets K, and B is shown"),
    (_TWO_REPLACE, "takes_newest", "B was to replace A, and A is shown"),
    (_RESTORED, "takes_newest", _LOST),
    (_TWO_REPLACE, "sync_sealed", "A is published, and a part of it is lacking"),
    (_CUT, "sync_published", _LOST),
    (_CUT, "sync_tagged", _NO_TAG),
    (_TWO_REPLACE, "older_only", "B was acknowledged and is lost"),
    (_REPLACED, "drop_locks", _NO_TAG),
    (_REPLACED, "drop_reads_tags", _NO_TAG),
    (_COMPACTED, "all_generations", _BACK),
    (_COMPACTED, "generation_held", _BACK),
    (_COMPACTED_CUT, "new_first", "K was acknowledged and is lost"),
    (_REPLACED, "sync_kept", "K was acknowledged and is lost"),
    (_RESTORED, "newer_held", "K was acknowledged and is lost"),
    (_RESTORED, "gc_waits", "gc dropped K, which was just brought back"),
    (_RESTORED, "undo_waits", "undo is promised and impossible"),
    (_READ, "empty_locks", "an open checkpoint is taken apart"),
    (_TWO_REPLACE, "sync_trash", "K is published, and a part of it is lacking"),
]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scenario", _SHORT + (_FULL if CRASH_FULL else []), ids=str)
def test_no_order_of_steps_loses_a_checkpoint_of_a_step(scenario: Scenario, capsys: pytest.CaptureFixture[str]) -> None:
    found = OneStepModel(scenario).explore()

    with capsys.disabled():
        bad = int(bool(found.problem))
        print("\n" + covered("protocol model", f"one step: {scenario}", violations=bad, states=found.states))
    assert not found.problem, str(found)
    assert found.states > 30
    assert [name for name in found.functions if not resolved(name)] == []


@pytest.mark.parametrize("scenario, rule, problem", _MUTANTS, ids=[f"{rule}, {one.name}" for one, rule, _ in _MUTANTS])
def test_without_a_rule_a_checkpoint_of_a_step_is_lost(
    scenario: Scenario, rule: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = OneStepModel(replace(scenario, rules=StepRules().without(rule))).explore()

    with capsys.disabled():
        print(
            "\n" + covered("protocol model", f"one step without {rule}: {problem}", mutants=1, steps=len(found.trace))
        )
    assert found.problem == problem, str(found)


def test_every_rule_of_a_step_has_a_mutant_in_a_searched_scenario() -> None:
    assert {rule for _, rule, _ in _MUTANTS} == set(NAMES)
    assert all(scenario in _SHORT for scenario, _, _ in _MUTANTS)
