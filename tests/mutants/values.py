"""Mutants of what a load gives back of objects, and of what the save after a load continues."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_OBJECTS = "tests/tensors/test_objects.py"
_PARENTS = "tests/ops/read/test_parents.py"

VALUES = [
    Mutant(
        "an encoding in which a blob is decoded with itself is refused",
        "encoding-with-a-loop",
        "encoding.parse",
        "    _check_paths(found, plain, where)\n",
        "",
        "tests/model/manifest/test_encoding.py::test_what_is_not_an_encoding_is_refused",
        "DID NOT RAISE",
    ),
    Mutant(
        "a field of an object is set without code of its class",
        "field-set-by-setattr",
        "objects.put_together",
        "            vars(made)[field] = value  # not by setattr: a property, or __setattr__, would run\n",
        "            setattr(made, field, value)\n",
        f"{_OBJECTS}::test_nothing_of_the_class_is_called_and_no_field_changes_the_class",
        "this is not to be called",
    ),
    Mutant(
        "an object that is more than its fields is not kept as these",
        "lock-kept-as-its-fields",
        "is_made_of_fields",
        "made_by is object.__new__ and has_fields and not is_stateful",
        "made_by is object.__new__",
        f"{_OBJECTS}::test_an_object_with_a_state_stays_what_it_was",
        "AssertionError",
    ),
    Mutant(
        "an object in the state of an optimizer is not stored as a dict, which the next step could not use",
        "optimizer-gets-a-dict",
        "capture.Walk._stateful",
        "            refuse_in_optimizer(value, path)\n",
        "            pass\n",
        f"{_OBJECTS}::test_an_object_that_an_optimizer_would_get_back_as_a_dict_is_refused",
        "DID NOT RAISE",
    ),
    Mutant(
        "a load that failed halfway leaves the next save without a parent",
        "half-loaded-has-a-parent",
        "load_into.load_into",
        "            lose_parents(context)\n",
        "            pass\n",
        f"{_PARENTS}::test_what_a_load_that_failed_halfway_has_left_continues_nothing_and_the_save_says_so",
        "assert",
    ),
    Mutant(
        "a load of a few values makes no parent",
        "record-makes-a-parent",
        "load.load",
        "        if select is None or needed_storages(",
        "        if True or needed_storages(",
        f"{_PARENTS}::test_a_restore_that_is_refused_continues_nothing",
        "assert",
    ),
    Mutant(
        "a class that this program has not allowed is not put together",
        "class-found-by-import",
        "safe_classes.find",
        "    found = _found(name)\n",
        "    module, _, own = name.rpartition('.')\n    found = getattr(importlib.import_module(module), own)\n",
        "tests/tensors/test_safe_classes.py::test_nothing_is_imported_called_or_given_back_because_of_its_name",
        "test_nothing_is_imported_called_or_given_back_because_of_its_name",
    ),
    Mutant(
        "hyperparameters that cannot be stored are kept as their text, and end no training",
        "hyperparameters-end-a-training",
        "CkstoreCheckpointIO._storable",
        "kept_as_text(dict(value) if isinstance(value, dict) else value, name, changed)",
        "value",
        "tests/integrations/test_lightning.py::test_hyperparameters_that_cannot_be_stored_end_no_training",
        "CannotStore",
    ),
    Mutant(
        "what a scheduler holds and a store cannot is left out",
        "function-of-a-scheduler-stored",
        "beside.without_refused",
        "        if _is_storable(value):\n",
        "        if True:\n",
        "tests/integrations/test_beside.py::test_a_scheduler_keeps_its_own_of_what_cannot_be_stored",
        "assert",
    ),
    Mutant(
        "a name that may mean a loss or a score is not guessed",
        "mode-guessed",
        "mode_by_name",
        "    if is_loss == is_score or not words.isdisjoint(OTHER_SENSE_WORDS) or _MINUS_SIGN.search(metric):\n"
        "        return None\n",
        "",
        "tests/ops/test_best.py::test_a_name_that_says_no_mode_is_refused_with_both_spellings",
        "DID NOT RAISE",
    ),
    Mutant(
        "a score is maximised",
        "scores-minimised",
        "mode_by_name",
        'return "min" if is_loss else "max"',
        'return "min"',
        "tests/ops/test_best.py::test_the_best_by_an_accuracy_stays_and_is_found",
        "assert",
    ),
    Mutant(
        "a stored rule without a mode keeps what it always kept",
        "stored-mode-by-name",
        "_best_from_json",
        '{"mode": "min", **_members(value, where, "keep_best", _BEST_MEMBERS)}',
        '{"mode": "min" if value["metric"] == "loss" else "max", **_members(value, where, "keep_best", _BEST_MEMBERS)}',
        "tests/model/settings/test_retention.py::"
        "test_a_stored_rule_without_a_mode_keeps_the_smallest_whatever_its_name_says",
        "assert",
    ),
    Mutant(
        "the name of a save under way is taken, so that no other callback chooses it",
        "name-of-a-save-free",
        "CkstoreCheckpointIO.save_checkpoint",
        "            if not _reserve(Path(path)):\n                self._settle(wait=True)\n",
        "",
        "tests/integrations/test_lightning_markers.py::"
        "test_whatever_callbacks_there_are_the_files_at_the_end_are_those_of_lightning_alone"
        "[background-delete-in order-one folder-with the names of Lightning]",
        "assert",
    ),
    Mutant(
        "a marker keeps no pin against the policy if the next save at its step holds the same",
        "pinned-against-the-policy",
        "CkstoreCheckpointIO._mark",
        "                self._remove_pins([kept_by])\n",
        "",
        "tests/integrations/test_lightning_markers.py::"
        "test_without_delete_the_policy_decides_also_beside_a_last_checkpoint",
        "assert",
    ),
    Mutant(
        "what is no checkpoint of a Trainer is passed on to the writer of Lightning",
        "weights-without-a-step-stored",
        "CkstoreCheckpointIO.save_checkpoint",
        'if not isinstance(checkpoint.get("global_step"), int):',
        "if False:",
        "tests/integrations/test_lightning.py::test_what_is_no_checkpoint_of_a_trainer_is_a_file_of_lightning",
        "test_what_is_no_checkpoint_of_a_trainer_is_a_file_of_lightning",
    ),
    Mutant(
        "the best model of before a resume is found by its number, and not by its step alone",
        "best-of-before-by-its-step",
        "best_of_before",
        " and info.metrics.get(name) == state.best_metric",
        "",
        "tests/integrations/test_transformers_native.py::test_a_best_of_before_a_resume_is_the_same_one_or_it_is_said",
        "assert",
    ),
]
