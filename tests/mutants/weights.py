"""Mutants of published weights."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_ROOM = "tests/weights/test_publish.py"

WEIGHTS = [
    Mutant(
        "after a rollback all weights are published",
        "difference-after-a-rollback",
        "WeightPublisher._before",
        "if not _continues(info, last, listed):",
        "if False:",
        f"{_ROOM}::test_the_newest_version_is_the_newest_checkpoint_after_a_rollback",
        "assert",
    ),
    Mutant(
        "a publisher keeps the published checkpoint open",
        "published-not-kept",
        "WeightPublisher._hold",
        "        held, self._published = self._published, weights\n",
        "        held, self._published = weights, None\n",
        f"{_ROOM}::test_retention_keeps_what_the_next_difference_needs",
        "assert",
    ),
    Mutant(
        "a difference is computed from the checkpoint of the newest version",
        "base-of-another-version",
        "WeightPublisher._open_published",
        "self._published is not None and self._published.directory.manifest_id == last.id",
        "self._published is not None",
        f"{_ROOM}::test_a_version_that_was_taken_away_is_no_base",
        "assert",
    ),
    Mutant(
        "a restarted publisher opens the published checkpoint",
        "published-not-opened-at-the-start",
        "WeightPublisher._publish",
        "problem = self._open_published(last)  # of a publisher that has just been started",
        'problem = ""',
        f"{_ROOM}::test_a_restarted_publisher_keeps_what_is_published",
        "is not open",
    ),
    Mutant(
        "a difference is only published between models of the same form",
        "difference-of-another-model",
        "ModelWeights.difference_in_form",
        "if forms[0] != forms[1]:",
        "if False:",
        f"{_ROOM}::test_another_model_is_published_with_all_weights[dtype]",
        "could not be broadcast",
    ),
    Mutant(
        "a difference is only published if the other files of the model are equal",
        "difference-of-another-configuration",
        "ModelWeights.difference_in_form",
        "if self.beside != other.beside",
        "if False",
        f"{_ROOM}::test_committed_files_of_a_trainer_are_published",
        "assert",
    ),
    Mutant(
        "a difference is only published between the same part of the state",
        "difference-of-another-selection",
        "WeightPublisher._open_published",
        "if weights.content != last.content:",
        "if False:",
        f"{_ROOM}::test_another_selection_after_a_restart_is_published_with_all_weights",
        "assert",
    ),
    Mutant(
        "damage of the published checkpoint is not recorded at the newest one",
        "damage-at-the-newest",
        "_base_parts",
        "    except (CkstoreError, OSError) as error:\n",
        "    except ZeroDivisionError as error:\n",
        f"{_ROOM}::test_damage_of_the_published_checkpoint_is_not_that_of_the_newest",
        "DamagedBlob",
    ),
    Mutant(
        "a version disappears by one rename",
        "version-removed-in-place",
        "remove_published",
        "    links.rename(path, hidden)\n",
        "    hidden = path\n",
        f"{_ROOM}::test_a_killed_removal_leaves_no_part_of_a_version",
        "assert",
    ),
    Mutant(
        "a frame has the positions of all its parts",
        "positions-from-each-part",
        "OverwriteFrame.add",
        "(found + start)",
        "found",
        f"{_ROOM}::test_a_large_tensor_is_compared_in_parts[overwrite]",
        "WrongWeights",
    ),
]
