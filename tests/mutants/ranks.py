"""Mutants of the ranks that save one checkpoint together, without a process group and with one."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_MEETING = "tests/ranks/test_meeting.py"
_STILL = "tests/ranks/test_standing_still.py"
_HOSTS = "tests/cluster/test_ranks_on_two_hosts.py"
_DCP = "tests/integrations/test_dcp.py"

RANKS = [
    Mutant(
        "a rank fsyncs the rename of another rank before it acknowledges it (N2)",
        "ranks-acknowledge-unsynced",
        "Coordinator._published",
        "            files.sync_directory(folder)\n",
        "            pass\n",
        f"{_MEETING}::test_a_rank_acknowledges_the_rename_of_another_only_when_it_has_synced_it_itself",
        "assert",
    ),
    Mutant(
        "the part of a stuck rank is moved away before it can rename it",
        "ranks-unfenced",
        "_stop_publishers",
        "                trash.move_to_trash(",
        "                (lambda *_: None)(",
        f"{_STILL}::test_a_rank_that_is_stopped_before_the_rename_is_named_and_cannot_publish_later",
        "assert",
    ),
    Mutant(
        "the outcome of an attempt includes the published checkpoint",
        "ranks-return-what-is-there",
        "with_news",
        "    if found is not None and found.manifest_id == info.id:\n",
        "    if found is not None:\n",
        f"{_STILL}::test_a_rank_that_stood_still_returns_what_its_own_try_published",
        "assert",
    ),
    Mutant(
        "the caller of a rank waits no longer than its deadline",
        "ranks-wait-for-the-disk",
        "RankWork._limit_s",
        "            return max(self._deadline_s, self._decided_s + _FOLLOWS_S)\n",
        "            return math.inf\n",
        f"{_STILL}::test_a_rank_whose_disk_hangs_when_all_is_decided_says_what_was_decided",
        "assert",
    ),
    Mutant(
        "a checkpoint that a dead rank may have published is not published again",
        "ranks-publish-twice",
        "Coordinator._decide_alone",
        "        if gone is not None:\n",
        "        if gone is not None and False:\n",
        f"{_STILL}::test_a_late_rank_does_not_put_an_older_try_in_the_place_of_a_newer_one",
        "assert",
    ),
    Mutant(
        "ranks of a group exchange their failures before the first collective of DCP",
        "ranks-disagree",
        "GroupMeeting.agree",
        "        if failed:\n",
        "        if failed and raised is not None:\n",
        f"{_DCP}::test_what_an_object_raises_at_one_rank_fails_the_load_on_all[load]",
        "assert",
    ),
    Mutant(
        "a lost answer after the commit is not a failure",
        "lost-commit-said-to-have-failed",
        "sealed",
        "            self.unknown = error\n",
        "",
        "tests/ranks/test_nodes_without_shared_store.py::test_an_answer_that_is_lost_at_the_commit_is_said_to_be_unknown_and_saving_again_finds_it",
        "RemoteUnavailable",
    ),
    Mutant(
        "before the merged checkpoint is pushed, the checkpoint of another node at the step is read",
        "step-of-another-node-passed-over",
        "publish_apart",
        "    if request.step is not None:\n        list_step(context, remote, request.run, request.step)\n",
        "",
        "tests/ranks/test_nodes_without_shared_store.py::test_a_step_that_another_node_saved_is_refused_and_the_same_state_is_no_error",
        "DID NOT RAISE",
    ),
    Mutant(
        "a stuck rank does not replace a later checkpoint",
        "older-one-listed-again",
        "_adopt",
        "    if not of_step or of_step[-1].order < info.order:\n",
        "    if True:\n",
        "tests/ranks/test_nodes_without_shared_store.py::test_a_rank_that_stood_still_leaves_a_later_checkpoint_in_its_place",
        "assert",
    ),
    Mutant(
        "a rank that fails stops the publishing ranks of other hosts",
        "failed-rank-lets-others-publish",
        "_after",
        " if self.context.view.sees_locks else self._stop_publishers()",
        "",
        f"{_HOSTS}::test_a_rank_that_fails_to_publish_stops_the_rank_of_another_host_that_is_publishing",
        "assert",
    ),
    Mutant(
        "a rank that is late stops the publishing ranks of other hosts",
        "late-rank-lets-others-publish",
        "Coordinator._give_up",
        "        if outcome is None or not self.context.view.sees_locks:\n",
        "        if outcome is None:\n",
        f"{_HOSTS}::test_a_rank_that_is_late_fences_those_that_publish_before_it_says_that_one_is_missing",
        "assert",
    ),
    Mutant(
        "a checkpoint under the hidden name of another host's rank is not lost",
        "hidden-is-lost",
        "_is_unpublished",
        "not layout.view.sees_locks and _find_hidden(layout, who, take=False)",
        "False",
        f"{_HOSTS}::test_a_rank_that_publishes_under_the_hidden_name_of_its_step_is_waited_for",
        "NoSuchRef",
    ),
    Mutant(
        "a damaged outcome document does not fail a committed save",
        "damaged-outcome-fails-a-save",
        "_readable_outcome",
        "        with suppress(OSError, DamagedBlob):\n",
        "        if True:\n",
        "tests/ranks/test_without_group.py::test_a_published_save_does_not_fail_by_a_damaged_outcome",
        "DamagedBlob",
    ),
    Mutant(
        "a rank that cannot fence the others does not report that nothing was published",
        "unfenced-says-failed",
        "Coordinator._stop_publishers",
        'raise UnknownOutcome(msg, hint="check the disk; ckstore log shows whether the checkpoint exists") from error',
        "raise error",
        f"{_HOSTS}::test_a_rank_that_cannot_fence_the_other_host_does_not_say_that_nothing_was_published",
        "assert",
    ),
]
