"""Who opens or tags a checkpoint beside retention and gc; and several ranks that publish or give up as one."""

from __future__ import annotations

import pytest

from tests.protocol.ranks import RankModel, RankRules
from tests.protocol.tags import TagModel, TagRules
from tests.protocol.test_one_blob import resolved
from tests.support.coverage import covered

pytestmark = pytest.mark.crash

_REPLACED = TagRules(replaced=True)
_RANKS = (RankRules(), RankRules(ranks=3, attempts=1), RankRules(ranks=3, deaths=1))


@pytest.mark.parametrize("rules", [TagRules(), _REPLACED], ids=["dropped", "replaced"])
def test_who_opens_or_tags_a_checkpoint_never_finds_it_taken_apart(
    rules: TagRules, capsys: pytest.CaptureFixture[str]
) -> None:
    found = TagModel(rules).explore()

    with capsys.disabled():
        what = "open, tag, replace" if rules.replaced else "open, tag, drop"
        print("\n" + covered("protocol model", what, violations=int(bool(found.problem)), states=found.states))
    assert not found.problem, str(found)
    assert found.states > 100
    assert all(resolved(name) for name in found.functions)


@pytest.mark.parametrize(
    "rules, lacking, problem",
    [
        (TagRules(), ("names_path",), "an open checkpoint lost its names"),
        (TagRules(), ("drop_locks",), "a tag points at nothing"),
        (TagRules(), ("tagger_locks",), "a tag points at nothing"),
        (TagRules(), ("look_again",), "a tag points at nothing"),
        # Of these two each is enough alone.
        (_REPLACED, ("sweep_locks", "empty_locks"), "an open checkpoint lost its names"),
    ],
)
def test_without_a_rule_a_reader_or_a_tag_is_betrayed(rules: TagRules, lacking: tuple[str, ...], problem: str) -> None:
    assert TagModel(rules.without(*lacking)).explore().problem == problem


@pytest.mark.parametrize("rules", _RANKS, ids=["2 ranks, 2 attempts", "3 ranks", "3 ranks, 2 attempts"])
def test_all_ranks_of_an_attempt_are_told_the_same(rules: RankRules, capsys: pytest.CaptureFixture[str]) -> None:
    found = RankModel(rules).explore()

    with capsys.disabled():
        what = f"{rules.ranks} ranks, {rules.attempts} attempts"
        print("\n" + covered("protocol model", what, violations=int(bool(found.problem)), states=found.states))
    assert not found.problem, str(found)
    assert found.states > 100


@pytest.mark.parametrize(
    "lacking, problem",
    [
        ("abort_renames", "one rank was told success, another of the same attempt failure"),
        ("attempt_in_name", "parts of two attempts were published"),
    ],
)
def test_without_a_rule_ranks_disagree_or_mix(lacking: str, problem: str) -> None:
    assert RankModel(RankRules().without(lacking)).explore().problem == problem
