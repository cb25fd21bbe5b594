"""Mutants that publish, supersede, drop or find the wrong checkpoint of a step."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_SUPERSEDED = "tests/ops/save/test_superseded.py"
_PLACES = "tests/ops/save/test_places.py"
_ONE_STEP = "tests/cluster/test_one_step.py"
_CONVERT = "tests/ops/open/test_draft_conversion.py"

PUBLISHING = [
    Mutant(
        "no name is used twice",
        "taken-name-acknowledged",
        "publish.rename_opened",
        "            return False\n",
        "            return True\n",
        f"{_SUPERSEDED}::test_checkpoints_whose_ids_begin_alike_have_longer_names",
        "assert",
    ),
    Mutant(
        "a checkpoint whose id begins like another one gets a longer name",
        "digits-not-added",
        "give_name",
        "            digit_count = len(id)\n",
        "            generation += 1\n",
        f"{_SUPERSEDED}::test_checkpoints_whose_ids_begin_alike_have_longer_names",
        "assert",
    ),
    Mutant(
        "a damaged form is replaced by the next generation",
        "damaged-form-stays",
        "give_name",
        "not is_form and is_sound(layout, found):",
        "not is_form:",
        f"{_SUPERSEDED}::test_a_name_that_a_damaged_form_has_is_followed_by_the_next_generation[not named-other bytes]",
        "assert",
    ),
    Mutant(
        "no other process publishes between the check of a step and the rename",
        "published-under-a-shared-lock",
        "publish._publish",
        "exclusive=True, timeout_s=_RUN_TIMEOUT_S) as lock:",
        "exclusive=False, timeout_s=_RUN_TIMEOUT_S) as lock:",
        f"{_PLACES}::test_no_save_publishes_between_the_look_at_a_step_and_the_rename",
        "assert",
    ),
    Mutant(
        "the checkpoints of a step are listed under the lock",
        "step-listed-before-the-lock",
        "publish._publish",
        "        with store_locks.lock_run(layout, manifest.run, exclusive=True, timeout_s=_RUN_TIMEOUT_S) as lock:\n"
        "            # Under the lock nothing is dropped, so what differs afterwards are additions only.\n"
        "            before = layout.run_stamp(manifest.run)\n"
        "            others = tuple(of_step(manifest.run, manifest.step))\n"
        "            found = _sound_of_step(layout, rule, others)\n",
        "        others = tuple(of_step(manifest.run, manifest.step))\n"
        "        found = _sound_of_step(layout, rule, others)\n"
        "        with store_locks.lock_run(layout, manifest.run, exclusive=True, timeout_s=_RUN_TIMEOUT_S) as lock:\n"
        "            before = layout.run_stamp(manifest.run)\n",
        f"{_PLACES}::test_no_save_publishes_between_the_look_at_a_step_and_the_rename",
        "assert",
    ),
    Mutant(
        "a save follows all other saves of its step in commit order",
        "overtaken-published",
        "publish._publish",
        "            if as_newest and any(",
        "            if False and any(",
        f"{_SUPERSEDED}::test_a_save_that_another_one_overtakes_is_the_newest_of_its_step",
        "assert",
    ),
    Mutant(
        "on a shared filesystem, a save gets a hidden name before it checks its step",
        "nothing-hidden",
        "publish._publish",
        '    hides = not layout.view.sees_locks and rule not in ("replace", "beside")\n',
        "    hides = False\n",
        f"{_ONE_STEP}::test_a_save_that_stood_still_publishes_nothing_after_another_host_went_on[two]",
        "assert",
    ),
    Mutant(
        "a save renames only its own hidden name",
        "hidden-name-of-another",
        "publish._publish",
        "            if hides:\n                _check_own(staging, source, layout.checkpoint(key))\n",
        "",
        f"{_ONE_STEP}::test_a_save_that_stood_still_publishes_nothing_after_another_host_went_on"
        "[and a third one that has the hidden name]",
        "assert",
    ),
    Mutant(
        "the hidden name of a dead save blocks no other save",
        "hidden-name-for-ever",
        "_hide",
        "        if time.monotonic() > deadline and not _took_away(layout, hidden):\n",
        "        if time.monotonic() > deadline:\n",
        f"{_ONE_STEP}::test_a_save_that_died_under_the_hidden_name_does_not_keep_its_step",
        "InUse",
    ),
    Mutant(
        "a save on a shared filesystem that publishes nothing removes its hidden name",
        "hidden-name-left",
        "publish._publish",
        "        if hides and not published:\n",
        "        if False:\n",
        "tests/cluster/test_lost_locks.py::test_what_loses_its_lock_in_the_middle_changes_nothing[publish]",
        "assert",
    ),
    Mutant(
        "a save drops no newer checkpoint",
        "newer-one-dropped",
        "superseded_checkpoints._drop_one",
        "    if older.order >= new.order and not newer:",
        "    if older is new:",
        f"{_SUPERSEDED}::test_what_comes_later_in_the_order_of_commits_is_not_dropped_as_older",
        "assert",
    ),
    Mutant(
        "superseded checkpoints are kept for the longer undo window",
        "superseded-not-waiting",
        "superseded_checkpoints._is_over",
        "    return found is None or not trash.left_of(window_s, found.st_ctime)\n",
        "    return True\n",
        f"{_SUPERSEDED}::test_what_a_reader_had_open_when_it_was_replaced_can_be_undone",
        "NoSuchRef",
    ),
    Mutant(
        "a protected superseded checkpoint is not dropped",
        "protected-due",
        "superseded_checkpoints.due",
        "pins is not None and not one.info.tags and one.info.id not in pins and ",
        "",
        f"{_SUPERSEDED}::test_a_gc_does_not_count_what_is_superseded_and_needed[tagged]",
        "assert",
    ),
    Mutant(
        "a damaged checkpoint supersedes nothing",
        "due-for-a-damaged-one",
        "superseded_checkpoints._due",
        "        if not why_not_valid(context, one):\n",
        "        if one:\n",
        f"{_SUPERSEDED}::test_where_the_newest_is_damaged_the_older_one_stays_and_is_not_loaded_as_the_step",
        "assert",
    ),
    Mutant(
        "if the newest checkpoint of a step is damaged, no older one is loaded instead",
        "older-one-for-a-damaged-one",
        "find._refuse_damaged",
        "        if not is_older:\n",
        "        if False:\n",
        f"{_SUPERSEDED}::test_where_the_newest_is_damaged_the_older_one_stays_and_is_not_loaded_as_the_step",
        "DID NOT RAISE",
    ),
    Mutant(
        "store.json records a conversion only when it is complete",
        "converted-said-first",
        "draft_conversion.convert",
        "    if is_whole and not tags_left:\n",
        "    if True:\n",
        f"{_CONVERT}::test_one_that_is_locked_for_long_is_left_to_the_next_writer",
        "assert",
    ),
    Mutant(
        "a conversion rewrites store.json last",
        "store-json-first",
        "draft_conversion.convert",
        "    is_whole = _publish_replaced(layout, left)\n",
        "    require(context, CHECKPOINT_IDS)\n    is_whole = _publish_replaced(layout, left)\n",
        f"{_CONVERT}::test_a_conversion_that_is_killed_anywhere_loses_nothing[open]",
        "assert",
    ),
    Mutant(
        "a checkpoint that a draft replaced can be restored",
        "replaced-by-a-draft-not-listed",
        "trash.former_place",
        '        directory = staged["step"]\n',
        "        pass\n",
        f"{_CONVERT}::test_a_checkpoint_that_a_draft_replaced_is_restored[exchanged]",
        "assert",
    ),
]
