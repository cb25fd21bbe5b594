"""Two hosts that replace, drop and free on a filesystem without an exchange of names, with caches and the grace.

Searched to the end, also with a server that crashes once and forgets renames that were not made durable.
``CKSTORE_CRASH=full`` lets the grace pass three times during the replacements, else twice; with a crash once less.
"""

from __future__ import annotations

from dataclasses import fields

import pytest

from tests.protocol.graces import GraceModel, GraceRules
from tests.protocol.test_one_blob import resolved
from tests.protocol.two_renames import Mode, ReplaceModel, ReplaceRules
from tests.support.coverage import covered
from tests.support.requirements import CRASH_FULL, representatives

pytestmark = [pytest.mark.crash, pytest.mark.timeout(1800)]

_ALONE = ReplaceRules(cluster=False)
_REPLACED = "a checkpoint was replaced or dropped that was not judged"
_UNSURE = "a save that nothing disturbed does not know its outcome"
_ALIVE = "the staging of the live saver A was taken away"
_LOST = "K was acknowledged, and nothing is there"


@pytest.mark.crossed
@pytest.mark.parametrize("mode", ["", "ordered", "weak"], ids=["no crash", "ordered", "weak"])
@pytest.mark.parametrize("rules", [ReplaceRules(), _ALONE], ids=["locks of the cluster", "locks of the host"])
def test_what_hosts_replace_and_drop_is_there_or_gone(
    rules: ReplaceRules, mode: Mode, capsys: pytest.CaptureFixture[str]
) -> None:
    found = ReplaceModel(rules, ticks=(1 if mode else 2) + CRASH_FULL, mode=mode).explore()

    with capsys.disabled():
        what = (
            f"two renames, locks of {'the cluster' if rules.cluster else 'a host'}, {mode or 'no'} crash of the server"
        )
        print("\n" + covered("protocol model", what, violations=int(bool(found.problem)), states=found.states))
    assert not found.problem, str(found)
    assert found.states > 100
    assert [name for name in found.functions if not resolved(name)] == []


_MUTANTS = [
    (ReplaceRules(), "locked", _UNSURE),
    (ReplaceRules(), "checked", _REPLACED),
    (ReplaceRules(), "marked", _REPLACED),
    (ReplaceRules(), "gap_is_taken", _REPLACED),
    (ReplaceRules(), "completed_first", _REPLACED),
    (_ALONE, "grace_of_gaps", _UNSURE),
    (_ALONE, "new_is_needed", _LOST),
    (_ALONE, "grace_of_stagings", _ALIVE),
    (ReplaceRules(), "checked_before_burying", _LOST),
    (ReplaceRules(), "renamed_first", "A was acknowledged, and K is there"),
    (_ALONE, "buried", "K was dropped and is back"),
]


@pytest.mark.parametrize("rules, lacking, problem", _MUTANTS, ids=[lacking for _, lacking, _ in _MUTANTS])
def test_without_a_rule_a_checkpoint_is_lost_or_comes_back(rules: ReplaceRules, lacking: str, problem: str) -> None:
    assert ReplaceModel(rules.without(lacking)).explore().problem == problem


_UNSYNCED: list[tuple[str, Mode, str]] = [
    ("sync_published", "ordered", "A was acknowledged, and K is there"),
    ("sync_dropped", "ordered", "K was dropped and is back"),
    ("sync_buried", "weak", "A was acknowledged, and K is there"),
    ("sync_staging", "weak", _LOST),
    ("sync_swept", "weak", _LOST),
]


@pytest.mark.parametrize(
    "lacking, mode, problem",
    representatives(_UNSYNCED, _UNSYNCED[0], _UNSYNCED[1], _UNSYNCED[4]),
    ids=[lacking for lacking, _, _ in _UNSYNCED],
)
def test_without_an_fsync_a_server_that_crashes_loses_one_or_brings_it_back(
    lacking: str, mode: Mode, problem: str
) -> None:
    assert ReplaceModel(ReplaceRules().without(lacking), mode=mode).explore().problem == problem


def test_what_is_dropped_on_one_host_is_freed_when_the_other_has_let_go(capsys: pytest.CaptureFixture[str]) -> None:
    found = GraceModel(GraceRules()).explore()

    with capsys.disabled():
        print("\n" + covered("protocol model", "grace", violations=int(bool(found.problem)), states=found.states))
    assert not found.problem, str(found)
    assert found.states > 100
    assert [name for name in found.functions if not resolved(name)] == []


@pytest.mark.parametrize("lacking", [field.name for field in fields(GraceRules)])
def test_without_a_rule_bytes_are_freed_too_early_or_never(lacking: str) -> None:
    assert GraceModel(GraceRules().without(lacking)).explore().problem


def test_every_rule_of_two_renames_is_left_out_once() -> None:
    assert {lacking for _, lacking, _ in _MUTANTS} | {lacking for lacking, _, _ in _UNSYNCED} == {
        field.name for field in fields(ReplaceRules)
    } - {"cluster"}
