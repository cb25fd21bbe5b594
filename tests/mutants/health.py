"""Mutants of what a save finds in its tensors, and of the acts that go by it."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_SAVES = "tests/ops/save/test_health.py"
_RULES = "tests/model/settings/test_retention.py"
_MODEL = "tests/model/manifest/test_health.py"

HEALTH = [
    Mutant(
        "negative infinities are detected",
        "negative-not-looked-at",
        "FloatForm._suspects",
        " or bits.max() >= sign + self.least",
        "",
        "tests/codecs/test_nonfinite.py::test_every_value_of_a_short_format_is_judged_as_torch_judges_it[bfloat16]",
        "assert",
    ),
    Mutant(
        "an infinity that the parent lacked is unusual",
        "each-infinity-usual",
        "health.judged",
        "usual.get(name, 0) if was_counted else count.inf",
        "count.inf",
        f"{_SAVES}::test_an_infinite_value_that_one_process_saved_is_not_usual_to_the_next",
        "assert",
    ),
    Mutant(
        "a tensor with a detected value is counted completely",
        "only-parts-counted",
        "HealthCheck._counted",
        "if can_read and (is_sick or found is None):",
        "if can_read and found is None:",
        f"{_SAVES}::test_a_large_tensor_is_checked_in_part_and_counted_completely_once_a_value_is_found[8388607]",
        "diverged@0",
    ),
    Mutant(
        "a tensor that had such values is checked completely",
        "sick-in-its-turn",
        "HealthCheck.counting",
        "if nbytes <= _WHOLE_BYTES or source.name in self._before.sick:",
        "if nbytes <= _WHOLE_BYTES:",
        f"{_SAVES}::test_a_large_tensor_is_checked_in_part_and_counted_completely_once_a_value_is_found[8388607]",
        "assert",
    ),
    Mutant(
        "a part whose pause is no longer than before is still changing",
        "pauses-not-known",
        "Health.unchanged",
        "max(_STILL_LEAST, part.longest + 1)",
        "_STILL_LEAST",
        f"{_MODEL}::test_a_part_that_changed_before_and_pauses_longer_than_ever_is_unchanged",
        "assert",
    ),
    Mutant(
        "unhealthy checkpoints do not count for a rule that keeps a number",
        "unhealthy-take-places",
        "_Run._twice",
        "[candidate for candidate in ordered if candidate.healthy]",
        "[*ordered]",
        f"{_RULES}::test_three_healthy_then_three_unhealthy_leave_two_of_each",
        "assert",
    ),
    Mutant(
        "the newest healthy checkpoint is never dropped",
        "healthy-not-protected",
        "_Run._protect",
        "if healthy is not newest:",
        "if False:",
        f"{_RULES}::test_above_a_budget_unhealthy_checkpoints_go_first_and_the_newest_healthy_one_stays",
        "assert",
    ),
    Mutant(
        "a budget drops unhealthy checkpoints first",
        "budget-drops-healthy",
        "over_budget",
        "(is_best[entry.info.name], not entry.info.unhealthy, entry.info.order)",
        "(is_best[entry.info.name], entry.info.order)",
        f"{_RULES}::test_above_a_budget_unhealthy_checkpoints_go_first_and_the_newest_healthy_one_stays",
        "assert",
    ),
    Mutant(
        "a healthy checkpoint is dropped only while another healthy one is kept",
        "last-healthy-dropped",
        "carry_out",
        "has_healthy = _hold_newest_valid(context, healthy, guarded) is not None",
        "has_healthy = True",
        f"{_SAVES}::test_a_plan_drops_no_healthy_one_when_the_one_that_it_keeps_has_gone",
        "assert",
    ),
    Mutant(
        "the best by a metric is healthy",
        "best-unhealthy",
        "_by_metric",
        "    ranked = [c for c in ranked if not c.unhealthy]\n",
        "",
        f"{_SAVES}::test_the_best_is_healthy_whatever_the_metric_says",
        "assert",
    ),
    Mutant(
        "the manifest of the newest healthy checkpoint is read",
        "healthy-by-its-row",
        "_take_unless_skipped",
        "    if why_skipped(kind, info):\n        raise _SkippedCheckpoint(info)\n",
        "",
        f"{_SAVES}::test_a_row_of_the_catalog_alone_makes_no_checkpoint_unhealthy",
        "assert",
    ),
]
