"""Mutants of the rule that a run belongs to one training."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_TABLE = "tests/ops/save/test_lineage.py"

LINEAGE = [
    Mutant(
        "a save replaces only what is of its own training",
        "another-training-replaced",
        "RunGuard.check",
        "other.manifest.training != manifest.training and ",
        "False and ",
        f"{_TABLE}::test_a_plain_save_replaces_nothing_of_another_training_and_says_that_latest_is_its_own",
        "assert",
    ),
    Mutant(
        "a training begins only in a run without another one",
        "fresh-training-in-a-used-run",
        "RunGuard._check_begin",
        '        if self.if_run_in_use == "error":\n            raise _in_use(self.context, other)\n',
        "",
        f"{_TABLE}::test_a_fresh_training_is_refused_and_told_the_lines_that_work[9-save]",
        "assert",
    ),
    Mutant(
        "a training stops if another process goes on with it",
        "two-at-once-go-on",
        "RunGuard._check_alone",
        "found.manifest.sequence > self.parent.sequence",
        "False",
        f"{_TABLE}::test_of_two_that_continue_one_checkpoint_the_first_stops_when_the_second_has_saved[save]",
        "DID NOT RAISE",
    ),
    Mutant(
        "what is brought back stops no training",
        "brought-back-is-another-process",
        "RunGuard._check_alone",
        "found.manifest.sequence > self.parent.sequence",
        "found.manifest_id != self.parent.id",
        f"{_TABLE}::test_a_checkpoint_that_is_brought_back_or_appended_by_a_tool_stops_no_training",
        "RunInUse",
    ),
    Mutant(
        "a fork begins a training of its own",
        "a-fork-is-its-origin",
        "training_of",
        "parent is not None and parent.run == run",
        "parent is not None",
        f"{_TABLE}::test_a_fork_saves_to_its_own_run_and_replaces_nothing_of_its_origin[save]",
        "assert",
    ),
    Mutant(
        "equal content of another training makes no descendant of it",
        "equal-content-is-continued",
        "_follow_up",
        "    if training == manifest.training:\n",
        "    if True:\n",
        f"{_TABLE}::test_the_same_content_again_is_no_replacement_and_makes_no_descendant",
        "assert",
    ),
    Mutant(
        "a forked process is another training",
        "a-forked-process-is-its-parent",
        "save.lineage",
        "os.register_at_fork(after_in_child=_drawn.clear)\n",
        "",
        f"{_TABLE}::test_a_fresh_training_is_refused_and_told_the_lines_that_work[9-save]",
        "assert",
    ),
    Mutant(
        "the rank that loaded says what is continued",
        "only-the-publishing-rank-is-asked",
        "Whole._parent",
        " or next(iter(said), None)",
        "",
        f"{_TABLE}::test_where_one_rank_loads_for_all_it_does_not_matter_which_one_publishes",
        "assert",
    ),
    Mutant(
        "a name for a run is taken by one process",
        "a-name-is-taken-twice",
        "take_free_run",
        "        if links.make_directory(context.layout.checkpoints / name):\n            return name\n",
        "        return name\n",
        f"{_TABLE}::test_auto_takes_a_free_run_made_from_the_wanted_one_and_two_processes_take_two",
        "assert",
    ),
    Mutant(
        "a spawned process continues what this one loaded",
        "pickled-without-its-lineage",
        "_opened_again",
        "    known.last_parents, known.declared = continues\n",
        "    pass\n",
        f"{_TABLE}::test_a_handle_that_is_pickled_continues_what_it_loaded",
        "assert",
    ),
]
