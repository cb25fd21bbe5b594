"""Mutants of what `save_async(unchanged=…)` takes from the checkpoint before."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_CASES = "tests/saver/test_unchanged_storages.py"
_LAWS = "tests/saver/test_unchanged_laws.py"
_KEPT = f"{_LAWS}::test_what_is_kept_by_true_words_is_in_the_checkpoint_as_it_is_in_the_trainer"
_UNDER_WAY = f"{_LAWS}::test_while_the_save_before_is_under_way_or_has_failed_everything_is_copied"
_FORM = f"{_CASES}::test_what_the_checkpoint_before_has_in_another_form_is_not_taken"

UNCHANGED = [
    Mutant(
        "a sample of the data named as unchanged is compared",
        "sample-not-compared",
        "RecordedSource.check",
        "data is None or algorithm.digest(data) == chunk.piece",
        "True",
        f"{_LAWS}::test_a_checkpoint_is_what_was_given_or_a_compared_difference_fails_it",
        "assert",
    ),
    Mutant(
        "each part is compared in turn",
        "the-same-sample-each-time",
        "UnchangedBases.ended",
        "            compared[order.places[sample.storage].name, sample.start] = order.number\n",
        "            pass\n",
        f"{_CASES}::test_every_chunk_is_compared_in_its_turn",
        "assert",
    ),
    Mutant(
        "unchanged refers to the previous call, even if it was skipped",
        "skipped-call-forgotten",
        "UnchangedBases.not_saved",
        "        self._since[run] = names & self._since.get(run, names)\n",
        "        pass\n",
        f"{_LAWS}::test_a_call_that_saved_nothing_counts_as_the_call_before",
        "assert",
    ),
    Mutant(
        "unchanged refers to the previous call, even if it raised",
        "call-that-raised-forgotten",
        "Client.call_failed",
        "                self._queue.bases.not_saved(run, set())\n",
        "                pass\n",
        f"{_CASES}::test_a_call_that_saves_nothing_counts_as_a_save_before_that_names_nothing[error]",
        "assert",
    ),
    Mutant(
        "nothing is unchanged since a save with an unknown outcome",
        "taken-from-the-save-before-last",
        "UnchangedBases.ordered",
        "        self._bases.pop(order.run, None)\n",
        "",
        _UNDER_WAY,
        "assert",
    ),
    Mutant(
        "unchanged data is reused from the last requested save",
        "an-earlier-save-is-taken-from",
        "UnchangedBases.ended",
        "self._asked.get(order.run) != order.number or ",
        "",
        _UNDER_WAY,
        "assert",
    ),
    Mutant(
        "nothing is reused from a save with keep",
        "a-kept-step-is-taken-from",
        "UnchangedBases.ended",
        ' or order.if_exists == "keep"',
        "",
        _KEPT,
        "assert",
    ),
    Mutant(
        "another call on the run in between is detected",
        "a-call-between-is-not-seen",
        "UnchangedBases.place",
        "            or last_parents.get(order.run, LOST).id != base.id\n",
        "",
        f"{_CASES}::test_it_is_copied_where_the_save_before_cannot_be_meant",
        "NotUnchanged",
    ),
    Mutant(
        "a save reuses nothing from the checkpoint that it replaces",
        "taken-from-the-replaced",
        "UnchangedBases.place",
        "or order.step == base.step",
        "or False",
        _KEPT,
        "assert",
    ),
    Mutant(
        "a tensor with another form is copied",
        "another-form-kept",
        "Base._storage_of",
        " or old_leaf._replace(storage=leaf.storage) != leaf",
        "",
        f"{_CASES}::test_what_has_another_form_is_copied",
        "SaveFailed",
    ),
    Mutant(
        "data is reused only from the checkpoint that was saved",
        "any-checkpoint-at-the-step",
        "manifest_of",
        "directory.manifest_id == manifest_id",
        "True",
        f"{_CASES}::test_a_checkpoint_whose_directory_is_exchanged_before_it_is_locked_is_not_taken",
        "DID NOT RAISE",
    ),
    Mutant(
        "a tensor is reused only from the same tensor of the checkpoint",
        "any-storage-taken",
        "recorded_sources",
        "old.get(leaf.name) != leaf._replace(storage=kept.storages[leaf.storage][0])",
        "False",
        f"{_FORM}[another storage]",
        "NotUnchanged",
    ),
    Mutant(
        "a save fails if the previous checkpoint lost the reused data",
        "a-lost-blob-is-not-noticed",
        "_ChunkWriter._claim_recorded",
        "        if not (self._staging.claim(",
        "        if False and not (self._staging.claim(",
        f"{_CASES}::test_a_blob_that_lost_its_name_fails_the_save_and_the_next_copies_everything",
        "missing or changed",
    ),
]
