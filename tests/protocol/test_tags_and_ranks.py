"""Who opens or tags a checkpoint beside retention and gc; and several ranks that publish or give up as one."""

from __future__ import annotations

import pytest

from tests.protocol.ranks import RankModel, RankRules
from tests.protocol.tags import TagModel, TagRules
from tests.protocol.test_one_blob import resolved
from tests.support.coverage import covered

pytestmark = pytest.mark.crash

_RANKS = {
    "2 ranks, 2 deaths": RankRules(deaths=2),
    "3 ranks, replaced": RankRules(ranks=3, deaths=0),
    "3 ranks, 1 death": RankRules(ranks=3, replaced=False),
    "2 ranks, 2 hosts": RankRules(hosts=2, deaths=2, replaced=False),
    "3 ranks, 2 hosts": RankRules(ranks=3, hosts=2, deaths=0, replaced=False),
}
_FAILED_AND_THERE = "a rank was told that the save failed, and it is there"


def test_who_opens_or_tags_a_checkpoint_never_finds_it_taken_apart(capsys: pytest.CaptureFixture[str]) -> None:
    found = TagModel(TagRules()).explore()

    with capsys.disabled():
        bad = int(bool(found.problem))
        print("\n" + covered("protocol model", "open, tag, drop", violations=bad, states=found.states))
    assert not found.problem, str(found)
    assert found.states > 100
    assert all(resolved(name) for name in found.functions)


@pytest.mark.parametrize(
    "lacking, problem",
    [
        ("names_path", "an open checkpoint lost its names"),
        ("drop_locks", "a tag points at nothing"),
        ("tagger_locks", "a tag points at nothing"),
        ("look_again", "a tag points at nothing"),
    ],
)
def test_without_a_rule_a_reader_or_a_tag_is_betrayed(lacking: str, problem: str) -> None:
    assert TagModel(TagRules().without(lacking)).explore().problem == problem


@pytest.mark.parametrize("rules", _RANKS.values(), ids=list(_RANKS))
def test_all_ranks_of_a_try_are_told_the_same_and_it_is_so(
    rules: RankRules, capsys: pytest.CaptureFixture[str]
) -> None:
    found = RankModel(rules).explore()

    with capsys.disabled():
        what = f"{rules.ranks} ranks, {rules.hosts} hosts, {rules.deaths} deaths"
        print("\n" + covered("protocol model", what, violations=int(bool(found.problem)), states=found.states))
    assert not found.problem, str(found)
    assert found.states > 1000
    assert all(resolved(name) for name in found.functions)


@pytest.mark.parametrize(
    "lacking, problem",
    [
        ("decides_alone", _FAILED_AND_THERE),
        ("all_parts", "it was published without all parts"),
        ("looks_first", _FAILED_AND_THERE),
        ("syncs_itself", "a rank was told of a checkpoint that a power cut may take"),
        ("outcome_has_info", "a rank was told of a checkpoint that its try did not make"),
        ("first_counts", _FAILED_AND_THERE),
        ("fences", _FAILED_AND_THERE),
        ("fence_first", _FAILED_AND_THERE),
        ("sees_fence", _FAILED_AND_THERE),
        ("looks_for_lost", "the older try supersedes the newer one"),
        ("stops", _FAILED_AND_THERE),
    ],
)
def test_without_a_rule_ranks_are_told_what_is_not_so(lacking: str, problem: str) -> None:
    assert RankModel(RankRules().without(lacking)).explore().problem == problem


@pytest.mark.parametrize(
    "lacking, problem",
    [
        ("fences_hosts", _FAILED_AND_THERE),
        ("takes_hidden", _FAILED_AND_THERE),
        ("spares_hidden", "a try was given up while a rank was publishing it"),
    ],
)
def test_without_a_rule_ranks_of_two_hosts_are_told_what_is_not_so(lacking: str, problem: str) -> None:
    assert RankModel(RankRules(hosts=2, replaced=False).without(lacking)).explore().problem == problem
