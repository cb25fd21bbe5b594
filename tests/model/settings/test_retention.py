"""Retention as laws over drawn histories, and the mishaps of other libraries as cases."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckstore.errors import BadInput
from ckstore.model.best import Best, best_of
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.settings.retention import Budget, RetentionPolicy
from ckstore.model.settings.retention_plan import Candidate, RetentionPlan, plan
from ckstore.model.times import text_of_time

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def info_of(
    step: int,
    sequence: int,
    run: str = "main",
    *,
    age: timedelta = timedelta(0),
    **metrics: float,
) -> CheckpointInfo:
    return CheckpointInfo(
        id=f"xxh3-{sequence:032x}",
        run=run,
        step=step,
        sequence=sequence,
        created=text_of_time(NOW - age),
        logical_bytes=0,
        new_bytes=0,
        reused_bytes=0,
        leaf_count=0,
        content="",
        metrics=metrics,
    )


def dropped(result: RetentionPlan) -> set[str]:
    return {entry.info.name for entry in result.dropped}


def kept(result: RetentionPlan) -> set[str]:
    return {entry.info.name for entry in result.kept}


NUMBERS = st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1.0, 2.0, 3])
BESTS = st.builds(Best, st.sampled_from(["loss", "acc"]), st.sampled_from(["min", "max"]), st.integers(1, 3))
RULES: dict[str, st.SearchStrategy[Any]] = {
    "keep_last": st.integers(1, 5),
    "keep_every": st.integers(1, 4),
    "keep_best": st.lists(BESTS, min_size=1, max_size=2).map(tuple),
    "keep_within": st.sampled_from(["1h", "2d", 90_000]),
    "keep_nearest": st.integers(1, 8),
    "keep_hourly": st.integers(1, 3),
    "keep_daily": st.integers(1, 3),
    "keep_weekly": st.integers(1, 3),
}
BUDGETS = st.builds(lambda most, part: Budget(most, max(1, most * part // 4)), st.integers(1, 60), st.integers(1, 4))
POLICIES = st.one_of(
    st.fixed_dictionaries({}, optional=RULES).filter(bool),
    st.just({"keep_every": 1000}),  # keeps none but step 0: what is left is protected by something else
)


@st.composite
def histories(draw: st.DrawFn) -> list[Candidate]:
    places = draw(
        st.lists(
            st.tuples(st.sampled_from(["main", "b"]), st.integers(0, 30)),
            max_size=10,
            unique=True,
        )
    )
    found: list[Candidate] = []
    for sequence, (run, step) in enumerate(places):
        info = info_of(
            step,
            draw(st.sampled_from([sequence, sequence, sequence - 1])),
            run,
            age=timedelta(hours=draw(st.sampled_from([-30, 0, 0, 20, 40, 100]))),
            **draw(st.dictionaries(st.sampled_from(["loss", "acc"]), NUMBERS)),
        )
        found.append(
            Candidate(
                info=replace(
                    info,
                    id=f"xxh3-{len(found):032x}",
                    unhealthy=draw(st.sampled_from(["", "", "w has 1 NaN value"])),
                ),
                tags=draw(st.sampled_from([(), (), (), ("good",)])),
                pins=draw(st.sampled_from([(), (), (), ("paper",)])),
                in_use=draw(st.sampled_from([False, False, False, True])),
                damage=draw(st.sampled_from(["", "", "", "blob gone"])),
                doubt=draw(st.sampled_from(["", "", "", "", "", "unreadable"])),
                blobs=draw(st.dictionaries(st.sampled_from("abcdefgh"), st.just(7), max_size=4)),
            )
        )
    return found


@pytest.mark.property
@given(policy=POLICIES, history=histories())
def test_the_union_keeps_what_each_rule_alone_keeps_and_nothing_else(
    policy: dict[str, Any], history: list[Candidate]
) -> None:
    together = kept(plan(RetentionPolicy(**policy), history, NOW))
    alone = [kept(plan(RetentionPolicy(**{rule: value}), history, NOW)) for rule, value in policy.items()]

    assert together == set().union(*alone)


@pytest.mark.property
@given(policy=POLICIES, history=histories())
def test_no_policy_drops_what_is_protected(policy: dict[str, Any], history: list[Candidate]) -> None:
    gone = dropped(plan(RetentionPolicy(**policy), history, NOW))

    for candidate in history:
        if candidate.tags or candidate.pins or candidate.in_use or candidate.doubt:
            assert candidate.info.name not in gone
    for group in ([c for c in history if c.info.run == run] for run in {c.info.run for c in history}):
        valid = sorted((c for c in group if c.valid), key=lambda c: c.info.order)
        if valid:
            assert valid[-1].info.name not in gone
            healthy = [c.info.name for c in valid if c.healthy]
            assert not healthy or healthy[-1] not in gone
        else:
            assert not {c.info.name for c in group} & gone
    whole = sorted((c for c in history if c.valid), key=lambda c: c.info.order)
    assert not whole or whole[-1].info.name not in gone


@pytest.mark.property
@given(policy=POLICIES, history=histories(), data=st.data())
def test_a_plan_depends_on_the_facts_alone_and_names_each_checkpoint_once_with_reasons(
    policy: dict[str, Any], history: list[Candidate], data: st.DataObject
) -> None:
    result = plan(RetentionPolicy(**policy), history, NOW)

    assert plan(RetentionPolicy(**policy), data.draw(st.permutations(history)), NOW) == result
    assert sorted(entry.info.name for entry in result.entries) == sorted(c.info.name for c in history)
    assert all(entry.reasons and all(entry.reasons) for entry in result.entries)
    assert kept(result).isdisjoint(dropped(result))


@pytest.mark.property
@given(policy=POLICIES, budget=BUDGETS, history=histories(), of_store=st.booleans())
def test_a_budget_holds_but_for_what_is_never_dropped(
    policy: dict[str, Any], budget: Budget, history: list[Candidate], of_store: bool
) -> None:
    members: dict[str, Any] = {} if of_store else {"max_bytes": budget.max_bytes, "low_bytes": budget.low_bytes}
    without = plan(RetentionPolicy(**policy), history, NOW)

    result = plan(RetentionPolicy(**policy, **members), history, NOW, budget if of_store else None)

    blobs = {candidate.info.name: candidate.blobs for candidate in history}
    for run in {"all"} if of_store else {candidate.info.run for candidate in history}:
        own = [entry for entry in result.entries if run in ("all", entry.run)]
        stays = {digest: size for entry in own if entry.keep for digest, size in blobs[entry.info.name].items()}
        only_protected = all(entry.protected or not blobs[entry.info.name] for entry in own if entry.keep)
        assert sum(stays.values()) <= budget.most or only_protected
    assert not any(entry.protected for entry in result.dropped)
    assert dropped(without) <= dropped(result)
    assert {e.info.name for e in result.entries if e.protected} == {e.info.name for e in without.entries if e.protected}


@pytest.mark.property
@given(every=st.integers(1, 9), steps=st.lists(st.integers(0, 60), min_size=1, max_size=12, unique=True))
def test_the_nearest_to_each_multiple_survives_plans_after_each_save(every: int, steps: list[int]) -> None:
    history: list[Candidate] = []
    for sequence, step in enumerate(steps):
        history.append(Candidate(info_of(step, sequence)))
        gone = dropped(plan(RetentionPolicy(keep_nearest=every), history, NOW))
        history = [candidate for candidate in history if candidate.info.name not in gone]

    stays = [candidate.info.step for candidate in history]
    for multiple in {(step + (every - 1) // 2) // every * every for step in steps}:
        group = [step for step in steps if (step + (every - 1) // 2) // every * every == multiple]
        assert min(abs(step - multiple) for step in group) in [abs(step - multiple) for step in stays]


def test_hours_days_and_weeks_keep_the_newest_of_each() -> None:
    ages_h = [400, 200, 50, 49, 26, 25, 2, 1, 0]
    history = [Candidate(info_of(step, step, age=timedelta(hours=age))) for step, age in enumerate(ages_h)]

    daily = kept(plan(RetentionPolicy(keep_daily=3), history, NOW))
    assert len(daily) == 3
    assert "main@8" in daily
    assert len(kept(plan(RetentionPolicy(keep_hourly=100), history, NOW))) == len(ages_h)
    assert len(kept(plan(RetentionPolicy(keep_weekly=9), history, NOW))) in (3, 4)


def test_above_a_budget_the_oldest_go_first_and_the_best_last() -> None:
    history = [
        Candidate(info_of(step, step, loss=float(abs(step - 1))), blobs={f"blob{step}": 10, "base": 5})
        for step in range(6)
    ]
    policy = RetentionPolicy(keep_last=6, keep_best="loss", max_bytes=35, low_bytes=30)

    result = plan(policy, history, NOW)

    assert kept(result) == {"main@1", "main@5"}
    assert "the run main is above its budget of 35 B, down to 30 B" in str(result.dropped[0])
    assert kept(plan(RetentionPolicy(max_bytes="1KB"), history, NOW)) == {f"main@{step}" for step in range(6)}
    (note,) = plan(RetentionPolicy(max_bytes=3), history, NOW).notes
    assert note == "the run main stays above its budget of 3 B: protected checkpoints take 15 B"


def test_what_has_no_bytes_here_is_not_dropped_for_a_budget() -> None:
    history = [Candidate(info_of(step, step), blobs={} if step < 3 else {f"blob{step}": 10}) for step in range(6)]

    result = plan(RetentionPolicy(max_bytes=20), history, NOW)

    assert dropped(result) == {"main@3"}


def test_each_run_has_its_own_policy_and_one_without_is_kept() -> None:
    history = [Candidate(info_of(step, step, run)) for run in ("a", "b") for step in range(3)]

    result = plan({"a": RetentionPolicy(keep_last=1)}, history, NOW)

    assert kept(result) == {"a@2", "b@0", "b@1", "b@2"}
    assert result.policy is None


@pytest.mark.property
@given(count=st.integers(1, 4), history=histories())
def test_keep_last_keeps_so_many_whole_ones_of_each_run(count: int, history: list[Candidate]) -> None:
    result = kept(plan(RetentionPolicy(keep_last=count), history, NOW))

    for run in {c.info.run for c in history}:
        whole = sorted((c for c in history if c.info.run == run and c.valid), key=lambda c: c.info.order)
        assert {c.info.name for c in whole[-count:]} <= result
        assert {c.info.name for c in [c for c in whole if c.healthy][-count:]} <= result


@pytest.mark.property
@given(policy=POLICIES, history=histories())
def test_no_unhealthy_checkpoint_takes_the_place_of_a_healthy_one(
    policy: dict[str, Any], history: list[Candidate]
) -> None:
    healthy = [c for c in history if c.healthy]
    runs = {c.info.run for c in healthy if c.valid}

    together = kept(plan(RetentionPolicy(**policy), history, NOW))

    alone = kept(plan(RetentionPolicy(**policy), healthy, NOW))
    assert {name for name in alone if name.partition("@")[0] in runs} <= together


@pytest.mark.property
@given(count=st.integers(1, 4), history=histories())
def test_with_unhealthy_checkpoints_a_rule_keeps_at_most_twice_as_many(count: int, history: list[Candidate]) -> None:
    plain = [replace(c, tags=(), pins=(), in_use=False, doubt="", damage="") for c in history]

    result = kept(plan(RetentionPolicy(keep_last=count), plain, NOW))

    for run in {c.info.run for c in plain}:
        assert sum(name.startswith(f"{run}@") for name in result) <= 2 * count


def test_three_healthy_then_three_unhealthy_leave_two_of_each() -> None:
    history = [
        Candidate(replace(info_of(step, step, loss=1.0 / step), unhealthy="w has 1 NaN value" if step > 3 else ""))
        for step in range(1, 7)
    ]

    result = plan(RetentionPolicy(keep_last=2, keep_best=Best("loss", "min")), history, NOW)

    assert kept(result) == {"main@2", "main@3", "main@5", "main@6"}
    assert "does not replace a healthy one" in str(result.entries[-1])
    assert "it is unhealthy, so it is not the best by loss" in str(result.entries[3])


def test_above_a_budget_unhealthy_checkpoints_go_first_and_the_newest_healthy_one_stays() -> None:
    history = [
        Candidate(
            replace(info_of(step, step), unhealthy="w has 1 NaN value" if step > 2 else ""), blobs={f"blob{step}": 10}
        )
        for step in range(1, 6)
    ]

    assert kept(plan(RetentionPolicy(max_bytes=30), history, NOW)) == {"main@1", "main@2", "main@5"}
    assert kept(plan(RetentionPolicy(max_bytes=10), history, NOW)) == {"main@2", "main@5"}


@pytest.mark.property
@given(best=BESTS, history=histories())
def test_what_is_dropped_is_never_better_than_what_is_kept_as_best(best: Best, history: list[Candidate]) -> None:
    result = plan(RetentionPolicy(keep_best=best), history, NOW)
    sign = 1 if best.mode == "min" else -1

    for run in {c.info.run for c in history}:
        values = {
            c.info.name: sign * c.info.metrics[best.metric]
            for c in history
            if c.info.run == run
            and (c.valid and c.healthy)
            and not math.isnan(c.info.metrics.get(best.metric, math.nan))
        }
        stays = sorted(values[name] for name in kept(result) & values.keys())
        goes = [values[name] for name in dropped(result) & values.keys()]
        assert len(stays) >= min(best.n, len(values))
        assert all(value >= stays[best.n - 1] for value in goes)


@pytest.mark.property
@given(history=histories(), jump_h=st.integers(-10_000, 10_000))
def test_a_clock_that_jumped_drops_neither_the_newest_nor_what_another_rule_keeps(
    history: list[Candidate], jump_h: int
) -> None:
    policy = RetentionPolicy(keep_last=2, keep_within="1d")

    result = plan(policy, history, NOW + timedelta(hours=jump_h))

    assert dropped(result) <= dropped(plan(RetentionPolicy(keep_last=2), history, NOW))


@pytest.mark.property
@given(policy=POLICIES)
def test_a_policy_comes_back_from_json(policy: dict[str, Any]) -> None:
    value = RetentionPolicy(**policy)

    assert RetentionPolicy.from_json(json.loads(json.dumps(value.to_json())), "config.json") == value


def test_of_equal_values_the_newer_is_best_and_nan_never_is() -> None:
    history = [
        Candidate(info_of(1, 1, loss=2.0)),
        Candidate(info_of(2, 2, loss=2.0)),
        Candidate(info_of(3, 3, loss=math.nan)),
        Candidate(info_of(4, 4, loss=5.0)),
    ]

    assert kept(plan(RetentionPolicy(keep_best=Best("loss")), history, NOW)) == {"main@2", "main@4"}


def test_a_damaged_checkpoint_takes_no_place_and_stays_until_there_are_enough_whole_ones() -> None:
    history = [Candidate(info_of(step, step), damage="blob gone" if step == 4 else "") for step in range(1, 6)]

    assert kept(plan(RetentionPolicy(keep_last=2), history, NOW)) == {"main@3", "main@4", "main@5"}
    assert kept(plan(RetentionPolicy(keep_last=1), history, NOW)) == {"main@5"}


def test_reasons_are_sentences() -> None:
    history = [
        Candidate(info_of(100, 1, age=timedelta(days=9)), tags=("good",)),
        Candidate(info_of(150, 2, age=timedelta(days=8), loss=3.0)),
        Candidate(info_of(200, 3, acc=0.5)),
    ]
    policy = RetentionPolicy(keep_last=1, keep_every=100, keep_best=Best("acc", "max", 2), keep_within="7d")

    result = plan(policy, history, NOW)

    assert "\n".join(str(entry) for entry in result.entries) == (
        "main@100 kept because it has the tag good; its step is a multiple of 100\n"
        "main@150 dropped because it is not the newest; its step is not a multiple of 100; it has no metric acc; "
        "it is older than 7d\n"
        "main@200 kept because it is the newest valid checkpoint of the run main; it is the newest; "
        "its step is a multiple of 100; it is one of the 2 best by acc (max); it was saved in the last 7d"
    )
    assert result.notes == ()


@pytest.mark.property
@given(policy=POLICIES, history=histories())
def test_a_metric_that_a_run_has_no_number_for_keeps_the_whole_run(
    policy: dict[str, Any], history: list[Candidate]
) -> None:
    misspelt = Best("los", "min")

    result = plan(RetentionPolicy(**{**policy, "keep_best": (*policy.get("keep_best", ()), misspelt)}), history, NOW)

    assert dropped(result) == set()
    runs = {candidate.info.run for candidate in history}
    assert sum("the metric los, so none of its checkpoints is dropped" in note for note in result.notes) == len(runs)


@pytest.mark.parametrize(
    "metrics, wanted, said",
    [
        ({"loss": 1.0, "acc": 2.0}, "los", "did you mean loss?"),
        ({"loss": 1.0, "acc": 2.0}, "bleu", "existing metrics: acc, loss"),
        ({}, "loss", "the checkpoints have no metrics"),
        ({"loss": math.nan, "acc": 2.0}, "loss", "loss is nan in all checkpoints that have it"),
    ],
)
def test_a_metric_that_is_nowhere_is_said_with_what_there_is(metrics: dict[str, float], wanted: str, said: str) -> None:
    result = plan(
        RetentionPolicy(keep_best=Best(wanted, "min")), [Candidate(replace(info_of(1, 1), metrics=metrics))], NOW
    )

    assert result.notes == (
        (
            f"no checkpoint of the run main has a number for the metric {wanted}, "
            f"so none of its checkpoints is dropped; {said}"
        ),
    )


@pytest.mark.parametrize(
    "arguments,said",
    [
        ({}, "got none"),
        ({"keep_best": ()}, "got none"),
        ({"keep_last": 0}, "keep_last must be an integer from 1, got 0"),
        ({"keep_last": True}, "got True"),
        ({"keep_every": 1.0}, "keep_every must be an integer from 1"),
        ({"keep_best": 5}, "keep_best must be a Best"),
        ({"max_bytes": 0}, "max_bytes must be an integer from 1"),
        ({"max_bytes": 5, "low_bytes": 6}, "low_bytes must be at most max_bytes"),
        ({"keep_last": 1, "low_bytes": 6}, "low_bytes needs a max_bytes"),
        ({"keep_nearest": 0}, "keep_nearest must be an integer from 1"),
        ({"keep_within": "a week"}, "keep_within: wanted a number with s, m, h, d or w"),
        ({"keep_within": 0}, "above 0"),
        ({"keep_within": math.inf}, "above 0"),
    ],
)
def test_a_policy_that_keeps_nothing_or_means_nothing_is_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        RetentionPolicy(**arguments)


def test_a_count_of_thousands_of_digits_is_refused() -> None:
    with pytest.raises(BadInput, match="wanted METRIC"):
        best_of(f"loss:max:{'9' * 5000}")


@pytest.mark.parametrize("arguments", [("",), (3,), ("loss", "least"), ("loss", "min", 0)])
def test_a_best_that_cannot_be_is_refused(arguments: Any) -> None:
    with pytest.raises(BadInput, match="Best: "):
        Best(*arguments)


@pytest.mark.parametrize(
    "value,said",
    [
        ([], "an object"),
        ({"keep_last": 3, "keep_monthly": 2}, "keep_monthly"),
        ({"keep_best": {"metric": "loss"}}, "an array"),
        ({"keep_best": [{"mode": "min"}]}, "metric"),
        ({"keep_best": [{"metric": "loss", "limit": 2}]}, "limit"),
        ({"keep_best": [{"metric": "loss", "mode": None}]}, "mode"),
        ({}, "got none"),
    ],
)
def test_a_stored_policy_with_a_rule_that_is_not_known_is_refused_rather_than_applied_without(
    value: Any, said: str
) -> None:
    with pytest.raises(BadInput, match=said) as excinfo:
        RetentionPolicy.from_json(value, "config.json")

    assert "config.json" in str(excinfo.value)


@pytest.mark.parametrize("metric", ["loss", "accuracy", "val"])
def test_a_stored_rule_without_a_mode_keeps_the_smallest_whatever_its_name_says(metric: str) -> None:
    stored = {"keep_best": [{"metric": metric}]}

    assert RetentionPolicy.from_json(stored, "config.json") == RetentionPolicy(keep_best=Best(metric, "min"))


# ------------------------------------------------------------ mishaps of other libraries (each was reported)


def test_steps_are_not_sorted_as_text() -> None:
    history = [Candidate(info_of(step, step)) for step in (500, 900, 1000, 10_000)]

    assert dropped(plan(RetentionPolicy(keep_last=2), history, NOW)) == {"main@500", "main@900"}


def test_a_fresh_checkpoint_below_the_steps_of_an_earlier_run_in_the_same_place_is_not_the_oldest() -> None:
    old = [Candidate(info_of(step, sequence)) for sequence, step in enumerate((900, 1000, 1100))]
    fresh = Candidate(info_of(100, 10))

    result = plan(RetentionPolicy(keep_last=1), [*old, fresh], NOW)

    assert kept(result) == {"main@100"}


def test_a_stale_higher_number_does_not_push_out_what_the_present_run_saves() -> None:
    history = [Candidate(info_of(5000, 1))]
    for sequence, step in enumerate((100, 200, 300, 400), start=2):
        history.append(Candidate(info_of(step, sequence)))
        gone = dropped(plan(RetentionPolicy(keep_last=2), history, NOW))
        history = [c for c in history if c.info.name not in gone]

    assert [c.info.step for c in history] == [300, 400]


def test_with_a_limit_of_one_the_best_and_the_last_both_stay() -> None:
    history = [
        Candidate(info_of(1, 1, loss=1.0)),
        Candidate(info_of(2, 2, loss=3.0)),
        Candidate(info_of(3, 3, loss=2.0)),
    ]

    assert kept(plan(RetentionPolicy(keep_last=1, keep_best=Best("loss")), history, NOW)) == {"main@1", "main@3"}
    assert kept(plan(RetentionPolicy(keep_best=Best("loss")), history, NOW)) == {"main@1", "main@3"}


def test_resuming_past_a_best_that_is_gone_goes_by_what_is_there() -> None:
    history = [Candidate(info_of(step, step, loss=float(step))) for step in (3, 4, 5)]  # step 1, the best, was pruned

    assert kept(plan(RetentionPolicy(keep_last=1, keep_best=Best("loss")), history, NOW)) == {"main@3", "main@5"}
